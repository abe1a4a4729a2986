"""The table of GPUs: units by operations a cycle by clock give the rates that makers print."""

from __future__ import annotations

from typing import Any

import pytest

from chopper_interop.schemas.gpus import GPU_FIELDS, GPUS, SOURCES, Gpu

_CDNA3_300 = {
    "f16": "1307.4", "bf16": "1307.4", "f8": "2614.9", "xf32": "653.7", "f32": "163.4",
    "f64": "163.4", "i8": "2614.9",
}  # fmt: skip
_A100 = {"f16": "312", "bf16": "312", "tf32": "156", "f64": "19.5", "i8": "624"}
_H100 = {
    "f16": "989.4", "bf16": "989.4", "f8": "1978.9", "tf32": "494.7", "f64": "66.9", "i8": "1978.9",
}  # fmt: skip
_H100_PCIE = {
    "f16": "756", "bf16": "756", "f8": "1513", "tf32": "378", "f64": "51.2", "i8": "1513",
}  # fmt: skip
_H200 = {
    "f16": "1979/2", "bf16": "1979/2", "f8": "3958/2", "tf32": "989/2", "f64": "67", "i8": "3958/2",
}  # fmt: skip
_NVL = {
    "f16": "1671/2", "bf16": "1671/2", "f8": "3341/2", "tf32": "835/2", "f64": "60", "i8": "3341/2",
}  # fmt: skip


def _without(rates: dict[str, str], kind: str) -> dict[str, str]:
    return {k: v for k, v in rates.items() if k != kind}


MATRIX = {
    "MI50": {}, "MI60": {},
    "MI100": {"f16": "184.6", "bf16": "92.3", "f32": "46.1", "i8": "184.6"},
    "MI210": {"f16": "181.0", "bf16": "181.0", "f32": "45.3", "f64": "45.3", "i8": "181.0"},
    "MI250": {
        "f16": "362.1/2", "bf16": "362.1/2", "f32": "90.5/2", "f64": "90.5/2", "i8": "362.1/2",
    },
    "MI250X": {
        "f16": "383.0/2", "bf16": "383.0/2", "f32": "95.7/2", "f64": "95.7/2", "i8": "383.0/2",
    },
    "MI300A": {
        "f16": "980.6", "bf16": "980.6", "f8": "1961.2", "xf32": "490.3", "f32": "122.6",
        "f64": "122.6", "i8": "1961.2",
    },
    "MI300X": _CDNA3_300, "MI325X": _CDNA3_300,
    "MI350X": {
        "f16": "2.3P", "bf16": "2.3P", "f8": "4.6P", "f6": "9.2P", "f4": "9.2P", "f32": "144.2",
        "f64": "72.1", "i8": "4.6P",
    },
    "MI355X": {
        "f16": "2516.6", "bf16": "2516.6", "f8": "5033.2", "f6": "10066.3", "f4": "10066.3",
        "f32": "157.3", "f64": "78.6", "i8": "5033.2",
    },
    "V100-SXM2": {"f16": "125"}, "V100-PCIE": {"f16": "112"},
    "A100-SXM4-40GB": _A100, "A100-SXM4-80GB": _A100, "A100-PCIE-40GB": _A100,
    "A100 80GB PCIe": _A100, "A100": _A100, "A800-SXM4-80GB": _A100, "A800 80GB PCIe": _A100,
    "H100 SXM5": _H100, "H100 80GB HBM3": _H100, "H100 PCIe": _H100_PCIE,
    "H200": _H200, "GH200 480GB": _H200, "GH200 144G HBM3e": _H200,
    "H200 NVL": _NVL, "H100 NVL": _NVL,
    "H800": _without(_H200, "f64"), "H800 PCIe": _without(_H100_PCIE, "f64"),
    "B200": {
        "f16": "4.5P/2", "bf16": "4.5P/2", "f8": "9P/2", "f6": "9P/2", "f4": "18P/2",
        "tf32": "2.2P/2", "f64": "37", "i8": "9P/2",
    },
    "GB200": {
        "f16": "5P/2", "bf16": "5P/2", "f8": "10P/2", "f6": "10P/2", "f4": "20P/2",
        "tf32": "2.5P/2", "f64": "40", "i8": "10P/2",
    },
    "B300": {
        "f16": "4.5P/2", "bf16": "4.5P/2", "f8": "9P/2", "f6": "9P/2", "f4": "13.5P",
        "tf32": "2.2P/2",
    },
    "GB300": {
        "f16": "5P/2", "bf16": "5P/2", "f8": "10P/2", "f6": "10P/2", "f4": "15P", "tf32": "2.5P/2",
    },
    "A10": {"f16": "125", "bf16": "125", "tf32": "62.5", "i8": "250"},
    "L4": {"f16": "242/2", "bf16": "242/2", "f8": "485/2", "tf32": "60", "i8": "485/2"},
    "L40S": {"f16": "733/2", "bf16": "733/2", "f8": "733", "tf32": "183", "i8": "733"},
    "RTX 4090": {"f16": "165.2", "bf16": "165.2", "f8": "330.3", "tf32": "82.6", "i8": "660.6"},
    "RTX 5090": {
        "f16": "209.5", "bf16": "209.5", "f8": "419", "f4": "1676", "tf32": "104.8", "i8": "838",
    },
}  # fmt: skip
"""Matrix rates in TFLOP/s (P: PFLOP/s) with the digits that makers print; "/2" of figures that are
of two dies, or with structured sparsity. Of the L40S f16 is half its sparse rate: the dense one on
the sheet, 362.05, is twice the L40's, whose clock is lower."""

_V_A100 = {"f16": "78", "bf16": "39", "f32": "19.5", "f64": "9.7"}
_V_H100 = {"f16": "133.8", "bf16": "133.8", "f32": "66.9", "f64": "33.5"}
_V_H200 = {"f32": "67", "f64": "34"}
_V_MI300X = {"f32": "163.4", "f64": "81.7"}

VECTOR = {
    "MI50": {"f16": "26.5", "f32": "13.3", "f64": "6.6"},
    "MI60": {"f16": "29.5", "f32": "14.7", "f64": "7.4"},
    "MI100": {"f32": "23.1", "f64": "11.5"},
    "MI210": {"f32": "22.6", "packed f32": "45.3", "f64": "22.6"},
    "MI250": {"f32": "45.3/2", "packed f32": "90.5/2", "f64": "45.3/2"},
    "MI250X": {"f32": "47.9/2", "packed f32": "95.7/2", "f64": "47.9/2"},
    "MI300A": {"f32": "122.6", "f64": "61.3"}, "MI300X": _V_MI300X, "MI325X": _V_MI300X,
    "MI350X": {"f32": "144.2", "f64": "72.1"},
    "MI355X": {"f16": "157.3", "f32": "157.3", "f64": "78.6"},
    "V100-SXM2": {"f16": "31.4", "f32": "15.7", "f64": "7.8"},
    "V100-PCIE": {"f32": "14", "f64": "7"},
    "A100-SXM4-40GB": _V_A100, "A100-SXM4-80GB": _V_A100, "A100-PCIE-40GB": _V_A100,
    "A100 80GB PCIe": _V_A100, "A100": _V_A100, "A800-SXM4-80GB": _V_A100,
    "A800 80GB PCIe": _V_A100, "H100 SXM5": _V_H100, "H100 80GB HBM3": _V_H100,
    "H100 PCIe": {"f16": "102.4", "bf16": "102.4", "f32": "51.2", "f64": "25.6"},
    "H200": _V_H200, "GH200 480GB": _V_H200, "GH200 144G HBM3e": _V_H200,
    "H200 NVL": {"f32": "60", "f64": "30"}, "H100 NVL": {"f32": "60", "f64": "30"},
    "H800": {"f32": "67"}, "H800 PCIe": {"f32": "51"},
    "B200": {"f32": "75", "f64": "37"}, "GB200": {"f32": "80", "f64": "40"},
    "B300": {}, "GB300": {"f32": "80"},
    "A10": {"f32": "31.2"}, "L4": {"f32": "30.3"}, "L40S": {"f32": "91.6"},
    "RTX 4090": {"f16": "82.6", "bf16": "82.6", "f32": "82.6"},
    "RTX 5090": {"f16": "104.8", "bf16": "104.8", "f32": "104.8"},
}  # fmt: skip
"""Vector rates, likewise, at the highest clock."""

NOT_PRINTED = {
    "MI100": "f16", "MI210": "f16", "MI250": "f16", "MI250X": "f16", "MI300A": "f16",
    "MI300X": "f16", "MI325X": "f16", "MI350X": "f16", "V100-PCIE": "f16", "H200": "f16 bf16",
    "GH200 480GB": "f16 bf16", "GH200 144G HBM3e": "f16 bf16", "H200 NVL": "f16 bf16",
    "H100 NVL": "f16 bf16", "H800": "f16 bf16", "H800 PCIe": "f16 bf16",
    "B300": "f16 bf16 f32",  # of eight together 600 in f32, which is not round
    "GB300": "f16 bf16", "A10": "f16 bf16", "L4": "f16 bf16", "L40S": "f16 bf16",
}  # fmt: skip
"""Vector rates that are of the architecture, but that no sheet of the product states."""
WITHOUT_CLOCK = {"MI308X", "H20"}
"""No maker states the clock at which they are rated: nothing can be multiplied."""

BUS = {
    "MI50": (4096, 2.0), "MI60": (4096, 2.0), "MI100": (4096, 2.4), "MI210": (4096, 3.2),
    "MI250": (4096, 3.2), "MI250X": (4096, 3.2), "MI300A": (8192, 5.2), "MI300X": (8192, 5.2),
    "MI308X": (8192, 5.2), "MI325X": (8192, 6.0), "MI350X": (8192, 8.0), "MI355X": (8192, 8.0),
    "V100-SXM2": (4096, 1.754), "V100-PCIE": (4096, 1.754), "A100-SXM4-40GB": (5120, 2.43),
    "A100-PCIE-40GB": (5120, 2.43), "A100-SXM4-80GB": (5120, 3.186),
    "A800-SXM4-80GB": (5120, 3.186), "A100 80GB PCIe": (5120, 3.024),
    "A800 80GB PCIe": (5120, 3.024), "H100 PCIe": (5120, 3.186), "H800 PCIe": (5120, 3.186),
    "H100 SXM5": (5120, 5.238), "H100 80GB HBM3": (5120, 5.238), "H800": (5120, 5.238),
    "H100 NVL": (6016, 5.238), "H20": (6144, 5.238), "GH200 480GB": (6144, 5.238),
    "H200": (6144, 6.402), "H200 NVL": (6144, 6.402), "GH200 144G HBM3e": (6144, 6.402),
    "B200": (7680, 7.992), "B300": (7680, 7.992), "GB200": (8192, 7.992), "GB300": (8192, 7.992),
    "A10": (384, 12.5), "L4": (192, 12.5), "L40S": (384, 18.0), "RTX 4090": (384, 21.0),
    "RTX 5090": (512, 28.0),
}  # fmt: skip
"""Width of a device's memory bus in bits, and Gbit/s of each."""


def printed(text: str) -> tuple[float, float]:
    """TFLOP/s that a maker prints, and one of the last digit."""
    figure, _, parts = text.partition("/")
    number = figure.removesuffix("P")
    scale = (1000 if figure.endswith("P") else 1) / int(parts or 1)
    digits = len(number.partition(".")[2])
    return float(number) * scale, scale * 10**-digits


def row(table: dict[str, Any], product: Gpu) -> Any:
    """What a table here says of a product."""
    if product.name not in table:
        pytest.fail(f"{product.name} lacks its row in MATRIX, VECTOR or BUS: what its maker prints")
    return table[product.name]


def rated(product: Gpu) -> bool:
    return product.name not in WITHOUT_CLOCK


def ids(product: Gpu) -> str:
    return product.name


@pytest.mark.parametrize("product", [g for g in GPUS if rated(g)], ids=ids)
def test_published_peaks_are_units_times_rate_times_clock(product: Gpu) -> None:
    """To the last printed digit, which some makers round and some cut off; none is left out."""
    matrix, vector = row(MATRIX, product), row(VECTOR, product)
    assert set(matrix) == set(product.flop_per_cycle)
    left_out = set(NOT_PRINTED.get(product.name, "").split())
    assert not left_out & set(vector)
    assert set(vector) | left_out == set(product.vector_flop_per_cycle)
    for kind, text in matrix.items():
        tflops, unit = printed(text)
        assert product.peak_tflops(kind) == pytest.approx(tflops, abs=unit), kind
    for kind, text in vector.items():
        tflops, unit = printed(text)
        rate = product.vector_flop_per_cycle[kind] * product.cus * product.max_mhz / 1e6
        assert rate == pytest.approx(tflops, abs=unit), kind


def test_the_tables_here_are_of_all_gpus_and_of_no_others() -> None:
    names = {g.name for g in GPUS}
    assert set(MATRIX) == set(VECTOR) == names - WITHOUT_CLOCK
    assert all(not g.max_mhz for g in GPUS if not rated(g))
    assert set(BUS) == names - {"A100"}  # one of several, of unlike memory
    assert len(names) == len(GPUS)


@pytest.mark.parametrize("product", [g for g in GPUS if g.bandwidth_gbs], ids=ids)
def test_bandwidth_is_what_the_bus_carries(product: Gpu) -> None:
    """Makers print round figures, up to 3 % below."""
    bits, rate = row(BUS, product)
    assert product.bandwidth_gbs == pytest.approx(bits * rate / 8, rel=0.03)


@pytest.mark.parametrize("product", GPUS, ids=ids)
def test_related_figures_agree(product: Gpu) -> None:
    assert product.cus % product.xccs == 0  # dies of a product are alike
    assert product.peak_mhz <= product.max_mhz
    assert product.simds_per_cu * product.waves_per_simd in {32, 40, 48, 64}
    for kind, (tflops, mhz) in product.achievable.items():
        assert tflops <= product.flop_per_cycle[kind] * product.cus * mhz / 1e6
        assert mhz <= product.max_mhz


def test_every_figure_has_a_source() -> None:
    for product in GPUS:
        for name in GPU_FIELDS:
            sources = product.source_of(name).split()
            assert sources, (product.name, name)
            assert set(sources) <= set(SOURCES), (product.name, name)

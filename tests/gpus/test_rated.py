"""Ratings of GPUs: from the table of products, users' files, and sources."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import ChopperError, ReadError, UsageError
from chopper_interop.gpus import ratings
from chopper_interop.gpus import user_gpus as own_gpus
from chopper_interop.schemas.gpus import GPUS, find_gpu
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank

if TYPE_CHECKING:
    from pathlib import Path


def named(name: str) -> ci.schemas.gpus.Gpu:
    return next(g for g in GPUS if g.name == name)


def test_what_is_achieved_of_an_mi300x_is_lost_to_the_clock_and_to_utilisation() -> None:
    """AMD's own figures: 1307.4 TFLOP/s by the sheet, 708 had at 1207 MHz."""
    product = named("MI300X")
    tflops, mhz = product.achievable["bf16"]
    peak = product.peak_tflops("bf16")
    assert peak is not None
    by_clock = product.max_mhz / mhz
    by_use = product.flop_per_cycle["bf16"] * product.cus * mhz / 1e6 / tflops
    assert peak == pytest.approx(1307.4, abs=0.05)
    assert by_clock == pytest.approx(1.740, abs=5e-4)
    assert by_use == pytest.approx(1.061, abs=5e-4)
    assert by_clock * by_use == pytest.approx(peak / tflops) == pytest.approx(1.847, abs=5e-4)


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("AMD Instinct MI300X", "MI300X"), ("AMD Instinct MI250X/MI250", None),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB"), ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"), ("Tesla V100-PCIE-16GB", "V100-PCIE"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB HBM3"), ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"), ("NVIDIA H200 NVL", "H200 NVL"), ("NVIDIA H800 PCIe", "H800 PCIe"),
        ("NVIDIA H800", "H800"), ("NVIDIA H800 NVL", None), ("NVIDIA H20", "H20"),
        ("NVIDIA H20-3e", None), ("NVIDIA GH200 480GB", "GH200 480GB"),
        ("NVIDIA GH200 144G HBM3e", "GH200 144G HBM3e"), ("NVIDIA GH200", None),
        ("NVIDIA B200", "B200"), ("NVIDIA GB200", "GB200"), ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA GB300", "GB300"), ("NVIDIA GB300-WS", None),
        ("NVIDIA A800-SXM4-80GB", "A800-SXM4-80GB"), ("NVIDIA A800 40GB Active", None),
        ("NVIDIA A10", "A10"), ("NVIDIA A10G", None), ("NVIDIA L4", "L4"), ("NVIDIA L40", None),
        ("NVIDIA L40S", "L40S"), ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090 D", None), ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 5090", "RTX 5090"), ("NVIDIA GeForce RTX 5090 D v2", None),
        ("AMD Instinct MI308X", "MI308X"), ("AMD Instinct MI325X VF", "MI325X"),
    ],
)  # fmt: skip
def test_products_by_the_names_that_tools_print(printed: str, name: str | None) -> None:
    actual = find_gpu(printed)
    assert (actual.name if actual else None) == name


OWN = """
[[gpu]]
name = "MI309X"
arch = "gfx942"
cus = 80
max_mhz = 1420
bandwidth_gbs = 5300.5
power_w = 650
flop_per_cycle = {bf16 = 2048}
achievable = {bf16 = [180, 1300]}
sources = {"" = "a sheet"}
"""


def own(tmp_path: Path, text: str | bytes) -> str:
    path = tmp_path / "gpus.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def test_a_users_own_gpu(tmp_path: Path) -> None:
    path = own(tmp_path, "\ufeff" + OWN.replace("\n", "\r\n"))
    rows = own_gpus.read_gpus(path)
    one = ratings.rate_device(Device("", 0, "AMD Instinct MI309X", cus=80), rows, path)
    assert (one.cus, one.boost_mhz, one.bandwidth_gbs, one.power_w) == (80, 1420, 5300.5, 650)
    assert one.sources == {
        "cus": "device", "arch": path, "boost_mhz": path, "bandwidth_gbs": path, "power_w": path,
        "peak_mhz": path, "waves_per_simd": "architecture",
    }  # fmt: skip
    assert one.flop_per_cycle("bf16") == 2048
    assert one.flop_per_cycle("f64") is None
    assert one.achievable("bf16") == (180.0, 1300)
    assert one.peak_flop_per_s("bf16") == 2048 * 80 * 1420e6
    assert one.xccs is None
    assert rows[0].source_of("power_w") == "a sheet"


def test_a_users_row_takes_precedence_in_the_fields_that_it_states(tmp_path: Path) -> None:
    path = own(tmp_path, '[[gpu]]\nname = "*"\nmax_mhz = 1700\npower_w = 500\n')
    rows = own_gpus.read_gpus(path)
    plain = Device("", 0, "AMD Instinct MI300X")
    one = ratings.rate_device(plain, rows, path)
    assert (one.boost_mhz, one.power_w, one.bandwidth_gbs) == (1700, 500, 5300)
    assert one.sources["power_w"] == path
    assert one.sources["bandwidth_gbs"] == "product MI300X"
    with_clock = ratings.rate_device(
        replace(plain, max_mhz=1900), rows, path, (2100.0, "telemetry")
    )
    assert (with_clock.boost_mhz, with_clock.sources["boost_mhz"]) == (1700, path)
    assert ratings.rate_device(plain, (), "", (2000.0, "telemetry")).boost_mhz == 2000
    assert ratings.rate_device(Device("", 3), rows, path).boost_mhz == 1700


def test_a_partition_keeps_its_units(tmp_path: Path) -> None:
    path = own(tmp_path, '[[gpu]]\nname = "MI300X"\ncus = 304\nxccs = 8\nmax_mhz = 1700\n')
    part = Device("", 0, "AMD Instinct MI300X", "gfx942", xccs=1, cus=38, max_mhz=2100)
    one = ratings.rate_device(part, own_gpus.read_gpus(path), path)
    assert (one.cus, one.xccs, one.boost_mhz) == (38, 1, 1700)


@pytest.mark.parametrize("name", ["XYZ", "*"])
def test_rows_of_one_name_are_distinguished_by_units(tmp_path: Path, name: str) -> None:
    row = f'[[gpu]]\nname = "{name}"\n'
    path = own(tmp_path, f"{row}cus = 80\nmax_mhz = 1420\n{row.lower()}cus = 60\nmax_mhz = 1300\n")
    rows = own_gpus.read_gpus(path)
    clocks = [
        ratings.rate_device(Device("", 0, "Some XYZ", cus=n), rows).boost_mhz for n in (80, 60, 30)
    ]
    assert clocks == [1420, 1300, 1300]
    ratings.refuse_unused_rows([Device("", 0, "Some XYZ", cus=60)], rows, path)
    assert ratings.rate_device(Device("", 0, "Some XYZ"), rows).user_row is None  # may be either


def test_a_file_of_other_gpus_is_refused(tmp_path: Path) -> None:
    rows = own_gpus.read_gpus(own(tmp_path, OWN))
    with pytest.raises(UsageError, match=r"no row fits a GPU.*'AMD Instinct MI300X'"):
        ratings.refuse_unused_rows([Device("", 0, "AMD Instinct MI300X")], rows, "gpus.toml")
    with pytest.raises(UsageError, match="without a name"):
        ratings.refuse_unused_rows([Device("", 0)], rows, "gpus.toml")
    ratings.refuse_unused_rows(
        [Device("", 0, "MI300X"), Device("", 1, "MI309X", "gfx942", cus=80)], rows, ""
    )


@pytest.mark.parametrize(
    "text",
    [
        "", "[[gpu]]", "[gpu]\nname = 'a'", "gpu = 3", "gpu = [1]", "x = 1\n" + OWN, "\0", "[[gpu",
        OWN.encode("utf-16"), OWN.replace("80", "-80"), OWN.replace("80", "nan"),
        OWN.replace("1420", '"1420"'), OWN.replace("1420", "1" + "0" * 40),
        OWN.replace("max_mhz", "max_clock"), OWN.replace("bf16 = 2048", 'bf16 = "x"'),
        OWN.replace("[180, 1300]", "180"), OWN.replace("[180, 1300]", "[180, inf]"),
        OWN.replace("80\n", "true\n"), OWN + OWN, OWN.replace('"MI309X"', '""'),
        OWN.replace('"MI309X"', "1979-05-27"), "a = " + "[" * 20000,
    ],
)  # fmt: skip
def test_a_bad_file_gives_one_line(tmp_path: Path, text: str | bytes) -> None:
    path = own(tmp_path, text)
    with pytest.raises(ReadError) as caught:
        own_gpus.read_gpus(path)
    line = str(caught.value)
    assert path in line
    assert "\n" not in line
    assert caught.value.hint


def test_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UsageError):
            own_gpus.read_gpus(str(path))
    with pytest.raises(ChopperError):
        own_gpus.read_gpus("a\0b")


def test_a_partition_has_its_part(tmp_path: Path) -> None:
    del tmp_path
    one = ratings.rate_device(Device("", 0, "AMD Instinct MI300X", arch="gfx942", cus=38))
    assert (one.cus, one.xccs, one.bandwidth_gbs, one.part) == (38, 1, 5300, 1 / 8)
    assert one.achievable("bf16") == (708 / 8, 1207)
    assert one.peak_flop_per_s("bf16") == pytest.approx(1307.4e12 / 8, rel=1e-4)


def test_facts_without_a_source_are_unknown() -> None:
    one = ratings.rate_device(Device("", 0, "Some GPU"))
    assert one.sources == {}
    assert (one.cus, one.boost_mhz, one.product, one.bandwidth_gbs) == (None,) * 4
    assert one.flop_per_cycle("bf16") is one.achievable("bf16") is one.peak_flop_per_s("f16")


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_demo(
        tmp_path_factory.mktemp("rated") / "job", ranks=2, layers=1, steps=2, peak_scale=0.9,
        counter_steps=1, recorder_hz=100, truth_kernels=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "by"),
    slow_from([(("kineto", "telemetry"), "telemetry"), (("kineto",), "product MI300X"), (("",), "device"), (("kineto", "rocprof"), "device")], 2),
)  # fmt: skip
def test_the_highest_clock_of_the_demo_job(slow: Path, parts: tuple[str, ...], by: str) -> None:
    trace = ci.read(*(slow / part for part in parts))
    actual = ratings.rate_gpus(trace)
    assert len(actual) == 2
    for one in actual.values():
        assert one.boost_mhz == (2100 if "product" in by else 1890)
        assert one.sources["boost_mhz"].startswith(by)
        assert (one.cus, one.bandwidth_gbs, one.peak_mhz) == (304, 5300, 2100)


def test_real_devices() -> None:
    (one,) = ratings.rate_gpus(read_once(real("rocprof/rocprof_compute_pmc/omp_MI300A"))).values()
    assert (one.cus, one.xccs, one.boost_mhz, one.bandwidth_gbs) == (228, 6, 2100, 5300)
    assert one.sources["cus"] == "device"


def test_work_without_a_device(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text(
        '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "pid": 0, '
        '"tid": 7, "args": {"device": 0, "stream": 7}}]}'
    )
    ((key, one),) = ratings.rate_gpus(ci.read(path)).items()
    assert key == (0, 0)
    assert one == ratings.GpuRating()


def of_ranks(hosts: list[str], devices: list[Device]) -> ci.Trace:
    """A kernel of each rank on its host's device 0."""
    builder = TraceBuilder()
    for rank in range(len(hosts)):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "s", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane, ts=[0], dur=[9])
    ranks = tuple(Rank(rank, host=host, device=0) for rank, host in enumerate(hosts))
    return builder.finish().with_meta(ranks=ranks, devices=tuple(devices))


def test_devices_of_one_number_are_distinguished_by_host() -> None:
    devices = [Device("a", 0, "MI210"), Device("b", 0, "MI300X"), Device("a", 0, "MI50")]
    actual = ratings.rate_gpus(of_ranks(["b", "a", "c", ""], devices))
    assert [one.name for one in actual.values()] == ["MI300X", "MI210", "", "MI210"]
    actual = ratings.rate_gpus(of_ranks(["b", "c"], [Device("", 0, "MI100"), *devices]))
    assert [one.name for one in actual.values()] == ["MI300X", "MI100"]


class Walked(tuple):
    """A tuple that counts how often it is iterated over."""

    __slots__ = ()
    walks = 0

    def __iter__(self):
        Walked.walks += 1
        return super().__iter__()


def test_devices_and_ranks_are_not_searched_for_each_rank(monkeypatch) -> None:
    monkeypatch.setattr(Walked, "walks", 0)
    hosts = [f"h{number}" for number in range(60)]
    trace = of_ranks(hosts, [Device(host, 0, "MI300X") for host in hosts])
    ranks, devices = Walked(trace.meta.ranks), Walked(trace.meta.devices)
    assert len(ratings.rate_gpus(trace.with_meta(ranks=ranks, devices=devices))) == len(hosts)
    assert 0 < Walked.walks < 10


NVIDIA = (
    "timestamp, index, name, clocks.current.sm [MHz], clocks.max.sm [MHz]\n"
    "2026/01/15 10:00:00.000, 0, NVIDIA H100 80GB HBM3, 1500 MHz, 1980 MHz\n"
    "2026/01/15 10:00:01.000, 0, NVIDIA H100 80GB HBM3, 1600 MHz, 1980 MHz\n"
)
METRIC = (
    "timestamp,gpu,gfx_0_clk,gfx_0_min_clk,gfx_0_max_clk,gfx_1_clk,gfx_1_min_clk,gfx_1_max_clk\n"
    "1768478400,0,1500,132,1890,1400,132,1870\n1768478401,0,1500,132,1890,1400,132,1870\n"
)


@pytest.mark.parametrize(("text", "mhz"), [(NVIDIA, 1980), (METRIC, 1890)])
def test_highest_clocks_by_telemetry(tmp_path: Path, text: str, mhz: float) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    trace = ci.read(path)
    assert ratings.highest_clocks(trace) == {(-1, -1): (mhz, ratings.TELEMETRY_OF_ALL)}


def test_different_highest_clocks_of_undistinguished_gpus_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(METRIC + "1768478401,1,1500,132,1700,1400,132,1700\n")
    assert ratings.highest_clocks(ci.read(path)) == {}


def test_amd_smi_static_has_the_highest_clock(tmp_path: Path) -> None:
    from chopper_interop.converters.amd_smi.static import read

    path = tmp_path / "static.json"
    levels = [{"Level 0": "132 MHz", "Level 1": "1900 MHz"}, {"Level 0": "132 MHz"}, {}]
    gpus = [
        {"gpu": n, "clock": {"sys": {"frequency_levels": clocks}}}
        for n, clocks in enumerate(levels)
    ]
    path.write_text(json.dumps({"gpu_data": [*gpus, {"gpu": 3, "asic": {"market_name": "x"}}]}))
    assert [d.max_mhz for d in read([path]).meta.devices] == [1900, 132, -1, -1]


def test_a_clock_of_all_gpus_is_that_of_each(slow: Path, tmp_path: Path) -> None:
    """amd-smi counts two GPUs, the profiler agents: they cannot be matched."""
    clocks = {"Level 0": "132 MHz", "Level 1": "1850 MHz"}
    gpus = [{"gpu": n, "clock": {"sys": {"frequency_levels": clocks}}} for n in (0, 1)]
    (tmp_path / "static.json").write_text(json.dumps({"gpu_data": gpus}))
    actual = ratings.rate_gpus(ci.read(slow / "kineto", tmp_path)).values()
    assert [one.boost_mhz for one in actual] == [1850, 1850]

"""Bytes over links: counters that wrap around, that are reset, and rates."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop.analyses.methods.series import link_counters
from chopper_interop.analyses.traffic import traffic
from chopper_interop.annotate.telemetry.samples import periodic_samples
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.testing import check_analysis

SECOND = 10**9
KIB = 1024
START = 1_700_000_000


def job(series: list[tuple], work: list[tuple[int, int, int]], steps: list = ()) -> ci.Trace:
    """Series (rank, device, name, unit, source, points) and work (rank, start, duration)."""
    builder = TraceBuilder()
    for rank, start, dur in work:
        lane = builder.lane(rank, LaneKind.STREAM, 0, "s", 0)
        builder.nodes(kind=int(Kind.KERNEL), name="k", rank=rank, lane=lane,
                      ts=np.array([start]), dur=np.array([dur]))  # fmt: skip
    for rank, device, name, unit, source, points in series:
        row = builder.series(rank, name, unit, source, device=device)
        ts, value = np.array(points, float).T
        builder.samples(row, ts.astype(np.int64), value)
    trace = builder.finish()
    return trace.with_columns(iteration=np.array(steps, np.int32)) if len(steps) else trace


def every_second(values: list[float]) -> list[tuple[int, float]]:
    return [(t * SECOND, v) for t, v in enumerate(values)]


RISES = st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=12)


@given(RISES, st.integers(0, 2**32 - 1), st.booleans())
def test_32_bit_counters_wrap_around(rises, first, carried_on) -> None:
    """The sum of rises is exact, whether reading carried them on beyond 32 bits or not."""
    true = np.cumsum([first, *rises])
    count = true if carried_on else true % 2**32
    ts = np.arange(len(count)) * 5 * SECOND  # NVLink could carry all of it: 2**32 KiB in 5 s
    samples = periodic_samples(ts, count.astype(float) * KIB, 0, is_linear=True)
    way = link_counters.parse_link_series("NVLink bytes sent", "B")
    flow = link_counters.link_flow(samples, way)
    assert np.round(flow.rates.value[:-1] * 5).tolist() == [r * KIB for r in rises]
    wraps = sum(b % 2**32 < a % 2**32 for a, b in pairwise(true.tolist()))
    assert len(flow.wrapped) == wraps
    assert not flow.reset.size


@pytest.mark.parametrize(
    ("name", "unit", "milliseconds", "is_unsure"),
    [
        ("PCIe bytes sent", "B", [10] * 5, False),
        ("PCIe bytes sent", "B", [10, 10, 20, 10], True),  # 256 GB/s fill 2**32 bytes in 16.8 ms
        ("NVLink bytes sent", "B", [2000] * 5, False),
        ("NVLink bytes sent", "B", [2000, 2000, 2300], True),
        ("XGMI read GPU 1", "KB", [60_000] * 5, False),  # 64 bits
    ],
)
def test_possibly_unseen_wraps_are_noted(name, unit, milliseconds, is_unsure) -> None:
    ts = np.cumsum([0, *milliseconds]) * 10**6
    points = [(int(t), 1000.0 * n) for n, t in enumerate(ts)]
    result = ci.analyze(job([(0, 0, name, unit, "x", points)], [(0, 0, points[-1][0])]), "traffic")
    assert ("wraps unseen" in result.notes) is is_unsure


def test_a_reset_counter_is_not_a_wrap() -> None:
    """Nothing carries 4 TiB in a second."""
    values = [v * KIB for v in (1000, 2000, 500, 1500)]
    trace = job(
        [(0, 0, "NVLink bytes sent", "B", "zeus", every_second(values))], [(0, 0, 3 * SECOND)]
    )
    result = ci.analyze(trace, "traffic")
    (row,) = result.rows.to_pylist()
    assert (row["bytes"], row["wraps"], row["resets"]) == (2000 * KIB, 0, 1)
    assert (row["covered_ns"], row["window_ns"]) == (2 * SECOND, 3 * SECOND)
    assert result.summary["nvlink_sent_bytes"] == 2000 * KIB
    check_analysis(traffic, trace)


def test_a_reset_that_the_reader_took_for_a_wrap_is_detected() -> None:
    values = [v * KIB for v in (1000, 2000, 2**32 + 500, 2**32 + 1500)]
    trace = job(
        [(0, 0, "NVLink bytes sent", "B", "charllm", every_second(values))], [(0, 0, 3 * SECOND)]
    )
    (row,) = ci.analyze(trace, "traffic").rows.to_pylist()
    assert (row["bytes"], row["wraps"], row["resets"]) == (2000 * KIB, 0, 1)


def test_64_bit_counters_do_not_wrap_around() -> None:
    values = [5e9, 6e9, 1e9, 2e9]
    series = [(0, -1, "InfiniBand ib0 bytes sent", "B", "charllm", every_second(values))]
    (row,) = ci.analyze(job(series, [(0, 0, 3 * SECOND)]), "traffic").rows.to_pylist()
    assert (row["bytes"], row["wraps"], row["resets"], row["port"]) == (2 * 10**9, 0, 1, "ib0")
    assert (row["mean_gbps"], row["peak_gbps"]) == (1, 1)


def test_the_part_within_a_window_and_each_step() -> None:
    values = [0, 100, 300, 300, 700]
    series = [(0, 0, "XGMI read GPU 3", "B", "amd-smi", every_second(values))]
    work = [(0, SECOND // 2, SECOND), (0, 3 * SECOND, SECOND // 2)]
    trace = job(series, work, steps=[0, 1])
    (row,) = ci.analyze(trace, "traffic").rows.to_pylist()
    assert (row["bytes"], row["link"], row["direction"], row["port"]) == (
        450,
        "xGMI",
        "received",
        "3",
    )
    by_step = ci.analyze(trace, "traffic", by="rank,iteration").rows.to_pylist()
    assert [(r["iteration"], r["bytes"]) for r in by_step] == [(0, 150), (1, 200)]
    each = ci.analyze(trace, "traffic", steps="each").rows.to_pylist()
    assert [(r["iteration"], r["bytes"]) for r in each] == [(0, 150), (1, 200)]
    all_samples = ci.analyze(trace, "traffic", window="all").rows.to_pylist()
    assert [r["bytes"] for r in all_samples] == [700]


def test_rates_count_only_where_there_is_no_counter() -> None:
    series = [
        (0, 0, "PCIe bandwidth sent", "Mb/s", "dcgmi", every_second([8, 16, 16])),
        (0, 0, "PCIe bandwidth", "Mb/s", "amd-smi", every_second([80, 80, 80])),
        (0, 0, "NVLink bandwidth sent", "Mb/s", "dcgmi", every_second([8, 8, 8])),
        (0, 0, "NVLink bytes sent", "B", "zeus", every_second([0, 5, 9])),
    ]
    result = ci.analyze(job(series, [(0, 0, 2 * SECOND)]), "traffic")
    rows = {(r["link"], r["direction"]): r for r in result.rows.to_pylist()}
    assert set(rows) == {("PCIe", "sent"), ("NVLink", "sent")}
    assert rows["PCIe", "sent"]["bytes"] == 3_000_000
    assert rows["PCIe", "sent"]["method"] == "rate"
    assert (rows["NVLink", "sent"]["bytes"], rows["NVLink", "sent"]["method"]) == (9, "counter")
    assert "2 series of links" in result.notes["left out"]


def test_nodes_and_jobs_add_up_and_peers_are_apart() -> None:
    series = [
        (
            rank,
            0,
            f"XGMI written GPU {peer}",
            "B",
            "amd-smi",
            every_second([0, 10 * peer, 40 * peer]),
        )
        for rank in range(2)
        for peer in (1, 2)
    ]
    trace = job(series, [(0, 0, 2 * SECOND), (1, 0, 2 * SECOND)])
    assert sorted(ci.analyze(trace, "traffic").rows["bytes"].to_pylist()) == [40, 40, 80, 80]
    (row,) = ci.analyze(trace, "traffic", by="job").rows.to_pylist()
    assert (row["bytes"], row["series"]) == (240, 4)
    assert row["mean_gbps"] == pytest.approx(120e-9)
    assert ci.analyze(trace, "traffic", ranks="1").summary["xgmi_sent_bytes"] == 120


@pytest.mark.parametrize(
    "name", ["xgmi_read_data_acc 3", "xgmi_write_data_acc_3", "GPU [0] XGMI Read Data [3] (S)"]
)
def test_other_tools_names_of_xgmi(name: str) -> None:
    way = link_counters.parse_link_series(name, "KB" if "GPU" in name else "")
    assert (way.link.link, way.port, way.factor) == ("xGMI", "3", KIB)
    assert way.direction == ("sent" if "write" in name else "received")


def test_names_of_xgmi_links_of_the_recorder() -> None:
    way = link_counters.parse_link_series("XGMI written link 7", "B")
    assert (way.link.link, way.port, way.factor, way.direction) == ("xGMI", "7", 1, "sent")


@given(st.lists(st.integers(0, 10**12), min_size=2, max_size=15), st.data())
def test_windows_against_plain_loops(rises, data) -> None:
    count = np.cumsum([0, *rises])
    start = data.draw(st.integers(0, len(rises) * 10 - 1))
    end = data.draw(st.integers(start + 1, len(rises) * 10))
    series = [
        (0, 0, "XGMI read GPU 1", "B", "x", [(10 * i, float(c)) for i, c in enumerate(count)])
    ]
    # rates of terabytes in 10 ns are none: ten seconds a sample instead
    points = [(t * SECOND, v) for t, v in series[0][5]]
    trace = job([(*series[0][:5], points)], [(0, start * SECOND, (end - start) * SECOND)])
    (row,) = ci.analyze(trace, "traffic").rows.to_pylist()
    expected = sum(rises[m // 10] / 10 for m in range(start, end))
    assert row["bytes"] == pytest.approx(expected, abs=1)
    assert row["resets"] == 0


def charllm(tmp_path: Path, seed: int) -> dict[str, list[tuple[float, int]]]:
    """Files of counters that wrap around, as CharLLM-PPT's fork of Zeus writes them."""
    random = np.random.default_rng(seed)
    raw = {}
    for name, max_rise in (("nvlink_rx_throughput_0", 2**29), ("nvlink_tx_throughput_0", 2**29),
                       ("pcie_rx_bytes_0", 2**29), ("system_ib_rx_bytes_rank_0_id_ib0", 2**33),
                       ("system_ib_rx_bytes_rank_0_id_ib1", 2**33)):  # fmt: skip
        times = START + np.cumsum(random.uniform(0.5, 1.5, 80))
        count = int(random.integers(0, 2**32)) + np.cumsum(random.integers(0, max_rise, 80))
        wraps = not name.startswith("system")
        points = [(float(f"{t:.6f}"), int(c) % 2**32 if wraps else int(c))
                  for t, c in zip(times, count, strict=True)]  # fmt: skip
        raw[name] = points
        (tmp_path / f"{name}.csv").write_text("".join(f"{t:.6f},{c}\n" for t, c in points))
    return raw


@pytest.mark.parametrize("seed", range(3))
def test_charllm_by_its_own_definition(tmp_path: Path, seed: int) -> None:
    raw = charllm(tmp_path, seed)

    def volume(name: str) -> int:
        total = 0
        for (_, before), (_, after) in pairwise(raw[name]):
            total += after - before if after >= before else 4294967295 - before + after
        return total

    trace = ci.read(str(tmp_path))
    rows = ci.analyze(trace, "traffic", compat="charllm").rows.to_pylist()
    amounts = {(r["link"], r["direction"], r["unit"]): r["amount"] for r in rows}
    assert amounts == pytest.approx(
        {
            ("NVLink", "received", "GB"): volume("nvlink_rx_throughput_0") / 1024**2,
            ("NVLink", "sent", "GB"): volume("nvlink_tx_throughput_0") / 1024**2,
            ("PCIe", "received", "GB"): volume("pcie_rx_bytes_0") / 1024**3,
            ("InfiniBand", "received", "MB"): (
                volume("system_ib_rx_bytes_rank_0_id_ib0") + volume("system_ib_rx_bytes_rank_0_id_ib1")
            ) / 1024**2,
        },
        rel=1e-12,
    )  # fmt: skip
    own_rows = ci.analyze(trace, "traffic").rows.to_pylist()
    nvlink = next(r for r in own_rows if (r["link"], r["direction"]) == ("NVLink", "received"))
    wraps = sum(b < a for (_, a), (_, b) in pairwise(raw["nvlink_rx_throughput_0"]))
    assert nvlink["wraps"] == wraps > 0
    # CharLLM-PPT is one KiB short at each wrap
    assert nvlink["bytes"] == (volume("nvlink_rx_throughput_0") + wraps) * KIB


def test_empty_traces_and_invalid_options() -> None:
    trace = job([(0, 0, "socket power", "W", "x", every_second([1, 2]))], [(0, 0, SECOND)])
    result = ci.analyze(trace, "traffic")
    assert result.rows.num_rows == 0
    assert "no rows" in result.notes
    assert result.summary == {"series": 0, "wraps": 0, "resets": 0}
    for wrong in ({"compat": "hta"}, {"by": "moon"}, {"compat": "charllm", "steps": "each"}):
        with pytest.raises(UsageError):
            ci.analyze(trace, "traffic", **wrong)

"""Energy of GPUs: every nanosecond is shared by what runs in it, and all adds up."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.analyses.energy import energy as analysis
from chopper_interop.annotate.stages import annotate
from chopper_interop.annotate.telemetry import energy
from chopper_interop.annotate.telemetry.energy import without_overlap
from chopper_interop.annotate.telemetry.samples import periodic_samples
from chopper_interop.build import TraceBuilder
from chopper_interop.joining.fragment import Fragment
from chopper_interop.joining.telemetry import TelemetryContext, with_telemetry
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, DeviceMatch, Rank, Source
from chopper_interop.sources import SourceFiles
from chopper_interop.testing import check_analysis

SECOND = 10**9
STEPS = st.lists(st.tuples(st.integers(1, 25), st.integers(0, 50)), min_size=2, max_size=12)
WORK = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 60)), min_size=1, max_size=10)


@given(STEPS, WORK, st.booleans())
def test_against_every_single_nanosecond(steps, work, straight) -> None:
    ts, value = np.cumsum([s for s, _ in steps]), [float(v) for _, v in steps]
    power = periodic_samples(ts, np.array(value), 0, is_linear=straight)
    start = np.array([s for s, _ in work])
    end = start + np.array([d for _, d in work])
    actual = energy.share_energy([power], start, end)
    drawn = {}
    for i in range(len(ts) - 1):
        if not power.unknown[i]:
            slope = (value[i + 1] - value[i]) / (ts[i + 1] - ts[i]) if straight else 0.0
            for m in range(ts[i], ts[i + 1]):
                drawn[m] = (value[i] + slope * (m + 0.5 - ts[i])) * 1e-9
    window = range(start.min(), end.max())
    running = {m: np.count_nonzero((start <= m) & (m < end)) for m in window}
    known = [m for m in window if m in drawn]
    assert actual.covered_ns == len(known)
    assert actual.total == pytest.approx(sum(drawn[m] for m in known))
    assert actual.idle == pytest.approx(sum(drawn[m] for m in known if not running[m]))
    for i, (a, b) in enumerate(zip(start, end, strict=True)):
        expected = [drawn[m] / running[m] if m in drawn else np.nan for m in range(a, b)]
        if not expected:
            assert np.isnan(actual.of_each[i]) or actual.of_each[i] == 0
            continue
        assert actual.of_each[i] == pytest.approx(np.sum(expected), nan_ok=True)
        cut = np.nansum(expected) if np.isnan(expected).any() else 0
        assert actual.cut[i] == pytest.approx(cut)
    parts = np.nansum(actual.of_each) + actual.cut.sum() + actual.idle
    assert parts == pytest.approx(actual.total, rel=1e-9)


@given(STEPS, STEPS, WORK, st.booleans())
def test_two_sources_against_every_single_nanosecond(first, second, work, straight) -> None:
    given_ = [
        periodic_samples(np.cumsum([s for s, _ in steps]), np.array([float(v) for _, v in steps]), 0,
                is_linear=is_linear)
        for steps, is_linear in ((first, straight), (second, True))
    ]  # fmt: skip
    parts = [part for part in without_overlap(given_) if part is not None]
    start = np.array([s for s, _ in work])
    end = start + np.array([d for _, d in work])
    actual = energy.share_energy(parts, start, end)
    drawn: dict[int, float] = {}
    for power in reversed(given_):
        for i in np.flatnonzero(~power.unknown):
            width = power.ts[i + 1] - power.ts[i]
            slope = (power.value[i + 1] - power.value[i]) / width if power.is_linear else 0.0
            for m in range(power.ts[i], power.ts[i + 1]):
                drawn[m] = (power.value[i] + slope * (m + 0.5 - power.ts[i])) * 1e-9
    known = [m for m in range(start.min(), end.max()) if m in drawn]
    assert actual.covered_ns == len(known)
    assert actual.total == pytest.approx(sum(drawn[m] for m in known))
    is_known = [all(m in drawn for m in range(a, b)) for a, b in zip(start, end, strict=True)]
    assert (~np.isnan(actual.of_each))[end > start].tolist() == np.array(is_known)[
        end > start
    ].tolist()
    together = np.nansum(actual.of_each) + actual.cut.sum() + actual.idle
    assert together == pytest.approx(actual.total, rel=1e-9)


def test_a_million_pieces_add_up() -> None:
    random = np.random.default_rng(5)
    count = 1_000_000
    start = np.sort(random.integers(0, 60 * SECOND, count))
    end = start + random.integers(1_000, 200_000, count)
    ts = np.cumsum(random.integers(5e5, 7e5, 100_000))
    power = periodic_samples(ts, random.uniform(100, 750, len(ts)), 0, is_linear=True)
    actual = energy.share_energy([power], start, end)
    parts = np.nansum(actual.of_each) + actual.cut.sum() + actual.idle
    assert parts == pytest.approx(actual.total, rel=1e-9)
    inside = (ts >= start.min()) & (ts <= end.max())
    ts, value = ts[inside], power.value[inside]
    trapezoid = np.sum((value[1:] + value[:-1]) / 2 * np.diff(ts)) * 1e-9
    assert actual.total == pytest.approx(trapezoid, rel=1e-3)


def job(series: list[tuple], work: list[tuple[Kind, int, int, int]], **match: object) -> ci.Trace:
    """Work (kind, rank, start, duration) on device 0 of each rank, and series of it."""
    builder = TraceBuilder()
    for kind, rank, start, dur in work:
        lane = builder.lane(rank, LaneKind.STREAM, int(kind), "s", 0)
        builder.nodes(
            kind=int(kind), name="k", rank=rank, lane=lane,
            ts=np.array([start]), dur=np.array([dur]),
        )  # fmt: skip
    for rank, name, unit, points in series:
        row = builder.series(rank, name, unit, "smi", device=0)
        ts, value = np.array(points, float).T
        builder.samples(row, ts.astype(np.int64), value)
    trace = builder.finish()
    return annotate(trace.with_meta(**match) if match else trace)


STEADY = [(t * SECOND, 400) for t in range(-1, 12)]


def test_energy_of_a_rank_by_kind() -> None:
    work = [
        (Kind.KERNEL, 0, 0, 4 * SECOND),
        (Kind.COMM, 0, 2 * SECOND, 2 * SECOND),
        (Kind.MEMCPY, 0, 8 * SECOND, SECOND),
        (Kind.MEMSET, 0, 9 * SECOND, SECOND),
    ]
    counter = [(t * SECOND, 90 + 404 * t) for t in range(-1, 12)]
    trace = job([(0, "socket power", "W", STEADY), (0, "energy", "J", counter)], work)
    result = ci.analyze(trace, "energy")
    check_analysis(analysis, trace)
    (row,) = result.rows.to_pylist()
    assert row == pytest.approx(
        {
            "rank": 0, "device": 0, "window_ns": 10 * SECOND, "covered_ns": 10 * SECOND,
            "energy_j": 4040, "work_j": 2424, "cut_j": 0, "idle_j": 1616,
            "compute_j": 1616, "comm_j": 404, "copy_j": 404,
            "mean_power_w": 404, "peak_power_w": 400,
            "trapezoid_j": 4000, "trapezoid_resolution_j": 2 * 400, "counter_j": 4040,
            "counter_resolution_j": 2 * 808, "difference_share": 4000 / 4040 - 1, "telemetry_ns": SECOND,
            "counter_verdict": "within", "energy_by": "counter", "source": row["source"],
        }
    )  # fmt: skip
    assert row["source"] == "smi"
    assert trace.nodes["energy_j"].to_pylist() == pytest.approx([1212, 404, 404, 404])
    assert result.summary["energy_j"] == pytest.approx(4040)
    assert result.summary["ranks_known"] == 1


def counted(watts: float, low: int, high: int) -> tuple[int, str, str, list]:
    return (0, "energy", "J", [(t * SECOND, 90 + watts * t) for t in range(low, high)])


def shown(watts: float, low: int, high: int, *left_out: int) -> tuple[int, str, str, list]:
    points = [(t * SECOND, watts) for t in range(low, high) if t not in left_out]
    return (0, "socket power", "W", points)


NONE = (None, None, None)
TWO_SOURCES = {
    "one capture": ([shown(400, -1, 12), counted(404, -1, 12)], (4000, 4040, "within")),
    "another of a part of it": (
        [shown(400, -1, 12), counted(404, -1, 12), shown(400, -1, 4), counted(404, -1, 4)],
        (4000, 4040, "within"),
    ),
    "two that overlap": (
        [shown(400, -1, 6), counted(404, -1, 6), shown(400, 4, 12), counted(404, 4, 12)],
        (4000, 4040, "within"),
    ),
    "power could not be read now and then": (
        [shown(400, -1, 12, *range(1, 12, 2)), counted(404, -1, 12)], (4000, 4040, "within"),
    ),
    "they do not mean the same": (
        [shown(400, -1, 12), counted(1000, -1, 12)], (4000, 10_000, "outside")
    ),
    "the counter ends first": ([shown(400, -1, 12), counted(404, -1, 6)], (4000, None, None)),
    "the counter is set back": (
        [shown(400, -1, 12), (0, "energy", "J", [(t * SECOND, 400 * (t % 5)) for t in range(12)])],
        (4000, None, None),
    ),
    "no counter": ([shown(400, -1, 12)], (4000, None, None)),
    "nothing but a counter": ([counted(404, -1, 12)], NONE),
}  # fmt: skip


@pytest.mark.parametrize("case", TWO_SOURCES)
def test_shown_power_is_compared_with_counters(case: str) -> None:
    """Both energies are of the same time, or a note says why one is null."""
    series, expected = TWO_SOURCES[case]
    result = ci.analyze(job(series, [(Kind.KERNEL, 0, 0, 10 * SECOND)]), "energy")
    (row,) = result.rows.to_pylist()
    actual = [row[name] for name in ("trapezoid_j", "counter_j", "counter_verdict")]
    assert actual == [*(v and pytest.approx(v) for v in expected[:2]), expected[2]]
    assert ("not compared with counters" in result.notes) is (None in expected)
    share = None if None in expected else pytest.approx(expected[0] / expected[1] - 1)
    assert row["difference_share"] == share


def test_two_ranks_on_one_gpu_share_what_it_drew() -> None:
    work = [(Kind.KERNEL, 0, 0, 4 * SECOND), (Kind.KERNEL, 1, 2 * SECOND, 6 * SECOND)]
    match = (DeviceMatch("smi.csv", 0, 0, -1, "user"),)
    trace = job([(-1, "socket power", "W", STEADY)], work, device_matches=match)
    rows = ci.analyze(trace, "energy").rows.to_pylist()
    assert [row["work_j"] for row in rows] == pytest.approx([1200, 2000])
    assert sum(row["energy_j"] for row in rows) == pytest.approx(3200)
    assert trace.nodes["energy_j"].to_pylist() == pytest.approx([1200, 2000])


@pytest.mark.parametrize("known", ["pci", "uuid", ""])
def test_telemetry_of_a_gpu_that_two_processes_share(tmp_path: Path, known: str) -> None:
    """The PCI address or UUID identifies the GPU; a number alone does not."""
    work = [(Kind.KERNEL, 0, 0, 4 * SECOND), (Kind.KERNEL, 1, 2 * SECOND, 6 * SECOND)]
    ranks = (Rank(0, device=0), Rank(1, device=0))
    name = {known: "0000:c1:00.0"} if known else {}
    trace = job([], work, ranks=ranks, devices=(Device("", 0, ordinal=0, **name),))
    smi = job([(-1, "socket power", "W", STEADY)], [])
    smi = smi.with_meta(devices=(Device("", 0, index=0, **name),), sources=(Source("smi.csv", ""),))
    fragment = Fragment(SourceFiles(registry.converter("amd-smi"), (tmp_path / "smi.csv",)), smi)
    around = TelemetryContext(trace, dict.fromkeys((0, 1), tmp_path), trace.meta.devices, ())
    joined = annotate(with_telemetry([fragment], around))
    energies = joined.nodes["energy_j"].to_pylist() if known else []
    assert energies == pytest.approx([1200, 2000] if known else [])
    assert ("energy_j" in joined.nodes.column_names) is bool(known)


def test_ranks_and_gpus_without_known_power_are_reported() -> None:
    work = [(Kind.KERNEL, 0, 0, SECOND), (Kind.KERNEL, 1, 0, SECOND)]
    trace = job([(0, "socket power", "W", STEADY), (-1, "socket power", "W", STEADY)], work)
    result = ci.analyze(trace, "energy")
    assert [row["energy_j"] for row in result.rows.to_pylist()] == [pytest.approx(400), None]
    unknown = ("ranks_known", "ranks_unknown", "gpus_without_rank")
    assert [result.summary[name] for name in unknown] == [1, 1, 1]
    reason = result.notes["blank rows"]
    assert "no power was sampled (or 0 W throughout) of rank 1; it was on GPUs" in reason


def test_work_beyond_the_samples_is_cut() -> None:
    work = [(Kind.KERNEL, 0, 0, 20 * SECOND), (Kind.KERNEL, 0, 2 * SECOND, SECOND)]
    trace = job([(0, "socket power", "W", STEADY)], work)
    (row,) = ci.analyze(trace, "energy").rows.to_pylist()
    assert row["covered_ns"] == 11 * SECOND
    assert row["work_j"] == pytest.approx(200)
    assert row["cut_j"] == pytest.approx(4200)
    assert trace.nodes["energy_j"].to_pylist() == [None, pytest.approx(200)]


@pytest.mark.parametrize("series", [[], [(0, "gfx clock", "MHz", STEADY)]])
def test_without_power(series) -> None:
    result = ci.analyze(job(series, [(Kind.KERNEL, 0, 0, SECOND)]), "energy")
    assert [row["energy_j"] for row in result.rows.to_pylist()] == [None]
    assert result.summary["energy_j"] is None
    assert ci.analyze(job(series, []), "energy").rows.num_rows == 0


def test_blank_rows_say_why() -> None:
    late = [(ts + 50 * SECOND, watts) for ts, watts in STEADY]
    work = [(Kind.KERNEL, rank, 0, SECOND) for rank in range(5)]
    trace = job([(0, "socket power", "W", STEADY), (3, "socket power", "W", late)], work)
    assert ci.analyze(trace, "energy").notes["blank rows"] == (
        "no power was sampled (or 0 W throughout) of ranks 1-2,4; "
        "power was sampled, but not while they computed, of rank 3"
    )
    known = job([(0, "socket power", "W", STEADY)], work[:1])
    assert "blank rows" not in ci.analyze(known, "energy").notes


def test_the_demo_adds_up(demo: Path) -> None:
    trace = read_once(demo)
    table = ci.analyze(trace, "energy").to_pandas()
    assert list(table["rank"]) == [0, 1]
    parts = table["work_j"] + table["cut_j"] + table["idle_j"]
    assert parts.to_numpy() == pytest.approx(table["energy_j"].to_numpy(), rel=1e-9)
    kinds = table["compute_j"] + table["comm_j"] + table["copy_j"]
    assert kinds.to_numpy() == pytest.approx(table["work_j"].to_numpy(), rel=1e-9)
    nodes = trace.to_pandas().groupby("rank")["energy_j"].sum()
    assert nodes.to_numpy() == pytest.approx(table["work_j"].to_numpy(), rel=1e-9)
    assert table["energy_j"].to_numpy() == pytest.approx(table["counter_j"].to_numpy(), rel=1e-3)
    assert (table["difference_share"].abs() < 0.03).all()  # shown power is filtered and late
    assert set(table["counter_verdict"]) == {"within"}
    assert set(table["energy_by"]) == {"counter"}
    assert (table["mean_power_w"] * table["window_ns"] * 1e-9).to_numpy() == pytest.approx(
        table["energy_j"].to_numpy()
    )


def renewed_each(seconds: int, times: np.ndarray) -> list[tuple[int, float]]:
    """An energy counter of a GPU that draws 500 W; `times` in seconds."""
    joules = np.floor(times / seconds + 1e-9) * 500 * seconds + 7000
    return list(zip((times * SECOND).astype(int).tolist(), joules.tolist(), strict=True))


OFTEN = np.arange(1200) / 20  # s
LESS_OFTEN_THAN_SAMPLED = {
    "each second": (1, OFTEN[:59], 2),
    "each ten seconds": (10, OFTEN, 50),
    "first seen between renewals": (1, OFTEN[9:59], 1),
    "a gap": (1, OFTEN[(OFTEN < 25) | (OFTEN > 45)], 24 + 13),
    "a gap between renewals": (10, OFTEN[(OFTEN < 25) | (OFTEN > 45)], 20),
    "sampled at 1 kHz": (1, np.arange(5000) / 1000, 4),
    "renewed once": (10, OFTEN[10:210], 0),
}


@pytest.mark.parametrize("case", LESS_OFTEN_THAN_SAMPLED)
def test_a_counter_that_is_renewed_more_rarely_than_sampled(case: str) -> None:
    """Energy is known from the first renewal to the last before a gap or the end."""
    every, times, covered = LESS_OFTEN_THAN_SAMPLED[case]
    end = int(times[-1] * SECOND)
    counter = (0, "energy", "J", renewed_each(every, times))
    work = [(Kind.KERNEL, 0, 0, end), (Kind.KERNEL, 0, 2 * SECOND, SECOND // 2)]
    alone = job([counter], work)
    (row,) = ci.analyze(alone, "energy").rows.to_pylist()
    assert (row["covered_ns"] or 0) == pytest.approx(covered * SECOND)
    assert (row["energy_j"] or 0) == pytest.approx(500 * covered)
    (over,) = ci.analyze(alone, "excursions", by="rank", limit_w=700.0).rows.to_pylist()
    assert over["peak_power_w"] == (pytest.approx(500) if covered else None)
    if "power_max_w" in alone.nodes.column_names:
        assert (alone.nodes["power_max_w"].to_pylist()[1] or 500) == pytest.approx(500)
    shown = [(t * SECOND // 2, 500) for t in range(2 * int(times[-1]) + 3)]
    (row,) = ci.analyze(
        job([counter, (0, "socket power", "W", shown)], work), "energy"
    ).rows.to_pylist()
    assert (row["covered_ns"], row["energy_j"]) == (end, pytest.approx(500 * end / SECOND))


def test_a_tool_that_rounds_the_unit_of_its_counter() -> None:
    """amd-smi rounds 15.259 µJ to 15.3 µJ; all analyses correct that alike."""
    points = [(t * SECOND, 510.0 * t) for t in range(12)]
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    builder.nodes(
        kind=int(Kind.KERNEL),
        name="k",
        rank=0,
        lane=lane,
        ts=np.array([SECOND]),
        dur=np.array([SECOND]),
    )
    row = builder.series(0, "energy", "J", "amd-smi", device=0)
    builder.samples(row, *map(np.array, zip(*points, strict=True)))
    trace = annotate(builder.finish())
    watts = 510 * 2**-16 / 15.3e-6
    assert trace.nodes["power_w"].to_pylist() == [pytest.approx(watts)]
    (row,) = ci.analyze(trace, "excursions", by="rank", limit_w=700.0).rows.to_pylist()
    assert row["peak_power_w"] == pytest.approx(watts)
    assert ci.analyze(trace, "energy").rows["energy_j"].to_pylist() == [pytest.approx(watts)]

"""Exposed time, overlap of operations, slow-down and share of the ideal, to the nanosecond."""

import json
from dataclasses import replace
from pathlib import Path
from statistics import median_low

import gpu_work
import numpy as np
import pytest
from gpu_work import WORKS, Work, instants
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once

import chopper_interop as ci
from chopper_interop.analyses.overlap import overlap
from chopper_interop.arrays import intervals
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind
from chopper_interop.testing import check_analysis

SPANS = st.lists(st.tuples(st.integers(-30, 30), st.integers(0, 9)), max_size=9)


def ends(spans: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    start = np.array([s for s, _ in spans], np.int64)
    return start, start + np.array([d for _, d in spans], np.int64)


def points(spans: list[tuple[int, int]]) -> set[int]:
    return {p for s, d in spans for p in range(s, s + d)}


@given(SPANS, SPANS)
def test_coverage_of_intervals_in_any_order(asked: list, by: list) -> None:
    covered = intervals.covered_time(*ends(asked), intervals.union(*ends(by)))
    assert covered.tolist() == [len(points([span]) & points(by)) for span in asked]
    summed = intervals.overlap_sums(*ends(asked), ends(by))
    each = [sum(len(points([span]) & points([other])) for other in by) for span in asked]
    assert summed.tolist() == each


@given(st.lists(st.tuples(SPANS, SPANS), min_size=1, max_size=4))
def test_coverage_in_groups_is_that_of_each_group(groups: list) -> None:
    asked = [(g, *span) for g, (spans, _) in enumerate(groups) for span in spans]
    by = sorted((g, *span) for g, (_, spans) in enumerate(groups) for span in spans)
    asked.sort(key=lambda row: row[1:])  # groups in turn

    def columns(rows: list) -> tuple[np.ndarray, ...]:
        group, start, dur = np.array(rows, np.int64).reshape(-1, 3).T
        return group, start, start + dur

    unions = intervals.group_unions(*columns(by), len(groups))
    covered = intervals.covered_in_groups(*columns(asked), unions, len(groups))
    assert covered.tolist() == [len(points([span]) & points(groups[g][1])) for g, *span in asked]


@given(st.integers(0, 2**32))
def test_coverage_of_many_intervals(seed: int) -> None:
    random = np.random.default_rng(seed)
    start = random.integers(0, 3000, 300)
    end = start + random.integers(0, (5, 2000)[seed % 2], 300)
    by = intervals.union(*(np.sort(random.integers(0, 3000, 60)).reshape(-1, 2).T))
    inside = np.zeros(5001, np.int64)
    for a, b in zip(*by, strict=True):
        inside[a + 1 : b + 1] = 1
    until = np.cumsum(inside)
    assert (intervals.covered_time(start, end, by) == until[end] - until[start]).all()


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 30), st.integers(0, 9)))
)
def test_cells(rows: list) -> None:
    rows.sort(key=lambda row: row[2])
    cell, sort, start, dur = np.array(rows, np.int64).reshape(-1, 4).T
    time = intervals.combination_times(cell, sort, start, start + dur, 3, 3)
    owner, first, last = intervals.group_unions(cell, start, start + dur, 3)
    for c in range(3):
        ran = [
            {p for a, s, t, d in rows if (a, s) == (c, k) for p in range(t, t + d)}
            for k in range(3)
        ]
        for combination in range(1, 8):
            there = [
                p for p in range(50) if sum((p in ran[k]) << k for k in range(3)) == combination
            ]
            assert time[c, combination] == len(there)
        of_cell = owner == c
        assert points(
            list(zip(first[of_cell].tolist(), (last - first)[of_cell].tolist(), strict=True))
        ) == set().union(*ran)
        assert (first[of_cell][1:] > last[of_cell][:-1]).all()


def of(works: list[Work], sort: str) -> list[Work]:
    return [work for work in works if work.sort == sort]


def share(part: int, total: int) -> object:
    return None if not total else pytest.approx(part / total)


def exposures(group: list[Work], works: list[Work]) -> dict[str, object]:
    """Figures of a group among all work, nanosecond by nanosecond of each GPU."""
    compute, comm = (instants(of(group, sort)) for sort in ("compute", "comm"))
    exposed = compute - instants(of(works, "comm")), comm - instants(of(works, "compute"))
    gpus = {work.gpu for work in works}
    ideal = sum(
        min(len({m for m in ran if m[:2] == gpu}) for ran in (compute, comm)) for gpu in gpus
    )
    return {
        "compute_ns": len(compute),
        "exposed_compute_ns": len(exposed[0]),
        "compute_overlap_share": share(len(compute) - len(exposed[0]), len(compute)),
        "comm_ns": len(comm),
        "exposed_comm_ns": len(exposed[1]),
        "comm_overlap_share": share(len(comm) - len(exposed[1]), len(comm)),
        "c3_efficiency_share": share(len(compute & comm), ideal),
    }


def slowdown(group: list[Work], works: list[Work]) -> dict[str, object]:
    """Slow-down of a group's kernels, one by one."""
    comm = instants(of(works, "comm"))

    def state(work: Work) -> str:
        if work.kind is not Kind.KERNEL or not work.dur:
            return ""
        covered = len(work.instants() & comm)
        return "solo" if not covered else "over" if 2 * covered >= work.dur else ""

    keys = {(w.rank, w.name) for w in group if state(w)}
    over = [w for w in group if state(w) == "over"]
    solo = {k: [w.dur for w in works if (w.rank, w.name) == k and state(w) == "solo"] for k in keys}
    compared = [w for w in over if solo[w.rank, w.name]]
    like = {k: median_low([w.dur for w in over if (w.rank, w.name) == k]) for k in
            {(w.rank, w.name) for w in compared}}  # fmt: skip
    slow = sum(like[w.rank, w.name] for w in compared)
    alone = sum(median_low(solo[w.rank, w.name]) for w in compared)
    return {
        "slowdown_factor": pytest.approx(slow / alone) if compared else None,
        "overlapped_kernels": len(over),
        "compared_kernels": len(compared),
        "solo_kernels": sum(map(len, solo.values())),
    }


FIELDS = {"rank": "rank", "iteration": "iteration", "collective": "collective", "kernel": "name"}


@given(WORKS, st.sampled_from(["rank", "job", "collective", "rank,iteration", "kernel"]))
def test_groups_against_every_single_nanosecond(works: list[Work], by: str) -> None:
    result = ci.analyze(gpu_work.trace(works), "overlap", by=by)
    names = [name for name in by.split(",") if name in FIELDS]
    groups: dict[tuple, list[Work]] = {}
    for work in works:
        key = tuple(getattr(work, FIELDS[name]) for name in names)
        groups.setdefault(tuple(None if k in (-1, "") else k for k in key), []).append(work)
    rows = result.rows.to_pylist()
    assert len(rows) == len(groups)
    for row in rows:
        group = groups[tuple(row.pop(name) for name in names)]
        row.pop("job", None)
        assert row == exposures(group, works) | slowdown(group, works)
    if works:
        total = {"ranks": len({work.rank for work in works})}
        assert result.summary == total | exposures(works, works) | slowdown(works, works)


@given(WORKS)
def test_nodes_have_their_exposed_time(works: list[Work]) -> None:
    trace = gpu_work.trace(works)
    annotated = ci.analyze(trace, "overlap").annotate(trace)
    of_other_sort = {"comm": instants(of(works, "compute")), "compute": instants(of(works, "comm"))}
    ordered = sorted(works, key=lambda work: (work.rank, work.start, -work.dur))
    for work, exposed, part in zip(
        ordered, annotated.nodes["exposed_ns"].to_pylist(), annotated.nodes["overlap_share"].to_pylist(),
        strict=True,
    ):  # fmt: skip
        if work.sort == "copy":
            assert exposed is None
            assert part is None
            continue
        covered = len(work.instants() & of_other_sort[work.sort])
        assert exposed == work.dur - covered
        assert part == share(covered, work.dur)


def first_start(works: list[Work]) -> int:
    """Start of the first of all, from which a trace counts."""
    return min((work.start for work in works), default=0)


def instances(works: list[Work]) -> list[list[Work]]:
    """Runs of one operation and iteration on each GPU."""
    runs: list[list[Work]] = []
    ordered = sorted(works, key=lambda work: (work.rank, work.start, -work.dur))
    for gpu in sorted({work.gpu for work in works}):
        last = None
        for work in (w for w in ordered if w.gpu == gpu and w.sort == "compute"):
            key = (work.operation, work.iteration)
            if key == last:
                runs[-1].append(work)
            else:
                runs.append([work])
            last = key
    return [run for run in runs if run[0].operation]


@given(WORKS, st.booleans())
def test_operation_instances(works: list[Work], chopper: bool) -> None:  # noqa: FBT001
    options = {"compat": "chopper"} if chopper else {"by": "operation_instance"}
    result = ci.analyze(gpu_work.trace(works), "overlap", **options)
    expected, first = [], first_start(works)
    for run in instances(works):
        start = run[0].start
        end = run[-1].start + run[-1].dur if chopper else max(w.start + w.dur for w in run)
        inside = Work(Kind.KERNEL, start, end - start, *run[0].gpu).instants()
        comm = [w.instants() & inside for w in of(works, "comm")]
        elapsed = end - start
        over = min(elapsed, sum(map(len, comm))) if chopper else len(set().union(*comm))
        expected.append(
            (run[0].rank, run[0].device, run[0].operation, len(run), start - first, elapsed, over)
        )
    rows = [
        tuple(row[name] for name in
              ("rank", "device", "operation", "kernels", "start_ns", "elapsed_ns", "overlap_ns"))
        for row in result.rows.to_pylist()
    ]  # fmt: skip
    assert sorted(rows) == sorted(expected)
    for row in result.rows.to_pylist():
        assert row["overlap_share"] == share(row["overlap_ns"], row["elapsed_ns"])
    assert ("definition" in result.conventions) == chopper


def test_overlap_is_a_union_and_a_sum_in_chopper() -> None:
    works = [
        Work(Kind.KERNEL, 0, 10, operation="mm"),
        Work(Kind.COMM, 2, 4, stream=1),
        Work(Kind.COMM, 2, 4, stream=2),
    ]
    trace = gpu_work.trace(works)
    (union,) = ci.analyze(trace, "overlap", by="operation_instance").rows.to_pylist()
    (chopper,) = ci.analyze(trace, "overlap", compat="chopper").rows.to_pylist()
    assert (union["overlap_share"], chopper["overlap_share"]) == (0.4, 0.8)


def test_a_kernel_that_communication_slows_down() -> None:
    works = [Work(Kind.KERNEL, 100 * i, 20 + i % 3) for i in range(9)]
    works += [Work(Kind.KERNEL, 1000 + 100 * i, 30 + i, stream=0) for i in range(3)]
    works += [Work(Kind.COMM, 990, 400, stream=1), Work(Kind.KERNEL, 5000, 7, name="alone")]
    (row,) = ci.analyze(gpu_work.trace(works), "overlap").rows.to_pylist()
    assert row["slowdown_factor"] == pytest.approx(31 / 21)
    assert (row["overlapped_kernels"], row["solo_kernels"]) == (3, 10)
    assert row["c3_efficiency_share"] == pytest.approx((30 + 31 + 32) / (9 * 21 + 93 + 7))


def test_kernels_of_other_grids_are_not_the_same() -> None:
    """A short and a long grid of one kernel: only the long one runs during communication."""
    works = [Work(Kind.KERNEL, 0, 10), Work(Kind.KERNEL, 100, 40), Work(Kind.KERNEL, 200, 40)]
    works.append(Work(Kind.COMM, 200, 40, stream=1))
    trace = gpu_work.trace(works)
    (row,) = ci.analyze(trace, "overlap").rows.to_pylist()
    assert row["slowdown_factor"] == 40 / 10  # the lower of two
    for sizes, factor, solo in (
        ([16, 64, 64, None], 1, 2),
        ([None, 64, 64, None], 1, 1),
        ([16, None, 64, None], None, 1),
        ([16, 64, None, None], None, 2),
    ):
        (row,) = ci.analyze(trace.with_columns(flops=sizes), "overlap").rows.to_pylist()
        assert row["slowdown_factor"] == factor
        assert (row["overlapped_kernels"], row["compared_kernels"]) == (1, int(factor is not None))
        assert row["solo_kernels"] == solo


@given(WORKS)
def test_instances_of_communication(works: list[Work]) -> None:
    trace = gpu_work.trace(works)
    if not works:
        return
    ordered = sorted(works, key=lambda work: (work.rank, work.start, -work.dur))
    number = [i % 3 if w.sort == "comm" and i % 4 else None for i, w in enumerate(ordered)]
    rows = ci.analyze(
        trace.with_columns(instance=number), "overlap", by="instance"
    ).rows.to_pylist()
    members: dict[object, list[Work]] = {}
    for i, work in enumerate(ordered):
        if work.sort == "comm":
            members.setdefault(number[i] if number[i] is not None else f"alone {i}", []).append(
                work
            )
    compute, first = instants(of(works, "compute")), first_start(works)
    expected = [
        (isinstance(key, int), len(group), min(w.start for w in group) - first, len(instants(group)),
         len(instants(group) - compute))
        for key, group in members.items()
    ]  # fmt: skip
    assert sorted(expected) == sorted(
        (r["instance"] is not None, r["members"], r["start_ns"], r["comm_ns"], r["exposed_comm_ns"])
        for r in rows
    )


@pytest.mark.slow
@given(WORKS, st.integers(-50, 10**17))
def test_neither_origin_nor_order_nor_rank_numbers_matter(works: list[Work], later: int) -> None:
    plain = ci.analyze(gpu_work.trace(works), "overlap", by="rank,iteration").rows
    moved = ci.analyze(gpu_work.trace(works[::-1], later), "overlap", by="rank,iteration").rows
    assert moved.equals(plain)
    other = [replace(work, rank=7 - work.rank) for work in works]
    renumbered = ci.analyze(gpu_work.trace(other), "overlap").rows.to_pylist()
    assert [row | {"rank": 7 - row["rank"]} for row in renumbered[::-1]] == ci.analyze(
        gpu_work.trace(works), "overlap"
    ).rows.to_pylist()


def test_exposed_communication_equals_that_of_temporal(demo: Path) -> None:
    trace = read_once(demo / "kineto")
    for options in ({}, {"steps": "each"}, {"ranks": "1"}):
        overlap_rows, temporal_rows = (
            ci.analyze(trace, name, **options).rows for name in ("overlap", "temporal")
        )
        for column in ("compute_ns", "comm_ns", "exposed_comm_ns"):
            assert overlap_rows[column].equals(temporal_rows[column])


def test_every_collective_of_the_sample_job(demo: Path) -> None:
    truth = json.loads((demo / "truth.json").read_text())["collectives"]
    trace = read_once(demo / "kineto")
    rows = sorted(
        ci.analyze(trace, "overlap", by="instance").rows.to_pylist(), key=lambda r: r["start_ns"]
    )
    ranks = len(trace.ranks)
    assert len(rows) == len(truth["step"])
    expected = sorted(
        (min(starts) - trace.meta.origin_ns, step, ranks * end - sum(starts))
        for starts, step, end in zip(
            truth["starts_ns"], truth["step"], truth["end_ns"], strict=True
        )
    )
    assert [(r["start_ns"], r["iteration"], r["comm_ns"]) for r in rows] == expected
    assert {r["members"] for r in rows} == {ranks}


FILES = {
    "hta_nccl_data": "pytorch/misc/nccl_data.json.gz",
    "hta_neg_queue": "pytorch/misc/rank0.json.gz",
    "param_dlrm_8rank": "pytorch/dlrm_8rank_v100/kineto",
    "tl_mi300_resnet_ckpt": "pytorch/mi300x/resnet_act_checkpoint.json.gz",
    "tl_mi300_qwen": "pytorch/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
}
"""Traces with communication that have figures of peer tools, and one without communication."""


@pytest.mark.parametrize("name", FILES)
def test_equals_the_figures_of_peers(name: str, shared: Path) -> None:
    document = json.loads((shared / "peer_figures" / f"{name}.json").read_text())
    trace = read_once(shared / FILES[name])
    exact = document["independent_exact_ns"]
    rows = ci.analyze(trace, "overlap").rows.to_pylist()
    assert [row["comm_ns"] for row in rows] == [figures["comm_union"] for figures in exact]
    assert [row["exposed_comm_ns"] for row in rows] == [
        figures["exposed_comm"] for figures in exact
    ]
    # HTA's differ: window, rounding, and memset is no compute (see test_temporal)
    reported = (document.get("hta_0.6.1_pandas2") or document["hta_0.6.1"])["overlap"]
    hta = ci.analyze(trace, "overlap", compat="hta").rows["comp_comm_overlap_percent"]
    assert hta.to_pylist() == [row["comp_comm_overlap_pctg"] for row in reported]
    lens = ci.analyze(trace, "overlap", compat="tracelens").rows.to_pylist()
    for row, figures in zip(lens, document["tracelens"], strict=True):
        for key in ("exposed_comm_time", "total_comm_time", "computation_time"):
            assert row[f"{key}_us"] == pytest.approx(figures["timeline_only"][key], abs=1e-6)


@pytest.mark.slow
def test_a_real_job_at_every_granularity(shared: Path) -> None:
    trace = read_once(shared / "pytorch/ddp_resnet_4rank_amd/merged_all_events.json.gz")
    summary = ci.analyze(trace, "overlap").summary
    for by in ("rank,iteration", "collective", "group", "operation", "rank,phase", "instance"):
        rows = ci.analyze(trace, "overlap", by=by)
        assert rows.summary == summary
        assert sum(rows.rows["exposed_comm_ns"].to_pylist()) == summary["exposed_comm_ns"]
    table = ci.analyze(trace, "overlap", by="operation_instance").rows
    chopper = ci.analyze(trace, "overlap", compat="chopper").rows
    assert table.num_rows == chopper.num_rows > 6000
    assert set(table["operation"].to_pylist()) > {"aten::conv2d", "aten::batch_norm"}


def test_analysis_contract(demo: Path) -> None:
    check_analysis(overlap, read_once(demo))


def test_chopper_has_only_operation_instances(demo: Path) -> None:
    with pytest.raises(UsageError, match="operation instances"):
        ci.analyze(read_once(demo / "kineto"), "overlap", compat="chopper", by="layer")

"""Predictions of `what_if` against longest paths by networkx, traces by hand, and what the sample job would have been."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np
import predictions
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import BASE, blocking_copies, call, kernel, write
from made_stragglers import MadeJob, trace_of
from programs import families
from programs import program as p
from programs.simulation import simulate
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop import pandas_view
from chopper_interop.analyses.methods.changes.changer import Change, Changer
from chopper_interop.analyses.methods.changes.values import Time
from chopper_interop.analyses.methods.changes.verbs import apply_changes, changed_job, parse_changes
from chopper_interop.analyses.methods.timing import paths, spans
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.demo import make_demo
from chopper_interop.errors import MissingDataError, UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.testing import check_analysis, strategies
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from pathlib import Path


def gained(trace, change, **options):
    return ci.analyze(trace, "what_if", change=change, **options).rows["gain_ns"].to_pylist()[1:]


def test_the_contract_of_analyses(demo: Path) -> None:
    from chopper_interop.analyses.what_if import what_if

    check_analysis(what_if, read_once(demo / "kineto"))


@pytest.fixture(scope="module")
def trace(demo: Path):
    return read_once(demo / "kineto")


@pytest.mark.parametrize("steps", ["", "each"])
@pytest.mark.parametrize(
    "change", ["scale=1", "delays=1", "launch=+0us", "bandwidth=1", "calls=-0"]
)
def test_changes_without_effect_gain_nothing(trace, change: str, steps: str) -> None:
    assert not any(gained(trace, change, steps=steps))
    now = apply_changes(Changer(timing_of(trace)), parse_changes(change))
    assert (now.lag_ns == timing_of(trace).lag_ns).all()


@pytest.mark.slow
@given(strategies.traces(), st.sampled_from(["kernel", "comm", "cpu_op", "runtime"]))
def test_the_shorter_operations_are_the_more_a_job_gains(trace, kind: str) -> None:
    timing = timing_of(trace)
    if not (timing.graph.src.size and is_any(trace.array("kind"), (Kind[kind.upper()],)).any()):
        return
    changer, earlier = Changer(timing), timing.at_ns
    for factor in (0.9, 0.5, 0.1, 0):
        now = apply_changes(changer, parse_changes(f"scale={factor} where kind == '{kind}'"))
        at = changed_job(changer, now).at_ns
        assert (at <= earlier).all()
        earlier = at


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_from(["comm", "kernel"], 1))
@pytest.mark.parametrize("family", ["ddp", "fsdp", "pipeline"])
def test_the_faster_a_program_the_more_it_gains(family: str, kind: str, tmp_path: Path) -> None:
    program = predictions.read(simulate(families.FAMILIES[family](10_780)), tmp_path)
    change = "; ".join(f"scale={f} where kind == '{kind}'" for f in (0.8, 0.4, 0))
    gains = gained(program, change)[:3]
    assert gains == sorted(gains)
    assert gains[0] > 0


def test_a_step_that_gets_longer_though_it_ends_sooner_is_explained(tmp_path: Path) -> None:
    """Its host was ahead of the GPU, which works for the step before."""
    listed: list[p.Instruction] = []
    for step, (host_ns, gpu_ns) in enumerate([(5_000, 300_000), (200_000, 10_000)]):
        listed += [p.Begin(f"ProfilerStep#{step}", "user_annotation", step), p.Work(host_ns)]
        listed += [p.Launch(0, "gemm", gpu_ns, 3_000, 4_000, 500), p.End()]
    program = predictions.read(simulate(p.Program("ahead", "cuda", [[listed]], [])), tmp_path)
    slower, fast = (f"scale={f} where kind == 'kernel'" for f in (0.9, 0.1))
    result = ci.analyze(program, "what_if", change=f"{slower}; {fast}", steps="each")
    first, second = (gained(program, change, steps="each")[-1] for change in (slower, fast))
    assert first > 0 > second
    assert second < -100_000
    assert "step 1, as the step before gains more" in " ".join(result.notes.values())
    assert gained(program, fast)[0] > gained(program, slower)[0] > 0


@pytest.mark.parametrize("steps", ["", "each", "11"])
def test_the_measured_length_is_the_critical_path(trace, steps: str) -> None:
    path = ci.analyze(trace, "critical_path", steps=steps)
    actual = ci.analyze(trace, "what_if", change="scale=1", steps=steps)
    rows = [r for r in actual.rows.to_pylist() if r["change"] == "as measured"]
    assert actual.summary["before_ns"] == path.summary["path_ns"]
    for name in paths.CLASSES:
        assert sum(r[f"path_{name}_ns"] for r in rows) == path.summary[f"{name}_ns"]


@pytest.mark.parametrize("steps", ["", "each"])
def test_paths_tile_their_windows_however_things_change(trace, steps: str) -> None:
    for row in ci.analyze(trace, "what_if", steps=steps).rows.to_pylist():
        assert sum(row[f"path_{name}_ns"] for name in paths.CLASSES) == row["after_ns"]
    classes = ci.analyze(trace, "what_if", steps=steps, by="class").to_pandas()
    rows = ci.analyze(trace, "what_if", steps=steps).to_pandas()
    assert classes["after_ns"].sum() == rows["after_ns"].sum()


def test_paths_tile_their_windows_though_clocks_run_backwards() -> None:
    builder = TraceBuilder()
    thread = builder.lane(0, LaneKind.THREAD, 1, "thread 1", -1)
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 0)
    for kind, lane, ts, dur in (
        (Kind.CPU_OP, thread, 0, 60), (Kind.RUNTIME, thread, 100, 10), (Kind.KERNEL, stream, 90, 30),
    ):  # fmt: skip
        builder.nodes(kind=int(kind), name="n", rank=0, lane=lane, ts=np.array([ts]), dur=dur)
    trace = builder.finish()
    call, kernel = (np.flatnonzero(trace.array("kind") == k) for k in (Kind.RUNTIME, Kind.KERNEL))
    trace = trace.with_edges(call, kernel, EdgeKind.LAUNCH)
    measured, twice = ci.analyze(
        trace, "what_if", change="scale=2 where kind == 'kernel'"
    ).rows.to_pylist()
    for row, length, compute in ((measured, 120, 30), (twice, 150, 60)):
        assert row["after_ns"] == length
        assert row["path_compute_ns"] == compute
        assert sum(row[f"path_{name}_ns"] for name in paths.CLASSES) == length


def test_a_straggler_made_as_its_peers_gives_the_job_without_it(tmp_path: Path) -> None:
    """Within 2 %: the median of the peers lacks what noise adds where ranks wait for the slowest."""
    common = {"ranks": 4, "layers": 2, "steps": 2, "telemetry": False, "counter_steps": 0}
    make_demo(tmp_path / "slow", straggler=2, straggler_slowdown=1.15, **common)
    make_demo(tmp_path / "even", straggler=2, straggler_slowdown=1.0, **common)
    slow, even = (ci.read(tmp_path / name / "kineto") for name in ("slow", "even"))
    change = "median=ranks where kind == 'kernel' and rank == 2"
    row = ci.analyze(slow, "what_if", change=change).rows.to_pylist()[1]
    true = ci.analyze(even, "what_if", change=change).rows.to_pylist()[0]["before_ns"]
    assert row["before_ns"] > 1.08 * true
    assert abs(row["after_ns"] - true) < 0.02 * true


def test_without_slow_clocks_the_job_is_nearly_the_ideal_one(tmp_path: Path) -> None:
    """Kernels set to their times at the highest clock, as truth knows these."""
    make_demo(tmp_path / "job", ranks=2, layers=2, steps=2, telemetry=False, counter_steps=0)
    truth = json.loads((tmp_path / "job" / "truth.json").read_text())
    trace = ci.read(tmp_path / "job" / "kineto")
    timing, table = timing_of(trace), truth["kernels"]
    keys = zip(table["rank"], table["correlation"], strict=True)
    ideal = dict(zip(keys, table["ideal_dur_ns"], strict=True))
    lag, owner = timing.lag_ns.copy(), paths.edge_owners(timing)
    rank, correlation = trace.array("rank"), trace.array("correlation")
    for edge in np.flatnonzero((trace.array("kind") == Kind.KERNEL)[owner] & (owner >= 0)):
        node = owner[edge]
        lag[edge] = ideal[int(rank[node]), int(correlation[node])]
    actual = spans.spans_of_timing(timing, "each")
    assert actual.lengths(timing.at_ns).tolist() == truth["measured_step_ns"]
    assert actual.lengths(timing.retimed(lag)).tolist() == truth["ideal_step_ns"]


def test_slower_by_no_more_than_its_slack_changes_nothing(trace) -> None:
    marked = ci.analyze(trace, "critical_path").annotate(trace)
    frame = marked.to_pandas(columns=["kind", "dur", "slack_ns"])
    kernels = frame[(frame["kind"] == "kernel") & (frame["slack_ns"] > 0)]
    for node, row in kernels.sample(8, random_state=1).iterrows():
        for more, moved in ((0, 0), (1, -1)):
            factor = (row["dur"] + row["slack_ns"] + more) / row["dur"]
            one = f"scale={factor!r} where index == {node}"
            assert gained(trace, one) == [moved]
        assert gained(trace, f"remove where index == {node}") == [0]


def test_each_alone_and_all_together(trace) -> None:
    both = "launch=0; scale=0.5 where kind == 'kernel'; bandwidth=2 latency=10us where rank == 1"
    actual = ci.analyze(trace, "what_if", change=both)
    assert len(actual.rows["change"]) == 5
    single = [gained(trace, part)[0] for part in both.split(";")]
    assert actual.rows["gain_ns"].to_pylist()[1:4] == single
    assert actual.rows["gain_ns"].to_pylist()[4] > max(single)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ("scale=x", "no number"),
        ("scale=-1", "less than 0"),
        ("scale", "no number"),
        ("faster=2", "there is no 'faster'"),
        ("gpu=H100", "another GPU are not predicted .*scale=0.6 where operation == 'aten::mm'"),
        ("scale=0.5 where", "behind where"),
        ("scale=0.5 where nothing == 3", "no column"),
        ("scale=0.5 where name.str.contains('(')", "cannot be answered: missing \\)"),
        ("scale=0.5 speed=3", "no option"),
        ("launch=fast", "no time"),
        ("launch=9e99", "no time"),
        ("launch=5", "no unit"),
        ("insert=.5", "no unit"),
        ("bandwidth=2 latency=5", "no unit"),
        ("bandwidth=0", "not more than 0"),
        ("bandwidth=2 latency=+3us", "a sign"),
        ("clock=nan", "no clock"),
        ("scale=1e11", "up to 1,000,000"),
        ("bandwidth=1e-14", "less than 1e-06"),
        ("scale=1e6; scale=1e6; scale=1e6", "too long"),
        ("clock=2000 beta=2", "more than 1"),
        ("median=all", "none of"),
        ("remove=3", "no value"),
        ("scale=", "behind scale="),
        ("where rank == 1", "does not say what"),
        ("scale=2 where name == 'a", "quote"),
        ("=3", "there is no ''"),
        ("", "it has no change"),
        (" ; ", "it has no change"),
    ],
)
def test_invalid_changes_are_refused(trace, change: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        ci.analyze(trace, "what_if", change=change)


def test_invalid_steps_and_ranks_are_refused(trace) -> None:
    for options in ({"by": "layer"}, {"ranks": "9"}, {"steps": "99"}):
        with pytest.raises(UsageError):
            ci.analyze(trace, "what_if", **options)


def test_changes_are_parsed() -> None:
    actual = parse_changes("scale=.5 where name == 'a;b where c' ;; launch=+2us;median; remove")
    assert [c.verb for c in actual] == ["scale", "launch", "median", "remove"]
    assert (actual[0].value, actual[0].query) == (0.5, "name == 'a;b where c'")
    assert actual[1].value == Time(2_000, is_added=True)
    assert actual[2].value == "both"
    assert parse_changes("launch=1.5us")[0].value == Time(1_500, is_added=False)


CHANGES = (
    "scale=0", "scale=0.5 where kind == 'kernel'", "scale=3 where rank == 0", "remove where dur > 2",
    "launch=0", "launch=+3ns", "calls=2ns", "calls=+5ns", "bandwidth=4 latency=1ns", "delays=0", "median",
    "clock=1000", "insert=7ns",
)  # fmt: skip


@given(strategies.traces(), st.lists(st.sampled_from(CHANGES), min_size=1, max_size=3))
def test_times_of_any_trace_are_longest_paths_of_networkx(trace, chosen) -> None:
    asked = [(one, one.partition("where ")[2]) for one in chosen]
    chosen = [
        one for one, where in asked if not where or pandas_view.query_mask(trace, where).any()
    ] or ["scale=0"]
    timing = timing_of(trace)
    if len([one for one in chosen if one in ("launch=0", "calls=2ns", "clock=1000")]) > 1:
        chosen = chosen[:1]  # together they could overwrite each other
    try:
        now = apply_changes(Changer(timing), parse_changes(";".join(chosen)))
    except MissingDataError:  # no kernel has a clock
        chosen = [one for one in chosen if not one.startswith("clock")] or ["scale=0"]
        now = apply_changes(Changer(timing), parse_changes(";".join(chosen)))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(timing.graph)))
    src, after = timing.graph.src.tolist(), timing.graph.after.tolist()
    for a, b, lag in zip(src, after, now.lag_ns.tolist(), strict=True):
        old = graph.get_edge_data(a, b, {"lag": lag})["lag"]
        graph.add_edge(a, b, lag=max(lag, old))
    at = {}
    for v in nx.topological_sort(graph):
        before = [at[u] + graph.edges[u, v]["lag"] for u in graph.predecessors(v)]
        later = int(now.delay_ns[v] + now.inserted_ns[v])
        at[v] = max(before) + later if before else int(timing.at_ns[v])
    assert [at[v] for v in range(len(at))] == timing.retimed(
        now.lag_ns, now.delay_ns + now.inserted_ns
    ).tolist()
    for by in ("job", "rank", "class"):
        ci.analyze(trace, "what_if", change=";".join(chosen), by=by)
    ci.analyze(trace, "what_if")


SHORTER = (
    "scale=0", "scale=0.5 where rank == 0", "scale=0 where kind == 'cpu_op'", "remove", "launch=0", "delays=0",
)  # fmt: skip


@pytest.mark.slow
@given(strategies.traces(), st.sampled_from(SHORTER), st.sampled_from(["job", "rank"]))
def test_no_change_gains_more_than_there_was(trace, change: str, by: str) -> None:
    ts = trace.array("ts")
    late = ts >= np.median(ts) if len(ts) else ts
    trace = trace.with_columns(iteration=[1 if is_late else None for is_late in late])
    where = change.partition("where ")[2]
    if where and not pandas_view.query_mask(trace, where).any():
        change = "scale=0"
    result = ci.analyze(trace, "what_if", change=change, by=by).rows
    assert all(ns >= 0 for ns in result["after_ns"].to_pylist())


@pytest.mark.parametrize("steps", ["", "each"])
def test_time_before_the_first_step_gains_nothing(steps: str) -> None:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.THREAD, 1, "main")
    for name, ts, dur, more in (
        ("before", 0, 8000, {}), ("step", 8000, 2000, {"iteration": 1}),
    ):  # fmt: skip
        builder.nodes(
            kind=int(Kind.CPU_OP), name=name, rank=0, lane=lane, ts=np.array([ts]), dur=dur, **more
        )
    job = builder.finish()
    assert gained(job, "scale=0 where name == 'before'", steps=steps) == [0]
    (row,) = ci.analyze(
        job, "what_if", change="scale=0 where kind == 'cpu_op'", steps=steps
    ).rows.to_pylist()[1:]
    assert (row["before_ns"], row["after_ns"], row["gain_ns"]) == (2000, 0, 2000)


def test_host_time_within_a_node_counts_its_children_once(trace) -> None:
    timing = timing_of(trace)
    frame = trace.to_pandas(columns=["kind", "dur", "name"])
    changer = Changer(timing)
    step = frame.index[
        frame["name"].str.startswith("ProfilerStep") & (frame["kind"] != "gpu_annotation")
    ][0]
    chosen = np.zeros(len(frame), bool)
    chosen[step] = True
    edge = changer.edges(changer.within(chosen))
    begin, end = 2 * step, 2 * step + 1
    inside = (timing.at_ns[timing.graph.src[edge]] >= timing.at_ns[begin]) & (
        timing.at_ns[timing.graph.after[edge]] <= timing.at_ns[end]
    )
    assert inside.all()
    waits = timing.lag_ns[edge] < timing.graph.gap_ns[edge]
    assert timing.graph.gap_ns[edge].sum() == frame["dur"][step]
    assert timing.lag_ns[edge][~waits].sum() <= frame["dur"][step]


def test_a_call_that_is_removed_launches_at_once(trace) -> None:
    timing = timing_of(trace)
    now = apply_changes(Changer(timing), [Change("remove", kinds=(Kind.RUNTIME,))])
    launches = timing.graph.kind == EdgeKind.LAUNCH
    assert timing.lag_ns[launches].min() > 0
    assert not now.lag_ns[launches].any()


def test_another_clock_is_refused_where_no_clock_is_known(trace) -> None:
    for change in ("clock=0.5x", "clock=3000 beta=0.5"):
        with pytest.raises(MissingDataError, match="is not known"):
            ci.analyze(trace, "what_if", change=change)


def test_a_clock_that_is_known_scales_kernels(trace) -> None:
    kernels = trace.array("kind") == Kind.KERNEL
    clock = [1500.0 if k else None for k in kernels.tolist()]
    clock[int(np.flatnonzero(kernels)[0])] = None
    known = trace.with_columns(gfxclk_mhz=clock)
    result = ci.analyze(known, "what_if", change="clock=3000 beta=0.5")
    assert "1 kernels without a known clock" in result.notes["change: clock=3000 beta=0.5"]
    timing = timing_of(known)
    now = apply_changes(Changer(timing), parse_changes("clock=3000 beta=0.5"))
    changed = now.lag_ns != timing.lag_ns
    assert changed.sum() == kernels.sum() - 1
    assert (now.lag_ns[changed] == np.rint(timing.lag_ns[changed] * 0.75)).all()


def test_neither_a_shift_in_time_nor_other_numbers_of_ranks_matter(trace) -> None:
    expected = ci.analyze(trace, "what_if", steps="each").rows.drop_columns(["change"])
    later = trace.nodes.set_column(
        trace.nodes.column_names.index("ts"), "ts", [trace.array("ts") + 10**12]
    )
    moved = replace(trace, nodes=later.cast(trace.nodes.schema))
    assert ci.analyze(moved, "what_if", steps="each").rows.drop_columns(["change"]) == expected


@pytest.mark.parametrize(
    "name",
    slow_from(
        ["pytorch/torchrec_4rank_v100", "pytorch/mi210", "rocprof/v3_json_mi350x", "chakra"], 2
    ),
)
def test_real_jobs_are_as_long_as_their_critical_path(name: str) -> None:
    path = real(name)
    for one in sorted(path.glob("*.et")) if name == "chakra" else [path]:
        trace = read_once(one)
        actual = ci.analyze(trace, "what_if", change="scale=1; remove where kind == 'kernel'")
        path_ns = ci.analyze(trace, "critical_path").summary["path_ns"]
        assert actual.summary["before_ns"] == path_ns
        measured, same, without, _ = actual.rows.to_pylist()
        assert measured["after_ns"] == same["after_ns"] == path_ns
        assert without["after_ns"] <= path_ns


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("launch=0; scale=0.5 where kind == 'com'", "there is no kind 'com' .*'comm'"),
        ("scale=0.5 where kind == 'compute'", r"no kind 'compute' \(did you mean 'kernel'\?\)"),
        ("scale=0 where kind in ('kernel', 'copy')", r"'copy' \(did you mean 'memcpy'\?\)"),
        ("scale=0 where kind == 'communication'", r"\(did you mean 'comm'\?\)"),
        ("scale=0 where kind == 'gpu'", "there are cpu_op, .*kernel, comm, "),
        ("scale=0.5 where operation == 'aten::mull'", r"\(did you mean 'aten::mul'\?\)"),
        ("scale=0.5 where operation == `operation` and rank == 99", "kinds are"),
        ("scale=0.5 where operation == 'aten::mul' and rank == 99", "kinds are"),
        ("scale=0.5 where class == 'compute'", "nodes have a kind: kind == 'kernel' is compute"),
        ("scale=0.5 where kind = 'comm'", "write =="),
        ("scale=0.5 where rank == 0 and kind = 'comm'", "write =="),
    ],
)
def test_a_condition_without_matching_nodes_is_refused(trace, change: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        gained(trace, change)


def test_calls_are_chosen_by_their_work(trace) -> None:
    assert gained(trace, "calls=0 where kind == 'kernel'")[0] > 0


def test_a_change_that_gains_nothing_says_what_binds() -> None:
    """Kernels behind a slow host, and kernels that nothing explains to be late."""
    slow_host = trace_of(MadeJob(host_ns=2_000_000))
    notes = ci.analyze(slow_host, "what_if", change="scale=0.99 where kind == 'kernel'").notes
    assert notes["gains nothing: scale=0.99 where kind == 'kernel'"].endswith("100% host")
    late = trace_of(MadeJob(host_ns=2_000_000, hosts=False))
    change = "scale=0.99 where kind == 'comm'"
    text = ci.analyze(late, "what_if", change=change).notes[f"gains nothing: {change}"]
    assert "delays without a known reason" in text
    gains = ci.analyze(late, "what_if", change="delays=0").notes
    assert not [name for name in gains if name.startswith("gains nothing")]


@pytest.mark.parametrize(
    "changes",
    [
        "launch=5us; launch=+2us",
        "bandwidth=50GB/s latency=5us; scale=0.5 where kind == 'comm'",
    ],
)
def test_changes_of_one_thing_follow_each_other(trace, changes: str) -> None:
    """Together they are what each makes of the result of the one before."""
    first, second, together = gained(trace, changes)
    assert together not in (first, second)


@pytest.mark.parametrize("change", ["median", "ideal"])
def test_what_is_made_even_is_the_changed_time(trace, change: str) -> None:
    """They took the measured times again, and so undid what came before."""
    half = "scale=0.5 where kind == 'kernel'"
    kernels = f"{change} where kind == 'kernel'"
    changer = Changer(timing_of(trace))
    alone, both = (
        apply_changes(changer, parse_changes(t)) for t in (kernels, f"{half}; {kernels}")
    )
    edge = changer.edges(trace.array("kind") == Kind.KERNEL)
    assert np.abs(both.lag_ns[edge] - alone.lag_ns[edge] / 2).max() <= 1


_APART = "leave one of the two out, or choose different nodes by where"


@pytest.mark.parametrize(
    ("earlier", "later", "hint"),
    [
        ("launch=5us", "launch=7us", _APART),
        ("scale=0.5 where kind == 'comm'", "bandwidth=50GB/s latency=5us", ""),
        ("buckets=1MB latency=5us", "buckets=25MB latency=5us", _APART),
        ("remove where kind == 'runtime'", "calls=5us", ""),
        ("clock=0.9x beta=1", "clock=0.5x beta=1", _APART),
    ],
)
def test_changes_that_would_overwrite_others_are_not_evaluated_together(
    trace, earlier: str, later: str, hint: str
) -> None:
    """The later one had replaced the earlier in silence; the order that the hint names is evaluated."""
    clocks = [1500.0 if k == Kind.KERNEL else None for k in trace.array("kind").tolist()]
    trace = trace.with_columns(gfxclk_mhz=clocks)
    result = ci.analyze(trace, "what_if", change=f"{earlier}; {later}")
    assert "all together" not in result.rows["change"].to_pylist()
    hint = hint or f"write {later!r} in front of {earlier!r}, which then applies to it"
    text = f"change={later}: it would overwrite {earlier!r} ({hint})"
    assert result.notes["no row: all together"] == text
    if hint != _APART:
        together = ci.analyze(trace, "what_if", change=f"{later}; {earlier}")
        assert "all together" in together.rows["change"].to_pylist()


def test_each_kernel_has_one_other_clock(trace) -> None:
    """The law leads from the measured clock to another, not from there to a third."""
    kernels = trace.array("kind") == Kind.KERNEL
    known = trace.with_columns(gfxclk_mhz=[1500.0 if k else None for k in kernels.tolist()])
    half = "clock=0.5x beta=1 where rank == {}"
    disjoint = gained(known, f"{half.format(0)}; {half.format(1)}")
    assert disjoint[2] < min(disjoint[:2])
    assert len(gained(known, f"{half.format(0)}; clock=0.5x beta=1")) == 2


def test_no_delay_is_the_time_of_what_is_inserted(trace) -> None:
    alone = gained(trace, "delays=0")[-1]
    last = gained(trace, "delays=0; insert=1ms where kind == 'kernel'")[-1]
    assert gained(trace, "insert=1ms where kind == 'kernel'; delays=0")[-1] == last < alone


@pytest.mark.parametrize(
    "change", ["bandwidth=50GB/s", "bandwidth=2", "bandwidth=50GB/s latency=5us"]
)
def test_another_network_of_a_job_without_communication_changes_nothing_and_says_so(
    tmp_path: Path, change: str
) -> None:
    result = ci.analyze(ci.read(blocking_copies(tmp_path)), "what_if", change=change)
    assert gained(ci.read(blocking_copies(tmp_path)), change) == [0]
    note = result.notes[f"change: {change}"]
    assert note.startswith("100 nodes chosen, no communication is among them")
    assert "changes nothing" in note
    assert "97% compute" in result.notes[f"gains nothing: {change}"]


def waiting_job(folder: Path, where: str, ranks: int = 2, **arguments: object) -> ci.Trace:
    """Ranks with six all-reduces of unknown size, one behind the other, and on all but the last a piece of 5 ms that waits."""
    shared, waits = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", "ncclDevKernel_SendRecv"
    parts = [(shared, 300 + 10 * i) for i in range(6)]
    at = {"begins later": 0, "launched before": 1, "between": 3, "ends sooner": 6}[where]
    parts.insert(at, (waits if where in ("launched before", "between") else shared, 5000))
    for rank in range(ranks):
        events, time = [], 1000
        for k, (name, dur) in enumerate(parts):
            late = 200 if rank == ranks - 1 and dur < 5000 else 0  # it is the last to come
            if k != at or rank < ranks - 1:
                size = arguments if k == at else {}
                events.append(
                    kernel(name, time + late, dur - late, k + 1, device=rank, stream=7, **size)
                )
                if where == "between" or (where == "launched before" and k > at):
                    events.append(call("cudaLaunchKernel", 10 * k, 5, k + 1))
            time += dur
        info = {"rank": rank, "world_size": ranks, "backend": "nccl"}
        path = folder / f"rank{rank}.json"
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=info)
    return ci.read(folder)


@pytest.mark.parametrize("where", ["begins later", "ends sooner", "launched before", "between"])
def test_another_network_stretches_no_wait_at_an_edge_of_the_recording(
    where: str, tmp_path: Path
) -> None:
    """First and last collectives of torchrec jobs, of which a rank had not recorded its part, had cost twice their waits."""
    trace = waiting_job(tmp_path, where)
    result = ci.analyze(trace, "what_if", change="bandwidth=0.5")
    transfers_us = sum(100 + 10 * i for i in range(6))
    if where == "between":  # rank 0 needs not come before rank 1, 200 us later
        transfers_us += 5000 - 200
    assert gained(trace, "bandwidth=0.5") == [pytest.approx(-1000 * transfers_us, abs=10_000)]
    left = "1 transfers at an edge of the recording" in result.notes["change: bandwidth=0.5"]
    assert left == (where != "between")


def test_another_network_stretches_no_wait_for_the_rank_that_begins_last(tmp_path: Path) -> None:
    trace = waiting_job(tmp_path, "begins later", ranks=3)
    result = ci.analyze(trace, "what_if", change="bandwidth=0.5")
    assert "2 transfers at an edge of the recording" in result.notes["change: bandwidth=0.5"]
    transfers_us = sum(100 + 10 * i for i in range(6))
    assert gained(trace, "bandwidth=0.5") == [pytest.approx(-1000 * transfers_us, abs=10_000)]


def test_another_network_stretches_transfers_of_ranks_that_share_none(tmp_path: Path) -> None:
    """Nothing says which of them are at an edge of the recording."""
    for rank, name in enumerate(("ncclDevKernel_SendRecv", "gemm")):
        events = [kernel(name, 500 * k, 300, k + 1, device=rank, stream=7) for k in range(6)]
        info = {"rank": rank, "world_size": 2, "backend": "nccl"}
        path = tmp_path / f"rank{rank}.json"
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=info)
    assert gained(ci.read(tmp_path), "bandwidth=0.5") == [-6 * 300_000]


def test_another_network_stretches_transfers_of_known_size_at_an_edge_of_the_recording(
    tmp_path: Path,
) -> None:
    size = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "Float"}
    trace = waiting_job(tmp_path, "begins later", **size)
    result = ci.analyze(trace, "what_if", change="bandwidth=0.5")
    assert "at an edge of the recording" not in result.notes["change: bandwidth=0.5"]
    transfers_us = 5000 - 200 + sum(100 + 10 * i for i in range(6))  # as between others
    assert gained(trace, "bandwidth=0.5") == [pytest.approx(-1000 * transfers_us, abs=10_000)]


def test_transfers_that_are_shorter_than_the_latency_do_not_depend_on_the_bandwidth(
    tmp_path: Path,
) -> None:
    trace = waiting_job(tmp_path, "between")
    of_long_one_us = 5000 - 200 - 1000  # rank 0 needs not come before rank 1, 200 us later
    assert gained(trace, "bandwidth=0.5 latency=1ms") == [pytest.approx(-1000 * of_long_one_us)]

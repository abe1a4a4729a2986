"""Traces put together by the user: ranks, and windows that follow each other."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_once import read_once

import chopper_interop as ci
from chopper_interop import build
from chopper_interop.annotate.structure.annotations import COUNTED
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.schemas.meta import BOOTTIME, Meta, Rank
from chopper_interop.testing import check_trace
from chopper_interop.testing.samples import tiny_trace
from chopper_interop.testing.strategies import traces


@pytest.fixture(scope="module")
def job(demo: Path) -> ci.Trace:
    return read_once(demo)


def _same_nodes(one: ci.Trace, other: ci.Trace) -> None:
    columns = ["kind", "name", "rank", "ts", "dur", "parent", "instance", "iteration", "flops"]
    assert one.to_pandas(columns=columns).equals(other.to_pandas(columns=columns))
    assert one.meta.origin_ns == other.meta.origin_ns


def test_ranks_are_the_job_again(job: ci.Trace) -> None:
    ranks = [job.rank(r) for r in job.ranks]
    again = ci.concat(reversed(ranks), name="again")
    check_trace(again)
    _same_nodes(again, job)
    assert again.meta.job == "again"
    assert again.edges.num_rows == job.edges.num_rows  # those of collectives, too
    assert again.samples.num_rows == sum(rank.samples.num_rows for rank in ranks)
    assert again.meta.sources == job.meta.sources
    assert again.args(0) == job.args(0)


def test_samples_that_one_trace_has_alone_are_not_copied(monkeypatch) -> None:
    """A day of telemetry next to a small trace was held twice."""
    monkeypatch.setattr(build, "_SMALL_ROWS", 0)
    telemetry = TraceBuilder(Meta("telemetry"))
    telemetry.samples(telemetry.series(0, "socket power", "W", "a"), np.arange(9), np.arange(9.0))
    alone = telemetry.finish()
    nothing = TraceBuilder(Meta("nothing")).finish()
    together = build.concat([nothing, alone], Meta("both"))
    assert together.samples["value"].to_pylist() == alone.samples["value"].to_pylist()
    addresses = [t.array("value", "samples").__array_interface__["data"] for t in (together, alone)]
    assert addresses[0] == addresses[1]


def test_windows_are_the_job_again(job: ci.Trace) -> None:
    middle = job.span_ns // 2
    windows = [job.between(0, middle), job.between(middle, job.span_ns + 1)]
    again = ci.concat(windows)
    check_trace(again)
    _same_nodes(again, job)
    assert again.lanes.equals(job.lanes)
    sampled = job.array("ts", "samples")
    assert again.samples.num_rows == np.count_nonzero((sampled >= 0) & (sampled <= job.span_ns))
    assert again.text.buffers == job.text.buffers
    assert again.edges.num_rows < job.edges.num_rows  # those across the border are not made again
    assert again.steps().equals(job.steps())


def test_analyses_of_ranks_put_together(job: ci.Trace) -> None:
    again = ci.concat([job.rank(r) for r in job.ranks])
    for name in ("temporal", "collectives", "critical_path"):
        one, other = (ci.analyze(trace, name).to_pandas() for trace in (again, job))
        assert one.equals(other), name


@settings(suppress_health_check=list(HealthCheck))
@given(traces(), st.floats(0, 1))
def test_windows_that_follow_each_other_share_no_node(trace: ci.Trace, share: float) -> None:
    border = int(trace.array("ts").min(initial=0) + share * trace.span_ns)
    parts = [trace.between(-(2**60), border), trace.between(border, 2**60)]
    assert sum(part.nodes.num_rows for part in parts) == trace.nodes.num_rows
    for part in parts:
        check_trace(part)
    check_trace(trace.between(border - 10, border + 10, cut=True))
    again = ci.concat(parts)
    check_trace(again)
    for column in ("ts", "dur", "rank", "parent", "lane"):
        assert again.array(column).tolist() == trace.array(column).tolist() or column == "lane"


def test_correlation_ids_that_begin_again_stay_apart() -> None:
    trace = tiny_trace()
    later = trace.with_meta(origin_ns=1_000_000)
    both = ci.concat([later, trace])
    assert both.array("correlation").tolist() == [-1, 1, 1, 2, 2, -1, 3, 3, 4, 4]
    assert both.meta.origin_ns == 0
    assert both.lanes.num_rows == trace.lanes.num_rows
    assert both.launch.tolist() == [-1, -1, 1, -1, 3, -1, -1, 6, -1, 8]


def test_counted_steps_go_on() -> None:
    log = IssueLog("tiny")
    log.add(COUNTED)
    trace = tiny_trace().with_columns(iteration=[0, 0, 0, 1, None]).with_meta(issues=tuple(log))
    both = ci.concat([trace, trace.with_meta(origin_ns=1_000_000)])
    assert both.integers("iteration").tolist() == [0, 0, 0, 1, -1, 2, 2, 2, 3, -1]
    assert "iterations-moved" in {issue.code for issue in both.meta.issues}
    named = trace.with_meta(issues=())  # numbers of the program
    both = ci.concat([named, named.with_meta(origin_ns=1_000_000)])
    assert both.integers("iteration").tolist() == [0, 0, 0, 1, -1] * 2


def test_what_cannot_be_one_job_is_refused() -> None:
    trace = tiny_trace()
    later = trace.with_meta(origin_ns=1_000_000)
    with pytest.raises(AmbiguousRunError, match="rank 0 is in both 'tiny' and 'tiny' at the same"):
        ci.concat([trace, later, later])
    other = later.with_meta(ranks=(Rank(0, "node", 12),))
    known = trace.with_meta(ranks=(Rank(0, "node", 11),))
    with pytest.raises(AmbiguousRunError, match="as processes node:11 and node:12"):
        ci.concat([known, other])
    with pytest.raises(UsageError, match="different clocks: boottime, realtime"):
        ci.concat([trace, later.with_meta(clock=BOOTTIME)])
    machines = [
        t.with_meta(clock=BOOTTIME, ranks=(Rank(0, h),)) for t, h in ((trace, "a"), (later, "b"))
    ]
    with pytest.raises(UsageError, match="of different machines: a, b"):
        ci.concat(machines)
    for not_traces in ([], [None], ["tiny.parquet"], trace, 5):
        with pytest.raises(UsageError, match="takes a list of traces"):
            ci.concat(not_traces)


def test_one_trace_is_itself() -> None:
    trace = tiny_trace()
    assert ci.concat([trace]) is trace


def test_samples_that_several_traces_have_count_once(job: ci.Trace) -> None:
    first, second = (replace(job.rank(r), series=job.series, samples=job.samples) for r in (0, 1))
    both = ci.concat([first, second])
    check_trace(both)
    assert both.samples.num_rows == job.samples.num_rows
    assert EdgeKind.COMM in both.array("kind", "edges")

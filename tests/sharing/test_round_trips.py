"""Kineto to Parquet and on, or to Perfetto and back: what went in comes out, or is counted."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import kineto_events
import pytest
from hypothesis import HealthCheck, given, settings
from outputs import OUTPUTS
from read_once import read_once

import chopper_interop as ci
from chopper_interop.errors import ChopperError
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.testing.samples import events


def read(document: dict[str, Any], folder: Path) -> ci.Trace | None:
    """The trace of a document; None if it is refused, in one line."""
    (folder / "rank0.json").write_text(json.dumps(document), encoding="utf-8")
    try:
        trace = ci.read(folder / "rank0.json")
    except ChopperError:
        return None
    unread = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert trace.nodes.num_rows + unread == len(document["traceEvents"])
    return trace


def arguments(trace: ci.Trace, *, as_text: bool = False) -> Counter[str]:
    """Arguments of all nodes, each with the name of its node.

    With `as_text`, what Perfetto has no type for is compared as the JSON text that stands for it:
    null, numbers beyond 64 bits, texts with a NUL.
    """
    names, name = trace.names(), trace.array("name")
    rows = range(trace.nodes.num_rows)
    shown = _shown if as_text else repr
    return Counter(
        f"{names[name[r]]} {shown(k)}={shown(v)}" for r in rows for k, v in trace.args(r).items()
    )


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return json.dumps(text).replace("\\", "").replace('"', "")


def samples(trace: ci.Trace, *, named: bool) -> Counter[tuple[Any, ...]]:
    series = trace.series["name"].to_pylist()
    of_sample = [series[s] if named else "" for s in trace.array("series", "samples").tolist()]
    ts = (trace.array("ts", "samples") + trace.meta.origin_ns).tolist()
    values = trace.array("value", "samples").tolist()
    return Counter(zip(of_sample, ts, values, strict=True))


def edges(trace: ci.Trace, kind: EdgeKind) -> Counter[tuple[str, ...]]:
    """Starts and names of both ends of the edges of a kind."""
    ts, names, name = trace.array("ts") + trace.meta.origin_ns, trace.names(), trace.array("name")
    chosen = trace.array("kind", "edges") == kind
    ends = zip(*(trace.array(end, "edges")[chosen] for end in ("src", "dst")), strict=True)
    return Counter(tuple(f"{ts[n]} {names[name[n]]}" for n in both) for both in ends)


def through_parquet(document: dict[str, Any], folder: Path) -> None:
    """Kineto to Parquet, and on to Kineto."""
    trace = read(document, folder)
    if trace is None:
        return
    assert ci.write(trace, folder / "a.parquet") == (), "Parquet loses nothing"
    kept = ci.read(folder / "a.parquet", name=trace.meta.job)
    assert_trace_equal(trace, kept, ignore=["meta.sources"])
    counted = {issue.code for issue in ci.write(kept, folder / "b.json")}
    again = ci.read(folder / "b.json", name=trace.meta.job)
    assert events(again) == events(trace)
    named = "series-by-name" not in counted
    assert samples(again, named=named) == samples(trace, named=named)
    for kind in (EdgeKind.LAUNCH, EdgeKind.FWDBWD):
        assert edges(again, kind) == edges(trace, kind)
    assert not arguments(trace, as_text=True) - arguments(again, as_text=True)


def through_perfetto(document: dict[str, Any], folder: Path) -> None:
    """Kineto to Perfetto, and back."""
    trace = read(document, folder)
    if trace is None or not trace.nodes.num_rows:
        return
    ci.write(trace, folder / "a.pftrace", all_samples=True)
    again = ci.read(folder / "a.pftrace", name=trace.meta.job)
    assert events(again) == events(trace)
    assert samples(again, named=True) == samples(trace, named=True)
    for kind in (EdgeKind.LAUNCH, EdgeKind.FWDBWD):
        assert edges(again, kind) == edges(trace, kind)
    assert not arguments(trace, as_text=True) - arguments(again, as_text=True)


@pytest.mark.parametrize("check", [through_parquet, through_perfetto])
@settings(max_examples=4, suppress_health_check=list(HealthCheck))
@given(document=kineto_events.files())
def test_what_went_in_comes_out(tmp_path_factory, check, document) -> None:
    check(document, tmp_path_factory.mktemp("x"))


@pytest.mark.slow
@pytest.mark.parametrize("check", [through_parquet, through_perfetto])
@settings(suppress_health_check=list(HealthCheck))
@given(document=kineto_events.files())
def test_more_of_what_went_in_comes_out(tmp_path_factory, check, document) -> None:
    check(document, tmp_path_factory.mktemp("x"))


def test_every_output_states_what_it_has_no_place_for(demo: Path, tmp_path: Path) -> None:
    trace = read_once(demo)
    stated = {name: ci.write(trace, f"{tmp_path}/{name}") for name in OUTPUTS}
    assert [name for name, issues in stated.items() if not issues] == ["a.parquet"]

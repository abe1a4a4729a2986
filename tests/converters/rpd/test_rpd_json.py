# ruff: noqa: S608
"""JSON of rpd2tracing, made of an rpd database: a list of events that begins with an empty one."""

import json
import sqlite3
from collections import Counter
from contextlib import closing

import pytest
import rpd
from issue_counts import counts, uncounted_events
from shared_data import real

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.kineto.reader import read
from chopper_interop.io import inputs

REAL = "rocprof/rpd_schema2_mi300x/matmul_result.json"
KINDS = {"KernelExecution": "kernel", "FillBuffer": "memset"}
OWN_CALLS = ("rpdflush", "hcc_activity_callback", "run_to_completion")


def exported(database, path):
    """The calls and operations of a database in that form: times cut to microseconds."""
    events = [
        {"name": "process_name", "ph": "M", "pid": "2", "args": {"name": "GPU2"}},
        {"name": "thread_name", "ph": "M", "pid": "7", "tid": "7", "args": {"name": "Hip 7"}},
    ]
    text = "(SELECT string FROM rocpd_string s WHERE s.id = {}_id)"
    with closing(sqlite3.connect(database)) as base:
        for name, kind, start, end in base.execute(
            f"SELECT {text.format('description')}, {text.format('opType')}, start, end FROM rocpd_op"
        ):
            span = {"ts": str(start // 1000), "dur": str((end - start) // 1000), "ph": "X"}
            about = {"pid": "2", "tid": "0", "name": name or kind, "args": {"desc": kind}}
            events.append({**about, **span})
        for name, start, end in base.execute(
            f"SELECT {text.format('apiName')}, start, end FROM rocpd_api"
        ):
            span = {"ts": str(start // 1000), "dur": str((end - start) // 1000), "ph": "X"}
            events.append({"pid": "7", "tid": "7", "name": name, "args": {"desc": ""}, **span})
    path.write_text("[ {}\n," + "\n,".join(map(json.dumps, events)) + "\n]\n")
    return path


def names(path):
    return [c.name for c in registry.sniffed(inputs.head(path), path)]


def test_what_the_profiler_does_itself_is_no_call(tmp_path):
    """It ended the job 110 ms later, so that no finding saved anything; as a database its time is the profiler's."""
    labels = [
        {"name": "thread_name", "ph": "M", "pid": "7", "tid": tid, "args": {"name": f"Hip {tid}"}}
        for tid in ("7", "8")
    ]
    calls = [("7", "hipFree"), ("8", "hcc_activity_callback"), ("8", "OpTable::flush")]
    spans = [
        {
            "ph": "X",
            "pid": "7",
            "tid": tid,
            "name": name,
            "ts": "5",
            "dur": "1",
            "args": {"desc": ""},
        }
        for tid, name in calls
    ]
    path = tmp_path / "x.json"
    path.write_text("[ {}\n," + "\n,".join(map(json.dumps, labels + spans)) + "\n]\n")
    frame = read([path]).to_pandas()
    assert dict(zip(frame["name"], frame["kind"], strict=True)) == dict(
        zip((name for _, name in calls), ("runtime", "overhead", "overhead"), strict=True)
    )


def test_a_real_trace_gives_what_json_says():
    path = real(REAL)
    with path.open() as file:
        events = json.load(file)
    spans = [e for e in events if e.get("ph") == "X"]
    trace = read([path])
    assert names(path) == ["chrome-trace"]
    start = trace.array("ts") + trace.meta.origin_ns
    expected = sorted((int(e["ts"]) * 1000, int(e["dur"]) * 1000) for e in spans)
    assert sorted(zip(start.tolist(), trace.array("dur").tolist(), strict=True)) == expected
    own = [
        "overhead" if "Table::" in e["name"] or e["name"].startswith(OWN_CALLS) else "runtime"
        for e in spans
    ]
    kinds = Counter(
        KINDS.get(e["args"]["desc"], "memcpy") if e["pid"] == "2" else kind
        for e, kind in zip(spans, own, strict=True)
    )
    assert kinds["overhead"]
    assert Counter(trace.to_pandas()["kind"]) == kinds
    assert trace.samples.num_rows == sum(e.get("ph") == "C" for e in events)
    assert trace.meta.clock == "boottime"
    issues = counts(trace)
    assert issues["event-empty"] == 1
    assert not issues.keys() & {"event-phase-unknown", "flow-unknown", "launch-arrow-unbound"}
    assert trace.edges.num_rows == sum(e.get("ph") == "f" for e in events)
    ids = {(e["ph"], e["id"]): int(e["ts"]) for e in events if e.get("ph") in ("s", "f")}
    ends = {(ids["s", i] * 1000, t * 1000) for (p, i), t in ids.items() if p == "f"}
    source, target = trace.array("src", "edges"), trace.array("dst", "edges")
    stop = start + trace.array("dur") + 1000
    actual = list(
        zip(start[source].tolist(), stop[source].tolist(), start[target].tolist(), strict=True)
    )
    assert all(any(b <= s <= e and f == t for s, f in ends) for b, e, t in actual)
    assert trace.meta.sources[0].events == len(events)
    assert not uncounted_events(trace)


def test_a_real_trace_next_to_its_database_is_the_same_run(tmp_path):
    exported = real(REAL)
    database = exported.with_suffix(".rpd")
    for path in (exported, database):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    trace = ci.read(tmp_path)
    alone = ci.read(database)
    assert trace.nodes.num_rows == alone.nodes.num_rows
    assert trace.edges.num_rows == alone.edges.num_rows > 0
    assert trace.ranks == [0]
    (issue,) = [i for i in trace.meta.issues if i.code == "same-events-twice"]
    assert "matmul_result.json" in issue.example


def test_an_export_next_to_its_database_is_not_read_twice(tmp_path):
    database = tmp_path / "x.rpd"
    rpd.small(database)
    path = exported(database, tmp_path / "x.json")
    assert names(path) == ["chrome-trace"]
    assert read([path]).nodes.num_rows
    trace = ci.read(tmp_path)
    assert trace.ranks == ci.read(database).ranks
    assert trace.nodes.num_rows == ci.read(database).nodes.num_rows


@pytest.mark.parametrize(("begins", "lost"), [("105", 0), ("300", 1)])
def test_an_arrow_is_a_launch_where_it_begins_in_a_call(tmp_path, begins, lost):
    arrow = {"cat": "api_op", "name": "api_op", "id": "1"}
    call = {"ph": "X", "pid": "7", "tid": "7", "name": "hipLaunchKernel", "args": {"desc": ""}}
    kernel = {"ph": "X", "pid": "2", "tid": "0", "name": "k", "args": {"desc": "KernelExecution"}}
    events = [
        {},
        {"name": "process_name", "ph": "M", "pid": "2", "args": {"name": "GPU2"}},
        {"name": "thread_name", "ph": "M", "pid": "7", "tid": "7", "args": {"name": "Hip 7"}},
        {**kernel, "ts": "120", "dur": "5"},
        {**call, "ts": "100", "dur": "10"},
        {**arrow, "ph": "s", "pid": "7", "tid": "7", "ts": begins},
        {**arrow, "ph": "f", "pid": "2", "tid": "0", "ts": "120", "bp": "e"},
    ]
    path = tmp_path / "x.json"
    path.write_text(json.dumps(events))
    trace = read([path])
    issues = counts(trace)
    assert trace.edges.num_rows == 1 - lost
    assert issues.get("launch-arrow-unbound", 0) == lost
    assert issues["event-empty"] == 1

"""The test tools: they must detect what is wrong, and only that."""

import importlib.util
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings

from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.issues import Issue, Severity
from chopper_interop.registry import Converter
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Device, Meta, Rank, Source
from chopper_interop.testing import (
    assert_trace_equal,
    check_analysis,
    check_converter,
    check_trace,
    dump,
)
from chopper_interop.testing.strategies import traces

TOY = "#chopper-toy 1\nrank,thread,name,start_us,duration_us\n" + "".join(
    f"{row % 2},{row % 3},step {row},{row * 10},{7 + row}.125\n" for row in range(30)
)


def example(names=("step", 'mm "quoted"', "gemm", "recv"), *, backwards=False):
    """A launch, a collective, a counter, two samples; rows added in one order or the other."""
    source = Source("/home/somebody/run/rank0.json", "kineto", "torch 2.9", "ab", 10, 5, 4)
    issue = Issue(
        "flow", Severity.INFO, "…", 1, "/home/somebody/run/rank0.json x", True, source.path
    )
    builder = TraceBuilder(
        Meta(
            job="tiny",
            ranks=(Rank(0, "node7", 42, 2, "header"),),
            devices=(Device("node7", 2, "MI300X", "kineto"),),
            sources=(source,),
            issues=(issue,),
            facts={"torch": "2.9"},
        )
    )
    thread = builder.lane(0, LaneKind.THREAD, 42, "python3")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", 2)
    world = builder.group("0", [0, 1], "default_pg", "nccl")
    text = builder.text(np.frombuffer(bytearray(b'{"b": [1, 2], "a": "x"}'), np.uint8))
    kinds = (Kind.ANNOTATION, Kind.RUNTIME, Kind.KERNEL, Kind.COMM)
    columns = {
        "kind": pa.array([int(kind) for kind in kinds], pa.uint8()),
        "name": pa.array(names),
        "lane": np.array([thread, thread, stream, stream], np.int32),
        "ts": np.array([1000, 1010, 1020, 1020]),
        "dur": np.array([50, 5, 20, 9]),
        "correlation": np.array([-1, 3, 3, -1]),
        "group": pa.array([None, None, None, world]),
        "collective": pa.array([None, None, None, "recv"]),
    }
    order = np.arange(4)[:: -1 if backwards else 1]
    columns = {name: values.take(pa.array(order)) if isinstance(values, pa.Array) else values[order]
               for name, values in columns.items()}  # fmt: skip
    lengths = np.array([0, 23, 0, 0], np.int32)[order]
    builder.nodes(rank=0, args=(np.full(4, text), lengths), **columns)
    of = np.argsort(order)
    builder.edges(of[[1]], of[[2]], int(EdgeKind.LAUNCH))
    builder.counters(of[[2]], "SQ_WAVES", np.array([64.0]))
    power = builder.series(0, "power", "W", "amd-smi", device=2, uncertainty_ns=5)
    builder.samples(power, np.array([1005, 1001]), np.array([250.5, 240.0]))
    return builder.finish()


def test_dump_shows_everything_by_name():
    assert dump(example()) == (
        """\
trace "tiny"
  origin 1000 ns, clock realtime
  rank 0: host "node7", pid 42, device 2, known by header
  device 2: "MI300X" on "node7" by kineto, ordinal -1, agent -1, index -1, PCI "", UUID ""
  source "rank0.json": kineto, tool "torch 2.9", 5 events, 4 nodes
  info flow: 1 events in "rank0.json", example "rank0.json x"
  fact torch: "2.9"
lanes
  {rank 0 device 2 stream 7 "stream 7"}
  {rank 0 thread 42 "python3"}
groups
  "0"[0, 1] "default_pg" backend "nccl"
nodes
  0.0 at 0+50: annotation "step" on {rank 0 thread 42 "python3"}
  0.1 at 10+5 in 0.0: runtime "mm \\"quoted\\"" on {rank 0 thread 42 "python3"} correlation=3 """
        """args={"a": "x", "b": [1, 2]}
  0.2 at 20+20: kernel "gemm" on {rank 0 device 2 stream 7 "stream 7"} correlation=3
  0.3 at 20+9: comm "recv" on {rank 0 device 2 stream 7 "stream 7"} collective="recv" group="0"[0, 1]
edges
  launch 0.1 → 0.2
counters
  0.2 "SQ_WAVES" = 64.0
series
  rank 0 device 2 "power" in "W" by "amd-smi" ± 5 ns
    at 1: 240.0
    at 5: 250.5
"""
    )


def test_dump_does_not_depend_on_the_order_of_rows():
    assert dump(example()) == dump(example(backwards=True))


def test_equality_compares_content_not_layout():
    other = example(backwards=True)
    nodes = pa.concat_tables([other.nodes.slice(0, 1), other.nodes.slice(1)])
    empty = other.with_columns(phase=pa.nulls(4, pa.string()))
    assert_trace_equal(example(), other)
    assert_trace_equal(example(), replace(other, nodes=nodes))
    assert_trace_equal(example(), empty)


def test_equality_compares_arguments_as_json():
    spaced = b'  {"a":"\\u0078",\n"b":[1,2]}'
    trace = example()
    text = replace(trace.text, buffers=(np.frombuffer(bytearray(spaced), np.uint8),))
    changed = trace.nodes
    for name, value in (("args_at", 2), ("args_len", len(spaced) - 2)):
        at = changed.schema.get_field_index(name)
        values = np.where(trace.array("args_len") > 0, value, 0)
        changed = changed.set_column(
            at, changed.schema.field(at), pa.array(values, changed.schema.field(at).type)
        )
    assert_trace_equal(trace, replace(trace, nodes=changed, text=text))


def _with(trace, table, column, row, value):
    data = getattr(trace, table)
    values = data[column].to_pylist()
    values[row] = value
    at = data.schema.get_field_index(column)
    field = data.schema.field(at)
    array = pa.array(values, field.type.value_type).dictionary_encode() if pa.types.is_dictionary(
        field.type) else pa.array(values, field.type)  # fmt: skip
    return replace(trace, **{table: data.set_column(at, field, array)})


@pytest.mark.parametrize(
    ("table", "column", "row", "value"),
    [
        ("nodes", "kind", 1, int(Kind.DRIVER)),
        ("nodes", "name", 2, "gemv"),
        ("nodes", "dur", 3, 10),
        ("nodes", "parent", 1, -1),
        ("nodes", "correlation", 2, 4),
        ("nodes", "collective", 3, None),
        ("edges", "kind", 0, int(EdgeKind.SYNC)),
        ("lanes", "name", 0, "main"),
        ("series", "unit", 0, "mW"),
        ("samples", "value", 1, float("nan")),
        ("counters", "value", 0, 65.0),
        ("groups", "ranks", 0, [1, 0]),
    ],
)
def test_equality_names_what_differs(table, column, row, value):
    changed = _with(example(), table, column, row, value)
    with pytest.raises(AssertionError, match=rf"{table}\.{column} (is in one|in row)"):
        assert_trace_equal(example(), changed)
    assert_trace_equal(changed, changed)
    assert_trace_equal(example(), changed, ignore=[f"{table}.{column}"])


def test_equality_detects_other_arguments_rows_and_meta():
    trace = example()
    true_for_one = trace.text.buffers[0].copy()
    true_for_one[7:8] = ord("7")
    with pytest.raises(AssertionError, match=r"'b': \[1, 2\] ≠ \[7, 2\]"):
        assert_trace_equal(trace, replace(trace, text=replace(trace.text, buffers=(true_for_one,))))
    with pytest.raises(AssertionError, match="edges: 1 rows ≠ 0 rows"):
        assert_trace_equal(trace, replace(trace, edges=trace.edges.slice(0, 0)))
    with pytest.raises(AssertionError, match=r"meta\.facts"):
        assert_trace_equal(trace, trace.with_meta(facts={}))
    with pytest.raises(AssertionError, match=r"meta\.ranks\[0\].*pid=42"):
        assert_trace_equal(trace, trace.with_meta(ranks=(Rank(0, "node7", 43, 2, "header"),)))


def test_equality_refuses_to_ignore_what_does_not_exist():
    with pytest.raises(ValueError, match=r"nodes\.durr"):
        assert_trace_equal(example(), example(), ignore=["nodes.durr"])


@settings(suppress_health_check=list(HealthCheck))
@given(traces())
def test_drawn_traces_are_valid_and_equal_to_themselves(trace):
    check_trace(trace)
    assert_trace_equal(trace, trace)
    assert f"trace {dump(trace).splitlines()[0][6:]}" == dump(trace).splitlines()[0]


@pytest.mark.slow
@settings(suppress_health_check=list(HealthCheck))
@given(traces(max_ranks=2), traces(max_ranks=2))
def test_traces_are_equal_if_and_only_if_their_dumps_are(one, other):
    assume(one.nodes.num_rows or other.nodes.num_rows)
    try:
        assert_trace_equal(one, other)
    except AssertionError:
        assert dump(one) != dump(other)
    else:
        assert dump(one) == dump(other)


def _overruns(trace):
    ts, end = trace.array("ts"), trace.array("ts") + trace.array("dur")
    lane, kind = trace.array("lane"), trace.array("kind", "lanes")
    return any(
        lane[i] == lane[j] and kind[lane[i]] == LaneKind.THREAD and ts[i] < ts[j] < end[i] < end[j]
        for i in range(len(ts))
        for j in range(len(ts))
    )


def _overlaps_on_a_queue(trace):
    ts, end, lane = trace.array("ts"), trace.array("ts") + trace.array("dur"), trace.array("lane")
    queue = np.isin(trace.array("kind", "lanes")[lane], [LaneKind.STREAM, LaneKind.QUEUE])
    return any(
        queue[i] and lane[i] == lane[i + 1] and ts[i + 1] < end[i] for i in range(len(ts) - 1)
    )


FEATURES = {
    "several ranks": lambda t: len(t.ranks) > 1,
    "nesting": lambda t: (t.array("parent") >= 0).any(),
    "overruns": _overruns,
    "overlap on a queue": _overlaps_on_a_queue,
    "equal starts": lambda t: (np.diff(t.array("ts")) == 0).any(),
    "no duration": lambda t: (t.array("dur") == 0).any(),
    "times since 1970": lambda t: t.meta.origin_ns > 10**18 and t.nodes.num_rows,
    "one launch of two kernels": lambda t: _repeated(t, EdgeKind.LAUNCH),
    "forward to backward": lambda t: (t.array("kind", "edges") == EdgeKind.FWDBWD).any(),
    "edges between ranks": lambda t: (
        t.array("rank")[t.array("src", "edges")] != t.array("rank")[t.array("dst", "edges")]
    ).any(),
    "collectives with a group": lambda t: "group" in t.nodes.column_names,
    "counters": lambda t: t.counters.num_rows,
    "samples of the node": lambda t: (t.array("rank", "series") == -1).any(),
    "arguments": lambda t: any(t.args(row) for row in range(t.nodes.num_rows)),
    "empty names": lambda t: "" in t.names(),
    "names with a newline": lambda t: any("\n" in name for name in t.names()),
    "names that are not ASCII": lambda t: any(not name.isascii() for name in t.names()),
    "nothing": lambda t: not t.nodes.num_rows,
}


def _repeated(trace, kind):
    src = trace.array("src", "edges")[trace.array("kind", "edges") == kind]
    return len(src) > len(np.unique(src))


@pytest.mark.slow
def test_drawn_traces_have_features_that_break_readers_and_writers():
    seen = set()

    @seed(1)
    @settings(max_examples=50, deadline=None, phases=[Phase.generate], database=None,
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(traces())
    def collect(trace):
        seen.update(name for name in FEATURES.keys() - seen if FEATURES[name](trace))

    collect()
    assert seen == set(FEATURES)


@pytest.mark.parametrize(
    ("table", "column", "row", "value", "message"),
    [
        ("nodes", "kind", 0, 99, "not a value of schemas.kinds"),
        ("nodes", "lane", 0, 7, "not a row of lanes"),
        ("nodes", "parent", 1, -1, "not the innermost"),
        ("nodes", "parent", 1, 2, "not an earlier node of the same lane"),
        ("nodes", "parent", 1, -2, "not a row of nodes"),
        ("nodes", "dur", 0, -1, "negative"),
        ("nodes", "dur", 2, 3, "out of the order"),
        ("nodes", "group", 3, 1, "not a row of groups"),
        ("nodes", "args_len", 1, 99, "not in the text"),
        ("lanes", "rank", 0, 3, "another rank"),
        ("edges", "dst", 0, 4, "not a row of nodes"),
        ("samples", "series", 0, -1, "not a row of series"),
        ("samples", "ts", 0, 99, "out of the order"),
        ("counters", "node", 0, 12, "not a row of nodes"),
    ],
)
def test_broken_invariants_are_detected(table, column, row, value, message):
    check_trace(example())
    with pytest.raises(AssertionError, match=message):
        check_trace(_with(example(), table, column, row, value))


def test_events_neither_nodes_nor_counted_are_detected():
    with pytest.raises(AssertionError, match="5 events are not 4 nodes \\+ 0"):
        check_trace(example().with_meta(issues=()))


@pytest.fixture
def toy(tmp_path):
    """The plug-in's converter and a sample of its format."""
    path = Path(__file__).parents[1] / "plugin" / "chopper_toy.py"
    spec = importlib.util.spec_from_file_location("chopper_toy", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "a.toy.csv").write_text(TOY)
    return module.TOY, tmp_path / "a.toy.csv"


def test_good_converter_passes(toy):
    check_converter(*toy)
    converter, sample = toy
    check_converter(replace(converter, write=None), sample)


def test_option_of_a_literal_type_is_accepted(toy):
    converter, sample = toy

    def read(paths, *, shift: Literal["none", "all"] = "none"):
        return converter.read(paths, shift_us=0 if shift == "none" else 1)

    check_converter(replace(converter, read=read), sample)


def _altered(converter, change):
    def read(paths, *, shift_us: int = 0):
        return change(converter.read(paths, shift_us=shift_us))

    return replace(converter, read=read)


def _raises_when_cut(converter):
    def read(paths):
        if not paths[0].read_bytes().endswith(b"\n"):
            raise IndexError("list index out of range")
        return converter.read(paths)

    return replace(converter, read=read)


def _positional(converter):
    def read(paths, shift_us=0):
        return converter.read(paths, shift_us=shift_us)

    return replace(converter, read=read)


def _untyped(converter):
    def read(paths, *, shift_us=0):
        return converter.read(paths, shift_us=shift_us)

    return replace(converter, read=read)


def _list_option(converter):
    def read(paths, *, ranks: list[int] | None = None):
        return converter.read(paths) if ranks is None else None

    return replace(converter, read=read)


def _different_each_time(converter):
    turn = iter(range(1000))
    return _altered(converter, lambda t: t.with_meta(origin_ns=next(turn)))


def _forgets_durations(converter):
    def write(trace, path):
        zero = pa.array(np.zeros(trace.nodes.num_rows, np.int64))
        at = trace.nodes.schema.get_field_index("dur")
        nodes = trace.nodes.set_column(at, trace.nodes.schema.field(at), zero)
        converter.write(replace(trace, nodes=nodes), path)

    return replace(converter, write=write)


def _leaves_a_file(converter):
    def write(trace, path):
        converter.write(trace, path)
        path.with_suffix(".log").write_text("done")

    return replace(converter, write=write)


def _raising_sniff(head):
    return head.split(b"\n")[0] == b"#chopper-toy 1" and head[40] != 0


BAD_CONVERTERS = {
    "takes an empty file for its format": lambda c: replace(
        c,
        sniff=lambda head: (
            not head.strip(b"#chopper-toy 1\n,abcdefghijklmnopqrstuvwxyz_0123456789.")
        ),
    ),
    "does not recognise": lambda c: replace(c, sniff=lambda _: False),
    "json=True does not hold": lambda c: replace(c, json=True),
    "sniff raises IndexError": lambda c: replace(c, sniff=_raising_sniff),
    "reads but has no sniff": lambda c: replace(c, sniff=None),
    "no suffixes": lambda c: replace(c, suffixes=()),
    "must be keyword-only": _positional,
    "must be of bool": _untyped,
    "must be of bool, int, float, str": _list_option,
    "meta.origin_ns": _different_each_time,
    "must name its source": lambda c: _altered(c, lambda t: t.with_meta(sources=(), issues=())),
    "30 events are not 29": lambda c: _altered(
        c, lambda t: t.with_meta(sources=(replace(t.meta.sources[0], nodes=29),))
    ),
    "instead of a ChopperError": _raises_when_cut,
    "rows are lost and no issue reports it": lambda c: _altered(
        c,
        lambda t: t.with_meta(
            issues=(),
            sources=(replace(t.meta.sources[0], events=t.nodes.num_rows),),
        ),
    ),
    "nodes read back differ": _forgets_durations,
    "next to its output": _leaves_a_file,
}


@pytest.mark.parametrize("message", BAD_CONVERTERS)
def test_bad_converter_is_refused_with_the_reason(toy, message):
    converter, sample = toy
    with pytest.raises(AssertionError, match=message):
        check_converter(BAD_CONVERTERS[message](converter), sample)


def test_converter_that_only_recognises_passes():
    sample = Path(__file__).parents[1] / "plugin" / "pyproject.toml"
    known = Converter("build", "build settings", sniff=lambda head: head.startswith(b"[build-"))
    check_converter(known, sample)
    with pytest.raises(AssertionError, match="an empty list"):
        check_converter(replace(known, sniff=lambda head: head[:1] in (b"[", b"\x89")), sample)


def _good(trace, *, top: int = 3):
    dur = trace.array("dur")[:top]
    return Result("good", pa.table({"rank": [0], "longest_ns": [int(dur.max(initial=0))]}))


def _prints(trace):
    print("working")  # noqa: T201
    return _good(trace)


def _no_unit(trace):
    return Result("bad", pa.table({"power": [1.5]}), {"nodes": trace.nodes.num_rows})


def _no_unit_of_time(trace):
    return Result("bad", pa.table({"nodes": [trace.nodes.num_rows]}), {"busy_time": 3})


def _nan(_trace):
    return Result("bad", pa.table({"busy_share": [float("nan")]}))


def _writes_into_it(trace):
    if trace.text.buffers:
        trace.text.buffers[0][7] = ord("9")
    return _good(trace)


def _fails_without_nodes(trace):
    return Result("bad", pa.table({"longest_ns": [int(trace.array("dur").max())]}))


def _uses_conventions_for_notes(trace):
    notes = {"left out": f"{trace.nodes.num_rows} nodes"}
    return Result("bad", pa.table({"rank": [0]}), {}, notes)


def _counts_calls(trace, *, calls=[]):  # noqa: B006
    calls.append(trace)
    return Result("bad", pa.table({"calls": [len(calls)]}))


def _counts_calls_typed(trace, *, seed: int = 0):
    _counts_calls_typed.calls = getattr(_counts_calls_typed, "calls", seed) + 1
    return Result("bad", pa.table({"calls": [_counts_calls_typed.calls + 0 * trace.span_ns]}))


def test_good_analysis_passes():
    check_analysis(_good, example())


@pytest.mark.parametrize(
    ("analysis", "message"),
    [
        (lambda trace: trace.to_pandas(), "returns a DataFrame"),
        (_prints, "prints 'working"),
        (_no_unit, "column 'power' has no unit"),
        (_no_unit_of_time, "summary 'busy_time'"),
        (_nan, "not valid JSON"),
        (_writes_into_it, "changes the trace"),
        (_uses_conventions_for_notes, "conventions depend on the trace"),
        (_counts_calls, r"calls\) must be of"),
        (_counts_calls_typed, "returns different results"),
    ],
)
def test_bad_analysis_is_refused_with_the_reason(analysis, message):
    with pytest.raises(AssertionError, match=message):
        check_analysis(analysis, example())


def test_analysis_that_breaks_on_a_trace_without_nodes_fails():
    with pytest.raises(ValueError, match="zero-size"):
        check_analysis(_fails_without_nodes, example())

    def refuses(trace):
        if not trace.nodes.num_rows:
            raise ReadError("there is nothing to measure")
        return _good(trace)

    check_analysis(refuses, example())


def test_hypothesis_is_needed_for_strategies_only():
    code = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "import chopper_interop.testing\n"
        "try:\n    import chopper_interop.testing.strategies\n"
        "except ImportError:\n    print('refused')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def test_a_sample_that_is_no_path_is_named(toy) -> None:
    with pytest.raises(UsageError, match="and is of type bytes"):
        check_converter(toy[0], b"the bytes of a sample")

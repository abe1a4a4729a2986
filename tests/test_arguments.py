"""Arguments of many nodes, against what `json` decodes of each."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop import arguments
from chopper_interop.build import TraceBuilder, concat
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Meta

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

KEYS = ("Sequence number", "stream", "Input Dims", "ä\\", "")
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=6),
)
KEY = st.sampled_from(KEYS) | st.text(max_size=3)
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEY, v), max_leaves=5
)


def trace_with(objects: list[bytes], rank: int = 0) -> Trace:
    """A trace with a node for each object."""
    builder = TraceBuilder(meta=Meta())
    lane = builder.lane(rank, LaneKind.THREAD, 1, "thread 1")
    length = np.array([len(o) for o in objects], np.int64)
    begin = builder.text(np.frombuffer(b"".join(objects), np.uint8).copy())
    builder.nodes(
        kind=int(Kind.CPU_OP),
        name="op",
        rank=rank,
        lane=lane,
        ts=np.arange(len(objects), dtype=np.int64),
        dur=0,
        args=(begin + np.cumsum(length) - length, length),
    )
    return builder.finish()


@given(
    st.lists(
        st.lists(st.dictionaries(KEY, VALUES, max_size=4), min_size=1, max_size=6),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([None, 1]),
)
def test_values_are_those_that_json_decodes(
    ranks: list[list[dict[str, Any]]], indent: int | None
) -> None:
    traces = [
        trace_with(
            [json.dumps(o, ensure_ascii=False, indent=indent).encode() for o in objects],
            rank,
        )
        for rank, objects in enumerate(ranks)
    ]
    trace = concat(traces, Meta())
    objects = [o for part in ranks for o in part]
    nodes = np.arange(len(objects))
    for key in ("Sequence number", "stream", "Input Dims", ""):
        number, is_number = arguments.integers(trace, nodes, key)
        code, distinct = arguments.values(trace, nodes, key)
        text, names = arguments.texts(trace, nodes, key)
        for node, expected in enumerate(objects):
            assert (code[node] >= 0) == (key in expected)
            value = expected.get(key)
            if key in expected:
                assert distinct[code[node]] == value
            assert (names[text[node]] if text[node] >= 0 else None) == (
                value if isinstance(value, str) else None
            )
            if isinstance(value, int) and not isinstance(value, bool):
                assert is_number[node]
                assert number[node] == value


def test_several_keys_of_some_nodes() -> None:
    trace = trace_with([b'{"a": 1, "b": "x"}', b"{}", b'{"b": "\\u00e4", "a": "7"}'])
    (b,), (a, none) = arguments.find_with_integers(trace, np.array([2, 0]), ("b",), ("a", "c"))
    assert a.value.tolist() == [7, 1]
    assert not none.known.any()
    code, names = arguments.texts_at(trace.text, b)
    assert [names[k] for k in code] == ["ä", "x"]


def test_broken_objects_give_no_wrong_values() -> None:
    broken = [
        b'{"a": 1',
        b'{"a": }',
        b'{"a" 12}',
        b"[1]",
        b'{"a": nope}',
        b'{"a": 99999999999999999999}',
        b'{"x": "',
    ]
    number, known = arguments.integers(trace_with(broken), np.arange(len(broken)), "a")
    assert set(number[known].tolist()) <= {1}


def test_more_distinct_values_than_the_first_table_holds() -> None:
    trace = trace_with([b'{"a": "%d"}' % i for i in range(9000)])
    code, names = arguments.texts(trace, np.arange(9000), "a")
    assert [names[k] for k in code[::1000]] == [str(i) for i in range(0, 9000, 1000)]


def test_no_nodes_give_no_values() -> None:
    trace = trace_with([b"{}"])
    assert arguments.values(trace, np.array([], np.int64), "a")[1] == []
    assert arguments.integers(trace, np.array([0]), "a")[1].tolist() == [False]

"""Hypothesis strategy: any Kineto file that is proper JSON, however unusual its events."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from chopper_interop.schemas.categories import PYTORCH
from chopper_interop.testing.strategies import json_values, names

_TIMES = st.integers(0, 60) | st.integers(0, 60_000).map(lambda ns: ns / 1000)
_DURATIONS = st.just(0) | _TIMES | st.just(2**40)
_IDS = st.integers(0, 3)
_HOST = st.sampled_from([(100, 100), (100, 101), (0, 100)])
_DEVICE = st.sampled_from([(0, 7), (0, 20), (1, 7)])
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")
_LONG = st.integers(1, 3).map(lambda n: "x" * 10**n)


@st.composite
def _spans(draw: Any) -> dict[str, Any]:
    """A slice of any category; slices of a thread nest, overrun each other and begin together."""
    category = draw(st.sampled_from([*PYTORCH, "of another tool"]))
    on_device = category in _ON_DEVICE
    pid, tid = draw(_DEVICE if on_device else _HOST)
    args = draw(st.dictionaries(st.text(max_size=4), json_values() | _LONG, max_size=3))
    numbers = {"correlation": draw(_IDS), "External id": draw(_IDS)}
    numbers |= {"device": pid, "stream": tid} if on_device else {}
    chosen = draw(st.sampled_from([numbers, {}] if not on_device else [numbers]))
    return {
        "ph": "X", "cat": category, "name": draw(names() | _LONG), "pid": pid, "tid": tid,
        "ts": draw(_TIMES), "dur": draw(_DURATIONS), "args": args | chosen,
    }  # fmt: skip


@st.composite
def _others(draw: Any) -> dict[str, Any]:
    """An arrow, counter, instant, mark of memory, or name of a thread."""
    pid, tid = draw(_HOST)
    event = {"pid": pid, "tid": tid, "ts": draw(_TIMES), "name": draw(names())}
    more = draw(
        st.sampled_from([
            {"ph": "s", "cat": "ac2g", "id": draw(_IDS)},
            {"ph": "f", "cat": "ac2g", "id": draw(_IDS), "bp": "e"},
            {"ph": "s", "cat": "fwdbwd", "id": draw(_IDS)},
            {"ph": "f", "cat": "fwdbwd", "id": draw(_IDS), "bp": "e"},
            {"ph": "C", "args": {"a": draw(st.floats(-1e9, 1e9)), "b": draw(st.integers(-5, 5))}},
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "args": {"k": draw(names())}},
            {"ph": "i", "s": "t", "cat": "cpu_instant_event", "name": "[memory]",
             "args": {"Total Allocated": draw(st.integers(0, 9)), "Device Type": 1, "Device Id": 0, "Bytes": 4}},
            {"ph": "M", "name": "thread_name", "args": {"name": draw(names())}},
        ])
    )  # fmt: skip
    return event | more


def files(max_events: int = 14) -> st.SearchStrategy[dict[str, Any]]:
    """Draw documents of a Kineto file: header, and events in any order."""
    header = st.fixed_dictionaries(
        {"schemaVersion": st.just(1)},
        optional={
            "baseTimeNanoseconds": st.just(1_712_195_495_000_000_000),
            "distributedInfo": st.fixed_dictionaries({"rank": st.integers(0, 3), "world_size": st.just(4)}),
            "host_name": st.text(max_size=4), "trace_id": st.text(max_size=4),
            "deviceProperties": st.just([{"id": 0, "name": "AMD Instinct MI300X"}]),
        },
    )  # fmt: skip
    events = st.lists(_spans() | _spans() | _others(), min_size=1, max_size=max_events)
    return st.builds(lambda head, listed: {**head, "traceEvents": listed}, header, events)

"""Waits that CUPTI recorded, against the edges that are inferred without its records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import stream_waits

import chopper_interop as ci

if TYPE_CHECKING:
    from pathlib import Path

_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def compare(document: dict[str, Any], folder: Path, *, records: bool) -> stream_waits.Comparison:
    """Infer the waits of a Kineto file without its cuda_sync events.

    Parameters
    ----------
    folder
        Where the file without them is written.
    records
        Calls that record events are kept.
    """
    events = [e for e in document["traceEvents"] if e.get("ph") == "X"]
    calls = {_number(e): e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    work = {_number(e): e for e in events if e.get("cat") in _WORK and _number(e) in calls}
    stream = {number: e["args"]["stream"] for number, e in work.items()}
    launched = sorted(work, key=lambda number: calls[number])
    edges = set()
    for wait in (e["args"] for e in events if e["name"] == "Stream Wait Event"):
        at = calls.get(_number({"args": wait}))
        awaited = wait.get("wait_on_stream", -1)
        if at is None or awaited < 0:
            continue
        event = calls.get(wait.get("wait_on_cuda_event_record_corr_id", -1), at)
        before = [n for n in launched if stream[n] == awaited and calls[n] <= event]
        behind = [n for n in launched if stream[n] == wait["stream"] and calls[n] >= at]
        if before and behind:
            edges.add((before[-1], behind[0]))
    left_out = ("cudaEventRecord", "cudaEventRecordWithFlags")
    kept = [
        e
        for e in document["traceEvents"]
        if e.get("cat") != "cuda_sync" and (records or e.get("name") not in left_out)
    ]
    path = folder / "trace.json"
    path.write_text(json.dumps(document | {"traceEvents": kept}))
    inferred = stream_waits.inferred(ci.read(path), 0)
    result = stream_waits.Comparison()
    result.add(edges, edges, {e for e in inferred if set(e) <= set(stream)}, stream)
    return result


def _number(event: dict[str, Any]) -> int:
    return int(event.get("args", {}).get("correlation", -1))

"""Division of a job: sizes of tensor, pipeline, data, context and expert parallelism."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from chopper_interop.analyses.methods.communication import group_names, stages
from chopper_interop.schemas.meta import WORLD_SIZE
from chopper_interop.trace import Trace

SIZES = ("dp", "tp", "pp", "cp", "ep")
_SIZED = {*SIZES, group_names.REPLICATE, group_names.SHARD}
_WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")
_WORLD = ("default_pg", "default_group")


def sizes(trace: Trace) -> dict[str, int]:
    """Sizes by process groups, of pipelines also by sends between ranks; unknown ones are missing."""
    degrees: dict[str, int] = {}
    for group in trace.groups.to_pylist():
        for text in (group["description"], group["name"]):
            size = len(group["ranks"] or ())
            # groups of several kinds at once are none
            of_group = group_names.parallelism_kinds(text)
            for kind in of_group & _SIZED if size and len(of_group) == 1 else ():
                degrees[kind] = max(degrees.get(kind, 0), size)
    parts = [
        degrees.pop(kind) for kind in (group_names.REPLICATE, group_names.SHARD) if kind in degrees
    ]
    if parts and "dp" not in degrees:
        degrees["dp"] = int(np.prod(parts))
    if "pp" not in degrees and (
        pipelines := stages.complete_pipelines(trace, stages.first_kernel_starts(trace))
    ):
        degrees["pp"] = max(len(pipeline.stages) for pipeline in pipelines)
    return degrees


def world_size(trace: Trace) -> int | None:
    """Number of ranks of the job, in the trace or not; None if unknown."""
    sizes_of_groups = [
        len(group["ranks"] or ())
        for group in trace.groups.to_pylist()
        if group["description"] in _WORLD
    ]
    stated = _WHOLE_NUMBER.fullmatch(trace.meta.facts.get(WORLD_SIZE, ""))
    return max([*sizes_of_groups, int(stated[0]) if stated else 0]) or None


def is_part(trace: Trace) -> bool:
    """True if the job has more ranks than were read."""
    return (world_size(trace) or 0) > len(trace.ranks)


def unread_ranks(trace: Trace) -> dict[str, str]:
    """Note on the ranks of the job that were not read; none if all were, or if their number is not known."""
    world = world_size(trace) or 0
    unread = world - len(trace.ranks)
    text = "others may be later than those that were read, and waits for them stay as measured"
    return (
        {"ranks that were not read": f"{unread:,} of the job's {world:,}: {text}"}
        if unread > 0
        else {}
    )


def completed(degrees: dict[str, Any], world: int | None) -> dict[str, Any]:
    """Sizes with that of data parallelism, where it follows from the others."""
    known = [degrees.get(name, 1) for name in ("tp", "pp", "cp")]
    part = int(np.prod(known))
    if "dp" in degrees or world is None or not {"tp", "pp"} <= degrees.keys() or world % part:
        return degrees
    return degrees | {"dp": world // part}

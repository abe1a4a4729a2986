"""What stands before and behind the events of a Kineto file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from chopper_interop.clocks import relations
from chopper_interop.files.outputs import MARK
from chopper_interop.schemas.meta import REALTIME

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import ClockFit
    from chopper_interop.trace import Trace

CLOCK = "chopper_clock"
"""What the times in a file of ours are on, if not on real time, for which Kineto has no words."""
FITS = "chopper_clocks"
"""How the clocks of ranks and sources were brought together, in a file of ours."""
_OWN_KEYS = {
    "schemaVersion",
    "written_by",
    CLOCK,
    FITS,
    "deviceProperties",
    "distributedInfo",
    "displayTimeUnit",
    "baseTimeNanoseconds",
    "traceEvents",
    "traceName",
}
"""Keys that are no facts."""


def head(trace: Trace, ranks: list[int], base_ns: int) -> bytes:
    """Everything up to the first event.

    Parameters
    ----------
    trace
        The trace.
    ranks
        The ranks in the file.
    base_ns
        What the events' times count from, epoch nanoseconds.
    """
    hosts = {r.host for r in trace.meta.ranks if r.rank in ranks}
    content: dict[str, Any] = {"schemaVersion": 1, "written_by": MARK}
    if trace.meta.clock != REALTIME:
        content[CLOCK] = trace.meta.clock
    mine = [fit for fit in trace.meta.clocks if relations.rank_of(fit) in (-1, *ranks)]
    if mine:
        content[FITS] = relations.to_json(mine)
    content["deviceProperties"] = _devices(trace, hosts)
    if len(hosts - {""}) == 1:
        content["host_name"] = max(hosts)
    for name, value in trace.meta.facts.items():
        if name not in _OWN_KEYS:
            content[name] = int(value) if _is_number(value) else value
    content["distributedInfo"] = _distributed(trace, ranks)
    content |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    return _json(content)[:-1] + b',\n"traceEvents":[\n'


def is_ours(header: dict[str, Any]) -> bool:
    """Whether a file with this header was written by this package."""
    return header.get("written_by") == MARK


def clock(header: dict[str, Any]) -> str:
    """The clock that a file of ours says its times are on; empty for others and for real time."""
    told = header.get(CLOCK)
    return told if is_ours(header) and isinstance(told, str) and told.isprintable() else ""


def fits(header: dict[str, Any]) -> tuple[ClockFit, ...]:
    """How clocks were brought together, as a file of ours says; nothing for others."""
    return relations.from_json(header.get(FITS)) if is_ours(header) else ()


def tail(name: str) -> bytes:
    """Everything behind the last event."""
    return b'\n],\n"traceName":' + _json(name) + b"}\n"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text[:18])) == text


def _devices(trace: Trace, hosts: set[str]) -> list[dict[str, Any]]:
    """GPUs of these ranks' machines, each number once; all if nobody knows the machines."""
    devices: dict[int, dict[str, Any]] = {}
    for device in trace.meta.devices:
        if hosts == {""} or device.host in ("", *hosts):
            devices.setdefault(device.device, {"id": device.device, "name": device.name})
    return list(devices.values())


def _distributed(trace: Trace, ranks: list[int]) -> dict[str, Any]:
    """Rank, number of ranks and process groups.

    A group of which nobody knows the members says that nobody knows the number of ranks.
    """
    groups = _groups(trace, ranks)
    info: dict[str, Any] = {"backend": next((g["backend"] for g in groups if g["backend"]), "")}
    if len(ranks) == 1:
        info["rank"] = ranks[0]
    known = {*trace.ranks, *(rank for g in groups for rank in g["ranks"])}
    if known and all(g["ranks"] for g in groups):
        info["world_size"] = max(known) + 1
    info["pg_count"] = len(groups)
    info["pg_config"] = [
        {
            "pg_name": g["name"],
            "pg_desc": g["description"],
            "backend_config": g["backend"],
            "pg_size": len(g["ranks"]),
            "ranks": g["ranks"],
        }
        for g in groups
    ]
    return info


def _groups(trace: Trace, ranks: list[int]) -> list[dict[str, Any]]:
    """Process groups, of each name one: that of a rank in the file, where several have it."""
    chosen: dict[str, dict[str, Any]] = {}
    for group in trace.groups.to_pylist():
        first = chosen.setdefault(group["name"], group)
        if not set(ranks) & set(first["ranks"]) and set(ranks) & set(group["ranks"]):
            chosen[group["name"]] = group
    return list(chosen.values())


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()

"""The members of a Kineto file before and after its list of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chopper_interop.clocks import relations
from chopper_interop.converters.kineto.json_text import json_bytes
from chopper_interop.io.outputs import MARK
from chopper_interop.schemas.meta import REALTIME

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import ClockFit
    from chopper_interop.trace import Trace

CLOCK = "chopper_clock"
"""Key of the clock that the times of a file written here are on, if it is not real time."""
FITS = "chopper_clocks"
"""Key of the relations between clocks of ranks and sources, in a file written here."""
_NOT_FACTS = {
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
"""Keys that are written from something else than the trace's facts."""


def head(trace: Trace, ranks: list[int], base_ns: int) -> bytes:
    """Return everything up to the first event.

    Parameters
    ----------
    trace
        The trace.
    ranks
        Ranks in the file.
    base_ns
        Time that the events' times count from, in nanoseconds since 1970.
    """
    hosts = {r.host for r in trace.meta.ranks if r.rank in ranks}
    content: dict[str, Any] = {"schemaVersion": 1, "written_by": MARK}
    if trace.meta.clock != REALTIME:
        content[CLOCK] = trace.meta.clock
    clock_fits = [fit for fit in trace.meta.clocks if relations.rank_of(fit) in (-1, *ranks)]
    if clock_fits:
        content[FITS] = relations.to_json(clock_fits)
    content["deviceProperties"] = _devices(trace, hosts)
    if len(hosts - {""}) == 1:
        content["host_name"] = max(hosts)
    for name, value in trace.meta.facts.items():
        if name not in _NOT_FACTS:
            content[name] = int(value) if _is_number(value) else value
    content["distributedInfo"] = _distributed(trace, ranks)
    content |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    return json_bytes(content)[:-1] + b',\n"traceEvents":[\n'


def is_written_here(header: dict[str, Any]) -> bool:
    """True if a file with this header was written by this package."""
    return header.get("written_by") == MARK


def clock(header: dict[str, Any]) -> str:
    """Return the clock of a file written here; empty for real time and for all other files."""
    stated = header.get(CLOCK)
    valid = is_written_here(header) and isinstance(stated, str) and stated.isprintable()
    return str(stated) if valid else ""


def fits(header: dict[str, Any]) -> tuple[ClockFit, ...]:
    """Return the relations between clocks in a file written here; none for all other files."""
    return relations.from_json(header.get(FITS)) if is_written_here(header) else ()


def tail(name: str) -> bytes:
    """Return everything after the last event."""
    return b'\n],\n"traceName":' + json_bytes(name) + b"}\n"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and str(int(text[:18])) == text


def _devices(trace: Trace, hosts: set[str]) -> list[dict[str, Any]]:
    """Describe the GPUs of these ranks' machines, each number once; all if no machine is known."""
    devices: dict[int, dict[str, Any]] = {}
    for device in trace.meta.devices:
        if hosts == {""} or device.host in ("", *hosts):
            devices.setdefault(device.device, {"id": device.device, "name": device.name})
    return list(devices.values())


def _distributed(trace: Trace, ranks: list[int]) -> dict[str, Any]:
    """Return rank, number of ranks and process groups.

    With a group of unknown members, which may be any ranks, the number of ranks is unknown too.
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
    """Select one process group of each name: of several, one with a rank in the file."""
    by_name: dict[str, dict[str, Any]] = {}
    for group in trace.groups.to_pylist():
        selected = by_name.setdefault(group["name"], group)
        if not set(ranks) & set(selected["ranks"]) and set(ranks) & set(group["ranks"]):
            by_name[group["name"]] = group
    return list(by_name.values())

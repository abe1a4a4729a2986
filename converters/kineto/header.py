"""The members of a Kineto file before and after its list of events, and the GPUs that they list.

GPUs are listed as HIP and CUDA count them. So do events, except roctracer's: their numbers are of HSA
agents, among which the processors come first, so that an equal number is of another GPU or of none.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgspec

from chopper_interop.clocks import relations
from chopper_interop.converters.kineto.strict_json_text import json_bytes
from chopper_interop.converters.kineto.trace_file import MAX_ID, whole_number
from chopper_interop.io.outputs import MARK
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.hub import MAX_RANK
from chopper_interop.schemas.meta import REALTIME, ClockFit, Device
from chopper_interop.trace import Trace

PRODUCT_UNKNOWN = Fault.loss(
    "product-of-device-unknown",
    "Files list GPUs of several products, and events have HSA agents, "
    "which do not determine which of these they ran on: they are without a product.",
)

CLOCK = "chopper_clock"
"""Key of the clock that the times of a file written here are on, if it is not real time."""
FITS = "chopper_clocks"
"""Key of the relations between clocks of ranks and sources, in a file written here."""
_NOT_FACTS = {
    "schemaVersion", "written_by", CLOCK, FITS, "deviceProperties", "distributedInfo",
    "displayTimeUnit", "baseTimeNanoseconds", "traceEvents", "traceName",
}  # fmt: skip
"""Keys that are written from something else than the trace's facts."""
_MAX_CAPABILITY = 99
"""Of each part of a compute capability; chosen: far above all that exist (12.1 in 2025)."""
_NVIDIA = re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE)


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
        content[FITS] = msgspec.to_builtins(clock_fits)
    content["deviceProperties"] = _devices(trace, hosts)
    if len(hosts - {""}) == 1:
        content["host_name"] = max(hosts)
    for name, value in trace.meta.facts.items():
        if name not in _NOT_FACTS:
            content[name] = int(value) if _is_number(value) else value
    content |= {"displayTimeUnit": "ms", "baseTimeNanoseconds": base_ns}
    # with blanks, as Kineto writes it: HTA finds the rank of a file by the pattern `"rank":\s+`
    distributed = json_bytes(_distributed(trace, ranks), separators=(", ", ": "))
    members = (b'"distributedInfo": ' + distributed, b'"traceEvents":[\n')
    return b",\n".join((json_bytes(content)[:-1], *members))


def world_size(header: dict[str, Any]) -> int | None:
    """Return the number of ranks of the job that a file is of, if it says so."""
    info = header.get("distributedInfo")
    return (
        whole_number(info.get("world_size"), maximum=MAX_RANK) if isinstance(info, dict) else None
    )


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


def listed_devices(header: dict[str, Any], host: str) -> tuple[Device, ...]:
    """GPUs that a file lists, by the list's numbers.

    Parameters
    ----------
    header
        The file's header.
    host
        The machine's name; empty if not known.
    """
    properties = header.get("deviceProperties")
    listed = enumerate(properties if isinstance(properties, list) else [])
    return tuple(_listed_device(host, i, d) for i, d in listed if isinstance(d, dict))


def devices_of_events(
    listed: tuple[Device, ...], used: list[int], header: dict[str, Any], issues: IssueLog
) -> tuple[Device, ...]:
    """GPUs that a file lists, by the numbers in its events.

    HSA agents with work are described by the list if that is certain: all listed GPUs are of one
    product, or as many are listed as have work, which are then matched in order.

    Parameters
    ----------
    listed
        `listed_devices` of the file.
    used
        Numbers of the devices with work in its events, ascending; -1 for an unknown one.
    header
        The file's header.
    issues
        Receives `PRODUCT_UNKNOWN` if the GPUs cannot be matched.
    """
    agents = [n for n in used if n >= 0]
    if not agents or not _counts_agents(header, listed, agents):
        return listed
    if len(listed) == 1 or len({replace(d, device=-1) for d in listed}) == 1:
        first = listed[0]
        return tuple(first if n == first.device else replace(first, device=n) for n in agents)
    if len(agents) == len(listed):
        in_order = sorted(listed, key=lambda d: d.device)
        return tuple(replace(d, device=n) for d, n in zip(in_order, agents, strict=True))
    issues.add(PRODUCT_UNKNOWN, len(agents))
    return ()


def _counts_agents(header: dict[str, Any], listed: tuple[Device, ...], numbers: list[int]) -> bool:
    """True if events have HSA agents; agent 0 is a processor, and files written here have none."""
    if not listed or 0 in numbers or is_written_here(header):
        return False
    amd = "roctracer_version" in header or any(d.name.startswith("AMD ") for d in listed)
    return amd and "rocprofiler-sdk_version" not in header


def _listed_device(host: str, index: int, properties: dict[str, Any]) -> Device:
    number = whole_number(properties.get("id"), maximum=MAX_ID)
    name = str(properties.get("name", ""))
    major, minor = (
        whole_number(properties.get(f"compute{part}"), maximum=_MAX_CAPABILITY)
        for part in ("Major", "Minor")
    )
    units = whole_number(properties.get("numSms"), maximum=MAX_ID)
    return Device(
        host,
        index if number is None else number,
        name,
        "kineto",
        arch=f"sm_{major}{minor}" if _NVIDIA.match(name) and major and minor is not None else "",
        cus=units or -1,
    )


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

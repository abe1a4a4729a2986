"""GPUs that a Kineto file lists, under the numbers that its events have for them.

The list counts as HIP and CUDA do. So do events, but for roctracer's: these have HSA agents, among
which processors come first, so that an equal number is of another GPU or of none.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chopper_interop.converters import kineto_header
from chopper_interop.converters.kineto_numbers import MOST_NUMBER, whole
from chopper_interop.gpus.devices import used
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

NOT_TOLD = Fault(
    "product-of-device-unknown",
    Severity.LOSS,
    "Files list GPUs of several products, and events have HSA agents, which do not tell which of "
    "these they ran on: they are without a product.",
)

_PARTS = ("Major", "Minor")
_NVIDIA = re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE)


def listed(header: dict[str, Any], host: str) -> tuple[Device, ...]:
    """The GPUs that a file lists, by its own numbers.

    Parameters
    ----------
    header
        What stands around the events.
    host
        The machine's name; empty if not known.
    """
    properties = header.get("deviceProperties")
    found = enumerate(properties if isinstance(properties, list) else [])
    return tuple(_device(host, i, d) for i, d in found if isinstance(d, dict))


def numbered(trace: Trace, header: dict[str, Any], issues: IssueLog) -> tuple[Device, ...]:
    """The GPUs that a file lists, by the numbers in its events.

    Of HSA agents those with work are described: if all that are listed are alike, as these; else in
    order, if each listed one has work; else none is.

    Parameters
    ----------
    trace
        What was read, with `listed` in its meta data.
    header
        What stands around the events.
    issues
        Is told if nothing tells which GPU is which.
    """
    known = trace.meta.devices
    agents = [n for n in used(trace) if n >= 0]
    if not agents or not _counts_agents(header, known, agents):
        return known
    if len({replace(d, device=-1) for d in known}) == 1:
        return tuple(replace(known[0], device=n) for n in agents)
    if len(agents) == len(known):
        in_order = sorted(known, key=lambda d: d.device)
        return tuple(replace(d, device=n) for d, n in zip(in_order, agents, strict=True))
    issues.add(NOT_TOLD, len(agents))
    return ()


def _counts_agents(header: dict[str, Any], known: tuple[Device, ...], numbers: list[int]) -> bool:
    """Whether events have HSA agents, of which the first is a processor; no file of ours does."""
    if not known or 0 in numbers or kineto_header.is_ours(header):
        return False
    amd = "roctracer_version" in header or any(d.name.startswith("AMD ") for d in known)
    return amd and "rocprofiler-sdk_version" not in header


def _device(host: str, place: int, properties: dict[str, Any]) -> Device:
    number = whole(properties.get("id"), most=MOST_NUMBER)
    name = str(properties.get("name", ""))
    major, minor = (whole(properties.get(f"compute{part}"), most=99) for part in _PARTS)
    units = whole(properties.get("numSms"), most=MOST_NUMBER)
    return Device(
        host,
        place if number is None else number,
        name,
        "kineto",
        arch=f"sm_{major}{minor}" if _NVIDIA.match(name) and major and minor is not None else "",
        cus=units or -1,
    )

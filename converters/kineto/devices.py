"""GPUs that a Kineto file lists, under the numbers that its events have for them.

The list counts GPUs as HIP and CUDA do. So do events, except roctracer's: their numbers are of HSA
agents, among which the processors come first, so that an equal number is of another GPU or of none.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.kineto import header as kineto_header
from chopper_interop.converters.kineto.numbers import MAX_ID, whole_number
from chopper_interop.gpus.devices import devices_with_work
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog
    from chopper_interop.trace import Trace

PRODUCT_UNKNOWN = Fault(
    "product-of-device-unknown",
    Severity.LOSS,
    "Files list GPUs of several products, and events have HSA agents, which do not determine which "
    "of these they ran on: they are without a product.",
)

_MAX_CAPABILITY = 99
"""Of each part of a compute capability; chosen: far above all that exist (12.1 in 2025)."""
_NVIDIA = re.compile(r"NVIDIA|Tesla|GeForce|Quadro", re.IGNORECASE)


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
    return tuple(_device(host, i, d) for i, d in listed if isinstance(d, dict))


def devices_of_events(trace: Trace, header: dict[str, Any], issues: IssueLog) -> tuple[Device, ...]:
    """GPUs that a file lists, by the numbers in its events.

    HSA agents with work are described by the list if that is certain: all listed GPUs are of one
    product, or as many are listed as have work, which are then matched in order.

    Parameters
    ----------
    trace
        The trace, with `listed_devices` in its meta data.
    header
        The file's header.
    issues
        Receives `PRODUCT_UNKNOWN` if the GPUs cannot be matched.
    """
    listed = trace.meta.devices
    agents = [n for n in devices_with_work(trace) if n >= 0]
    if not agents or not _counts_agents(header, listed, agents):
        return listed
    if len({replace(d, device=-1) for d in listed}) == 1:
        return tuple(replace(listed[0], device=n) for n in agents)
    if len(agents) == len(listed):
        in_order = sorted(listed, key=lambda d: d.device)
        return tuple(replace(d, device=n) for d, n in zip(in_order, agents, strict=True))
    issues.add(PRODUCT_UNKNOWN, len(agents))
    return ()


def _counts_agents(header: dict[str, Any], listed: tuple[Device, ...], numbers: list[int]) -> bool:
    """True if events have HSA agents; agent 0 is a processor, and files written here have none."""
    if not listed or 0 in numbers or kineto_header.is_written_here(header):
        return False
    amd = "roctracer_version" in header or any(d.name.startswith("AMD ") for d in listed)
    return amd and "rocprofiler-sdk_version" not in header


def _device(host: str, index: int, properties: dict[str, Any]) -> Device:
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

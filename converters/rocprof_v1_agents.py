"""What a trace of rocprof v1 tells of the node's GPUs: ``otherData``, as ``rocminfo`` says it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from chopper_interop.converters import rocprof_v1_json
from chopper_interop.converters.rocprof_agents import hardware, id_of, number_in, pci_of
from chopper_interop.files import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace

_BEGIN = b'"otherData"'
_TOLD = re.compile(r'"Agent(?P<agent>\d{1,4})\.(?P<what>[^"\n]{1,80})"\s*:\s*"(?P<value>[^"\n]*)"')
_FACTS = {
    "Name": "gfx",
    "ComputeUnit": "cu_count",
    "SIMDsperCU": "simd_per_cu",
    "MaxClockFreq.(MHz)": "max_engine_clk_mhz",
}
"""What rocminfo says, without blanks → names of facts, as of rocprofv3's agents."""


def described(trace: Trace, paths: list[Path]) -> Trace:
    """The trace with what its files tell of its GPUs, which they number as agents or from 0."""
    told = [gpus for p in paths if rocprof_v1_json.sniff(inputs.head(p)) for gpus in [_gpus(p)]]
    if not any(told):
        return trace
    known = {node: facts for gpus in told for node, facts in gpus.items()}
    counted = dict(enumerate(known[node] for node in sorted(known)))
    made = (
        _with(d, known.get(d.agent) if d.agent >= 0 else counted.get(d.ordinal))
        for d in trace.meta.devices
    )
    return trace.with_meta(devices=tuple(made))


def _gpus(path: Path) -> dict[int, dict[str, str]]:
    """What is told of each GPU, by the number of its node."""
    data = inputs.read(path).tobytes()
    begin = data.rfind(_BEGIN)
    text = data[begin:].decode("utf-8", "replace") if begin >= 0 else ""
    agents: dict[str, dict[str, str]] = {}
    for found in _TOLD.finditer(text):
        agents.setdefault(found["agent"], {}).setdefault(found["what"], found["value"])
    return {
        node: facts
        for facts in agents.values()
        if facts.get("DeviceType") == "GPU"
        and (node := id_of(number_in(facts.get("Node", "")))) >= 0
    }


def _with(device: Device, facts: dict[str, str] | None) -> Device:
    if facts is None:
        return device
    told = {fact: facts[what] for what, fact in _FACTS.items() if what in facts}
    uuid = facts.get("Uuid", "")
    return replace(
        device,
        name=device.name or facts.get("MarketingName", ""),
        uuid=device.uuid or (uuid if uuid.startswith("GPU-") and len(uuid) > len("GPU-XX") else ""),
        pci=device.pci or pci_of(number_in(facts.get("BDFID", "")), 0),
        **hardware(told),
    )

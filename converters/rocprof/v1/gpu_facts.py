"""Facts of the node's GPUs in traces of rocprof v1: ``otherData``, by ``rocminfo``."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from chopper_interop.converters.rocm.agents import hardware_fields, number_in, pci_address, valid_id
from chopper_interop.converters.rocm.sniff import is_v1_json
from chopper_interop.io import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace

_BEGIN = b'"otherData"'
_ENTRY = re.compile(r'"Agent(?P<agent>\d{1,4})\.(?P<key>[^"\n]{1,80})"\s*:\s*"(?P<value>[^"\n]*)"')
_FACTS = {
    "Name": "gfx",
    "ComputeUnit": "cu_count",
    "SIMDsperCU": "simd_per_cu",
    "MaxClockFreq.(MHz)": "max_engine_clk_mhz",
}
"""Keys of rocminfo, without blanks → names of facts, as of rocprofv3's agents."""


def with_gpu_facts(trace: Trace, paths: list[Path]) -> Trace:
    """Add the files' facts of GPUs to the devices, which are numbered as agents or from 0."""
    by_file = [_gpu_entries(path) for path in paths if is_v1_json(inputs.head(path))]
    if not any(by_file):
        return trace
    by_agent = {node: entries for gpus in by_file for node, entries in gpus.items()}
    by_ordinal = dict(enumerate(by_agent[node] for node in sorted(by_agent)))
    devices = (
        _with_facts(d, by_agent.get(d.agent) if d.agent >= 0 else by_ordinal.get(d.ordinal))
        for d in trace.meta.devices
    )
    return trace.with_meta(devices=tuple(devices))


def _gpu_entries(path: Path) -> dict[int, dict[str, str]]:
    """Return the entries of each GPU, by the number of its node."""
    data = inputs.read(path).tobytes()
    begin = data.rfind(_BEGIN)
    text = data[begin:].decode("utf-8", "replace") if begin >= 0 else ""
    agents: dict[str, dict[str, str]] = {}
    for entry in _ENTRY.finditer(text):
        agents.setdefault(entry["agent"], {}).setdefault(entry["key"], entry["value"])
    return {
        node: entries
        for entries in agents.values()
        if entries.get("DeviceType") == "GPU"
        and (node := valid_id(number_in(entries.get("Node", "")))) >= 0
    }


def _with_facts(device: Device, entries: dict[str, str] | None) -> Device:
    if entries is None:
        return device
    facts = {fact: entries[key] for key, fact in _FACTS.items() if key in entries}
    uuid = entries.get("Uuid", "")
    return replace(
        device,
        name=device.name or entries.get("MarketingName", ""),
        uuid=device.uuid or (uuid if uuid.startswith("GPU-") and len(uuid) > len("GPU-XX") else ""),
        pci=device.pci or pci_address(number_in(entries.get("BDFID", "")), 0),
        **hardware_fields(facts),
    )

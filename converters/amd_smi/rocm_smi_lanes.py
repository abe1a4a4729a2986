"""Names of rocm-smi's values, and their lanes: those of amd-smi where they mean the same.

``GPU memory use (%)`` of releases before 6.0 is ``GPU Memory Read/Write Activity (%)`` of later
ones: the share of time in which the memory is busy. The share of it that is allocated is
``GPU Memory Allocated (VRAM%)``. ``GFX Activity`` and
``Memory Activity`` are counters. ``--showmetrics``, of which ``-a`` is since ROCm 6, shows the
driver's ``gpu_metrics`` table, with a unit behind each name.
"""

from __future__ import annotations

import re
from dataclasses import replace

from chopper_interop.converters.amd_smi.lanes import BUSY
from chopper_interop.converters.amd_smi.recorder_lanes import GPU_METRICS
from chopper_interop.converters.sampling.lane_names import Kind, LaneTable, SeriesRule

CLOCKS = {
    "sclk": "gfx clock", "mclk": "memory clock", "fclk": "fabric clock", "socclk": "soc clock",
    "dcefclk": "dcef clock", "vclk0?": "vclk", "dclk0?": "dclk",
}  # fmt: skip

_LANES = (
    SeriesRule(
        r"(?:Average|Current Socket|Socket)? ?(?:Graphics Package|Socket) Power \(W\)|power_watts",
        "socket power",
        "W",
    ),
    SeriesRule(
        r"Max Graphics Package Power \(W\)|power_cap_watts", "power limit", "W", Kind.STEADY
    ),
    SeriesRule(
        r"Temperature \(Sensor junction\) \(C\)|temp_junction_celsius", "temperature hotspot", "°C"
    ),
    SeriesRule(
        r"Temperature(?: \(Sensor edge\) \(C\))?|temp_edge_celsius", "temperature edge", "°C"
    ),
    SeriesRule(
        r"Temperature \(Sensor mem(?:ory)?\) \(C\)|temp_memory_celsius", "temperature memory", "°C"
    ),
    SeriesRule(
        r"Temperature \(Sensor HBM (?P<n>\d+)\) \(C\)", "temperature HBM stack", "°C", part=""
    ),
    SeriesRule(r"Temperature \((?:Sensor )?(?P<what>[\w ]+)\) ?\(C\)", "temperature {what}", "°C"),
    SeriesRule(r"GPU use \(%\)|gpu_use_percent", "GFX activity", "%"),
    SeriesRule(
        r"GPU memory use \(%\)|GPU Memory Read/Write Activity \(%\)", "memory activity", "%"
    ),
    SeriesRule(r"GPU Memory Allocated \(VRAM%\)", "VRAM used share", "%"),
    SeriesRule(r"GFX[ _]Activity", "GFX activity counter"),
    SeriesRule(r"Memory[ _]Activity", "memory activity counter"),
    SeriesRule(r"Avg\.? Memory Bandwidth", "memory bandwidth"),
    SeriesRule(r"Accumulated Energy \(uJ\)", "energy", "J", bare="uJ"),
    SeriesRule(r"Energy counter", "energy counter"),
    SeriesRule(r"VRAM Total Memory \(B\)|vram_total_bytes", "VRAM total", "B", Kind.STEADY),
    SeriesRule(r"VRAM Total Used Memory \(B\)|vram_used_bytes", "VRAM used", "B"),
    SeriesRule(r"VIS_VRAM Total Memory \(B\)", "visible VRAM total", "B", Kind.STEADY),
    SeriesRule(r"VIS_VRAM Total Used Memory \(B\)", "visible VRAM used", "B"),
    SeriesRule(r"GTT Total Memory \(B\)", "GTT total", "B", Kind.STEADY),
    SeriesRule(r"GTT Total Used Memory \(B\)", "GTT used", "B"),
    *(SeriesRule(rf"{key} clock speed", name, "MHz") for key, name in CLOCKS.items()),
    SeriesRule(r"(?P<what>\w+) clock speed", "{what}", "MHz"),
    SeriesRule(r"Voltage \(mV\)", "voltage gfx", "mV"),
    SeriesRule(r"PCIe Replay Count", "PCIe replay count", "", Kind.STEADY),
    SeriesRule(r"Fan Speed \(%\)|Fan Level \(%\)", "fan usage", "%"),
    SeriesRule(r"Fan Speed \(level\)|Fan Level", "fan speed"),
    SeriesRule(r"Fan RPM", "fan rotation", "RPM"),
    SeriesRule(r"GPU OverDrive value \(%\)", "overdrive", "%", Kind.STEADY),
    SeriesRule(r"GPU Memory OverDrive value \(%\)", "memory overdrive", "%", Kind.STEADY),
)
LANES = LaneTable(
    *(replace(lane, key=f"(?i:{lane.key})") for lane in _LANES),
    *(replace(lane, key=rf"{lane.key}(?: \(.*\))?") for lane in GPU_METRICS),
    *(
        replace(lane, key=rf"(?:XCP\[(?P<xcp>\d+)\] )?xcp_stats\.{lane.key}(?: \(.*\))?")
        for lane in BUSY
    ),
)
"""All keys that are known, in whatever case, and those of ``--showmetrics``, with or without units."""

NAMES = {
    "name": r"Device Name|Card Series|Card Model",
    "pci": r"PCI Bus",
    "uuid": r"Unique ID",
    "agent": r"Node ID",
}
"""Field of `Device` → keys that hold it; the first that does counts."""

FACTS = {
    "gfx": (r"GFX Version", None),
    "compute_partition": (r"Compute Partition", None),
    "memory_partition": (r"Memory Partition", None),
    "driver_version": (r"Driver version", None),
    "power_cap_w": (r"Max Graphics Package Power \(W\)", "W"),
    "vram_bytes": (r"VRAM Total Memory \(B\)", "B"),
}
"""Fact → key that holds it, and its unit (None for words)."""
OF_CARDS = (*"|".join(NAMES.values()).split("|"), *(key for key, _ in FACTS.values()))
"""Keys of names and facts."""
LEVELS = {"sclk": "gfx", "mclk": "memory", "fclk": "fabric", "socclk": "soc"}
"""Clocks whose levels are facts → their names."""

DESCRIBING = re.compile(
    r"(?i).*(?:firmware|vbios) version|driver version|serial number|guid|node id|unique id|"
    r"device (?:id|rev|name)|gpu id|subsystem.*|card .*|pci bus|gfx version|.*vendor|"
    r"partitions|(?:compute|memory) partition.*|sku|performance level|pcie clock level|"
    r"\w+ clock level|supported .*|od_\w+|vddc\w*(?:\[\d\])?|sclk|mclk|valid .*|"
    r"\d+|S|not supported.*|get_\w+.*|pid ?\d+|numa .*|\(topology\).*|.*\(xgmi\).*|xgmi error.*|"
    r"metric version.*|(?:system_clock_counter|firmware_timestamp|gfxclk_lock_status).*"
)
"""Keys of what is no value in time, although it may be a number."""

MARKS = re.compile(
    r"(?i)\(C\)|Graphics Package Power|GPU use|clock (?:speed|level)|VRAM|GPU memory|Device Name|"
    r"Device ID|Card (?:series|model)|Unique ID|PCI Bus|Fan (?:Speed|RPM)|Voltage|"
    r"Performance Level|Energy|GFX |power_watts|celsius|gpu_use|Driver version|PCIe Replay|"
    r"Partition|VBIOS|GUID|Serial Number|Memory Activity|OverDrive"
)
"""Something that a key of rocm-smi holds."""

"""Names of DCGM's fields in ``dcgmi dmon``, and the names of their lanes.

dcgmi heads its columns with a short name of about five letters for each field id that was asked
for (``-e 155,203,1004``); the names are DCGM's own (``dcgm_fields.cpp``, 2.x to 4.x) and do not
change between versions. Units stand in the line below, for those that have any.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from chopper_interop.converters.nvidia_smi.nvml_lanes import DRAW, INSTANT
from chopper_interop.converters.sampling.lane_names import Kind, Name, SeriesRule

_GAUGE, _STEADY = Kind.GAUGE, Kind.STEADY

HEADER = re.compile(r"#\s*Entity\b", re.IGNORECASE)
"""Start of the line of names."""


@dataclass(frozen=True)
class Field:
    """A field of DCGM.

    Parameters
    ----------
    id
        Its number, what ``-e`` takes.
    lane
        Name of the lane.
    unit
        Unit of the lane.
    kind
        See `Kind`.
    bare
        Unit of cells whose column names none.
    """

    id: int
    lane: str
    unit: str = ""
    kind: Kind = _GAUGE
    bare: str = ""


FIELDS: dict[str, Field] = {
    "SMCLK": Field(100, "gfx clock", "MHz"),
    "MMCLK": Field(101, "memory clock", "MHz"),
    "VICLK": Field(102, "video clock", "MHz"),
    "SACLK": Field(110, "gfx clock application", "MHz", _STEADY),
    "MACLK": Field(111, "memory clock application", "MHz", _STEADY),
    "DVCCTR": Field(112, "throttle reasons active", "", _STEADY),
    "SMMAX": Field(113, "gfx clock max", "MHz", _STEADY),
    "MMMAX": Field(114, "memory clock max", "MHz", _STEADY),
    "MMTMP": Field(140, "temperature memory", "°C"),
    "TMPTR": Field(150, "temperature GPU", "°C"),
    "GTLIMIT": Field(153, "temperature GPU below limit", "°C"),
    "POWER": Field(155, DRAW, "W"),
    "TOTEC": Field(156, "energy", "J", bare="mJ"),
    "POWINST": Field(157, INSTANT, "W"),
    "SDTMP": Field(158, "temperature GPU slowdown", "°C", _STEADY),
    "SHTMP": Field(159, "temperature GPU shutdown", "°C", _STEADY),
    "PMLMT": Field(160, "power limit", "W", _STEADY),
    "PMMIN": Field(161, "power limit min", "W", _STEADY),
    "PMMAX": Field(162, "power limit max", "W", _STEADY),
    "PMDEF": Field(163, "power limit default", "W", _STEADY),
    "EPLMT": Field(164, "power limit enforced", "W", _STEADY),
    "PSTAT": Field(190, "performance state", "", _STEADY),
    "FANSP": Field(191, "fan usage", "%"),
    "TXTPT": Field(200, "PCIe bandwidth sent", "Mb/s", bare="KB/s"),
    "RXTPT": Field(201, "PCIe bandwidth received", "Mb/s", bare="KB/s"),
    "RPCTR": Field(202, "PCIe replay count", "", _STEADY),
    "GPUTL": Field(203, "GFX activity", "%"),
    "MCUTL": Field(204, "memory activity", "%"),
    "ECUTL": Field(206, "encoder activity", "%"),
    "DCUTL": Field(207, "decoder activity", "%"),
    "XIDER": Field(230, "XID error", "", _STEADY),
    "PCIMG": Field(235, "PCIe generation max", "", _STEADY),
    "PCIMW": Field(236, "PCIe width max", "", _STEADY),
    "PCILG": Field(237, "PCIe generation", "", _STEADY),
    "PCILW": Field(238, "PCIe width"),
    "PVIOL": Field(240, "throttle time power", "ns"),
    "TVIOL": Field(241, "throttle time thermal", "ns"),
    "SBVIO": Field(242, "throttle time sync boost", "ns"),
    "BLVIO": Field(243, "throttle time board limit", "ns"),
    "LUVIO": Field(244, "throttle time low utilization", "ns"),
    "RVIOL": Field(245, "throttle time reliability", "ns"),
    "FBTTL": Field(250, "VRAM total", "B", _STEADY, bare="MiB"),
    "FBFRE": Field(251, "VRAM free", "B", bare="MiB"),
    "FBUSD": Field(252, "VRAM used", "B", bare="MiB"),
    "FBRSV": Field(253, "VRAM reserved", "B", bare="MiB"),
    "FBUSP": Field(254, "VRAM used share", "%", bare="ratio"),
    "ESVTL": Field(310, "ECC total correctable", "", _STEADY),
    "EDVTL": Field(311, "ECC total uncorrectable", "", _STEADY),
    "ESATL": Field(312, "ECC total correctable aggregate", "", _STEADY),
    "EDATL": Field(313, "ECC total uncorrectable aggregate", "", _STEADY),
    "NBWLT": Field(449, "NVLink bandwidth", "Mb/s", bare="MB/s"),
    "GRACT": Field(1001, "GFX active", "%", bare="ratio"),
    "SMACT": Field(1002, "SM active", "%", bare="ratio"),
    "SMOCC": Field(1003, "SM occupancy", "%", bare="ratio"),
    "TENSO": Field(1004, "tensor active", "%", bare="ratio"),
    "DRAMA": Field(1005, "DRAM active", "%", bare="ratio"),
    "FP64A": Field(1006, "FP64 active", "%", bare="ratio"),
    "FP32A": Field(1007, "FP32 active", "%", bare="ratio"),
    "FP16A": Field(1008, "FP16 active", "%", bare="ratio"),
    "PCITX": Field(1009, "PCIe bandwidth sent", "Mb/s", bare="B/s"),
    "PCIRX": Field(1010, "PCIe bandwidth received", "Mb/s", bare="B/s"),
    "NVLTX": Field(1011, "NVLink bandwidth sent", "Mb/s", bare="B/s"),
    "NVLRX": Field(1012, "NVLink bandwidth received", "Mb/s", bare="B/s"),
    "TIMMA": Field(1013, "tensor IMMA active", "%", bare="ratio"),
    "THMMA": Field(1014, "tensor HMMA active", "%", bare="ratio"),
    "TDFMA": Field(1015, "tensor DFMA active", "%", bare="ratio"),
    "INTAC": Field(1016, "integer active", "%", bare="ratio"),
    "NVDEC0": Field(1017, "NVDEC 0 active", "%", bare="ratio"),
    "NVJPG0": Field(1025, "NVJPG 0 active", "%", bare="ratio"),
    "NVOFA0": Field(1033, "NVOFA 0 active", "%", bare="ratio"),
}
"""Short name → the field. Fields that are not here keep their short name and their unit."""

WORDS = frozenset({"DVNAM", "DVBRN", "UUID#", "PCBID", "SRNUM", "VBVER", "DRVER", "NVVER"})
"""Columns that hold no numbers."""


def meaning(key: str) -> Name | None:
    """Return the meaning of a column; None if it is not in the table."""
    field = FIELDS.get(key)
    if field is None:
        return None
    lane = SeriesRule(key, field.lane, field.unit, field.kind)
    return Name(lane, field.lane, field.lane)


def unit_of(key: str, written: str) -> str:
    """Unit of a column's cells: what stands in the line of units, or what DCGM documents.

    Fractions have none there, and memory is stated in MB where NVML has MiB.
    """
    field = FIELDS.get(key)
    if field is None:
        return written.strip("#")
    return field.bare if written in ("", "#", "MB") else written

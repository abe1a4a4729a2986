"""Lanes of amd-smi's values in versions 5.7.1 to 7.x.

A key is the name of a CSV column. Paths of JSON are converted to the same names (see
`json`), and names that are ambiguous without their section have a prefix: ``temperature.mem``
and ``monitor.mem``, ``pcie.speed`` and ``fan.speed``. The first entry that matches a key applies.
"""

from __future__ import annotations

from dataclasses import replace

from chopper_interop.converters.sampling import lane_names
from chopper_interop.converters.sampling.lane_names import (
    ACTIVITY,
    SHARE,
    STATUS,
    Kind,
    LaneTable,
    Name,
    SeriesRule,
)

CAUSES = {
    "prochot": "PROCHOT",
    "ppt": "PPT",
    "socket_thermal": "socket thermal",
    "vr_thermal": "VR thermal",
    "hbm_thermal": "HBM thermal",
    "gfx_clk_below_host_limit": "gfx clock below host limit",
    "gfx_clk_below_host_limit_power": "gfx clock below host limit by power",
    "gfx_clk_below_host_limit_thermal": "gfx clock below host limit by heat",
    "total_gfx_clk_below_host_limit": "gfx clock below host limit in total",
    "low_utilization": "low utilization",
}
"""Causes that limit a clock, by amd-smi's names since 6.3."""

MONITOR_CAUSES = {
    "pviol": "ppt",
    "tviol": "socket_thermal",
    "phot_tviol": "prochot",
    "vr_tviol": "vr_thermal",
    "hbm_tviol": "hbm_thermal",
    "gfx_clkviol": "gfx_clk_below_host_limit",
    "gfxclk_pviol": "gfx_clk_below_host_limit_power",
    "gfxclk_tviol": "gfx_clk_below_host_limit_thermal",
    "gfxclk_totalviol": "total_gfx_clk_below_host_limit",
    "low_utilviol": "low_utilization",
}
"""Names of the same causes in ``amd-smi monitor``."""

_XCP = r"(?:_xcp_(?P<xcp>\d+))?"


def _throttle() -> list[SeriesRule]:
    lanes = [SeriesRule("accumulation_counter", "accumulation counter", kind=Kind.TICKS)]
    for key, cause in CAUSES.items():
        residency = f"{key}_accumulated{_XCP}"
        lanes += [
            SeriesRule(residency, SHARE + cause, "%", Kind.RESIDENCY, each="XCD"),
            SeriesRule(f"{key}_violation_activity{_XCP}", ACTIVITY + cause, "%", each="XCD"),
            SeriesRule(f"{key}_violation_status{_XCP}", STATUS + cause, "", Kind.STATE, each="XCD"),
        ]
    for column, key in MONITOR_CAUSES.items():
        lanes.append(SeriesRule(column, ACTIVITY + CAUSES[key], "%", each="XCD"))
    lanes.append(SeriesRule("tviol_active", STATUS + CAUSES["socket_thermal"], "", Kind.STATE))
    lanes.append(SeriesRule("throttle_status", "throttle status", "", Kind.STATE))
    return lanes


def _clock(key: str, name: str, part: str = "") -> list[SeriesRule]:
    """Lanes of a clock whose keys are ``<key>_clk``, ``<key>_min_clk``, ``<key>_max_clk``."""
    return [
        SeriesRule(f"{key}_(?:cur_)?clk", name, "MHz", part=part),
        SeriesRule(f"{key}_(?P<what>min|max)_clk", name + " {what}", "MHz", Kind.STEADY, part),
        SeriesRule(f"{key}_sleep_clk", name + " in sleep", "MHz", Kind.STEADY, part),
    ]


_CLOCKS = [
    SeriesRule(r"(?:gfx_)?cur_clk|gfx_clock|gfx_clk", "gfx clock", "MHz"),
    SeriesRule(r"(?P<what>min|max)_clk", "gfx clock {what}", "MHz", Kind.STEADY),
    SeriesRule(r"sleep_clk", "gfx clock in sleep", "MHz", Kind.STEADY),
    SeriesRule(r"mem_clock", "memory clock", "MHz"),
    SeriesRule(r"vclock|encoder_clock", "vclk", "MHz"),
    SeriesRule(r"dclock|decoder_clock", "dclk", "MHz"),
    SeriesRule(r"uclk_aid_aid_(?P<n>\d+)", "memory clock", "MHz", part="AID"),
    SeriesRule(r"socclks_mid_mid_(?P<n>\d+)", "soc clock", "MHz", part="MID"),
    *_clock(r"gfx_(?P<n>\d+)", "gfx clock", "XCD"),
    *_clock(r"gfx", "gfx clock"),
    *_clock(r"(?:mem|MEM)(?:_(?P<n>\d+))?", "memory clock"),
    *_clock(r"fclk_(?P<n>\d+)", "fabric clock"),
    *_clock(r"socclk_(?P<n>\d+)", "soc clock"),
    *_clock(r"(?:vclk_|VCLK)(?P<n>\d+)", "vclk"),
    *_clock(r"(?:dclk_|DCLK)(?P<n>\d+)", "dclk"),
]

_POWER = [
    SeriesRule(
        r"(?:current_|average_)?socket_power|current_power|power_usage", "socket power", "W"
    ),
    SeriesRule(r"power_limit|max_power", "power limit", "W", Kind.STEADY),
    SeriesRule(r"ubb_power", "UBB power", "W"),
    SeriesRule(r"(?:current_)?(?P<what>gfx|soc|mem)_voltage", "voltage {what}", "mV"),
    SeriesRule(r"vddboard", "voltage board", "mV"),
    SeriesRule(r"total_energy_consumption", "energy", "J"),
]

BUSY = (
    SeriesRule("gfx_busy_inst", "GFX busy", "%", each="XCD"),
    SeriesRule("gfx_busy_acc", "GFX busy accumulated", "%", each="XCD"),
    SeriesRule("jpeg_busy", "JPEG busy", "%", each="engine"),
    SeriesRule("vcn_busy", "VCN busy", "%", each="engine"),
)
"""Values of each partition."""

_USAGE = [
    SeriesRule(r"gfx_activity|gfx_usage|gfx", "GFX activity", "%"),
    SeriesRule(r"umc_activity|usage\.mem_usage|monitor\.mem", "memory activity", "%"),
    SeriesRule(r"mm_activity|mm_ip_usage|mm_usage_list", "multimedia activity", "%"),
    SeriesRule(r"vcn_activity", "VCN activity", "%"),
    SeriesRule(r"jpeg_activity", "JPEG activity", "%"),
    *(replace(rule, key=rule.key + _XCP) for rule in BUSY),
    SeriesRule(r"encoder", "encoder activity", "%"),
    SeriesRule(r"decoder", "decoder activity", "%"),
]

_TEMPERATURE = [
    SeriesRule(r"edge", "temperature edge", "°C"),
    SeriesRule(r"hotspot|hotspot_temperature", "temperature hotspot", "°C"),
    SeriesRule(r"temperature\.mem|memory_temperature", "temperature memory", "°C"),
    SeriesRule(r"hbm_stacks", "temperature HBM stack", "°C"),
    SeriesRule(r"(?P<what>mid|aid)", "temperature {what}", "°C"),
    SeriesRule(rf"xcd{_XCP}", "temperature", "°C", each="XCD"),
    SeriesRule(r"(?P<what>(?:NODE|UBB|OAM|RETIMER|IBC|VDD)[A-Z0-9_]*)", "temperature {what}", "°C"),
]

_PCIE = r"l0_to_recovery|replay_roll_over|nak_sent|nak_received|lc_perf_other_end_recovery"
_ERRORS = r"correctable|uncorrectable|deferred"
_OTHERS = [
    SeriesRule(r"width|current_lanes", "PCIe width"),
    SeriesRule(r"pcie\.speed|current_speed", "PCIe speed", "GT/s"),
    SeriesRule(r"bandwidth|pcie_bw", "PCIe bandwidth", "Mb/s"),
    SeriesRule(r"current_bandwidth_(?P<what>sent|received)", "PCIe bandwidth {what}", "Mb/s"),
    SeriesRule(r"max_packet_size", "PCIe packet size max", "B", Kind.STEADY),
    SeriesRule(r"replay_count|pcie_replay", "PCIe replay count", "", Kind.STEADY),
    SeriesRule(rf"(?P<what>{_PCIE})(?:_count)?", "PCIe {what} count", "", Kind.STEADY),
    SeriesRule(r"single_bit_ecc", "ECC total correctable", "", Kind.STEADY),
    SeriesRule(r"double_bit_ecc", "ECC total uncorrectable", "", Kind.STEADY),
    SeriesRule(rf"(?P<what>(?:\w+_)?(?:{_ERRORS}))(?:_count)?", "ECC {what}", "", Kind.STEADY),
    SeriesRule(r"fan\.speed", "fan speed"),
    SeriesRule(r"fan\.max", "fan speed max", "", Kind.STEADY),
    SeriesRule(r"fan\.usage", "fan usage", "%"),
    SeriesRule(r"rpm", "fan rotation", "RPM"),
    SeriesRule(
        r"point_(?P<n>\d+)_frequency", "voltage curve frequency", "MHz", Kind.STEADY, "point"
    ),
    SeriesRule(r"point_(?P<n>\d+)_voltage", "voltage curve voltage", "mV", Kind.STEADY, "point"),
    SeriesRule(r"(?P<what>overdrive|mem_overdrive)", "{what}", "%", Kind.STEADY),
]

_MEMORY = [
    SeriesRule(r"vram_used", "VRAM used", "B", bare="MB", decimal="GB"),
    SeriesRule(r"vram_free", "VRAM free", "B", bare="MB", decimal="GB"),
    SeriesRule(r"vram_total", "VRAM total", "B", Kind.STEADY, bare="MB", decimal="GB"),
    SeriesRule(r"vram_percent", "VRAM used share", "%"),
    SeriesRule(r"(?P<what>used|free)_vram", "VRAM {what}", "B", bare="MB"),
    SeriesRule(r"total_vram", "VRAM total", "B", Kind.STEADY, bare="MB"),
    SeriesRule(r"(?P<what>used|free)_visible_vram", "visible VRAM {what}", "B", bare="MB"),
    SeriesRule(r"total_visible_vram", "visible VRAM total", "B", Kind.STEADY, bare="MB"),
    SeriesRule(r"(?P<what>used|free)_gtt", "GTT {what}", "B", bare="MB"),
    SeriesRule(r"total_gtt", "GTT total", "B", Kind.STEADY, bare="MB"),
]

LANES = LaneTable(
    *_POWER,
    *_USAGE,
    *_CLOCKS,
    *_TEMPERATURE,
    *_throttle(),
    *_MEMORY,
    *_OTHERS,
)
"""All known keys. ``MB`` and ``GB`` of amd-smi are powers of 1024; the default
``monitor`` of 6.4 and later gives GB with one decimal, every other form whole MB."""


def meaning(key: str) -> Name | None:
    """Look a key up; None if the table does not have it."""
    return lane_names.meaning(key, LANES)

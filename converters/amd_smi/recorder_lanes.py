"""Lanes of the recorder's columns, which have the names of AMD's ``gpu_metrics`` table.

Names by ``amdsmi_get_gpu_metrics_info`` (gpu_metrics 1.3 to 1.8): energy counts 2^-16 J, PCIe speed
0.1 GT/s, residencies firmware intervals of 1 ms, XGMI traffic KB, its speed Gb/s. PCIe's bandwidth keeps its name and has
no unit: amdsmi.h says GB/s of what its function for PCIe states as Mb/s.
"""

from __future__ import annotations

import csv

from chopper_interop.converters.amd_smi.lanes import CAUSES
from chopper_interop.converters.sampling.lane_names import SHARE, Kind, LaneTable, SeriesRule

REALTIME, MONOTONIC, BOOTTIME = "realtime_ns", "monotonic_ns", "boottime_ns"
"""Clocks that the recorder reads for each row."""
SAMPLED_AT = "system_clock_counter"
"""The driver's own time of the sample, nanoseconds on the clock since boot."""
GPU = "gpu"
INTEGERS = (REALTIME, MONOTONIC, BOOTTIME, SAMPLED_AT, GPU)
"""Columns of integers, which must not go through floating point."""

_N = r"(?:_(?P<n>\d+))?"
_RESIDENCIES = {
    "prochot": "prochot",
    "ppt": "ppt",
    "socket_thm": "socket_thermal",
    "vr_thm": "vr_thermal",
    "hbm_thm": "hbm_thermal",
}
"""Name in gpu_metrics → name in `CAUSES`."""

_CLOCKS = {
    "gfxclk": ("gfx clock", "XCD"), "uclk": ("memory clock", ""), "socclk": ("soc clock", ""),
    "fclk": ("fabric clock", ""), "vclk0": ("vclk", ""), "dclk0": ("dclk", ""),
    "vclk1": ("vclk1", ""), "dclk1": ("dclk1", ""),
}  # fmt: skip

_PCIE_COUNTS = {
    "replay_count_acc": "replay",
    "replay_rover_count_acc": "replay rollover",
    "l0_to_recov_count_acc": "L0 to recovery",
    "nak_sent_count_acc": "NAK sent",
    "nak_rcvd_count_acc": "NAK received",
    "lc_perf_other_end_recovery": "other end recovery",
}
"""Name in gpu_metrics → word of the lane, as of amd-smi's own output."""


def _clocks() -> list[SeriesRule]:
    lanes = []
    for key, (name, part) in _CLOCKS.items():
        lanes += [
            SeriesRule(rf"current_{key}s?{_N}", name, "MHz", part=part, each=part),
            SeriesRule(rf"average_{key}_frequency", f"{name} average", "MHz"),
        ]
    return lanes


_NVML = [
    SeriesRule(r"nvml_power", "socket power", "W"),
    SeriesRule(r"nvml_power_draw", "socket power draw", "W"),
    SeriesRule(r"nvml_power_average", "socket power average", "W"),
    SeriesRule(r"nvml_energy", "energy", "J", bare="mJ"),
    SeriesRule(r"nvml_sm_clock", "gfx clock", "MHz"),
    SeriesRule(r"nvml_memory_clock", "memory clock", "MHz"),
    SeriesRule(r"nvml_temperature", "temperature GPU", "°C"),
    SeriesRule(r"nvml_temperature_memory", "temperature memory", "°C"),
    SeriesRule(r"nvml_throttle_reasons", "throttle reasons active", "", Kind.STEADY),
    SeriesRule(r"nvml_utilization_gpu", "GFX activity", "%"),
    SeriesRule(r"nvml_utilization_memory", "memory activity", "%"),
]
"""Columns of GPUs of NVIDIA, with the lanes that the other readers of NVML's values use."""
HOST = "host_"
_HOST = [
    SeriesRule(rf"{HOST}cpu_percent", "host CPU activity", "%"),
    SeriesRule(rf"{HOST}memory_(?P<what>used|free)", "host memory {what}", "B"),
]
"""Columns of the node, in the rows of its first GPU."""

GPU_METRICS = (
    SeriesRule(r"(?:current_|average_)?socket_power", "socket power", "W"),
    SeriesRule(r"energy_accumulator", "energy", "J", bare="2^-16 J"),
    SeriesRule(r"(?:average_)?gfx_activity", "GFX activity", "%"),
    SeriesRule(r"(?:average_)?umc_activity", "memory activity", "%"),
    SeriesRule(r"(?:average_)?mm_activity", "multimedia activity", "%"),
    SeriesRule(rf"vcn_activity{_N}", "VCN activity", "%"),
    SeriesRule(rf"jpeg_activity{_N}", "JPEG activity", "%"),
    SeriesRule(r"temperature_mem", "temperature memory", "°C"),
    SeriesRule(rf"temperature_hbm{_N}", "temperature HBM stack", "°C"),
    SeriesRule(r"temperature_(?P<what>edge|hotspot|vrgfx|vrsoc|vrmem)", "temperature {what}", "°C"),
    SeriesRule(r"voltage_(?P<what>gfx|soc|mem)", "voltage {what}", "mV"),
    *_clocks(),
    SeriesRule(r"accumulation_counter", "accumulation counter", kind=Kind.TICKS),
    *(
        SeriesRule(f"{key}_residency_acc", SHARE + CAUSES[cause], "%", Kind.RESIDENCY)
        for key, cause in _RESIDENCIES.items()
    ),
    SeriesRule(r"pcie_link_width", "PCIe width"),
    SeriesRule(r"pcie_link_speed", "PCIe speed", "GT/s", bare="0.1 GT/s"),
    *(
        SeriesRule(f"pcie_{key}", f"PCIe {name} count", "", Kind.STEADY)
        for key, name in _PCIE_COUNTS.items()
    ),
    SeriesRule(r"xgmi_link_width", "XGMI width"),
    SeriesRule(r"xgmi_link_speed", "XGMI speed", "Mb/s", bare="Gb/s"),
    *(
        SeriesRule(rf"xgmi_{key}_data_acc_(?P<what>\d+)", f"{name} link {{what}}", "B", bare="KB")
        for key, name in (("read", "XGMI read"), ("write", "XGMI written"))
    ),
    SeriesRule(r"current_fan_speed", "fan rotation", "RPM"),
)
"""Members of the driver's ``gpu_metrics`` table."""

LANES = LaneTable(
    *_NVML,
    *_HOST,
    *GPU_METRICS,
    SeriesRule(r"vram_(?P<what>used|free)(?:_bytes)?", "VRAM {what}", "B"),
    SeriesRule(r"vram_total(?:_bytes)?", "VRAM total", "B", Kind.STEADY),
    SeriesRule(
        r"(?:common_header[._])?(?P<what>structure_size|format_revision|content_revision)",
        "gpu_metrics {what}",
        "",
        Kind.STEADY,
    ),
)
"""All known columns."""

DEVICE_CLOCKS = ("firmware_timestamp",)
"""Columns that count a device's own time, whose relation to other clocks is unknown."""


def names_of(line: bytes) -> list[str]:
    """Parse the names of the columns from the first line."""
    text = line.decode("utf-8", "replace").strip().lstrip("\ufeff")
    try:
        return [name.strip() for name in next(csv.reader([text]), [])]
    except csv.Error:
        return []


def is_recorder(names: list[str]) -> bool:
    """True if these columns are a recorder's: real time, a GPU, and another clock."""
    return {REALTIME, GPU} <= set(names) and bool({MONOTONIC, BOOTTIME} & set(names))

"""Names of nvidia-smi's values, and the names of their lanes, which all tools share.

Names are compared in lower case with an underscore for everything that is no letter or digit:
``clocks.current.sm`` of ``--query-gpu`` is ``clocks_current_sm``; ``Clocks`` / ``SM`` of ``-q`` is
``clocks_sm``, the element ``<clocks><sm_clock>`` of ``-x`` is ``clocks_sm_clock``; columns of
``dmon`` begin with ``dmon_``. The first entry that matches holds.
"""

from __future__ import annotations

import re
from functools import lru_cache

from chopper_interop.converters.nvidia_smi import nvml_lanes
from chopper_interop.converters.sampling import lane_names
from chopper_interop.converters.sampling.lane_names import Kind, LaneTable, Name, SeriesRule

_POWER_OF = r"(?:gpu_|module_)?power_readings_"
_POWER = [
    SeriesRule(r"power_draw_instant|(?:gpu_)?power_readings_instant(?:aneous)?_power_draw",
        nvml_lanes.INSTANT, "W"),
    SeriesRule(r"power_draw_average|(?:gpu_)?power_readings_average_power_draw", nvml_lanes.AVERAGE, "W"),
    SeriesRule(r"power_draw(?:_w|_watts)?|(?:gpu_)?power_readings_power_draw|dmon_pwr"
        r"|(?:gpu_)?power(?:_w|_watts?|_usage)?(?:_w|_watts?)?|watts", nvml_lanes.DRAW, "W"),
    SeriesRule(r"(?:gpu_)?power(?:_draw|_usage)?_(?:mw|milliwatts?)", nvml_lanes.DRAW, "W", bare="mW"),
    SeriesRule(r"module_power_draw_average|module_power_readings_average_power_draw",
        "module power average", "W"),
    SeriesRule(r"module_power_draw_instant|module_power_readings_instant(?:aneous)?_power_draw",
        "module power", "W"),
    SeriesRule(r"module_power_readings_power_draw", "module power", "W"),
    SeriesRule(rf"enforced_power_limit|{_POWER_OF}enforced_power_limit", "power limit enforced", "W",
        Kind.STEADY),
    SeriesRule(rf"power_limit(?:_w|_watts)?|{_POWER_OF}(?:current_)?power_limit", "power limit", "W",
        Kind.STEADY),
    SeriesRule(r"power_(?P<what>default|min|max)_limit", "power limit {what}", "W", Kind.STEADY),
    SeriesRule(rf"{_POWER_OF}(?P<what>default|min|max)_power_limit", "power limit {what}", "W",
        Kind.STEADY),
]  # fmt: skip

_USAGE = [
    SeriesRule(r"(?:utilization_gpu|gpu_utilization|gpu_util|gpu_usage|util_gpu|utilization_gpu_util|sm_util|dmon_sm)"
        r"(?:_percent|_pct)?|util(?:ization)?_(?:percent|pct)", "GFX activity", "%"),
    SeriesRule(r"(?:utilization_memory|memory_utilization|mem(?:ory)?_util|util_mem(?:ory)?"
        r"|gpu_mem(?:ory)?_util(?:ization)?|utilization_memory_util|dmon_mem|utilization_mem)(?:_percent|_pct)?", "memory activity", "%"),
    SeriesRule(r"utilization_encoder(?:_util)?|dmon_enc|enc_util", "encoder activity", "%"),
    SeriesRule(r"utilization_decoder(?:_util)?|dmon_dec|dec_util", "decoder activity", "%"),
    SeriesRule(r"utilization_jpeg(?:_util)?|dmon_jpg|jpg_util", "JPEG activity", "%"),
    SeriesRule(r"utilization_ofa(?:_util)?|dmon_ofa|ofa_util", "OFA activity", "%"),
]  # fmt: skip

_CLOCKS = [
    SeriesRule(r"clocks(?:_current)?_sm(?:_clock)?|sm_clock(?:_mhz)?|clock_sm(?:_mhz)?", nvml_lanes.SM,
        "MHz"),
    SeriesRule(r"clocks(?:_current)?_(?:gr|graphics)(?:_clock)?|graphics_clock(?:_mhz)?"
        r"|clock_graphics(?:_mhz)?|dmon_pclk", nvml_lanes.GRAPHICS, "MHz"),
    SeriesRule(r"clocks(?:_current)?_(?:mem|memory)(?:_clock)?|mem(?:ory)?_clock(?:_mhz)?"
        r"|clock_mem(?:ory)?(?:_mhz)?|dmon_mclk", "memory clock", "MHz"),
    SeriesRule(r"clocks(?:_current)?_video(?:_clock)?", "video clock", "MHz"),
    SeriesRule(r"clocks_max_sm|max_clocks_sm(?:_clock)?", "gfx clock max", "MHz", Kind.STEADY),
    SeriesRule(r"clocks_max_(?:gr|graphics)|max_clocks_graphics(?:_clock)?", "graphics clock max", "MHz",
        Kind.STEADY),
    SeriesRule(r"clocks_max_(?:mem|memory)|max_clocks_mem(?:ory)?(?:_clock)?", "memory clock max", "MHz",
        Kind.STEADY),
]  # fmt: skip

_TEMPERATURE = [
    SeriesRule(r"temperature_gpu(?:_current_temp|_temp)?|(?:gpu_)?temp(?:erature)?(?:_c|_celsius)?"
        r"|temperature_gpu_(?:c|celsius)|dmon_g?temp", "temperature GPU", "°C"),
    SeriesRule(r"temp(?:erature)?_mem(?:ory)?(?:_current_temp|_temp|_c)?|mem_temp(?:_c)?|dmon_mtemp",
        "temperature memory", "°C"),
    SeriesRule(r"temperature_gpu_t_?limit(?:_temp)?", "temperature GPU below limit", "°C"),
]  # fmt: skip

_FB = r"mem_|memory_|fb_memory_usage_|gpu_memory_|gpu_mem_"
_MEMORY = [
    SeriesRule(rf"(?:{_FB})(?P<what>used|free|reserved)(?:_mi?b)?", "VRAM {what}", "B", bare="MiB"),
    SeriesRule(r"dmon_fb|fb_mem(?:ory)?(?:_mi?b)?", "VRAM used", "B", bare="MiB"),
    SeriesRule(r"dmon_bar1|bar1_mem(?:ory)?(?:_mi?b)?", "BAR1 used", "B", bare="MiB"),
    SeriesRule(rf"(?:{_FB})total(?:_mi?b)?", "VRAM total", "B", Kind.STEADY, bare="MiB"),
    SeriesRule(r"bar1_memory_usage_(?P<what>used|free)", "BAR1 {what}", "B", bare="MiB"),
    SeriesRule(r"bar1_memory_usage_total", "BAR1 total", "B", Kind.STEADY, bare="MiB"),
    SeriesRule(r"dmon_ccpm|ccpm_mem(?:ory)?(?:_mi?b)?", "protected memory used", "B", bare="MiB"),
]

_LINK = r"(?:pci_)?(?:gpu_link_info_)?(?:pci_gpu_link_info_)?"
_PCIE = [
    SeriesRule(rf"pcie_link_gen_(?:gpu)?current|{_LINK}pcie_gen(?:eration)?_(?:current|current_link_gen)",
        "PCIe generation", "", Kind.STEADY),
    SeriesRule(rf"pcie_link_gen_max|{_LINK}pcie_gen(?:eration)?_(?:max|max_link_gen)",
        "PCIe generation max", "", Kind.STEADY),
    SeriesRule(rf"pcie_link_width_current|{_LINK}link_widths?_(?:current|current_link_width)",
        "PCIe width"),
    SeriesRule(rf"pcie_link_width_max|{_LINK}link_widths?_(?:max|max_link_width)", "PCIe width max", "",
        Kind.STEADY),
    SeriesRule(r"pci_tx_(?:util|throughput)|dmon_txpci|dmon_pcitx", "PCIe bandwidth sent", "Mb/s"),
    SeriesRule(r"pci_rx_(?:util|throughput)|dmon_rxpci|dmon_pcirx", "PCIe bandwidth received", "Mb/s"),
    SeriesRule(r"pcie_replay_counter|pci_replay(?:s_since_reset|_counter)|dmon_pci", "PCIe replay count",
        "", Kind.STEADY),
]  # fmt: skip

_DMON = [
    SeriesRule(r"dmon_sbecc", "ECC total correctable", "", Kind.STEADY),
    SeriesRule(r"dmon_dbecc", "ECC total uncorrectable", "", Kind.STEADY),
    SeriesRule(r"dmon_pviol", "throttle activity power", "%"),
    SeriesRule(r"dmon_tviol", "throttle status thermal", "", Kind.STATE),
    SeriesRule(r"dmon_gract", "GFX active", "%"),
    SeriesRule(r"dmon_smutil", "SM active", "%"),
    SeriesRule(r"dmon_smocc", "SM occupancy", "%"),
    SeriesRule(r"dmon_tensor|dmon_anytsr|dmon_mmaact", "tensor active", "%"),
    SeriesRule(r"dmon_nvltx", "NVLink bandwidth sent", "Mb/s"),
    SeriesRule(r"dmon_nvlrx", "NVLink bandwidth received", "Mb/s"),
    SeriesRule(r"dmon_dramut?|dmon_dram", "DRAM active", "%"),
    *(SeriesRule(f"dmon_fp{bits}", f"FP{bits} active", "%") for bits in (64, 32, 16)),
    SeriesRule(r"dmon_int(?:util)?", "integer active", "%"),
]

_REASONS_OF = r"clocks_(?:throttle|event)_reasons_"


def _reasons() -> list[SeriesRule]:
    lanes = [
        SeriesRule(
            rf"{_REASONS_OF}(?P<what>active|supported)", "throttle reasons {what}", "", Kind.STEADY
        )
    ]
    for key, name in nvml_lanes.REASONS.values():
        alone = key.removeprefix("gpu_") if key == "gpu_idle" else key
        pattern = (
            rf"{_REASONS_OF}(?:hw_slowdown_)?(?:clocks_(?:throttle|event)_reason_)?(?:gpu_)?{alone}"
        )
        lanes.append(SeriesRule(pattern, f"throttle status {name}", "", Kind.STATE))
    return lanes


def _ecc() -> list[SeriesRule]:
    """Volatile counts are those since the driver was loaded, as other tools give them."""
    lanes = []
    for kind, called in (("corrected", "correctable"), ("uncorrected", "uncorrectable")):
        for span, suffix in (("volatile", ""), ("aggregate", " aggregate")):
            key = rf"ecc_errors_{kind}_{span}_(?P<what>\w+)"
            lanes.append(SeriesRule(key, f"ECC {{what}} {called}{suffix}", "", Kind.STEADY))
    return lanes


LANES = LaneTable(
    *_POWER,
    *_USAGE,
    *_CLOCKS,
    *_TEMPERATURE,
    *_MEMORY,
    *_PCIE,
    *_DMON,
    *_reasons(),
    *_ecc(),
    SeriesRule(r"fan_speed|dmon_fan", "fan usage", "%"),
    SeriesRule(r"pstate|performance_state", "performance state", "", Kind.STEADY),
)
"""All names that are known."""

STAMP = frozenset(
    {"timestamp", "time", "datetime", "date_time", "ts", "epoch", "unix_time", "time_utc"}
    | {f"timestamp_{unit}" for unit in ("utc", "iso", "s", "ms", "us", "ns")}
    | {"timestampus"}
)
"""Columns that say when."""
INDEX = frozenset(
    {"index", "gpu_index", "gpu_id", "gpuid", "gpu", "gpu_idx", "index_gpu", "minor_number"}
)
"""Columns that say which GPU by its number; so does no other."""
UUID = frozenset({"uuid", "gpu_uuid"})
PCI = frozenset({"pci_bus_id", "gpu_bus_id", "bus_id", "pci_bus"})
NAME = frozenset({"name", "gpu_name", "product_name"})
FACTS = {"driver_version": "driver_version", "cuda_version": "cuda_version"}
"""Columns that are reported once for the whole."""
TEXTS = re.compile(
    r"driver_version|cuda_version|(?:gpu_)?serial|vbios_version|inforom_\w+|count|gpu_count|mig_mode_\w+"
    r"|gom_\w+|driver_model_\w+|compute_mode|compute_cap|persistence_mode|accounting_\w+"
    r"|display_\w+|ecc_mode_\w+|pci_(?:domain|bus|device|device_id|sub_device_id|baseclass"
    r"|subclass)|retired_pages_pending|fabric_\w+|addressing_mode|protected_memory_\w+"
    r"|power_management|gsp_mode_\w+|hostname|host|node|product_\w+|module_id|platform_\w+"
)
"""Columns that hold no quantity, whatever their cells look like."""


_PLACE = re.compile(r"(?:^|[\s=:])[/~\\]|\w@\w")
"""A path, or a user and host, in a column's name of a user's own."""


_MEMORY_QUERY = re.compile(r"memory\.(?:used|free|total|reserved)")
"""Names of ``--query-gpu`` whose numbers are MiB where a script's header lacks the unit."""


@lru_cache(maxsize=1024)  # as of meanings: the same in each header and in each file of a folder
def key_of(name: str) -> tuple[str, str]:
    """Key and unit of a column: ``power.draw [W]`` → ``power_draw``, ``W``.

    A path, or a user and host, stays as it is: those who write outputs recognise and leave them out.
    """
    text, unit = name.replace("\n", " ").strip(), ""
    if text.endswith("]"):
        opening = text.find("[", text.rfind("]", 0, -1) + 1)
        if opening >= 0:
            text, unit = text[:opening], text[opening + 1 : -1]
    if _PLACE.search(text):
        return text.strip(), unit.strip()
    unit = unit or ("MiB" if _MEMORY_QUERY.fullmatch(text) else "")
    return re.sub(r"[^0-9a-z]+", "_", text.lower()).strip("_"), unit.strip()


def meaning(key: str) -> Name | None:
    """Return the meaning of a key; None if it is not in the table."""
    return lane_names.meaning(key, LANES)


def is_own(key: str) -> bool:
    """True if a column identifies the row, or is a property of the whole."""
    return key in STAMP | INDEX | UUID | PCI | NAME or TEXTS.fullmatch(key) is not None

"""Properties of the clock fields of tools: an instant or a mean, over which time, and who says so."""

from __future__ import annotations

import re
from typing import NamedTuple

INSTANT, MEAN, UNKNOWN = "instant", "mean", "unknown"


class ClockField(NamedTuple):
    """A field of a tool on a family of GPUs.

    Parameters
    ----------
    tools
        Tools, as `series.source` names them.
    series
        Beginning of the series' names.
    family
        GPUs, for people.
    gpus
        Pattern of their names; empty for all.
    shows
        `INSTANT`, `MEAN` or `UNKNOWN`.
    window_ns, hold_ns, lag_ns
        Window of a mean, time between updates, lateness; None where nobody says.
    source
        Who says so.
    at_highest
        Least and most of the highest clock at which kernels run where it is read, by cycles as lower readings show them.
    """

    tools: tuple[str, ...]
    series: str
    family: str
    gpus: str
    shows: str
    window_ns: float | None
    hold_ns: float | None
    lag_ns: float | None
    source: str
    at_highest: tuple[float, float] = (1.0, 1.0)

    def row(self) -> str:
        """Return a row of the table of `docs/accuracy/dvfs.md`."""
        figures = (self.window_ns, self.hold_ns, self.lag_ns)
        texts = ["estimated" if ns is None else f"{ns / 1e6:g} ms" for ns in figures]
        if self.shows == INSTANT:
            texts[0] = "0"
        low, high = self.at_highest
        texts.append(f"{low:.2f} to {high:.2f}" if low < high else "1")
        cells = (", ".join(self.tools), self.series or "all", self.family, self.shows, *texts)
        return "| " + " | ".join((*cells, self.source)) + " |"


_KERNEL = "Linux, drivers/gpu/drm/amd"
_SMU = f"{_KERNEL}/pm/swsmu"
_GPU_METRICS, _AMD = ("amd-smi", "recorder"), ("amd-smi", "recorder", "rocm-smi")
_N = (None, None, None)
_AT_HIGHEST = (0.83, 1.01)
"""Clock of kernels over NVML's at its highest reading, if it is 1 at lower ones. Kernels of 19 programs on an H200, timed under the limit of
power and in bursts, show 0.833 (fp16 products of random numbers), 0.905 (bf16) to 1.004 (of zeros) and 1.008 (attention backward)."""
_MEASURED = (
    "measured on an H100 and an H200 by this project, by programs under the limit of power and in bursts, 2026-11 "
    "(power is sampled for a part of each 100 ms as well: arXiv 2312.02741)"
)
CLOCK_FIELDS = (
    ClockField(
        _AMD, "gfx clock", "Instinct MI300 and MI350", r"\bMI3\d\d|\bgfx9[45]", UNKNOWN, *_N,
        f"{_SMU}/smu13/smu_v13_0_6_ppt.c: one field, GfxclkFrequency, is the current and the average clock",
    ),
    ClockField(
        _AMD, "gfx clock average", "other AMD GPUs", "", MEAN, *_N,
        f"{_KERNEL}/include/kgd_pp_interface.h: average_gfxclk_frequency, without a time",
    ),
    ClockField(
        _AMD, "gfx clock", "Instinct MI100 and MI200", r"\bMI[12]\d\d", UNKNOWN, *_N,
        f"{_SMU}/smu11/arcturus_ppt.c, smu13/aldebaran_ppt.c: CurrClock, a field apart from "
        "AverageGfxclkFrequency; over what time is not said",
    ),
    ClockField(
        _GPU_METRICS, "gfx clock", "Radeon RX 7700 to 7900, W7700 to W7900, RX 9000",
        r"\bRX ?(?:7[789]|90)\d\d|\bW7[789]00|\bR9700|\bV710", MEAN, *_N,
        f"{_SMU}/smu13/smu_v13_0_0_ppt.c (commit 4a37c55b859a, 2023), smu14/smu_v14_0_2_ppt.c: "
        "current_gfxclk = average_gfxclk_frequency",
    ),
    ClockField(
        ("rocm-smi",), "gfx clock", "Radeon RX 7000 and W7000",
        r"\bRX ?7\d{3}|\bW7\d00|\bV710", MEAN, *_N,
        f"{_SMU}/smu13/smu_v13_0_0_ppt.c, smu_v13_0_7_ppt.c, get_current_clk_freq_by_table: "
        "METRICS_AVERAGE_GFXCLK",
    ),
    ClockField(
        _AMD, "gfx clock", "other Radeon", r"(?i)\bRX ?\d{4}|\bW[67]\d00", UNKNOWN, *_N,
        f"{_SMU}/smu11/navi10_ppt.c, smu13/smu_v13_0_7_ppt.c: CurrClock, without a time",
    ),
    ClockField(
        ("nvidia-smi", "recorder", "zeus", "charllm"), "", "H100 and H200", r"\bH[12]00\b",
        MEAN, 20e6, 100e6, None, _MEASURED, _AT_HIGHEST,
    ),
    ClockField(
        ("dcgmi",), "", "H100 and H200", r"\bH[12]00\b", MEAN, 20e6, None, None,
        "DCGM reads NVML at a period of its own; NVML as above", _AT_HIGHEST,
    ),
    ClockField(
        ("nvidia-smi", "zeus", "charllm", "dcgmi"), "", "NVIDIA", "", UNKNOWN, *_N,
        "NVML's reference: the current clock, without a time (power has 25 ms to 1 s: arXiv 2312.02741)",
    ),
)  # fmt: skip
"""Fields in the order of looking up. A figure that no source states is None: it is estimated."""
_OTHER = ClockField(
    (), "", "all", "", UNKNOWN, None, None, None, "no source says what the samples are"
)


def field_of(tool: str, series: str, gpu: str) -> ClockField:
    """Look up what is known of a clock field.

    Parameters
    ----------
    tool, series
        Tool and the pattern of the series' names, of `series`.
    gpu
        Name of the product, its device or its architecture; empty if unknown.
    """
    for field in CLOCK_FIELDS:
        if tool in field.tools and series.startswith(field.series) and re.search(field.gpus, gpu):
            return field
    return _OTHER

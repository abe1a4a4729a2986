"""GPUs whose clock was held down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import number_ranges
from chopper_interop.analyses.methods.findings.finding import (
    LIKELY,
    MIN_SHARE,
    MODELLED,
    Finding,
)
from chopper_interop.arrays import Array, arrow
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import ExaminedJob

_MIN_SHARE = 0.01
"""Share of time from which on a cause counts. Chosen: less is a moment at the start or end."""
_CAUSES = {"power_share": "power", "thermal_share": "temperature", "hardware_share": "hardware"}


def throttled_gpus(job: ExaminedJob) -> Iterator[Finding]:
    """Find GPUs that ran below their highest clock, and what held them down."""
    if not job.trace.has("gfxclk_mhz"):
        return
    at_peak = job.result("dvfs")
    if at_peak is None or at_peak.summary.get("ideal_step_ns") is None:
        return
    figures = at_peak.summary
    measured, ideal = figures["measured_step_ns"], figures["ideal_step_ns"]
    low, high = measured - figures["ideal_step_high_ns"], measured - figures["ideal_step_low_ns"]
    if low <= 0:  # the clock may cost nothing
        return
    kernels = (job.trace.array("kind") == Kind.KERNEL) & job.inside
    rank = job.trace.array("rank")
    held_down = _held_down(job, kernels, arrow.to_numpy(at_peak.annotations["ideal_ns"]))
    kernels &= np.isin(rank, held_down)
    place, mhz = job.place(kernels), job.trace.reals("gfxclk_mhz", np.flatnonzero(kernels))
    causes = _causes(job)
    held = f", held down by {' and '.join(causes)}" if causes else ""
    peak = at_peak.notes.get("clock: peak", "their highest clock")
    yield Finding(
        "throttled-gpu",
        measured - ideal,
        place.ranks,
        " and ".join(causes) or "core clock",
        place.at_ns,
        place.until_ns,
        MODELLED if causes else LIKELY,
        f"{_named(held_down, job.ranks)} ran at {np.nanmean(mhz):,.0f} MHz instead of {peak}{held}.",
        job.command("dvfs throttling"),
        low,
        high,
    )


def _held_down(job: ExaminedJob, kernels: Array, ideal_ns: Array) -> list[int]:
    """Ranks whose kernels would be shorter at the highest clock; all if none of them by so much."""
    rank, dur = (job.trace.array(column)[kernels] for column in ("rank", "dur"))
    present, of = np.unique(rank, return_inverse=True)
    lost = np.bincount(of, np.nan_to_num(dur - ideal_ns[kernels]))
    known: list[int] = present[lost >= MIN_SHARE * np.bincount(of, dur)].tolist()
    return known or present.tolist()


def _named(ranks: list[int], of: list[int]) -> str:
    """GPUs of some ranks as the subject of a sentence; without their numbers if they are all."""
    if len(ranks) == len(of):
        return "GPUs"
    return f"The GPU{'s' * (len(ranks) > 1)} of {number_ranges.named('rank', ranks)}"


def _causes(job: ExaminedJob) -> list[str]:
    """Causes of low clocks, by telemetry."""
    known = job.result("throttling")
    figures = known.summary if known else {}
    return [text for name, text in _CAUSES.items() if (figures.get(name) or 0) >= _MIN_SHARE]

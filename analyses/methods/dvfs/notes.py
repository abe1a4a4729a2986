"""Notes on the times at other clocks: which clocks are not known, what is above them, and what sensors are taken for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.dvfs import target_clocks as targets
from chopper_interop.analyses.methods.dvfs.target_clocks import ACHIEVABLE, PEAK
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK
from chopper_interop.arrays import Array
from chopper_interop.errors import MissingDataError

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.cases import Case
    from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import SensedClocks
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities

_SENSOR_COLUMNS = (
    "sensor_window_ns", "sensor_window_low_ns", "sensor_window_high_ns", "sensor_lag_ns",
    "sensor_lag_low_ns", "sensor_lag_high_ns", "sensor_hold_ns", "sensor_origin",
)  # fmt: skip


def sensor_columns(sensors: Sequence[SensedClocks]) -> dict[str, Any]:
    """Columns of the sensor of most GPUs; all None where no samples of clocks are at hand."""
    if not sensors:
        return dict.fromkeys(_SENSOR_COLUMNS)
    main = max(sensors, key=lambda one: len(one.gpus))
    values = main.accepted.described(main.gpus)
    return {n: round(v) if isinstance(v, float) else v for n, v in values.items()}


def sensor_notes(known: Sensitivities) -> dict[str, str]:
    """Say what is assumed of each kind of sensor, and where from."""
    texts = []
    for one in known.sensors:
        columns = sensor_columns([one])
        window, lag = (
            f"{columns[f'sensor_{n}_low_ns'] / 1e6:g} to {columns[f'sensor_{n}_high_ns'] / 1e6:g} ms"
            for n in ("window", "lag")
        )
        texts.append(
            f"of {len(one.gpus)} GPUs, {columns['sensor_origin']}: mean over {window}, late by {lag}; "
            f"{one.field.source}"
        )
    return {"clock sensor": "; ".join(texts)} if texts else {}


def open_notes(names: Sequence[str]) -> dict[str, str]:
    """Say at which clocks only a range is known, and what would show more."""
    text = (
        "nothing shows how far kernels follow the clock, or what it was: the range is all that is possible, and no "
        "value within is an estimate; of kernels it is what is expected of their class. Samples of the clock at 10 Hz or more over twenty steps, clocks that "
        "differ from step to step or from GPU to GPU, or a run with counters show it"
    )
    return {f"range: {name}": text for name in names}


def unknown_notes(known: Sensitivities, cases: dict[str, Case]) -> dict[str, str]:
    """Say which clocks are not known, and of how many kernels."""
    notes = {}
    total = len(known.repeats.node)
    for name, case in cases.items():
        if case.unknown:
            notes[f"unknown: {name}"] = (
                f"of {case.unknown:,} of {total:,} kernels {case.clocks} is not known, measured or "
                "as a target: they keep their durations"
            )
    notes |= _above_peak_note(known, cases[PEAK].mhz)
    if ACHIEVABLE not in cases:
        notes[f"clock: {ACHIEVABLE}"] = (
            "not known: the maker states none for these GPUs, or the element type of the kernels is "
            "not known"
        )
    else:
        notes |= _above_achievable_note(known, cases[ACHIEVABLE].mhz)
    missing = int(np.isnan(known.repeats.clocks.mhz).sum())
    if missing and missing < total:
        notes["clocks that are not known"] = (
            f"those of {missing:,} of {total:,} kernels: they are assumed to have run at the mean clock "
            "of their repeats, or at the clock of another run"
        )
    if not total:
        notes["no rows"] = "the trace has no kernels"
    elif not any(case.is_known for case in cases.values()):
        notes["no rows"] = _no_clock_note(known, missing=missing == total)
    return notes


def _above_peak_note(known: Sensitivities, highest: Array) -> dict[str, str]:
    """Say how many kernels ran above the highest clock of their GPU: at it they would take longer."""
    share = known.repeats.clocks.read_mhz / highest - 1
    above = share > 0
    if not above.any():
        return {}
    note = (
        f"{np.count_nonzero(above):,} of {len(above):,} kernels ran faster, by up to "
        f"{share[above].max():.1%}, by samples or counters: they would take longer at it, and "
        "the loss is less by that, or below 0; a file with GPUs can state a higher one (gpus=)"
    )
    return {"above the highest clock": note}


def _above_achievable_note(known: Sensitivities, achievable: Array) -> dict[str, str]:
    """Say how many kernels ran above the achievable clock, so that their loss of 0 means nothing."""
    stay, total = int(np.count_nonzero(known.mhz >= achievable)), len(achievable)
    if not stay:
        return {}
    kernels_text = f"all {total:,}" if stay == total else f"{stay:,} of {total:,}"
    return {
        "above the achievable clock": f"{kernels_text} kernels ran at it or above: they keep their durations"
    }


def _no_clock_note(known: Sensitivities, *, missing: bool) -> str:
    """Say which clock is not known, and which option can state it."""
    if not missing:
        return (
            "measured clocks are known, but no target is: state the highest clock of these GPUs in a "
            "file (gpus=), or choose a clock (clock=)"
        )
    if _has_clock_series(known):
        return (
            "no clock of a kernel is known: the sampled ones are of GPUs on which no rank is "
            "known to compute, or of another time; --map-device can assign them, as rpd:0=rank0"
        )
    return "no clock of the core is known: neither from telemetry nor from counters"


def _has_clock_series(known: Sensitivities) -> bool:
    """True if the clock of any GPU was sampled, also of one that is no GPU of the trace (gpu 0 sclk)."""
    names = known.repeats.trace.series["name"].to_pylist()
    return any(
        name.endswith("sclk") or any(pattern.match(name) for pattern in GFXCLK.patterns)
        for name in names
    )


def check_has_clocks(known: Sensitivities) -> None:
    """Raise `MissingDataError` if there are kernels, and no clock of any kind."""
    r = known.repeats
    if not len(r.node) or not np.isnan(r.clocks.mhz).all() or len(known.counted.position):
        return
    if not _has_clock_series(known):
        raise MissingDataError(
            "no clock is known, neither from telemetry nor from counters",
            hint=targets.HOW_TO_RECORD,
        )

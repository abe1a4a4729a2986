"""Energy of windows: what GPUs drew in each, in parts of the ranks that compute on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.efficiency import energy_checks
from chopper_interop.annotate.telemetry import energy
from chopper_interop.annotate.telemetry.gpu_series import node_locations
from chopper_interop.arrays import Array
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.efficiency.energy_checks import Check
    from chopper_interop.annotate.telemetry.gpus import Gpu
    from chopper_interop.annotate.telemetry.job import Board
    from chopper_interop.annotate.telemetry.samples import Samples
    from chopper_interop.annotate.telemetry.source_reader import Source

    Place = tuple[int, int]


@dataclass(frozen=True)
class WindowEnergy:
    """Energy of a GPU in a window, for all ranks that compute on it.

    Parameters
    ----------
    gpu
        The GPU.
    start_ns, end_ns
        The window, as ts.
    powers
        Sources of its power that count in the window, the finest first.
    shared
        Its energy.
    check
        Its energy by displayed power and by its counter, regardless of the source of `shared`.
    """

    gpu: Gpu
    start_ns: int
    end_ns: int
    powers: list[tuple[Source, Samples]]
    shared: energy.EnergyShares
    check: Check

    @property
    def tools(self) -> list[str]:
        """Names of the tools that sampled its power."""
        return list(dict.fromkeys(source.tool for source, _ in self.powers))

    @property
    def peak_w(self) -> float:
        """Highest power as it is shown; where none is in the window, of what counts."""
        for powers in (energy.instantaneous_sources(self.gpu) or self.powers, self.powers):
            peak = energy.peak_power([part for _, part in powers], self.start_ns, self.end_ns)
            if not np.isnan(peak):
                break
        return peak

    @property
    def resolution_ns(self) -> int:
        """Time between samples of its power, the longest of several tools."""
        return max(samples.resolution_ns for _, samples in self.powers)


@dataclass(frozen=True)
class EnergyPart:
    """Energy of one rank on one GPU in a window.

    Parameters
    ----------
    rank, device, iteration
        The owner and the step; `windows.NO_STEP` if of no step.
    board
        The GPU, or the module of two dies.
    rows
        Nodes of its work in the window.
    of_each, cut_of_each
        As of `energy.EnergyShares`, of the part of each node that is in the window.
    idle_j
        Its part of the energy while nothing ran.
    window
        The window; None if power is not known of any of it.
    """

    rank: int
    device: int
    iteration: int
    board: Board
    rows: Array
    of_each: Array
    cut_of_each: Array
    idle_j: float
    window: WindowEnergy | None


def parts(
    trace: Trace, boards: Sequence[Board], steps: str = "", ranks: str = ""
) -> list[EnergyPart]:
    """Energy of all ranks, by rank, device and window.

    Parameters
    ----------
    boards
        Its GPUs, as `telemetry.job.boards` gives them.
    steps, ranks
        As of `windows.rank_windows`; but without steps, the window of a GPU is from the first start to
        the last end of all work on it, whichever ranks are chosen.
    """
    chosen = set(windows.chosen_ranks(trace, ranks))
    stepped = windows.rank_windows(trace, steps, ranks) if steps else None
    made: list[EnergyPart] = []
    for board in boards:
        work = _Work(trace, board)
        made += work.complete(chosen) if stepped is None else work.stepped(stepped)
    return sorted(made, key=lambda part: (part.rank, part.device, part.iteration))


def telemetry_parts(boards: Sequence[Board]) -> list[EnergyPart]:
    """Energy of GPUs of which nothing but telemetry is known, from the first to the last sample.

    Parameters
    ----------
    boards
        Such GPUs, as `telemetry.job.boards` gives them.

    Returns
    -------
    list of Part
        Parts without work: `idle_j` is all of the energy, whatever ran. Empty if power is known of
        no GPU.
    """
    if not any(board.powers for board in boards):
        return []
    made = []
    for board in boards:
        gpu, none = board.gpu, np.zeros(0, np.int64)
        window, idle = None, 0.0
        powers = energy.energy_sources(gpu)
        if powers:
            low = min(int(samples.ts[0]) for _, samples in powers)
            high = max(int(samples.ts[-1]) for _, samples in powers)
            shares = energy.share_energy(
                [samples for _, samples in powers], none, none, (low, high)
            )
            window, idle = (
                _window_energy(gpu, powers, shares, (low, high), energy.instantaneous_sources(gpu)),
                shares.idle,
            )
        parts_of = (none, np.zeros(0), np.zeros(0), idle)
        made.append(EnergyPart(gpu.rank, gpu.device, windows.NO_STEP, board, *parts_of, window))
    return made


def _window_energy(
    gpu: Gpu,
    powers: list[tuple[Source, Samples]],
    shares: energy.EnergyShares,
    window: tuple[int, int],
    shown: list[tuple[Source, Samples]],
) -> WindowEnergy | None:
    """Energy of a GPU in a window; None if its power is known at no time in it."""
    used = [power for power, ns in zip(powers, shares.covered_by_source, strict=True) if ns]
    if not used:
        return None
    return WindowEnergy(gpu, *window, used, shares, energy_checks.check_energy(gpu, shown, *window))


class _Work:
    """Work on one GPU, by start, and the sources of its power."""

    def __init__(self, trace: Trace, board: Board) -> None:
        self.board, self.gpu = board, (gpu := board.gpu)
        self.powers, self.shown = energy.energy_sources(gpu), energy.instantaneous_sources(gpu)
        start = trace.array("ts")[gpu.rows]
        order = np.argsort(start, kind="stable")
        self.rows, self.start = gpu.rows[order], start[order]
        self.end = self.start + trace.array("dur")[self.rows]
        self.reach = np.maximum.accumulate(self.end)
        self.rank = trace.array("rank")[self.rows]
        self.device = trace.array("device", "lanes")[trace.array("lane")[self.rows]]
        self.places = node_locations(trace, gpu.rows)

    def complete(self, chosen: set[int]) -> list[EnergyPart]:
        """Parts of all that ran."""
        window = windows.Window(
            windows.ALL_RANKS, windows.NO_STEP, int(self.start[0]), int(self.reach[-1])
        )
        places = [place for place in self.places if place[0] in chosen]
        return self._parts(window, slice(None), places)

    def stepped(self, step_windows: Sequence[windows.Window]) -> Iterator[EnergyPart]:
        """Parts of windows."""
        for place in self.places:
            for window in step_windows:
                if window.rank == place[0]:
                    at = _inside(self.start, self.end, self.reach, window)
                    yield from self._parts(window, at, [place])

    def _parts(
        self, window: windows.Window, at: Array | slice, places: Sequence[Place]
    ) -> list[EnergyPart]:
        low, high = window.start_ns, window.end_ns
        start, end = np.maximum(self.start[at], low), np.minimum(self.end[at], high)
        powers = [(s, _cut(samples, low, high)) for s, samples in self.powers]
        shared = energy.share_energy([samples for _, samples in powers], start, end, (low, high))
        window_energy = _window_energy(self.gpu, powers, shared, (low, high), self.shown)
        made = []
        for rank, device in places:
            selected = np.flatnonzero((self.rank[at] == rank) & (self.device[at] == device))
            made.append(
                EnergyPart(
                    rank, device, window.iteration, self.board, self.rows[at][selected],
                    shared.of_each[selected], shared.cut[selected],
                    shared.idle / len(self.places), window_energy,
                )
            )  # fmt: skip
        return made


def _inside(start: Array, end: Array, reach: Array, window: windows.Window) -> Array:
    """Indices of the work, sorted by start, that is within a window."""
    first = int(np.searchsorted(reach, window.start_ns, "left"))
    stop = int(np.searchsorted(start, window.end_ns, "left"))
    at = np.arange(first, max(first, stop))
    return at[(end[at] > window.start_ns) | (start[at] >= window.start_ns)]


def _cut(samples: Samples, low: int, high: int) -> Samples:
    """Samples within a window, with the one before and the one behind it."""
    first = max(int(np.searchsorted(samples.ts, low, "right")) - 1, 0)
    stop = int(np.searchsorted(samples.ts, high, "left")) + 1
    if first == 0 and stop >= len(samples.ts):
        return samples
    stop = max(stop, first + 1)
    unknown = samples.unknown[first:stop].copy()
    unknown[-1:] = True
    part = slice(first, stop)
    return replace(samples, ts=samples.ts[part], value=samples.value[part], unknown=unknown)

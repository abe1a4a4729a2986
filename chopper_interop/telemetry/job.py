"""GPUs of a job: how many there are, which of them are told one power, and when it was sampled."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.gpus.devices import of_host, only_host
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.telemetry import energy, names
from chopper_interop.telemetry.gpus import gpus, places_of, without_work

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from chopper_interop.schemas.meta import Device
    from chopper_interop.telemetry.gpus import Gpu, Place
    from chopper_interop.telemetry.names import Quantity
    from chopper_interop.telemetry.samples import Samples
    from chopper_interop.trace import Trace

    Window = tuple[int, int]

QUANTITIES = (*names.QUANTITIES, names.EDGE, names.UTILIZATION)
"""What tells that there is a GPU, where no work does."""
NEARLY_ALL = 0.9
"""So much of the time that any GPU's power is sampled must be common to all, to be that of the job."""


@dataclass(frozen=True)
class Board:
    """A GPU, or a module of two dies: as much as one power is told of.

    Parameters
    ----------
    gpu
        All of it: the telemetry of the die that tells power, the ranks and work of every die.
    dies
        The GPUs that it is made of, each with telemetry and work of its own.
    """

    gpu: Gpu
    dies: tuple[Gpu, ...]

    @cached_property
    def powers(self) -> list[Samples]:
        """What tells its energy, as of `energy.best_of`; empty if nothing does."""
        return [samples for _, samples in energy.best_of(self.gpu)]


def has_work(trace: Trace) -> bool:
    """Whether any work of GPUs was recorded."""
    return bool(is_any(trace.array("kind"), GPU_WORK).any())


def boards(
    trace: Trace,
    quantities: Sequence[Quantity] = QUANTITIES,
    mine: Collection[int] | None = None,
) -> list[Board]:
    """All GPUs that work ran on; of telemetry alone, all of which it tells something.

    Parameters
    ----------
    trace
        Any trace.
    quantities
        What to look for in telemetry.
    mine
        Ranks whose GPUs count, and of these only the dies that they work on; None for all GPUs,
        those of no rank too.
    """
    if has_work(trace):
        found = gpus(trace, quantities=quantities, every=True)
    else:
        found = without_work(trace, (), QUANTITIES)
    made = joined(trace, found)
    if mine is None:
        return made
    chosen = (replace(one, dies=_of_ranks(one.dies, mine)) for one in made)
    return [one for one in chosen if one.dies]


def extent(found: Sequence[Board]) -> Window | None:
    """From the first to the last sample of power, or where there is none, of anything.

    What little is known of the power of some GPUs alone is left out.
    """
    told = [one.powers for one in found if one.powers] or [
        [samples for source in sources for _, samples in source.samples]
        for one in found
        for sources in one.gpu.told.values()
    ]
    if not told:
        return None
    firsts = [min(int(part.ts[0]) for part in parts) for parts in told]
    lasts = [max(int(part.ts[-1]) for part in parts) for parts in told]
    every, common = (min(firsts), max(lasts)), (max(firsts), min(lasts))
    is_most = common[1] - common[0] >= NEARLY_ALL * (every[1] - every[0])
    return common if is_most else every


def _of_ranks(dies: Sequence[Gpu], mine: Collection[int]) -> tuple[Gpu, ...]:
    return tuple(die for die in dies if set(die.ranks or (die.rank,)) & set(mine))


def joined(trace: Trace, found: Sequence[Gpu]) -> list[Board]:
    """Some GPUs, those that tell no power with the other die of their module if that one does."""
    other = _second_dies(trace, found) if any(map(_is_dual, trace.meta.devices)) else {}
    seconds = set(other.values())
    return [
        _module(gpu, found[other[i]]) if i in other else Board(gpu, (gpu,))
        for i, gpu in enumerate(found)
        if i not in seconds
    ]


def _second_dies(trace: Trace, found: Sequence[Gpu]) -> dict[int, int]:
    """Of which GPU another tells the power, by the place of that other."""
    telling: dict[tuple[str, int], list[int]] = {}
    lacking: list[tuple[int, tuple[str, int]]] = []
    hosts = {rank.rank: rank.host for rank in trace.meta.ranks}
    for i, gpu in enumerate(found):
        host = hosts.get(gpu.ranks[0] if gpu.ranks else gpu.rank, "") or only_host(trace)
        number = _number_of_die(trace, gpu, host)
        if number is not None and gpu.told.get(names.POWER.name):
            telling.setdefault((host, number), []).append(i)
        elif number is not None:
            lacking.append((i, (host, number)))
    other: dict[int, int] = {}
    for i, (host, number) in lacking:
        if partners := telling.get((host, number ^ 1)):
            other[partners.pop(0)] = i
    return other


def _module(first: Gpu, second: Gpu) -> Board:
    ranks = tuple(sorted({*first.ranks, *second.ranks}))
    rows = np.sort(np.concatenate([first.rows, second.rows]))
    return Board(replace(first, ranks=ranks, rows=rows), (first, second))


def _number_of_die(trace: Trace, gpu: Gpu, host: str) -> int | None:
    """Number in its node of one of two dies on a module, which are numbered 2 n and 2 n + 1."""
    device = min(places_on(trace, gpu))[1]
    devices = trace.meta.devices
    same = of_host([one for one in devices if one.device == device], host)
    if device < 0 or not all(map(_is_dual, same or of_host(devices, host))):
        return None
    told = {one.index for one in same} - {-1} or {
        match.number
        for match in trace.meta.device_matches
        if match.rank in gpu.ranks or (match.rank < 0 and match.device == device)
    }
    return min(told) if len(told) == 1 else device


def _is_dual(device: Device) -> bool:
    return bool(names.DUAL_DIE.search(device.name))


def places_on(trace: Trace, gpu: Gpu) -> list[Place]:
    """Ranks and devices of a GPU's work; of one without, those of its series."""
    return places_of(trace, gpu.rows) if len(gpu.rows) else [(gpu.rank, gpu.device)]

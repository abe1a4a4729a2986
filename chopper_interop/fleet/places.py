"""GPUs of a job with their place in a node, and the windows in which each is asked about."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.activity.windows import EVERY_RANK, WHOLE, Window
from chopper_interop.columns import gather
from chopper_interop.errors import UsageError
from chopper_interop.gpus.devices import of_host, only_host
from chopper_interop.schemas.meta import Device
from chopper_interop.telemetry.gpus import Gpu, gpus, without_work, work_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy.typing as npt

    from chopper_interop.telemetry.names import Quantity
    from chopper_interop.trace import Trace

    Array = npt.NDArray[np.int64]

WORKING, ALL = "", "all"
"""Windows: while the rank's GPUs worked, and all of the telemetry."""


@dataclass(frozen=True)
class Place:
    """A GPU.

    Parameters
    ----------
    gpu
        What telemetry tells of it; without any, its work alone.
    device
        The device that it is, as its rank's lanes number it; the series' where no rank works on it.
    host
        The node that it is in; empty if that is not told.
    index
        Which of the node's GPUs it is: by the management tool if that is told, else by the number
        that its sources give it; -1 if it is the rank's only one and nothing else is told.
    product
        What describes it, if something does.
    windows
        When it is asked about: one for each step, or one.
    """

    gpu: Gpu
    device: int
    host: str
    index: int
    product: Device | None
    windows: tuple[Window, ...]

    @property
    def rank(self) -> int:
        """The first rank that computes on it; -1 if none is known."""
        return self.gpu.ranks[0] if self.gpu.ranks else -1

    @property
    def name(self) -> str:
        """What people call it."""
        return f"rank {self.rank}" if self.gpu.ranks else f"GPU {self.device}"


def of(  # a trace, what to look for, and what all analyses have
    trace: Trace,
    quantities: Sequence[Quantity],
    *,
    steps: str = "",
    ranks: str = "",
    window: str = WORKING,
) -> list[Place]:
    """GPUs that work ran on or that telemetry tells of, in order of rank, device and host.

    Parameters
    ----------
    trace
        Any trace.
    quantities
        What to look for in telemetry.
    steps, ranks
        As of `windows.of_ranks`. With `ranks`, GPUs of which no rank is known are left out.
    window
        ``""``: from the first start to the last end of the rank's GPU work; of a GPU on which no
        rank is known to compute, of all work in the trace, and all of the telemetry if there is
        none. ``"all"``: all of the telemetry.

    Raises
    ------
    UsageError
        `window` is another, steps are asked of all telemetry, or steps or ranks are not there.
    """
    if window not in {WORKING, ALL}:
        raise UsageError(f"window={window}: there is none of that name", hint="there is all")
    if window and steps:
        raise UsageError(f"window={ALL} has no steps", hint="leave one of the two out")
    mine = windows.chosen_ranks(trace, ranks)
    found = gpus(trace, quantities=quantities)
    idle = [] if ranks else without_work(trace, found, quantities)
    owned = {(r, d) for gpu in found for r in gpu.ranks for d in _devices(trace, gpu, r)}
    bare = [
        Gpu(rank, device, (rank,), rows, {}, {})
        for (rank, device), rows in work_of(trace).items()
        if (rank, device) not in owned
    ]
    chosen = [gpu for gpu in (*found, *bare) if set(gpu.ranks) & set(mine)]
    asked = _Windows(trace, steps, ranks, window)
    places = [_place(trace, gpu, asked) for gpu in (*chosen, *idle)]
    places = _counted(places)
    return sorted(places, key=lambda p: (p.rank < 0, p.rank, p.device, p.host))


def _devices(trace: Trace, gpu: Gpu, rank: int) -> set[int]:
    """Devices that a GPU is in the lanes of a rank."""
    piece = trace.rank_rows[rank]
    a, b = np.searchsorted(gpu.rows, [piece.start, piece.stop])
    lanes = gather.used(trace.array("lane")[gpu.rows[a:b]])
    return set(trace.array("device", "lanes")[lanes].tolist())


class _Windows:
    """When GPUs are asked about."""

    def __init__(self, trace: Trace, steps: str, ranks: str, window: str) -> None:
        of_ranks = windows.of_ranks(trace, steps, ranks)
        self._window, self._steps = window, steps
        self._of_rank: dict[int, list[Window]] = {}
        for one in of_ranks:
            self._of_rank.setdefault(one.rank, []).append(one)
        self._of_job = windows.joined(of_ranks)

    def of(self, gpu: Gpu) -> tuple[Window, ...]:
        told = [w for rank in gpu.ranks for w in self._of_rank.get(rank, ())]
        found = windows.joined(told) if gpu.ranks else self._of_job
        if self._steps or (self._window == WORKING and found):
            return tuple(found)
        parts = [s for sources in gpu.told.values() for one in sources for _, s in one.samples]
        if not parts:
            return tuple(found)
        start, end = min(int(s.ts[0]) for s in parts), max(int(s.ts[-1]) for s in parts)
        return (Window(EVERY_RANK, WHOLE, start, end),)


def _place(trace: Trace, gpu: Gpu, asked: _Windows) -> Place:
    hosts = {r.rank: r.host for r in trace.meta.ranks}
    device = min(_devices(trace, gpu, gpu.ranks[0])) if gpu.ranks else gpu.device
    same = [d for d in trace.meta.devices if d.device == device]
    host = hosts.get(gpu.ranks[0], "") if gpu.ranks else _only({d.host for d in same})
    host = host or only_host(trace)
    product = next(iter(of_host(same, host)), None) or _alike(of_host(trace.meta.devices, host))
    return Place(gpu, device, host, _index(trace, gpu, device, product), product, asked.of(gpu))


def _only(names: set[str]) -> str:
    return next(iter(names)) if len(names) == 1 else ""


def _alike(devices: Iterable[Device]) -> Device | None:
    """What all devices of a node are, where they are all the same; without a number."""
    alike = {(d.name, d.arch, d.cus) for d in devices}
    if len(alike) != 1:
        return None
    name, arch, cus = alike.pop()
    return Device("", -1, name=name, arch=arch, cus=cus)


def _index(trace: Trace, gpu: Gpu, device: int, product: Device | None) -> int:
    """Number by the management tool, as far as one is told."""
    if product is not None and product.index >= 0:
        return product.index
    if not gpu.ranks:
        return device
    of_rank = {m.number for m in trace.meta.device_matches if m.rank in gpu.ranks}
    of_all = {m.number for m in trace.meta.device_matches if m.rank < 0 and m.device == device}
    told = of_rank or of_all
    return told.pop() if len(told) == 1 else -1


def _counted(places: Iterable[Place]) -> list[Place]:
    """Places with their device's number where no tool's is told, if these differ in each node."""
    places = list(places)
    missing = {p.host for p in places if p.index < 0}
    for host in missing:
        here = [p.device for p in places if p.host == host]
        if len(set(here)) < len(here):
            missing = missing - {host}
    return [replace(p, index=p.device) if p.host in missing else p for p in places]

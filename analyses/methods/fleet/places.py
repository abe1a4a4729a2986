"""GPUs of a job with their place in a node, and the windows in which each is asked about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.activity.windows import ALL_RANKS, NO_STEP, Window
from chopper_interop.annotate.telemetry.gpu_series import work_by_location
from chopper_interop.annotate.telemetry.gpus import Gpu, gpus_with_telemetry, gpus_without_work
from chopper_interop.arrays import gather
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.gpus.devices import devices_on_host, only_host
from chopper_interop.grouping import by_key
from chopper_interop.schemas.meta import Device
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.annotate.telemetry.quantity_series import Quantity

WORKING, ALL = "", "all"
"""Windows: while the rank's GPUs worked, and all of the telemetry."""


@dataclass(frozen=True)
class GpuPlace:
    """A GPU.

    Parameters
    ----------
    gpu
        Its telemetry; without any, its work alone.
    device
        The device that it is, as its rank's lanes number it; the series' where no rank works on it.
    host
        The node that it is in; empty if unknown.
    index
        Its number in the node: the management tool's if known, else the number that its sources
        give it; -1 if it is the rank's only one and nothing else is known.
    product
        Its description, if there is one.
    windows
        The requested times: one for each step, or one.
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
        """Human-readable name."""
        return f"rank {self.rank}" if self.gpu.ranks else f"GPU {self.device}"


def find_places(  # a trace, what to look for, and what all analyses have
    trace: Trace,
    quantities: Sequence[Quantity],
    *,
    steps: str = "",
    ranks: str = "",
    window: str = WORKING,
) -> list[GpuPlace]:
    """GPUs that work ran on or that have telemetry, in order of rank, device and host.

    Parameters
    ----------
    quantities
        Quantities to look for in telemetry.
    steps, ranks
        As of `windows.rank_windows`. With `ranks`, GPUs of which no rank is known are left out.
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
        raise OptionError(f"window={window}: there is none of that name", hint="there is all")
    if window and steps:
        raise UsageError(f"window={ALL} has no steps", hint="leave one of the two out")
    selected = set(windows.chosen_ranks(trace, ranks))
    gpus = gpus_with_telemetry(trace, quantities=quantities)
    idle = [] if ranks else gpus_without_work(trace, gpus, quantities)
    owned = {(r, d) for gpu in gpus for r in gpu.ranks for d in _devices(trace, gpu, r)}
    bare = [
        Gpu(rank, device, (rank,), rows, {}, {})
        for (rank, device), rows in work_by_location(trace).items()
        if (rank, device) not in owned
    ]
    chosen = [gpu for gpu in (*gpus, *bare) if not selected.isdisjoint(gpu.ranks)]
    requested = _Windows(trace, steps, ranks, window)
    nodes = _HostsOfGpus(trace)
    places = _counted(nodes.place(gpu, requested.windows_of_gpu(gpu)) for gpu in (*chosen, *idle))
    return sorted(places, key=lambda p: (p.rank < 0, p.rank, p.device, p.host))


def _devices(trace: Trace, gpu: Gpu, rank: int) -> set[int]:
    """Devices that a GPU is in the lanes of a rank."""
    piece = trace.rank_rows[rank]
    a, b = np.searchsorted(gpu.rows, [piece.start, piece.stop])
    lanes = gather.unique_codes(trace.array("lane")[gpu.rows[a:b]])
    return set(trace.array("device", "lanes")[lanes].tolist())


class _Windows:
    """Requested windows of GPUs."""

    def __init__(self, trace: Trace, steps: str, ranks: str, window: str) -> None:
        of_ranks = windows.rank_windows(trace, steps, ranks)
        self._window, self._steps = window, steps
        self._of_rank = by_key(of_ranks, lambda window: window.rank)
        self._of_job = windows.job_windows(trace, steps, ranks)

    def windows_of_gpu(self, gpu: Gpu) -> tuple[Window, ...]:
        of_gpu = [w for rank in gpu.ranks for w in self._of_rank.get(rank, ())]
        chosen = windows.merged_windows(of_gpu) if gpu.ranks else self._of_job
        if self._steps or (self._window == WORKING and chosen):
            return tuple(chosen)
        parts = [s for sources in gpu.sources.values() for one in sources for _, s in one.samples]
        if not parts:
            return tuple(chosen)
        start, end = min(int(s.ts[0]) for s in parts), max(int(s.ts[-1]) for s in parts)
        return (Window(ALL_RANKS, NO_STEP, start, end),)


class _HostsOfGpus:
    """Hosts and devices of a job by what they are asked for, so that no GPU looks at those of all."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._hosts = {r.rank: r.host for r in trace.meta.ranks}
        self._by_number = by_key(trace.meta.devices, lambda device: device.device)
        self._by_host = by_key(trace.meta.devices, lambda device: device.host)
        self._first: dict[tuple[int, str], Device] = {}  # of each number and host
        for one in trace.meta.devices:
            self._first.setdefault((one.device, one.host), one)
        self._only_host = only_host(trace)
        self._alike: dict[str, Device | None] = {}
        self._numbers_of_rank: dict[int, set[int]] = {}
        self._numbers_of_device: dict[int, set[int]] = {}
        for match in trace.meta.device_matches:
            numbers, key = (
                (self._numbers_of_device, match.device)
                if match.rank < 0
                else (self._numbers_of_rank, match.rank)
            )
            numbers.setdefault(key, set()).add(match.number)

    def place(self, gpu: Gpu, of_gpu: tuple[Window, ...]) -> GpuPlace:
        """The place of a GPU with its windows."""
        rank = gpu.ranks[0] if gpu.ranks else -1
        device = min(_devices(self._trace, gpu, rank)) if gpu.ranks else gpu.device
        same = self._by_number.get(device, [])
        host = self._hosts.get(rank, "") if gpu.ranks else _only({d.host for d in same})
        host = host or self._only_host
        product = self._product(device, host)
        return GpuPlace(gpu, device, host, self._index(gpu, device, product), product, of_gpu)

    def _product(self, number: int, host: str) -> Device | None:
        """The device of that number on a host, else what all devices of the host are."""
        if not host:
            device = next(iter(self._by_number.get(number, [])), None)
        else:
            device = self._first.get((number, host)) or self._first.get((number, ""))
        if device is not None:
            return device
        if host not in self._alike:
            self._alike[host] = _alike(self._devices_on(host))
        return self._alike[host]

    def _devices_on(self, host: str) -> Iterable[Device]:
        """As `devices_on_host`, without a pass over all devices for each host that has some."""
        known = self._by_host.get(host) if host else None
        return devices_on_host(self._trace.meta.devices, host) if known is None else known

    def _index(self, gpu: Gpu, device: int, product: Device | None) -> int:
        """Number by the management tool, as far as one is known."""
        if product is not None and product.index >= 0:
            return product.index
        if not gpu.ranks:
            return device
        of_rank = set().union(*(self._numbers_of_rank.get(rank, ()) for rank in gpu.ranks))
        known = of_rank or self._numbers_of_device.get(device, set())
        return next(iter(known)) if len(known) == 1 else -1


def _only(names: set[str]) -> str:
    return next(iter(names)) if len(names) == 1 else ""


def _alike(devices: Iterable[Device]) -> Device | None:
    """The device that all devices of a node are, without a number; None if they differ."""
    alike = {(d.name, d.arch, d.cus) for d in devices}
    if len(alike) != 1:
        return None
    name, arch, cus = alike.pop()
    return Device("", -1, name=name, arch=arch, cus=cus)


def _host_of(place: GpuPlace) -> str:
    return place.host


def _counted(places: Iterable[GpuPlace]) -> list[GpuPlace]:
    """GPUs with their device's number where no tool's is known, if these differ in each node."""
    places = list(places)
    numbers = {host: [p.device for p in same] for host, same in by_key(places, _host_of).items()}
    missing = {p.host for p in places if p.index < 0}
    missing = {host for host in missing if len(set(numbers[host])) == len(numbers[host])}
    return [replace(p, index=p.device) if p.host in missing else p for p in places]

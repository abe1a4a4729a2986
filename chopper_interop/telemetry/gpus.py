"""Which series are of the GPU that a piece of work ran on, and which of them are best."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.telemetry import counters, ends, names, throttle_causes
from chopper_interop.telemetry.samples import (
    Samples,
    logged,
    sampled,
    usual_step,
    windowed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.telemetry.names import Quantity, Told
    from chopper_interop.trace import Trace

    Place = tuple[int, int]
    """Rank and device of a series; a rank of -1 is the node."""

BEST = Fault(
    "telemetry-finest",
    Severity.INFO,
    "Quantities of a GPU that several tools sampled are taken from the one whose samples are "
    "closest in time and best known in time, and from the next one where that tells nothing.",
)
NO_POWER = Fault(
    "power-unknown",
    Severity.INFO,
    "GPUs whose telemetry tells no power, as second dies and partitions do not have one of their "
    "own, or 0 W throughout: power of their work is not known, and energy only of second dies, as a part "
    "of their module's.",
)
FROM_COUNTER = Fault(
    "power-from-counter",
    Severity.INFO,
    "GPUs of which no power was sampled: it is what their energy counter rose by between samples.",
)
OF_MODULE = Fault(
    "power-of-module",
    Severity.INFO,
    "GPUs that are one of two dies of a module: the power that the first die tells is that of both, "
    "and its energy is shared among the work of both.",
)
IMPOSSIBLE = Fault(
    "telemetry-impossible",
    Severity.LOSS,
    "Samples of values that no GPU can have were not used for what ran meanwhile.",
)
BY_NUMBER = Fault(
    "telemetry-by-number",
    Severity.INFO,
    "A profiler's samples of GPUs were taken as those of the devices with the same numbers, which "
    "holds unless the process was shown some of the GPUs alone.",
)
PARTITIONS = Fault(
    "telemetry-of-partitions",
    Severity.INFO,
    "GPUs whose telemetry is of several partitions each: which of them a process computes on is "
    "not told, so its work has none of it.",
)

_LARGEST = 1e18
"""Beyond all values; NaN is not within it either."""
_FEW = 8
"""So many samples do not tell how often a tool takes them."""


@dataclass(frozen=True)
class Source:
    """What one tool tells of one quantity of a GPU.

    Parameters
    ----------
    tool
        Who sampled it.
    told
        What tells it.
    samples
        Die (-1 where dies are not told apart), and its samples; several of one die are causes.
    """

    tool: str
    told: Told
    samples: tuple[tuple[int, Samples], ...]

    @property
    def resolution_ns(self) -> int:
        """That of the best of its series."""
        return min(s.resolution_ns for _, s in self.samples)


@dataclass(frozen=True)
class Gpu:
    """A GPU of the job with telemetry.

    Parameters
    ----------
    rank, device
        Those of its series; a rank of -1 is the node, whose number of the device holds for all.
    ranks
        Who computes on it.
    rows
        Its work: rows of nodes, in their order.
    told
        Sources by quantity, the best first.
    counters
        Its energy counter by tool, joules; as each of its captures tells it.
    """

    rank: int
    device: int
    ranks: tuple[int, ...]
    rows: Array
    told: dict[str, tuple[Source, ...]]
    counters: dict[str, tuple[Samples, ...]]


def gpus(
    trace: Trace,
    issues: IssueLog | None = None,
    quantities: Sequence[Quantity] = names.QUANTITIES,
    *,
    every: bool = False,
) -> list[Gpu]:
    """GPUs on which work ran and of which telemetry tells something.

    Parameters
    ----------
    trace
        Any trace.
    issues
        Where it is told what was chosen and left out.
    quantities
        What to look for.
    every
        Whether those count too of which telemetry tells nothing.
    """
    issues = IssueLog() if issues is None else issues
    owned = owners(trace, quantities, bare=every)
    if not owned:
        return []
    reader = _Reader.of(trace, issues, quantities)
    found = []
    for own in owned:
        gpu = reader.gpu(own.place, own.ranks, own.rows, own.series)
        if gpu.told or gpu.counters or every:
            found.append(gpu)
    return found


@dataclass(frozen=True)
class Owner:
    """Work of a GPU, and the series that are of it.

    Parameters
    ----------
    place
        Rank and device of its series, the first of several.
    ranks
        Who computes on it.
    rows
        Its work: rows of nodes, in their order.
    series
        Rows of series.
    """

    place: Place
    ranks: tuple[int, ...]
    rows: Array
    series: list[int]


def owners(
    trace: Trace,
    quantities: Sequence[Quantity] = names.QUANTITIES,
    *,
    every: bool = False,
    bare: bool = False,
) -> list[Owner]:
    """GPUs on which work ran and that have series.

    Parameters
    ----------
    trace
        Any trace.
    quantities
        What series count that tell one of these, beside those of `QUANTITIES`.
    every
        Whether all series count, not only those that tell a quantity of nodes.
    bare
        Whether GPUs without series count, each rank's devices as its own.
    """
    places = _places(trace, quantities, every=every)
    if not places and not bare:
        return []
    work = work_of(trace)
    devices = Counter(rank for rank, _ in work)
    owned: dict[tuple[Place, ...], list[tuple[int, Array]]] = defaultdict(list)
    for (rank, device), rows in work.items():
        of = _places_of(trace, places, rank, device, is_only=devices[rank] == 1)
        if of or bare:
            owned[of or ((rank, device),)].append((rank, rows))
    return [
        Owner(
            of[0],
            tuple(sorted(rank for rank, _ in users)),
            users[0][1] if len(users) == 1 else np.sort(np.concatenate([r for _, r in users])),
            [row for place in of for row in places.get(place, ())],
        )
        for of, users in owned.items()
    ]


def without_work(
    trace: Trace,
    known: Sequence[Gpu],
    quantities: Sequence[Quantity] = names.QUANTITIES,
) -> list[Gpu]:
    """GPUs of which telemetry tells something, and on which no rank is known to compute.

    Parameters
    ----------
    trace
        Any trace.
    known
        Those of `gpus`.
    quantities
        What to look for.
    """
    used = {(gpu.rank, gpu.device) for gpu in known} | {(r, -1) for gpu in known for r in gpu.ranks}
    reader = _Reader.of(trace, IssueLog(), quantities)
    none = np.zeros(0, np.int64)
    found = []
    for place, rows in sorted(_places(trace, quantities).items()):
        if place in used:
            continue
        gpu = reader.gpu(place, (place[0],), none, rows)
        if gpu.told or gpu.counters:
            found.append(replace(gpu, ranks=()))
    return found


def work_of(trace: Trace) -> dict[Place, Array]:
    """Rows of the GPU work of each rank on each device, ascending."""
    rows = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    lane, of_lane = trace.array("lane")[rows], trace.array("device", "lanes")
    found = {}
    for rank, piece in trace.rank_rows.items():
        bounds = slice(*np.searchsorted(rows, [piece.start, piece.stop]))
        mine, lanes = rows[bounds], lane[bounds]
        numbers = np.unique(of_lane[gather.used(lanes)]).tolist()
        for number in numbers:
            alone = len(numbers) == 1
            found[rank, number] = mine if alone else mine[of_lane[lanes] == number]
    return found


def places_of(trace: Trace, rows: Array) -> list[Place]:
    """Ranks and devices of these nodes, each once, in the order of their first."""
    device = trace.array("device", "lanes")[trace.array("lane")[rows]]
    rank = trace.array("rank")[rows]
    first, _ = gather.distinct(rank, device)
    return list(zip(rank[first].tolist(), device[first].tolist(), strict=True))


def _places(
    trace: Trace, quantities: Sequence[Quantity], *, every: bool = False
) -> dict[Place, list[int]]:
    """Rows of the series of each rank and device, of those that tell something of GPUs, or all."""
    found: dict[Place, list[int]] = defaultdict(list)
    wanted = (*names.QUANTITIES, *(q for q in quantities if q not in names.QUANTITIES))
    for row, series in enumerate(trace.series.to_pylist()):
        if (
            every
            or any(told.match(series["name"]) for q in wanted for told in q.told)
            or (names.PARTITION.fullmatch(series["name"]) and series["rank"] >= 0)
        ):
            found[series["rank"], series["device"]].append(row)
    return found


def _places_of(
    trace: Trace, places: dict[Place, list[int]], rank: int, device: int, *, is_only: bool
) -> tuple[Place, ...]:
    """Whose series tell of the GPU of a rank's work.

    Parameters
    ----------
    trace, places
        The trace, and where it has series.
    rank, device
        Whose work it is, and where it ran.
    is_only
        Whether the rank works on no other device: what is its own is then of this one, whatever
        it is numbered as.
    """
    found = [(rank, device)] if (rank, device) in places else []
    if is_only and not found:
        own = [place for place in places if place[0] == rank]
        numbered = [place for place in own if place[1] >= 0]
        found = numbered if len(numbered) == 1 else []
        found += [place for place in own if place[1] < 0]
    elif is_only and (rank, -1) in places and device >= 0:
        found.append((rank, -1))
    if found or (-1, device) not in places or device < 0:
        return tuple(found)
    return ((-1, device),) if _is_of_lanes(trace, places[-1, device], device) else ()


def _is_of_lanes(trace: Trace, series: list[int], device: int) -> bool:
    """Whether the node's series number a GPU as lanes do, and mean that of one machine alone."""
    if len({r.host for r in trace.meta.ranks}) > 1:
        return False
    rows = arrow.take(trace.series, np.array(series)).to_pylist()
    keys = [(s["name"], s["source"]) for s in rows]
    if len(set(keys)) < len(keys):  # of two files: of two machines, or of two runs
        return False
    told = any(m.rank < 0 and m.device == device for m in trace.meta.device_matches)
    return told or {tool for _, tool in keys} <= set(names.NUMBERED_AS_LANES)


@dataclass(frozen=True)
class _Reader:
    """Reads samples of series, and chooses among them."""

    trace: Trace
    issues: IssueLog
    series: list[dict[str, Any]]
    bounds: Array
    quantities: tuple[Quantity, ...]

    @classmethod
    def of(cls, trace: Trace, issues: IssueLog, quantities: Sequence[Quantity]) -> _Reader:
        """A reader of a trace's series."""
        owner = trace.array("series", "samples")
        bounds = np.searchsorted(owner, np.arange(trace.series.num_rows + 1, dtype=owner.dtype))
        return cls(trace, issues, trace.series.to_pylist(), bounds, tuple(quantities))

    def gpu(self, place: Place, ranks: tuple[int, ...], rows: Array, series: list[int]) -> Gpu:
        """A GPU with what tells of it."""
        table = {row: self.series[row] for row in series}
        parts = {s["name"] for s in table.values() if names.PARTITION.fullmatch(s["name"])}
        self.issues.add(PARTITIONS, _several(parts), f"rank {ranks[0]}: {min(parts, default='')}")
        whole = {} if _several(parts) else table
        told = {}
        for quantity in self.quantities:
            is_throttle = quantity is names.THROTTLE
            sources = (
                self._throttle(whole) if is_throttle else self._sources(quantity, whole, ranks)
            )
            if sources:
                told[quantity.name] = sources
        counters: dict[str, tuple[Samples, ...]] = {}
        for row, s in table.items():
            if s["name"] == "energy" and s["unit"] == "J":
                counter = self._sampled(row, *self._finite(row))
                if counter is not None:
                    counters[s["source"]] = (*counters.get(s["source"], ()), counter)
        gpu = Gpu(*place, ranks, rows, told, counters)
        self._note_power(gpu)
        numbered = [s.tool for sources in told.values() for s in sources if s.told.is_numbered]
        self.issues.add(BY_NUMBER, bool(numbered), f"device {gpu.device} of {numbered[:1]}")
        return gpu

    def _sources(
        self, quantity: Quantity, table: dict[int, dict[str, Any]], ranks: tuple[int, ...]
    ) -> tuple[Source, ...]:
        """Sources of a quantity, the best known in time first; of equal ones the first told.

        A tool that tells dies as well as the whole GPU is taken at what it tells of dies.
        """
        found = []
        for order, told in enumerate(quantity.told):
            by_tool: dict[tuple[Any, ...], list[tuple[int, Samples]]] = defaultdict(list)
            files: dict[tuple[Any, ...], int] = defaultdict(int)  # that tell the same
            for row, series in table.items():
                match = told.match(series["name"])
                if match is None or series["unit"] not in told.units:
                    continue
                samples = self._samples(quantity, told, row, series)
                if samples is not None:
                    die = match.groupdict().get("die")
                    tool = (series["source"], series["uncertainty_ns"])
                    same = (*tool, series["name"])
                    files[same] += 1
                    key = (*tool, files[same])
                    by_tool[key].append((-1 if die is None else int(die), samples))
            for (name, *_), samples_of in by_tool.items():
                dies = [(die, samples) for die, samples in samples_of if die >= 0]
                source = Source(name, told, tuple(dies or samples_of))
                found.append((source.resolution_ns, order, source))
        found.sort(key=lambda entry: entry[:2])
        tools = list(dict.fromkeys(source.tool for *_, source in found))
        if len(tools) > 1:
            self.issues.add(BEST, 1, f"rank {ranks[0]}: {quantity.name} of {', '.join(tools)}")
        return tuple(source for *_, source in found)

    def _throttle(self, table: dict[int, dict[str, Any]]) -> tuple[Source, ...]:
        """All causes that hold a clock down together: one source, of whatever tells each best."""
        shares, every = [], names.THROTTLE.told
        for row, series in table.items():
            told = next((told for told in every if told.match(series["name"])), None)
            if told is None or series["unit"] not in told.units:
                continue
            samples = self._causes(told, row, series)
            if samples is not None:
                of = throttle_causes.shares(series["name"], series["unit"], samples)
                shares += [(series["source"], share) for share in of]
        for tool, share in shares:
            self.issues.add(IMPOSSIBLE, share.impossible, f"throttling by {share.cause} of {tool}")
        found = throttle_causes.of_gpu(shares)
        return () if found is None else (Source(found[0], every[0], ((-1, found[1]),)),)

    def _causes(self, told: Told, row: int, series: dict[str, Any]) -> Samples | None:
        """Samples of a series of throttling as it tells them; those of counters are counts."""
        ts, value = self._finite(row)
        if not told.is_counter and not told.is_status:
            share = value * told.units[series["unit"]]
            possible = (share >= names.THROTTLE.least) & (share <= names.THROTTLE.most)
            wrong = np.count_nonzero(~possible)
            self.issues.add(IMPOSSIBLE, wrong, f"{series['name']} of {series['source']}")
            ts, value = ts[possible], value[possible]
        ts, value = ends.ended(self._ticks, series, ts, value)
        return self._sampled(row, ts, value, is_straight=told.is_counter)

    def _samples(
        self, quantity: Quantity, told: Told, row: int, series: dict[str, Any]
    ) -> Samples | None:
        ts, value = self._finite(row)
        value *= told.units[series["unit"]]
        if told.is_counter:
            value *= names.ENERGY_UNITS.get(series["source"], 1.0)
            counter = self._sampled(row, ts, value)
            return None if counter is None else counters.power(counter, quantity.most)
        possible = (value >= quantity.least) & (value <= quantity.most)
        wrong = np.count_nonzero(~possible)
        self.issues.add(IMPOSSIBLE, wrong, f"{series['name']} of {series['source']}")
        ts, value = ts[possible], value[possible]
        if quantity is names.POWER and not value.any():
            return None
        if told.is_window:
            return windowed(ts, value, series["uncertainty_ns"]) if ts.size else None
        if told.is_logged:
            return logged(ts, value, series["uncertainty_ns"]) if ts.size else None
        return self._sampled(row, ts, value, is_straight=quantity.is_straight)

    def _sampled(
        self, row: int, ts: Array, value: Array, *, is_straight: bool = True
    ) -> Samples | None:
        """Samples of a series; those of few are as far apart as those of other GPUs' series."""
        if not ts.size:
            return None
        uncertainty = self.series[row]["uncertainty_ns"]
        period = self._steps.get(_sampling(self.series[row])) if len(ts) <= _FEW else None
        return sampled(ts, value, uncertainty, is_straight=is_straight, period_ns=period)

    @cached_property
    def _ticks(self) -> dict[tuple[Any, ...], Array]:
        return ends.ticks(self.series, lambda row: self._finite(row)[0])

    @cached_property
    def _steps(self) -> dict[tuple[Any, ...], int]:
        """The shortest usual step among series of the same quantity by the same tool."""
        found: dict[tuple[Any, ...], int] = {}
        for row, series in enumerate(self.series):
            key, step = _sampling(series), usual_step(self._finite(row)[0])
            if step:
                found[key] = min(step, found.get(key, step))
        return found

    def _finite(self, row: int) -> tuple[Array, Array]:
        mine = slice(self.bounds[row], self.bounds[row + 1])
        ts, value = (self.trace.array(c, "samples")[mine] for c in ("ts", "value"))
        finite = np.abs(value) <= _LARGEST
        return ts[finite], value[finite].copy()

    def _note_power(self, gpu: Gpu) -> None:
        source = next(iter(gpu.told.get(names.POWER.name, ())), None)
        where = f"rank {gpu.ranks[0]}, device {gpu.device}"
        self.issues.add(NO_POWER, int(source is None and bool(gpu.told)), where)
        self.issues.add(FROM_COUNTER, int(source is not None and source.told.is_counter), where)
        called = {d.name for d in self.trace.meta.devices if d.device == gpu.device}
        dual = any(names.DUAL_DIE.search(name) for name in called)
        self.issues.add(OF_MODULE, int(source is not None and dual), where)


def _sampling(series: dict[str, Any]) -> tuple[Any, ...]:
    """What series have in common that were sampled together."""
    return series["name"], series["source"], series["uncertainty_ns"]


def _several(parts: set[str]) -> int:
    """Whether names are of more partitions than the one that a whole GPU is."""
    numbers = {int(found[1]) for part in parts if (found := names.PARTITION.fullmatch(part))}
    return int(bool(numbers - {0}))


def unowned(trace: Trace, known: Sequence[Gpu]) -> Iterator[int]:
    """Rows of the node's series of power of GPUs on which no rank is known to compute."""
    power = names.POWER.told
    used = {(gpu.rank, gpu.device) for gpu in known}
    for row, series in enumerate(trace.series.to_pylist()):
        place = (series["rank"], series["device"])
        matched = any(t.match(series["name"]) and not t.is_counter for t in power)
        if matched and place[0] < 0 and place not in used:
            yield row

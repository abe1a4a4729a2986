"""Every series of a trace with its samples, whose it is, and the work of its GPU."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.series.rules import How, Rule, rule
from chopper_interop.annotate.telemetry import gpu_series
from chopper_interop.annotate.telemetry.sampled_series import LARGEST, SampledSeries, sampler_key
from chopper_interop.annotate.telemetry.samples import (
    Samples,
    change_log_samples,
    periodic_samples,
    window_samples,
)
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.gpus import devices
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.trace import Trace


@dataclass(frozen=True, eq=False)
class SeriesPlace:
    """Owner of a series: a device or a node.

    Parameters
    ----------
    rank, device
        Those of the series; a rank of -1 is the node, a device of -1 no GPU.
    host
        Name of its node, empty if it is not known.
    ranks
        Ranks that compute on its GPU; all if it is of no GPU and of no rank.
    rows
        The GPU work that its windows follow: rows of nodes.
    is_owned
        True if that work is known to be of its GPU.
    """

    rank: int
    device: int
    host: str
    ranks: tuple[int, ...]
    rows: Array
    is_owned: bool


@dataclass(frozen=True, eq=False)
class Series:
    """One series.

    Parameters
    ----------
    row
        Its row in `Trace.series`.
    name, unit, source
        As there.
    rule
        The way to join its samples.
    place
        The device or node that it is of.
    samples
        Its samples.
    left_out
        Number of its samples that were left out: not finite, or impossible for a GPU.
    is_ended
        True if the last entry is no sample, but the time until which the one before holds.
    """

    row: int
    name: str
    unit: str
    source: str
    rule: Rule
    place: SeriesPlace
    samples: Samples
    left_out: int
    is_ended: bool = False

    @property
    def count(self) -> int:
        """Number of samples that were taken."""
        return len(self.samples.ts) - self.is_ended


def names_in(names: str) -> Callable[[str], bool]:
    """Return a predicate for names that a text like ``"*clock*,socket power"`` chooses."""
    patterns = [p.strip().lower() for p in names.split(",") if p.strip()]
    return lambda name: not patterns or any(fnmatchcase(name.lower(), p) for p in patterns)


def read(
    trace: Trace, ranks: str = "", wanted: Callable[[dict[str, Any]], bool] | None = None
) -> list[Series]:
    """Series with samples, in the order of the trace.

    Parameters
    ----------
    ranks
        Series of these ranks' GPUs and nodes alone, as of `windows.chosen_ranks`.
    wanted
        Predicate on rows of series that selects them; all by default.

    Raises
    ------
    UsageError
        The trace has none of these ranks.
    """
    reader = _SampleReader(trace)
    places = _SeriesOwners(trace, ranks)
    result = []
    for row, series in enumerate(reader.series):
        if wanted is None or wanted(series):
            place = places.place_of_series(row, series)
            one = None if place is None else reader.one(row, place)
            result += [one] if one else []
    return result


class _SeriesOwners:
    """Owners of series, of the ranks that were chosen."""

    def __init__(self, trace: Trace, ranks: str) -> None:
        self._trace = trace
        sampled_on = set(trace.array("rank", "series").tolist()) - {-1}
        chosen = windows.chosen_ranks(trace, ranks, also=sampled_on)
        self._all = not ranks
        self._chosen = set(chosen)
        self._made: dict[tuple[Any, ...], SeriesPlace] = {}
        self._hosts = {r.rank: r.host for r in trace.meta.ranks}
        self._host = devices.only_host(trace)
        self._of: dict[int, tuple[tuple[int, ...], Array]] = {}
        for owner in gpu_series.series_owners(trace, all_series=True):
            self._of |= dict.fromkeys(owner.series, (owner.ranks, owner.rows))

    def place_of_series(self, row: int, series: dict[str, Any]) -> SeriesPlace | None:
        """Owner of a series; None if it is of none of the ranks that were chosen."""
        owned = self._of.get(row)
        key = (series["rank"], series["device"], None if owned is None else id(owned[1]))
        if key not in self._made:
            self._made[key] = self._place(series["rank"], series["device"], owned)
        place = self._made[key]
        wanted = self._all or (bool(self._chosen & set(place.ranks)) and self._is_of(place))
        return place if wanted else None

    def _is_of(self, place: SeriesPlace) -> bool:
        """True if it is of the GPUs of its ranks, or of their node."""
        return place.is_owned or place.rank >= 0 or place.device < 0

    def _place(
        self, rank: int, device: int, owned: tuple[tuple[int, ...], Array] | None
    ) -> SeriesPlace:
        if owned is not None:
            ranks, rows = owned
        elif rank >= 0:
            ranks, rows = (rank,), self._rows_of(rank)
        else:
            ranks, rows = tuple(self._trace.ranks), self._work
        if not self._all:
            rows = rows[np.isin(self._trace.array("rank")[rows], list(self._chosen))]
        host = self._host or next((h for r in ranks if rank >= 0 and (h := self._hosts.get(r))), "")
        return SeriesPlace(rank, device, host, ranks, rows, owned is not None)

    @cached_property
    def _work(self) -> Array:
        return np.flatnonzero(is_any(self._trace.array("kind"), GPU_WORK))

    def _rows_of(self, rank: int) -> Array:
        """GPU work of a rank; of one that has none, all."""
        rank_rows = self._work[self._trace.array("rank")[self._work] == rank]
        return rank_rows if rank_rows.size else self._work


class _SampleReader(SampledSeries):
    """Samples of series, by their rules."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self._rules: dict[tuple[str, str], Rule] = {}

    def one(self, row: int, place: SeriesPlace) -> Series | None:
        """A series; None if it has no samples that count."""
        about = self.series[row]
        by = self._rule(about)
        ts, value = self.points(row)
        with np.errstate(invalid="ignore"):
            good = (np.abs(value) <= LARGEST) & (value >= by.minimum) & (value <= by.maximum)
        if not good.any():
            return None
        samples = self._samples(row, by, ts[good], value[good])
        kept = int(np.count_nonzero(good))
        texts = (about["name"], about["unit"], about["source"])
        is_ended = bool(samples.ts[-1] > ts[good][-1])
        return Series(row, *texts, by, place, samples, len(ts) - kept, is_ended)

    def _samples(self, row: int, by: Rule, ts: Array, value: Array) -> Samples:
        about = self.series[row]
        uncertainty = about["uncertainty_ns"]
        if by.how is How.LOGGED:
            return change_log_samples(ts, value, uncertainty)
        if by.how is How.WINDOW:
            return window_samples(ts, value, uncertainty)
        if by.how is How.STEADY:
            return self._steady(about, ts, value)
        period = self.period_of_few(row, len(ts))
        straight = by.how in (How.STRAIGHT, How.COUNTER)
        ts, value = self.with_last_end(row, ts, value)
        return periodic_samples(ts, value, uncertainty, is_linear=straight, period_ns=period)

    def _steady(self, about: dict[str, Any], ts: Array, value: Array) -> Samples:
        """Extend a value that holds until the end of the series that were sampled with it."""
        end = self._ends.get(sampler_key(about), int(ts[-1]))
        if end > ts[-1]:
            ts, value = np.append(ts, end), np.append(value, value[-1])
        period = self._place_steps.get(sampler_key(about), 0)
        made = periodic_samples(ts, value, about["uncertainty_ns"], period_ns=period)
        unknown = np.zeros(len(made.ts), np.bool_)
        unknown[-1] = True
        return Samples(made.ts, made.value, unknown, False, made.uncertainty_ns, period, True)

    def _rule(self, about: dict[str, Any]) -> Rule:
        key = (about["name"], about["unit"])
        if key not in self._rules:
            self._rules[key] = rule(*key)
        return self._rules[key]

    @cached_property
    def _place_steps(self) -> dict[tuple[Any, ...], int]:
        """The shortest usual step among all series that a tool sampled of one place."""
        every = enumerate(self.series)
        changing = (row for row, one in every if self._rule(one).how is not How.STEADY)
        return self.shortest_steps(sampler_key, changing)

    @cached_property
    def _ends(self) -> dict[tuple[Any, ...], int]:
        """The last sample that a tool took of a place."""
        ends: dict[tuple[Any, ...], int] = defaultdict(lambda: np.iinfo(np.int64).min)
        for row, series in enumerate(self.series):
            ts = self.points(row)[0]
            if ts.size:
                ends[sampler_key(series)] = max(ends[sampler_key(series)], int(ts[-1]))
        return dict(ends)

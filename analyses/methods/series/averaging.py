"""Intervals of time over which series are averaged: windows, steps, phases of a GPU's work."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.grouping import Item, by_key
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.analyses.methods.series.samples import SeriesPlace

RANK, NODE, JOB = "rank", "node", "job"
OWNERS = (RANK, NODE, JOB)
"""Owner of a row: one of these in `by`; else a GPU."""
ALL = "all"
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True)
class By:
    """Grouping of rows.

    Parameters
    ----------
    kind
        One of `OWNERS`.
    grains
        Further keys by which work is grouped, names out of `grouping.GRAINS`.
    """

    kind: str
    grains: tuple[str, ...]

    def groups(
        self,
        items: Iterable[Item],
        place: Callable[[Item], SeriesPlace],
        key: Callable[[Item], Hashable],
    ) -> list[list[Item]]:
        """Items that share rows: each alone if owners are ranks, else those of an owner with equal keys.

        Parameters
        ----------
        items
            Series, or what was made of them.
        place
            Place of an item.
        key
            What an item is a series of.
        """
        if self.kind == RANK:
            return [[item] for item in items]
        of_node = self.kind == NODE
        shared = by_key(items, lambda item: (place(item).host if of_node else "", key(item)))
        return list(shared.values())


def by_of(by: str) -> By:
    """Rows by a text like ``"rank,phase"``.

    Raises
    ------
    UsageError
        There is no such name, or more than one of `OWNERS`.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    owner = [name for name in dict.fromkeys(names) if name in OWNERS]
    if len(owner) > 1:
        raise OptionError(f"by={by}: choose one of {', '.join(owner)}")
    known = grouping.parse_grains(by, OWNERS)
    return By(owner[0] if owner else RANK, tuple(n for n in known if n not in OWNERS))


@dataclass(frozen=True)
class AveragingWindows:
    """Intervals of time, each of one cell.

    Parameters
    ----------
    cell
        Number of the cell of each.
    start, end
        Nanoseconds; those of a cell ascend and do not overlap.
    """

    cell: Array
    start: Array
    end: Array

    def length(self, n: int) -> Array:
        """Total length of the intervals of each of `n` cells."""
        return gather.group_sums(self.cell, self.end - self.start, n)


class Plan:
    """Intervals of each device or node, in cells that are the same for all.

    Parameters
    ----------
    by
        The grouping of rows.
    steps
        As of `windows.rank_windows`.
    window
        "" for a GPU's work, ``all`` for all of the telemetry.

    Raises
    ------
    UsageError
        There are no such steps, or no such window.
    """

    def __init__(self, trace: Trace, by: By, steps: str = "", window: str = "") -> None:
        if window not in {"", ALL}:
            raise OptionError(f"window={window}: leave it out, or write {ALL}")
        if window and (steps or by.grains):
            raise UsageError(f"window={ALL} has no steps and groups of work")
        self._trace, self._steps, self._by = trace, steps, by
        self.is_all = bool(window)
        self._windows = windows.rank_windows(trace, steps) if steps else []
        self._numbers = sorted({w.iteration for w in self._windows})
        self._made: dict[SeriesPlace, AveragingWindows] = {}
        self._groups(trace)

    def _groups(self, trace: Trace) -> None:
        """Groups of all GPU work by the grains."""
        grains = tuple(g for g in self._by.grains if not (self._steps and g == "iteration"))
        self._keys: pa.Table | None = None
        self._code = np.zeros(0, np.int64)
        self._is_span = grains == ("iteration",)
        if not grains:
            return
        work = np.flatnonzero(grouping.work_classes(trace, np.arange(trace.nodes.num_rows)) >= 0)
        groups = grouping.group_nodes(trace, work, ",".join(grains))
        self._keys = groups.keys
        self._code = np.full(trace.nodes.num_rows, -1, np.int64)
        self._code[work] = groups.code

    @property
    def n_groups(self) -> int:
        """Number of groups of work."""
        return 1 if self._keys is None else int(self._keys.num_rows)

    @property
    def owner(self) -> str:
        """Kind of owner of a row, one of `OWNERS`."""
        return self._by.kind

    @property
    def is_grouped(self) -> bool:
        """True if intervals are those of groups of work."""
        return self._keys is not None

    @property
    def cells(self) -> int:
        """Number of cells."""
        return self.n_groups * max(len(self._numbers), 1)

    def keys(self, cell: Array) -> dict[str, Any]:
        """Columns that say which cell each of these is."""
        step, group = np.divmod(cell, self.n_groups)
        columns: dict[str, Any] = {}
        if self._steps:
            numbers = np.array(self._numbers, np.int32)
            columns["iteration"] = arrow.array(
                numbers[step] if numbers.size else _NONE.astype("i4")
            )
        if self._keys is not None:
            columns |= {
                name: arrow.take(arrow.single_chunk(self._keys[name]), group)
                for name in self._keys.column_names
            }
        return columns

    def averaging_windows(self, place: SeriesPlace, first: int, last: int) -> AveragingWindows:
        """Intervals of a device or node.

        Parameters
        ----------
        place
            The owner of the series.
        first, last
            Times of its first and last sample: the window where there is no GPU work at all, and none is asked for by groups.
        """
        if not self.cells:
            return AveragingWindows(*(_NONE,) * 3)
        if self.is_all or (not place.rows.size and not self._steps):
            return _one(first, last)
        if place not in self._made:
            self._made[place] = self._of_work(place)
        return self._made[place]

    def _of_work(self, place: SeriesPlace) -> AveragingWindows:
        start = self._trace.array("ts")[place.rows]
        end = start + self._trace.array("dur")[place.rows]
        if self._keys is None:
            if not self._steps:
                return _one(int(start.min()), int(end.max()))
            return self._in_steps(place, *(_NONE,) * 3)
        code = self._code[place.rows]
        order = np.argsort(start, kind="stable")
        code, start, end = code[order], start[order], end[order]
        if self._is_span:
            code, start, end = _spans(code, start, end, self._known)
        else:
            code, start, end = intervals.group_unions(code, start, end, self.n_groups)
        return (
            self._in_steps(place, code, start, end)
            if self._steps
            else AveragingWindows(code, start, end)
        )

    @property
    def _known(self) -> Array:
        """Groups of which the training step is known."""
        assert self._keys is not None  # noqa: S101 - for the type checker
        return arrow.is_valid(self._keys["iteration"])

    def _in_steps(
        self, place: SeriesPlace, code: Array, start: Array, end: Array
    ) -> AveragingWindows:
        """Parts within training steps; all of a step where work is not grouped."""
        parts: list[tuple[Any, Any, Any]] = []
        for number, (low, high) in self._steps_of(place).items():
            at = self._numbers.index(number) * self.n_groups
            if self._keys is None:
                parts.append(([at], [low], [high]))
                continue
            begin, stop = np.maximum(start, low), np.minimum(end, high)
            inside = stop > begin
            parts.append((code[inside] + at, begin[inside], stop[inside]))
        if not parts:
            return AveragingWindows(_NONE, _NONE, _NONE)
        return AveragingWindows(
            *(np.concatenate(p).astype(np.int64) for p in zip(*parts, strict=True))
        )

    def _steps_of(self, place: SeriesPlace) -> dict[int, tuple[int, int]]:
        """Start and end of the steps of a place's ranks, of several from first to last."""
        bounds: dict[int, tuple[int, int]] = {}
        for window in self._windows:
            if window.rank in place.ranks:
                low, high = bounds.get(window.iteration, (window.start_ns, window.end_ns))
                bounds[window.iteration] = min(low, window.start_ns), max(high, window.end_ns)
        return bounds


def _one(start: int, end: int) -> AveragingWindows:
    return AveragingWindows(np.zeros(1, np.int64), np.array([start]), np.array([end]))


def _spans(code: Array, start: Array, end: Array, known: Array) -> tuple[Array, Array, Array]:
    """Extent of each group that is known: from its first start to its last end."""
    some = known[code]
    code, start, end = code[some], start[some], end[some]
    first = np.full(len(known), np.iinfo(np.int64).max)
    last = np.full(len(known), np.iinfo(np.int64).min)
    np.minimum.at(first, code, start)
    np.maximum.at(last, code, end)
    used = np.flatnonzero(last > np.iinfo(np.int64).min)
    return used, first[used], last[used]

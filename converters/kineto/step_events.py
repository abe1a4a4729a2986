"""Events of a file that some training steps need, so that a scan keeps no others (``--steps``).

A launch may stand anywhere in a file before or behind its kernel. So the file is scanned twice: first for ranges of steps and
calls, then for what is in these ranges or was launched there::

    host   |-- ProfilerStep#4 --|   |-- ProfilerStep#5 --|      asked for: 5
              call 7   call 6          call 8                   kept: what starts in its range, and all ranges of steps
    GPU          kernel 6          kernel 7      kernel 8       kept: 8, as its call is

What is kept is a superset of the nodes of these steps, which `chosen_steps` picks when all is known of them. Which ranges are
steps depends on whether any work is launched in them: of the others one launch and its work are kept (here 7, not 6), and all
work without a launch. Times count from the first event of the file, whether it is kept or not. A file in which
launches follow otherwise than from correlation ids, or an id is of launches in these steps and in others, or spans follow from
begins and ends, is kept whole.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, Bytes, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.kineto.categories import (
    FLOWS,
    LAUNCH_FLOWS,
    ON_DEVICE,
    OPERATOR_FLOWS,
)
from chopper_interop.io import json_events, json_members
from chopper_interop.io.json_events import HAS_DUR, HAS_TS, TEXT_ID
from chopper_interop.schemas.categories import MIXED_CATEGORIES, PYTORCH
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, RANGES
from chopper_interop.schemas.names import STEPS
from chopper_interop.training_steps import LEAST_UNIT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from chopper_interop.io.json_events import Events, Select

_CORRELATION = "correlation"
_FORWARD_BACKWARD = "fwdbwd"
_SPAN = ord("X")
_NEVER = np.iinfo(np.int64).min
_BEGIN_END, _ARROW = [[ord(letter) for letter in letters] for letters in ("BE", "stf")]
_PAIR = 2
"""Ends of an arrow."""


class _KeptWhole(Exception):  # noqa: N818 # no error, but what ends a first scan
    """A file has events of which it is not known whether they are of a step."""


class Choice:
    """Choice of the events of a file that are kept for some steps.

    Parameters
    ----------
    steps
        Numbers of the steps.
    """

    def __init__(self, steps: Collection[int]) -> None:
        self._steps = steps
        self.first_ts: int | None = None
        """Time of the first span that was scanned, kept or not; all that is no span is kept."""

    def __call__(self, scan: Callable[[Select], Events]) -> Select | None:
        """Return what selects the events, by a first scan of the file; None for all of them."""
        work: list[Array] = []
        try:
            with json_members.keeping((_CORRELATION,)):
                events = scan(partial(self._of_first_scan, work))
        except _KeptWhole:
            return None
        return _selection(events, gather.joined(work), self._steps)

    def _of_first_scan(
        self, work: list[Array], window: Bytes, rows: Array, strings: list[bytes]
    ) -> Array:
        """Mark ranges of steps, calls, and arrows between operators; raise `_KeptWhole` where it is not known what is of a step.

        Correlation ids of GPU work are added to a list.
        """
        events = _Piece(window, rows, strings)
        has_ts = rows["has"] & HAS_TS != 0
        times = rows["ts"][has_ts & events.span]
        if times.size:
            first = int(times.min())
            self.first_ts = first if self.first_ts is None else min(self.first_ts, first)
        arrow = is_any(rows["ph"], _ARROW)
        linked, correlation, is_linked = events.correlations()
        is_work = is_any(events.kind[linked], GPU_WORK)
        work.append(correlation[is_work])
        no_launch = is_work & (~is_linked | (correlation <= 0))
        other_launch = arrow & events.of_categories(*LAUNCH_FLOWS, *OPERATOR_FLOWS)
        if no_launch.any() or other_launch.any() or is_any(rows["ph"], _BEGIN_END).any():
            raise _KeptWhole
        timed = has_ts & (rows["has"] & HAS_DUR != 0)
        kept = events.span & timed & is_any(events.kind, RANGES) & events.of_names(_is_step)
        kept[linked] |= is_any(events.kind[linked], CALLS)
        return kept | (arrow & events.of_categories(_FORWARD_BACKWARD))


def _selection(events: Events, of_work: Array, steps: Collection[int]) -> Select | None:
    """Select events for some steps, by what the first scan kept, and the ids of all work; None for all."""
    columns, texts = events.columns, events.texts()
    numbers = np.array([*map(_step_number, texts), -1])[columns["name"]]
    is_range = (columns["ph"] == _SPAN) & (numbers >= 0)
    if not is_range.any():
        return None
    ranges = np.flatnonzero(is_range & _may_be_of(numbers, steps))
    spans = _Spans.of(columns["ts"][ranges], columns["dur"][ranges])
    inside = spans.contain(columns["ts"])
    rows = np.flatnonzero(columns["ph"] == _SPAN)
    at, length = columns["args_at"][rows], columns["args_len"][rows]
    (values,), (present,) = json_events.extract_integers(events.args, at, length, (_CORRELATION,))
    calls, number = rows[present], values[present]
    launched, elsewhere = (
        gather.unique(number[of_calls]) for of_calls in (inside[calls], ~inside[calls])
    )
    of_steps = of_work[gather.find(launched, of_work) >= 0]
    if of_work.size and not of_steps.size:
        return None  # ranges that launch nothing are no steps if others launch something, of which only the whole file says
    if (gather.find(elsewhere, of_steps) >= 0).any():
        return None  # an id of several launches: which of these counts, only the whole file says
    launches = np.flatnonzero(gather.find(gather.unique(of_work), number) >= 0)  # few of the calls
    calls, number = calls[launches], number[launches]
    ids, code, count = np.unique(number, return_inverse=True, return_counts=True)
    others = np.flatnonzero(~inside[calls])
    is_alone = count[code[others]] == 1
    of_ranges = np.flatnonzero(is_range)
    examples = _one_of_each_range(columns, of_ranges, calls[others], number[others], is_alone)
    if examples is None:
        return None
    unlaunched = of_work[gather.find(ids, of_work) < 0]
    arrows = np.flatnonzero(is_any(columns["ph"], _ARROW))
    return _Chosen(
        spans,
        gather.unique(np.concatenate([launched, examples, unlaunched])),
        _crossing(columns["id"][arrows], inside[arrows]),
    )


def _one_of_each_range(
    columns: dict[str, Array], ranges: Array, calls: Array, number: Array, is_alone: Array
) -> Array | None:
    """Correlation id of one call, of each process, in each range of a step; None if none of a range has an id alone.

    Parameters
    ----------
    columns
        Events.
    ranges
        Rows of ranges of steps.
    calls, number, is_alone
        Rows of calls that launch work, their ids, and whether no other call has the same.
    """
    pid, ts = columns["pid"].astype(np.int64), columns["ts"]
    end = np.append(ts[ranges] + columns["dur"][ranges], _NEVER)
    where: list[Array] = [pid[calls]]
    for group in (
        pid,
        np.zeros_like(pid),
    ):  # ranges of the process and, as it may have none, of any
        last = gather.preceding_rows(group[ranges], ts[ranges], group[calls], ts[calls])
        where += [last, ts[calls] < end[last]]
    places, place = gather.distinct(*where)
    first, _ = gather.distinct(place[is_alone])
    return number[is_alone][first] if len(first) == len(places) else None


def _may_be_of(numbers: Array, steps: Collection[int]) -> Array:
    """Mark numbers of names that may be those of these steps, which are higher by some units if they were counted again."""
    marks = np.zeros(len(numbers), np.bool_)
    for step in steps:
        marks |= (numbers <= step) & ((step - numbers) % LEAST_UNIT == 0)
    return marks


def _crossing(ids: Array, inside: Array) -> Array:
    """Ids of arrows, ascending, of which not both ends are inside; those of an id with more ends are not known."""
    _, code = gather.distinct(ids)
    pairs = np.bincount(code) == _PAIR
    within = np.bincount(code, inside) == _PAIR
    return gather.unique(ids[(pairs & ~within)[code] & (ids > TEXT_ID // 2)])


@dataclass(frozen=True)
class _Spans:
    """Spans of time that do not overlap, in order."""

    start: Array
    end: Array

    @classmethod
    def of(cls, start: Array, dur: Array) -> _Spans:
        """Join spans that overlap."""
        order = np.argsort(start, kind="stable")
        start, end = start[order], np.maximum.accumulate((start + dur)[order])
        first = np.append(True, start[1:] > end[:-1])[: len(start)]
        last = np.append(first[1:], True)[: len(start)]
        return cls(start[first], end[last])

    def contain(self, ts: Array) -> Array:
        """Mark times that are within any of them."""
        if not len(self.start):
            return np.zeros(len(ts), np.bool_)
        at = np.searchsorted(self.start, ts, "right") - 1
        return (at >= 0) & (ts < self.end[at])


@dataclass(frozen=True)
class _Chosen:
    """Events that are kept for some steps.

    Parameters
    ----------
    spans
        Ranges of the steps.
    launched
        Correlation ids of calls that start in them, of examples elsewhere, and of work without calls, ascending.
    crossing
        Ids of arrows from forward to backward operators that lead out of them, or are elsewhere.
    """

    spans: _Spans
    launched: Array
    crossing: Array

    def __call__(self, window: Bytes, rows: Array, strings: list[bytes]) -> Array:
        """Mark events of a piece that are kept."""
        events = _Piece(window, rows, strings)
        inside = self.spans.contain(rows["ts"])
        timed = rows["has"] & HAS_TS != 0
        kept = np.ones(len(rows), np.bool_)
        on_host = events.span & (events.kind > 0) & ~is_any(events.kind, list(ON_DEVICE)) & timed
        kept[on_host] = (inside | events.of_names(_is_step))[on_host]
        linked, correlation, _ = events.correlations()
        launched = gather.find(self.launched, correlation) >= 0
        kept[linked] = launched | (kept[linked] & ~is_any(events.kind[linked], GPU_WORK))
        arrow = is_any(rows["ph"], _ARROW)
        operators = arrow & events.of_categories(_FORWARD_BACKWARD)
        kept[operators] = gather.find(self.crossing, rows["id"][operators]) < 0
        of_launches = arrow & events.of_categories(*FLOWS) & ~operators
        kept[of_launches] = inside[of_launches]
        return kept


class _Piece:
    """Events of a piece, with what their strings say of them."""

    def __init__(self, window: Bytes, rows: Array, strings: list[bytes]) -> None:
        self._window, self._rows = window, rows
        self._texts = [json_events.unescape(raw) for raw in strings]
        kinds = [
            0 if text.lower() in MIXED_CATEGORIES else PYTORCH.get(text.lower(), 0)
            for text in self._texts
        ]
        self.span = rows["ph"] == _SPAN
        self.kind = np.array([*kinds, 0], np.uint8)[rows["cat"]]

    def of_names(self, is_meant: Callable[[str], bool]) -> Array:
        """Mark events with names that a function says."""
        return np.array([*map(is_meant, self._texts), False])[self._rows["name"]]

    def of_categories(self, *categories: str) -> Array:
        """Mark events of some categories."""
        return np.array([*(text in categories for text in self._texts), False])[self._rows["cat"]]

    def correlations(self) -> tuple[Array, Array, Array]:
        """Rows of calls and GPU work, their correlation ids, and whether each has one."""
        rows = np.flatnonzero(self.span & is_any(self.kind, (*CALLS, *GPU_WORK)))
        at, length = (np.ascontiguousarray(self._rows[c][rows]) for c in ("args_at", "args_len"))
        values, present = json_events.extract_integers(self._window, at, length, (_CORRELATION,))
        return rows, values[0], present[0]


def _is_step(name: str) -> bool:
    return _step_number(name) >= 0


def _step_number(name: str) -> int:
    """Number in the name of a range of a step; -1 for other names."""
    matches = (pattern.fullmatch(name) for pattern in STEPS)
    return next((int(match.group(1)) for match in matches if match and len(match[1]) < 10), -1)  # noqa: PLR2004

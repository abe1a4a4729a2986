"""Schedule of the calls of a vendor's library by ticks, so that the rate is reached whatever a call takes.

::

    tick            0    1    2    3    4    5    6 …
    clock, power    x    x    x    x    x    x    x     fast calls: each GPU at each tick
    energy          x              x              x     takes 3 ms a call: as often as its share of the time allows
    memory          x                                   changes slowly: once a second

What a call takes is measured, before the program starts and with each reading. Fast calls that do not all fit into a
period share what the clock leaves of it; so each GPU has them at some ticks, and their rates fall as their time grows.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from chopper_interop.recording.gpus import Call, Values

_LONG_S = 1e-4
"""Time beyond which a call counts as long. Chosen: most functions of NVML answer in a few to some tens of
microseconds."""
_FULL = 0.5
"""Share of a period that fast calls of all GPUs take at most. Chosen: the rest is for rows, and for being late."""
_SLOW_SHARE = 0.05
"""Share of the time that long calls take at most. Chosen: the rate that is reached is 95 % of the one asked for."""
_RETRY_S = 1.0
"""Time after which a call that never answered is made again. Chosen: GPUs that do not have it never answer."""
_MEASURED = 9
"""Durations of which the median counts. Chosen: few, and not moved by readings that were interrupted."""
_MIN_SHARE = 0.9
"""Share of the rows below which a call was read less often. Chosen: a reading that failed here and there does not show."""


class _Answer(Enum):
    """State of a call on a GPU: if it gives values."""

    UNASKED = 0
    NEVER = 1
    YES = 2
    NO_LONGER = 3


@dataclass(eq=False)
class _Calls:
    """A call on all GPUs: what it took, and when it is due."""

    call: Call
    due_s: list[float]
    answers: list[_Answer]
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED))
    columns: dict[str, None] = field(default_factory=dict)
    interval_s: float = 0.0
    """Time between two readings of a GPU; 0: at each tick."""
    readings: int = 0
    failed: int = 0
    first_failure: str = ""

    @property
    def call_s(self) -> float:
        """Time that it takes for a GPU; 0 before it was made."""
        return statistics.median(self.durations_s or (0.0,))

    @property
    def cost_s(self) -> float:
        """Time that it takes for all GPUs that may answer."""
        return self.call_s * sum(answer is not _Answer.NEVER for answer in self.answers)

    def read(self, k: int) -> Values:
        """Make the call on a GPU, and note what it takes and whether it answers; what it raises passes through."""
        values: Values = {}
        begin_s = time.monotonic()
        try:
            values = self.call.read(k)
            self.readings += 1
        finally:
            now_s = time.monotonic()
            self.durations_s.append(now_s - begin_s)
            if values:
                self.columns |= dict.fromkeys(values)
                self.answers[k] = _Answer.YES
            elif self.answers[k] in (_Answer.UNASKED, _Answer.NEVER):
                self.answers[k] = _Answer.NEVER
                took_s = (now_s - begin_s) * len(self.answers)
                self.due_s[k] = now_s + max(_RETRY_S, took_s / _SLOW_SHARE)
            else:
                self.answers[k] = _Answer.NO_LONGER
        return values

    def is_at_each_tick(self, k: int) -> bool:
        """Return True if it is made on a GPU at each tick; one that never answered there is only tried again."""
        return not self.interval_s and self.answers[k] is not _Answer.NEVER


class Schedule:
    """The calls of a vendor's library on all its GPUs.

    Parameters
    ----------
    calls
        The calls, the clock first.
    count
        Number of GPUs.
    period_s
        Time between two ticks.
    """

    def __init__(self, calls: Sequence[Call], count: int, period_s: float) -> None:
        self._calls = [_Calls(call, [0.0] * count, [_Answer.UNASKED] * count) for call in calls]
        self._count = count
        self._period_s = period_s
        self._left_s = _FULL * period_s
        """Time that calls which are made at each tick leave to the others."""
        self._begin_s = 0.0
        self.all_calls: Sequence[int] = range(len(calls))
        """The numbers of all calls."""

    def read(self, k: int, calls: Iterable[int]) -> Values:
        """Make some calls on a GPU, fast ones first.

        Raises
        ------
        Exception
            The first failure, if no call answers any more: the GPU is lost.
        """
        values: Values = {}
        failures: list[tuple[_Calls, BaseException]] = []

        def make(state: _Calls) -> None:
            try:
                values.update(state.read(k))
            except (Exception, SystemExit) as error:  # noqa: BLE001 # as libraries raise anything
                failures.append((state, error))

        answered = [state for state in self._calls if state.answers[k] is _Answer.YES]
        due = sorted((self._calls[n] for n in calls), key=lambda state: state.interval_s)
        for state in due:
            make(state)
        if not values and any(state.answers[k] is not _Answer.YES for state in answered):
            for state in answered:  # nothing that is due answers any more: does anything else?
                if not values and state not in due:
                    make(state)
        if failures and not any(state.answers[k] is _Answer.YES for state in self._calls):
            raise failures[0][1]
        for state, error in failures:
            state.failed += 1
            state.first_failure = state.first_failure or f"{type(error).__name__}: {error}"
        return values

    def begin(self) -> None:
        """Start to count readings; slow calls are due on one GPU after the other."""
        self.plan()
        self._begin_s = time.monotonic()
        for state in self._calls:
            state.readings = 0
            for k in range(self._count):
                state.due_s[k] = self._begin_s + state.interval_s * (k + 1) / self._count

    def due(self, now_s: float) -> dict[int, list[int]]:
        """Return the numbers of the calls that are due, by GPU.

        Those of each tick are; of the others those that are due longest, until they take what a tick may.
        """
        result: dict[int, list[int]] = {k: [] for k in range(self._count)}
        waiting = []
        for number, state in enumerate(self._calls):
            for k, due_s in enumerate(state.due_s):
                if state.is_at_each_tick(k):
                    result[k].append(number)
                elif due_s <= now_s:
                    waiting.append((due_s, k, number))
        left_s = max(self._left_s, _SLOW_SHARE * self._period_s)
        for due_s, k, number in sorted(waiting):
            if left_s <= 0:
                break
            state = self._calls[number]
            left_s -= state.call_s
            # from when it was due, as ticks come later: else 1.1 periods would be two of them
            state.due_s[k] = max(due_s + state.interval_s, now_s)
            result[k].append(number)
        return result

    def plan(self) -> None:
        """Decide which calls are made at each tick, and how often the others are."""
        self._left_s = _FULL * self._period_s
        short, slow = [], []
        for state in self._calls:
            is_long = state.call_s > _LONG_S and state.cost_s > _SLOW_SHARE * self._period_s
            if state.call.always:
                state.interval_s = 0.0
                self._left_s -= state.cost_s
            elif state.call.every_s or is_long:
                slow.append(state)
            else:
                short.append(state)
        self._share(short)
        sharing = sum(not state.call.every_s for state in slow) or 1
        for state in slow:
            state.interval_s = max(
                state.call.every_s, self._period_s, state.cost_s * sharing / _SLOW_SHARE
            )

    def _share(self, calls: list[_Calls]) -> None:
        """Give calls equal parts of the time that is left of a period; what one does not take is left to the others."""
        at_least_s = _SLOW_SHARE * self._period_s / max(1, len(calls))
        divided_s = self._left_s
        for sharing, state in zip(
            range(len(calls), 0, -1), sorted(calls, key=lambda state: state.cost_s), strict=True
        ):
            part_s = max(divided_s / sharing, at_least_s)
            divided_s -= min(state.cost_s, part_s)
            if state.cost_s <= part_s:
                state.interval_s = 0.0
                self._left_s -= state.cost_s
            else:
                state.interval_s = self._period_s * state.cost_s / part_s

    def summary(self, rows: int) -> dict[str, Any]:
        """Describe each call that gave values: its columns, what it takes, how often it was made on a GPU.

        It was made less often than the rows were, if it was made at all; one that always failed is a problem.
        """
        elapsed_s = time.monotonic() - self._begin_s
        return {
            state.call.name: {
                "columns": list(state.columns),
                "call_ns": round(1e9 * state.call_s),
                "achieved_hz": round(state.readings / self._count / elapsed_s, 3),
                "less_often": 0 < state.readings < _MIN_SHARE * rows,
            }
            for state in self._calls
            if state.columns
        }

    def problems(self) -> list[str]:
        """Return a line for each call that answered and failed; one that never answers is not there."""
        return [
            f"{state.call.name}: {state.failed} of {state.failed + state.readings} readings failed, "
            f"first: {state.first_failure}"
            for state in self._calls
            if state.failed and state.columns
        ]

"""Which calls of a vendor's library are made at which tick, so that the rate is reached whatever a call takes.

::

    tick            0    1    2    3    4    5    6 …
    clock, power    x    x    x    x    x    x    x     fast calls: each GPU at each tick
    energy          x              x              x     takes 3 ms a call: as often as its share of the time allows
    memory          x                                   changes slowly: once a second

What a call takes is measured, before the program starts and with each reading.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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


@dataclass
class _Calls:
    """A call on all GPUs: what it took, and when it is due."""

    call: Call
    due_s: list[float]
    durations_s: deque[float] = field(default_factory=lambda: deque(maxlen=_MEASURED))
    columns: dict[str, None] = field(default_factory=dict)
    interval_s: float = 0.0
    """Time between two readings of a GPU; 0: at each tick."""
    readings: int = 0
    failed: int = 0
    first_failure: str = ""

    @property
    def least_s(self) -> float:
        """Least time between two readings, whatever they take."""
        is_absent = self.failed and not self.columns
        return max(self.call.every_s, _RETRY_S if is_absent else 0.0)

    @property
    def cost_s(self) -> float:
        """Time that it takes for all GPUs; 0 before it was made."""
        return len(self.due_s) * statistics.median(self.durations_s or (0.0,))


class Schedule:
    """The calls of a vendor's library on all its GPUs.

    Parameters
    ----------
    calls
        The calls, the most important first.
    count
        Number of GPUs.
    period_s
        Time between two ticks.
    """

    def __init__(self, calls: Sequence[Call], count: int, period_s: float) -> None:
        self._calls = [_Calls(call, [0.0] * count) for call in calls]
        self._count = count
        self._period_s = period_s
        self._begin_s = 0.0
        self.all_calls: Sequence[int] = range(len(calls))
        """The numbers of all calls."""

    def read(self, k: int, calls: Iterable[int]) -> Values:
        """Make some calls on a GPU, fast ones first.

        Raises
        ------
        Exception
            The first failure, if none of the fast calls gave a value: the GPU is lost.
        """
        values: Values = {}
        failures: list[tuple[_Calls, BaseException]] = []
        for state in sorted((self._calls[n] for n in calls), key=lambda s: s.interval_s):
            if state.interval_s and failures and not values:
                break
            begin = time.monotonic()
            try:
                found = state.call.read(k)
            except (Exception, SystemExit) as error:  # noqa: BLE001 # as libraries raise anything
                failures.append((state, error))
            else:
                state.readings += 1
                state.columns |= dict.fromkeys(found)
                values |= found
            state.durations_s.append(time.monotonic() - begin)
        if failures and not values:
            raise failures[0][1]
        for state, first in failures:
            state.failed += 1
            state.first_failure = state.first_failure or f"{type(first).__name__}: {first}"
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

        All fast ones are; of the slow ones those that are due longest, until they take what a tick may.
        """
        fast = [n for n, state in enumerate(self._calls) if not state.interval_s]
        result = {k: list(fast) for k in range(self._count)}
        waiting = sorted(
            (due_s, k, number)
            for number, state in enumerate(self._calls)
            for k, due_s in enumerate(state.due_s)
            if state.interval_s and due_s <= now_s
        )
        left_s = _FULL * self._period_s
        for _, k, number in waiting:
            if left_s <= 0:
                break
            state = self._calls[number]
            left_s -= state.cost_s / self._count
            state.due_s[k] = now_s + state.interval_s
            result[k].append(number)
        return result

    def plan(self) -> None:
        """Decide which calls are fast, and how often the others are made."""
        left_s = _FULL * self._period_s
        slow = []
        for state in self._calls:
            long = state.cost_s > max(_SLOW_SHARE * self._period_s, _LONG_S * self._count)
            if state.call.always or not (long or state.least_s or state.cost_s > left_s):
                state.interval_s = 0.0
                left_s -= state.cost_s
            else:
                slow.append(state)
        sharing = sum(not state.least_s for state in slow) or 1
        for state in slow:
            state.interval_s = max(
                state.least_s, self._period_s, state.cost_s * sharing / _SLOW_SHARE
            )

    def summary(self) -> dict[str, Any]:
        """Describe each call that gave values: its columns, what it takes, how often it was made on a GPU."""
        elapsed_s = time.monotonic() - self._begin_s
        return {
            state.call.name: {
                "columns": list(state.columns),
                "call_ns": round(1e9 * statistics.median(state.durations_s)),
                "achieved_hz": round(state.readings / self._count / elapsed_s, 3),
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

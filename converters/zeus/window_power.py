"""Distribution over time of the joules that Zeus measured in windows, which may be nested."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable

CROSSING = Fault(
    "windows-crossing",
    Severity.INFO,
    "Windows that began within another and ended after it: their joules count in lanes of their own "
    "alone, not in those over time, where they would count twice.",
)
CONTRADICTED = Fault(
    "windows-contradicted",
    Severity.INFO,
    "Windows whose joules do not fit into those of the window around them, as the counters of GPUs "
    "are renewed too rarely for them: over time that of the window around them counts.",
)
_MAX_W = 1e5
"""Watts that no GPU draws: 50 times the largest of today."""
_RENEWED_NS = 100_000_000
"""Counters of GPUs are renewed so often at least: joules of shorter times are not known."""
_TOUCHING_NS = 2_000
"""Windows that overlap by less are adjacent: times are written to a few hundred nanoseconds."""


@dataclass
class Window:
    """Start and end of a window, nanoseconds, and the joules of one GPU in it."""

    start: int
    end: int
    joules: float
    inner: list[Window] = field(default_factory=list)
    """Windows within it that hold one another no more."""

    @property
    def is_sound(self) -> bool:
        """True if a GPU can have drawn that much in it."""
        return self.end > self.start and 0 <= self.watts <= _MAX_W

    @property
    def watts(self) -> float:
        """Its mean power."""
        return self.joules / ((self.end - self.start) * 1e-9)


def placed(windows: Iterable[Window], issues: IssueLog) -> list[tuple[int, float]]:
    """Mean power over the time of all windows, as `annotate.telemetry.quantity_series.SeriesPattern` has it of windows.

    At any time the innermost window counts; the further joules of the window around it belong
    to the rest of its time. So each outermost window has just the joules that were measured in it.
    """
    outermost = Window(-(1 << 62), 1 << 62, 0.0)
    around = [outermost]
    for window in sorted(filter(_is_sound, windows), key=lambda one: (one.start, -one.end)):
        while around[-1].end <= window.start + _TOUCHING_NS:
            _close(around, issues)
        window.start = max([window.start, *(one.end for one in around[-1].inner[-1:])])
        if window.end > around[-1].end + _TOUCHING_NS:
            issues.add(CROSSING)
            continue
        window.end = min(window.end, around[-1].end)
        if window.is_sound:
            around.append(window)
    while len(around) > 1:
        _close(around, issues)
    return _points(outermost.inner)


def _is_sound(window: Window) -> bool:
    return window.is_sound


def _close(around: list[Window], issues: IssueLog) -> None:
    """Cut the last window into those within it and what is left of it, for the one around it."""
    last = around.pop()
    around[-1].inner += _cut(last, issues)


def _cut(window: Window, issues: IssueLog) -> list[Window]:
    inner = window.inner
    if not inner:
        return [window]
    rest = window.joules - sum(one.joules for one in inner)
    time = window.end - window.start - sum(one.end - one.start for one in inner)
    if time < _RENEWED_NS or not 0 <= rest <= _MAX_W * time * 1e-9:
        issues.add(CONTRADICTED, len(inner))
        return [Window(window.start, window.end, window.joules)]
    edges = [window.start, *(t for one in inner for t in (one.start, one.end)), window.end]
    gaps = zip(edges[::2], edges[1::2], strict=True)
    left = [Window(a, b, rest * (b - a) / time) for a, b in gaps if b > a]
    return sorted([*inner, *left], key=lambda one: one.start)


def _points(windows: list[Window]) -> list[tuple[int, float]]:
    """A sample where each begins, and one where it ends unless the next begins there."""
    points: list[tuple[int, float]] = []
    end, watts = None, 0.0
    for window in windows:
        if end is not None and window.start > end:
            points.append((end, watts))
        if window.start != end or window.watts != watts:
            points.append((window.start, window.watts))
        end, watts = window.end, window.watts
    return points if end is None else [*points, (end, watts)]

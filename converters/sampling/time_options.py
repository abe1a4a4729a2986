"""Options that give the times of output that holds none."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from chopper_interop.converters.sampling.timestamps import LATEST_S, MILLISECOND, SECOND
from chopper_interop.errors import UsageError

MTIME = "mtime"
OF_LAST_ROWS = {
    "at_ns": "When the last rows of a file without times were written, nanoseconds since 1970. It has no "
    "effect on files with times.",
    "at": f'"{MTIME}" to use the time at which the file was last changed instead.',
}
"""Texts of options of readers of such files; see `registry.with_option_texts`."""
OF_LAST_OUTPUT = OF_LAST_ROWS | {
    "period_ms": "Time between several outputs in a file without times, milliseconds; without it only "
    "the last is used."
}
"""Texts of options of readers of files with outputs one after the other."""
UNCERTAINTY_NS = SECOND
"""Uncertainty of such a time; chosen: whoever notes a time by hand, or takes that of a file, knows
it to about a second."""
LATEST_NS = LATEST_S * SECOND
_LONGEST_MS = 86_400_000
"""A day: longer periods are mistaken units."""


@dataclass(frozen=True)
class TimeOptions:
    """Options of a reader; false if they give no time.

    Parameters
    ----------
    at_ns
        When the last output was written, nanoseconds since 1970.
    at
        ``"mtime"`` to use the time at which the file was last changed instead.
    period_ms
        Time between the outputs of a loop, milliseconds.

    Raises
    ------
    UsageError
        They are no times, or contradict each other.
    """

    at_ns: int | None = None
    at: str | None = None
    period_ms: float | None = None

    def __post_init__(self) -> None:
        if self.at not in (None, MTIME) or (self.at and self.at_ns is not None):
            raise UsageError(
                f"-O at={self.at}: say at={MTIME}, or at_ns=<epoch nanoseconds> instead"
            )
        if self.at_ns is not None and not 0 <= self.at_ns <= LATEST_NS:
            raise UsageError(f"-O at_ns={self.at_ns}: that is no time in nanoseconds since 1970")
        if self.period_ms is not None and not 0 < self.period_ms <= _LONGEST_MS:
            raise UsageError(f"-O period_ms={self.period_ms}: that is no period in milliseconds")
        if self.period_ms is not None and not self:
            raise UsageError("-O period_ms: say at_ns or at=mtime too: when the last output was")

    def __bool__(self) -> bool:
        return self.at_ns is not None or self.at is not None

    def last_ns(self, path: Path) -> int:
        """Return when the last output of a file was written, nanoseconds since 1970."""
        return path.stat().st_mtime_ns if self.at_ns is None else self.at_ns

    @property
    def period_ns(self) -> int:
        """Time between outputs, nanoseconds; 0 if it is unknown."""
        return int((self.period_ms or 0) * MILLISECOND)

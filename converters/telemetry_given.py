"""Times that the user gives for output that holds none."""

from __future__ import annotations

from dataclasses import dataclass

from chopper_interop.converters.telemetry_numbers import LATEST_S, SECOND
from chopper_interop.errors import UsageError

MTIME = "mtime"
ONCE_NS = 1_000_000_000
"""How far such a time may be off."""
LATEST_NS = LATEST_S * SECOND
_LONGEST_MS = 86_400_000


@dataclass(frozen=True)
class Given:
    """What the user says of times that the file does not hold.

    Parameters
    ----------
    at_ns
        When the last output was written, epoch nanoseconds.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.
    period_ms
        How far the outputs of a loop are apart.

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

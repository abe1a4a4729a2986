"""What the user says of clocks: ``--clock-offset [SOURCE:]SECONDS``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatch
from typing import TYPE_CHECKING

from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

_RULE = re.compile(
    r"(?:(?P<source>.+):)?\s*(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,2})?)"
    r"\s*(?P<unit>s|ms|us|µs|ns)?",
    re.ASCII,
)
_RANK = re.compile(r"rank(\d{1,7})", re.ASCII)
_NS = {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3, "ns": 1}
_MOST_NS = 1 << 62


@dataclass(frozen=True)
class ClockRule:
    """What the user says of a clock.

    Parameters
    ----------
    text
        As it was given.
    source
        Format of the source, or a pattern of its path or name; "" for all that is joined to the
        profiles whose clock is the trace's.
    offset_ns
        What is added to its times to get those of the trace.
    rank
        The rank that it is of, -1 if it is of sources.
    """

    text: str
    source: str
    offset_ns: int
    rank: int = -1

    def is_of(self, format_name: str, path: str) -> bool:
        """Whether it names a source of this format and path."""
        patterns = (self.source, f"*/{self.source}")  # the summary shows the ends of paths
        return self.source == format_name or any(fnmatch(path, p) for p in patterns)


def rule(text: str) -> ClockRule:
    """What ``[SOURCE:]SECONDS``, ``…ms``, ``…us``, ``…ns`` or ``rankN:…`` says.

    Raises
    ------
    UsageError
        It is nothing of this kind.
    """
    found = _RULE.fullmatch(text.strip())
    offset = Decimal(found["number"]) * _NS[found["unit"] or "s"] if found else Decimal(0)
    if found is None or abs(offset) >= _MOST_NS:
        raise UsageError(
            f"--clock-offset {text}: write it as [SOURCE:]SECONDS or with a unit, ms, us or ns",
            hint="amd-smi:-0.25 says that its times are 0.25 s more than those of the trace",
        )
    source = found["source"] or ""
    rank = _RANK.fullmatch(source)
    return ClockRule(text, source, round(offset), int(rank[1]) if rank else -1)


def of_source(
    rules: Iterable[ClockRule], format_name: str, path: str, *, joined: bool
) -> ClockRule | None:
    """What the user says of a source's clock: a rule that names it, else one for all.

    Parameters
    ----------
    rules
        All rules.
    format_name, path
        The source.
    joined
        Whether it is joined to profiles whose clock is the trace's, as telemetry is.

    Raises
    ------
    UsageError
        Two different things are said of it.
    """
    about = [r for r in rules if r.rank < 0]
    named = [r for r in about if r.source and r.is_of(format_name, path)]
    found = named or [r for r in about if not r.source and joined]
    _refuse_two(found, path)
    return found[0] if found else None


def of_rank(rules: Iterable[ClockRule], rank: int) -> ClockRule | None:
    """What the user says of a rank's clock."""
    found = [r for r in rules if r.rank == rank]
    _refuse_two(found, f"rank {rank}")
    return found[0] if found else None


def _refuse_two(found: list[ClockRule], what: str) -> None:
    for other in found[1:]:
        if other.offset_ns != found[0].offset_ns:
            raise UsageError(
                f"--clock-offset {found[0].text} and {other.text} say two things of {what}"
            )

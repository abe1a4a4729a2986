"""Clock offsets that the user states: ``--clock-offset [SOURCE:]SECONDS``."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from chopper_interop.errors import UsageError
from chopper_interop.schemas.time_units import NS_PER_UNIT
from chopper_interop.source_selectors import names_source

_RULE = re.compile(
    r"(?:(?P<source>.+):)?\s*(?P<number>[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,2})?)"
    r"\s*(?P<unit>s|ms|us|µs|ns)?",
    re.ASCII,
)
_RANK = re.compile(r"rank(\d{1,7})", re.ASCII)
_MAX_NS = 1 << 62
"""Larger offsets added to a time may exceed int64."""


@dataclass(frozen=True)
class ClockRule:
    """Offset of a clock that the user states.

    Parameters
    ----------
    text
        The option as it was written.
    source
        Format of the source, or a pattern of its path or name; "" for all that is joined to the
        profiles whose clock is the trace's.
    offset_ns
        Nanoseconds to add to its times to get those of the trace.
    rank
        The rank that it is of, -1 if it is of sources.
    """

    text: str
    source: str
    offset_ns: int
    rank: int = -1

    def applies_to(self, format_name: str, path: str) -> bool:
        """True if it names a source of this format and path."""
        return names_source(self.source, format_name, path)


def parse_clock_rule(text: str) -> ClockRule:
    """Parse ``[SOURCE:]SECONDS``, ``…ms``, ``…us``, ``…ns`` or ``rankN:…``.

    Raises
    ------
    UsageError
        The text is none of these.
    """
    match = _RULE.fullmatch(text.strip())
    unit = (match["unit"] or "s").replace("µ", "u") if match else "s"
    offset = Decimal(match["number"]) * NS_PER_UNIT[unit] if match else Decimal(0)
    if abs(offset) >= _MAX_NS:
        raise UsageError(
            f"--clock-offset {text}: it is out of range",
            hint=f"clocks can differ by less than {_MAX_NS // 10**9:,} s",
        )
    if match is None:
        raise UsageError(
            f"--clock-offset {text}: write it as [SOURCE:]SECONDS or with a unit, ms, us or ns",
            hint="amd-smi:-0.25 says that its times are 0.25 s more than those of the trace",
        )
    source = match["source"] or ""
    rank = _RANK.fullmatch(source)
    return ClockRule(text, source, round(offset), int(rank[1]) if rank else -1)


def rule_of_source(
    rules: Iterable[ClockRule], format_name: str, path: str, *, joined: bool
) -> ClockRule | None:
    """Return the rule for a source's clock: one that names it, else one for all sources.

    Parameters
    ----------
    rules
        All rules.
    format_name, path
        The source.
    joined
        True if it is joined to profiles whose clock is the trace's, as telemetry is.

    Raises
    ------
    UsageError
        Two rules for it have different offsets.
    """
    of_sources = [r for r in rules if r.rank < 0]
    named = [r for r in of_sources if r.source and r.applies_to(format_name, path)]
    applicable = named or [r for r in of_sources if not r.source and joined]
    return _only_rule(applicable, path)


def rule_of_rank(rules: Iterable[ClockRule], rank: int) -> ClockRule | None:
    """Return the rule for a rank's clock.

    Raises
    ------
    UsageError
        Two rules for it have different offsets.
    """
    return _only_rule([r for r in rules if r.rank == rank], f"rank {rank}")


def _only_rule(rules: list[ClockRule], subject: str) -> ClockRule | None:
    """The first of rules that all have one offset; None if there are none."""
    for other in rules[1:]:
        if other.offset_ns != rules[0].offset_ns:
            raise UsageError(
                f"--clock-offset {rules[0].text} and {other.text} contradict each other for {subject}"
            )
    return rules[0] if rules else None

"""Meaning of a tool's columns: tables that give the series of a key.

Every tool has its own table of `SeriesRule`; series of the same quantity have the same name in all. In the
packages of telemetry a lane is a series of the hub, not a row of its `lanes`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import cached_property, lru_cache

_KEYS = 1024
"""Keys that are looked up once: files of one tool have the same, a few hundred at most."""
SHARE, ACTIVITY, STATUS = "throttle share ", "throttle activity ", "throttle status "
"""Prefixes of the lanes of a cause of throttling: share of the time between two samples; the tool's
own measurement; present state (0 or 1)."""


class Kind(Enum):
    """Treatment of the values of a lane."""

    GAUGE = "every value is a sample"
    STEADY = "limits and counts of faults: the first sample, and those where the value changes"
    STATE = "two words, which are 0 and 1"
    RESIDENCY = "firmware intervals in which something held the clock down, since boot"
    TICKS = "firmware intervals since boot, which residencies are shares of"


@dataclass(frozen=True)
class SeriesRule:
    """Series of the keys that match an expression: one row of a tool's table.

    Parameters
    ----------
    key
        Regular expression that the whole key matches. Group ``n`` numbers instances, ``xcp`` is a
        partition, ``what`` goes into the name.
    name
        Name of the lane; ``{what}`` stands for that group.
    unit
        Unit of the lane; None to use the unit that is written next to the value.
    kind
        See `Kind`.
    part
        Word for an instance (``XCD``): the name then ends in ``XCD 3``, if there is more than one.
    each
        Word for an element of a list.
    bare
        Unit of values that are written without one; by default that of the lane.
    decimal
        The same for values with a decimal point.
    """

    key: str
    name: str
    unit: str | None = ""
    kind: Kind = Kind.GAUGE
    part: str = ""
    each: str = ""
    bare: str = ""
    decimal: str = ""


class LaneTable:
    """Rules of a tool, of which the first that matches a key holds."""

    def __init__(self, *rules: SeriesRule) -> None:
        self.rules = rules

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """All keys as one expression, in which group ``_i`` is rule i: to try one rule after the other takes longer."""
        keys = (_NAMED_GROUP.sub("(?:", rule.key) for rule in self.rules)
        return re.compile("|".join(f"(?P<_{i}>{key})" for i, key in enumerate(keys)))


_NAMED_GROUP = re.compile(r"\(\?P<\w+>")


@dataclass(frozen=True)
class Name:
    """Lane of a key, with its name.

    Parameters
    ----------
    lane
        The entry of the table.
    base
        Name without the instance.
    full
        Name with it.
    """

    lane: SeriesRule
    base: str
    full: str


WORDS = {
    "mem": "memory", "mid": "MID", "aid": "AID", "l0_to_recovery": "L0 to recovery",
    "replay_roll_over": "replay rollover", "nak_sent": "NAK sent", "nak_received": "NAK received",
    "lc_perf_other_end_recovery": "other end recovery", "mem_overdrive": "memory overdrive",
}  # fmt: skip
"""Parts of keys → words in names; in others underscores become spaces."""


@lru_cache(maxsize=_KEYS)
def meaning(key: str, lanes: LaneTable) -> Name | None:
    """Look a key up; None if the table does not have it.

    Parameters
    ----------
    key
        Name of a column.
    lanes
        The table.
    """
    match = lanes.pattern.fullmatch(key)
    if match is None:
        return None
    lane = lanes.rules[int((match.lastgroup or "")[1:])]
    groups = re.fullmatch(lane.key, key)
    return _named(lane, groups.groupdict() if groups else {})


def name_by_key(key: str, unit: str | None = None) -> Name:
    """Return a lane under the key's own name, by default in the unit that is written next to its values."""
    return Name(SeriesRule(re.escape(key), key, unit), key, key)


def _named(lane: SeriesRule, groups: dict[str, str | None]) -> Name:
    what = groups.get("what") or ""
    base = lane.name.format(
        what=WORDS.get(what, what if what.isupper() else what.replace("_", " "))
    )
    if groups.get("xcp") is not None:
        base += f" XCP {groups['xcp']}"
    if groups.get("n") is None:
        return Name(lane, base, base)
    return Name(lane, base, " ".join(p for p in (base, lane.part, groups["n"]) if p))

"""What the columns of a tool mean: a table of lanes, and how the name of one is made.

Every tool has a table of `Lane` of its own; lanes that mean the same have the same name in all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

SHARE, ACTIVITY, STATUS = "throttle share ", "throttle activity ", "throttle status "
"""How lanes of a cause of throttling begin: share of the time between two samples; what the tool
itself measures; whether it holds now."""


class Kind(Enum):
    """How the values of a lane are to be taken."""

    GAUGE = "every value is a sample"
    STEADY = "limits and counts of faults: a sample where the value changes, and the first"
    STATE = "two words, which are 0 and 1"
    RESIDENCY = "firmware intervals in which something held the clock down, since boot"
    TICKS = "firmware intervals since boot, which residencies are shares of"


@dataclass(frozen=True)
class Lane:
    """One entry of the table.

    Parameters
    ----------
    key
        Regular expression that the whole key matches. Group ``n`` numbers instances, ``xcp`` is a
        partition, ``what`` goes into the name.
    name
        Name of the lane; ``{what}`` stands for that group.
    unit
        Unit of the lane; None to take whatever unit stands beside the value.
    kind
        See `Kind`.
    part
        What an instance is (``XCD``): the name then ends in ``XCD 3``, if there is more than one.
    each
        What the elements of a list are.
    bare
        Unit of values that stand without one; by default that of the lane.
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


@dataclass(frozen=True)
class Name:
    """What a key means.

    Parameters
    ----------
    lane
        The entry of the table.
    base
        Name without the instance.
    full
        Name with it.
    """

    lane: Lane
    base: str
    full: str


WORDS = {
    "mem": "memory",
    "mid": "MID",
    "aid": "AID",
    "l0_to_recovery": "L0 to recovery",
    "replay_roll_over": "replay rollover",
    "nak_sent": "NAK sent",
    "nak_received": "NAK received",
    "lc_perf_other_end_recovery": "other end recovery",
    "mem_overdrive": "memory overdrive",
}
"""Parts of keys → how they are put in names; others lose their underscores."""


def meaning(key: str, lanes: tuple[Lane, ...]) -> Name | None:
    """What a key means; None if the table does not know it.

    Parameters
    ----------
    key
        Name of a column.
    lanes
        The table.
    """
    for lane in lanes:
        found = re.fullmatch(lane.key, key)
        if found:
            return _named(lane, found.groupdict())
    return None


def unknown(key: str) -> Name:
    """A lane under the key's own name, in whatever unit stands beside its values."""
    return Name(Lane(re.escape(key), key, None), key, key)


def _named(lane: Lane, groups: dict[str, str | None]) -> Name:
    what = groups.get("what") or ""
    base = lane.name.format(
        what=WORDS.get(what, what if what.isupper() else what.replace("_", " "))
    )
    if groups.get("xcp") is not None:
        base += f" XCP {groups['xcp']}"
    if groups.get("n") is None:
        return Name(lane, base, base)
    return Name(lane, base, " ".join(p for p in (base, lane.part, groups["n"]) if p))

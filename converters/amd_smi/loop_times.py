"""Times that a loop prints between the outputs of a tool that writes none.

``while true; do date; amd-smi monitor; done`` gives each output a time::

    Sun Nov 29 20:00:00 UTC 2026        the rows of tick 0
    GPU  XCP  POWER …
      0    0  142 W …
    Sun Nov 29 20:00:02 UTC 2026        those of tick 1

The lines are taken out before the outputs are read, as some begin like rows. Where a tick begins is known
by the GPUs, which come again. Lines with a time of day that are no time, as they have no date or words of
another language, are taken out too, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.rows import TimedRows, note_order
from chopper_interop.converters.sampling.text import NO_NUMBER
from chopper_interop.converters.sampling.timestamps import (
    SECOND,
    Timestamp,
    has_time_of_day,
    parse_labelled_timestamp,
    with_year_first,
)
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import LOCALTIME, REALTIME

if TYPE_CHECKING:
    from chopper_interop.converters.sampling.cells import Rows

RUNNING_NS = SECOND
"""Time that a call takes to read its values: of rocm-smi 0.3 to 3 s were seen, the longest at its first."""
ADDED = Fault.info(
    "time-of-loop",
    "The tool writes no time; that which a loop wrote next to its output was taken. "
    "How far a sample may be off stands in `series.uncertainty_ns`.",
)
NO_ZONE = Fault.info(
    "stamp-without-zone", "Times stand without a zone: they are what a wall clock showed."
)
NOT_OF_OUTPUTS = Fault.loss(
    "time-of-loop-unclear",
    "Times of a loop that are more or fewer than the outputs, so that it is not known which are whose, were left out.",
)
UNREAD = Fault.loss(
    "time-of-loop-unread",
    "Times of a loop without a date, or in a form that is not known, were left out: have it print `date -Is`.",
)
_CANDIDATE = re.compile(
    r'^[^\n"{}|]{0,80}\d\d:\d\d:\d\d[^\n"{}|]{0,80}\n'
    r"|^[^\n\w]{0,20}(?:\d{10,19}(?:\.\d{1,9})?|\d{8}[T_-]\d{6}[^\n\W]{0,5})[^\n\w]{0,20}\n",
    re.MULTILINE,
)
"""Lines that may be times: with a time of day, or alone a number of seconds or less since 1970, or of digits of a date and a time."""


def taken_out(text: str, issues: IssueLog) -> tuple[str, list[Timestamp]]:
    """Return a text without the times of a loop, and these."""
    lines = list(_CANDIDATE.finditer(text))
    stamps = list(map(parse_labelled_timestamp, with_year_first([line[0] for line in lines])))
    if not any(stamps):
        lines = [line for line in lines if has_time_of_day(line[0].strip())]
        issues.add(UNREAD, len(lines), lines[0][0].strip() if lines else "")
    else:
        lines = [line for line, stamp in zip(lines, stamps, strict=True) if stamp is not None]
    begins = [0, *(line.end() for line in lines)]
    ends = [*(line.start() for line in lines), len(text)]
    rest = "".join(text[begin:end] for begin, end in zip(begins, ends, strict=True))
    return rest, [stamp for stamp in stamps if stamp is not None]


def timed(
    rows: Rows, tick: Array, stamps: Sequence[Timestamp], issues: IssueLog
) -> TimedRows | None:
    """Return rows at the times of the loop; None if they have their own, or these are not one for each output.

    Parameters
    ----------
    rows, tick
        The rows, and the number of the output that each is of, from 0.
    stamps
        What `taken_out` returns. One more than the outputs may have stopped the loop.
    issues
        Where it is counted what became of them.
    """
    outputs = int(tick.max(initial=-1)) + 1
    if (rows.stamp != NO_NUMBER).any():
        issues.add(faults.NOT_A_ROW, len(stamps), "the time of a script")
        return None
    if len(stamps) not in (outputs, outputs + 1):
        issues.add(NOT_OF_OUTPUTS, len(stamps), f"{len(stamps)} times, {outputs} outputs")
        return None
    ns, is_whole, is_local = columns_of(stamps[:outputs])
    time = ns[tick]
    note_order(rows, time, tick, issues)
    local = int(is_local[tick].sum())
    issues.add(ADDED, len(time))
    issues.add(NO_ZONE, local)
    clock = LOCALTIME if local else REALTIME
    return TimedRows(rows, time, RUNNING_NS + SECOND // 2 * int(is_whole.any()), clock)


def columns_of(stamps: Sequence[Timestamp | None]) -> tuple[Array, Array, Array]:
    """Times, nanoseconds; which are whole seconds; which lack a zone. All are 0 where there is no time.

    A whole second is taken in its middle, which is at most half a second off, wherever in it the time was taken.
    """
    half = SECOND // 2
    ns, is_whole, is_local = (
        np.array([of(stamp) if stamp else 0 for stamp in stamps], np.int64)
        for of in (
            lambda stamp: stamp.ns + half * (stamp.digits == 0),
            lambda stamp: stamp.digits == 0,
            lambda stamp: not stamp.has_zone,
        )
    )
    return ns, is_whole, is_local

"""Which numbers of rocprofv3's files can be what their columns say: all others are unknown.

A garbled cell may hold any number. Ids become columns of 32 bits, sizes of tables and names of
lanes further on, so that those that no process, thread or processor can have are taken out here,
once, and counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.rocprof_agents import AGENT_COLUMNS, is_garbled, number_in
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.converters.rocprof_rows import Rows

OUT_OF_REACH = Fault(
    "number-out-of-reach",
    Severity.LOSS,
    "Numbers that no agent, process, thread, queue or stream has, and values of counters that are "
    "not finite, were taken as unknown.",
)

_ALL = (1 << 63) - 1
LARGEST: dict[str, int] = {
    "process": (1 << 31) - 1,
    "thread": (1 << 31) - 1,
    "queue": _ALL,
    "source_queue": _ALL,
    "stream": _ALL,
}
"""Columns of ids → the largest that can be. Queues and streams may go by their addresses."""


def within(rows: Rows, issues: IssueLog) -> Rows:
    """The rows with ids that cannot be, and values that are not finite, as unknown.

    The number -1 is how "none" looks where all bits of it are set, and is not counted.
    """
    numbers, known = dict(rows.numbers), dict(rows.known)
    for name, largest in LARGEST.items():
        column = numbers.get(name)
        if column is None or not column.size or (column.min() >= 0 and column.max() <= largest):
            continue
        there, can_be = rows.is_known(name), (column >= 0) & (column <= largest)
        wrong = np.flatnonzero(there & ~can_be & (column != -1))
        example = f"{name} is {column[wrong[0]]}" if wrong.size else ""
        issues.add(OUT_OF_REACH, wrong.size, f"{rows.where}: {example}")
        numbers[name], known[name] = np.where(can_be, column, 0), there & can_be
    _note_agents(rows, issues)
    infinite = np.isinf(rows.values)
    issues.add(OUT_OF_REACH, np.count_nonzero(infinite), f"{rows.where}: a counter's value")
    values = np.where(infinite, np.nan, rows.values)
    return replace(rows, numbers=numbers, known=known, values=values)


def _note_agents(rows: Rows, issues: IssueLog) -> None:
    """Count the agents whose numbers cannot be, which `device_of` takes as unknown."""
    for name in AGENT_COLUMNS:
        codes, texts = rows.codes(name)
        garbled = np.array([*(is_garbled(number_in(text)) for text in texts), False])[codes]
        example = next((t for t in texts if is_garbled(number_in(t))), "")
        issues.add(
            OUT_OF_REACH, np.count_nonzero(garbled), f"{rows.where}: {name} is {example:.60}"
        )

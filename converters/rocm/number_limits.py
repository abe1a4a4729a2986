"""Ranges of the numbers in files of ROCm's profilers: numbers out of range become unknown.

A garbled cell may hold any number. Ids become columns of 32 bits, sizes of tables and names of
lanes further on, so that those that no process, thread or processor can have are taken out here,
once, and counted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.rocm.agents import AGENT_COLUMNS, is_garbled, number_in
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

OUT_OF_RANGE = Fault.loss(
    "number-out-of-range",
    "Numbers that no agent, process, thread, queue or stream has, and values "
    "of counters that are not finite, were taken as unknown.",
)

_INT64_MAX = (1 << 63) - 1
MAX_IDS: dict[str, int] = {
    "process": (1 << 31) - 1,
    "thread": (1 << 31) - 1,
    "queue": _INT64_MAX,
    "source_queue": _INT64_MAX,
    "stream": _INT64_MAX,
}
"""Columns of ids → the largest possible id: Linux numbers processes and threads in 31 bits, queues
and streams may have their addresses for ids."""


def without_impossible_numbers(rows: TableRows, issues: IssueLog) -> TableRows:
    """Return the rows with impossible ids, and values that are not finite, as unknown.

    The number -1 is an id of which all bits are set, which stands for "none", and is not counted.
    """
    numbers, known = dict(rows.numbers), dict(rows.known)
    for name, largest in MAX_IDS.items():
        column = numbers.get(name)
        if column is None or not column.size or (column.min() >= 0 and column.max() <= largest):
            continue
        was_known, possible = rows.is_known(name), (column >= 0) & (column <= largest)
        wrong = np.flatnonzero(was_known & ~possible & (column != -1))
        example = f"{name} is {column[wrong[0]]}" if wrong.size else ""
        issues.add(OUT_OF_RANGE, wrong.size, f"{rows.where}: {example}")
        numbers[name], known[name] = np.where(possible, column, 0), was_known & possible
    _note_agents(rows, issues)
    infinite = np.isinf(rows.values)
    issues.add(OUT_OF_RANGE, np.count_nonzero(infinite), f"{rows.where}: a counter's value")
    values = np.where(infinite, np.nan, rows.values)
    return replace(rows, numbers=numbers, known=known, values=values)


def _note_agents(rows: TableRows, issues: IssueLog) -> None:
    """Count the agents with impossible numbers, which `device_number` takes as unknown."""
    for name in AGENT_COLUMNS:
        garbled = rows.per_text(name, lambda text: is_garbled(number_in(text)), absent=False)
        texts = rows.codes(name)[1]
        example = next((t for t in texts if is_garbled(number_in(t))), "")
        issues.add(
            OUT_OF_RANGE, np.count_nonzero(garbled), f"{rows.where}: {name} is {example:.60}"
        )

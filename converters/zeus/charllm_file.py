"""One file of CharLLM-PPT: a time and a value a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow.compute as pc

from chopper_interop.arrays import Array, arrow
from chopper_interop.converters.sampling.faults import EMPTY
from chopper_interop.converters.sampling.text import decode_lines
from chopper_interop.converters.sampling.timestamps import EARLIEST_S, SECOND, nanoseconds
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.zeus import charllm_metrics as tables

UNKNOWN = Fault.info_of_events(
    "reading-failed",
    "Values of -1 or N/A, which stand for an error of the reading, were left out.",
)
CUT = Fault.loss_of_events("row-cut-short", "Rows that are not a time and a number were left out.")
CELL_CUT = Fault.loss_of_events(
    "row-perhaps-cut", "The file ends within a row, whose value may lack digits: it was left out."
)
OTHER_NAME = Fault.loss_of_events(
    "file-name-unknown",
    "Files of two columns of numbers, of which only the name could tell what they "
    "are, and none that CharLLM-PPT gives ({metric}_{rank}.csv, such as gpu_power_0.csv): they "
    "were left out. Rename them if they are its.",
)

_LARGEST = 1e19
"""Beyond what any counter holds."""
_TIME = r"(?P<whole>\d{10})(?:\.(?P<fraction>\d{0,9}))?"
_ABSENT = frozenset({"-1", "-1.0", "n/a", "nan", "none", ""})


@dataclass(frozen=True)
class File:
    """Rows of one file that hold a time and a value, in its order."""

    path: Path
    named: tables.Named
    time: Array
    value: Array


def read_file(path: Path, named: tables.Named | None, issues: IssueLog) -> tuple[File | None, int]:
    """Read the content of a file and its number of rows."""
    text = decode_lines(inputs.read(path, issues)).lstrip("\ufeff")
    lines = [line for line in text.split("\n") if line.strip(" \t\0")]
    if named is None:
        issues.add(OTHER_NAME, len(lines), path.name)
        return None, len(lines)
    issues.add(EMPTY, int(not lines))
    cells = [line.split(",") for line in lines]
    last = [] if text.endswith("\n") or not lines else [len(lines) - 1]
    pairs = [(c[0].strip(), c[1].strip()) for c in cells[: len(lines) - len(last)] if len(c) == 2]  # noqa: PLR2004
    issues.add(CELL_CUT, len(last), path.name)
    time = _times([t for t, _ in pairs])
    value, absent = _values([v for _, v in pairs])
    timed = time >= 0
    issues.add(UNKNOWN, np.count_nonzero(timed & absent), path.name)
    good = timed & ~absent & np.isfinite(value)
    wrong = len(lines) - len(last) - np.count_nonzero(good) - np.count_nonzero(timed & absent)
    issues.add(CUT, wrong, path.name)
    return File(path, named, time[good], value[good]), len(lines)


def _times(texts: Sequence[str]) -> Array:
    """Epoch nanoseconds of decimal seconds, exactly; -1 where there is none of our days."""
    if not texts:
        return np.zeros(0, np.int64)
    parts = pc.extract_regex(arrow.texts(list(texts)), f"^{_TIME}$")
    plain = np.asarray(pc.is_valid(parts))
    whole = pc.struct_field(parts, "whole").fill_null("0").cast("int64")
    fraction = pc.utf8_rpad(pc.struct_field(parts, "fraction").fill_null("0"), 9, "0")
    time = np.asarray(whole) * SECOND + np.asarray(fraction.cast("int64"))
    time[~plain] = -1
    for row in np.flatnonzero(~plain).tolist():
        ns = nanoseconds(texts[row])
        time[row] = -1 if ns is None else ns
    time[time < EARLIEST_S * SECOND] = -1
    return time


def _values(texts: Sequence[str]) -> tuple[Array, Array]:
    """Values as numbers, NaN where they are none, and which say that there is none."""
    try:
        value = np.array(texts, np.str_).astype(np.float64) if texts else np.zeros(0)
    except ValueError:
        value = np.array([_number(text) for text in texts])
    absent = (value == -1) | np.array([t.lower() in _ABSENT for t in texts], bool)
    value[np.abs(value) > _LARGEST] = np.nan
    return value, absent


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan

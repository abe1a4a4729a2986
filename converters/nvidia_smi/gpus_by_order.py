"""GPUs of rows that name none, derived from the order of the rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.text_table import Identity, Table
from chopper_interop.converters.sampling.wall_clock import times_of_rows
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array

_MAX_GPUS = 64
"""Rows that come together are of at most so many GPUs. Chosen: four times as many as a node has."""


def with_gpus(table: Table, tz: str | None) -> tuple[Table, Array]:
    """The table with GPUs by order if no row names its GPU, and a mask of rows without a GPU."""
    silent = np.array([not gpu.is_known for gpu in table.gpu], bool)
    if not silent.any():
        return table, silent
    if not silent.all():
        return table, silent
    time = times_of_rows(table.stamp, tz, IssueLog()).ns
    count = _together(time) if (time >= 0).all() else None
    if count is None:
        return table, silent
    fault = own_faults.BY_ORDER if count > 1 else own_faults.ONE_GPU
    table.issues.add(fault, len(table.gpu), f"{count} GPUs" if count > 1 else "")
    gpu = [Identity(number=str(row % count), name=old.name) for row, old in enumerate(table.gpu)]
    return replace(table, gpu=gpu), np.zeros(len(gpu), bool)


def _together(time: Array) -> int | None:
    """Number of rows that come together each time; None if it varies."""
    if len(time) < 2:  # noqa: PLR2004 - a gap needs two
        return 1
    gap = np.diff(time)
    place = np.arange(len(gap))
    for count in range(2, min(_MAX_GPUS, len(time) // 2) + 1):
        between = place % count == count - 1
        if gap[between].min() > 4 * gap[~between].max() and (gap[~between] >= 0).all():
            return count
    usual = float(np.median(gap))
    return 1 if usual > 0 and gap.min() * 4 > usual else None

"""Rows of analyses of telemetry, put together a part at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.series.averaging import JOB, NODE, RANK, By, Plan
from chopper_interop.arrays import Array, arrow, gather

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.samples import SeriesPlace

TEXT, INTEGER, REAL, COUNT = "text", "whole", "real", "count"
"""Types of columns: texts; whole numbers; decimals, and whole numbers out of them, null where they
are no number."""
_KEYS = {
    JOB: {"job": TEXT},
    NODE: {"host": TEXT},
    RANK: {"rank": "number", "device": "number", "host": TEXT},
}


class Rows:
    """Rows by their owners, and by cells of a plan.

    Parameters
    ----------
    plan
        The plan of the cells.
    who
        The grouping, with the kind of owner of a row.
    job
        Name of the job.
    columns
        Other columns and their types, in order.
    """

    def __init__(self, plan: Plan, who: By, job: str, columns: Mapping[str, str]) -> None:
        self._plan, self._who, self._job, self._columns = plan, who, job, columns
        self._cells: list[Array] = []
        self._parts: dict[str, list[Any]] = {c: [] for c in (*_KEYS[who.kind], *columns)}

    def add(self, place: SeriesPlace, cell: Array, columns: Mapping[str, Any]) -> None:
        """Rows of one place, or of the node or job that it is in.

        Parameters
        ----------
        place
            The device or node that they are of.
        cell
            Their cells.
        columns
            Their columns; one value stands for all of them.
        """
        n = len(cell)
        rank = place.ranks[0] if place.is_owned and len(place.ranks) == 1 else place.rank
        own = {"job": self._job, "host": place.host or None, "rank": rank, "device": place.device}
        for name, parts in self._parts.items():
            value = columns[name] if name in columns else own[name]
            if self._columns.get(name, _KEYS[self._who.kind].get(name)) == TEXT:
                parts.extend(value if isinstance(value, np.ndarray) else [value] * n)
            else:
                parts.append(np.broadcast_to(np.asarray(value), n))
        self._cells.append(cell)

    def table(self) -> pa.Table:
        """All rows."""
        cell = gather.joined(self._cells)
        keys = {name: self._column(name, kind) for name, kind in _KEYS[self._who.kind].items()}
        rest = {name: self._column(name, kind) for name, kind in self._columns.items()}
        return pa.table(keys | self._plan.keys(cell) | rest)

    def _column(self, name: str, kind: str) -> Any:
        parts = self._parts[name]
        if kind == TEXT:
            return pa.array(parts, pa.string())
        if kind == REAL:
            return arrow.nan_to_null(gather.joined(parts).astype(np.float64))
        if kind == COUNT:
            values = np.concatenate(parts) if parts else np.zeros(0)
            return arrow.array(np.nan_to_num(values).astype(np.int64), mask=np.isnan(values))
        integers = gather.joined(parts).astype(np.int64)
        if kind == INTEGER:
            return arrow.array(integers)
        return arrow.negative_to_null(integers.astype(np.int32))

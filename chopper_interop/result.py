"""Result of an analysis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.errors import SchemaError
from chopper_interop.schemas import results
from chopper_interop.schemas.meta import Mark
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


_OF_MARKS = ("at_ns", "until_ns", "finding")
"""Columns that a mark shows by itself."""


_NAMES_SHOWN = 4
"""Columns that the text of a result names."""


class LazyColumns(Mapping[str, Any]):
    """Columns that are made when they are asked for, as most commands ask for none of a large job's.

    Parameters
    ----------
    make
        Returns the column of each name.
    """

    def __init__(self, make: Mapping[str, Callable[[], Any]]) -> None:
        self._make = make

    def __getitem__(self, name: str) -> Any:
        return self._make[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)


@dataclass(frozen=True, repr=False)
class Result:
    """Result of an analysis: rows of a table and a summary, with their notes and definitions.

    Names of figures end in their unit (``span_ns``, ``power_w``); `units` spells them out.

    Parameters
    ----------
    analysis
        Name of the analysis.
    rows
        One row for each rank, kernel, … as asked for.
    summary
        Figures of the whole.
    conventions
        Definitions of figures and columns: the same whatever the input.
    annotations
        Columns of `hub.ANNOTATIONS` for the nodes of the analysed trace, by name: Arrow arrays.
    notes
        Facts about this result: its window, what was left out, is unknown or was assumed, and from
        where; of a result without rows the reason, as "no rows".

    Examples
    --------
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> result = ci.analyze(tiny_trace(), "kernels", by=["rank", "kernel"])
    >>> result
    Result('kernels': 2 rows of rank, kernel, count, total_ns, …)
    >>> result.to_pandas()[["rank", "kernel", "total_ns"]]
       rank kernel  total_ns
    0     0   gemm      6000
    1     0   relu      1500
    >>> result.units["total_ns"]
    'ns'
    """

    analysis: str
    rows: pa.Table
    summary: dict[str, Any] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise `SchemaError` for what no table or page of results can show, as plug-ins may make it."""
        if not isinstance(self.rows, pa.Table):
            raise SchemaError(f"rows are a {type(self.rows).__name__}, not an Arrow table")
        names = self.rows.column_names
        if len(set(names)) < len(names):
            raise SchemaError(f"rows have columns of one name: {', '.join(names)}")
        for name, kind in zip(names, self.rows.schema.types, strict=True):
            if results.unit(name) and not _is_number(kind):
                raise SchemaError(f"column {name!r} is {kind}; its name is that of a number")
        for part in ("summary", "conventions", "annotations", "notes"):
            pairs = getattr(self, part)
            if not isinstance(pairs, Mapping) or not all(isinstance(key, str) for key in pairs):
                raise SchemaError(f"{part} is no mapping of names")
        texts = (self.analysis, *self.conventions.values(), *self.notes.values())
        if not all(isinstance(text, str) for text in texts):
            raise SchemaError("the analysis, a convention or a note is no text")

    def __repr__(self) -> str:
        names = self.rows.column_names
        more = ", …" if len(names) > _NAMES_SHOWN else ""
        columns = ", ".join(names[:_NAMES_SHOWN]) + more
        return f"Result({self.analysis!r}: {self.rows.num_rows:,} rows of {columns})"

    def _repr_html_(self) -> str:
        from chopper_interop import notebook

        parts = [
            pa.table({key: list(pairs), "value": [str(value) for value in pairs.values()]})
            for key, pairs in (("summary", self.summary), ("note", self.notes))
        ]
        return notebook.page(self.analysis, parts[0], self.rows, parts[1])

    @property
    def units(self) -> dict[str, str]:
        """Unit of each column of the rows: "1" for shares and ratios, "" for counts and names."""
        return {name: results.unit(name) for name in self.rows.column_names}

    def to_pandas(self) -> pd.DataFrame:
        """Convert the rows to pandas: columns as in `rows`, null where a value is not known."""
        return self.rows.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain values for JSON."""
        return {
            "summary": self.summary,
            "notes": dict(self.notes),
            "conventions": dict(self.conventions),
            "rows": self.rows.to_pylist(),
        }

    def annotate(self, trace: Trace) -> Trace:
        """Add the annotations and marks to the analysed trace, or to one with the same nodes."""
        marks = [*trace.meta.marks, *self.marks()]
        return trace.with_columns(**self.annotations).with_meta(marks=tuple(marks))

    def marks(self) -> list[Mark]:
        """Places of which the rows speak: of rows from `at_ns` to `until_ns`."""
        if not {"at_ns", "until_ns"} <= set(self.rows.column_names):
            return []
        rows = [row for row in self.rows.to_pylist() if row["at_ns"] is not None]
        return [
            Mark(
                row["at_ns"],
                max(row["until_ns"] or 0, row["at_ns"]),
                row.get("code") or self.analysis,
                row.get("finding") or self.analysis,
                row.get("ranks") or "",
                json.dumps({k: v for k, v in row.items() if k not in _OF_MARKS and v is not None}),
            )
            for row in rows
        ]


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)

"""Result of an analysis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd
    import pyarrow as pa

    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Result:
    """Rows of a table and a summary, units in the names of both.

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
    """

    analysis: str
    rows: pa.Table
    summary: dict[str, Any] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """Convert the rows to pandas."""
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
        """Add the annotations to the analysed trace, or to one with the same nodes."""
        return trace.with_columns(**self.annotations)

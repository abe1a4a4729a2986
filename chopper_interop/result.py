"""What an analysis gives."""

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
        One row for each rank, kernel, … that was asked about.
    summary
        Figures of the whole.
    conventions
        What figures and columns mean: the same whatever the input.
    annotations
        What it knows of each node, by name of a column of `hub.ANNOTATIONS`: Arrow arrays of one
        value a node of the trace that was asked.
    notes
        What is to be known of this answer: its window, what was left out, is not known or was
        assumed, and from where it is known; of an answer without rows the reason, as "no rows".
    """

    analysis: str
    rows: pa.Table
    summary: dict[str, Any] = field(default_factory=dict)
    conventions: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, Any] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def to_pandas(self) -> pd.DataFrame:
        """The rows as pandas."""
        return self.rows.to_pandas()

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "summary": self.summary,
            "notes": dict(self.notes),
            "conventions": dict(self.conventions),
            "rows": self.rows.to_pylist(),
        }

    def annotate(self, trace: Trace) -> Trace:
        """The trace that was asked, or one with the same nodes, with what this knows of each node."""
        return trace.annotate(**self.annotations)

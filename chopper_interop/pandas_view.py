"""Tables of a trace as pandas, and queries on them."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.errors import UsageError
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt
    import pandas as pd

    from chopper_interop.trace import Trace

_KINDS = {"nodes": Kind, "edges": EdgeKind, "lanes": LaneKind}
_PLACES = ("args_at", "args_len")
_WRONG = (NameError, SyntaxError, TypeError, ValueError, LookupError, AttributeError)
"""What pandas raises for a query that makes no sense; its UndefinedVariableError is a NameError."""
_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)")


def of(trace: Trace, table: str, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """See `Trace.to_pandas`."""
    data: pa.Table = getattr(trace, table)
    if columns is not None:
        data = _chosen(data, table, [columns] if isinstance(columns, str) else list(columns))
    elif table == "nodes":
        data = data.drop_columns(_PLACES)
    frame = data.to_pandas(split_blocks=True)
    if table in _KINDS and "kind" in frame:
        frame["kind"] = frame["kind"].map({int(k): k.name.lower() for k in _KINDS[table]})
    return frame


def rows(trace: Trace, query: str) -> npt.NDArray[np.bool_]:
    """Which nodes a query of `pandas.DataFrame.query` chooses.

    Parameters
    ----------
    trace
        Any trace.
    query
        On columns of ``trace.to_pandas()``, and on declared ones that it lacks.
    """
    known = _known(trace.nodes, "nodes")
    named = [name for name in known if name in query and name not in _PLACES]
    frame = of(trace, "nodes", named or ["kind"])
    hint = "to compare, write ==" if _ASSIGNS.search(query) else None
    try:
        found: Any = np.asarray(frame.eval(query))
    except (*_WRONG, NotImplementedError) as error:
        said = " ".join(str(error).split())
        raise UsageError(f"the query {query!r} cannot be answered: {said}", hint=hint) from error
    if found.dtype != np.bool_ or found.shape != (len(frame),):
        raise UsageError(f"the query {query!r} does not say yes or no of each node", hint=hint)
    return found


def _chosen(data: pa.Table, table: str, columns: list[str]) -> pa.Table:
    declared = _known(data, table)
    made = []
    for name in columns:
        if name in data.column_names:
            made.append(data[name])
        elif name in declared:
            made.append(pa.nulls(data.num_rows, declared[name]))
        else:
            near = difflib.get_close_matches(str(name), declared, 3)
            raise UsageError(
                f"{table} have no column {name!r}",
                hint=f"{'near it' if near else 'there'} are {', '.join(near or declared)}",
            )
    return pa.table(made, names=columns)


def _known(data: pa.Table, table: str) -> dict[str, pa.DataType]:
    """Columns that a table has or could have, and their types."""
    could = (*hub.TABLES[table], *(hub.ANNOTATIONS if table == "nodes" else ()))
    has = zip(data.schema.names, data.schema.types, strict=True)
    return {column.name: column.type for column in could} | dict(has)

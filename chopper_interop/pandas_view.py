"""View of a trace's tables as pandas, and queries on them."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import arrow, nest
from chopper_interop.errors import OptionError, UsageError, raise_interrupt, similar
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import TABLE_KINDS

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd

    from chopper_interop.tables import TraceTables

SELF_NS = "self_ns"
"""Column of the view: time of a node without the nodes that it called, nanoseconds."""
_BYTE_RANGES = ("args_at", "args_len")
_ASSIGNS = re.compile(r"(?<![=<>!])=(?!=)")
_PANDAS_ONLY = re.compile(r"[@`]")
"""Syntax of queries that Python does not have."""
_CLASS = re.compile(r"\bclass\b")
"""A column of tables and a word of Python, which no query can have."""


def to_pandas(trace: TraceTables, table: str, columns: Iterable[str] | None = None) -> pd.DataFrame:
    """Convert a table; see `Trace.to_pandas`."""
    chosen = [columns] if isinstance(columns, str) else columns if columns is None else [*columns]
    data: pa.Table = getattr(trace, table)
    if table == "nodes" and (chosen is None or SELF_NS in chosen):
        data = _with_self_times(trace)
    if chosen is not None:
        data = _selected(data, table, chosen)
    elif table == "nodes":
        data = data.drop_columns(_BYTE_RANGES)
    frame = data.to_pandas(split_blocks=True)
    if table in TABLE_KINDS and "kind" in frame:
        frame["kind"] = frame["kind"].map({int(k): k.name.lower() for k in TABLE_KINDS[table]})
    return frame


def query_mask(trace: TraceTables, query: str) -> npt.NDArray[np.bool_]:
    """Mark the nodes that a query of `pandas.DataFrame.query` selects.

    Parameters
    ----------
    trace
        Any trace.
    query
        Query on columns of ``trace.to_pandas()``; declared columns that the trace lacks are null.

    Raises
    ------
    UsageError
        The query cannot be evaluated, or gives no truth value for each node.
    """
    declared = _declared(trace.nodes, "nodes")
    named = [name for name in declared if name in query and name not in _BYTE_RANGES]
    frame = to_pandas(trace, "nodes", named or ["kind"])
    hint = "to compare, write ==" if _ASSIGNS.search(query) else None
    try:
        mask: Any = np.asarray(frame.eval(query))
    except Exception as error:  # of pandas, and of all that a query can call, such as a pattern's
        raise_interrupt(error)
        reason = " ".join(str(error).split())
        raise UsageError(f"the query {query!r} cannot be answered: {reason}", hint=hint) from error
    if mask.dtype != np.bool_ or mask.shape != (len(frame),):
        raise UsageError(f"the query {query!r} does not say yes or no of each node", hint=hint)
    return mask


def _with_self_times(trace: TraceTables) -> pa.Table:
    """The nodes with the column `SELF_NS` behind their durations."""
    own = nest.self_times(trace.array("ts"), trace.array("dur"), trace.array("parent"))
    at = trace.nodes.schema.get_field_index("dur") + 1
    return trace.nodes.add_column(at, SELF_NS, arrow.array(own))


def check_query(query: str, option: str) -> None:
    """Raise `OptionError` if a query is no expression, or names a column that nodes never have.

    Parameters
    ----------
    option
        The option with its value, for the message.
    """
    if _PANDAS_ONLY.search(query):
        return
    try:
        tree = ast.parse(query.strip(), mode="eval")
    except SyntaxError as error:
        hint = "to compare, write ==" if _ASSIGNS.search(query) else None
        if _CLASS.search(query):
            hint = "a class is a column of tables, nodes have a kind: kind == 'kernel' is compute"
        message = f"{option}: {query!r} is no condition: {error.msg}"
        raise OptionError(message, hint=hint) from None
    known = {column.name for column in (*hub.NODES, *hub.ANNOTATIONS)} | {"index"}
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id not in known and id(node) not in functions:
            near = difflib.get_close_matches(node.id, sorted(known), 1)
            common = "kind, name, rank, dur, phase, operation and others of schemas/hub.py"
            raise OptionError(
                f"{option}: nodes have no column {node.id!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"there are {common}",
            )
    kinds = [kind.name.lower() for kind in TABLE_KINDS["nodes"]]
    for column, text in _compared_texts(tree):
        if column == "kind" and text not in kinds:
            raise OptionError(f"{option}: there is no kind {text!r}", hint=similar(text, kinds))


def similar_text(trace: TraceTables, query: str) -> str | None:
    """Hint for a query that selects nothing: the value of a column that is similar to one it compares with.

    None where it compares with values that there are, or with nothing like them.
    """
    if _PANDAS_ONLY.search(query):
        return None
    for column, text in _compared_texts(ast.parse(query.strip(), mode="eval")):
        if column not in _declared(trace.nodes, "nodes"):
            continue
        known = to_pandas(trace, "nodes", column)[column].dropna().unique().tolist()
        near = difflib.get_close_matches(
            text, [value for value in known if isinstance(value, str)], 1
        )
        if near and near[0] != text:
            return f"did you mean {near[0]!r}?"
    return None


def _compared_texts(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield columns and the texts that a query compares them with, as in ``kind in ('kernel', 'comm')``."""
    for node in ast.walk(tree):
        # not in `kind == 'comm' & phase == 'backward'`, which Python and pandas read differently
        if isinstance(node, ast.Compare) and len(node.comparators) == 1:
            values = getattr(node.comparators[0], "elts", node.comparators)
            for value in values:
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield ast.unparse(node.left), value.value


def _selected(data: pa.Table, table: str, columns: list[str]) -> pa.Table:
    declared = _declared(data, table)
    selected = []
    for name in columns:
        if name in data.column_names:
            selected.append(data[name])
        elif name in declared:
            selected.append(pa.nulls(data.num_rows, declared[name]))
        else:
            near = difflib.get_close_matches(str(name), declared, 3)
            raise UsageError(
                f"{table} have no column {name!r}",
                hint=f"{'near it' if near else 'there'} are {', '.join(near or declared)}",
            )
    return pa.table(selected, names=columns)


def _declared(data: pa.Table, table: str) -> dict[str, pa.DataType]:
    """Types of the columns that a table has or could have, by name."""
    columns = (*hub.TABLES[table], *(hub.ANNOTATIONS if table == "nodes" else ()))
    present = zip(data.schema.names, data.schema.types, strict=True)
    own = {SELF_NS: pa.int64()} if table == "nodes" else {}
    return {column.name: column.type for column in columns} | dict(present) | own

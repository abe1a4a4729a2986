"""Every text of a trace, wherever it stands: tables, arguments and metadata.

Each text has a place: ``nodes.name``, ``lanes.name``, ``args`` and ``args.key`` in arguments, and in the
metadata class and field (``Rank.host``), keys and values of mappings as ``Meta.facts.key`` and
``Meta.facts``. Columns and fields are recognised by their type, so that none that is added later is missed.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import arrow
from chopper_interop.schemas import hub

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


class Change(Protocol):
    """Makes the new text of a text at a place."""

    def __call__(self, place: str, text: str, /) -> str:
        """Return the new text, or the same one."""


def change_tables(trace: Trace, change: Change) -> tuple[Trace, int]:
    """Change the texts of all tables, each distinct one once; with the number of rows changed."""
    tables, count = {}, 0
    for name in hub.TABLES:
        table = getattr(trace, name)
        for k, field in enumerate(table.schema):
            if not (_is_text(field.type) or pa.types.is_dictionary(field.type)):
                continue
            column, changed = _column(arrow.single_chunk(table[field.name]), name, field, change)
            if changed:
                table = table.set_column(k, field, column)
                count += changed
        tables[name] = table
    return (replace(trace, **tables), count) if count else (trace, 0)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _column(array: pa.Array, table: str, field: pa.Field, change: Change) -> tuple[pa.Array, int]:
    """Return a column with changed texts, and the number of its rows that were changed."""
    coded = array if pa.types.is_dictionary(array.type) else array.dictionary_encode()
    old = coded.dictionary.to_pylist()
    new = [change(f"{table}.{field.name}", text or "") for text in old]
    changed = np.array([*(a != b for a, b in zip(old, new, strict=True)), False])
    if not changed.any():
        return array, 0
    codes = arrow.to_numpy(coded, -1)
    column = arrow.dictionary(codes, new, mask=codes < 0)  # of equal aliases one stays
    return column.cast(field.type), int(changed[codes].sum())


def change_meta(value: Any, change: Change, place: str = "Meta") -> Any:
    """Return metadata with all texts changed: of dataclasses, of tuples and of mappings."""
    if type(value) is str:
        return change(place, value)
    if isinstance(value, tuple):
        return tuple(change_meta(item, change, place) for item in value)
    if isinstance(value, dict):
        return {change(f"{place}.key", k): change_meta(v, change, place) for k, v in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value).__name__
        names = [field.name for field in fields(value)]
        new = {n: change_meta(getattr(value, n), change, f"{kind}.{n}") for n in names}
        return replace(value, **new)
    return value

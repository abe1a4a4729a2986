"""Names and kinds of what an rpd database holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.converters.rocm.database_parts import first_of
from chopper_interop.converters.rocm.rows import dictionary
from chopper_interop.converters.rpd.tables import (
    MARKER,
    OPERATOR,
    OPERATOR_FACTS,
    kind_of_call,
    kind_of_operation,
)
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.names import COMM_KERNEL

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.arrays.types import Array


def codes_of(column: pa.DictionaryArray) -> tuple[Array, list[str]]:
    """Codes of a column of texts (-1 where unknown), and what they stand for."""
    return arrow.to_numpy(column, -1).astype(np.int64), column.dictionary.to_pylist()


def of_calls(
    name: pa.DictionaryArray, text: pa.DictionaryArray, at_once: Array
) -> tuple[Array, pa.DictionaryArray, pa.DictionaryArray]:
    """Kinds and names of calls, and what else their text says.

    Parameters
    ----------
    name, text
        Of each call, its name and the text that is its argument.
    at_once
        Mask of calls that end as they start.
    """
    code, names = codes_of(name)
    said, texts = codes_of(text)
    kind = np.array([*(int(kind_of_call(n)) for n in names), int(Kind.API)])[code]
    marks = np.array([*(n == MARKER for n in names), False])[code] & (said >= 0)
    operator = [OPERATOR.match(t) is not None for t in texts]
    split = [_split(t) if is_one else (t, "") for t, is_one in zip(texts, operator, strict=True)]
    runs = np.array([*operator, False])[said]
    marked = np.where(runs, int(Kind.CPU_OP), int(Kind.ANNOTATION))
    marked = np.where(at_once & ~runs, int(Kind.INSTANT), marked)
    shown = first_of(dictionary(np.where(marks, said, -1), [s for s, _ in split]), name)
    rest = [r for _, r in split]
    left = np.where(said < 0, -1, np.where(marks, said, said + len(rest)))
    return np.where(marks, marked, kind), shown, dictionary(left, [*rest, *texts])


def of_operations(
    kind_name: pa.DictionaryArray, described: pa.DictionaryArray
) -> tuple[Array, pa.DictionaryArray]:
    """Kinds and names of operations, by their types and descriptions."""
    type_code, types = codes_of(kind_name)
    kind = np.array([*(int(kind_of_operation(t)) for t in types), int(Kind.KERNEL)])[type_code]
    name = first_of(described, kind_name)
    code, names = codes_of(name)
    speaks = np.array([*(COMM_KERNEL.match(n) is not None for n in names), False])[code]
    return np.where((kind == Kind.KERNEL) & speaks, int(Kind.COMM), kind), name


def _split(text: str) -> tuple[str, str]:
    parts = OPERATOR_FACTS.split(text, maxsplit=1)
    return parts[0], parts[1] if len(parts) > 1 else ""

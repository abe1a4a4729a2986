"""Values of an ET's attributes: numbers as columns, and whatever is left as JSON."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.converters.chakra_decode import REAL_FIELDS, TEXT_FIELDS, VALUE_FIELDS
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.chakra import message

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.chakra_decode import EtFile

OTHER_TYPE = Fault(
    "et-attribute-type",
    Severity.INFO,
    "Attributes of a type that does not fit their name, such as texts for numbers, are arguments.",
)

WHOLE_FIELDS = tuple(f for f in VALUE_FIELDS if f not in REAL_FIELDS + TEXT_FIELDS)
_UNSIGNED_FIELDS = (11, 13, 19, 21)
_BOOL = 27
_LISTS = {number + 1: f"{name.removesuffix('_val').capitalize()}List"
          for number, name in VALUE_FIELDS.items()}  # fmt: skip
"""Field number of a list → its message."""


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """An attribute of all nodes as integers."""
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, found = et.attribute(attribute)
    whole = np.isin(fields, WHOLE_FIELDS)
    values[nodes[whole]] = found[whole]
    return values


def has(et: EtFile, attribute: str) -> Array:
    """Which nodes have an integer of that name."""
    nodes, fields, _ = et.attribute(attribute)
    found = np.zeros(len(et.id), bool)
    found[nodes[np.isin(fields, WHOLE_FIELDS)]] = True
    return found


def reals(et: EtFile, attribute: str) -> Array:
    """An attribute of all nodes as decimals, NaN without."""
    values = np.full(len(et.id), np.nan)
    nodes, fields, found = et.attribute(attribute)
    real, whole = np.isin(fields, REAL_FIELDS), np.isin(fields, WHOLE_FIELDS)
    values[nodes[real]] = found[real].view(np.float64)
    values[nodes[whole]] = found[whole]
    return values


def taken(et: EtFile, columns: dict[str, tuple[int, ...]], issues: IssueLog) -> Array:
    """Which attributes are of the name and type of one that becomes a column.

    Parameters
    ----------
    columns
        Name → field numbers of the values that fit.
    """
    found = np.zeros(len(et.attr_name), bool)
    for number, name in enumerate(et.attr_names):
        if name in columns:
            mine = et.attr_name == number
            fitting = np.isin(et.attr_field, columns[name])
            found |= mine & fitting
            issues.add(OTHER_TYPE, np.count_nonzero(mine & ~fitting), name)
    return found


def value(et: EtFile, row: int) -> Any:
    """The value of an attribute as JSON can tell it."""
    field, found = int(et.attr_field[row]), int(et.attr_value[row])
    length = int(et.attr_len[row])
    if field in TEXT_FIELDS:
        return et.text(found, length)
    if field in REAL_FIELDS:
        return _plain(float(np.int64(found).view(np.float64)))
    if field in _LISTS:
        return _list(_LISTS[field], et.buffer[found : found + length].tobytes())
    if field == _BOOL:
        return bool(found)
    return found % (1 << 64) if field in _UNSIGNED_FIELDS else found


def _list(name: str, raw: bytes) -> Any:
    try:
        return [_plain(v) for v in message(name).FromString(raw).values]
    except Exception:  # noqa: BLE001 - protobuf's own error class differs between its versions
        return raw.hex()


def _plain(found: Any) -> Any:
    if isinstance(found, bytes):
        return found.decode("utf-8", "replace")
    if isinstance(found, float) and not math.isfinite(found):
        return str(found)
    return found

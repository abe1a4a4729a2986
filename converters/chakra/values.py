"""Values of an ET's attributes: numbers as columns, and any single one as JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, VALUE_FIELDS, EtFile
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import message_class

OTHER_TYPE = Fault.info(
    "et-attribute-type",
    "Attributes of a type that does not fit their name, such as texts for numbers, become "
    "arguments.",
)

INTEGER_FIELDS = tuple(f for f in VALUE_FIELDS if f not in REAL_FIELDS + TEXT_FIELDS)
# Fields of et_def.proto's AttributeProto.
_UNSIGNED_FIELDS = (11, 13, 19, 21)
_BOOL = 27
_LISTS = {number + 1: f"{name.removesuffix('_val').capitalize()}List"
          for number, name in VALUE_FIELDS.items()}  # fmt: skip
"""Field number of a list → its message."""


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """Integer attribute of each node; `missing` where it has none."""
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, stored = et.attribute(attribute)
    is_integer = np.isin(fields, INTEGER_FIELDS)
    values[nodes[is_integer]] = stored[is_integer]
    return values


def has_integer(et: EtFile, attribute: str) -> Array:
    """Mask of the nodes that have an integer attribute of this name."""
    nodes, fields, _ = et.attribute(attribute)
    mask = np.zeros(len(et.id), bool)
    mask[nodes[np.isin(fields, INTEGER_FIELDS)]] = True
    return mask


def reals(et: EtFile, attribute: str) -> Array:
    """Numeric attribute of each node as float64; NaN where it has none."""
    values = np.full(len(et.id), np.nan)
    nodes, fields, stored = et.attribute(attribute)
    is_real, is_integer = np.isin(fields, REAL_FIELDS), np.isin(fields, INTEGER_FIELDS)
    values[nodes[is_real]] = stored[is_real].view(np.float64)
    values[nodes[is_integer]] = stored[is_integer]
    return values


def in_columns(et: EtFile, columns: dict[str, tuple[int, ...]], issues: IssueLog) -> Array:
    """Mask of the attributes with the name and type of one that becomes a column.

    Parameters
    ----------
    columns
        Name → field numbers of the values that fit.
    """
    mask = np.zeros(len(et.attr_name), bool)
    for number, name in enumerate(et.attr_names):
        if name in columns:
            named = et.attr_name == number
            fitting = np.isin(et.attr_field, columns[name])
            mask |= named & fitting
            issues.add(OTHER_TYPE, np.count_nonzero(named & ~fitting), name)
    return mask


def json_value(et: EtFile, row: int) -> Any:
    """Value of an attribute as one that JSON can hold."""
    field, stored = int(et.attr_field[row]), int(et.attr_value[row])
    length = int(et.attr_len[row])
    if field in TEXT_FIELDS:
        return et.text(stored, length)
    if field in REAL_FIELDS:
        return _json_scalar(float(np.int64(stored).view(np.float64)))
    if field in _LISTS:
        return _json_list(_LISTS[field], et.buffer[stored : stored + length].tobytes())
    if field == _BOOL:
        return bool(stored)
    return stored % (1 << 64) if field in _UNSIGNED_FIELDS else stored


def _json_list(name: str, raw: bytes) -> Any:
    """Parse a list message; as hexadecimal digits where it is none."""
    try:
        return [_json_scalar(v) for v in message_class(name).FromString(raw).values]
    except Exception:  # noqa: BLE001 - protobuf's own error class differs between its versions
        return raw.hex()


def _json_scalar(value: Any) -> Any:
    """Replace bytes and infinite numbers, which JSON lacks, by texts."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value

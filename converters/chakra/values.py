"""Values of an ET's attributes as columns."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, VALUE_FIELDS, EtFile
from chopper_interop.issues import Fault, IssueLog

OTHER_TYPE = Fault.info(
    "et-attribute-type",
    "Attributes of a type that does not fit their name, such as texts for numbers, become "
    "arguments.",
)

_FIELDS = max(VALUE_FIELDS) + 2
"""Fields of values and of lists, and one behind them for fields that the schema lacks."""
INTEGER_FIELDS = tuple(f for f in VALUE_FIELDS if f not in REAL_FIELDS + TEXT_FIELDS)
_IS_INTEGER = np.isin(np.arange(_FIELDS), INTEGER_FIELDS)


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """Integer attribute of each node; `missing` where it has none."""
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, stored = et.attribute(attribute)
    is_integer = _IS_INTEGER[np.minimum(fields, _FIELDS - 1)]
    values[nodes[is_integer]] = stored[is_integer]
    return values


def has_integer(et: EtFile, attribute: str) -> Array:
    """Mask of the nodes that have an integer attribute of this name."""
    nodes, fields, _ = et.attribute(attribute)
    mask = np.zeros(len(et.id), bool)
    mask[nodes[_IS_INTEGER[np.minimum(fields, _FIELDS - 1)]]] = True
    return mask


def reals(et: EtFile, attribute: str) -> Array:
    """Numeric attribute of each node as float64; NaN where it has none."""
    values = np.full(len(et.id), np.nan)
    nodes, fields, stored = et.attribute(attribute)
    is_real = is_any(fields, REAL_FIELDS)
    is_integer = _IS_INTEGER[np.minimum(fields, _FIELDS - 1)]
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
    # the last for -1, no name
    fits, named = np.zeros((2, len(et.attr_names) + 1, _FIELDS), np.bool_)
    for number, name in enumerate(et.attr_names):
        if name in columns:
            named[number], fits[number, list(columns[name])] = True, True
    field = np.minimum(et.attr_field, _FIELDS - 1)
    mask: Array = fits[et.attr_name, field]
    others = np.bincount(et.attr_name[named[et.attr_name, field] & ~mask], minlength=1)
    for number in np.flatnonzero(others).tolist():
        issues.add(OTHER_TYPE, int(others[number]), et.attr_names[number])
    return mask

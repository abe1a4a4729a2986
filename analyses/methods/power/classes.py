"""Classes of GPU work that draw power alike, and the expected power of each before a fit."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from chopper_interop.annotate.work import kernels as work_kernels
from chopper_interop.arrays import Array
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

MATRIX, ATTENTION, VECTOR, COMM, COPY, FILL = range(6)


@dataclass(frozen=True)
class PowerClass:
    """Class of work that draws power alike.

    Parameters
    ----------
    name
        Name of the class.
    ratio
        Expected power above idle, as a share of that of matrix products.
    spread
        Standard deviation of `ratio`.
    """

    name: str
    ratio: float
    spread: float


CLASSES = (
    PowerClass("matrix", 1.0, 0.15),
    PowerClass("attention", 0.9, 0.2),
    PowerClass("vector", 0.45, 0.2),
    PowerClass("comm", 0.15, 0.15),
    PowerClass("copy", 0.1, 0.1),
    PowerClass("fill", 0.2, 0.15),
)
"""Classes by number. Chosen: our own expectations, wide enough that any samples outweigh them."""

_OF_KIND = {Kind.COMM: COMM, Kind.MEMCPY: COPY, Kind.MEMSET: FILL}
_ATTENTION = re.compile(r"[Aa]ttn|[Aa]ttention|[Ff]mha|FMHA|[Ff]lash|_mha")


def power_classes(trace: Trace, rows: Array) -> Array:
    """Class of each of these nodes, which are GPU work: an index of `CLASSES`."""
    code = trace.array("name")[rows]
    names = trace.names()
    by_name = np.full(len(names), VECTOR, np.int8)
    used = np.unique(code)
    works = work_kernels.roles(names, used) == work_kernels.WORKER
    by_name[used[works]] = [
        ATTENTION if _ATTENTION.search(names[number]) else MATRIX for number in used[works].tolist()
    ]
    number = by_name[code]
    kind = trace.array("kind")[rows]
    for of_kind, class_number in _OF_KIND.items():
        number[kind == of_kind] = class_number
    return number

"""Classes of GPU work that draw power alike, and what is known of them before anything is fitted."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.schemas.kinds import Kind
from chopper_interop.work import kernels as work_kernels

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

MATRIX, ATTENTION, VECTOR, COMM, COPY, FILL = range(6)


@dataclass(frozen=True)
class PowerClass:
    """Work that draws power alike.

    Parameters
    ----------
    name
        Its name.
    ratio
        Power above idle that it is expected to draw, as a share of what matrix products draw.
    spread
        Standard deviation of this expectation.
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
"""By number. Expectations are those of this project: they count only as far as samples do not tell."""

_OF_KIND = {Kind.COMM: COMM, Kind.MEMCPY: COPY, Kind.MEMSET: FILL}
_ATTENTION = re.compile(r"[Aa]ttn|[Aa]ttention|[Ff]mha|FMHA|[Ff]lash|_mha")


def of(trace: Trace, rows: Array) -> Array:
    """Class of each of these nodes, which are GPU work.

    Parameters
    ----------
    trace
        Any trace.
    rows
        Rows of its nodes.
    """
    code = trace.array("name")[rows]
    names = trace.names()
    by_name = np.full(len(names), VECTOR, np.int8)
    used = np.unique(code)
    works = work_kernels.roles(names, used) == work_kernels.WORKER
    by_name[used[works]] = [
        ATTENTION if _ATTENTION.search(names[number]) else MATRIX for number in used[works].tolist()
    ]
    found = by_name[code]
    kind = trace.array("kind")[rows]
    for which, number in _OF_KIND.items():
        found[kind == which] = number
    return found

"""Colours, sizes and units that all charts share.

Colours are of middle lightness, so that they stand out from a white and from a black page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.grouping import grouped
from chopper_interop.schemas.time_units import NS_PER_UNIT

if TYPE_CHECKING:
    import pandas as pd

BLUE, ORANGE, GREEN, RED = "#3b82c4", "#e08a2e", "#3a9d6e", "#d1495b"
PURPLE, TEAL, BROWN, GREY = "#8a63c9", "#1f9aa8", "#a5794f", "#8a8f98"
PINK, OLIVE, _SAND = "#d46aa5", "#8f9a2f", "#b7a16a"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, TEAL, RED, BROWN, PINK, OLIVE, GREY)
COLOURS = {
    "compute": BLUE, "compute only": BLUE, "compute and communication": TEAL,
    "communication": ORANGE, "comm": ORANGE, "exposed communication": ORANGE, "hidden": TEAL,
    "exposed": ORANGE, "waiting": RED, "transfer": ORANGE, "copy": PURPLE, "copies": PURPLE,
    "host": GREEN, "runtime": "#f3836f", "launch": "#f0b4d2", "idle": GREY,
    "matmul": "#2878e6", "attention": TEAL, "normalization": PINK, "convolution": OLIVE,
    "elementwise": BROWN, "other": GREY, "fill": _SAND,
    "all_reduce": "#c2362b", "all_gather": "#2f8a3a", "reduce_scatter": "#d9b61e", "broadcast": "#6cb5ea",
    "all_to_all": "#b0308f", "send": "#63bf5e", "recv": "#4a50c4", "send_recv": "#c17df2",
    "reduce": "#8c2f52", "gather": "#17604a", "scatter": "#00c2a0", "barrier": "#4f565f",
    "event": "#e83cc0", "sync": "#f0506e", "stream": "#b4d2b4", "handover": "#9a3cf0", "dependency": "#46dc46",
    "host late": GREEN, "waits for the GPU": TEAL, "between kernels": GREY, "another rank": ORANGE,
    "edge of the recording": _SAND, "not recorded": PINK, "preparation": GREEN, "call": BROWN,
    "measured": GREY, "at the highest clock": BLUE, "at the achievable clock": TEAL,
    "at the peak rate": BLUE, "more instructions": PURPLE, "idle matrix cores": BROWN,
    "concurrent communication": ORANGE, "reduced clock": RED, "not explained": GREY,
}  # fmt: skip
"""Colour of each class and category of work, the same in every chart; others take `PALETTE` in turn.

Classes of a critical path and categories of GPU work share a timeline, and no colours but those of what is the same."""
CONTINUOUS = "viridis"
"""Colours of quantities in cells that fill an area."""
RAMP = (BLUE, ORANGE)
"""Lowest and highest colour of quantities of points: the dark end of others is lost on a black page."""
DIVERGING = ("#3b82c4", "#9a9da3", "#d1495b")
"""Colours of what is below, at and above the usual."""

_TIMES = tuple((float(ns), unit.replace("us", "µs")) for unit, ns in NS_PER_UNIT.items())
# Pixels of all rows, and of one, at least and at most. Chosen: names stay legible, charts on a screen.
_ROWS_HEIGHT = 420
_MIN_STEP, _MAX_STEP = 5, 20
# Names that colours can tell apart, and significant digits of a drawn value. Chosen: finer is below a pixel.
_MANY = 10
_DIGITS = 5


def colours(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Domain and range of a colour scale for these names."""
    domain = list(dict.fromkeys(names))
    spare = [c for c in PALETTE if c not in {COLOURS.get(n) for n in domain}] or list(PALETTE)
    others = [n for n in domain if n not in COLOURS]
    given = {name: spare[i % len(spare)] for i, name in enumerate(others)}
    return domain, [COLOURS.get(name) or given[name] for name in domain]


def are_many(names: Iterable[str]) -> bool:
    """True for more names than colours can tell apart, as of the ranks of a large job."""
    return len({name for name in names if name not in COLOURS}) > _MANY


def time_unit(values: Any) -> tuple[float, str]:
    """Nanoseconds of the unit in which the largest of these times is readable, and its name."""
    array = np.abs(np.asarray(values, float))
    known = array[np.isfinite(array)]
    largest = float(known.max()) if known.size else 0.0
    return next(((ns, name) for ns, name in _TIMES if largest >= ns), _TIMES[-1])


def step(rows: int) -> float:
    """Height of one of so many rows, pixels."""
    return float(np.clip(_ROWS_HEIGHT / max(rows, 1), _MIN_STEP, _MAX_STEP))


_AXIS_LENGTH, _MIN_LENGTH, _BETWEEN = 34, 9, " · "
"""Letters of a name at an axis, of a part of one, and what joins parts. Chosen: what the axis of a phone has room for, and three
parts of that."""
_NAMESPACE = re.compile(r"^(\w+::)+(?=\w+$)")
"""Beginning of the name of an operator that is no template."""


def shorten(name: str, length: int = _AXIS_LENGTH) -> str:
    """Name that fits at an axis: its middle is left out, as names of kernels differ at both ends."""
    half = (length - 1) // 2
    return name if len(name) <= length else f"{name[: length - 1 - half]}…{name[-half:]}"


def joined_names(rows: Sequence[Sequence[str]]) -> list[str]:
    """Join the parts of each row so that they fit at an axis.

    First parts that would look alike are without the beginning that they share.
    """
    shown = [_joined(*row) for row in rows]
    for alike in grouped((text, row) for row, text in enumerate(shown)).values():
        firsts = sorted({rows[row][0] for row in alike})
        shared = len(os.path.commonprefix(firsts))  # noqa: RUF071 # of characters
        for row in alike if len(firsts) > 1 else ():
            first, *others = rows[row]
            shown[row] = _joined("…" + first[shared:], *others)
    return shown


def _joined(*parts: str) -> str:
    """Join parts, of which the longest lose their namespace and then their middle, one after the other, until all fit."""
    shown = [*parts]
    for k in sorted(range(len(parts)), key=lambda k: -len(parts[k])):
        if len(_BETWEEN.join(shown)) > _AXIS_LENGTH:
            shown[k] = _NAMESPACE.sub("", shown[k])
        excess = max(len(_BETWEEN.join(shown)) - _AXIS_LENGTH, 0)
        shown[k] = shorten(shown[k], max(len(shown[k]) - excess, _MIN_LENGTH))
    return _BETWEEN.join(shown)


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows for a specification: plain values of five digits, null where unknown."""
    columns = {str(name): [_plain(v) for v in frame[name].tolist()] for name in frame.columns}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
    return None if value is None else value

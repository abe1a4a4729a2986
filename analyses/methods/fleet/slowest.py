"""The slowest GPU, by how much it is slower, and if a lower clock or heat goes with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.analyses.methods.fleet.compared import values

Row = dict[str, Any]

_SLOW = 1.01
"""Factor above which a GPU is slow. Chosen: the same 1 % as of a lower clock, see `_CLOCK`."""


class _Sign(NamedTuple):
    """A possible companion of slowness: a column, and by how much a slow GPU must differ in it.

    Parameters
    ----------
    direction
        1 if it must be higher than the others, -1 if lower.
    words
        Text for a slow GPU with that difference, and for one without.
    """

    column: str
    min_difference: float
    direction: int
    words: tuple[str, str]


_CLOCK = _Sign("gfxclk_mhz", 0.01, -1, ("a lower clock", "no lower clock"))
_HEAT = _Sign("temperature_c", 1.0, 1, ("more heat", "no more heat"))
CONVENTION = (
    "clock_vs_others_share and temperature_vs_others_c are against the median of the other GPUs in the same time. "
    "A clock goes with it if it is lower than every other's and 1 % below their median, heat if it is "
    "hotter than every other and by 1 °C. What goes with it need not be its cause"
)


def summary(rows: Sequence[Row]) -> Row:
    """Entries of a summary on the slowest GPU.

    Parameters
    ----------
    rows
        As of `fleet.compared.gpu_rows`.

    Returns
    -------
    dict
        `slowest_rank`; `slowest_factor`, its kernels' time by the median of the others that do the
        same; `clock_vs_others_share`, its clock by the median of all others'; `temperature_vs_others_c`, by how
        much it is hotter than that of all others; `clock_is_lowest` and `is_hottest`, whether
        that goes beyond every other; `in_words`. None where it is not known.
    """
    slow = [row for row in rows if row.get("slowdown_factor")]
    if not slow:
        return dict.fromkeys(_NAMES) | {"in_words": "it is not known which rank is slowest"}
    row = max(slow, key=lambda row: row["slowdown_factor"])
    step = row.get("iteration")
    others = [other for other in rows if other is not row and other.get("iteration") == step]
    clock, heat = _own_and_others(row, others, _CLOCK), _own_and_others(row, others, _HEAT)
    share = None if clock is None else clock[0] / clock[1]
    hotter = None if heat is None else heat[0] - heat[1]
    signs = (
        _is_extreme(clock, _CLOCK, None if share is None else 1 - share),
        _is_extreme(heat, _HEAT, hotter),
    )
    verdict = (row["rank"], row["slowdown_factor"], share, hotter, *signs)
    return dict(zip(_NAMES, verdict, strict=True)) | {"in_words": _words(row, share, hotter, signs)}


_NAMES = (
    "slowest_rank", "slowest_factor", "clock_vs_others_share", "temperature_vs_others_c", "clock_is_lowest",
    "is_hottest",
)  # fmt: skip


def _own_and_others(
    row: Row, others: Sequence[Row], sign: _Sign
) -> tuple[float, float, float] | None:
    """The row's value, the others' median, and the other value furthest in its direction."""
    other_values = values(others, sign.column)
    other_values = other_values[np.isfinite(other_values)]
    own = row.get(sign.column)
    middle = float(np.median(other_values)) if other_values.size else 0.0
    if own is None or not other_values.size or (sign is _CLOCK and middle <= 0):
        return None
    return (
        float(own),
        middle,
        float(other_values.max() if sign.direction > 0 else other_values.min()),
    )


def _is_extreme(
    compared: tuple[float, float, float] | None, sign: _Sign, difference: float | None
) -> bool | None:
    """True if a value, as of `_own_and_others`, is beyond all others and far from their median."""
    if compared is None or difference is None:
        return None
    own, _, extreme = compared
    return bool((own - extreme) * sign.direction > 0 and difference >= sign.min_difference)


def _words(
    row: Row, share: float | None, hotter: float | None, signs: tuple[bool | None, bool | None]
) -> str:
    factor = row["slowdown_factor"]
    step = "" if row.get("iteration") is None else f" in step {row['iteration']}"
    whose = f"{row['name']}{step}: its kernels take {factor:.3f} times as long as the others'"
    if factor < _SLOW:
        return f"no rank is slow; slowest is {whose}"
    known = [
        "its clock is not known" if share is None else f"its clock is {share:.3f} times theirs",
        "its temperature is not known"
        if hotter is None
        else f"it is {abs(hotter):.1f} °C {'hotter' if hotter >= 0 else 'cooler'}",
    ]
    pairs = [
        (goes, sign) for goes, sign in zip(signs, (_CLOCK, _HEAT), strict=True) if goes is not None
    ]
    has = " and ".join(sign.words[0] for goes, sign in pairs if goes)
    has_not = " and ".join(sign.words[1] for goes, sign in pairs if not goes)
    end = "; ".join(filter(None, (has and f"it also has {has}", has_not and f"it has {has_not}")))
    return f"slowest is {whose}; {', '.join(known)}" + (f": {end}" if end else "")

"""Which clock a power cap leaves a GPU: its firmware holds power, averaged over a while, at the cap.

While the work of such a while draws less at the highest clock than the cap allows, the clock is the
highest and the rest of the cap is not used; else it is the clock at which that work draws just the
cap. How long a while is, is found from the run: the one whose clocks are most like those that were
measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.power import products

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array

_MOST_BINS = 20_000
_WHILES_NS = tuple(1e6 * w for w in (2, 5, 10, 20, 40, 80, 160, 320))
_USUAL = 3
"""Place of the usual one, where clocks were not followed."""
_HALVINGS = 40
_NEAR = 0.01
"""A mean clock this near to the highest says nothing of how caps are held."""
_MOST_LIKE = 2.0


@dataclass(frozen=True)
class Course:
    """What a GPU drew above `fixed_w` over time, as if at its reference clock.

    Parameters
    ----------
    classes
        Power of each class of work in each bin of time, watts.
    idling_w, fixed_w
        Power of the clock without work, and what the clock does not change.
    width_ns
        Of a bin.
    exponent
        Exponent of the clock.
    ratio
        Clock of each bin by its reference.
    is_followed
        Whether that was measured.
    low, top
        Lowest and highest clock by the reference.
    """

    classes: Array
    idling_w: float
    fixed_w: float
    width_ns: float
    exponent: float
    ratio: Array
    is_followed: bool
    low: float
    top: float


@dataclass(frozen=True)
class Capping:
    """How a GPU is held at a cap.

    Parameters
    ----------
    course
        What it drew.
    place
        Which of the whiles it is.
    like
        How far the measured mean clock was below the highest, by how far this way of holding power
        puts it there.
    held_w
        The cap that this way of holding power would have needed for the mean power of the run.
    """

    course: Course
    place: int
    like: float
    held_w: float

    def mean_ratio(self, cap_w: float, factors: Array) -> tuple[float, float]:
        """Mean clock under a cap by its reference, and how far other whiles would move it.

        Parameters
        ----------
        cap_w
            The cap.
        factors
            By what the share of time of each class is another than it was.
        """
        drawn = self.course.idling_w + products.combined(factors, self.course.classes)
        around = [
            float(_ratios(self.course, drawn, place, cap_w).mean())
            for place in (self.place - 1, self.place, self.place + 1)
            if 0 <= place < len(_WHILES_NS)
        ]
        mine = around[min(self.place, 1)]
        low, top = self.course.low, self.course.top
        found = float(np.clip(top - (top - mine) * self.like, low, top))
        return found, max(abs(other - mine) for other in around) + abs(found - mine)


def capping(course: Course) -> Capping:
    """How a GPU was held at whatever its cap was."""
    step = -(-course.classes.shape[1] // _MOST_BINS)
    n = course.classes.shape[1] // step * step

    def coarse(values: Array) -> Array:
        found: Array = values[..., :n].reshape(*values.shape[:-1], -1, step).mean(axis=-1)
        return found

    ratio = coarse(course.ratio)
    width = course.width_ns * step
    course = replace(course, classes=coarse(course.classes), ratio=ratio, width_ns=width)
    drawn = course.idling_w + course.classes.sum(axis=0)
    measured = float((drawn * ratio**course.exponent).mean())
    if not course.is_followed:
        return Capping(course, _USUAL, 1.0, _cap(course, drawn, _USUAL, measured))
    found, best = Capping(course, _USUAL, 1.0, 0.0), np.inf
    for place in range(len(_WHILES_NS)):
        cap = _cap(course, drawn, place, measured)
        clocks = _ratios(course, drawn, place, cap)
        error = float(np.mean((clocks - ratio) ** 2))
        if error < best:
            best = error
            found = Capping(course, place, _like(course, clocks), cap)
    return found


def _like(course: Course, clocks: Array) -> float:
    """How far the measured clock was below the highest, by how far these are."""
    below = course.top - float(clocks.mean())
    if below < _NEAR * course.top:
        return 1.0
    return float(np.clip((course.top - course.ratio.mean()) / below, 1 / _MOST_LIKE, _MOST_LIKE))


def _averaged(course: Course, drawn: Array, place: int) -> Array:
    """Power around each bin, over a while."""
    number = max(round(_WHILES_NS[place] / course.width_ns), 1)
    if number > 1:
        sums = np.append([0.0], np.cumsum(drawn))
        first = np.maximum(np.arange(len(drawn)) - number // 2, 0)
        last = np.minimum(first + number, len(drawn))
        drawn = (sums[last] - sums[first]) / (last - first)
    return np.maximum(drawn, 1e-6)


def _ratios(course: Course, drawn: Array, place: int, cap_w: float) -> Array:
    """Clock by its reference in each bin."""
    allowed = max(cap_w - course.fixed_w, 0.0) / _averaged(course, drawn, place)
    found: Array = np.clip(allowed ** (1 / course.exponent), course.low, course.top)
    return found


def _cap(course: Course, drawn: Array, place: int, above_w: float) -> float:
    """The cap under which mean power above `fixed_w` is what it was."""
    least, most = course.low**course.exponent, course.top**course.exponent
    averaged = _averaged(course, drawn, place)
    low, high = course.fixed_w, course.fixed_w + float(drawn.max()) * most
    for _ in range(_HALVINGS):
        cap = (low + high) / 2
        rise = np.clip(max(cap - course.fixed_w, 0.0) / averaged, least, most)
        if float((drawn * rise).mean()) > above_w:
            high = cap
        else:
            low = cap
    return (low + high) / 2

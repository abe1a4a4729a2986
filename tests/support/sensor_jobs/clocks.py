"""Core clocks: what the clock of a GPU does next, by what the GPU works on.

A clock is constant for a tick and then takes a new value. Work has a heat between 0 (none) and 1; under a power
cap the clock approaches a value that falls with the heat, with a time constant. Other clocks ignore the heat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from sensor_jobs.signals import Steps

TICK_NS = 500_000


@dataclass(frozen=True)
class Constant:
    """Always the same share of the highest clock."""

    share: float

    def first(self) -> float:
        return self.share

    def next(self, share: float, heat: float, random: np.random.Generator) -> float:
        del share, heat, random
        return self.share


@dataclass(frozen=True)
class PowerCap:
    """An approach, within `settle_ns`, to 1 at no heat and to `hot` at full heat, with noise at each tick."""

    hot: float
    settle_ns: float
    noise: float

    def first(self) -> float:
        return 1.0

    def next(self, share: float, heat: float, random: np.random.Generator) -> float:
        aim = 1.0 - (1.0 - self.hot) * heat
        share += (aim - share) * min(1.0, TICK_NS / self.settle_ns)
        return _limited(share + self.noise * random.standard_normal())


@dataclass(frozen=True)
class Walk:
    """A random walk that returns to `centre` within `settle_ns`, of standard deviation `spread`."""

    centre: float
    spread: float
    settle_ns: float

    def first(self) -> float:
        return self.centre

    def next(self, share: float, heat: float, random: np.random.Generator) -> float:
        del heat
        pull = TICK_NS / self.settle_ns
        kick = self.spread * math.sqrt(2 * pull) * random.standard_normal()
        return _limited(share + pull * (self.centre - share) + kick)


@dataclass(frozen=True)
class Throttling:
    """The clock `calm`, but `throttled` in episodes; each state lasts an exponential time of the given mean."""

    calm: float
    throttled: float
    calm_ns: float
    throttled_ns: float

    def first(self) -> float:
        return self.calm

    def next(self, share: float, heat: float, random: np.random.Generator) -> float:
        del heat
        stays_ns = self.calm_ns if share == self.calm else self.throttled_ns
        if random.random() < TICK_NS / stays_ns:
            return self.throttled if share == self.calm else self.calm
        return share


Law = Constant | PowerCap | Walk | Throttling


def _limited(share: float) -> float:
    return min(1.0, max(0.3, share))


@dataclass
class Clock:
    """The clock of one GPU in a run, which grows as time proceeds; `tick_end_ns` is the end of the present tick."""

    law: Law
    max_mhz: float
    random: np.random.Generator
    start_ns: int
    shares: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shares.append(self.law.first())
        self.tick_end_ns = self.start_ns + TICK_NS

    def tick(self, heat: float) -> None:
        """Begin the next tick, after work of this heat."""
        self.shares.append(self.law.next(self.shares[-1], heat, self.random))
        self.tick_end_ns += TICK_NS

    def signal(self) -> Steps:
        """Return the clock in MHz over the time so far."""
        edges = self.start_ns + TICK_NS * np.arange(len(self.shares) + 1)
        return Steps(edges, self.max_mhz * np.array(self.shares))

"""Clocks to ask about: the highest, what makers say can be had, and those that a user asks for."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop.activity import windows
from chopper_interop.dvfs import breakdown_terms, memory_clock
from chopper_interop.errors import UsageError
from chopper_interop.gpus import rated
from chopper_interop.power import held as power_held
from chopper_interop.power import model as power_model
from chopper_interop.telemetry.gpus import gpus as gpus_of
from chopper_interop.telemetry.names import GFXCLK, POWER

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.sensitivity import Sensitivities
    from chopper_interop.gpus.rated import Rated
    from chopper_interop.power.held import Held
    from chopper_interop.power.model import PowerModel
    from chopper_interop.telemetry.gpus import Gpu
    from chopper_interop.trace import Trace

PEAK, ACHIEVABLE, ASKED = "peak", "achievable", "asked"
_ASKED = re.compile(r"(?:(max)\s*)?(\d+(?:\.\d*)?|\.\d+)\s*(x|MHz|GHz)?", re.IGNORECASE)
_MOST_MHZ, _MOST_FACTOR, _RANGE = 1e5, 10.0, 1e4
_LOWEST, _ABOVE, _ABOVE_SEEN = 0.05, 1.5, 3.0
"""Clocks beyond which nothing that was measured tells of times: by the highest of a GPU, or, where that
is not known, by the highest that was seen. GPUs go down to 0.06 to 0.3 of it; our choice."""
_AT_BOOST = 1 - 1e-9
HINT = 'write "1900" (MHz), "0.9x" (of what it was) or "max1900"'


class Target(NamedTuple):
    """Clocks that kernels would run at.

    Parameters
    ----------
    mhz
        Of each repeat of `sensitivity.Repeats`; not a number where it is not known.
    told
        What they are, for people.
    error_share
        Standard deviation of the clock that is asked about, as a share of it.
    is_change
        Whether it changes the clock that each ran at, and is not a clock of its own.
    ranks
        Whose clock it is; those of others stay. Of all if None.
    memory
        Memory clock of each repeat by the one asked about, not a number where it is not known; None
        if that stays.
    core
        Whether the core's clock is asked about.
    """

    mhz: Array
    told: str
    error_share: float = 0.0
    is_change: bool = False
    ranks: tuple[int, ...] | None = None
    memory: Array | None = None
    core: bool = True

    @property
    def clocks(self) -> str:
        """Which clocks are asked about, for people."""
        if self.memory is None:
            return "the clock"
        return "the clock of the core or of the memory" if self.core else "the memory's clock"


class Clock(NamedTuple):
    """A clock that a user asks for.

    Parameters
    ----------
    value
        MHz, or a factor to what it was.
    is_factor, is_limit
        Whether it is a factor; whether kernels that ran slower stay.
    """

    value: float
    is_factor: bool = False
    is_limit: bool = False

    @property
    def is_change(self) -> bool:
        """Whether it changes the clock that each ran at, and is not a clock of its own."""
        return self.is_factor or self.is_limit

    def of(self, own: Array) -> Array:
        """Clock of each of some kernels, by the one that it ran at."""
        if self.is_factor:
            return own * self.value
        found: Array = np.fmin(own, self.value) if self.is_limit else np.full(len(own), self.value)
        return found


def parsed(text: str) -> Clock:
    """A clock of a text: ``"1900"`` (MHz; ``"1.9GHz"``), ``"0.9x"`` (of what it was) or ``"max1900"``.

    Raises
    ------
    ValueError
        It is none, or one that no GPU has.
    """
    told = _ASKED.fullmatch(text.strip())
    if told is None:
        raise ValueError(f"{text or 'nothing'} is no clock")
    unit = (told[3] or "").lower()
    clock = Clock(float(told[2]) * (1000.0 if unit == "ghz" else 1.0), unit == "x", bool(told[1]))
    most = _MOST_FACTOR if clock.is_factor else _MOST_MHZ
    if not most / _RANGE <= clock.value <= most or (clock.is_factor and clock.is_limit):
        raise ValueError(f"{text}: no GPU has such a clock")
    return clock


class Question(NamedTuple):
    """What a user asks about.

    Parameters
    ----------
    clock
        ``"1900"``, ``"0.9x"`` or ``"max1900"``.
    memory_clock
        The same of the memory.
    cap_w
        Limit of the power of each GPU.
    on_ranks
        Ranks that this is of; all if empty.
    """

    clock: str = ""
    memory_clock: str = ""
    cap_w: float = 0.0
    on_ranks: str = ""

    def check(self) -> None:
        """Raise `UsageError` for what contradicts itself."""
        if self.cap_w and not self.cap_w > 0:
            raise UsageError(f"cap_w={self.cap_w:g}: that is no power", hint="give watts")
        if self.on_ranks and not self:
            raise UsageError(f"on_ranks={self.on_ranks}: it is not said what changes", hint=HINT)
        if self.clock and self.cap_w:
            raise UsageError("clock and cap_w are both given", hint="ask about one at a time")

    def __bool__(self) -> bool:
        return bool(self.clock or self.memory_clock or self.cap_w)


def of(known: Sensitivities, question: Question, gpus: str = "") -> dict[str, Target]:
    """Clocks to ask about, by name: ``peak``, ``achievable``, and ``asked`` if something is.

    Parameters
    ----------
    known
        Sensitivities of a trace's kernels.
    question
        What else is asked about.
    gpus
        File of the user's own GPUs.

    Raises
    ------
    UsageError
        What is asked cannot be understood, or contradicts itself.
    """
    r = known.repeats
    devices, which = rated.of_nodes(r.trace, r.node, gpus)
    boost = _of_devices([one.boost_mhz for one in devices.values()], which)
    found = {PEAK: Target(boost, _spoken(boost))}
    had = _achievable(r.trace, r.node, list(devices.values()), which)
    if not np.isnan(had).all():
        at_least = np.maximum(known.mhz, had)
        found[ACHIEVABLE] = Target(at_least, _spoken(had), is_change=True)
    question.check()
    if question:
        found[ASKED] = _asked(known, question, boost)
    return found


def highest(known: Sensitivities, gpus: str = "") -> Array:
    """Highest clock of the GPU of each repeat, MHz; not a number where it is not known."""
    devices, which = rated.of_nodes(known.repeats.trace, known.repeats.node, gpus)
    return _of_devices([one.boost_mhz for one in devices.values()], which)


def _asked(known: Sensitivities, question: Question, boost: Array) -> Target:
    r, own = known.repeats, known.mhz
    asked, error, is_change, told = own, 0.0, True, []
    ranks, which = None, np.ones(len(own), bool)
    if question.on_ranks:
        ranks = tuple(windows.chosen_ranks(r.trace, question.on_ranks))
        which = np.isin(r.trace.array("rank")[r.node], ranks)
    if question.clock:
        clock = _told("clock", question.clock)
        asked, is_change = clock.of(own), clock.is_change
        check_possible(asked[which], own[which], boost[which])
        is_above = (asked > boost)[which].any()
        told.append(question.clock + (", above the highest clock" if is_above else ""))
    elif question.cap_w:
        asked, error = _capped(known, boost, question.cap_w, which)
        if (asked[which] >= _AT_BOOST * boost[which]).all():  # the cap holds nothing
            asked, is_change = boost, False
        told.append(f"below {question.cap_w:g} W: {_spoken(asked[which])}")
    memory = None
    if question.memory_clock:
        before = memory_clock.measured(known)
        then = _told("memory_clock", question.memory_clock).of(before)
        check_possible(then[which], before[which], np.full(which.sum(), np.nan), "memory clock")
        memory = before / then
        told.append(f"memory {question.memory_clock}")
    if ranks is not None:
        told.append(f"of ranks {question.on_ranks}")
    core = bool(question.clock or question.cap_w)
    return Target(asked, ", ".join(told), error, is_change, ranks, memory, core)


def check_possible(asked: Array, own: Array, boost: Array, what: str = "clock") -> None:
    """Raise `UsageError` for clocks so far from those of the GPUs that nothing tells of them.

    Parameters
    ----------
    asked, own, boost
        Clocks of some kernels: asked about, measured, and the highest of their GPUs, MHz; not a
        number where one is not known.
    what
        Which clock it is.
    """
    top = np.where(np.isnan(boost), np.nanmax(own, initial=0.0), boost)
    above = np.where(np.isnan(boost), _ABOVE_SEEN, _ABOVE)
    wrong = (top > 0) & ((asked < _LOWEST * top) | (asked > above * np.fmax(top, own)))
    if wrong.any():
        ends = f"{_LOWEST * top.max():,.0f} to {(above * top)[top > 0].min():,.0f} MHz"
        raise UsageError(
            f"no GPU of the job has a {what} of {asked[wrong][0]:,.0f} MHz",
            hint=f"ask for {ends}; beyond, nothing that was measured tells of times",
        )


def _told(option: str, text: str) -> Clock:
    try:
        return parsed(text)
    except ValueError as error:
        raise UsageError(f"{option}={error}", hint=HINT) from error


def _of_devices(values: list[float | None], which: Array) -> Array:
    table = [np.nan if value is None else value for value in values]
    return np.array([*table, np.nan], float)[which]


def _spoken(mhz: Array) -> str:
    each = np.unique(np.rint(mhz[~np.isnan(mhz)]))
    if not each.size:
        return "not known of any GPU"
    return f"{each[0]:,.0f} MHz" if each.size == 1 else f"{each[0]:,.0f} to {each[-1]:,.0f} MHz"


def _achievable(trace: Trace, node: Array, devices: list[Rated], which: Array) -> Array:
    """Clock that makers measured achievable rates at, in the type of most matrix work of the GPU."""
    kind, matrix = breakdown_terms.of_operators(trace, node)
    dur, types = trace.array("dur")[node], breakdown_terms.TYPES
    mine = matrix & (kind >= 0)
    cell = which[mine] * len(types) + kind[mine]
    time = np.bincount(cell, dur[mine], len(devices) * len(types)).reshape(len(devices), len(types))
    clocks: list[float | None] = []
    for device, of_types in zip(devices, time, strict=True):
        told = device.achievable(types[int(of_types.argmax())]) if of_types.any() else None
        clocks.append(None if told is None else float(told[1]))
    return _of_devices(clocks, which)


def _capped(known: Sensitivities, boost: Array, cap_w: float, which: Array) -> tuple[Array, float]:
    """Clocks of kernels under a limit of their GPU's power, and the error of that as a share.

    Of GPUs that none of the kernels asked about (`which`) ran on, nothing need be known.
    """
    r, own = known.repeats, known.mhz
    trace = r.trace
    models, rows = _powered(known, cap_w, which)
    held = power_held.of(trace, models)
    found, errors = np.where(which, own, np.nan), [0.0]
    factor, mixes = np.ones(trace.nodes.num_rows), []
    for _ in range(_ROUNDS if held else 0):  # what takes longer at this clock draws power longer
        mixes, errors = power_held.mixes(trace, held, factor), [0.0]
        for one, busy, mine in zip(held, mixes, rows, strict=True):
            capped, is_asked = one.mhz(cap_w, busy), which[mine].any()
            if capped is not None:
                found[mine] = one.clocks(own[mine], boost[mine], capped[0])
                errors += [capped[1]] if is_asked else []
            elif is_asked:
                raise UsageError(f"cap_w={cap_w:g}: no clock of rank {one.gpu.ranks[0]} is known")
        log = known.ratio(found, is_change=True)[0].log[r.key]
        factor[r.node[which]] = np.exp(np.nan_to_num(log))[which]
    for one, busy, mine in zip(held, mixes, rows, strict=True):
        if which[mine].any():
            _check_holds(one, busy, cap_w)
    return found, max(errors)


def _powered(
    known: Sensitivities, cap_w: float, which: Array
) -> tuple[list[tuple[Gpu, PowerModel]], list[Array]]:
    """GPUs with kernels and a model of their power, and which kernels are of each.

    Those that nothing is asked about tell at which cap the others were held.
    """
    r = known.repeats
    place = np.full(r.trace.nodes.num_rows, -1, np.int64)
    place[r.node] = np.arange(len(r.node))
    models, rows = [], []
    for gpu in gpus_of(r.trace, quantities=(POWER, GFXCLK)):
        mine = place[gpu.rows]
        mine = mine[mine >= 0]
        model = power_model.fitted(r.trace, gpu) if mine.size else None
        if model is not None and model.f_ref_mhz:
            models.append((gpu, model))
            rows.append(mine)
        elif which[mine].any():
            why = power_model.why_not(r.trace, gpu) if model is None else "no clock was sampled"
            where = f"rank {gpu.ranks[0]}"
            raise UsageError(f"cap_w={cap_w:g}: clocks of {where} can't be told", hint=why)
    return models, rows


def _check_holds(one: Held, busy: dict[str, float], cap_w: float) -> None:
    """Raise `UsageError` if a GPU draws more than a limit at any clock."""
    least, mhz = one.model.least_w(busy), one.model.lowest_mhz
    if cap_w < least:
        why = f"at {mhz:,.0f} MHz, the lowest considered, rank {one.gpu.ranks[0]} draws {least:,.0f} W"
        raise UsageError(f"cap_w={cap_w:g}: no clock is held at that", hint=why)


_ROUNDS = 3


def described(asked: dict[str, Target]) -> dict[str, str]:
    """What the clocks are, for people."""
    return {f"clock: {name}": target.told for name, target in asked.items()}

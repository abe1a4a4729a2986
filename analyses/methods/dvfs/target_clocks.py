"""Target clocks: the highest, the one that makers call achievable, and one that a user asks about."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from chopper_interop import number_ranges
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.dvfs import breakdown_terms, memory_clock
from chopper_interop.analyses.methods.dvfs.clocks.kernel_clocks import LOWEST_SHARE
from chopper_interop.analyses.methods.power import capped_gpus as gpu_caps
from chopper_interop.analyses.methods.power import model as power_model
from chopper_interop.annotate.telemetry.gpus import Gpu
from chopper_interop.annotate.telemetry.gpus import gpus_with_telemetry as gpus_of
from chopper_interop.annotate.telemetry.quantity_series import GFXCLK, POWER
from chopper_interop.arrays import Array
from chopper_interop.errors import OptionError, UsageError
from chopper_interop.gpus import ratings
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities
    from chopper_interop.analyses.methods.power.capped_gpus import CappedGpu
    from chopper_interop.analyses.methods.power.model import PowerModel
    from chopper_interop.gpus.ratings import GpuRating

PEAK, ACHIEVABLE, ASKED = "peak", "achievable", "asked"
_CLOCK_PATTERN = re.compile(r"(?:(max)\s*)?(\d+(?:\.\d*)?|\.\d+)\s*(x|MHz|GHz)?", re.IGNORECASE)
_MAX_MHZ, _MAX_FACTOR, _RANGE = 1e5, 10.0, 1e4
"""Largest clock and factor that are parsed, and the largest over the smallest. Chosen: wider than any GPU's
range, so that only slips of the unit are refused here; `check_possible` knows the GPUs."""
_ABOVE, _ABOVE_SEEN = 1.5, 3.0
"""Clocks beyond which no measurement says anything of times, as `LOWEST_SHARE` below: shares of a GPU's highest clock, or,
where that is unknown, of the highest clock that was seen."""
_BOOST_SHARE = 1 - 1e-9
"""Share of the highest clock from which on a clock counts as it: above all rounding of doubles."""
_CLOCK_ROUNDS = 3
"""Rounds of finding clocks under a power cap and the times at them. Chosen: times change the mix of work
by little, so that the third round hardly moves the clock."""
HOW_TO_RECORD = (
    "record the core clock while the job runs, every 10 ms or as often as possible, for "
    "example with amd-smi metric --clock --watch or nvidia-smi --query-gpu=timestamp,index,clocks.sm "
    "-lms 20, and name its file next to the profiles"
)
"""Hint where no clock is known."""
HINT = 'write "1900" (MHz), "0.9x" (of what it was) or "max1900"'


class Target(NamedTuple):
    """Clocks that kernels would run at.

    Parameters
    ----------
    mhz
        Clock of each repeat of `repeats.Repeats` as a tool would read it; NaN where unknown.
    description
        Human-readable description of the clocks.
    error_share
        Standard deviation of the clock, as a share of it.
    is_change
        True if it changes the clock that each kernel ran at, False if it is a clock of its own.
    ranks
        Ranks whose clock changes; all if None.
    memory
        Measured memory clock of each repeat over the new one, NaN where unknown; None if the memory
        clock stays.
    core
        True if the core's clock changes.
    scale_error
        Standard deviation of each clock by how readings are related to clocks, as `Sensitivities.at_readings`.
    """

    mhz: Array
    description: str
    error_share: float = 0.0
    is_change: bool = False
    ranks: tuple[int, ...] | None = None
    memory: Array | None = None
    core: bool = True
    scale_error: Array | float = 0.0

    @property
    def clocks(self) -> str:
        """Human-readable name of the clocks that change."""
        if self.memory is None:
            return "the clock"
        return "the clock of the core or of the memory" if self.core else "the memory's clock"


class Clock(NamedTuple):
    """A clock that a user asks about.

    Parameters
    ----------
    value
        MHz, or a factor to the measured clock.
    is_factor
        True if `value` is a factor.
    is_limit
        True if kernels that ran slower keep their clock.
    """

    value: float
    is_factor: bool = False
    is_limit: bool = False

    @property
    def is_change(self) -> bool:
        """True if it changes the clock that each kernel ran at, False if it is a clock of its own."""
        return self.is_factor or self.is_limit

    def applied_to(self, measured: Array) -> Array:
        """Return the new clock of each kernel by its measured clock."""
        if self.is_factor:
            return measured * self.value
        if self.is_limit:
            limited: Array = np.fmin(measured, self.value)
            return limited
        return np.full(len(measured), self.value)


def parse_clock(text: str) -> Clock:
    """Parse ``"1900"`` (MHz; ``"1.9GHz"``), ``"0.9x"`` (of the measured clock) or ``"max1900"``.

    Raises
    ------
    ValueError
        The text is no clock, or one that no GPU has.
    """
    match = _CLOCK_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text or 'nothing'} is no clock")
    unit = (match[3] or "").lower()
    clock = Clock(float(match[2]) * (1000.0 if unit == "ghz" else 1.0), unit == "x", bool(match[1]))
    highest = _MAX_FACTOR if clock.is_factor else _MAX_MHZ
    if not highest / _RANGE <= clock.value <= highest or (clock.is_factor and clock.is_limit):
        raise ValueError(f"{text}: no GPU has such a clock")
    return clock


class Question(NamedTuple):
    """Clocks or power cap that a user asks about.

    Parameters
    ----------
    clock
        Core clock, ``"1900"``, ``"0.9x"`` or ``"max1900"``; the same clock if empty.
    memory_clock
        Memory clock, written alike.
    cap_w
        Limit of the power of each GPU, watts; none if 0.
    on_ranks
        Ranks that change; all if empty.
    """

    clock: str = ""
    memory_clock: str = ""
    cap_w: float = 0.0
    on_ranks: str = ""

    def check(self) -> None:
        """Raise `OptionError` for options that contradict each other, or that are no clock, power or ranks."""
        for option, text in (("clock", self.clock), ("memory_clock", self.memory_clock)):
            if text:
                _parse_option(option, text)
        if self.on_ranks:
            number_ranges.parse("on_ranks", self.on_ranks)
        if self.cap_w and not self.cap_w > 0:
            raise OptionError(f"cap_w={self.cap_w:g}: that is no power", hint="write watts, as 600")
        if self.on_ranks and not self:
            raise OptionError(
                f"on_ranks={self.on_ranks}: no clock= or cap_w= says what changes", hint=HINT
            )
        if self.clock and self.cap_w:
            raise OptionError("clock and cap_w exclude each other", hint="ask about one at a time")

    def __bool__(self) -> bool:
        return bool(self.clock or self.memory_clock or self.cap_w)


def target_clocks(known: Sensitivities, question: Question, gpus: str = "") -> dict[str, Target]:
    """Return target clocks by name: ``peak``, ``achievable``, and ``asked`` if a user asks about one.

    Parameters
    ----------
    known
        Sensitivities of a trace's kernels.
    question
        Clock or power cap that the user asks about.
    gpus
        Path of the user's file of GPUs.

    Raises
    ------
    UsageError
        The question cannot be understood, or contradicts itself.
    """
    r = known.repeats
    devices, device = ratings.rate_gpus_of_nodes(r.trace, r.node, gpus)
    boost = _of_devices([gpu.boost_mhz for gpu in devices.values()], device)
    targets = {PEAK: Target(boost, _mhz_text(boost))}
    achievable = _achievable(r.trace, r.node, list(devices.values()), device)
    if not np.isnan(achievable).all():
        at_least = np.maximum(known.read_mhz, achievable)
        targets[ACHIEVABLE] = Target(at_least, _mhz_text(achievable), is_change=True)
    if question:
        targets[ASKED] = _asked(known, question, boost)
    return targets


def highest(known: Sensitivities, gpus: str = "") -> Array:
    """Highest clock of each repeat's GPU, MHz; NaN where unknown."""
    devices, device = ratings.rate_gpus_of_nodes(known.repeats.trace, known.repeats.node, gpus)
    return _of_devices([gpu.boost_mhz for gpu in devices.values()], device)


def _asked(known: Sensitivities, question: Question, boost: Array) -> Target:
    """Target of a user's question; `boost` is the highest clock of each repeat's GPU."""
    r, measured = known.repeats, known.read_mhz
    mhz, error, is_change, texts = measured, 0.0, True, []
    ranks, selected = None, np.ones(len(measured), bool)
    if question.on_ranks:
        ranks = tuple(windows.chosen_ranks(r.trace, question.on_ranks))
        selected = np.isin(r.trace.array("rank")[r.node], ranks)
    if question.clock:
        clock = _parse_option("clock", question.clock)
        mhz, is_change = clock.applied_to(measured), clock.is_change
        check_possible(mhz[selected], measured[selected], boost[selected])
        is_above = (mhz > boost)[selected].any()
        texts.append(question.clock + (", above the highest clock" if is_above else ""))
    elif question.cap_w:
        mhz, error = _capped(known, boost, question.cap_w, selected)
        if (mhz[selected] >= _BOOST_SHARE * boost[selected]).all():  # the cap holds nothing
            mhz, is_change = boost, False
        texts.append(f"below {question.cap_w:g} W: {_mhz_text(mhz[selected])}")
    memory = None
    if question.memory_clock:
        before = memory_clock.measured_mhz(known)
        new = _parse_option("memory_clock", question.memory_clock).applied_to(before)
        no_boost = np.full(selected.sum(), np.nan)
        check_possible(new[selected], before[selected], no_boost, "memory clock")
        memory = before / new
        texts.append(f"memory {question.memory_clock}")
    if ranks is not None:
        texts.append(f"of ranks {question.on_ranks}")
    core = bool(question.clock or question.cap_w)
    return Target(mhz, ", ".join(texts), error, is_change, ranks, memory, core)


def check_possible(mhz: Array, measured: Array, boost: Array, name: str = "clock") -> None:
    """Raise `UsageError` for clocks so far from those of the GPUs that no measurement applies.

    Parameters
    ----------
    mhz, measured, boost
        New and measured clocks of some kernels, and the highest of their GPUs, MHz; NaN where
        unknown.
    name
        Name of the clock in the message.
    """
    top = np.where(np.isnan(boost), np.nanmax(measured, initial=0.0), boost)
    above = np.where(np.isnan(boost), _ABOVE_SEEN, _ABOVE)
    wrong = (top > 0) & ((mhz < LOWEST_SHARE * top) | (mhz > above * np.fmax(top, measured)))
    if wrong.any():
        ends = f"{LOWEST_SHARE * top.max():,.0f} to {(above * top)[top > 0].min():,.0f} MHz"
        raise UsageError(
            f"no GPU of the job has a {name} of {mhz[wrong][0]:,.0f} MHz",
            hint=f"ask for {ends}: no measurement says anything of times beyond",
        )


def _parse_option(option: str, text: str) -> Clock:
    """Parse the clock of an option; the `OptionError` of one that cannot be parsed names it."""
    try:
        return parse_clock(text)
    except ValueError as error:
        raise OptionError(f"{option}={error}", hint=HINT) from error


def _of_devices(values: list[float | None], device: Array) -> Array:
    """Value of each kernel's GPU; NaN where it is None or the GPU unknown (device -1)."""
    table = [np.nan if value is None else value for value in values]
    return np.array([*table, np.nan], float)[device]


def _mhz_text(mhz: Array) -> str:
    """Write the range of known clocks in a human-readable form."""
    each = np.unique(np.rint(mhz[~np.isnan(mhz)]))
    if not each.size:
        return "not known of any GPU"
    return f"{each[0]:,.0f} MHz" if each.size == 1 else f"{each[0]:,.0f} to {each[-1]:,.0f} MHz"


def _achievable(trace: Trace, node: Array, devices: list[GpuRating], device: Array) -> Array:
    """Clock at which makers measured achievable rates, in the type of most matrix work of each GPU."""
    kind, matrix = breakdown_terms.operator_types(trace, node)
    dur, types = trace.array("dur")[node], breakdown_terms.TYPES
    typed = matrix & (kind >= 0)
    # A histogram over (GPU, type), flattened: time of matrix work of each type on each GPU.
    cell = device[typed] * len(types) + kind[typed]
    time = np.bincount(cell, dur[typed], len(devices) * len(types))
    time = time.reshape(len(devices), len(types))
    clocks: list[float | None] = []
    for gpu, of_types in zip(devices, time, strict=True):
        rate_and_mhz = gpu.achievable(types[int(of_types.argmax())]) if of_types.any() else None
        clocks.append(None if rate_and_mhz is None else float(rate_and_mhz[1]))
    return _of_devices(clocks, device)


def _capped(
    known: Sensitivities, boost: Array, cap_w: float, selected: Array
) -> tuple[Array, float]:
    """Clocks of the selected kernels under a limit of their GPU's power, and the error as a share.

    GPUs on which no selected kernel ran may lack power and clocks.
    """
    r, measured = known.repeats, known.read_mhz
    trace = r.trace
    models, rows_of_gpu = _power_models(known, cap_w, selected)
    capped_gpus = gpu_caps.capped_gpus(trace, models)
    mhz, errors = np.where(selected, measured, np.nan), [0.0]
    factor, mixes = np.ones(trace.nodes.num_rows), []
    for _ in range(
        _CLOCK_ROUNDS if capped_gpus else 0
    ):  # longer work at this clock draws power longer
        mixes, errors = gpu_caps.class_shares(trace, capped_gpus, factor), [0.0]
        for gpu, busy, rows in zip(capped_gpus, mixes, rows_of_gpu, strict=True):
            mean, is_asked = gpu.mhz(cap_w, busy), selected[rows].any()
            if mean is not None:
                mhz[rows] = gpu.clocks(measured[rows], boost[rows], mean[0])
                errors += [mean[1]] if is_asked else []
            elif is_asked:
                raise UsageError(f"cap_w={cap_w:g}: no clock of rank {gpu.gpu.ranks[0]} is known")
        lifted, new, _ = known.at_readings(mhz, is_change=True)
        log = lifted.ratio(new, is_change=True)[0].log[r.key]
        factor[r.node[selected]] = np.exp(np.nan_to_num(log))[selected]
    for gpu, busy, rows in zip(capped_gpus, mixes, rows_of_gpu, strict=True):
        if selected[rows].any():
            _check_cap(gpu, busy, cap_w)
    return mhz, max(errors)


def _power_models(
    known: Sensitivities, cap_w: float, selected: Array
) -> tuple[list[tuple[Gpu, PowerModel]], list[Array]]:
    """GPUs with kernels and a model of their power, and the rows of the kernels of each.

    GPUs without selected kernels are included: they show at which cap the others were held.
    """
    r = known.repeats
    position = np.full(r.trace.nodes.num_rows, -1, np.int64)
    position[r.node] = np.arange(len(r.node))
    models, rows_of_gpu = [], []
    for gpu in gpus_of(r.trace, quantities=(POWER, GFXCLK)):
        rows = position[gpu.rows]
        rows = rows[rows >= 0]
        model = power_model.fit_power(r.trace, gpu) if rows.size else None
        if model is not None and model.f_ref_mhz:
            models.append((gpu, model))
            rows_of_gpu.append(rows)
        elif selected[rows].any():
            why = power_model.why_not(r.trace, gpu) if model is None else "no clock was sampled"
            rank = f"rank {gpu.ranks[0]}"
            raise UsageError(f"cap_w={cap_w:g}: clocks of {rank} cannot be predicted", hint=why)
    return models, rows_of_gpu


def _check_cap(gpu: CappedGpu, busy: dict[str, float], cap_w: float) -> None:
    """Raise `UsageError` if a GPU draws more than a limit at any clock."""
    min_w, mhz = gpu.model.min_w(busy), gpu.model.lowest_mhz
    if cap_w < min_w:
        why = f"at {mhz:,.0f} MHz, the lowest considered, rank {gpu.gpu.ranks[0]} draws {min_w:,.0f} W"
        raise UsageError(f"cap_w={cap_w:g}: no clock is held at that", hint=why)


def descriptions(targets: dict[str, Target]) -> dict[str, str]:
    """Return human-readable descriptions of the clocks as notes of a result."""
    return {f"clock: {name}": target.description for name, target in targets.items()}

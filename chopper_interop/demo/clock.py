"""The core clock of each GPU: a controller that holds filtered power at a target.

Every control tick the power of the tick before is averaged and filtered; the clock falls when the
filtered power lies above the GPU's target and rises when it lies below, within the limits and in
fixed increments. Heat lowers target and highest clock of a GPU by a constant factor, and a slow
random drift takes off a little more. Only kernels of the compute stream draw dynamic power, so
that the clock can be followed along that stream alone.

Compiled, as the clock of a tick depends on the power of all before it.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.arrays.compiled import jit
from chopper_interop.demo import noise
from chopper_interop.demo.parameters import MIN_MHZ, PEAK_MHZ, WINDOW_START_NS, DemoParameters

# The controller's constants are invented, so that clocks move as in traces of GPUs under a power limit.
TICK_NS: Final = 1_000_000
LEAD_NS: Final = 4_000_000_000
"""Time before the profiled window over which the clock is followed, and after it."""
QUANTUM_MHZ: Final = 5
IDLE_W: Final = 170.0
DYNAMIC_W: Final = 780.0
"""Power above idle at `PEAK_MHZ` with the matrix cores busy all the time."""
# Power follows f^2.4, as f V² with V about f^0.7.
POWER_EXPONENT: Final = 2.4
IDLE_ACTIVITY: Final = 0.06
# Shares for each tick: of the filter, the controller, and the drift's memory, spread and heat.
_FILTER = 0.18
_GAIN = 0.10
_DRIFT_MEMORY = 0.995
_DRIFT_SPREAD = 0.0010
_WARMING = 0.002
# Temperature without power, and its rise for each watt: invented.
AMBIENT_C: Final = 34.0
HEAT_C_PER_W: Final = 0.062

# Columns of `ClockStates.state`.
_CONTROL, _POWER, _DRIFT, _ACTIVE_NS, _BUSY_NS, _HEAT = range(6)


class ClockStates(NamedTuple):
    """State and history of the clocks, one row a GPU.

    Parameters
    ----------
    origin_ns
        Unix time at which tick 0 begins.
    now_ns, tick
        Time up to which the history is known, and the tick in which that lies.
    state
        State of the controller.
    highest_mhz, target_w
        Limits of the GPU.
    mhz, power_w, socket_w, busy, heat_w, throttled
        History by tick: clock, mean power, filtered power, share of time with a kernel on the
        compute stream, power filtered over a long time, whether power held the clock down.
    seed
        Of the drift.
    """

    origin_ns: Array
    now_ns: Array
    tick: Array
    state: Array
    highest_mhz: Array
    target_w: Array
    mhz: Array
    power_w: Array
    socket_w: Array
    busy: Array
    heat_w: Array
    throttled: Array
    seed: int


def make_clock(parameters: DemoParameters, slow_factor: float, window_ns: float) -> ClockStates:
    """Clocks at the beginning of their history, `LEAD_NS` before the window.

    Parameters
    ----------
    slow_factor
        Clock of the straggler as a share of that of the others.
    window_ns
        Longest that the window can last, nanoseconds.
    """
    ranks = range(parameters.ranks)
    phase = [
        int(noise.uniform(parameters.seed, noise.GPU_OFFSET, r, 0, 0) * TICK_NS) for r in ranks
    ]
    cool = [1 - 0.006 * noise.uniform(parameters.seed, noise.GPU_OFFSET, r, 1, 0) for r in ranks]
    factor = np.array([slow_factor if r == parameters.slow_rank else cool[r] for r in ranks])
    origin = np.array([WINDOW_START_NS - LEAD_NS - offset for offset in phase], dtype=np.int64)
    shape = (parameters.ranks, int(window_ns + 2 * LEAD_NS) // TICK_NS + 2)
    state, target_w = np.zeros((parameters.ranks, 6)), float(parameters.power_w)
    highest = np.floor(parameters.peak_mhz * factor)
    highest[factor == factor.max()] = parameters.peak_mhz
    state[:, _CONTROL] = np.minimum(1900.0 * factor, highest)
    state[:, _POWER] = state[:, _HEAT] = target_w
    mhz = np.full(shape, MIN_MHZ, dtype=np.int32)
    mhz[:, 0] = state[:, _CONTROL]
    return ClockStates(
        origin_ns=origin,
        now_ns=origin.copy(),
        tick=np.zeros(parameters.ranks, dtype=np.int64),
        state=state,
        highest_mhz=highest,
        target_w=IDLE_W + (target_w - IDLE_W) * factor**POWER_EXPONENT,
        mhz=mhz,
        power_w=np.zeros(shape),
        socket_w=np.zeros(shape),
        busy=np.zeros(shape),
        heat_w=np.zeros(shape),
        throttled=np.zeros(shape),
        seed=parameters.seed,
    )


@jit
def _control(clock: ClockStates, gpu: int) -> None:
    """Close the tick: note its power, choose the clock of the next."""
    k, state = clock.tick[gpu], clock.state[gpu]
    activity = state[_ACTIVE_NS] / TICK_NS
    share = clock.mhz[gpu, k] / PEAK_MHZ
    watts = IDLE_W + DYNAMIC_W * activity * share**POWER_EXPONENT
    state[_POWER] += _FILTER * (watts - state[_POWER])
    state[_HEAT] += _WARMING * (watts - state[_HEAT])
    clock.power_w[gpu, k], clock.socket_w[gpu, k] = watts, state[_POWER]
    clock.busy[gpu, k], clock.heat_w[gpu, k] = state[_BUSY_NS] / TICK_NS, state[_HEAT]
    clock.throttled[gpu, k] = state[_POWER] > clock.target_w[gpu]
    state[_ACTIVE_NS] = state[_BUSY_NS] = 0.0
    wanted = state[_CONTROL] * (1.0 + _GAIN * (1.0 - state[_POWER] / clock.target_w[gpu]))
    state[_CONTROL] = min(max(wanted, MIN_MHZ), clock.highest_mhz[gpu])
    draw = noise.normal(clock.seed, noise.CLOCK_DRIFT, gpu, k, 0)
    state[_DRIFT] = _DRIFT_MEMORY * state[_DRIFT] + _DRIFT_SPREAD * draw
    drifted = state[_CONTROL] * (1.0 - abs(state[_DRIFT]))
    mhz = QUANTUM_MHZ * math.floor(drifted / QUANTUM_MHZ + 0.5)
    clock.tick[gpu] = k + 1
    clock.mhz[gpu, k + 1] = min(max(mhz, MIN_MHZ), clock.highest_mhz[gpu])


@jit
def spend(clock: ClockStates, gpu: int, until_ns: int, activity: float, busy: float) -> None:
    """Follow the clock up to a time, during which the GPU is active and busy to these shares."""
    state = clock.state[gpu]
    while clock.now_ns[gpu] < until_ns:
        tick_end = clock.origin_ns[gpu] + (clock.tick[gpu] + 1) * TICK_NS
        stop = min(until_ns, tick_end)
        state[_ACTIVE_NS] += activity * (stop - clock.now_ns[gpu])
        state[_BUSY_NS] += busy * (stop - clock.now_ns[gpu])
        clock.now_ns[gpu] = stop
        if stop == tick_end:
            _control(clock, gpu)


@jit
def law_ns(slope: Array, fixed: Array, mhz: float) -> float:
    """Time of a kernel by its segments at a constant clock, nanoseconds."""
    longest = 0.0
    for i in range(len(slope)):
        longest = max(longest, slope[i] / mhz + fixed[i])
    return longest


@jit
def whole_ns(time_ns: float) -> int:
    """Round a duration to whole nanoseconds, at least one."""
    return max(1, math.floor(time_ns + 0.5))


@jit
def run_kernel(
    clock: ClockStates, gpu: int, start_ns: int, law: Array, factor: float, activity: float
) -> int:
    """Time at which a kernel ends that starts at `start_ns`, integrating over the clock.

    Parameters
    ----------
    law
        Rows a and b of its segments.
    factor
        Noise of this instance.
    activity
        Share of the dynamic power that it draws.
    """
    spend(clock, gpu, start_ns, IDLE_ACTIVITY, 0.0)
    progress = 0.0
    while True:
        now = clock.now_ns[gpu]
        duration_ns = law_ns(law[0], law[1], clock.mhz[gpu, clock.tick[gpu]]) * factor
        rest = (1.0 - progress) * duration_ns
        tick_end = clock.origin_ns[gpu] + (clock.tick[gpu] + 1) * TICK_NS
        if now + rest <= tick_end:
            end: int = max(now + math.floor(rest + 0.5), start_ns + 1)
            spend(clock, gpu, end, activity, 1.0)
            return end
        progress += (tick_end - now) / duration_ns
        spend(clock, gpu, tick_end, activity, 1.0)


def mean_mhz(clock: ClockStates, gpu: int, start_ns: Array, end_ns: Array) -> Array:
    """Clock averaged over time, MHz, for intervals of at least one nanosecond."""
    area = np.concatenate([[0], np.cumsum(clock.mhz[gpu].astype(np.int64) * TICK_NS)])

    def integral(time_ns: Array) -> Array:
        elapsed = time_ns - clock.origin_ns[gpu]
        tick = elapsed // TICK_NS
        return area[tick] + clock.mhz[gpu, tick] * (elapsed - tick * TICK_NS)

    return (integral(end_ns) - integral(start_ns)) / (end_ns - start_ns)

"""The law of the kernels, the clocks, and the integration of the one over the other."""

from __future__ import annotations

import itertools
import math
import statistics

import numpy as np
import pytest

from chopper_interop.demo import clock as clocks
from chopper_interop.demo import noise, schedule
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.kernels import (
    LAWS,
    law_tables,
    sensitivities,
    slowed_clock_mhz,
    times_ns,
)
from chopper_interop.demo.parameters import PEAK_MHZ, DemoParameters
from chopper_interop.demo.program import KERNEL


@pytest.fixture(scope="module")
def job():
    return simulate_job(DemoParameters(layers=1, steps=2, straggler_slowdown=1.08))


def by_class(job):
    result = {}
    for kernel in job.programs[0].kernels:
        if kernel.reference_ns > 20_000:
            result.setdefault(kernel.kind, kernel)
    return [result[kind] for kind in LAWS]


def test_laws_hand_over_towards_lower_clocks():
    for law in LAWS.values():
        assert list(law.crossings_mhz) == sorted(law.crossings_mhz, reverse=True)
        assert all(a < b for a, b in itertools.pairwise(law.betas))
        assert len(law.betas) == len(law.crossings_mhz) + 1


def test_segments_meet_at_their_crossings(job):
    for kernel in by_class(job):
        segments = kernel.segments()
        for (one, two), mhz in zip(
            itertools.pairwise(segments[:-1]), LAWS[kernel.kind].crossings_mhz, strict=True
        ):
            assert one[0] / mhz + one[1] == pytest.approx(two[0] / mhz + two[1])


def test_law_is_convex_in_cycles_and_falls_with_the_clock(job):
    kernels = by_class(job)
    slope, fixed = law_tables(kernels)
    mhz = np.linspace(1300, 2400, 221)
    for a, b in zip(slope, fixed, strict=True):
        time = times_ns(a, b, mhz)
        cycles = time * mhz
        assert (np.diff(time) <= 1e-9).all()
        assert (np.diff(cycles, 2) >= -1e-6 * cycles.max()).all()


def test_reference_time_is_that_at_the_reference_clock(job):
    kernels = by_class(job)
    slope, fixed = law_tables(kernels)
    for kernel, time in zip(kernels, times_ns(slope, fixed, PEAK_MHZ), strict=True):
        assert time == pytest.approx(kernel.reference_ns)
        assert time >= kernel.floor_ns


def test_sensitivity_is_the_logarithmic_derivative(job):
    slope, fixed = law_tables(by_class(job))
    for mhz in (1437.0, 1711.0, 1993.0):
        step = 1e-4
        ratio = times_ns(slope, fixed, mhz * (1 - step)) / times_ns(slope, fixed, mhz * (1 + step))
        numeric = np.log(ratio) / math.log((1 + step) / (1 - step))
        assert sensitivities(slope, fixed, mhz) == pytest.approx(numeric, abs=1e-5)


def test_no_single_sensitivity_fits_a_kernel(job):
    """t_ref (beta f_ref / f + 1 - beta), fitted at two clocks, misses the time between them."""
    for kernel in by_class(job):
        slope, fixed = (table[0] for table in law_tables([kernel]))
        low, high = 1400.0, 2100.0
        ends = times_ns(slope, fixed, np.array([low, high]))
        rise = (ends[0] - ends[1]) / (1 / low - 1 / high)
        middle = LAWS[kernel.kind].crossings_mhz[0]
        fitted = ends[1] + rise * (1 / middle - 1 / high)
        assert times_ns(slope, fixed, middle) < 0.999 * fitted
        betas = sensitivities(slope, fixed, np.array([low, high]))
        assert betas[0] > betas[1] + 0.1


def test_core_bound_and_bandwidth_bound_classes(job):
    slope, fixed = law_tables(by_class(job))
    betas = dict(zip(LAWS, sensitivities(slope, fixed, 2000.0), strict=True))
    assert betas["gemm"] > 0.7
    assert betas["attention"] > 0.6
    assert max(betas[k] for k in ("elementwise", "norm", "optimizer", "copy")) < 0.1


def test_slowed_clock(job):
    slope, fixed = law_tables(job.programs[0].kernels)
    mhz = slowed_clock_mhz(slope, fixed, 1800.0, 1.07)
    ratio = times_ns(slope, fixed, mhz).sum() / times_ns(slope, fixed, 1800.0).sum()
    assert ratio == pytest.approx(1.07)


def test_clocks_vary_within_and_between_gpus(job):
    used = [job.clock.mhz[g, : int(job.clock.tick[g])] for g in range(8)]
    for gpu, mhz in enumerate(used):
        window = mhz[clocks.LEAD_NS // clocks.TICK_NS : -clocks.LEAD_NS // clocks.TICK_NS]
        assert statistics.pstdev(window.tolist()) > 0.03 * window.mean()
        assert 1300 <= window.min() <= window.max() <= job.clock.highest_mhz[gpu] <= 2100
    means = [float(mhz.mean()) for mhz in used]
    assert means.index(min(means)) == job.parameters.slow_rank == 5
    assert statistics.pstdev(means) > 0.005 * statistics.fmean(means)


@pytest.mark.parametrize("slowdown", [1.0, 1.04, 1.1])
def test_straggler_is_as_slow_as_asked(slowdown):
    job = simulate_job(DemoParameters(ranks=4, straggler=2, straggler_slowdown=slowdown, steps=2))
    kernels = job.tables.kind[0] == KERNEL
    times = (job.timeline.end_ns - job.timeline.start_ns)[:, :, kernels].sum(axis=(1, 2))
    others = np.delete(times, 2)
    assert times[2] / np.median(others) == pytest.approx(slowdown, abs=0.015)


def progress(job, rank, start, end, law, factor):
    """Work done between two times, tick by tick, as a share of the kernel."""
    done, now = 0.0, start
    while now < end:
        tick = (now - int(job.clock.origin_ns[rank])) // clocks.TICK_NS
        stop = min(end, int(job.clock.origin_ns[rank]) + (tick + 1) * clocks.TICK_NS)
        mhz = int(job.clock.mhz[rank, tick])
        time = max(a / mhz + b for a, b in zip(*law, strict=True)) * factor
        done += (stop - now) / time
        now = stop
    return done


def test_kernels_progress_by_the_clock_of_each_tick(job):
    tables, timeline = job.tables, job.timeline
    for rank, step in itertools.product((0, 5), range(2)):
        for op in np.flatnonzero(tables.kind[0] == KERNEL).tolist():
            start, end = (int(t[rank, step, op]) for t in (timeline.start_ns, timeline.end_ns))
            law = tables.law[0, tables.kernel[0, op]].tolist()
            key = (job.parameters.seed, noise.KERNEL_TIME, rank, step, op)
            factor = noise.lognormal(schedule.KERNEL_SPREAD, *key)
            done = progress(job, rank, start, end, law, factor)
            assert abs(done - 1) * (end - start) < 1


def test_mean_clock_by_summing_ticks(job):
    start, end = job.timeline.start_ns[3, 0, :40], job.timeline.end_ns[3, 0, :40]
    actual = clocks.mean_mhz(job.clock, 3, start, end)
    origin = int(job.clock.origin_ns[3])
    for a, b, mean in zip(start.tolist(), end.tolist(), actual.tolist(), strict=True):
        area, now = 0, a
        while now < b:
            tick = (now - origin) // clocks.TICK_NS
            stop = min(b, origin + (tick + 1) * clocks.TICK_NS)
            area += int(job.clock.mhz[3, tick]) * (stop - now)
            now = stop
        assert mean == area / (b - a)


def test_noise_is_fair_and_independent():
    uniform = [noise.uniform(1, 2, i, 0, 0) for i in range(4000)]
    normal = [noise.normal(1, 2, 0, i, 0) for i in range(4000)]
    assert statistics.fmean(uniform) == pytest.approx(0.5, abs=0.02)
    assert statistics.fmean(normal) == pytest.approx(0, abs=0.06)
    assert statistics.pstdev(normal) == pytest.approx(1, abs=0.05)
    factors = [noise.lognormal(0.01, 1, 2, 0, 0, i) for i in range(4000)]
    assert statistics.fmean(factors) == pytest.approx(1, abs=0.001)
    assert noise.bits(1, 2, 3, 4, 5) != noise.bits(1, 2, 3, 5, 4)

"""Measure the throughput of a job: tokens, samples and FLOPs by time, by GPU and by energy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import step_times, warm_up, windows
from chopper_interop.analyses.methods.efficiency import batches, model_flops, throughput
from chopper_interop.analyses.methods.peers import charllm as peers_charllm
from chopper_interop.annotate.telemetry.job import gpu_locations
from chopper_interop.arrays import statistics
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.gpus import ratings as gpus_ratings
from chopper_interop.percents import percent
from chopper_interop.result import Result
from chopper_interop.schemas.meta import ORDER
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.efficiency.batches import Batches
    from chopper_interop.analyses.methods.efficiency.model_flops import Flops
    from chopper_interop.analyses.methods.efficiency.throughput import Interval, Power

    Row = dict[str, Any]

__all__ = ["efficiency"]

_GRAINS = ("job", "iteration")
_WHOLES = ("steps", "step_ns", "time_ns", "gpus", "gpus_without_power", "tokens", "samples")
_REALS = (
    "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s",
    "model_flops", "computed_flops", "tflop_per_s_per_gpu", "mfu_share", "hfu_share",
    "matrix_flops_known_share",
    "energy_j", "power_w", "power_known_share", "j_per_token", "j_per_sample", "tokens_per_j",
    "tokens_per_s_per_w", "samples_per_s_per_mj",
)  # fmt: skip
_FIRST = (
    "tokens_per_s", "j_per_token", "tokens_per_s_per_w", "mfu_share", "matrix_flops_known_share",
    "step_ns", "samples_per_s",
    "j_per_sample", "tokens_per_s_per_gpu",
)  # fmt: skip
"""Columns that come first: a narrow terminal has no room for all of them."""
_WINDOW = (
    "all training steps, without the time of others between them that were not recorded; from the first start to "
    "the last end of all if there are none"
)
_TELEMETRY = (
    "from telemetry alone: from its first to its last sample of power, without up to 10 % in which the "
    "power of only some GPUs is known; tokens and samples are those of all of it"
)
_MEASURED = (
    "from measured windows alone, such as Zeus': time_ns is their length, energy_j the energy measured in "
    "them; time between windows is in neither. Tokens and samples are those of these windows"
)
_NO_TIME = "none: no work with times was recorded, and GPUs were not sampled at two different times"
_CONVENTIONS = {
    "step": f"{step_times.DEFINITION}. Of the job step_ns is the mean",
    "links": "energy is that of GPUs, whatever ran; FLOPs are those of kernels that an operator with "
    "known shapes launched",
    "memset": "has no FLOPs",
    "copies": "have no FLOPs",
    "energy": "of all GPUs on which the chosen ranks work, over the same time, as in the analysis "
    "energy (by counters, else by the trapezoid rule), idle time included. Null unless the power of all "
    "GPUs is known all the time. power_w is the sum over GPUs of the mean power of each while it is "
    "known (power_known_share). Hosts are not included",
    "flops": "by shapes: model_flops without recomputation, computed_flops with it. They cover "
    "all operators with a rule, and are not 6 times parameters times tokens",
}
_MAX_NUMBER = 1 << 60
"""Far above any count of tokens, and its products still fit into int64 and float64."""
_MIN_SHARE, _COMPLETE_SHARE = 0.5, 0.995
"""Shares of the time of matrix products for which FLOPs are known. Below the first, no share of the
peak is shown; below the second, it is called a lower bound. Chosen: from less than half of the time a
lower bound says little; 0.5 % of the time hardly changes a share."""


def efficiency(  # noqa: PLR0913 # options for what shapes do not contain
    trace: Trace,
    *,
    by: str = "job",
    steps: str = "",
    ranks: str = "",
    tokens: int = 0,
    samples: int = 0,
    peak_tflops: float = 0.0,
    gpus: str = "",
    compat: str = "",
    run_samples: int = 0,
) -> Result:
    """Measure the throughput of a job or its training steps: by time, GPU, energy and peak rate.

    Parameters
    ----------
    trace
        Any trace. For a trace of telemetry alone, `tokens` or `samples` are those of all sampled time.
    by
        ``job``: all steps together; ``iteration``: each by itself.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        Ranks to include, with their GPUs, as ``0,4-7``; all if empty.
    tokens, samples
        Tokens or samples of one step of the job, over all its ranks (of all of a trace without
        steps). By default they follow from shapes of embeddings, losses and images; the notes say
        from which.
    peak_tflops
        Peak rate of a GPU, TFLOP/s. By default the maker's for the element type of most FLOPs.
    gpus
        File that describes further GPUs (TOML, [[gpu]] tables).
    compat
        ``charllm``: the definitions of CharLLM-PPT instead.
    run_samples
        With ``compat=charllm``, samples of the whole run; 0 for the 128 of its scripts.

    Returns
    -------
    Result
        A row for the job or each step, null where not known:

        - `steps`, `step_ns` (of the job their mean), `time_ns`; `gpus`, and of them
          `gpus_without_power`, those whose power is not known
        - `tokens`, `samples`, `tokens_per_s`, `tokens_per_s_per_gpu`, `samples_per_s`
        - `model_flops`, `computed_flops` (including recomputation) and `tflop_per_s_per_gpu` of
          the model's
        - `mfu_share` and `hfu_share` of the GPUs' peak; they are lower bounds where
          `matrix_flops_known_share`, the share of the time of matrix products, convolutions and
          attention with known FLOPs, is below 1
        - `energy_j`, `power_w` of all GPUs, `power_known_share`, `j_per_token`, `j_per_sample`,
          `tokens_per_j`, `tokens_per_s_per_w`, `samples_per_s_per_mj`

        The summary has the same figures for the job, without a warm-up unless `steps` is ``each``, and the
        origin of tokens and samples (`tokens_from`, `samples_from`), and `all_gpus_peak_tflop_per_s`, the sum of
        the peaks of its GPUs.

    Notes
    -----
    Model FLOPs utilisation is defined in Chowdhery et al., "PaLM", JMLR 2023, appendix B.
    ``samples_per_s_per_mj`` is the efficiency of CharLLM-PPT's figures (MICRO 2025). They divide
    throughput by the energy of the run, which makes longer runs look worse; here it is divided by
    the energy of `time_ns`.
    """
    _check(by, tokens, samples, peak_tflops, run_samples)
    if compat:
        default = (by, steps, ranks, tokens, samples) == ("job", "", "", 0, 0)
        return _as_charllm(trace, compat, run_samples, default=default)
    if run_samples:
        raise UsageError("run_samples: only compat=charllm has it", hint="samples= is for a step")
    chosen_ranks = windows.chosen_ranks(trace, ranks)
    power = throughput.power(trace, ranks)
    timed = trace.meta.clock != ORDER
    step_windows = throughput.each(trace, ranks) if timed else []
    first = [] if steps == "each" or not timed else warm_up.steps(trace)
    counted = [one for one in step_windows if one.iteration not in first] or step_windows
    job_windows = throughput.job_interval(trace, counted, ranks) if timed else []
    windows_of_job = job_windows or throughput.telemetry_extent(power)
    requested = _requested_windows(trace, step_windows, windows_of_job, (by, steps, ranks))
    is_job = requested is windows_of_job
    numbers = {step for each in [*windows_of_job, *requested] for step in each.steps}
    step_numbers = sorted(numbers) or [windows.NO_STEP]
    batch_sizes = batches.step_batches(trace, chosen_ranks, step_numbers)
    counts = batches.stated_batches(batch_sizes, tokens, samples, step_numbers)
    flops = model_flops.flops_by_step(trace, chosen_ranks)
    peak, peak_from = _peak(trace, power, flops.dtype, peak_tflops, gpus)
    rows = _rows(requested, counts, flops, peak, power)
    summary = dict.fromkeys((*_WHOLES, *_REALS))
    job_rows = rows if is_job else _rows(windows_of_job, counts, flops, peak, power)
    summary |= {name: value for row in job_rows for name, value in row.items() if name in summary}
    summary |= {"tokens_from": counts.tokens_from, "samples_from": counts.samples_from}
    summary["flops_unknown_share"] = flops.unknown_share
    summary |= {
        "dtype": flops.dtype or None,
        "all_gpus_peak_tflop_per_s": peak / 1e12 if peak else None,
    }
    window = windows.describe(steps or ("" if is_job else "each"), _WINDOW)
    notes = {"window": window if job_windows else _telemetry_window(windows_of_job)}
    notes |= {"tokens_from": counts.tokens_from, "samples_from": counts.samples_from}
    notes |= warm_up.left_out(trace) if first else {}
    notes |= {"peak": peak_from, "left out": _left_out(requested, flops, counts)}
    notes |= _ranks_note(batch_sizes, chosen_ranks)
    notes |= _mfu_note(flops)
    table = _table(trace, rows, is_job=is_job)
    return Result("efficiency", table, summary, _CONVENTIONS, notes=notes)


def _telemetry_window(job_windows: Sequence[Interval]) -> str:
    """Describe the window of a trace in which no work has times."""
    if not job_windows:
        return _NO_TIME
    return _TELEMETRY if job_windows[0].measured_ns is None else _MEASURED


def _mfu_note(flops: Flops) -> dict[str, str]:
    """Say what shares of the peak mean where not all FLOPs are known."""
    if flops.matrix_known_share >= _COMPLETE_SHARE:
        return {}
    verdict = "null" if flops.matrix_known_share < _MIN_SHARE else "lower bounds"
    return {
        "mfu": f"mfu_share and hfu_share are {verdict}: FLOPs are known for only "
        f"{percent(flops.matrix_known_share)} of the time of matrix products, convolutions and attention"
    }


def _check(by: str, tokens: int, samples: int, peak_tflops: float, run_samples: int) -> None:
    options.check_choice("by", by, _GRAINS)
    numbers = {"tokens": tokens, "samples": samples, "peak_tflops": peak_tflops}
    for name, value in (numbers | {"run_samples": run_samples}).items():
        if not 0 <= value <= _MAX_NUMBER:
            raise UsageError(f"{name}={value}: it must be a number above 0, or 0 for unknown")


def _requested_windows(
    trace: Trace, step_windows: list[Interval], job: list[Interval], options: tuple[str, str, str]
) -> list[Interval]:
    """Return the windows of the rows: steps, or all of the job."""
    by, steps, ranks = options
    if steps:
        return (
            step_windows
            if steps == "each" and step_windows
            else throughput.chosen(trace, step_windows, steps, ranks)
        )
    return step_windows if by == "iteration" and step_windows else job


def _peak(
    trace: Trace, power: Power, dtype: str, peak_tflops: float, file: str
) -> tuple[float | None, str]:
    """Return the peak rate of all GPUs of the ranks (FLOP/s, None if unknown), and its origin."""
    rates = gpus_ratings.rate_gpus(trace, file)
    locations = (gpu_locations(trace, die)[0] for board in power.boards for die in board.dies)
    ratings = [rates[location] for location in locations if location in rates]
    if peak_tflops:
        return peak_tflops * 1e12 * len(ratings) or None, f"peak_tflops={peak_tflops:g} of each GPU"
    peaks = [model_flops.peak(gpu, dtype) if dtype else None for gpu in ratings]
    known = [peak for peak in peaks if peak is not None]
    names = ", ".join(sorted({gpu.name or "a GPU without a name" for gpu in ratings}))
    if not known or len(known) < len(peaks):
        why = f"for {dtype}" if dtype else "as element types are not known"
        return None, f"not known for {names or 'any GPU'} {why}; -O peak_tflops=… states it"
    return sum(known), (
        f"{sum(known) / 1e12:.1f} TFLOP/s of {len(known)} GPUs, {sum(known) / len(known) / 1e12:.1f} of each "
        f"({names}), dense, for {dtype}, as the maker states it; single precision by matrix cores only where they have a rate for it"
    )


def _rows(
    spans: Sequence[Interval], counts: Batches, flops: Flops, peak: float | None, power: Power
) -> list[Row]:
    joules, watts, share = (column.tolist() for column in power.drawn(spans))
    rows = []
    for i, span in enumerate(spans):
        seconds = span.time_ns * 1e-9
        model, computed = flops.total(span.steps or None)
        is_enough_known = flops.matrix_known_share >= _MIN_SHARE
        row: Row = {
            "iteration": span.iteration if span.iteration != windows.NO_STEP else None,
            "steps": len(span.steps),
            "step_ns": span.step_ns,
            "time_ns": span.time_ns,
            "gpus": power.gpus,
            "gpus_without_power": power.unknown,
            "tokens": _sum_steps(counts.tokens, span),
            "samples": _sum_steps(counts.samples, span),
            "model_flops": model,
            "computed_flops": computed,
            "mfu_share": _ratio(_ratio(model, seconds), peak) if is_enough_known else None,
            "hfu_share": _ratio(_ratio(computed, seconds), peak) if is_enough_known else None,
            "matrix_flops_known_share": flops.matrix_known_share if model else None,
            "tflop_per_s_per_gpu": _ratio(model, seconds * power.gpus * 1e12),
            "energy_j": statistics.finite_or_none(joules[i]),
            "power_w": statistics.finite_or_none(watts[i]),
            "power_known_share": statistics.finite_or_none(share[i]),
        }
        rows.append(row | _derived_rates(row, seconds))
    return rows


def _derived_rates(row: Row, seconds: float) -> Row:
    tokens, samples, joules = row["tokens"], row["samples"], row["energy_j"]
    per_s, samples_per_s = _ratio(tokens, seconds), _ratio(samples, seconds)
    return {
        "tokens_per_s": per_s,
        "tokens_per_s_per_gpu": _ratio(per_s, row["gpus"]),
        "samples_per_s": samples_per_s,
        "j_per_token": _ratio(joules, tokens),
        "j_per_sample": _ratio(joules, samples),
        "tokens_per_j": _ratio(tokens, joules),
        "tokens_per_s_per_w": _ratio(per_s, row["power_w"]),
        "samples_per_s_per_mj": _ratio(samples_per_s, None if joules is None else joules / 1e6),
    }


def _sum_steps(of_step: dict[int, float | None], span: Interval) -> int | None:
    """Sum a number over steps; None unless it is known for all of them."""
    values = [of_step.get(step) for step in span.steps or (windows.NO_STEP,)]
    known = [number for number in values if number is not None]
    return round(sum(known)) if len(known) == len(values) else None


def _ratio(number: float | None, divisor: float | None) -> float | None:
    return number / divisor if number is not None and divisor else None


def _left_out(spans: Sequence[Interval], flops: Flops, counts: Batches) -> str:
    blank = sum(
        _sum_steps(counts.tokens, span) is None and _sum_steps(counts.samples, span) is None
        for span in spans
    )
    return (
        f"FLOPs of {flops.unknown} kernels without a rule or known shapes ({percent(flops.unknown_share)} of "
        f"the time of kernels that compute); {blank} rows without known tokens or samples"
    )


def _ranks_note(batch_sizes: Batches, chosen: Sequence[int]) -> dict[str, str]:
    """Say what figures mean in a trace of only some of a job's ranks."""
    if batch_sizes.layout is None or batch_sizes.share >= 1 or not chosen:
        return {}
    return {
        "ranks": f"{len(chosen)} of {batch_sizes.layout.world} ranks of the job: all figures are of these, "
        "and tokens and samples are their part of the job's"
    }


def _table(trace: Trace, rows: Sequence[Row], *, is_job: bool) -> pa.Table:
    types: dict[str, Any] = dict.fromkeys(_WHOLES, pa.int64()) | dict.fromkeys(_REALS, pa.float64())
    key = {"job": pa.array([trace.meta.job] * len(rows), pa.string())}
    if not is_job:
        key = {"iteration": pa.array([row["iteration"] for row in rows], pa.int32())}
    names = (*_FIRST, *(name for name in types if name not in _FIRST))
    return pa.table(key | {n: pa.array([row[n] for row in rows], types[n]) for n in names})


def _as_charllm(trace: Trace, compat: str, run_samples: int, *, default: bool) -> Result:
    peers_charllm.check_compat(compat)
    if not default:
        raise NoSuchDefinitionsError(
            f"compat={compat} has one row of the run",
            hint="leave by, steps, ranks, tokens and samples out; run_samples= is for the whole run",
        )
    return peers_charllm.efficiency(trace, run_samples)

"""What a job gets done: tokens, samples and FLOPs by time, by GPU and by energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.efficiency import batches, model_flops, throughput
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.gpus import rated
from chopper_interop.peers import charllm as peers_charllm
from chopper_interop.result import Result
from chopper_interop.schemas.meta import ORDER
from chopper_interop.telemetry.job import places_on

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.efficiency.batches import Batches
    from chopper_interop.efficiency.model_flops import Flops
    from chopper_interop.efficiency.throughput import Power, Stretch
    from chopper_interop.trace import Trace

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
"""What is looked for first: a narrow terminal has no room for all columns."""
_WINDOW = "from the first start to the last end of all training steps, or of all if there are none"
_TELEMETRY = (
    "of telemetry alone: from its first to its last sample of power, without up to 10 % in which that "
    "of some GPUs alone is known; tokens and samples are of all of it"
)
_MEASURED = (
    "of measured windows alone, as of Zeus: time_ns is their length, energy_j what was measured in them; "
    "what lies between them is in neither. Tokens and samples are of these windows"
)
_NOTHING = "none: nothing ran on a clock, and nothing was sampled of GPUs at two moments"
_CONVENTIONS = {
    "steps": "a step lasts from the first rank's start to the last rank's end: the range that marks "
    "it, and the GPU work launched in it until that has ended. Its time_ns begins no sooner than the "
    "step before it has ended, so that none is counted twice",
    "links": "energy is that of GPUs, whatever ran; FLOPs are those of kernels that an operator with "
    "known shapes launched",
    "memset": "has no FLOPs",
    "copies": "have no FLOPs",
    "energy": "of all GPUs on which the chosen ranks work, over the same time, as of the analysis "
    "energy (its counters, else the trapezoid rule), idle time included; null unless power is known of all GPUs and of all the time. power_w is of all "
    "GPUs together, each one's mean while it is known (power_known_share). Hosts are not in it",
    "flops": "by shapes: model_flops without what is recomputed, computed_flops with it. They are of "
    "all operators that a rule knows, not 6 times parameters times tokens",
}
_MOST = 1 << 60
_KNOWN, _ALL = 0.5, 0.995
"""Of so much of the time of matrix products FLOPs must be known for a share of the peak; and for one
that is no mere lower bound."""


def efficiency(  # noqa: PLR0913 # what shapes do not tell can be said
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
    """Throughput of a job or its training steps, by GPU, by energy, and by what GPUs can do.

    Parameters
    ----------
    trace
        Any trace; of telemetry alone, with `tokens` or `samples` of all the time that was sampled.
    by
        ``job``: all steps together; ``iteration``: each by itself.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself.
    ranks
        These ranks and their GPUs, as ``0,4-7``; else all.
    tokens, samples
        Of a step of the job, over all its ranks (of a trace without steps: of all of it). By default
        what shapes of embeddings, losses and images tell; the notes say which.
    peak_tflops
        What a GPU can do, TFLOP/s; by default what its maker states for the type of element of most
        FLOPs.
    gpus
        File of your own GPUs (TOML, [[gpu]] tables).
    compat
        ``charllm``: the definitions of CharLLM-PPT instead.
    run_samples
        With ``compat=charllm``, samples of the whole run; 0 for the 128 of its scripts.

    Returns
    -------
    Result
        A row for the job or each step: `steps`, `step_ns` (of the job the mean), `time_ns`, `gpus`
        (`gpus_without_power`: of which it is not known); `tokens`, `samples`, `tokens_per_s`,
        `tokens_per_s_per_gpu`, `samples_per_s`; `model_flops`, `computed_flops` (with what is
        recomputed), `tflop_per_s_per_gpu` of the model's, `mfu_share` and `hfu_share` of what the GPUs
        can do, at least, as `matrix_flops_known_share` of the time of matrix products, convolutions and
        attention is of kernels with known FLOPs; `energy_j`, `power_w` of all GPUs, `power_known_share`, `j_per_token`, `j_per_sample`,
        `tokens_per_j`, `tokens_per_s_per_w`, `samples_per_s_per_mj`. Null where not known. The
        summary has the same of the job, and what tells tokens and samples (`tokens_from`,
        `samples_from`).

    Notes
    -----
    Model FLOPs utilisation is defined in Chowdhery et al., "PaLM", JMLR 2023, appendix B.
    ``samples_per_s_per_mj`` is the efficiency of CharLLM-PPT's figures (MICRO 2025): throughput by the
    energy of the run, which shrinks as runs get longer; ours is by the energy of `time_ns`.
    """
    _check(by, tokens, samples, peak_tflops, run_samples)
    if compat:
        default = (by, steps, ranks, tokens, samples) == ("job", "", "", 0, 0)
        return _as_charllm(trace, compat, run_samples, default=default)
    if run_samples:
        raise UsageError("run_samples: only compat=charllm has it", hint="samples= is of a step")
    chosen = windows.chosen_ranks(trace, ranks)
    power = throughput.power(trace, ranks)
    timed = trace.meta.clock != ORDER
    each = throughput.each(trace, ranks) if timed else []
    ran = throughput.whole(trace, each, ranks) if timed else []
    job = ran or throughput.of_telemetry(power)
    found = _asked(trace, each, job, (by, steps, ranks))
    is_job = found is job
    numbers = sorted({n for one in [*job, *found] for n in one.steps}) or [windows.WHOLE]
    told = batches.of(trace, chosen, numbers)
    known = batches.given(told, tokens, samples, numbers)
    flops = model_flops.of(trace, chosen)
    peak, peak_from = _peak(trace, power, flops.dtype, peak_tflops, gpus)
    rows = _rows(found, known, flops, peak, power)
    summary = dict.fromkeys((*_WHOLES, *_REALS))
    whole = rows if is_job else _rows(job, known, flops, peak, power)
    summary |= {name: value for row in whole for name, value in row.items() if name in summary}
    summary |= {"tokens_from": known.tokens_from, "samples_from": known.samples_from}
    summary["flops_unknown_share"] = flops.unknown_share
    summary |= {"dtype": flops.dtype or None, "peak_tflop_per_s": peak / 1e12 if peak else None}
    window = windows.described(steps or ("" if is_job else "each"), _WINDOW)
    notes = {"window": window if ran else _sampled(job)}
    notes |= {"tokens_from": known.tokens_from, "samples_from": known.samples_from}
    notes |= {"peak": peak_from, "left out": _left_out(found, flops, known)}
    notes |= _ranks_told(told, chosen)
    notes |= _mfu_told(flops)
    table = _table(trace, rows, is_job=is_job)
    return Result("efficiency", table, summary, _CONVENTIONS, notes=notes)


def _sampled(job: Sequence[Stretch]) -> str:
    """What time it is that telemetry alone tells of."""
    if not job:
        return _NOTHING
    return _TELEMETRY if job[0].measured_ns is None else _MEASURED


def _mfu_told(flops: Flops) -> dict[str, str]:
    """What shares of the peak are worth where not all FLOPs are known."""
    if flops.matrix_known_share >= _ALL:
        return {}
    told = "null" if flops.matrix_known_share < _KNOWN else "at least what is told"
    return {
        "mfu": f"mfu_share and hfu_share are {told}: FLOPs of but {flops.matrix_known_share:.1%} of the "
        "time of matrix products, convolutions and attention are known"
    }


def _check(by: str, tokens: int, samples: int, peak_tflops: float, run_samples: int) -> None:
    if by not in _GRAINS:
        raise UsageError(f"by={by}: there is no {by!r}", hint=f"there are {', '.join(_GRAINS)}")
    numbers = {"tokens": tokens, "samples": samples, "peak_tflops": peak_tflops}
    for name, value in (numbers | {"run_samples": run_samples}).items():
        if not 0 <= value <= _MOST:
            raise UsageError(f"{name}={value}: it must be a number above 0, or 0 for unknown")


def _asked(
    trace: Trace, each: list[Stretch], job: list[Stretch], options: tuple[str, str, str]
) -> list[Stretch]:
    """What rows are of: steps, or the job."""
    by, steps, ranks = options
    if steps:
        return each if steps == "each" and each else throughput.chosen(trace, each, steps, ranks)
    return each if by == "iteration" and each else job


def _peak(
    trace: Trace, power: Power, dtype: str, given: float, file: str
) -> tuple[float | None, str]:
    """What all GPUs of the ranks can do, FLOP/s, and what tells it."""
    rates = rated.of(trace, file)
    places = (places_on(trace, die)[0] for board in power.boards for die in board.dies)
    found = [rates[place] for place in places if place in rates]
    if given:
        return given * 1e12 * len(found) or None, f"peak_tflops={given:g} of each GPU"
    peaks = [model_flops.peak(gpu, dtype) if dtype else None for gpu in found]
    known = [peak for peak in peaks if peak is not None]
    names = ", ".join(sorted({gpu.name or "a GPU without a name" for gpu in found}))
    if not known or len(known) < len(peaks):
        why = f"for {dtype}" if dtype else "as types of elements are not told"
        return None, f"not known of {names or 'any GPU'} {why}; -O peak_tflops=… says it"
    return sum(known), (
        f"{sum(known) / len(known) / 1e12:.1f} TFLOP/s of a GPU ({names}), dense, for {dtype}, as the "
        "maker states it; single precision by matrix cores only where they have a rate for it"
    )


def _rows(
    found: Sequence[Stretch], known: Batches, flops: Flops, peak: float | None, power: Power
) -> list[Row]:
    joules, watts, share = (column.tolist() for column in power.drawn(found))
    rows = []
    for i, one in enumerate(found):
        seconds = one.time_ns * 1e-9
        asked, computed = flops.total(one.steps or None)
        is_told = flops.matrix_known_share >= _KNOWN
        row: Row = {
            "iteration": one.iteration if one.iteration != windows.WHOLE else None,
            "steps": len(one.steps),
            "step_ns": one.step_ns,
            "time_ns": one.time_ns,
            "gpus": power.gpus,
            "gpus_without_power": power.unknown,
            "tokens": _total(known.tokens, one),
            "samples": _total(known.samples, one),
            "model_flops": asked,
            "computed_flops": computed,
            "mfu_share": _by(_by(asked, seconds), peak) if is_told else None,
            "hfu_share": _by(_by(computed, seconds), peak) if is_told else None,
            "matrix_flops_known_share": flops.matrix_known_share if asked else None,
            "tflop_per_s_per_gpu": _by(asked, seconds * power.gpus * 1e12),
            "energy_j": _real(joules[i]),
            "power_w": _real(watts[i]),
            "power_known_share": _real(share[i]),
        }
        rows.append(row | _rates(row, seconds))
    return rows


def _rates(row: Row, seconds: float) -> Row:
    tokens, samples, joules = row["tokens"], row["samples"], row["energy_j"]
    per_s, samples_per_s = _by(tokens, seconds), _by(samples, seconds)
    return {
        "tokens_per_s": per_s,
        "tokens_per_s_per_gpu": _by(per_s, row["gpus"]),
        "samples_per_s": samples_per_s,
        "j_per_token": _by(joules, tokens),
        "j_per_sample": _by(joules, samples),
        "tokens_per_j": _by(tokens, joules),
        "tokens_per_s_per_w": _by(per_s, row["power_w"]),
        "samples_per_s_per_mj": _by(samples_per_s, None if joules is None else joules / 1e6),
    }


def _total(of_step: dict[int, float | None], one: Stretch) -> int | None:
    """Sum over steps; None unless it is known of all of them."""
    found = [of_step.get(step) for step in one.steps or (windows.WHOLE,)]
    known = [number for number in found if number is not None]
    return round(sum(known)) if len(known) == len(found) else None


def _by(number: float | None, of: float | None) -> float | None:
    return number / of if number is not None and of else None


def _real(number: float) -> float | None:
    return number if np.isfinite(number) else None


def _left_out(found: Sequence[Stretch], flops: Flops, known: Batches) -> str:
    lacks = sum(
        _total(known.tokens, one) is None and _total(known.samples, one) is None for one in found
    )
    return (
        f"FLOPs of {flops.unknown} kernels that no rule or shape tells ({flops.unknown_share:.1%} of "
        f"the time of kernels that compute); {lacks} rows without known tokens or samples"
    )


def _ranks_told(told: Batches, chosen: Sequence[int]) -> dict[str, str]:
    """What a trace of but some of a job's ranks means."""
    if told.layout is None or told.share >= 1 or not chosen:
        return {}
    return {
        "ranks": f"{len(chosen)} of {told.layout.world} ranks of the job: all figures are of these, "
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
    peers_charllm.check(compat)
    if not default:
        raise NoSuchDefinitionsError(
            f"compat={compat} has one row of the run",
            hint="leave by, steps, ranks, tokens and samples out; run_samples= is of the whole run",
        )
    return peers_charllm.efficiency(trace, run_samples)

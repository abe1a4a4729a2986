"""Many runs in one table: parallelism, microbatches and optimisations side by side."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.errors import ChopperError, LossError, UsageError
from chopper_interop.result import Result
from chopper_interop.runs import figures as run_figures
from chopper_interop.runs import names as run_names
from chopper_interop.runs import parallelism
from chopper_interop.runs import rates as run_rates
from chopper_interop.runs import run as of_runs
from chopper_interop.runs.figures import Figures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.runs.run import Run, Runs
    from chopper_interop.trace import Trace

    Row = dict[str, Any]
    Best = dict[str, tuple[str, list[int]]]

__all__ = ["sweep"]

_BY = ("run", "run,gpu")
_MEAN = "mean of runs"
_RATIOS = {
    "step_ratio": "step_mean_ns",
    "compute_ratio": "compute_ns",
    "comm_ratio": "comm_ns",
    "exposed_comm_ratio": "exposed_comm_ns",
    "idle_ratio": "idle_ns",
    "power_ratio": "mean_power_w",
    "peak_power_ratio": "peak_power_w",
    "gfxclk_ratio": "gfxclk_mhz",
    "energy_ratio": "energy_per_step_j",
}
"""What is told as a ratio to the base: of runs without training steps, what does not depend on them."""
_OF_STEPS = (
    "step_mean_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "idle_ns",
    "energy_per_step_j",
)
_SIZES = tuple(f"{name}_size" for name in parallelism.SIZES)
_TEXTS = ("run", "differs", "status", "reason", "model", "strategy", "optimisation", "best", "host",
          "sizes_from", "tokens_from", "samples_from")  # fmt: skip
_WHOLES = (
    "micro_batch", "ranks", "world_size", "hosts", "gpus", "power_gpus", "losses", "steps",
    "window_ns", "step_ns", "step_min_ns", "step_max_ns", "gpu", "rank", "device", "tokens", "samples", *_SIZES,
)  # fmt: skip
_OF_RUN = (
    "run", "differs", "status", "gpus", "step_mean_ns", "tokens_per_s_per_gpu", "j_per_token", "best",
    "reason", "model", "strategy", "optimisation", "micro_batch", "ranks", "world_size", "hosts",
    *_SIZES, "sizes_from", "steps", "step_ns", "step_std_ns", "step_min_ns", "step_max_ns",
    "step_ratio", "window_ns", "tokens", "samples", "tokens_per_s", "samples_per_s",
    "samples_per_s_per_gpu", "tokens_from", "samples_from", "busy_share", "exposed_comm_share", "busy_ns", "idle_ns",
    "compute_ns", "comm_ns", "exposed_comm_ns", "memcpy_ns", *run_figures.CATEGORY_COLUMNS,
    *run_figures.OF_SAMPLES, *run_figures.OF_LINKS, "temperature_delta_c", "power_w", "energy_j", "energy_per_step_j", "j_per_sample",
     "tokens_per_s_per_w", "samples_per_s_per_mj", "efficiency_share",
    "power_known_share", "power_gpus", *(name for name in _RATIOS if name != "step_ratio"), "losses",
)  # fmt: skip
_ALWAYS = (
    "run", "differs", "status", "reason", "ranks", "gpus", "steps", "step_ns", "step_mean_ns",
    "step_ratio", "best", "window_ns", "busy_share", "exposed_comm_ns", "mean_power_w",
    "energy_per_step_j",
)  # fmt: skip
"""Columns that are there even if nothing is known."""
_OF_GPU = ("run", "status", "gpu", "host", "rank", "device", "busy_share", *run_figures.OF_SAMPLES,
           *run_figures.OF_LINKS)  # fmt: skip
_CONVENTIONS = {
    "window": "all training steps of a run, from the first begin to the last end; "
    "where there are none all of it, of telemetry alone from its first to its last sample, without "
    "up to 10 % in which the power of some GPUs alone is known",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills count as compute, and are the category fill",
    "copies": "count as memcpy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "times": "means by rank and step (by rank where steps is 0) over ranks with GPU work, of work "
    "that reaches beyond a step the part within; busy, compute, communication and copies by interval "
    "union, categories by duration, whatever runs beside",
    "step": "a step lasts from the first rank's start to the last rank's end: the range that marks it, "
    "and the GPU work launched in it until that has ended, as of efficiency. step_ns is the median, "
    "the lower of two in the middle; ratios are of the mean. Rates are of window_ns, from the first "
    "begin to the last end of steps that follow each other",
    "telemetry": "means over time of each GPU, then over GPUs, by the finest tool that tells nearly "
    "all that the best of them tells, and of its dies where it tells them; peaks are the highest of any GPU. What "
    "was not sampled (gaps of more than 6 usual periods) does not count. Temperature is that of the "
    "hotspot, else of the GPU, else of its edge; throttling at every moment that of the cause that holds most",
    "energy": "energy_j is of all GPUs, of the time in which their power is known alone: "
    "power_known_share of it, of the GPU of which least is known; null unless that is 90 %. What is by "
    "step, token or sample is of power_w, the mean power of all GPUs together while it is known, over "
    "all of window_ns, so that runs of which more is known do not look worse",
    "GPUs": "one that several ranks work on counts once (by=run,gpu: a row for each rank, under one "
    "number); each die of an MI250 is one, and both are told one power",
    "links of GPUs": "bytes sent and received, of runs the sum over GPUs, while they are known, as traffic "
    "tells them",
    "sizes": "of process groups by their names (mesh_tp, TENSOR_MODEL_PARALLEL_GROUP, …), of "
    "pipelines also by who sends to whom; else by the names of CharLLM-PPT's folders. Data "
    "parallelism also follows from the number of ranks",
    "memory": "runs are read one after the other; each leaves its row",
}


@dataclass
class _Told:
    """A run in the table."""

    name: str
    path: str
    figures: Figures


def sweep(  # noqa: PLR0913
    trace: Trace,
    *,
    against: Runs | None = None,
    by: str = "run",
    base: str = "",
    steps: str = "",
    ranks: str = "",
    tokens: int = 0,
    samples: int = 0,
) -> Result:
    """Compare many runs: a row for each with its division, step time, power, energy and efficiency.

    Parameters
    ----------
    trace
        The first run.
    against
        The others. They are read one after the other; what cannot be read has a row that says why,
        but a path that does not exist is refused before anything is read.
    by
        "run", or "run,gpu" for a heat map: a row for each GPU of each run, and the mean of each GPU
        over runs.
    base
        Name of the run that ratios are to, "" for the first.
    steps
        Training steps that count, "" or "each" for all.
    ranks
        Ranks that count, "" for all: "0,4-7".
    tokens, samples
        So many are in the global batch of a step of every run (of a run without steps: of all of it).
        By default what shapes tell of each run, as in efficiency.

    Returns
    -------
    Result
        By run: `run`, its name, and `differs`, the part of it that not all have; `status`, "whole",
        "partial" or "invalid", and `reason`; `model`, `strategy`, `optimisation`, `micro_batch` as
        CharLLM-PPT's folders are called; `ranks` in the profile, of `world_size`; `gpus`, `hosts`;
        `dp_size`, `tp_size`, `pp_size`, `cp_size`, `ep_size`; `steps`; `step_ns` (median),
        `step_mean_ns`, `step_std_ns`, `step_min_ns`, `step_max_ns` of the job; times of GPU work by
        rank and step; `<category>_ns`, the same by category of kernels; mean and peak of power,
        temperature, clock, use and throttling; `power_w` of all GPUs, `energy_j`, `energy_per_step_j`;
        `tokens`, `samples` of all that counts, what tells them (`tokens_from`, `samples_from`), and
        throughput and efficiency by them, `samples_per_s_per_mj` as CharLLM-PPT has it, and
        `efficiency_share`, throughput by the energy of a sample (or token), of the best run of the same
        model; `…_ratio` to the base; `best`, in what it is best: throughput of a GPU, or energy of a
        token or sample; where no two runs tell either, the step, if all have as many GPUs. Columns of which nothing is known in any run are left out. By run and GPU: `gpu`,
        its place in the run, its rank and device, and its share of time busy and its telemetry, and `pcie_bytes`,
        `nvlink_bytes`, `xgmi_bytes`. The
        summary names the base and the best runs.

    Notes
    -----
    The sweeps of CharLLM-PPT (dad5f278, figures 4, 5, 8, 13 and 17). Its efficiency is throughput by
    the energy of the run in MJ, (1/s)/MJ, and so is `samples_per_s_per_mj`, of all steps that count;
    it shrinks as runs get longer, so that `efficiency_share` is by the energy of one sample.
    """
    if by not in _BY:
        raise UsageError(f"by={by}: there are {'; '.join(_BY)}")
    for name, value in (("tokens", tokens), ("samples", samples)):
        if value < 0:
            raise UsageError(f"{name}={value}: it must be a number from 0 on")
    told = _all(trace, of_runs.of(against), (steps, ranks, tokens, samples))
    first = _base(told, base)
    if by == "run,gpu":
        rows, columns = _of_gpus(told), _OF_GPU
    else:
        rows, columns = _of_runs(told, first), _OF_RUN
    known = [c for c in columns if c in _ALWAYS or any(r.get(c) is not None for r in rows)]
    table = pa.table({c: pa.array([row.get(c) for row in rows], _type(c)) for c in known})
    best = run_rates.best([one.figures.row | run_rates.rates(one.figures.row) for one in told])
    summary = _summary(told, first, best)
    return Result("sweep", table, summary, _CONVENTIONS, notes=_notes(told, best))


def _all(trace: Trace, others: Sequence[Run], asked: tuple[str, str, int, int]) -> list[_Told]:
    """Figures of all runs, under names that tell them apart."""
    try:
        figures = run_figures.of(trace, *asked)
    except UsageError:
        if trace.nodes.num_rows:
            raise
        figures = Figures(reasons=["there is nothing in it"])
    told = [_Told(trace.meta.job, _path(trace), figures)]
    for run in others:
        path, figures = _reduced(run, asked)
        told.append(_Told(run.name, path, figures))
    names = run_names.distinct([one.name for one in told], [one.path for one in told])
    for one, name in zip(told, names, strict=True):
        one.name = name
    return told


def _reduced(run: Run, asked: tuple[str, str, int, int]) -> tuple[str, Figures]:
    """Path and figures of a run, of which nothing else is kept."""
    path = run.path
    try:
        trace = run.read()
        path = path or _path(trace)
        return path, run_figures.of(trace, *asked)
    except LossError:
        raise
    except ChopperError as error:
        return path, Figures(reasons=[str(error)])


def _path(trace: Trace) -> str:
    """The folder of the first file that it was read from."""
    return str(PurePath(trace.meta.sources[0].path).parent) if trace.meta.sources else ""


def _base(told: list[_Told], base: str) -> int:
    names = [one.name for one in told]
    if not base:
        return 0
    if base not in names:
        raise UsageError(f"base={base}: there is no such run", hint=f"there are {', '.join(names)}")
    return names.index(base)


def _of_runs(told: list[_Told], first: int) -> list[Row]:
    differs = run_names.differing([one.name for one in told])
    rows = []
    for one, part in zip(told, differs, strict=True):
        row: Row = {"run": one.name, "differs": part, "status": one.figures.status}
        row |= {"reason": "; ".join(one.figures.reasons) or None}
        row |= _divided(one) | run_rates.rates(one.figures.row)
        rows.append(row)
    _add_ratios(rows, rows[first])
    run_rates.add_shares(rows)
    for what, (_, places) in run_rates.best(rows).items():
        for place in places:
            rows[place]["best"] = ", ".join(filter(None, (rows[place].get("best"), what)))
    return rows


def _divided(one: _Told) -> Row:
    """Figures of a run, with sizes of parallelism by groups, else by its name."""
    row = dict(one.figures.row)
    named = run_names.charllm(one.path) or run_names.charllm(one.name)
    by_groups = {name for name in parallelism.SIZES if name in row}
    sizes = {name: row.pop(name) for name in by_groups}
    if not by_groups:
        by_name = {name: named[name] for name in parallelism.SIZES if name in named}
        sizes = parallelism.completed(by_name, row.get("world_size"))
    row |= {f"{name}_size": size for name, size in sizes.items()}
    if sizes:
        row["sizes_from"] = "process groups" if by_groups else "name"
    return row | {name: value for name, value in named.items() if name not in parallelism.SIZES}


def _add_ratios(rows: list[Row], base: Row) -> None:
    """Put ratios to the base into the rows."""
    for row in rows:
        alike = bool(row.get("steps")) == bool(base.get("steps"))
        for ratio, column in _RATIOS.items():
            mine, theirs = row.get(column), base.get(column)
            if mine is not None and theirs and (alike or column not in _OF_STEPS):
                row[ratio] = mine / theirs
        if row.get("mean_temperature_c") is not None and base.get("mean_temperature_c") is not None:
            row["temperature_delta_c"] = row["mean_temperature_c"] - base["mean_temperature_c"]


def _of_gpus(told: list[_Told]) -> list[Row]:
    """Rows of GPUs of each run, and of each place of a GPU the mean over runs."""
    rows = [
        {"run": one.name, "status": one.figures.status, **row}
        for one in told
        for row in one.figures.gpus
    ]
    if len(told) == 1:
        return rows
    means: list[Row] = []
    by_gpu: dict[int, list[Row]] = {}
    for row in rows:
        by_gpu.setdefault(row["gpu"], []).append(row)
    for gpu, same in sorted(by_gpu.items()):
        mean: Row = {"run": _MEAN, "gpu": gpu}
        for column in ("busy_share", *run_figures.OF_SAMPLES, *run_figures.OF_LINKS):
            values = [row[column] for row in same if row.get(column) is not None]
            mean[column] = sum(values) / len(values) if values else None
        means.append(mean)
    return rows + means


def _type(column: str) -> pa.DataType:
    if column in _TEXTS:
        return pa.string()
    return pa.int64() if column in _WHOLES else pa.float64()


def _summary(told: list[_Told], first: int, best: Best) -> Row:
    statuses = [one.figures.status for one in told]
    summary: Row = {"runs": len(told), "base": told[first].name}
    for status in (run_figures.WHOLE, run_figures.PARTIAL, run_figures.INVALID):
        summary[status] = statuses.count(status)
    for what in run_rates.MEASURES:
        column, places = best.get(what, (None, []))
        summary[f"best_{what}"] = told[places[0]].name if places else None
        summary[f"best_{what}_by"] = column
    return summary


def _notes(told: list[_Told], best: Best) -> dict[str, str]:
    by = ", ".join(f"{what} by {column}" for what, (column, _) in best.items())
    said = {
        "best": by
        or "not told: it takes two runs whose tokens or samples are known, or as many GPUs in all"
    }
    invalid = [one.name for one in told if one.figures.status == run_figures.INVALID]
    said["left out"] = f"figures of {len(invalid)} runs: {', '.join(invalid[:5]) or 'none'}"
    without = [
        one.name
        for one in told
        if one.figures.row.get("window_ns") and not {"tokens", "samples"} & set(one.figures.row)
    ]
    if without:
        said["throughput"] = (
            f"no shapes tell tokens or samples of {len(without)} runs ({', '.join(without[:5])}): give "
            "tokens= or samples= of a step, the same of all runs (-O samples=128)"
        )
    if len(told) == 1:
        said["runs"] = "one run alone: name others with --against"
    if not told[0].figures.row.get("window_ns"):
        said["nothing"] = "; ".join(told[0].figures.reasons) or "there is nothing in the first run"
    return said

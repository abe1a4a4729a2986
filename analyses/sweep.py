"""Many runs in one table: parallelism, microbatches and optimisations side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop import run as of_runs
from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import step_times, warm_up
from chopper_interop.analyses.methods.runs import figures as run_figures
from chopper_interop.analyses.methods.runs import names as run_names
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.analyses.methods.runs import rates as run_rates
from chopper_interop.analyses.methods.runs.figures import RunFigures
from chopper_interop.errors import ChopperError, LossError, UsageError
from chopper_interop.grouping import by_key
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.run import Run, Runs

    Row = dict[str, Any]
    Best = dict[str, tuple[str, list[int]]]

__all__ = ["sweep"]

_BY = ("run", "run,gpu")
_MEAN = "mean of runs"
_RATIOS = {
    "step_ratio": "step_ns",
    "compute_ratio": "compute_ns",
    "comm_ratio": "comm_ns",
    "exposed_comm_ratio": "exposed_comm_ns",
    "idle_ratio": "idle_ns",
    "power_ratio": "mean_power_w",
    "peak_power_ratio": "peak_power_w",
    "gfxclk_ratio": "gfxclk_mhz",
    "energy_ratio": "energy_per_step_j",
}
"""Columns of ratios to the base, and the columns they are of."""
_STEP_COLUMNS = (
    "step_ns",
    "compute_ns",
    "comm_ns",
    "exposed_comm_ns",
    "idle_ns",
    "energy_per_step_j",
)
"""Columns that depend on training steps: no ratio if only one of the two runs has steps."""
_SIZES = tuple(f"{name}_size" for name in parallelism.SIZES)
_TEXT_COLUMNS = ("run", "differs", "status", "reason", "model", "strategy", "optimisation", "best", "host",
          "sizes_from", "tokens_from", "samples_from")  # fmt: skip
_INTEGER_COLUMNS = (
    "micro_batch", "ranks", "world_size", "hosts", "gpus", "power_gpus", "losses", "steps",
    "window_ns", "step_median_ns", "step_min_ns", "step_max_ns", "gpu", "rank", "device", "tokens", "samples", *_SIZES,
)  # fmt: skip
_RUN_COLUMNS = (
    "run", "differs", "status", "gpus", "step_ns", "tokens_per_s_per_gpu", "j_per_token", "best",
    "reason", "model", "strategy", "optimisation", "micro_batch", "ranks", "world_size", "hosts",
    *_SIZES, "sizes_from", "steps", "step_median_ns", "step_std_ns", "step_min_ns", "step_max_ns",
    "step_ratio", "window_ns", "tokens", "samples", "tokens_per_s", "samples_per_s",
    "samples_per_s_per_gpu", "tokens_from", "samples_from", "busy_share", "exposed_comm_share", "busy_ns", "idle_ns",
    "compute_ns", "comm_ns", "exposed_comm_ns", "memcpy_ns", *run_figures.CATEGORY_COLUMNS,
    *run_figures.OF_SAMPLES, *run_figures.OF_LINKS, "temperature_delta_c", "power_w", "energy_j",
    "energy_per_step_j", "j_per_sample", "tokens_per_s_per_w", "samples_per_s_per_mj", "efficiency_share",
    "power_known_share", "power_gpus", *(name for name in _RATIOS if name != "step_ratio"), "losses",
)  # fmt: skip
_ALWAYS_SHOWN = (
    "run", "differs", "status", "reason", "ranks", "gpus", "steps", "step_ns", "step_median_ns",
    "step_ratio", "best", "window_ns", "busy_share", "exposed_comm_ns", "mean_power_w",
    "energy_per_step_j",
)  # fmt: skip
"""Columns that are present even if all of their values are unknown."""
_GPU_COLUMNS = ("run", "status", "gpu", "host", "rank", "device", "busy_share", *run_figures.OF_SAMPLES,
           *run_figures.OF_LINKS)  # fmt: skip
_CONVENTIONS = {
    "window": "all training steps of a run but a warm-up, from the first begin to the last end; "
    "without steps all of the run; of telemetry alone from its first to its last sample, without "
    "up to 10 % in which the power of only some GPUs is known",
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset": "fills count as compute, and are the category fill",
    "copies": "count as memcpy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "times": "means by rank and step (by rank where steps is 0) over ranks with GPU work; work "
    "that reaches beyond a step counts with the part within; busy, compute, communication and copies by "
    "interval union, categories by summed duration, whatever overlaps them. Each rank counts with the "
    "job's step, or without steps all of the job's time, so that what it is without work within that is idle",
    "step": f"{step_times.DEFINITION}. step_ns is the mean, step_median_ns "
    "the lower of two in the middle. Rates are of window_ns, the time of all steps",
    "telemetry": "means over time of each GPU, then over GPUs, by the finest tool that covers nearly "
    "as much as the best of them, and of its dies where it samples dies; peaks are the highest of any GPU. "
    "Time without samples (gaps of more than 6 usual periods) does not count. Temperature is that of the "
    "hotspot, else of the GPU, else of its edge; throttling at every time that of the cause with the "
    "largest share",
    "energy": "energy_j is of all GPUs, over the time in which their power is known: "
    "power_known_share of it, of the GPU with the smallest share; null unless that is 90 %. Figures by "
    "step, token or sample are of power_w, the mean power of all GPUs together while it is known, over "
    "all of window_ns, so that runs with better coverage do not look worse",
    "GPUs": "a GPU that several ranks work on counts once (by=run,gpu: a row for each rank, under one "
    "number); each die of an MI250 is one, and both have the same sampled power",
    "links of GPUs": "bytes sent and received, of runs the sum over GPUs, while they are known, as in "
    "traffic",
    "sizes": "of process groups by their names (mesh_tp, TENSOR_MODEL_PARALLEL_GROUP, …), of "
    "pipelines also by sends and receives; else by the names of CharLLM-PPT's folders. Data "
    "parallelism also follows from the number of ranks",
    "memory": "runs are read one after the other; only the row of each stays in memory",
}


@dataclass
class _SweepRun:
    """A run of the table with its figures."""

    name: str
    path: str
    figures: RunFigures


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
    """Compare many runs: a row for each with its parallelism, step time, power, energy and efficiency.

    Parameters
    ----------
    trace
        The first run.
    against
        The other runs. They are read one after the other; a run that cannot be read has a row with the
        reason, but a path that does not exist is refused before anything is read.
    by
        "run", or "run,gpu" for a heat map: a row for each GPU of each run, and the mean of each GPU
        over runs.
    base
        Name of the run that ratios refer to, "" for the first.
    steps
        Training steps that count: "10-12"; "each" for all, "" for all but a warm-up.
    ranks
        Ranks that count: "0,4-7"; "" for all.
    tokens, samples
        Number in the global batch of a step of every run (of a run without steps: in all of it).
        By default derived from the shapes of each run, as in efficiency.

    Returns
    -------
    Result
        By run: `run`, its name, and `differs`, the part of the name that not all runs share; `status`,
        "whole", "partial" or "invalid", and `reason`; `model`, `strategy`, `optimisation`,
        `micro_batch` by the names of CharLLM-PPT's folders; `ranks` in the profile, of `world_size`;
        `gpus`, `hosts`; `dp_size`, `tp_size`, `pp_size`, `cp_size`, `ep_size`; `steps`; `step_ns`
        (mean), `step_median_ns`, `step_std_ns`, `step_min_ns`, `step_max_ns` of the job; times of GPU
        work by rank and step; `<category>_ns`, the same by category of kernels; mean and peak of power,
        temperature, clock, utilization and throttling; `power_w` of all GPUs, `energy_j`,
        `energy_per_step_j`; `tokens`, `samples` of all steps that count, their origin (`tokens_from`,
        `samples_from`), and throughput and efficiency by them, `samples_per_s_per_mj` as CharLLM-PPT
        defines it, and `efficiency_share`, throughput by the energy of a sample (or token), relative to
        the best run of the same model; `…_ratio` to the base; `best`, the criteria in which no other
        run is better: throughput of a GPU, or energy of a token or sample; where no two runs have
        either, the step, if all have the same number of GPUs. Columns without any known value are left
        out. By run and GPU: `gpu`, its index in the run, its rank and device, its share of busy
        time, its telemetry, and `pcie_bytes`, `nvlink_bytes`, `xgmi_bytes`. The summary
        names the base and the best runs.

    Notes
    -----
    The sweeps of CharLLM-PPT (dad5f278, figures 4, 5, 8, 13 and 17). Its efficiency is throughput by
    the energy of the run in MJ, (1/s)/MJ, and so is `samples_per_s_per_mj`, over all steps that count.
    It shrinks as runs get longer; `efficiency_share` therefore uses the energy of one sample.
    """
    options.check_choice("by", by, _BY)
    for name, value in (("tokens", tokens), ("samples", samples)):
        if value < 0:
            raise UsageError(f"{name}={value}: it must be a number >= 0")
    runs = _all_runs(trace, of_runs.as_runs(against), (steps, ranks, tokens, samples))
    base_index = _base_index(runs, base)
    if by == "run,gpu":
        rows, columns = _gpu_rows(runs), _GPU_COLUMNS
    else:
        rows, columns = _run_rows(runs, base_index), _RUN_COLUMNS
    known = [c for c in columns if c in _ALWAYS_SHOWN or any(r.get(c) is not None for r in rows)]
    table = pa.table({c: pa.array([row.get(c) for row in rows], _type(c)) for c in known})
    best = run_rates.best([one.figures.row | run_rates.rates(one.figures.row) for one in runs])
    summary = _summary(runs, base_index, best)
    return Result("sweep", table, summary, _CONVENTIONS, notes=_notes(runs, best))


def _all_runs(
    trace: Trace, others: Sequence[Run], options: tuple[str, str, int, int]
) -> list[_SweepRun]:
    """Figures of all runs, under distinct names."""
    try:
        figures = run_figures.figures_of_run(trace, *options)
    except UsageError:
        if trace.nodes.num_rows:
            raise
        figures = RunFigures(reasons=["the trace is empty"])
    runs = [_SweepRun(trace.meta.job, _folder(trace), figures)]
    runs += [_read_run(run, options) for run in others]
    names = run_names.distinct([one.name for one in runs], [one.path for one in runs])
    for one, name in zip(runs, names, strict=True):
        one.name = name
    return runs


def _read_run(run: Run, options: tuple[str, str, int, int]) -> _SweepRun:
    """Read a run's figures; its trace is not kept."""
    name, path = run.name, run.path
    try:
        trace = run.read()
        if path and trace.meta.job != name:
            # a host is in the name, of which the trace has the number
            name = trace.meta.job
            path = str(PurePath(path).with_name(name))
        path = path or _folder(trace)
        return _SweepRun(name, path, run_figures.figures_of_run(trace, *options))
    except LossError:
        raise
    except ChopperError as error:
        return _SweepRun(name, path, RunFigures(reasons=[str(error)]))


def _folder(trace: Trace) -> str:
    """Folder of the first file that the trace was read from."""
    return str(PurePath(trace.meta.sources[0].path).parent) if trace.meta.sources else ""


def _base_index(runs: list[_SweepRun], base: str) -> int:
    names = [one.name for one in runs]
    if not base:
        return 0
    if base not in names:
        raise UsageError(f"base={base}: there is no such run", hint=f"there are {', '.join(names)}")
    return names.index(base)


def _run_rows(runs: list[_SweepRun], base_index: int) -> list[Row]:
    differs = run_names.differing([one.name for one in runs])
    rows = []
    for one, part in zip(runs, differs, strict=True):
        row: Row = {"run": one.name, "differs": part, "status": one.figures.status}
        row |= {"reason": "; ".join(one.figures.reasons) or None}
        row |= _with_sizes(one) | run_rates.rates(one.figures.row)
        rows.append(row)
    _add_ratios(rows, rows[base_index])
    run_rates.add_shares(rows)
    for criterion, (_, best) in run_rates.best(rows).items():
        for k in best:
            rows[k]["best"] = ", ".join(filter(None, (rows[k].get("best"), criterion)))
    return rows


def _with_sizes(one: _SweepRun) -> Row:
    """Figures of a run, with sizes of parallelism from process groups, else from its name."""
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
    """Add ratios to the base to the rows."""
    for row in rows:
        comparable = bool(row.get("steps")) == bool(base.get("steps"))
        for ratio, column in _RATIOS.items():
            value, base_value = row.get(column), base.get(column)
            if value is not None and base_value and (comparable or column not in _STEP_COLUMNS):
                row[ratio] = value / base_value
        if row.get("mean_temperature_c") is not None and base.get("mean_temperature_c") is not None:
            row["temperature_delta_c"] = row["mean_temperature_c"] - base["mean_temperature_c"]


def _gpu_rows(runs: list[_SweepRun]) -> list[Row]:
    """Rows of the GPUs of each run, and of each index of a GPU the mean over runs."""
    rows = [
        {"run": one.name, "status": one.figures.status, **row}
        for one in runs
        for row in one.figures.gpus
    ]
    if len(runs) == 1:
        return rows
    means: list[Row] = []
    for gpu, same in sorted(by_key(rows, lambda row: row["gpu"]).items()):
        mean: Row = {"run": _MEAN, "gpu": gpu}
        for column in ("busy_share", *run_figures.OF_SAMPLES, *run_figures.OF_LINKS):
            values = [row[column] for row in same if row.get(column) is not None]
            mean[column] = sum(values) / len(values) if values else None
        means.append(mean)
    return rows + means


def _type(column: str) -> pa.DataType:
    if column in _TEXT_COLUMNS:
        return pa.string()
    return pa.int64() if column in _INTEGER_COLUMNS else pa.float64()


def _summary(runs: list[_SweepRun], base_index: int, best: Best) -> Row:
    statuses = [one.figures.status for one in runs]
    summary: Row = {"runs": len(runs), "base": runs[base_index].name}
    for status in (run_figures.WHOLE, run_figures.PARTIAL, run_figures.INVALID):
        summary[status] = statuses.count(status)
    for criterion in run_rates.MEASURES:
        column, indices = best.get(criterion, (None, []))
        summary[f"best_{criterion}"] = runs[indices[0]].name if indices else None
        summary[f"best_{criterion}_by"] = column
    return summary


def _notes(runs: list[_SweepRun], best: Best) -> dict[str, str]:
    by = ", ".join(f"{criterion} by {column}" for criterion, (column, _) in best.items())
    notes = {
        "best": by
        or "unknown: it takes two runs with known tokens or samples, or the same number of GPUs in all"
    }
    invalid = [one.name for one in runs if one.figures.status == run_figures.INVALID]
    if invalid:
        notes["left out"] = f"figures of {len(invalid)} runs: {', '.join(invalid[:5])}"
    without = [
        one.name
        for one in runs
        if one.figures.row.get("window_ns") and not {"tokens", "samples"} & set(one.figures.row)
    ]
    if without:
        notes["throughput"] = (
            f"no shapes give tokens or samples of {len(without)} runs ({', '.join(without[:5])}): set "
            "tokens= or samples= of a step, the same for all runs (-O samples=128)"
        )
    warm = [
        f"{number_ranges.named('step', w)} of {one.name}"
        for one in runs
        if (w := one.figures.warm_up)
    ]
    if warm:
        notes[warm_up.NOTE] = f"without {', '.join(warm[:5])}; --steps each has all"
    if len(runs) == 1:
        notes["runs"] = "there is only one run: name others with --against"
    if not runs[0].figures.row.get("window_ns"):
        notes["empty"] = "; ".join(runs[0].figures.reasons) or "the first run is empty"
    return notes

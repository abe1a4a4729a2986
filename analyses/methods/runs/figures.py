"""Figures of a run: one row of a table of runs, and a row for each of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.activity import pieces, warm_up, windows
from chopper_interop.analyses.methods.efficiency import throughput
from chopper_interop.analyses.methods.runs import parallelism, rates, telemetry
from chopper_interop.analyses.methods.series import link_traffic
from chopper_interop.annotate.telemetry import job as of_job
from chopper_interop.annotate.telemetry.job import NEARLY_ALL, Board, gpu_locations
from chopper_interop.annotate.telemetry.quantity_series import (
    GFXCLK,
    POWER,
    TEMPERATURE,
    THROTTLE,
    UTILIZATION,
)
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import gather
from chopper_interop.grouping import grouped
from chopper_interop.issues import Severity
from chopper_interop.schemas.kinds import Collective
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.windows import Window
    from chopper_interop.analyses.methods.runs.telemetry import MeanAndPeak, SampledGpu
    from chopper_interop.annotate.telemetry.gpu_series import Location
    from chopper_interop.annotate.telemetry.gpus import Gpu

    Row = dict[str, Any]
    Interval = tuple[int, int]

WHOLE, PARTIAL, INVALID = "whole", "partial", "invalid"
"""Complete; something is missing, as `reason` says; nothing can be compared."""
OF_SAMPLES = {
    "mean_power_w": (POWER, "mean"),
    "peak_power_w": (POWER, "peak"),
    "mean_temperature_c": (TEMPERATURE, "mean"),
    "peak_temperature_c": (TEMPERATURE, "peak"),
    "gfxclk_mhz": (GFXCLK, "mean"),
    "peak_gfxclk_mhz": (GFXCLK, "peak"),
    "utilization_share": (UTILIZATION, "mean"),
    "throttle_share": (THROTTLE, "mean"),
}
"""Columns of telemetry: of which quantity, and what of it."""
OF_LINKS = tuple(link_traffic.COLUMNS.values())
"""Columns of bytes over links."""
_TIMES = ("busy", "compute", "comm", "exposed_comm", "memcpy")
_SHARES = ("busy", "exposed_comm")
_PEAK = "peak"
_OTHER_COMM = "other_comm_ns"
CATEGORIES = {
    **{name: f"{name}_ns" for name in kernel_categories.CATEGORIES[:8]},
    Collective.ALL_REDUCE: "all_reduce_ns",
    Collective.ALL_GATHER: "all_gather_ns",
    Collective.REDUCE_SCATTER: "reduce_scatter_ns",
    Collective.ALL_TO_ALL: "all_to_all_ns",
    Collective.SEND: "send_recv_ns",
    Collective.RECV: "send_recv_ns",
    Collective.SEND_RECV: "send_recv_ns",
}
"""Columns of categories of GPU work; all other communication is in `other_comm_ns`."""
CATEGORY_COLUMNS = (*dict.fromkeys(CATEGORIES.values()), _OTHER_COMM)


@dataclass
class RunFigures:
    """A run.

    Parameters
    ----------
    row
        Figures by column; what is not known is missing.
    gpus
        The same of each GPU.
    reasons
        Missing data, human-readable.
    warm_up
        Steps that do not count, as they are a warm-up.
    """

    row: Row = field(default_factory=dict)
    gpus: list[Row] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    warm_up: list[int] = field(default_factory=list)

    @property
    def status(self) -> str:
        """`WHOLE`, `PARTIAL` or `INVALID`."""
        if not self.row.get("window_ns"):
            return INVALID
        return PARTIAL if self.reasons else WHOLE


def figures_of_run(
    trace: Trace, steps: str = "", ranks: str = "", tokens: int = 0, samples: int = 0
) -> RunFigures:
    """Return the figures of a run.

    Parameters
    ----------
    trace
        The run.
    steps, ranks
        As of `windows.rank_windows`; without `steps` all training steps but a warm-up count, or where there
        are none all of the run.
    tokens, samples
        Of a step, as of `runs.rates.work_done`.

    Raises
    ------
    UsageError
        The run has no such steps or ranks.
    """
    result = RunFigures(_about(trace))
    if not trace.nodes.num_rows:
        return _of_telemetry(trace, result, tokens, samples)
    result.warm_up = [] if steps else warm_up.steps(trace)
    chosen, in_steps = _windows(trace, steps or warm_up.later_steps(trace, ranks), ranks)
    job, lengths = _of_job(trace, chosen, ranks, in_steps=in_steps)
    result.row |= _lengths(job, lengths)
    if not in_steps:
        result.reasons.append("no training steps are known: all of it counts")
    result.reasons += _missing(chosen) if in_steps else []
    busy = _add_times(trace, result, windows.windows_with_job_time(trace, chosen, ranks))
    selected = windows.chosen_ranks(trace, ranks)
    numbers = sorted({w.iteration for w in chosen}) if in_steps else []
    result.row |= rates.work_done(trace, selected, numbers, tokens, samples)
    boards = of_job.boards(trace, telemetry.QUANTITIES, selected if ranks else None)
    _add_telemetry(trace, result, boards, job, busy)
    return result


def _about(trace: Trace) -> Row:
    """Counts, and how the job was divided."""
    ranks = {rank.rank: rank for rank in trace.meta.ranks}
    there = trace.ranks or sorted(ranks)
    hosts = {ranks[r].host for r in there if r in ranks} - {""}
    lost = sum(i.severity is not Severity.INFO for i in trace.meta.issues)
    world = parallelism.world_size(trace)
    sizes = parallelism.sizes(trace)
    row: Row = {"ranks": len(there) or None, "world_size": world, "hosts": len(hosts) or None}
    row |= parallelism.completed(sizes, world) | {"losses": lost}
    return row


def _windows(trace: Trace, steps: str, ranks: str) -> tuple[list[Window], bool]:
    """Steps of ranks, or all of each rank where there are none."""
    if steps or windows.has_steps(trace, ranks):
        return windows.rank_windows(trace, steps or "each", ranks), True
    return windows.rank_windows(trace, "", ranks), False


def _of_job(
    trace: Trace, chosen: Sequence[Window], ranks: str, *, in_steps: bool
) -> tuple[list[tuple[int, int]], list[int]]:
    """Starts and ends of the job's time, and the length of each of its steps, as of `throughput`."""
    numbers = {w.iteration for w in chosen}
    steps = [one for one in throughput.each(trace, ranks) if one.iteration in numbers]
    if in_steps and not steps:
        return [], []
    job = throughput.job_interval(trace, steps, ranks)
    return [extent for one in job for extent in one.extents], [one.time_ns for one in steps]


def _lengths(job: Sequence[tuple[int, int]], lengths: Sequence[int]) -> Row:
    """Lengths of steps."""
    row: Row = {"window_ns": sum(end - start for start, end in job) if job else None}
    if not lengths:
        return row | {"steps": 0}
    spans = np.sort(lengths)
    return row | {
        "steps": len(spans),
        "step_ns": float(spans.mean()),
        "step_median_ns": int(spans[(len(spans) - 1) // 2]),
        "step_std_ns": float(spans.std()),
        "step_min_ns": int(spans[0]),
        "step_max_ns": int(spans[-1]),
    }


def _missing(chosen: Sequence[Window]) -> list[str]:
    """Steps that some ranks lack."""
    of_rank = grouped((window.rank, window.iteration) for window in chosen)
    every = set().union(*of_rank.values())
    missing = {rank: sorted(every.difference(has)) for rank, has in of_rank.items()}
    lacking = {rank: steps for rank, steps in missing.items() if steps}
    if not lacking:
        return []
    rank, steps = next(iter(sorted(lacking.items())))
    more = f", and more on {len(lacking) - 1} other ranks" if len(lacking) > 1 else ""
    return [f"steps {', '.join(map(str, steps[:5]))} are missing on rank {rank}{more}"]


def _add_times(
    trace: Trace, figures: RunFigures, chosen: Sequence[Window]
) -> dict[tuple[int, int], float]:
    """Times of GPU work by rank and window; what share of the time each device was busy."""
    work = pieces.pieces_in_windows(trace, chosen)
    if not len(work):
        figures.reasons.append("there is no GPU work")
        return {}
    at_work = np.unique(work.window)
    ranks = {chosen[n].rank for n in at_work.tolist()}
    rank_windows = [w for w in chosen if w.rank in ranks]
    units, span = len(rank_windows), sum(w.span_ns for w in rank_windows)
    times = pieces.class_times(work.patterns(work.window, len(chosen)))
    sums = {name: int(times[name].sum()) for name in _TIMES}
    sums["idle"] = span - sums["busy"]
    figures.row |= {f"{name}_ns": time / units for name, time in sums.items()}
    figures.row |= {f"{name}_share": sums[name] / span if span else None for name in _SHARES}
    figures.row |= _categories(trace, work, units)
    return _busy(trace, work, rank_windows)


def _categories(trace: Trace, work: pieces.WorkPieces, units: int) -> Row:
    """Durations of each category of GPU work, by rank and window."""
    names = kernel_categories.CATEGORIES
    code = kernel_categories.node_categories(trace, work.row)
    total = gather.group_sums(code, work.end - work.start, len(names))
    columns: dict[str, float] = {}
    for name, time in zip(names, total.tolist(), strict=True):
        if time:
            column = CATEGORIES.get(name, _OTHER_COMM)
            columns[column] = columns.get(column, 0.0) + time / units
    return dict(columns)


def _busy(
    trace: Trace, work: pieces.WorkPieces, chosen: Sequence[Window]
) -> dict[tuple[int, int], float]:
    """Share of its windows in which each device of a rank was busy."""
    device = trace.array("device", "lanes")[trace.array("lane")[work.row]]
    first, cell = gather.distinct(work.window, device)
    busy = work.patterns(cell, len(first))[:, 1:].sum(axis=1)
    span: dict[int, int] = {}
    for window in chosen:
        span[window.rank] = span.get(window.rank, 0) + window.span_ns
    rank = trace.array("rank")[work.row[first]].tolist()
    by_gpu: dict[tuple[int, int], float] = {}
    for place, time in zip(
        zip(rank, device[first].tolist(), strict=True), busy.tolist(), strict=True
    ):
        by_gpu[place] = by_gpu.get(place, 0.0) + time
    return {place: time / max(span[place[0]], 1) for place, time in sorted(by_gpu.items())}


def _of_telemetry(trace: Trace, figures: RunFigures, tokens: int, samples: int) -> RunFigures:
    boards = of_job.boards(trace, telemetry.QUANTITIES)
    window = of_job.power_extent(boards)
    if window is None or window[1] <= window[0]:
        figures.reasons.append(
            _stated_reason(trace) or "there are no events and no samples of GPUs"
        )
        return figures
    figures.row |= {"window_ns": window[1] - window[0], "steps": 0}
    figures.row |= rates.work_done(trace, windows.chosen_ranks(trace, ""), [], tokens, samples)
    figures.reasons.append("telemetry alone: from its first to its last sample")
    _add_telemetry(trace, figures, boards, [window], {})
    return figures


def _stated_reason(trace: Trace) -> str:
    """Reason for which nothing was read, as far as the trace states it."""
    lost = [issue for issue in trace.meta.issues if issue.severity is not Severity.INFO]
    return lost[0].example or lost[0].meaning if lost else ""


def _add_telemetry(
    trace: Trace,
    figures: RunFigures,
    boards: Sequence[Board],
    job: Sequence[Interval],
    busy: dict[Location, float],
) -> None:
    """Rows of GPUs, and figures over all of them."""
    powers = [telemetry.power(board, job) for board in boards]
    sampled = [
        (die, telemetry.sampled(die, job, power))
        for board, power in zip(boards, powers, strict=True)
        for die in board.dies
    ]
    _add_gpus(trace, figures, sampled, job, busy)
    for column, (_, which) in OF_SAMPLES.items():
        values = [v for _, gpu in sampled if (v := _sampled(gpu)[column]) is not None]
        if values:
            combined = max(values) if which == _PEAK else sum(values) / len(values)
            figures.row[column] = combined
    for column in OF_LINKS:
        volumes = [row[column] for row in figures.gpus if column in row]
        if volumes:
            figures.row[column] = sum(volumes)
    _add_energy(figures, boards, powers, job)


def _add_gpus(
    trace: Trace,
    figures: RunFigures,
    sampled: Sequence[tuple[Gpu, SampledGpu]],
    job: Sequence[Interval],
    busy: dict[Location, float],
) -> None:
    """A row for each GPU, or for each rank that works on it; and how many GPUs there are."""
    hosts = {rank.rank: rank.host for rank in trace.meta.ranks}
    carried = link_traffic.gpu_bytes(trace, job)
    placed = [(sorted(gpu_locations(trace, gpu)), means) for gpu, means in sampled]
    placed.sort(key=lambda of_gpu: of_gpu[0])
    for number, (places, means) in enumerate(placed):
        for place in [p for p in places if p in busy] or places[:1]:
            row: Row = {"gpu": number, "rank": place[0], "device": place[1]}
            row |= {"host": hosts.get(place[0], "") or None, "busy_share": busy.get(place)}
            figures.gpus.append(row | carried.get(place, {}) | _sampled(means))
    figures.row["gpus"] = len(placed)


def _sampled(gpu: SampledGpu) -> Row:
    return {column: gpu.value(*source) for column, source in OF_SAMPLES.items()}


def _add_energy(
    figures: RunFigures,
    boards: Sequence[Board],
    powers: Sequence[MeanAndPeak | None],
    job: Sequence[Interval],
) -> None:
    """Energy of all GPUs while their power is known, if that is nearly all of the time."""
    length = sum(end - start for start, end in job)
    known = [power for power in powers if power is not None]
    unknown = sum(
        len(board.dies) for board, power in zip(boards, powers, strict=True) if power is None
    )
    figures.row["power_gpus"] = figures.row["gpus"] - unknown
    if not known or not length:
        return
    min_share = 0.0 if unknown else min(power.covered_ns for power in known) / length
    figures.row["power_known_share"] = min_share
    if unknown:
        figures.reasons.append(f"power of {unknown} of {figures.row['gpus']} GPUs is not known")
    elif min_share < NEARLY_ALL:
        figures.reasons.append(f"power of all GPUs is known of {min_share:.1%} of the time alone")
    else:
        figures.row["power_w"] = sum(power.mean for power in known)
        figures.row["energy_j"] = sum(power.mean * power.covered_ns for power in known) * 1e-9
        if figures.row["steps"]:
            figures.row["energy_per_step_j"] = (
                figures.row["power_w"] * length * 1e-9 / figures.row["steps"]
            )

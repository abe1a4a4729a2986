"""Measure the energy of GPUs while they computed, communicated and copied, and while idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.efficiency import energy_parts, energy_tables
from chopper_interop.analyses.methods.peers import charllm as peers_charllm
from chopper_interop.annotate.telemetry import job
from chopper_interop.annotate.telemetry.gpus import unassigned_power_series
from chopper_interop.annotate.telemetry.quantity_series import POWER
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.grouping import grouped
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.efficiency.energy_parts import EnergyPart
    from chopper_interop.annotate.telemetry.job import Board

__all__ = ["energy"]

_WINDOW = (
    "of each GPU from the first start to the last end of all work on it; of that, the time in which "
    "its power is known (covered_ns)"
)
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "power": "is interpolated linearly between samples (trapezoid rule). It is the rise of the energy "
    "counter from one of its values to the next instead, because shown power is filtered and late, if "
    "the counter of the same tool is sampled as finely (1.5 periods), at times known to a tenth of "
    "that, and is within a factor 1.5 of that power; or if no power was sampled. energy_by says which. "
    "Of several tools the finest is used wherever it has power, the next one elsewhere. trapezoid_j and "
    "peaks are those of shown power only",
    "windows": "energy_by windows: a tool such as Zeus read the counters of GPUs at the start and end of "
    "windows. The measured energy of a window is spread evenly over it. Of nested windows the inner ones "
    "keep theirs, and the rest of the outer one's energy belongs to the rest of its time. Between windows "
    "power is not known; peaks are means of windows",
    "gaps": "between samples further apart than 6 median periods, power is not known",
    "sharing": "at every moment equally among the work that runs on the GPU; energy while nothing "
    "runs is idle_j, in equal parts for all ranks that compute on it",
    "cut": "cut_j is the energy of work whose power is not known for all of its time in the window. "
    "energy_j = work_j + cut_j + idle_j",
    "memset": "counts as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "counter": "counter_j and trapezoid_j are independent of each other, and of the origin of energy_j: "
    "counter_j is the rise of the GPU's energy counter, interpolated linearly, over the time in which "
    "power is shown, trapezoid_j the energy of shown power. difference_share is trapezoid_j / "
    "counter_j - 1 of the whole GPU. "
    "counter_resolution_j is the rise of the counter between the samples around the ends of that time. "
    "trapezoid_resolution_j is the shown power there times the time between its samples plus twice their "
    "uncertainty. counter_verdict is within if the two differ by no more than the sum of both. Filters and "
    "errors of sensors, which tools do not report, put them outside. "
    "Counters of amd-smi and rocm-smi read 0.27 % high, as they round the unit of the hardware: "
    "counter_j is as reported, with that in its resolution, energy_j is corrected",
    "modules": "of the two dies of an MI250 the first reports the power of both: it is shared among the "
    "work of both, as that of one GPU, and each counts as a GPU",
    "of GPUs": "power of a socket or board, memory included; hosts and networks are not in it",
}
_OF_WORK = (
    "energy of work alone: idle_j of the summary belongs to none of these, and energy_share is of the "
    "energy of all, idle time included; energy_known counts pieces whose power is known all of their time. "
    "By iteration it is the energy of the work that steps launched; steps=each includes their idle time"
)
_OF_SEVERAL = (
    "window_ns and covered_ns are sums over GPUs, powers those of one GPU; GPUs without known power "
    "are not in energies (gpus_without_power)"
)
_SAMPLED = (
    "nothing ran on a GPU: of each GPU from its first to its last sample of power, without gaps"
)
_ALONE = (
    "no kernels were recorded: energy_j is that of all sampled time, and cannot be divided into "
    "work and idle, so that these are blank"
)
_CHARLLM = "compat=charllm has the rows of CharLLM-PPT, from all samples and over gaps too"
_MEASURED = (
    "energy_j is that of measured windows (covered_ns); the energy between windows is not known"
)
_NONE = "nothing ran on a GPU, and no power was sampled between two times (or 0 W throughout)"
_GAPS = (
    "GPUs without two samples of power that have no gap between them, such as single samples far apart; "
    "compat=charllm integrates over gaps"
)
_NO_POWER = "GPUs with telemetry, but without power (or 0 W throughout)"
_NO_WORK = (
    "nothing ran on a GPU, so that no work and no step has energy; by=rank, node or job without steps "
    "has that of all sampled time, and so has compat=charllm"
)


def energy(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Measure the energy of each rank's GPUs by integration of their power.

    Parameters
    ----------
    trace
        A trace with telemetry. Where nothing ran on GPUs, all sampled time counts.
    by
        Groups of rows: names out of `grouping.GRAINS` separated by commas, or ``node`` (machine).
        ``rank`` (and its GPUs), ``node`` and ``job`` include idle time; ``phase``, ``layer``,
        ``rank,class``, ``operation``, ``kernel``, … are groups of work.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, as long as the range
        that marks it on its rank; all of the trace if empty.
    ranks
        Ranks to include, as ``0,4-7``; all if empty.
    compat
        ``charllm``: the definitions of CharLLM-PPT instead.

    Returns
    -------
    Result
        One row for each rank and GPU that it works on, null where power is not known:

        - `device`; `window_ns`, and of it `covered_ns`, in which power is known; `telemetry_ns`,
          the time between samples of power (the longest of several tools)
        - energy in joules: `energy_j` = `work_j` (of which `compute_j`, `comm_j`, `copy_j`) +
          `cut_j` + `idle_j`
        - `mean_power_w` and `peak_power_w` of the GPU
        - `trapezoid_j`, by shown power, with the uncertainty `trapezoid_resolution_j`;
          `counter_j`, of the same time by the GPU's energy counter, with `counter_resolution_j`;
          `difference_share` of these two, and `counter_verdict`: within or outside
        - `energy_by`: counter, trapezoid or windows; `source`, the tools that sampled power, the
          finest first

        Rows of nodes and the job have the same columns, with the numbers of GPUs whose power is
        known (`gpus`) or not (`gpus_without_power`). Rows of work have `pieces`, `energy_known` of
        them, `energy_j` = `work_j` + `cut_j`, and `energy_share` of the energy of all, idle time
        included. The summary has sums over the job and counts of ranks with and without known
        power, and of GPUs whose power was sampled but on which no rank is known to compute
        (`gpus_without_rank`). The notes say why rows are blank.

    Notes
    -----
    The annotation `energy_j` of a node is its share by these rules. The trapezoid rule is that of
    CharLLM-PPT and InferenceX.
    """
    if compat:
        peers_charllm.check_compat(compat)
        if (by, steps, ranks) != ("rank", "", ""):
            raise NoSuchDefinitionsError(
                f"compat={compat} has rows of GPUs over all samples", hint="leave by, steps, ranks"
            )
        return peers_charllm.energy(trace)
    names = energy_tables.grains(by, steps)
    if not job.has_gpu_work(trace):
        return _of_telemetry(trace, names, steps, ranks)
    boards = job.boards(trace, (POWER,))
    dies = [die for board in boards for die in board.dies]
    parts = energy_parts.parts(trace, boards, steps, ranks)
    summary = energy_tables.summary(trace, parts)
    without_rank = list(unassigned_power_series(trace, dies))
    summary["gpus_without_rank"] = len(
        {trace.series["device"][row].as_py() for row in without_rank}
    )
    if energy_tables.has_idle_time(names, steps):
        table = energy_tables.gpu_table(trace, parts, names)
    else:
        table = energy_tables.work_table(trace, parts, names, stepped=bool(steps))
    notes = _blank_row_notes(parts, boards, summary["gpus_without_rank"])
    notes |= _uncompared_notes(parts) | _window_notes(parts)
    notes["window"] = windows.describe(steps, _WINDOW)
    return Result("energy", table, summary, _conventions(names, steps), notes=notes)


def _conventions(names: tuple[str, ...], steps: str) -> dict[str, str]:
    if not energy_tables.has_idle_time(names, steps):
        return _CONVENTIONS | {"groups": _OF_WORK}
    return _CONVENTIONS | ({} if "rank" in names else {"several GPUs": _OF_SEVERAL})


def _of_telemetry(trace: Trace, names: tuple[str, ...], steps: str, ranks: str) -> Result:
    """Measure the energy of all sampled time, where nothing is known to have run."""
    chosen = windows.chosen_ranks(trace, ranks) if ranks else None
    if steps:
        windows.rank_windows(trace, steps, ranks)  # raises for steps that do not exist
    has_idle_time = energy_tables.has_idle_time(names, steps)
    boards = job.boards(trace, (POWER,), chosen) if has_idle_time and not steps else []
    parts = energy_parts.telemetry_parts(boards)
    if has_idle_time:
        rows = energy_tables.gpu_table(trace, parts, names)
    else:
        rows = energy_tables.work_table(trace, parts, names, stepped=bool(steps))
    for name in set(energy_tables.OF_WORK) & set(rows.column_names):
        blank = pa.nulls(rows.num_rows, pa.float64())
        rows = rows.set_column(rows.column_names.index(name), name, blank)
    summary = energy_tables.summary(trace, parts) | dict.fromkeys(energy_tables.OF_WORK)
    summary["gpus_without_rank"] = len(
        {(p.rank, p.device) for p in parts if p.board.powers and p.rank < 0}
    )
    notes = {"window": windows.describe(steps, _SAMPLED)}
    notes |= (
        {"telemetry alone": _ALONE if _window_notes(parts) else f"{_ALONE}. {_CHARLLM}"}
        if parts
        else {"no rows": _NONE if has_idle_time and not steps else _NO_WORK}
    )
    notes |= _window_notes(parts)
    notes |= _uncompared_notes(parts)
    blank = [part for part in parts if part.window is None]
    if reasons := [
        why
        for why, powered in ((_GAPS, True), (_NO_POWER, False))
        if any(bool(part.board.powers) is powered for part in blank)
    ]:
        notes["blank rows"] = "; ".join(reasons)
    return Result("energy", rows, summary, _conventions(names, steps), notes=notes)


def _window_notes(parts: list[EnergyPart]) -> dict[str, str]:
    """Say what energy means that was measured in windows."""
    sources = (source for part in parts if part.window for source, _ in part.window.powers)
    return {"windows": _MEASURED} if any(source.pattern.is_window for source in sources) else {}


def _blank_row_notes(
    parts: list[EnergyPart], boards: list[Board], n_without: int
) -> dict[str, str]:
    """Say why figures are blank, and for which ranks."""
    blank = sorted({part.rank for part in parts if part.window is None})
    sampled = {rank for board in boards if board.powers for rank in board.gpu.ranks}
    reasons = []
    if unsampled := [r for r in blank if r not in sampled]:
        reasons.append(
            f"no power was sampled (or 0 W throughout) of {number_ranges.named('rank', unsampled)}"
        )
        if n_without:
            reasons[0] += (
                "; it was on GPUs on which no rank is known to compute, --map-device can assign them"
            )
    if sampled_elsewhere := [r for r in blank if r in sampled]:
        reasons.append(
            f"power was sampled, but not while they computed, of {number_ranges.named('rank', sampled_elsewhere)}"
        )
    return {"blank rows": "; ".join(reasons)} if reasons else {}


def _uncompared_notes(parts: list[EnergyPart]) -> dict[str, str]:
    """Say why energy by shown power and by counters are not compared, and for which GPUs."""
    reasons = grouped(
        (part.window.check.why_not, (part.rank, part.device))
        for part in parts
        if part.window is not None and part.window.check.why_not
    )
    texts = [f"{why} of {_gpus_text(set(gpus))}" for why, gpus in sorted(reasons.items())]
    return {"not compared with counters": "; ".join(texts)} if texts else {}


def _gpus_text(gpus: set[tuple[int, int]]) -> str:
    ranks = sorted({rank for rank, _ in gpus})
    return number_ranges.named("rank", ranks) if ranks[0] >= 0 else f"{len(gpus)} GPUs"

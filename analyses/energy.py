"""What GPUs drew: while they computed, communicated and copied, and while nothing ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.activity import windows
from chopper_interop.efficiency import energy_parts, energy_tables
from chopper_interop.errors import NoSuchDefinitionsError
from chopper_interop.peers import charllm as peers_charllm
from chopper_interop.result import Result
from chopper_interop.telemetry import job
from chopper_interop.telemetry.gpus import unowned
from chopper_interop.telemetry.names import POWER

if TYPE_CHECKING:
    from chopper_interop.efficiency.energy_parts import Part
    from chopper_interop.telemetry.job import Board
    from chopper_interop.trace import Trace

__all__ = ["energy"]

_WINDOW = (
    "of each GPU from the first start to the last end of all work on it; of that, what its power "
    "is known of counts (covered_ns)"
)
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "power": "goes straight from sample to sample (trapezoid rule), but where the energy counter of the "
    "same tool is sampled as finely (1.5 periods), at times known to a tenth of that, and within a "
    "factor 1.5 of that power, it is the rise of the counter from one of its values to the next: shown "
    "power is filtered and late. Also where no power was sampled. energy_by says which. Of several "
    "tools the finest counts wherever it tells power, the next one where it does not; trapezoid_j is "
    "of shown power alone, and so are peaks",
    "windows": "energy_by windows: a tool such as Zeus read the counters of GPUs where windows began and "
    "ended. The energy of a window is as it was measured, spread evenly over it; of windows within windows the inner ones "
    "count, and what the outer one has beyond them in the rest of its time. Between windows power is not known; "
    "peaks are means of windows",
    "gaps": "between samples further apart than 6 median periods, power is not known",
    "sharing": "at every moment equally among what runs on the GPU; what it draws while nothing "
    "runs is idle_j, in equal parts of all ranks that compute on it",
    "cut": "cut_j is what was drawn by work for whose whole time in the window power is not known. "
    "energy_j = work_j + cut_j + idle_j",
    "memset": "counts as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "counter": "whatever tells energy_j, counter_j and trapezoid_j are told apart from each other: the "
    "rise of the GPU's energy counter, straight between its samples, over the time that power is shown, "
    "and the energy of shown power; difference_share is trapezoid_j / counter_j - 1 of the whole GPU. "
    "Up to any moment a GPU drew what lies "
    "between the counter's values before and behind it: counter_resolution_j is what it rose by "
    "around the ends of that time, trapezoid_resolution_j the shown power there times the time between "
    "its samples and twice what they are uncertain by; counter_verdict is whether the two are within the sum of these. Filters and errors of "
    "sensors, which tools do not tell, are what puts them outside. "
    "Counters of amd-smi and rocm-smi read 0.27 % high, as they round the unit of the hardware: "
    "counter_j is as they say, with that in its resolution, energy_j is not",
    "modules": "of the two dies of an MI250 the first tells the power of both: it is shared among the work "
    "of both, as that of one GPU, and each counts as a GPU",
    "of GPUs": "power of a socket or board, memory included; hosts and networks are not in it",
}
_OF_WORK = (
    "energy of work alone: idle_j of the summary belongs to none of these, and energy_share is of the "
    "energy of all, idle time included; energy_known counts pieces whose energy is known as a whole. By iteration it is that of the work that "
    "steps launched; steps=each has their idle time too"
)
_OF_SEVERAL = (
    "window_ns and covered_ns are sums over GPUs, powers those of one GPU; GPUs of which no power is "
    "known are not in energies (gpus_unknown)"
)


_SAMPLED = (
    "nothing ran on a GPU: of each GPU from its first to its last sample of power, gaps left out"
)
_ALONE = (
    "no kernels were recorded: energy_j is of all of the time that was sampled, and cannot be told apart "
    "as work and idle, so that these are blank"
)
_CHARLLM = "compat=charllm has the rows of CharLLM-PPT, of all samples and over gaps too"
_MEASURED = (
    "energy_j is that of windows that were measured, as it was measured (covered_ns); what GPUs drew between "
    "windows is not known"
)
_NONE = "nothing ran on a GPU, and no power was sampled between two moments (or 0 W throughout)"
_GAPS = (
    "of GPUs of which no two samples of power are without a gap between them, as single samples far apart; "
    "compat=charllm integrates over gaps"
)
_NO_POWER = "of GPUs of which telemetry tells something, but no power (or 0 W throughout)"
_NO_WORK = (
    "nothing ran on a GPU, so that no work and no step has energy; by=rank, node or job without steps "
    "tells that of all of the time that was sampled, and so does compat=charllm"
)


def energy(
    trace: Trace, *, by: str = "rank", steps: str = "", ranks: str = "", compat: str = ""
) -> Result:
    """Energy of each rank's GPUs by integration of their power.

    Parameters
    ----------
    trace
        Any trace with telemetry; where nothing ran on GPUs, all of the time that was sampled counts.
    by
        What a row is of, names out of `grouping.GRAINS` separated by commas, or ``node`` (machine):
        ``rank`` and its GPUs, ``node``, ``job``; or groups of work, ``phase``, ``layer``,
        ``rank,class``, ``operation``, ``kernel``, …
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself, as long as the range
        that marks it on its rank; else all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all.
    compat
        ``charllm``: the definitions of CharLLM-PPT instead.

    Returns
    -------
    Result
        One row for each rank and GPU that it works on: `device`; `window_ns` and how much of it
        power is known of, `covered_ns`; `telemetry_ns`, the time between samples of power, the
        longest of several tools; energy
        in joules: `energy_j` = `work_j` (of which `compute_j`, `comm_j`, `copy_j`) + `cut_j` +
        `idle_j`; `mean_power_w` and `peak_power_w` of the GPU; `trapezoid_j`, by power as it is
        shown, known in time to `trapezoid_resolution_j`; `counter_j`, of the same time by the GPU's
        energy counter, known to `counter_resolution_j`; `difference_share` of these two, and
        `counter_verdict`: within or outside; `energy_by` counter, trapezoid or windows;
        `source`, the tools that sampled power, the finest
        first. Null where it is not known, as on GPUs that tell no power. Of nodes and the job the
        same, and the numbers of GPUs that are in it (`gpus`) or not known (`gpus_unknown`). Of
        groups of work `pieces`, `energy_known` of them, `energy_j` = `work_j` + `cut_j`, and
        `energy_share` of the energy of all, idle time included.
        The summary has sums over the job, counts
        of ranks with and without known power, and of GPUs whose power was sampled but on which no
        rank is known to compute (`gpus_without_rank`). The notes say why rows are blank.

    Notes
    -----
    A node's `energy_j` is its part as this says. Trapezoid rule as in CharLLM-PPT and InferenceX.
    """
    if compat:
        peers_charllm.check(compat)
        if (by, steps, ranks) != ("rank", "", ""):
            raise NoSuchDefinitionsError(
                f"compat={compat} has rows of GPUs over all samples", hint="leave by, steps, ranks"
            )
        return peers_charllm.energy(trace)
    names = energy_tables.grains(by, steps)
    if not job.has_work(trace):
        return _of_telemetry(trace, names, steps, ranks)
    boards = job.boards(trace, (POWER,))
    found = [die for board in boards for die in board.dies]
    parts = energy_parts.parts(trace, boards, steps, ranks)
    summary = energy_tables.summary(trace, parts)
    without = list(unowned(trace, found))
    summary["gpus_without_rank"] = len({trace.series["device"][row].as_py() for row in without})
    if energy_tables.is_whole(names, steps):
        table = energy_tables.of_gpus(trace, parts, names)
    else:
        table = energy_tables.of_work(trace, parts, names, stepped=bool(steps))
    notes = _unknown(parts, boards, summary["gpus_without_rank"])
    notes |= _uncompared(parts) | _windows(parts)
    notes["window"] = windows.described(steps, _WINDOW)
    return Result("energy", table, summary, _conventions(names, steps), notes=notes)


def _conventions(names: tuple[str, ...], steps: str) -> dict[str, str]:
    if not energy_tables.is_whole(names, steps):
        return _CONVENTIONS | {"groups": _OF_WORK}
    return _CONVENTIONS | ({} if "rank" in names else {"several GPUs": _OF_SEVERAL})


def _of_telemetry(trace: Trace, names: tuple[str, ...], steps: str, ranks: str) -> Result:
    """Energy of all of the time that was sampled, where nothing is known to have run."""
    chosen = windows.chosen_ranks(trace, ranks) if ranks else None
    if steps:
        windows.of_ranks(trace, steps, ranks)  # which refuses what there is not
    is_whole = energy_tables.is_whole(names, steps)
    boards = job.boards(trace, (POWER,), chosen) if is_whole and not steps else []
    parts = energy_parts.of_telemetry(boards)
    if is_whole:
        rows = energy_tables.of_gpus(trace, parts, names)
    else:
        rows = energy_tables.of_work(trace, parts, names, stepped=bool(steps))
    for name in set(energy_tables.OF_WORK) & set(rows.column_names):
        blank = pa.nulls(rows.num_rows, pa.float64())
        rows = rows.set_column(rows.column_names.index(name), name, blank)
    summary = energy_tables.summary(trace, parts) | dict.fromkeys(energy_tables.OF_WORK)
    summary["gpus_without_rank"] = len(
        {(p.rank, p.device) for p in parts if p.board.powers and p.rank < 0}
    )
    notes = {"window": windows.described(steps, _SAMPLED)}
    notes |= (
        {"telemetry alone": _ALONE if _windows(parts) else f"{_ALONE}. {_CHARLLM}"}
        if parts
        else {"no rows": _NONE if is_whole and not steps else _NO_WORK}
    )
    notes |= _windows(parts)
    notes |= _uncompared(parts)
    blank = [part for part in parts if part.whole is None]
    if reasons := [
        why
        for why, powered in ((_GAPS, True), (_NO_POWER, False))
        if any(bool(part.board.powers) is powered for part in blank)
    ]:
        notes["blank rows"] = "; ".join(reasons)
    return Result("energy", rows, summary, _conventions(names, steps), notes=notes)


def _windows(parts: list[Part]) -> dict[str, str]:
    """What energy means that was measured in windows."""
    sources = (source for part in parts if part.whole for source, _ in part.whole.powers)
    return {"windows": _MEASURED} if any(source.told.is_window for source in sources) else {}


def _unknown(parts: list[Part], found: list[Board], n_without: int) -> dict[str, str]:
    """Why figures are blank, and of which ranks."""
    blank = sorted({part.rank for part in parts if part.whole is None})
    sampled = {rank for board in found if board.powers for rank in board.gpu.ranks}
    told = []
    if none := [r for r in blank if r not in sampled]:
        told.append(f"no power was sampled (or 0 W throughout) of {_of_ranks(none)}")
        if n_without:
            told[0] += (
                "; which ranks compute on GPUs of which it was is not known, --map-device can tell"
            )
    if beyond := [r for r in blank if r in sampled]:
        told.append(f"power was sampled, but not while they computed, of {_of_ranks(beyond)}")
    return {"blank rows": "; ".join(told)} if told else {}


def _uncompared(parts: list[Part]) -> dict[str, str]:
    """Why energy by shown power and by counters are not compared, and of which GPUs."""
    reasons: dict[str, set[tuple[int, int]]] = {}
    for part in parts:
        if part.whole is not None and part.whole.check.why_not:
            reasons.setdefault(part.whole.check.why_not, set()).add((part.rank, part.device))
    told = [f"{why} of {_whose(places)}" for why, places in sorted(reasons.items())]
    return {"not compared with counters": "; ".join(told)} if told else {}


def _whose(places: set[tuple[int, int]]) -> str:
    ranks = sorted({rank for rank, _ in places})
    return _of_ranks(ranks) if ranks[0] >= 0 else f"{len(places)} GPUs"


def _of_ranks(ranks: list[int]) -> str:
    """Ranks for people, ascending: ``ranks 0-3, 5``."""
    new = np.flatnonzero(np.diff(ranks) != 1) + 1
    runs = [(int(run[0]), int(run[-1])) for run in np.split(np.array(ranks), new)]
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"

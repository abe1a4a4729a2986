"""Ranks and links that hold a job up, why, and the gain if each were as fast as its peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.fleet import comparison
from chopper_interop.analyses.methods.fleet.compared_job import (
    MAX_REPLAYS,
    MIN_GAIN_SHARE,
    PERSISTENT_SHARE,
)
from chopper_interop.analyses.methods.fleet.comparison import Comparison, gain_of_cause
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.errors import OptionError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.slowdowns import OperationGroup

__all__ = ["stragglers"]

_BY = ("rank", "operation", "dp_rank", "stage", "type", "iteration", "link")
_NO_RANK = -1
"""Rank of the straggler where there is none."""


def stragglers(
    trace: Trace,
    *,
    by: str = "rank",
    steps: str = "",
    ranks: str = "",
    threshold: float = comparison.THRESHOLD,
) -> Result:
    """Find ranks and links that hold the job up, the cause, and the time each costs.

    Parameters
    ----------
    trace
        A trace of several ranks with training steps. What is needed is GPU work with its durations,
        lanes and steps (`iteration`), communication with its `instance`, and dependencies between
        lanes as edges; `docs/accuracy/stragglers.md` says what each of these determines.
    by
        Rows: ``"rank"``; ``"operation"``, each operation of each rank; ``"dp_rank"``, ``"stage"`` or
        ``"type"``, the parts of the slow-down; ``"iteration"``, the slow-down of each step;
        ``"link"``, sets of ranks that communicate.
    steps
        Training steps, each by itself: ``each``, ``10``, ``10-12``; all by default.
    ranks
        Ranks with a row (``"0,4-7"``); they are compared with all ranks.
    threshold
        Slow-down from which on a rank or link is slow, by the median of the others; the default, 1 %,
        is chosen to be above noise.

    Returns
    -------
    Result
        Rows by rank, the largest gain first: its place in the job (`dp_rank`, `stage`); `kernel_time_ns`
        (sum over its kernels), `compute_ns` (time in which a kernel or fill runs), `slowdown_factor`
        (`kernel_time_ns` by the median of the other ranks'), `excess_ns` (time by which its operations
        exceeded their counterparts), `slower_share` (share of its operations that took longer), `gain_ns`
        (gain of the job if they took the time of their counterparts), `gain_share` (of the gain if all were
        ideal), `alone_slowdown_factor` (S_w), `steps_slow` of `steps`, and `persistent`: slow in most
        steps; null for a single step. `host_late_ns` is how much later its host launched work than other
        ranks' (medians), `host_gain_ns` the gain if it was as early as these, `delay_gain_ns` the gain
        without its unexplained delays. `caused_delay_ns` and `unexplained_delay_ns` sum how much later its
        work started than other work allowed, by the host and without a known reason. `times_last` and
        `caused_wait_ns` are those of `collectives`. `cause`: ``gpu``, ``host`` or ``delays``, with the
        largest gain; null where nothing is to be gained.

        By operation the same of each operation of each rank, and `even_gain_ns`: gain if that
        operation were ideal on all ranks. By dp_rank, stage and type `alone_slowdown_factor` and
        `gain_ns`, by iteration the slow-downs of each step, by link its transfers.

        The summary has `slow_rank` (-1: none) with its `slowdown_factor` and `cause`, `slow_ranks`, several
        whose GPUs hold the job up together, where none of them alone gives half of their gain, `slow_link`, and
        of the job: `measured_ns`; `before_ns` and `even_ns`, without unexplained delays, and their
        ratio `job_slowdown_factor` S; the same with delays kept, `job_slowdown_with_delays_factor`;
        `slowest_workers_share` M_W and `last_stage_share` M_S.

    Notes
    -----
    S, S_w, M_W and M_S as Lin et al. define them (OSDI 2025), see
    `chopper_interop.analyses.methods.fleet.slowdowns`. Gains of ranks are against the median
    of the very same operation of the same step on other ranks, of an even number the middle of two.
    """
    options.check_choice("by", by, _BY)
    if not 1 <= threshold < np.inf:
        raise OptionError(f"threshold={threshold}: it must be at least 1")
    selected = windows.chosen_ranks(trace, ranks)
    window = windows.describe(steps, "all training steps")
    schema, conventions = pa.schema(_COLUMNS[by]), _conventions(threshold)
    notes = {
        "window": window + "; work belongs to the step that launched it, as a whole",
        "ranks": f"{len(selected)} of {len(trace.ranks)} have rows; compared with all",
    }
    if no_rows := comparison.why_not(trace, steps):
        notes["no rows"] = no_rows
        summary = _summary(None, [])
        return Result("stragglers", schema.empty_table(), summary, conventions, notes=notes)
    compared = Comparison(trace, steps, threshold)
    job, chosen = compared.job, set(selected)
    of_ranks = [row for row in compared.by_gain if row["rank"] in chosen]
    notes |= parallelism.unread_ranks(trace)
    notes |= job.notes()
    tables: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "rank": lambda: of_ranks,
        "operation": lambda: job.operation_rows(selected),
        "dp_rank": lambda: _part_rows("dp_rank", job.slowdowns.by_dp_rank),
        "stage": lambda: _part_rows("stage", job.slowdowns.by_stage),
        "type": lambda: _part_rows("type", job.slowdowns.by_type),
        "iteration": job.step_rows,
        "link": lambda: compared.links,
    }
    table = pa.Table.from_pylist(tables[by](), schema)
    summary = _summary(compared, of_ranks)
    return Result("stragglers", table, summary, conventions, notes=notes)


def _conventions(threshold: float) -> dict[str, str]:
    return {
        "operations": "kernels, fills and copies; by link transfers of communication, from the last "
        "member's start on. Host work and waits move with the work they wait for",
        "counterparts of an operation": "the same operation of the same step on other ranks, see counterparts",
        "ideal": "of a type of operations (their names without trailing numbers) the mean, of transfers "
        "the median, over all ranks and steps; by position in the step where that explains most of "
        "the variance, as of a kernel of several sizes",
        "delays": "caused: behind the work that is waited for, as the host was later; unexplained: behind "
        "all that is known to be waited for. Gains, before_ns and even_ns are without the latter",
        "steps": "where it is recorded what launched work the job is re-timed as one, else each step from its "
        "start on",
        "median": "of an even number the mean of both",
        "slow": f"at {threshold:g} times the median of the other ranks or more; persistent: in "
        f"{PERSISTENT_SHARE:.0%} of the steps or more, of at least two. A straggler is named if without "
        f"it the job gains {MIN_GAIN_SHARE:.1%} and more than clocks are uncertain, and if others waited "
        "for it that long in collectives",
        "gains": f"of the {MAX_REPLAYS} with the largest excess, null for the rest; they do not add up. "
        "gain_share may exceed 100 %: gain_ns is against the median of the other ranks, the ideal of a type of "
        "operations is the mean over all, the late rank included, and takes longer",
        "links": "all work of steps counts, whether its launch is recorded or not",
        "memset": "count as operations and in compute_ns, but not in kernel_time_ns",
        "copies": "copies by kernels of the runtime (__amd_rocclr_*) count as kernels",
    }


def _part_rows(name: str, parts: list[OperationGroup]) -> list[dict[str, Any]]:
    return [
        {name: part.key, "alone_slowdown_factor": part.alone_factor, "gain_ns": part.gain_ns}
        for part in parts
    ]


_FACTOR, _TIME = pa.float64(), pa.int64()
_PART = {"alone_slowdown_factor": _FACTOR, "gain_ns": _TIME}
_COLUMNS: dict[str, dict[str, pa.DataType]] = {
    "rank": {
        "rank": pa.int32(), "dp_rank": pa.int32(), "stage": pa.int32(), "cause": pa.string(),
        "kernel_time_ns": _TIME, "compute_ns": _TIME, "slowdown_factor": _FACTOR,
        "excess_ns": _TIME, "slower_share": _FACTOR, "gain_ns": _TIME, "gain_share": _FACTOR,
        "alone_slowdown_factor": _FACTOR, "host_late_ns": _TIME, "host_gain_ns": _TIME,
        "delay_gain_ns": _TIME, "caused_delay_ns": _TIME, "unexplained_delay_ns": _TIME,
        "times_last": pa.int64(), "caused_wait_ns": _TIME, "steps": pa.int32(),
        "steps_slow": pa.int32(), "persistent": pa.bool_(),
    },
    "operation": {
        "rank": pa.int32(), "operation": pa.string(), "operations": pa.int64(), "time_ns": _TIME,
        "slowdown_factor": _FACTOR, "excess_ns": _TIME, "slower_share": _FACTOR, "gain_ns": _TIME,
        "even_gain_ns": _TIME,
    },
    "dp_rank": {"dp_rank": pa.int32(), **_PART},
    "stage": {"stage": pa.int32(), **_PART},
    "type": {"type": pa.string(), **_PART},
    "iteration": {
        "iteration": pa.int32(), "measured_ns": _TIME, "before_ns": _TIME, "even_ns": _TIME,
        "job_slowdown_factor": _FACTOR, "job_slowdown_with_delays_factor": _FACTOR,
    },
    "link": {
        "ranks": pa.string(), "instances": pa.int64(), "transfer_ns": _TIME,
        "slowdown_factor": _FACTOR, "excess_ns": _TIME, "gain_ns": _TIME,
    },
}  # fmt: skip
"""Columns of the rows, by `by`."""


_FIGURES = (
    "ranks", "slow_rank", "slowdown_factor", "persistent", "rank_gain_ns", "slow_ranks",
    "slow_ranks_gain_ns", "slow_link",
    "link_slowdown_factor", "link_gain_ns", "slow_stage", "cause", "measured_ns", "before_ns",
    "even_ns", "job_slowdown_factor", "job_slowdown_with_delays_factor", "slowest_workers_share",
    "last_stage_share", "caused_delay_ns", "unexplained_delay_ns",
)  # fmt: skip
"""Figures of the summary."""


def _summary(compared: Comparison | None, rows: list[dict[str, Any]]) -> dict[str, Any]:
    if compared is None:
        return dict.fromkeys(_FIGURES) | {"ranks": 0, "slow_rank": _NO_RANK}
    slow = compared.job.slowdowns
    straggler = rows[0] if rows and rows[0]["cause"] else None
    gain = gain_of_cause(straggler) if straggler else None
    link, several = compared.slow_link, compared.slow_ranks
    causes = [(gain, straggler["cause"])] if straggler and gain is not None else []
    causes += [(link["gain_ns"], "link")] if link else []
    figures = {
        "ranks": len(rows),
        "slow_rank": straggler["rank"] if straggler else _NO_RANK,
        "slowdown_factor": straggler["slowdown_factor"] if straggler else 1.0,
        "persistent": straggler["persistent"] if straggler else None,
        "rank_gain_ns": gain,
        "slow_ranks": ",".join(map(str, several[0])) if several else None,
        "slow_ranks_gain_ns": several[1] if several else None,
        "slow_link": link["ranks"] if link else None,
        "link_slowdown_factor": link["slowdown_factor"] if link else None,
        "link_gain_ns": link["gain_ns"] if link else None,
        "slow_stage": compared.slow_stage,
        "cause": max(causes)[1] if causes else None,
        "measured_ns": int(compared.job.replay.measured_ns.sum()),
        "before_ns": slow.before_ns,
        "even_ns": slow.even_ns,
        "job_slowdown_factor": slow.factor,
        "job_slowdown_with_delays_factor": slow.factor_with_delays,
        "slowest_workers_share": slow.slowest_share,
        "last_stage_share": slow.last_stage_share,
        "caused_delay_ns": sum(row["caused_delay_ns"] for row in rows),
        "unexplained_delay_ns": sum(row["unexplained_delay_ns"] for row in rows),
    }
    return {name: figures[name] for name in _FIGURES}

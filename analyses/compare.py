"""Compare two jobs, matched by operation, layer, phase or kernel, to show what got slower."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import number_ranges
from chopper_interop.analyses.methods import distributions, options
from chopper_interop.analyses.methods.activity import (
    grouping,
    pieces,
    selected_work,
    step_times,
    warm_up,
    windows,
)
from chopper_interop.arrays import Array, arrow, gather, name_stems, statistics
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas import results
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.selected_work import SelectedWork
    from chopper_interop.analyses.methods.distributions import Distributions

__all__ = ["compare"]

_BOTH, _NEW, _GONE = "both", "new", "gone"
_MIN_COUNT = 5
"""Fewest instances whose scatter is judged. Chosen: fewer give no usable median absolute deviation."""
_MAX_COUNT_DIFFERENCE = 0.1
"""Largest relative difference of counts at which groups pass for the same kernels. Chosen: large
enough for steps that differ by a few kernels, too small for another number of layers."""
_SIGMAS = 3.0
"""Standard errors beyond which a difference is significant. Chosen: 0.3 % of equal groups exceed it,
which keeps false alarms rare among hundreds of groups."""
_MEDIAN_ERROR = (np.pi / 2) ** 0.5
"""Standard error of a normal sample's median by that of its mean."""
_WITHOUT = {
    (False, True): "this job has no values of it",
    (True, False): "the job compared with has no values of it",
    (False, False): "neither job has values of it",
}
"""Why a grain is left out, by which of the jobs know it."""
_CONVENTIONS = {
    "links": selected_work.LINKS,
    "memset": "fills count as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "sign": "differences are this job minus the one it is compared with: positive is slower now",
    "percentiles": f"medians are of single instances: {distributions.PERCENTILE_DEFINITION}",
    "is_significant": "true if medians differ by more than median_uncertainty_ns: "
    f"{_SIGMAS:g} standard errors by the scaled median absolute deviations of both, for independent "
    "instances, plus the resolution of their times. Null if one of them has fewer than "
    f"{_MIN_COUNT} instances, and where counts by unit differ by more than "
    f"{_MAX_COUNT_DIFFERENCE:.0%}, as these are not the same kernels then. Groups "
    "that mix kernels of several sizes have a wide uncertainty",
    "step": step_times.DEFINITION,
    "times": "busy, exposed communication and idle are means over the same windows, by interval "
    "union; of work that reaches beyond a window, the part within. Each rank counts with the job's step, or without steps "
    "all of the job's time",
}


def compare(  # noqa: PLR0913
    trace: Trace,
    *,
    against: Trace | None = None,
    by: str = "phase,layer,operation,class",
    names: str = "exact",
    steps: str = "",
    against_steps: str = "",
    ranks: str = "",
) -> Result:
    """Compare a job with another one: groups of GPU work that got slower, faster, new or gone.

    Parameters
    ----------
    trace
        The job in question.
    against
        The job to compare with, the base of ratios.
    by
        Groups that are matched: names of `grouping.GRAINS` separated by commas, compared as texts
        and numbers. Grains without values in one of the jobs are left out of both; where
        `operation` is one of them, `kernel` replaces it.
    names
        How kernels are distinguished where `by` has them: "exact" by name, "stem" by name without
        arguments of templates, parameters, tile sizes and trailing numbers.
    steps
        Training steps to include, "10", "10-12", "each" for all, "" for all but a warm-up. If one of the jobs has
        none, all of both jobs counts.
    against_steps
        Training steps of the other job, if it numbers them differently.
    ranks
        Ranks to include in both jobs, "" for all of each.

    Returns
    -------
    Result
        One row a group, the largest slow-down first:

        - `status`: "both", "new" (only in this job) or "gone" (only in the other)
        - for this job, and with `_against` for the other: `count`, `total_ns`, `unit_ns`, the total
          by rank and step (by rank if there are no steps), and `median_ns` of single instances
        - `delta_ns` = `unit_ns` - `unit_against_ns`, which sums to the difference of the jobs' GPU
          time over all rows; `delta_share` of the other job's GPU time; `ratio` of the two
        - `median_delta_ns`, plus or minus `median_uncertainty_ns`, and `is_significant`: true if
          the difference is larger than that

        The summary has for both jobs the mean step and, by rank and step, GPU time, busy, exposed communication and idle time. It also has
        the number of groups, and the share of GPU time whose groups are in both jobs.

    Notes
    -----
    Standard error of a median: sqrt(pi / 2) * 1.4826 MAD / sqrt(n), as of a normal distribution.
    """
    if isinstance(against, str):
        raise UsageError("against must be a trace", hint="on the command line: --against PATH")
    options.check_choice("names", names, ("exact", "stem"))
    windows.check_steps_and_ranks(against_steps)
    grains = list(grouping.parse_grains(by))
    if against is None:
        hint = {"no rows": "give a second job with --against"}
        empty = pa.table({"status": pa.array([], pa.string())})
        return Result("compare", empty, {}, _CONVENTIONS, notes=hint)
    in_steps = bool(steps or against_steps) or _have_steps(trace, against, ranks)
    sides = [
        _Side(
            job,
            selected_work.select_work(
                job, _counted(job, requested, ranks) if in_steps else "", ranks
            ),
            ranks,
            in_steps,
        )
        for job, requested in ((trace, steps), (against, against_steps or steps))
    ]
    missing = [n for n in grains if n in grouping.ANNOTATED and not all(s.knows(n) for s in sides)]
    used = [n for n in grains if n not in missing]
    if "operation" in missing and "kernel" not in used:
        used.append("kernel")
    keys, codes = _matched(sides, used, names)
    current, base = (
        distributions.group_distributions(code, side.dur, keys.num_rows)
        for code, side in zip(codes, sides, strict=True)
    )
    columns = _columns(sides, current, base)
    order = np.argsort(-columns["delta_ns"], kind="stable")
    arrays = {name: arrow.nan_to_null(values) for name, values in columns.items()}
    table = pa.table({**{n: keys[n] for n in keys.column_names}, **arrays})
    notes = _notes(sides, steps, in_steps=in_steps, missing=missing, names=names, used=used)
    summary = _summary(sides, current, base, columns)
    if in_steps:
        requests = ((trace, "this", steps), (against, "the other", against_steps or steps))
        texts = [
            f"{number_ranges.named('step', first)} of {name} job"
            for job, name, requested in requests
            if not requested and (first := warm_up.steps(job))
        ]
        notes |= (
            {warm_up.NOTE: f"without {', '.join(texts)}; --steps each has all"} if texts else {}
        )
    notes["unchanged"] = _unchanged_text(columns)
    return Result("compare", arrow.take(table, order), summary, _CONVENTIONS, notes=notes)


def _counted(job: Trace, requested: str, ranks: str) -> str:
    """Steps that count: without any that were requested all but a warm-up."""
    return requested or warm_up.later_steps(job, ranks) or "each"


@dataclass(frozen=True)
class _Side:
    """One of the two jobs, with its work that is compared."""

    trace: Trace
    work: SelectedWork
    ranks: str
    in_steps: bool

    @cached_property
    def dur(self) -> Array:
        return self.trace.array("dur")[self.work.rows]

    @cached_property
    def windows(self) -> list[windows.Window]:
        """Windows of ranks with GPU work: their steps, or all of the rank without steps."""
        busy_ranks = set(np.unique(self.trace.array("rank")[self.work.rows]).tolist())
        return [w for w in self.work.windows if w.rank in busy_ranks]

    @cached_property
    def units(self) -> int:
        return max(len(self.windows), 1)

    def knows(self, grain: str) -> bool:
        """True if any work that is compared has a value of the grain."""
        return bool(self.trace.known(grain)[self.work.rows].any())

    @cached_property
    def resolution_ns(self) -> int:
        """Return the step in which durations are recorded: 1 µs if all are whole microseconds."""
        return 1000 if len(self.dur) and not (self.dur % 1000).any() else 1

    @cached_property
    def step_ns(self) -> float | None:
        """Mean time of a step of the job."""
        if not self.in_steps or not self.work.windows:
            return None
        chosen = ",".join(str(n) for n in sorted({w.iteration for w in self.work.windows}))
        steps = windows.job_windows(self.trace, chosen, self.ranks)
        return float(np.mean([step.span_ns for step in steps]))

    @cached_property
    def times(self) -> dict[str, float | None]:
        """Busy, exposed communication and idle time of a rank in a window, mean over windows."""
        if not self.windows:
            return dict.fromkeys(("busy", "exposed_comm", "idle"))
        of_job = windows.windows_with_job_time(self.trace, self.windows, self.ranks)
        work = pieces.pieces_in_windows(self.trace, of_job)
        times = pieces.class_times(work.patterns(work.window, len(of_job)))
        busy, exposed = (int(times[name].sum()) for name in ("busy", "exposed_comm"))
        idle = sum(window.span_ns for window in of_job) - busy
        sums = {"busy": busy, "exposed_comm": exposed, "idle": idle}
        return {name: total / self.units for name, total in sums.items()}


def _have_steps(trace: Trace, against: Trace, ranks: str) -> bool:
    """True if both jobs have training steps on these ranks."""
    return all(windows.has_steps(job, ranks) for job in (trace, against))


def _matched(sides: list[_Side], used: list[str], names: str) -> tuple[pa.Table, list[Array]]:
    """Return the groups of both jobs, and for each job the group of each of its instances."""
    groups = [grouping.group_nodes(s.trace, s.work.rows, ",".join(used) or "job") for s in sides]
    if not used:
        row_count = int(any(len(g) for g in groups))
        return pa.table({"job": [sides[0].trace.meta.job] * row_count}), [g.code for g in groups]
    keys = pa.concat_tables([g.keys for g in groups]).combine_chunks()
    if names == "stem" and "kernel" in used:
        stem = name_stems.kernel_stems(arrow.single_chunk(keys["kernel"]))
        keys = keys.set_column(used.index("kernel"), "kernel", stem)
    # number the keys of both jobs together, so that equal keys get the same number in both
    codes = [arrow.to_numpy(arrow.single_chunk(keys[n]).dictionary_encode(), -1) for n in used]
    first, code = gather.distinct(*codes)
    split = len(groups[0])
    codes_of_sides = [code[:split][groups[0].code], code[split:][groups[1].code]]
    return arrow.take(keys, first), codes_of_sides


def _columns(sides: list[_Side], current: Distributions, base: Distributions) -> dict[str, Any]:
    unit_ns, base_ns = (d.total / s.units for d, s in zip((current, base), sides, strict=True))
    in_current, in_base = current.count > 0, base.count > 0
    both = in_current & in_base
    medians = [np.where(d.count, d.median, 0) for d in (current, base)]
    status = np.where(both, 0, np.where(in_current, 1, 2))
    median_delta = medians[0] - medians[1]
    uncertainty = _uncertainty(sides, current, base)
    enough = (current.count >= _MIN_COUNT) & (base.count >= _MIN_COUNT)
    counts = [d.count / s.units for d, s in zip((current, base), sides, strict=True)]
    enough &= np.abs(counts[0] - counts[1]) <= _MAX_COUNT_DIFFERENCE * counts[1]
    return {
        "status": arrow.dictionary(status, (_BOTH, _NEW, _GONE)).cast(pa.string()),
        "count": current.count,
        "count_against": base.count,
        "total_ns": current.total,
        "total_against_ns": base.total,
        "unit_ns": unit_ns,
        "unit_against_ns": base_ns,
        "delta_ns": unit_ns - base_ns,
        "delta_share": distributions.ratio_or_nan(unit_ns - base_ns, base_ns.sum()),
        "ratio": np.where(both, distributions.ratio_or_nan(unit_ns, base_ns), np.nan),
        "median_ns": np.ma.masked_where(~in_current, medians[0]),
        "median_against_ns": np.ma.masked_where(~in_base, medians[1]),
        "median_delta_ns": np.ma.masked_where(~both, median_delta),
        "median_uncertainty_ns": np.where(enough, uncertainty, np.nan),
        "is_significant": np.ma.masked_where(~enough, np.abs(median_delta) > uncertainty),
    }


def _uncertainty(sides: list[_Side], current: Distributions, base: Distributions) -> Array:
    """Return the difference by which the medians of two groups may differ by chance."""
    variance = np.zeros(len(current.count))
    for side_figures in (current, base):
        sigma = _MEDIAN_ERROR * statistics.MAD_TO_SIGMA * side_figures.mad
        variance += np.square(sigma) / np.maximum(side_figures.count, 1)
    return _SIGMAS * np.sqrt(variance) + sum(s.resolution_ns for s in sides) / 2


def _summary(
    sides: list[_Side], current: Distributions, base: Distributions, columns: dict[str, Any]
) -> dict[str, Any]:
    both = (current.count > 0) & (base.count > 0)
    summary: dict[str, Any] = {}
    for side, figures, suffix in ((sides[0], current, ""), (sides[1], base, "_against")):
        total = int(figures.total.sum())
        matched = int(figures.total[both].sum())
        summary |= {
            f"step{suffix}_ns": side.step_ns,
            f"gpu{suffix}_ns": total / side.units,
            **{f"{name}{suffix}_ns": time for name, time in side.times.items()},
            f"units{suffix}": len(side.windows),
            f"matched{suffix}_share": matched / total if total else None,
            f"left_out{suffix}": side.work.left_out,
        }
    significant = np.ma.filled(columns["is_significant"], fill_value=False)
    median_delta = np.ma.filled(columns["median_delta_ns"], 0)
    return summary | {
        "delta_ns": summary["gpu_ns"] - summary["gpu_against_ns"],
        "groups": len(both),
        "groups_both": int(np.count_nonzero(both)),
        "groups_new": int(np.count_nonzero(current.count[~both])),
        "groups_gone": int(np.count_nonzero(base.count[~both])),
        "significantly_slower": int(np.count_nonzero(significant & (median_delta > 0))),
        "significantly_faster": int(np.count_nonzero(significant & (median_delta < 0))),
    }


def _unchanged_text(columns: dict[str, Any]) -> str:
    """Count the groups that differ in none of their `CHANGES`."""
    changed = [
        np.ma.filled(np.ma.asarray(columns[name], dtype=float), np.nan) != 0
        for name in results.CHANGES["compare"]
    ]
    groups, unchanged = len(changed[0]), int(np.count_nonzero(~np.any(changed, axis=0)))
    if groups and unchanged == groups:
        return f"nothing changed: all {groups:,} groups take the same time in both jobs"
    return f"{unchanged:,} of {groups:,} groups take the same time in both jobs"


def _notes(
    sides: list[_Side],
    steps: str,
    *,
    in_steps: bool,
    missing: list[str],
    names: str,
    used: list[str],
) -> dict[str, str]:
    """Say which windows, units and groups this comparison uses."""
    notes = {
        "window": selected_work.describe((steps or "each") if in_steps else ""),
        "unit": "a rank in a step" if in_steps else "a rank: not both jobs have training steps",
        "left out": f"{sides[0].work.left_out} and {sides[1].work.left_out} instances of GPU work "
        "outside of these steps",
    }
    if missing:
        instead = ", kernel instead" if "kernel" in used else ""
        this, other = sides
        without = (f"{name} ({_WITHOUT[this.knows(name), other.knows(name)]})" for name in missing)
        notes["rows"] = f"without {', '.join(without)}{instead}"
    if "kernel" in used:
        notes["names"] = (
            name_stems.STEM_DEFINITION
            if names == "stem"
            else "kernels are distinguished by their whole name"
        )
    return notes

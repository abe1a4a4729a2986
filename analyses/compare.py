"""What got slower: two jobs side by side, matched by operation, layer, phase or kernel."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, instances, windows
from chopper_interop.columns import arrow, distributions, gather, intervals, stems
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from chopper_interop.activity.instances import Instances
    from chopper_interop.columns.distributions import Distributions
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

__all__ = ["compare"]

_FROM_NAMES = ("job", "rank", "stream", "class", "kernel")
"""Grains that every trace has."""
_BOTH, _NEW, _GONE = "both", "new", "gone"
_LEAST_COUNT = 5
_LIKE = 0.1
_SIGMAS = 3.0
_OF_MEDIAN = (np.pi / 2) ** 0.5
"""Standard error of a normal sample's median by that of its mean."""
_CONVENTIONS = {
    "links": instances.LINKS,
    "memset": "fills count as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "sign": "differences are this job minus the one it is compared with: positive is slower now",
    "percentiles": f"medians are of single instances: {distributions.PERCENTILES}",
    "sure": f"whether medians differ by more than median_uncertainty_ns: {_SIGMAS:g} standard errors "
    "by the scaled median absolute deviations of both, instances taken as independent, and the "
    f"resolution of their times; null below {_LEAST_COUNT} instances in one of them, and where "
    f"counts by unit differ by more than {_LIKE:.0%}, as then these are not the same kernels. Groups "
    "that mix kernels of several sizes have a wide uncertainty",
    "times": "busy, exposed communication and idle are means over the same windows, by interval "
    "union; of work that reaches beyond a window, the part within",
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
    """Compare a job with another one: which groups of GPU work got slower, faster, new or gone.

    Parameters
    ----------
    trace
        The job that is asked about.
    against
        The job that it is compared with, the base of ratios.
    by
        What is matched: names of `grouping.GRAINS` separated by commas, by their texts and numbers.
        Those of which one of the jobs knows nothing are left out of both; where `operation` is one
        of them, `kernel` comes instead.
    names
        How kernels are told apart where `by` has them: "exact" by name, "stem" by name without
        arguments of templates, parameters and tile sizes.
    steps
        Training steps that count, "10", "10-12", "" or "each" for all. Where one of the jobs has
        none, all of both jobs counts.
    against_steps
        Those of the other job, if it numbers them otherwise.
    ranks
        Ranks that count in both jobs, "" for all of each.

    Returns
    -------
    Result
        One row a group, what got slower by most first. `status`: "both", or "new" or "gone" if only
        this job or only the other has it. For this job, and with `_against` for the other: `count`,
        `total_ns`, and `unit_ns`, the total by rank and step (by rank where there are no steps);
        `median_ns` of single instances. `delta_ns` = `unit_ns` - `unit_against_ns`, whose sum over
        all rows is the difference of the jobs' GPU time; `delta_share` of the other job's GPU time;
        `ratio` of the two; `median_delta_ns`, plus or minus `median_uncertainty_ns`, and `sure`,
        whether it is more than that. The summary has, of both, the median step (from the first
        rank's start to the last rank's end), and by rank and step GPU time, busy, exposed
        communication and idle; how many groups and which share of GPU time found a partner.

    Notes
    -----
    Standard error of a median: sqrt(pi / 2) * 1.4826 MAD / sqrt(n), as of a normal distribution.
    """
    if isinstance(against, str):
        raise UsageError("against must be a trace", hint="on the command line: --against PATH")
    if names not in {"exact", "stem"}:
        raise UsageError(f"names={names}: there are exact, stem")
    grains = list(grouping.grains(by))
    if against is None:
        nothing = {"no rows": "give a second job with --against"}
        none = pa.table({"status": pa.array([], pa.string())})
        return Result("compare", none, {}, _CONVENTIONS, notes=nothing)
    in_steps = bool(steps or against_steps) or _have_steps(trace, against, ranks)
    sides = [
        _Side(job, instances.chosen(job, (chosen or "each") if in_steps else "", ranks), in_steps)
        for job, chosen in ((trace, steps), (against, against_steps or steps))
    ]
    lacking = [n for n in grains if n not in _FROM_NAMES and not all(s.knows(n) for s in sides)]
    used = [n for n in grains if n not in lacking]
    if "operation" in lacking and "kernel" not in used:
        used.append("kernel")
    keys, codes = _matched(sides, used, names)
    here, there = (
        distributions.of(code, side.dur, keys.num_rows)
        for code, side in zip(codes, sides, strict=True)
    )
    columns = _columns(sides, here, there)
    order = np.argsort(-columns["delta_ns"], kind="stable")
    made = {name: arrow.known_only(values) for name, values in columns.items()}
    table = pa.table({**{n: keys[n] for n in keys.column_names}, **made})
    notes = _said(sides, steps, in_steps=in_steps, lacking=lacking, names=names, used=used)
    summary = _summary(sides, here, there, columns)
    return Result("compare", arrow.take(table, order), summary, _CONVENTIONS, notes=notes)


@dataclass(frozen=True)
class _Side:
    """One of the two jobs, and what of it is compared."""

    trace: Trace
    found: Instances
    in_steps: bool

    @cached_property
    def dur(self) -> Array:
        return self.trace.array("dur")[self.found.rows]

    @cached_property
    def windows(self) -> list[windows.Window]:
        """Steps of ranks, or whole ranks, of ranks with GPU work."""
        at_work = set(np.unique(self.trace.array("rank")[self.found.rows]).tolist())
        return [w for w in self.found.windows if w.rank in at_work]

    @cached_property
    def units(self) -> int:
        return max(len(self.windows), 1)

    def knows(self, grain: str) -> bool:
        """Whether anything is known of a grain."""
        if grain not in self.trace.nodes.column_names:
            return False
        return bool(arrow.known(self.trace.nodes[grain])[self.found.rows].any())

    @cached_property
    def resolution_ns(self) -> int:
        """Durations are whole multiples of this."""
        return 1000 if len(self.dur) and not (self.dur % 1000).any() else 1

    @cached_property
    def step_ns(self) -> float | None:
        """Median over steps of the time from the first rank's start to the last rank's end."""
        if not self.in_steps or not self.found.windows:
            return None
        return float(np.median([w.span_ns for w in windows.joined(self.found.windows)]))

    @cached_property
    def times(self) -> dict[str, float | None]:
        """Busy, exposed communication and idle of a rank in a window, mean over windows."""
        if not self.windows:
            return dict.fromkeys(("busy", "exposed_comm", "idle"))
        busy, exposed, span = 0, 0, 0
        for rank in sorted({w.rank for w in self.windows}):
            mine = [w for w in self.windows if w.rank == rank]
            start, end = (
                np.array(t) for t in zip(*((w.start_ns, w.end_ns) for w in mine), strict=True)
            )
            rows = self.trace.rank_rows[rank]
            busy += _within(self.trace, rows, start, end, *GPU_WORK)
            compute = (Kind.KERNEL, Kind.MEMSET)
            exposed += _within(self.trace, rows, start, end, *compute, Kind.COMM)
            exposed -= _within(self.trace, rows, start, end, *compute)
            span += int((end - start).sum())
        sums = {"busy": busy, "exposed_comm": exposed, "idle": span - busy}
        return {name: total / self.units for name, total in sums.items()}


def _within(trace: Trace, rows: slice, start: Array, end: Array, *kinds: Kind) -> int:
    """Time in which work of these kinds runs within some windows."""
    which = is_any(trace.array("kind")[rows], kinds)
    ts = trace.array("ts")[rows][which]
    begins, ends = intervals.union(ts, ts + trace.array("dur")[rows][which])
    upto = np.concatenate([[0], np.cumsum(ends - begins)])

    def before(moment: Array) -> Array:
        place = np.searchsorted(begins, moment)
        last = ends[place - 1] if len(ends) else np.zeros(len(moment), np.int64)
        over = np.where(place > 0, np.maximum(last - moment, 0), 0)
        return upto[place] - over

    return int((before(end) - before(start)).sum())


def _have_steps(trace: Trace, against: Trace, ranks: str) -> bool:
    """Whether both jobs have training steps on these ranks."""
    return all(
        any(w.rank in chosen for w in windows.marked(job))
        for job in (trace, against)
        for chosen in (windows.chosen_ranks(job, ranks),)
    )


def _matched(sides: list[_Side], used: list[str], names: str) -> tuple[pa.Table, list[Array]]:
    """Groups of both jobs, and the group of each instance of each."""
    groups = [grouping.of(s.trace, s.found.rows, ",".join(used) or "job") for s in sides]
    if not used:
        some = int(any(len(g) for g in groups))
        return pa.table({"job": [sides[0].trace.meta.job] * some}), [g.code for g in groups]
    keys = pa.concat_tables([g.keys for g in groups]).combine_chunks()
    if names == "stem" and "kernel" in used:
        stem = stems.of(arrow.flat(keys["kernel"]))
        keys = keys.set_column(used.index("kernel"), "kernel", stem)
    codes = [arrow.numbers(arrow.flat(keys[n]).dictionary_encode(), -1) for n in used]
    first, code = gather.distinct(*codes)
    split = len(groups[0])
    each = [code[:split][groups[0].code], code[split:][groups[1].code]]
    return arrow.take(keys, first), each


def _columns(sides: list[_Side], here: Distributions, there: Distributions) -> dict[str, Any]:
    unit, base = (d.total / s.units for d, s in zip((here, there), sides, strict=True))
    some, other = here.count > 0, there.count > 0
    both = some & other
    medians = [np.where(d.count, d.median, 0) for d in (here, there)]
    status = np.where(both, 0, np.where(some, 1, 2))
    apart = medians[0] - medians[1]
    uncertainty = _uncertainty(sides, here, there)
    enough = (here.count >= _LEAST_COUNT) & (there.count >= _LEAST_COUNT)
    counts = [d.count / s.units for d, s in zip((here, there), sides, strict=True)]
    enough &= np.abs(counts[0] - counts[1]) <= _LIKE * counts[1]
    return {
        "status": arrow.dictionary(status, (_BOTH, _NEW, _GONE)).cast(pa.string()),
        "count": here.count,
        "count_against": there.count,
        "total_ns": here.total,
        "total_against_ns": there.total,
        "unit_ns": unit,
        "unit_against_ns": base,
        "delta_ns": unit - base,
        "delta_share": distributions.ratio(unit - base, base.sum()),
        "ratio": np.where(both, distributions.ratio(unit, base), np.nan),
        "median_ns": np.ma.masked_where(~some, medians[0]),
        "median_against_ns": np.ma.masked_where(~other, medians[1]),
        "median_delta_ns": np.ma.masked_where(~both, apart),
        "median_uncertainty_ns": np.where(enough, uncertainty, np.nan),
        "sure": np.ma.masked_where(~enough, np.abs(apart) > uncertainty),
    }


def _uncertainty(sides: list[_Side], here: Distributions, there: Distributions) -> Array:
    """By how much the medians of two groups may differ by chance."""
    variance = np.zeros(len(here.count))
    for found in (here, there):
        sigma = _OF_MEDIAN * distributions.MAD_TO_SIGMA * found.mad
        variance += np.square(sigma) / np.maximum(found.count, 1)
    return _SIGMAS * np.sqrt(variance) + sum(s.resolution_ns for s in sides) / 2


def _summary(
    sides: list[_Side], here: Distributions, there: Distributions, columns: dict[str, Any]
) -> dict[str, Any]:
    both = (here.count > 0) & (there.count > 0)
    summary: dict[str, Any] = {}
    for side, found, suffix in ((sides[0], here, ""), (sides[1], there, "_against")):
        total = int(found.total.sum())
        matched = int(found.total[both].sum())
        summary |= {
            f"step{suffix}_ns": side.step_ns,
            f"gpu{suffix}_ns": total / side.units,
            **{f"{name}{suffix}_ns": time for name, time in side.times.items()},
            f"units{suffix}": len(side.windows),
            f"matched{suffix}_share": matched / total if total else None,
            f"left_out{suffix}": side.found.left_out,
        }
    sure = np.ma.filled(columns["sure"], fill_value=False)
    apart = np.ma.filled(columns["median_delta_ns"], 0)
    return summary | {
        "delta_ns": summary["gpu_ns"] - summary["gpu_against_ns"],
        "groups": len(both),
        "groups_both": int(np.count_nonzero(both)),
        "groups_new": int(np.count_nonzero(here.count[~both])),
        "groups_gone": int(np.count_nonzero(there.count[~both])),
        "surely_slower": int(np.count_nonzero(sure & (apart > 0))),
        "surely_faster": int(np.count_nonzero(sure & (apart < 0))),
    }


def _said(
    sides: list[_Side],
    steps: str,
    *,
    in_steps: bool,
    lacking: list[str],
    names: str,
    used: list[str],
) -> dict[str, str]:
    """What is to be known of this comparison."""
    said = {
        "window": instances.described((steps or "each") if in_steps else ""),
        "unit": "a rank in a step" if in_steps else "a rank: not both jobs have training steps",
        "left out": f"{sides[0].found.left_out} and {sides[1].found.left_out} instances of GPU work "
        "outside of these steps",
    }
    if lacking:
        instead = ", kernel instead" if "kernel" in used else ""
        said["rows"] = f"without {', '.join(lacking)}, of which one job knows nothing{instead}"
    if "kernel" in used:
        said["names"] = (
            stems.SAID if names == "stem" else "kernels are told apart by their whole name"
        )
    return said

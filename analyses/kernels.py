"""Statistics of kernels, operations, layers, …: durations, spread, rates and outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import distributions
from chopper_interop.analyses.methods.activity import grouping, selected_work
from chopper_interop.analyses.methods.peers import charllm_kernels
from chopper_interop.analyses.methods.peers import kernels as peers_kernels
from chopper_interop.arrays import Array, arrow, gather, statistics
from chopper_interop.arrays.compiled import jit
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.grouping import Groups

    Columns = dict[str, Any]

__all__ = ["kernels"]

_BY = "class,kernel"
_PERCENTILES = {"p5": 5, "p25": 25, "median": 50, "p75": 75, "p95": 95, "p99": 99}
_MIN_OUTLIER_SHARE, _MIN_OUTLIER_NS = 0.05, 1000
"""An outlier exceeds the median by this share and time at least, however even its group is.

1 us is the resolution of timestamps in many traces. Chosen: 5 %, so that a group without any spread,
whose scaled MAD is 0, does not report noise; smaller slow-downs of such groups are not reported.
"""
_RATES = {
    "tflop_per_s": ("flops", 1e3),
    "mem_gbps": ("mem_bytes", 1.0),
    "tflop_per_s_counted": ("flops_counted", 1e3),
    "mem_counted_gbps": ("mem_bytes_counted", 1.0),
}
"""By column of a rate: column of the work, and the unit in work per nanosecond."""
_TIME_MEANS = ("gfxclk_mhz", "gfxclk_counted_mhz", "power_w")
_CONVENTIONS = {
    "links": selected_work.LINKS,
    "memset": "fills count as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "percentiles": f"{distributions.PERCENTILE_DEFINITION}; std_ns is the population standard deviation "
    "(divided by the count)",
    "busy": "covered_ns is the union of a group's intervals on each GPU, summed over GPUs; busy_share is "
    "its share of the union of all counted work: the shares of groups that overlap sum to more than 1",
    "rates": "work divided by time, over the instances whose work is known: from shapes (flops, "
    "mem_bytes) or, as _counted, from counters. Clocks and power are means over time of the "
    "instances with known values; energy_j is the sum over energy_known instances",
    "spread": "rank_spread_ratio is the largest median of a rank, divided by the median of all ranks' medians",
}


def kernels(  # noqa: PLR0913
    trace: Trace,
    *,
    by: str = _BY,
    steps: str = "",
    ranks: str = "",
    outlier_mads: float = 5.0,
    compat: str = "",
    pp: int = 1,
) -> Result:
    """Durations, rates and outliers of GPU work, by kernel, operation, layer or other groups.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        Columns that identify a row: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps that count: "each", "10", "10-12"; "" for all of the trace.
    ranks
        Ranks that count: "0,4-7"; "" for all.
    outlier_mads
        An instance is an outlier if it is longer than its group's median by more than this many scaled
        median absolute deviations, by 5 % and by 1 us. The default, 5, is chosen: fewer report
        the tails of ordinary distributions.
    compat
        "hta": time by type of kernel as Holistic Trace Analysis defines it, in its columns and
        microseconds. "charllm": occurrences and time by CharLLM-PPT's categories of names (`by`:
        "category", its default, "rank,category", "kernel", "rank,kernel").
    pp
        With compat="charllm", the degree of pipeline parallelism to divide by.

    Returns
    -------
    Result
        One row per group, the longest total first. `count` instances (kernels, collectives, copies,
        fills), their summed durations `total_ns`, its `share` of all GPU time, `covered_ns` in which at
        least one of them ran and its `busy_share` of the GPUs' busy time; `mean_ns`, `std_ns`,
        `min_ns`, `p5_ns`, `p25_ns`, `median_ns`, `p75_ns`, `p95_ns`, `p99_ns`, `max_ns` of their
        durations. `outliers` is the number of outliers, `outlier_excess_ns` the time by which they
        exceed the median; the longest instance is `worst_node` (row of `nodes`), with `worst_rank`
        and `worst_start_ns` (as ts). `rank_spread_ratio` and `slowest_rank` compare the ranks of
        groups on several ranks. `tflop_per_s`, `mem_gbps` (1e9 byte/s) and
        `intensity_flop_per_byte` are from shapes, the same with `_counted` from counters;
        `gfxclk_mhz` is from telemetry, `gfxclk_counted_mhz` from the counter run; `power_w`,
        `energy_j`. Unknown values are null. The summary has sums over all groups.

    Notes
    -----
    Scaled MAD: 1.4826 times the median absolute deviation from the median, which estimates the standard
    deviation of a normal distribution (Rousseeuw and Croux 1993). Groups that mix kernels of several
    sizes have a wide distribution and few outliers: use finer groups. An operation of several kernels
    has one instance per kernel.
    """
    if compat == "charllm":
        if steps:
            raise NoSuchDefinitionsError(
                "compat=charllm covers the whole trace", hint="leave steps out"
            )
        return charllm_kernels.kernels(trace, "category" if by == _BY else by, ranks, pp)
    if pp != 1:
        raise UsageError(
            f"pp={pp} applies only with compat=charllm", hint="by=rank,category shows each stage"
        )
    if compat:
        default = by == _BY and not steps
        return peers_kernels.kernels(trace, compat, ranks, default=default)
    if outlier_mads < 0 or not np.isfinite(outlier_mads):
        raise UsageError(f"outlier_mads={outlier_mads}: it must be a finite number >= 0")
    selected = selected_work.select_work(trace, steps, ranks)
    groups = grouping.group_nodes(trace, selected.rows, by)
    columns, summary = _columns(trace, selected.rows, groups, outlier_mads)
    order = np.argsort(-columns["total_ns"], kind="stable")
    figures = {name: arrow.nan_to_null(values) for name, values in columns.items()}
    table = pa.table({n: groups.keys[n] for n in groups.keys.column_names} | figures)
    notes = {
        "window": selected_work.describe(steps),
        "left out": f"{selected.left_out} instances of GPU work outside the selected steps",
    }
    if not len(selected.rows):
        notes = {"no rows": "no GPU work in the selected steps and ranks"} | notes
    conventions = {
        "outliers": f"longer than the median by {outlier_mads:g} scaled MADs, by "
        f"{_MIN_OUTLIER_SHARE:.0%} of the median and by {_MIN_OUTLIER_NS} ns",
    }
    summary |= {"left_out": selected.left_out}
    conventions |= _CONVENTIONS
    return Result("kernels", arrow.take(table, order), summary, conventions, notes=notes)


def _columns(
    trace: Trace, rows: Array, groups: Groups, outlier_mads: float
) -> tuple[Columns, dict[str, Any]]:
    """Return the columns of figures, masked or NaN where unknown, and the summary."""
    dur, n = trace.array("dur")[rows], len(groups)
    of_group = distributions.group_distributions(groups.code, dur, n)
    total = int(of_group.total.sum())
    covered = selected_work.covered_ns(trace, rows, groups.code, n)
    busy = int(selected_work.covered_ns(trace, rows, np.zeros(len(rows), np.int64), 1).sum())
    threshold = np.maximum(outlier_mads * statistics.MAD_TO_SIGMA * of_group.mad, _MIN_OUTLIER_NS)
    threshold = np.maximum(threshold, _MIN_OUTLIER_SHARE * of_group.median)
    beyond = of_group.values - of_group.median[of_group.group]
    is_outlier = beyond > threshold[of_group.group]
    outliers = np.bincount(of_group.group[is_outlier], minlength=n)
    excess = np.zeros(n, np.int64)
    np.add.at(excess, of_group.group[is_outlier], beyond[is_outlier])
    worst = rows[_longest(groups.code, dur, n)]
    columns: Columns = {
        "count": of_group.count,
        "total_ns": of_group.total,
        "share": distributions.ratio_or_nan(of_group.total, total),
        "covered_ns": covered,
        "busy_share": distributions.ratio_or_nan(covered, busy),
        "mean_ns": of_group.mean,
        "std_ns": of_group.std,
        "min_ns": of_group.percentile(0),
        **{f"{name}_ns": of_group.percentile(p) for name, p in _PERCENTILES.items()},
        "max_ns": of_group.percentile(100),
        "outliers": outliers,
        "outlier_excess_ns": excess,
        "worst_node": worst,
        "worst_rank": trace.array("rank")[worst],
        "worst_start_ns": trace.array("ts")[worst],
        **_rank_spread(trace.array("rank")[rows], groups, dur),
        **_work_rates(trace, rows, groups, dur),
        **_telemetry_means(trace, rows, groups, dur),
    }
    summary = {
        "groups": n,
        "count": len(rows),
        "total_ns": total,
        "busy_ns": busy,
        "outliers": int(outliers.sum()),
        "outlier_excess_ns": int(excess.sum()),
    }
    return columns, summary


def _rank_spread(rank: Array, groups: Groups, dur: Array) -> Columns:
    """Compare ranks within each group: the largest of their medians by the median of these."""
    if not len(rank) or rank[0] == rank[-1]:
        unknown = np.full(len(groups), np.nan)
        no_rank = np.ma.array(np.zeros(len(groups), rank.dtype), mask=True)
        return {"rank_spread_ratio": unknown, "slowest_rank": no_rank}
    # `code` numbers pairs of group and rank, `first` has a row of each pair
    first, code = gather.distinct(groups.code, rank)
    medians = distributions.group_distributions(code, dur, len(first)).median
    of_rank = distributions.group_distributions(groups.code[first], medians, len(groups))
    slowest = rank[first][_longest(groups.code[first], medians, len(groups))]
    several = of_rank.count > 1
    ratio = distributions.ratio_or_nan(
        of_rank.percentile(100), np.where(several, of_rank.median, 0)
    )
    return {
        "rank_spread_ratio": ratio,
        "slowest_rank": np.ma.masked_where(~several, slowest),
    }


def _work_rates(trace: Trace, rows: Array, groups: Groups, dur: Array) -> Columns:
    """Work divided by time, and FLOPs divided by bytes moved."""
    work_of = {work: trace.reals(work, rows) for work, _ in _RATES.values()}
    columns: Columns = {}
    for name, (work, unit) in _RATES.items():
        values = np.where(dur > 0, work_of[work], np.nan)
        columns[name] = distributions.ratio_or_nan(*_sums_where_known(groups, values, dur * unit))
    for suffix in ("", "_counted"):
        flops, moved = work_of[f"flops{suffix}"], work_of[f"mem_bytes{suffix}"]
        columns[f"intensity_flop_per_byte{suffix}"] = distributions.ratio_or_nan(
            *_sums_where_known(groups, flops, moved)
        )
    return columns


def _telemetry_means(trace: Trace, rows: Array, groups: Groups, dur: Array) -> Columns:
    """Means over time of clocks and power, and energy."""
    columns: Columns = {}
    for name in _TIME_MEANS:
        sums = _sums_where_known(groups, trace.reals(name, rows) * dur, dur)
        columns[name] = distributions.ratio_or_nan(*sums)
    energy_j = trace.reals("energy_j", rows)
    known = np.bincount(groups.code[~np.isnan(energy_j)], minlength=len(groups))
    total, _ = _sums_where_known(groups, energy_j, dur)
    columns["energy_j"] = np.where(known, total, np.nan)
    columns["energy_known"] = known
    return columns


def _sums_where_known(groups: Groups, values: Array, divisors: Array) -> tuple[Array, Array]:
    """Sum two numbers of each node over each group, over the nodes where both are known."""
    known = np.flatnonzero(~(np.isnan(values) | np.isnan(divisors)))
    code, n = groups.code[known], len(groups)
    return np.bincount(code, values[known], n), np.bincount(code, divisors[known], n)


@jit
def _longest(code: Array, values: Array, count: int) -> Array:
    """Index of the largest value of each group, the first of equal ones; -1 for an empty group.

    One pass instead of a sort by group and value: np.maximum.at has no index of the maximum.
    """
    index = np.full(count, -1)
    for i in range(len(code)):
        best = index[code[i]]
        if best < 0 or values[i] > values[best]:
            index[code[i]] = i
    return index

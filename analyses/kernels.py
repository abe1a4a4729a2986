"""Statistics of kernels, operations, layers, …: durations, spread, rates and outliers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import distributions
from chopper_interop.analyses.methods.activity import grouping, selected_work, windows
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.analyses.methods.peers import charllm_kernels
from chopper_interop.analyses.methods.peers import kernels as peers_kernels
from chopper_interop.arrays import Array, arrow, gather, spill, statistics
from chopper_interop.arrays.compiled import jit
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.selected_work import SelectedBatch
    from chopper_interop.analyses.methods.distributions import Distributions

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
_PARTS = ("sum", "by")
"""Parts of a ratio: sums over instances of which both are known."""
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
    rank_windows = windows.rank_windows(trace, steps, ranks)
    measured = _KernelFigures(by, several_ranks=len({window.rank for window in rank_windows}) > 1)
    for batch in selected_work.batches(trace, rank_windows, steps):
        measured.add(batch)
    columns, summary = _columns(trace, measured, outlier_mads)
    order = measured.totals.order()
    order = order[np.argsort(-columns["total_ns"][order], kind="stable")]
    keys = measured.totals.keys.at(order).table(trace)
    figures = {name: arrow.nan_to_null(values[order]) for name, values in columns.items()}
    table = pa.table(dict(zip(keys.column_names, keys.columns, strict=True)) | figures)
    left_out = windows.work_count(trace, ranks) - summary["count"]
    notes = {
        "window": selected_work.describe(steps),
        "left out": f"{left_out} instances of GPU work outside the selected steps",
    }
    if not summary["count"]:
        notes = {"no rows": "no GPU work in the selected steps and ranks"} | notes
    conventions = {
        "outliers": f"longer than the median by {outlier_mads:g} scaled MADs, by "
        f"{_MIN_OUTLIER_SHARE:.0%} of the median and by {_MIN_OUTLIER_NS} ns",
    }
    summary |= {"left_out": left_out}
    conventions |= _CONVENTIONS
    return Result("kernels", table, summary, conventions, notes=notes)


class _KernelFigures:
    """Figures of the groups of all batches so far.

    Of each instance there is no more than its group, a number of `totals`, and its duration: percentiles are of all
    of them. Of a group there are candidates of each batch, of which the whole has one: its longest node, and the
    median of each rank.
    """

    def __init__(self, by: str, *, several_ranks: bool) -> None:
        self._by = by
        self._several_ranks = several_ranks
        self.totals = Totals()
        self.busy_ns = 0
        self.durations: list[tuple[Array, Array]] = []
        """Group and duration of each instance."""
        self.longest: list[tuple[Array, Array]] = []
        """Group and node."""
        none = np.empty(0, np.int64)
        self.medians = [(none, none.astype(np.int32), none)]
        """Group, rank and the median of the group on it."""

    def add(self, batch: SelectedBatch) -> None:
        """Measure a batch."""
        trace, rows = batch.trace, batch.rows
        dur, rank = trace.array("dur")[rows], trace.array("rank")[rows]
        code, keys = grouping.code_nodes(trace, rows, self._by)
        numbers = self.totals.numbers(keys)
        covered = selected_work.covered_ns(trace, rows, code, len(keys))
        self.totals.add(numbers, covered=covered)
        self.busy_ns += int(selected_work.covered_ns(trace, rows, np.zeros_like(code), 1).sum())
        self._add_work(batch, numbers, code, dur)
        self._add_telemetry(batch, numbers, code, dur)
        group = numbers[code]
        self.durations.append((spill.kept(group.astype(np.int32)), spill.kept(dur)))
        self.longest.append((numbers, rows[_longest(code, dur, len(keys))] + batch.first))
        if self._several_ranks:
            first, pair = gather.distinct(code, rank)
            medians = distributions.group_distributions(pair, dur, len(first)).median
            self.medians.append((group[first], rank[first], medians))

    def _add_work(self, batch: SelectedBatch, numbers: Array, code: Array, dur: Array) -> None:
        """Add work and the time that it took, and FLOPs and bytes, of instances of which both are known."""
        work_of = {work: batch.trace.reals(work, batch.rows) for work, _ in _RATES.values()}
        for name, (work, unit) in _RATES.items():
            values = np.where(dur > 0, work_of[work], np.nan)
            self._add_where_known(numbers, code, name, (values, dur * unit))
        for suffix in ("", "_counted"):
            both = work_of[f"flops{suffix}"], work_of[f"mem_bytes{suffix}"]
            self._add_where_known(numbers, code, f"intensity_flop_per_byte{suffix}", both)

    def _add_telemetry(self, batch: SelectedBatch, numbers: Array, code: Array, dur: Array) -> None:
        """Add clocks and power by time, and energy."""
        for name in _TIME_MEANS:
            values = batch.trace.reals(name, batch.rows) * dur
            self._add_where_known(numbers, code, name, (values, dur))
        energy_j = batch.trace.reals("energy_j", batch.rows)
        known = np.bincount(code[~np.isnan(energy_j)], minlength=len(numbers))
        self.totals.add(numbers, energy_known=known)
        self._add_where_known(numbers, code, "energy_j", (energy_j, dur))

    def _add_where_known(
        self, numbers: Array, code: Array, name: str, both: tuple[Array, Array]
    ) -> None:
        """Add two numbers of each instance, over the instances where both are known."""
        known = np.flatnonzero(~(np.isnan(both[0]) | np.isnan(both[1])))
        sums = {
            f"{name} {part}": values[known].astype(np.float64)
            for part, values in zip(_PARTS, both, strict=True)
        }
        self.totals.add_each(numbers, code[known], **sums)


def _columns(
    trace: Trace, measured: _KernelFigures, outlier_mads: float
) -> tuple[Columns, dict[str, Any]]:
    """Return the columns of figures by number of group, masked or NaN where unknown, and the summary."""
    sums, n = measured.totals.figures(), len(measured.totals.keys)
    of_group = distributions.joined_distributions(measured.durations, n)
    total = int(of_group.total.sum())
    outliers, excess = _outliers(of_group, outlier_mads)
    group, node = map(np.concatenate, zip(*measured.longest, strict=True))
    worst = node[_longest(group, trace.array("dur")[node], n)]
    columns: Columns = {
        "count": of_group.count,
        "total_ns": of_group.total,
        "share": distributions.ratio_or_nan(of_group.total, total),
        "covered_ns": sums["covered"],
        "busy_share": distributions.ratio_or_nan(sums["covered"], measured.busy_ns),
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
        **_rank_spread(measured, n),
        **_ratios(sums),
    }
    summary = {
        "groups": n,
        "count": int(of_group.count.sum()),
        "total_ns": total,
        "busy_ns": measured.busy_ns,
        "outliers": int(outliers.sum()),
        "outlier_excess_ns": int(excess.sum()),
    }
    return columns, summary


def _outliers(of_group: Distributions, outlier_mads: float) -> tuple[Array, Array]:
    """Return the number of outliers of each group, and the time by which they exceed its median."""
    n = len(of_group.count)
    threshold = np.maximum(outlier_mads * statistics.MAD_TO_SIGMA * of_group.mad, _MIN_OUTLIER_NS)
    threshold = np.maximum(threshold, _MIN_OUTLIER_SHARE * of_group.median)
    outliers, excess = np.zeros((2, n), np.int64)
    for group, values in of_group.blocks():
        beyond = values - of_group.median[group]
        is_outlier = beyond > threshold[group]
        outliers += np.bincount(group[is_outlier], minlength=n)
        np.add.at(excess, group[is_outlier], beyond[is_outlier])
    return outliers, excess


def _rank_spread(measured: _KernelFigures, n: int) -> Columns:
    """Compare ranks within each group: the largest of their medians by the median of these."""
    group, rank, medians = map(np.concatenate, zip(*measured.medians, strict=True))
    if not len(rank) or rank[0] == rank[-1]:
        no_rank = np.ma.array(np.zeros(n, np.int32), mask=True)
        return {"rank_spread_ratio": np.full(n, np.nan), "slowest_rank": no_rank}
    of_rank = distributions.group_distributions(group, medians, n)
    slowest = rank[_longest(group, medians, n)]
    several = of_rank.count > 1
    ratio = distributions.ratio_or_nan(
        of_rank.percentile(100), np.where(several, of_rank.median, 0)
    )
    return {
        "rank_spread_ratio": ratio,
        "slowest_rank": np.ma.masked_where(~several, slowest),
    }


def _ratios(sums: dict[str, Array]) -> Columns:
    """Work divided by time, FLOPs divided by bytes moved, means over time of clocks and power, and energy."""
    names = (*_RATES, "intensity_flop_per_byte", "intensity_flop_per_byte_counted", *_TIME_MEANS)
    columns: Columns = {
        name: distributions.ratio_or_nan(*(sums[f"{name} {part}"] for part in _PARTS))
        for name in names
    }
    known = sums["energy_known"]
    columns["energy_j"] = np.where(known, sums[f"energy_j {_PARTS[0]}"], np.nan)
    columns["energy_known"] = known
    return columns


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

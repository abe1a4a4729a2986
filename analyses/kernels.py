"""Statistics of kernels, operations, layers, …: how long, how even, how fast, and what stands out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, instances
from chopper_interop.columns import arrow, distributions, gather
from chopper_interop.columns.compiled import jit
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.peers import charllm_kernels
from chopper_interop.peers import kernels as peers_kernels
from chopper_interop.result import Result

if TYPE_CHECKING:
    from chopper_interop.activity.grouping import Groups
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

    Columns = dict[str, Any]

__all__ = ["kernels"]

_BY = "class,kernel"
_PERCENTILES = {"p5": 5, "p25": 25, "median": 50, "p75": 75, "p95": 95, "p99": 99}
_LEAST_SHARE, _LEAST_NS = 0.05, 1000
_RATES = {
    "tflop_per_s": ("flops", 1e3),
    "mem_gbps": ("mem_bytes", 1.0),
    "tflop_per_s_counted": ("flops_counted", 1e3),
    "mem_counted_gbps": ("mem_bytes_counted", 1.0),
}
"""Column of a rate, what it is the rate of, and how many of that and a nanosecond are one."""
_MEANS = ("gfxclk_mhz", "gfxclk_counted_mhz", "power_w")
_CONVENTIONS = {
    "links": instances.LINKS,
    "memset": "fills count as compute",
    "copies": "count as copy; copies by kernels of the runtime (__amd_rocclr_*) count as compute",
    "percentiles": f"{distributions.PERCENTILES}; std_ns is of these durations themselves (divided "
    "by their count)",
    "busy": "covered_ns is the union of a group's intervals on each GPU, summed over GPUs, and "
    "busy_share its share of that of all work counted: of groups that overlap the shares sum to more than 1",
    "rates": "work by time, over the instances of which the work is known; by shapes (flops, "
    "mem_bytes) or, as _counted, by counters. Clocks and power are means over time, of the "
    "instances of which they are known; energy_j is the sum over energy_known instances",
    "spread": "rank_spread_ratio is the largest median of a rank by the median of these medians",
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
    """Durations, rates and outliers of GPU work, by kernel, operation, layer or whatever is asked.

    Parameters
    ----------
    trace
        Any trace with GPU work.
    by
        What the rows are: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps that count, "" for all of the trace: "each", "10", "10-12".
    ranks
        Ranks that count, "" for all: "0,4-7".
    outlier_mads
        An instance stands out that is longer than its group's median by more than so many scaled
        median absolute deviations (and by 5 % and 1 us).
    compat
        "hta": time by type of kernel by that tool's definition, in its columns and microseconds.
        "charllm": occurrences and time by CharLLM-PPT's categories of names (`by`: "category", its
        default, "rank,category", "kernel", "rank,kernel").
    pp
        With "charllm", the degree of pipeline parallelism that it divides by.

    Returns
    -------
    Result
        One row a group, the longest total first. `count` instances (kernels, collectives, copies,
        fills), `total_ns` of them, `share` of all GPU time, `covered_ns` in which one of them ran
        and `busy_share` of the GPUs' busy time; `mean_ns`, `std_ns`, `min_ns`, `p5_ns`, `p25_ns`,
        `median_ns`, `p75_ns`, `p95_ns`, `p99_ns`, `max_ns` of their durations. `outliers`, how
        many stand out, and `outlier_excess_ns`, how much longer these took than the median; the
        longest instance as `worst_node` (row of `nodes`), `worst_rank`, `worst_start_ns` (as ts).
        `rank_spread_ratio` and `slowest_rank` of groups on several ranks. `tflop_per_s`,
        `mem_gbps` (1e9 byte/s) and `intensity_flop_per_byte` by shapes, the same as `_counted`
        by counters; `gfxclk_mhz` by telemetry, `gfxclk_counted_mhz` in the counter run,
        `power_w`, `energy_j`. Null where it is not known. The summary has sums over all.

    Notes
    -----
    Scaled MAD: 1.4826 times the median absolute deviation from the median, the standard deviation
    of a normal distribution (Rousseeuw and Croux 1993). Groups that mix kernels of several sizes
    have a wide one, and few outliers: ask finer. Operations of several kernels have one instance
    a kernel.
    """
    if compat == "charllm":
        if steps:
            raise NoSuchDefinitionsError(
                "compat=charllm counts all of a trace", hint="leave steps out"
            )
        return charllm_kernels.kernels(trace, "category" if by == _BY else by, ranks, pp)
    if pp != 1:
        raise UsageError(
            f"pp={pp} goes with compat=charllm", hint="by=rank,category tells each stage"
        )
    if compat:
        default = by == _BY and not steps
        return peers_kernels.kernels(trace, compat, ranks, default=default)
    if outlier_mads < 0 or not np.isfinite(outlier_mads):
        raise UsageError(f"outlier_mads={outlier_mads}: it must be a number from 0 on")
    found = instances.chosen(trace, steps, ranks)
    groups = grouping.of(trace, found.rows, by)
    columns, summary = _columns(trace, found.rows, groups, outlier_mads)
    order = np.argsort(-columns["total_ns"], kind="stable")
    made = {name: arrow.known_only(values) for name, values in columns.items()}
    table = pa.table({**{n: groups.keys[n] for n in groups.keys.column_names}, **made})
    nothing = {} if len(found.rows) else {"no rows": "there is no GPU work in what was asked about"}
    notes = nothing | {
        "window": instances.described(steps),
        "left out": f"{found.left_out} instances of GPU work outside of the chosen steps",
    }
    conventions = {
        "outliers": f"longer than the median by {outlier_mads:g} scaled MADs, by {_LEAST_SHARE:.0%} "
        f"of the median and by {_LEAST_NS} ns",
    }
    summary |= {"left_out": found.left_out}
    conventions |= _CONVENTIONS
    return Result("kernels", arrow.take(table, order), summary, conventions, notes=notes)


def _columns(
    trace: Trace, rows: Array, groups: Groups, outlier_mads: float
) -> tuple[Columns, dict[str, Any]]:
    """Columns of figures as arrays, masked where unknown; and the summary."""
    dur, n = trace.array("dur")[rows], len(groups)
    of_group = distributions.of(groups.code, dur, n)
    total = int(of_group.total.sum())
    covered = instances.covered(trace, rows, groups.code, n)
    busy = int(instances.covered(trace, rows, np.zeros(len(rows), np.int64), 1).sum())
    least = np.maximum(outlier_mads * distributions.MAD_TO_SIGMA * of_group.mad, _LEAST_NS)
    least = np.maximum(least, _LEAST_SHARE * of_group.median)
    beyond = of_group.values - of_group.median[of_group.code]
    out = beyond > least[of_group.code]
    outliers = np.bincount(of_group.code[out], minlength=n)
    excess = np.zeros(n, np.int64)
    np.add.at(excess, of_group.code[out], beyond[out])
    worst = rows[_longest(groups.code, dur, n)]
    columns: Columns = {
        "count": of_group.count,
        "total_ns": of_group.total,
        "share": distributions.ratio(of_group.total, total),
        "covered_ns": covered,
        "busy_share": distributions.ratio(covered, busy),
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
        **_spread(trace.array("rank")[rows], groups, dur),
        **_rates(trace, rows, groups, dur),
        **_telemetry(trace, rows, groups, dur),
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


def _spread(rank: Array, groups: Groups, dur: Array) -> Columns:
    """How unlike ranks are: the largest of their medians by the median of these."""
    if not len(rank) or rank[0] == rank[-1]:
        unknown = np.full(len(groups), np.nan)
        nobody = np.ma.array(np.zeros(len(groups), rank.dtype), mask=True)
        return {"rank_spread_ratio": unknown, "slowest_rank": nobody}
    first, code = gather.distinct(groups.code, rank)
    medians = distributions.of(code, dur, len(first)).median
    of_rank = distributions.of(groups.code[first], medians, len(groups))
    slowest = rank[first][_longest(groups.code[first], medians, len(groups))]
    several = of_rank.count > 1
    ratio = distributions.ratio(of_rank.percentile(100), np.where(several, of_rank.median, 0))
    return {
        "rank_spread_ratio": ratio,
        "slowest_rank": np.ma.masked_where(~several, slowest),
    }


def _rates(trace: Trace, rows: Array, groups: Groups, dur: Array) -> Columns:
    """Work by time, and by bytes moved."""
    told = {work: _values(trace, work, rows) for work, _ in _RATES.values()}
    columns: Columns = {}
    for name, (work, unit) in _RATES.items():
        values = np.where(dur > 0, told[work], np.nan)
        columns[name] = distributions.ratio(*_sums(groups, values, dur * unit))
    for suffix in ("", "_counted"):
        flops, moved = told[f"flops{suffix}"], told[f"mem_bytes{suffix}"]
        columns[f"intensity_flop_per_byte{suffix}"] = distributions.ratio(
            *_sums(groups, flops, moved)
        )
    return columns


def _telemetry(trace: Trace, rows: Array, groups: Groups, dur: Array) -> Columns:
    """Means over time, and energy."""
    columns: Columns = {}
    for name in _MEANS:
        columns[name] = distributions.ratio(*_sums(groups, _values(trace, name, rows) * dur, dur))
    drawn = _values(trace, "energy_j", rows)
    known = np.bincount(groups.code[~np.isnan(drawn)], minlength=len(groups))
    energy, _ = _sums(groups, drawn, dur)
    columns["energy_j"] = np.where(known, energy, np.nan)
    columns["energy_known"] = known
    return columns


def _values(trace: Trace, name: str, rows: Array) -> Array:
    """A column of these nodes as decimals, not a number where unknown."""
    if name not in trace.nodes.column_names:
        return np.full(len(rows), np.nan)
    column = trace.nodes[name]
    values = arrow.numbers(column)[rows].astype(np.float64)
    return np.where(arrow.known(column)[rows], values, np.nan)


def _sums(groups: Groups, values: Array, by: Array) -> tuple[Array, Array]:
    """Sums of two numbers of each node over each group, where both are known."""
    known = np.flatnonzero(~(np.isnan(values) | np.isnan(by)))
    code, n = groups.code[known], len(groups)
    return np.bincount(code, values[known], n), np.bincount(code, by[known], n)


@jit
def _longest(code: Array, values: Array, count: int) -> Array:
    """For each group, where its largest value is; the first of equal ones."""
    found = np.full(count, -1)
    for i in range(len(code)):
        best = found[code[i]]
        if best < 0 or values[i] > values[best]:
            found[code[i]] = i
    return found

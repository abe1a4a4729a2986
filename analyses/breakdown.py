"""Break the time of operations down into time at peak rate and Chopper's overheads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import gaps, grouping, launch_split, selected_work
from chopper_interop.analyses.methods.dvfs import breakdown_terms
from chopper_interop.analyses.methods.peers import chopper as peers_chopper
from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import UsageError
from chopper_interop.percents import percent
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.grouping import Groups
    from chopper_interop.analyses.methods.dvfs.breakdown_terms import Terms

__all__ = ["breakdown"]

_BY = "phase,operation"
_COMPAT = ("", "chopper")
_LAUNCH = ("prep_ns", "call_ns", "launch_ns")
_FIRST = ("inst_ns", "util", "freq")
"""Terms that some kernels lack. A group is reduced to its kernels with the first of them, if it has
any, then to those with the second, and so on."""
_CONVENTIONS = {
    "links": selected_work.LINKS
    + "; launch_ns, prep_ns and call_ns only for work whose call is recorded",
    "memset": "not counted: only kernels that compute are",
    "copies": "not counted, nor is communication",
    "product": "t_thr_ns * o_inst_ratio * o_util_ratio * o_ovl_ratio * o_freq_ratio * o_rest_ratio is "
    "known_ns, the time of those kernels of the group for which all of these terms are known. A "
    "term that is known for none of them is null and counts as 1; o_rest_ratio then includes it",
    "peak": "rate at the highest clock that a source reports for the device, else at that of its "
    "product. The element type is the one with the most counted operations, else that of the "
    "operator's first input; the rate is that of matrix cores for products, convolutions and "
    "attention, else of vector units",
    "counters": "from the run in which they were counted. Kernels that were not counted get those of "
    "the same kernel (name, FLOPs and bytes by shapes) on the same GPU. Cycles of the "
    "profiler itself are subtracted",
    "overlap": "for kernels that overlap communication for half of their time or more: their duration "
    "by that of the same kernels without communication, corrected for the difference of their "
    "clocks; 1 where none ran without communication",
    "frequency": "predicted from the clock measured in this run and the sensitivity of each kernel to "
    "the clock (see dvfs). Where that is not known, work of matrix cores is assumed proportional to "
    "the clock, and the term of other work is not known",
    "rest": "time that no other term explains; for work that is bound by its bytes it includes t_mem_ns",
    "differs": "Chopper v0.10 has no measured clock: its frequency term is the remainder. Its "
    "constants are those of MI300X, its operations 16 of Llama on one GPU, "
    "and its cycles include those of the profiler; compat=chopper gives its figures",
}


def breakdown(  # noqa: PLR0913 # each choice is an option
    trace: Trace,
    *,
    by: str = _BY,
    steps: str = "",
    ranks: str = "",
    gpus: str = "",
    batch: int = 0,
    sequence: int = 0,
    compat: str = "",
) -> Result:
    """Explain why operations take longer than their FLOPs at peak rate, as a product of ratios.

    ::

        known = t_thr * o_inst * o_util * o_ovl * o_freq * o_rest

    Parameters
    ----------
    trace
        A trace with FLOPs by shapes. All terms are known if it also has counters and telemetry.
    by
        Groups of rows: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps to include, "" for all of the trace: "each", "10", "10-12".
    ranks
        Ranks to include, "" for all: "0,4-7".
    gpus
        File that describes further GPUs (TOML, [[gpu]] tables).
    batch, sequence
        Batch size and sequence length of the model, with `compat`: FLOPs by Chopper's table for
        Llama 3 8B rather than by shapes.
    compat
        "chopper": one GPU (the first of `ranks`), medians over iterations and layers, the constants
        of MI300X and the frequency term as the remainder, as in Chopper v0.10.

    Returns
    -------
    Result
        One row a group, the longest first:

        - `kernels` and their durations `total_ns`; `known_kernels` and `known_ns`, those for which
          the terms are known
        - `t_thr_ns`, time of the FLOPs by shapes at the GPU's peak rate
        - `o_inst_ratio`, counted FLOPs / FLOPs by shapes
        - `o_util_ratio`, cycles / cycles in which matrix cores were busy
        - `o_ovl_ratio`, slow-down by concurrent communication
        - `o_freq_ratio`, slow-down by the clock
        - `o_rest_ratio`, the remainder
        - `closure_ratio`, cycles of the matrix cores that the counted FLOPs take / counted ones:
          1 if the counters agree
        - `t_mem_ns`, time of the bytes by shapes at the memory's peak bandwidth
        - `prep_ns`, `call_ns` and `launch_ns` before the kernels (see the analysis `launch`)

        Ratios of a group are those of sums over its kernels. The summary has the same figures for
        all kernels together.

    Notes
    -----
    The terms are those of Chopper (arXiv 2512.08242, v0.10 `plots/overhead_breakdown.py`). In its
    identity t_thr * o_inst * o_util = cycles / peak clock * (FLOPs counted / busy cycles / rate)
    the last factor is `closure_ratio`, for any element type. Example: a GPU with 4 matrix cores and
    2048 FLOP a cycle in each unit does 512 FLOP a busy cycle, so that there are as many MOPS (512
    FLOP each) as busy cycles.
    """
    options.check_compat(compat, _COMPAT)
    if compat:
        return peers_chopper.breakdown(
            trace, steps=steps, ranks=ranks, model=(batch, sequence), default=by == _BY
        )
    if batch or sequence:
        raise UsageError("batch and sequence apply only with compat=chopper")
    selected = selected_work.select_work(trace, steps, ranks)
    rows = selected.rows[trace.array("kind")[selected.rows] == Kind.KERNEL]
    terms = breakdown_terms.time_terms(trace, rows, gpus)
    groups = grouping.group_nodes(trace, rows, by)
    all_kernels = gaps.work_rows(trace, (Kind.KERNEL,))
    split, _ = launch_split.split_gaps(trace, all_kernels)
    launch = {name: split[name][np.searchsorted(all_kernels, rows)] for name in _LAUNCH}
    columns, is_known = _columns(trace, rows, groups, terms, launch)
    order = np.argsort(-columns["total_ns"], kind="stable")
    arrays = {name: arrow.nan_to_null(values) for name, values in columns.items()}
    table = pa.table({**{n: groups.keys[n] for n in groups.keys.column_names}, **arrays})
    job_group = grouping.group_nodes(trace, rows, "job")
    job_columns, _ = _columns(trace, rows, job_group, terms, launch)
    summary = {"kernels": 0} if not len(rows) else _plain(job_columns)
    notes = {
        "window": selected_work.describe(steps),
        "left out": _left_out(trace, rows, terms, is_known)
        + f"; {selected.left_out} instances of GPU work outside of the chosen steps",
    }
    if not len(rows):
        notes["no rows"] = "the chosen steps and ranks have no kernel that computes"
    return Result("breakdown", arrow.take(table, order), summary, _CONVENTIONS, notes=notes)


def _columns(
    trace: Trace, rows: Array, groups: Groups, terms: Terms, launch: dict[str, Array]
) -> tuple[dict[str, Any], Array]:
    """Return the figures of each group, and a mask of the kernels whose terms they use."""
    dur, code, n = trace.array("dur")[rows], groups.code, len(groups)
    is_known = ~np.isnan(terms.thr_ns)
    for name in _FIRST:
        has = is_known & ~np.isnan(getattr(terms, name))
        group_has_any = np.bincount(code[has], minlength=n) > 0
        # a term that no kernel of a group has is null there: it excludes none of its kernels
        is_known &= has | ~group_has_any[code]

    def total(values: Array, mask: Array = is_known) -> Array:
        sums = np.bincount(code[mask], values[mask], n)
        return np.where(np.bincount(code[mask], minlength=n) > 0, sums, np.nan)

    columns: dict[str, Any] = {
        "kernels": np.bincount(code, minlength=n),
        "total_ns": groups.sums(dur),
        "known_kernels": np.bincount(code[is_known], minlength=n),
        "known_ns": groups.sums(np.where(is_known, dur, 0)),
    }
    # chain: time of each kernel with all factors so far, so that sums of groups telescope to known_ns
    chain = terms.thr_ns
    before = total(chain)
    columns["t_thr_ns"] = before
    for name, factor in _factors(terms).items():
        next_chain = np.where(np.isnan(factor), chain, chain * factor)
        ratio = total(next_chain) / before
        unknown = np.isnan(total(factor))
        columns[name] = np.where(unknown, np.nan, ratio)
        chain, before = next_chain, total(next_chain)
    known_ns = np.where(columns["known_kernels"] > 0, columns["known_ns"], np.nan)
    columns["o_rest_ratio"] = known_ns / before
    has_busy = ~np.isnan(terms.expected_busy) & (terms.busy > 0)
    columns["closure_ratio"] = total(terms.expected_busy, has_busy) / total(terms.busy, has_busy)
    columns["t_mem_ns"] = total(terms.mem_ns, ~np.isnan(terms.mem_ns))
    for name, values in launch.items():
        known = np.flatnonzero(values >= 0)
        sums = np.zeros(n, np.int64)
        np.add.at(sums, code[known], values[known])
        columns[name] = np.ma.masked_where(np.bincount(code[known], minlength=n) == 0, sums)
    return columns, is_known


def _factors(terms: Terms) -> dict[str, Array]:
    return {
        "o_inst_ratio": terms.inst_ns / terms.thr_ns,
        "o_util_ratio": terms.util,
        "o_ovl_ratio": terms.overlap,
        "o_freq_ratio": terms.freq,
    }


def _plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Figures of a single group as plain values, None where unknown."""
    return {name: arrow.nan_to_null(values)[0].as_py() for name, values in columns.items()}


def _left_out(trace: Trace, rows: Array, terms: Terms, is_known: Array) -> str:
    """Say how many kernels lack each term."""
    dur = trace.array("dur")[rows]
    without = {
        "without FLOPs by shapes or the rate of their type": np.isnan(terms.thr_ns),
        "of the others without counters of their operations": np.isnan(terms.inst_ns),
        "without counters of busy matrix cores or of their cycles": np.isnan(terms.util),
        "without a clock": np.isnan(terms.freq),
    }
    without_flops = without["without FLOPs by shapes or the rate of their type"]
    parts = []
    for text, lacks in without.items():
        counted = lacks if lacks is without_flops else lacks & ~without_flops
        parts.append(f"{np.count_nonzero(counted)} kernels {text}")
    share = dur[~is_known].sum() / max(int(dur.sum()), 1)
    borrowed = np.count_nonzero(terms.borrowed & is_known)
    return (
        f"{np.count_nonzero(~is_known)} of {len(rows)} kernels ({percent(share)} of their time) are in no "
        f"product: {', '.join(parts)}; {borrowed} have counters of similar kernels; for "
        f"{np.count_nonzero(terms.uncompared)} that overlap communication no similar kernel ran without it"
    )

"""What makes operations longer than their work at peak rate: Chopper's overheads, each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.activity import gaps, grouping, instances, launch_split
from chopper_interop.columns import arrow
from chopper_interop.dvfs import breakdown_terms
from chopper_interop.peers import chopper as peers_chopper
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.activity.grouping import Groups
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.breakdown_terms import Terms
    from chopper_interop.trace import Trace

__all__ = ["breakdown"]

_BY = "phase,operation"
_COMPAT = ("", "chopper")
_LAUNCH = ("prep_ns", "call_ns", "launch_ns")
_FIRST = ("inst_ns", "util", "freq")
"""What some kernels lack: of a group with any that have it, those are taken, one by one."""
_CONVENTIONS = {
    "links": instances.LINKS
    + ", launch_ns, prep_ns and call_ns but for work whose call is recorded",
    "memset": "does not count: kernels that compute alone do",
    "copies": "do not count, nor does communication",
    "product": "t_thr_ns * o_inst_ratio * o_util_ratio * o_ovl_ratio * o_freq_ratio * o_rest_ratio is "
    "told_ns, the time of the kernels of the group of which all of these terms are known; a "
    "term that is known of none of them is null and counts as 1, so that the rest has it",
    "peak": "by the highest clock that a source tells of the device, else its product's; the rate "
    "is that of the type counted most, else of the operator's first input; of matrix "
    "cores for products, convolutions and attention, else of vector units",
    "counters": "of the run in which they were counted; kernels that were not counted have those of "
    "the same kernel (name, FLOPs and bytes by shapes) on the same GPU; cycles of the "
    "profiler itself are taken off",
    "overlap": "of kernels of which communication covers half of the time or more: how much longer "
    "than the same alone, after what their clocks differ by; 1 where none ran alone",
    "frequency": "predicted from the clock measured in this run by how each kernel's time follows "
    "the clock (see dvfs); where that is not known, matrix cores follow it and of other work "
    "the term is not known",
    "rest": "what none of these explains; of work that its bytes bound, t_mem_ns is in it",
    "differs": "Chopper v0.10 has no measured clock: what is left over is its frequency term; its "
    "constants are those of MI300X, its operations 16 of Llama on one GPU, "
    "its cycles have those of the profiler; compat=chopper gives its figures",
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
    """Why operations take longer than their FLOPs at peak rate, as a product of ratios.

    ::

        told = t_thr * o_inst * o_util * o_ovl * o_freq * o_rest

    Parameters
    ----------
    trace
        Any trace with FLOPs by shapes; with counters and telemetry all terms are known.
    by
        What a row is of: names of `grouping.GRAINS` separated by commas.
    steps
        Training steps that count, "" for all of the trace: "each", "10", "10-12".
    ranks
        Ranks that count, "" for all: "0,4-7".
    gpus
        File of your own GPUs (TOML, [[gpu]] tables).
    batch, sequence
        Of the model, with `compat`: FLOPs by Chopper's table for Llama 3 8B rather than by shapes.
    compat
        "chopper": one GPU (the first of `ranks`), medians over iterations and layers, the constants
        of MI300X and the frequency term as what is left over, as Chopper v0.10 has it.

    Returns
    -------
    Result
        One row a group, the longest first: `kernels` and `total_ns` of them; `told` and `told_ns`,
        those of which the terms are known; `t_thr_ns`, FLOPs by shapes at the GPU's peak rate;
        `o_inst_ratio`, FLOPs counted by those of shapes; `o_util_ratio`, cycles by those in which
        matrix cores were busy; `o_ovl_ratio`, longer for communication beside; `o_freq_ratio`,
        longer for the clock; `o_rest_ratio`, what is left; `closure_ratio`, the matrix cores'
        cycles that the counted FLOPs take by those counted: counters that agree have 1;
        `t_mem_ns`, bytes by shapes at the memory's peak bandwidth; `prep_ns`, `call_ns` and
        `launch_ns` before the kernels (see the analysis `launch`). Ratios of a group are those
        of sums over its kernels. The summary has the same of all kernels together.

    Notes
    -----
    The terms are those of Chopper (arXiv 2512.08242, v0.10 `plots/overhead_breakdown.py`); of
    its identity t_thr * o_inst * o_util = cycles / peak clock * (FLOPs counted / busy cycles / rate)
    the last factor is `closure_ratio`, for any type: a GPU of 4 matrix cores a unit and 2048 FLOP a
    cycle and unit does 512 a busy cycle, and MOPS (512 FLOP each) are then as many as busy cycles.
    """
    gaps.chosen_compat(compat, _COMPAT)
    if compat:
        return peers_chopper.breakdown(
            trace, steps=steps, ranks=ranks, model=(batch, sequence), default=by == _BY
        )
    found = instances.chosen(trace, steps, ranks)
    rows = found.rows[trace.array("kind")[found.rows] == Kind.KERNEL]
    terms = breakdown_terms.of(trace, rows, gpus)
    groups = grouping.of(trace, rows, by)
    everything = gaps.work_rows(trace, (Kind.KERNEL,))
    split, _ = launch_split.of(trace, everything)
    launch = {name: split[name][np.searchsorted(everything, rows)] for name in _LAUNCH}
    columns, taken = _columns(trace, rows, groups, terms, launch)
    order = np.argsort(-columns["total_ns"], kind="stable")
    made = {name: arrow.known_only(values) for name, values in columns.items()}
    table = pa.table({**{n: groups.keys[n] for n in groups.keys.column_names}, **made})
    one = grouping.of(trace, rows, "job")
    whole, _ = _columns(trace, rows, one, terms, launch)
    summary = {"kernels": 0} if not len(rows) else _plain(whole)
    notes = {
        "window": instances.described(steps),
        "left out": _left_out(trace, rows, terms, taken) + f"; {found.left_out} instances of GPU "
        "work outside of the chosen steps",
    }
    if not len(rows):
        notes["no rows"] = "there is no kernel that computes in what was asked about"
    return Result("breakdown", arrow.take(table, order), summary, _CONVENTIONS, notes=notes)


def _columns(
    trace: Trace, rows: Array, groups: Groups, terms: Terms, launch: dict[str, Array]
) -> tuple[dict[str, Any], Array]:
    """Figures of groups, and which kernels' terms they are of."""
    dur, code, n = trace.array("dur")[rows], groups.code, len(groups)
    taken = ~np.isnan(terms.thr_ns)
    for name in _FIRST:
        has = taken & ~np.isnan(getattr(terms, name))
        some = np.bincount(code[has], minlength=n) > 0
        taken &= has | ~some[code]

    def total(values: Array, which: Array = taken) -> Array:
        sums = np.bincount(code[which], values[which], n)
        return np.where(np.bincount(code[which], minlength=n) > 0, sums, np.nan)

    made: dict[str, Any] = {
        "kernels": np.bincount(code, minlength=n),
        "total_ns": groups.sums(dur),
        "told": np.bincount(code[taken], minlength=n),
        "told_ns": groups.sums(np.where(taken, dur, 0)),
    }
    chain = terms.thr_ns
    before = total(chain)
    made["t_thr_ns"] = before
    for name, factor in _factors(terms).items():
        longer = np.where(np.isnan(factor), chain, chain * factor)
        ratio = total(longer) / before
        unknown = np.isnan(total(factor))
        made[name] = np.where(unknown, np.nan, ratio)
        chain, before = longer, total(longer)
    made["o_rest_ratio"] = np.where(made["told"] > 0, made["told_ns"], np.nan) / before
    both = ~np.isnan(terms.expected_busy) & (terms.busy > 0)
    made["closure_ratio"] = total(terms.expected_busy, both) / total(terms.busy, both)
    made["t_mem_ns"] = total(terms.mem_ns, ~np.isnan(terms.mem_ns))
    for name, values in launch.items():
        known = np.flatnonzero(values >= 0)
        sums = np.zeros(n, np.int64)
        np.add.at(sums, code[known], values[known])
        made[name] = np.ma.masked_where(np.bincount(code[known], minlength=n) == 0, sums)
    return made, taken


def _factors(terms: Terms) -> dict[str, Array]:
    return {
        "o_inst_ratio": terms.inst_ns / terms.thr_ns,
        "o_util_ratio": terms.util,
        "o_ovl_ratio": terms.over,
        "o_freq_ratio": terms.freq,
    }


def _plain(columns: dict[str, Any]) -> dict[str, Any]:
    """The figures of one group, None where unknown."""
    return {name: arrow.known_only(values)[0].as_py() for name, values in columns.items()}


def _left_out(trace: Trace, rows: Array, terms: Terms, taken: Array) -> str:
    """What lacks which term."""
    dur = trace.array("dur")[rows]
    without = {
        "without FLOPs by shapes or the rate of their type": np.isnan(terms.thr_ns),
        "of the others without counters of their operations": np.isnan(terms.inst_ns),
        "without those of busy matrix cores or own cycles": np.isnan(terms.util),
        "without a clock": np.isnan(terms.freq),
    }
    none = without["without FLOPs by shapes or the rate of their type"]
    parts = []
    for text, which in without.items():
        mine = which if which is none else which & ~none
        parts.append(f"{np.count_nonzero(mine)} kernels {text}")
    share = dur[~taken].sum() / max(int(dur.sum()), 1)
    borrowed = np.count_nonzero(terms.borrowed & taken)
    return (
        f"{np.count_nonzero(~taken)} of {len(rows)} kernels ({share:.1%} of their time) are in no "
        f"product: {', '.join(parts)}; {borrowed} have counters of like kernels; of "
        f"{np.count_nonzero(terms.uncompared)} beside communication none like them ran alone"
    )

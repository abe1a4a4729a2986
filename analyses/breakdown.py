"""Break the time of operations down into time at peak rate and Chopper's overheads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods import options
from chopper_interop.analyses.methods.activity import (
    gaps,
    grouping,
    launch_split,
    selected_work,
    windows,
)
from chopper_interop.analyses.methods.activity.selected_work import SelectedBatch
from chopper_interop.analyses.methods.activity.totals import Totals
from chopper_interop.analyses.methods.dvfs import breakdown_terms
from chopper_interop.analyses.methods.peers import chopper as peers_chopper
from chopper_interop.arrays import Array, arrow
from chopper_interop.errors import UsageError
from chopper_interop.percents import percent
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.grouping import Keys
    from chopper_interop.analyses.methods.dvfs.breakdown_terms import Terms

__all__ = ["breakdown"]

_BY = "phase,operation"
_COMPAT = ("", "chopper")
_LAUNCH = ("prep_ns", "call_ns", "launch_ns")
_FIRST = ("inst_ns", "util", "freq")
"""Terms that some kernels lack. A group is reduced to its kernels with the first of them, if it has
any, then to those with the second, and so on."""
_RATIOS = ("o_inst_ratio", "o_util_ratio", "o_ovl_ratio", "o_freq_ratio")
"""Factors in their order."""
_WITHOUT = (
    "without FLOPs by shapes or the rate of their type",
    "of the others without counters of their operations",
    "without counters of busy matrix cores or of their cycles",
    "without a clock",
)
"""Facts that kernels lack."""
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
    rank_windows = windows.rank_windows(trace, steps, ranks)
    groups, job, kernels = _TermSums(by), _TermSums("job"), _Kernels()
    work = 0
    for _, part, selected in _batches(trace, rank_windows, steps):
        work += len(selected)
        rows = selected[part.array("kind")[selected] == Kind.KERNEL]
        terms, launch = breakdown_terms.time_terms(part, rows, gpus), _launch_times(part, rows)
        kernels.add(part, rows, terms, groups.add(part, rows, terms, launch))
        job.add(part, rows, terms, launch)
    keys, columns = groups.columns()
    order = np.argsort(-columns["total_ns"], kind="stable")
    arrays = {name: arrow.nan_to_null(values) for name, values in columns.items()}
    key_table = keys.table(trace)
    table = pa.table({**{n: key_table[n] for n in key_table.column_names}, **arrays})
    summary = _plain(job.columns()[1]) if kernels.count else {"kernels": 0}
    left_out = windows.work_count(trace, ranks) - work
    notes = {
        "window": selected_work.describe(steps),
        "left out": f"{kernels.left_out()}; {left_out} instances of GPU work outside of the chosen steps",
    }
    if not kernels.count:
        notes["no rows"] = "the chosen steps and ranks have no kernel that computes"
    return Result("breakdown", arrow.take(table, order), summary, _CONVENTIONS, notes=notes)


def _batches(
    trace: Trace, rank_windows: list[windows.Window], steps: str
) -> Iterator[SelectedBatch]:
    """Yield the selected work, of a batch of ranks at a time unless terms of a kernel follow from those of other ranks.

    Kernels that were not counted have the counters of those like them on the same GPU, and how kernels depend on the
    clock is estimated from all of them.
    """
    if trace.counters.num_rows or trace.has("gfxclk_mhz"):
        yield SelectedBatch(0, trace, selected_work.selected(trace, rank_windows, steps))
    else:
        yield from selected_work.batches(trace, rank_windows, steps)


def _launch_times(trace: Trace, rows: Array) -> dict[str, Array]:
    """Parts of the gaps before kernels, of all kernels of their ranks; -1 where unknown."""
    every = gaps.work_rows(trace, (Kind.KERNEL,))
    split, _ = launch_split.split_gaps(trace, every)
    return {name: split[name][np.searchsorted(every, rows)] for name in _LAUNCH}


class _TermSums:
    """Sums of terms over the kernels of groups, of all batches so far."""

    def __init__(self, by: str) -> None:
        self._by = by
        self._totals = Totals()

    def add(self, trace: Trace, rows: Array, terms: Terms, launch: dict[str, Array]) -> Array:
        """Add the kernels of a batch; return a mask of those whose terms are used."""
        dur = trace.array("dur")[rows]
        code, keys = grouping.code_nodes(trace, rows, self._by)
        numbers = self._totals.numbers(keys)
        is_known = ~np.isnan(terms.thr_ns)
        for name in _FIRST:
            has = is_known & ~np.isnan(getattr(terms, name))
            group_has_any = np.bincount(code[has], minlength=len(keys)) > 0
            # a term that no kernel of a group has is null there: it excludes none of its kernels
            is_known &= has | ~group_has_any[code]
        # chain: time of each kernel with all factors so far, so that sums of groups telescope to known_ns
        reals, chain = {"t_thr_ns": terms.thr_ns}, terms.thr_ns
        for name, factor in _factors(terms).items():
            chain = np.where(np.isnan(factor), chain, chain * factor)
            reals |= {f"{name} factor": factor, f"{name} chain": chain}
        has_busy = ~np.isnan(terms.expected_busy) & (terms.busy > 0)
        busy = {"expected_busy": terms.expected_busy, "busy": terms.busy}
        self._add_reals(numbers, code, is_known, "known_kernels", reals)
        self._add_reals(numbers, code, has_busy, "busy_kernels", busy)
        has_bytes = ~np.isnan(terms.mem_ns)
        self._add_reals(numbers, code, has_bytes, "mem_kernels", {"t_mem_ns": terms.mem_ns})
        sums = {
            "kernels": np.ones_like(dur),
            "total_ns": dur,
            "known_ns": np.where(is_known, dur, 0),
        }
        for name, values in launch.items():
            known = values >= 0
            sums |= {name: np.where(known, values, 0), f"{name} kernels": known.astype(np.int64)}
        self._totals.add(numbers[code], **sums)
        return is_known

    def _add_reals(
        self, numbers: Array, code: Array, mask: Array, count: str, reals: dict[str, Array]
    ) -> None:
        """Add reals of the kernels of a mask, and their number."""
        self._totals.add(numbers[code], **{count: mask.astype(np.int64)})
        self._totals.add_each(
            numbers, code[mask], **{name: values[mask] for name, values in reals.items()}
        )

    def columns(self) -> tuple[Keys, dict[str, Any]]:
        """Keys of all groups in ascending order, and their figures."""
        keys, sums = self._totals.ordered()

        def total(name: str, count: str = "known_kernels") -> Array:
            return np.where(sums[count] > 0, sums[name], np.nan)

        before = total("t_thr_ns")
        columns: dict[str, Any] = {
            name: sums[name] for name in ("kernels", "total_ns", "known_kernels", "known_ns")
        } | {"t_thr_ns": before}
        for name in _RATIOS:
            ratio = total(f"{name} chain") / before
            columns[name] = np.where(np.isnan(total(f"{name} factor")), np.nan, ratio)
            before = total(f"{name} chain")
        columns["o_rest_ratio"] = total("known_ns") / before
        of_busy = (total(name, "busy_kernels") for name in ("expected_busy", "busy"))
        columns["closure_ratio"] = np.divide(*of_busy)
        columns["t_mem_ns"] = total("t_mem_ns", "mem_kernels")
        for name in _LAUNCH:
            columns[name] = np.ma.masked_where(sums[f"{name} kernels"] == 0, sums[name])
        return keys, columns


def _factors(terms: Terms) -> dict[str, Array]:
    factors = terms.inst_ns / terms.thr_ns, terms.util, terms.overlap, terms.freq
    return dict(zip(_RATIOS, factors, strict=True))


def _plain(columns: dict[str, Any]) -> dict[str, Any]:
    """Figures of a single group as plain values, None where unknown."""
    return {name: arrow.nan_to_null(values)[0].as_py() for name, values in columns.items()}


class _Kernels:
    """Counts of kernels, and of those that lack a term, of all batches so far."""

    def __init__(self) -> None:
        self.count = 0
        self._numbers: Counter[str] = Counter()

    def add(self, trace: Trace, rows: Array, terms: Terms, is_known: Array) -> None:
        """Add those of a batch; a mask says whose terms are used."""
        self.count += len(rows)
        without_flops = np.isnan(terms.thr_ns)
        lacks = (
            without_flops,
            *(
                np.isnan(values) & ~without_flops
                for values in (terms.inst_ns, terms.util, terms.freq)
            ),
        )
        dur = trace.array("dur")[rows]
        masks = {
            **dict(zip(_WITHOUT, lacks, strict=True)), "unknown": ~is_known,
            "borrowed": terms.borrowed & is_known, "uncompared": terms.uncompared,
        }  # fmt: skip
        self._numbers.update({name: int(np.count_nonzero(mask)) for name, mask in masks.items()})
        self._numbers.update({"ns": int(dur.sum()), "unknown_ns": int(dur[~is_known].sum())})

    def left_out(self) -> str:
        """Say how many kernels lack each term."""
        number = self._numbers
        parts = ", ".join(f"{number[text]} kernels {text}" for text in _WITHOUT)
        share = number["unknown_ns"] / max(number["ns"], 1)
        return (
            f"{number['unknown']} of {self.count} kernels ({percent(share)} of their time) are in no "
            f"product: {parts}; {number['borrowed']} have counters of similar kernels; for "
            f"{number['uncompared']} that overlap communication no similar kernel ran without it"
        )

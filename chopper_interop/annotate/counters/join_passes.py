"""Counters of separate runs, carried over to the kernels of the timing run.

Counter passes run the program again, with its kernels one after the other: their times mean nothing
next to those of the timing run. But it can be determined which dispatches are the same. Dispatches
that both runs number alike are; else the runs are matched by the order of their dispatches
(`order_match`), of each device or stream, or, where streams mix them otherwise, the k-th dispatch of
each kernel that both have equally often. A device on which too few match is refused as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.annotate.counters import likeness, order_match
from chopper_interop.annotate.counters.dispatches import (
    Dispatches,
    base_name,
    plain_name,
    read_dispatches,
)
from chopper_interop.annotate.counters.likeness import Likeness
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.meta import ASSUMED, ORDER
from chopper_interop.trace import Trace

__all__ = ["DURATION", "PassCounters", "carry_counters", "match_pass", "plain_name"]

JOINED = Fault.info_of_events(
    "dispatch-joined",
    "Dispatches of a counter pass were joined to the same kernels of the timing run.",
)
REPEATED = Fault.info(
    "counters-of-last-repetition",
    "Dispatches of a counter pass fit several repetitions in the "
    "timing run, such as training steps, as it repeats what was counted once or as dispatches are "
    "missing: the counters went to the last that fits, which may be of another step.",
)
NOT_JOINED = Fault.loss_of_events(
    "dispatch-not-joined",
    "Dispatches of a counter pass have no certain counterpart in the timing "
    "run: it lacks them, or made another number of equal ones in a row.",
)
REFUSED = Fault.loss(
    "counter-pass-refused",
    "The dispatches of a counter pass on a device are not those of the "
    "timing run: too few of them match for any to be trusted, and none was joined.",
)
NO_DEVICE = Fault.loss(
    "counter-pass-without-device",
    "Dispatches of a counter pass are of a device that could not be "
    "matched with one of the timing run, or is of another architecture.",
)
HELPERS = Fault.info_of_events(
    "helper-dispatch-skipped",
    "Dispatches of a counter pass by which the runtime copies and fills "
    "memory were not matched, as runs differ in them.",
)
SHARE = Fault.info(
    "dispatches-matched",
    "Number of dispatches of a counter pass that match the timing run's, and "
    "how they were matched.",
)
NOT_COMPARED = Fault.info(
    "dispatch-shape-not-compared",
    "Sizes of grids or workgroups, or the templates of names, do not "
    "agree between a counter pass and the timing run although the kernels do; they were not "
    "compared.",
)
COUNTED_BEFORE = Fault.info(
    "counter-of-several-runs",
    "Counters that several passes counted, as clocks are; those of the pass with the most counters were taken, of equal ones the first.",
)
OTHER_RUN = Fault.info_of_events(
    "event-of-another-run",
    "Host calls and copies of a counter pass are not those of the timing run and were left out.",
)

DURATION = "dispatch_duration_ns"
"""Counter that a dispatch of a pass brings along: its duration in that pass."""
_NO_DEVICE = -2
_CYCLES = "GRBM_GUI_ACTIVE"
_MIN_MATCHED = 0.8
"""Chosen: so many of the dispatches that both runs could have in common must match."""
_MIN_COMMON_KERNELS = 0.5
"""Chosen: so many of one run's dispatches must be of kernels that the other run has too, else they
are of different programs."""
_MIN_IN_ORDER = 0.95
"""Chosen: so many of the dispatches in common are in the same order if the order means anything."""
_MIN_SAME_KERNEL = 0.95
"""Chosen: so many dispatches of equal numbers are of the same kernel if both runs number alike."""
_SHIFTS = (-4, -3, -2, -1, 1, 2, 3, 4)
"""Shifts of numbers that are tried against that: a run that lost its first few dispatches, or whose
helpers were numbered too, is moved by a few."""
_NEARLY_ALL = 0.9
"""Chosen: a stricter comparison of kernels is preferred if it finds this share of what the most
lenient one has in common."""


class PassMatch(NamedTuple):
    """Dispatches of a counter pass matched with kernels of the timing run."""

    target: Array
    """For each node of the pass the node of the timing run that it is, -1 for none."""
    doubt: str
    """Why the two may be runs of different programs; empty if they are of one for sure."""


def match_pass(
    timing: Trace,
    run: Trace,
    devices: dict[int, int],
    issues: IssueLog,
    timed: Dispatches | None = None,
) -> PassMatch:
    """Match the dispatches of another run with the kernels of the timing run.

    Parameters
    ----------
    timing
        The run whose times hold.
    run
        A run of the same program in which dispatches were counted.
    devices
        Device of `run` → device of `timing`.
    issues
        Log of how many dispatches match, and of those that could not be joined.
    timed
        Dispatches of `timing`, if they have been read: they are the same for all its passes.
    """
    timed, counted = timed or read_dispatches(timing), read_dispatches(run)
    numbers, index = np.unique(counted.device, return_inverse=True)
    targets = [devices.get(n, _NO_DEVICE) for n in numbers.tolist()]
    mapped = np.array([*targets, _NO_DEVICE], np.int64)[index]
    keys = _kernel_keys(timed, counted, mapped != _NO_DEVICE, issues)
    partner = np.full(len(counted.node), -1, np.int64)
    skipped = np.zeros(len(counted.node), bool)
    alike: list[Likeness] = []
    for device in np.unique(mapped[mapped != _NO_DEVICE]).tolist():
        counted_rows = np.flatnonzero(mapped == device)
        timed_rows = _rows_of_host(timing, timed, device, run)
        if not timed_rows.size:
            several = (timed.device == device).any()
            why = "several ranks call a GPU so" if several else "no kernels"
            issues.add(REFUSED, counted_rows.size, f"device {device}: {why}")
            continue
        pair = _DevicePair(timed, counted, timed_rows, counted_rows, keys)
        matched = pair.match(issues, f"device {device}")
        partner[counted_rows] = matched.partner
        skipped[counted_rows] = matched.skipped
        if matched.likeness is not None:
            alike.append(matched.likeness)
    _note_outcome(run, counted, partner, skipped, issues)
    without_device = np.count_nonzero(mapped == _NO_DEVICE)
    issues.add(NO_DEVICE, without_device, f"{sorted(set(counted.device.tolist()))}")
    target = np.full(run.nodes.num_rows, -1, np.int32)
    target[counted.node[partner >= 0]] = timed.node[partner[partner >= 0]]
    return PassMatch(target, _doubt(alike))


def _doubt(alike: list[Likeness]) -> str:
    """Reason why two runs may be of different programs; empty if most dispatches are on devices that agree.

    A device that did little besides, such as filling memory once, proves nothing of the others.
    """
    different = [each for each in alike if not each.is_sure]
    doubtful, total = (sum(each.sizes[1] for each in some) for some in (different, alike))
    if 2 * doubtful <= total:
        return ""
    return max(different, key=lambda each: each.sizes[1]).text()


def _rows_of_host(timing: Trace, timed: Dispatches, device: int, run: Trace) -> Array:
    """Dispatches of the timing run on a device, if ranks of several hosts use it: of the pass's.

    Ranks of several hosts call GPUs by the same numbers. The result is empty if the host of the
    pass is not known.
    """
    rows = np.flatnonzero(timed.device == device)
    rank = timing.array("rank")[timed.node[rows]]
    ranks = [r for r in timing.meta.ranks if r.rank in set(np.unique(rank).tolist())]
    if len(ranks) <= 1:
        return rows
    stated = {r.rank for r in run.meta.ranks if r.known_by != ASSUMED}
    hosts = {r.host for r in run.meta.ranks if r.host}
    matching = [r.rank for r in ranks if r.rank in stated]
    matching = matching or [r.rank for r in ranks if r.host in hosts]
    if not matching and len({r.host for r in ranks}) > 1:
        return rows[:0]
    return rows[np.isin(rank, matching)] if matching else rows


def _note_outcome(
    run: Trace, counted: Dispatches, partner: Array, skipped: Array, issues: IssueLog
) -> None:
    lost = np.flatnonzero((partner < 0) & ~skipped)
    example = counted.names[counted.name[lost[0]]][:80] if lost.size else ""
    issues.add(JOINED, np.count_nonzero(partner >= 0))
    issues.add(HELPERS, np.count_nonzero(skipped))
    issues.add(NOT_JOINED, lost.size, example)
    issues.add(OTHER_RUN, run.nodes.num_rows - len(counted.node))


@dataclass(frozen=True)
class _KernelKeys:
    """Numbers of the dispatches of both runs; equal ones for equal kernels, -1 for none."""

    timed: Array
    counted: Array


def _kernel_keys(
    timed: Dispatches, counted: Dispatches, known: Array, issues: IssueLog
) -> _KernelKeys:
    """Number kernels by the strictest of several comparisons in which the two runs agree."""
    counted_rows = np.flatnonzero(known)
    size = len(timed.node)
    names = _name_codes(timed, counted, counted_rows, plain_name)
    bases = _name_codes(timed, counted, counted_rows, base_name)
    threads = np.concatenate([timed.threads, counted.threads[counted_rows]])
    group = np.concatenate([timed.workgroup, counted.workgroup[counted_rows]])
    comparisons = {
        "names, grids and workgroups": (names, threads, group),
        "names and workgroups": (names, group),
        "names": (names,),
        "names without templates, grids and workgroups": (bases, threads, group),
        "names without templates and workgroups": (bases, group),
        "names without templates": (bases,),
    }
    codes = {
        comparison: gather.distinct(*columns)[1] for comparison, columns in comparisons.items()
    }
    common = {comparison: _count_common(c[:size], c[size:]) for comparison, c in codes.items()}
    enough = _NEARLY_ALL * max(common.values())
    chosen = next(comparison for comparison, count in common.items() if count >= enough)
    is_strictest = chosen == next(iter(comparisons))
    issues.add(NOT_COMPARED, 0 if is_strictest else len(counted_rows), f"compared: {chosen}")
    counted_keys = np.full(len(counted.node), -1, np.int64)
    counted_keys[counted_rows] = codes[chosen][size:]
    return _KernelKeys(codes[chosen][:size], counted_keys)


def _count_common(a: Array, b: Array) -> int:
    """Number of elements that both have, in whatever order; elements are numbers from 0 on."""
    size = int(max(a.max(initial=0), b.max(initial=0))) + 1
    return int(np.minimum(np.bincount(a, minlength=size), np.bincount(b, minlength=size)).sum())


def _name_codes(
    timed: Dispatches, counted: Dispatches, counted_rows: Array, shorten: Callable[[str], str]
) -> Array:
    """For each dispatch of both runs, the number of its shortened name."""
    table: dict[str, int] = {}
    codes = []
    for run, rows in ((timed, slice(None)), (counted, counted_rows)):
        of_name = [table.setdefault(shorten(name), len(table)) for name in run.names]
        codes.append(np.array([*of_name, -1], np.int64)[run.name[rows]])
    return np.concatenate(codes)


@dataclass(frozen=True)
class _Partners:
    """For each dispatch of a pass its row among the timed ones, -1 for none.

    `skipped` marks those that were left out on purpose. `likeness` is None if only helper kernels
    were counted.
    """

    partner: Array
    skipped: Array
    likeness: Likeness | None = None


@dataclass(frozen=True)
class _DevicePair:
    """The dispatches of both runs on one device, as rows of `timed` and of `counted`."""

    timed: Dispatches
    counted: Dispatches
    timed_rows: Array
    counted_rows: Array
    keys: _KernelKeys

    def match(self, issues: IssueLog, where: str) -> _Partners:
        """Match the dispatches by number, else by order."""
        partner = self._by_number()
        if partner is not None:
            count = int(np.count_nonzero(partner >= 0))
            by_number = f"{where}: {count} of {len(self.counted_rows)} by their numbers"
            issues.add(SHARE, count, by_number)
            skipped = self.counted.helper[self.counted_rows] & (partner < 0)
            return _Partners(partner, skipped, self._alike_by_number())
        timed_keys, counted_keys = (
            self.keys.timed[self.timed_rows],
            self.keys.counted[self.counted_rows],
        )
        skipped = self.counted.helper[self.counted_rows]
        if np.array_equal(timed_keys, counted_keys):
            count = len(self.counted_rows)
            issues.add(SHARE, count, f"{where}: {count} of {count}, as both runs are alike")
            own = int(np.count_nonzero(~skipped))
            whole = Likeness(own, own, 2 * own, sizes=(own, own)) if own else None
            return _Partners(self.timed_rows.copy(), np.zeros(count, bool), whole)
        timed_rows = self.timed_rows[~self.timed.helper[self.timed_rows]]
        counted_rows = self.counted_rows[~skipped]
        partner = np.full(len(self.counted_rows), -1, np.int64)
        partner[~skipped], alike = self._by_order(timed_rows, counted_rows, issues, where)
        return _Partners(partner, skipped, alike)

    def _by_number(self) -> Array | None:
        """Partners by the numbers that both processes gave; None if these do not agree.

        They agree if nearly all dispatches of a number are of the same kernel, and if no shift of
        the numbers by a few fits as well.
        """
        timed = self.timed.number[self.timed_rows]
        counted = self.counted.number[self.counted_rows]
        if not timed.size or not counted.size or (timed < 0).any() or (counted < 0).any():
            return None
        order = np.argsort(timed, kind="stable")
        timed, rows = timed[order], self.timed_rows[order]
        if (np.diff(timed) == 0).any() or len(np.unique(counted)) < len(counted):
            return None
        present, index, same = self._look_up(timed, rows, counted)
        if not present.any() or same.sum() < _MIN_SAME_KERNEL * present.sum():
            return None
        share = same.sum() / present.sum()
        for shift in _SHIFTS:
            shifted, _, fits = self._look_up(timed, rows, counted + shift)
            if fits.sum() >= _MIN_SAME_KERNEL * max(shifted.sum(), 1) * share:
                return None
        return np.where(same, rows[index], -1)

    def _alike_by_number(self) -> Likeness:
        """Likeness of the dispatches whose numbers both runs have."""
        _, i, j = np.intersect1d(
            self.timed.number[self.timed_rows],
            self.counted.number[self.counted_rows],
            assume_unique=True,
            return_indices=True,
        )
        a, b = self.keys.timed[self.timed_rows[i]], self.keys.counted[self.counted_rows[j]]
        return likeness.in_order(a, b, np.where(a == b, np.arange(len(a)), -1), (len(a), len(a)))

    def _look_up(self, timed: Array, rows: Array, counted: Array) -> tuple[Array, Array, Array]:
        """Look counted numbers up in the sorted timed ones.

        Returns
        -------
        present, index, same
            Mask of the numbers that are there, their indices, and mask of those of equal kernels.
        """
        index = gather.find(timed, counted)
        present = index >= 0
        equal = self.keys.timed[rows[index]] == self.keys.counted[self.counted_rows]
        return present, index, present & equal

    def _by_order(
        self, timed_rows: Array, counted_rows: Array, issues: IssueLog, where: str
    ) -> tuple[Array, Likeness | None]:
        """Partners of counted rows among timed rows by order; -1 where that is not certain."""
        partner = np.full(len(counted_rows), -1, np.int64)
        a, b = self.keys.timed[timed_rows], self.keys.counted[counted_rows]
        in_counted, in_timed = np.isin(a, b), np.isin(b, a)
        possible = min(int(in_counted.sum()), int(in_timed.sum()))
        if not counted_rows.size:
            return partner, None
        if not possible or max(in_counted.mean(), in_timed.mean()) < _MIN_COMMON_KERNELS:
            share = f"{int(in_timed.sum())} of {len(counted_rows)}"
            issues.add(REFUSED, len(counted_rows), f"{where}: {share} are of kernels that it has")
            return partner, Likeness(sizes=(len(a), len(b)))
        best = self._best_order(timed_rows, counted_rows, _count_common(a, b))
        text = f"{where}: {best.pairs} of {possible} that both may have, {best.how}"
        if best.pairs < _MIN_MATCHED * possible:
            issues.add(REFUSED, len(counted_rows), f"{text}; {_MIN_MATCHED:.0%} are needed")
            return partner, best.likeness
        joined = int(np.count_nonzero(best.position >= 0))
        uncertain = f"; {joined} are certain and joined" if joined < best.pairs else ""
        issues.add(SHARE, joined, text + uncertain)
        longer = in_counted.sum() >= in_timed.sum() + max(best.pairs, 1) / 2
        if best.how != _KTH and joined and (best.repeated or longer):
            ratio = in_counted.sum() / max(best.pairs, 1)
            issues.add(REPEATED, 1, where + (f", {ratio:.3g} repetitions" if longer else ""))
        certain = best.position >= 0
        partner[certain] = timed_rows[best.position[certain]]
        return partner, best.likeness

    def _best_order(self, timed_rows: Array, counted_rows: Array, common: int) -> _Order:
        """Match by the first order in which nearly all that can be in common are found."""
        a, b = self.keys.timed[timed_rows], self.keys.counted[counted_rows]
        enough = _MIN_IN_ORDER * common
        on_device = _match_order(a, b)
        if on_device.pairs >= enough:
            return on_device
        lanes = self.timed.lane[timed_rows], self.counted.lane[counted_rows]
        if len(np.unique(lanes[0])) > 1 and set(lanes[0].tolist()) == set(lanes[1].tolist()):
            on_lanes = _match_lanes(a, b, *lanes)
            if on_lanes.pairs >= enough:
                return on_lanes
        kth = _kth_of_each(a, b)
        count = int(np.count_nonzero(kth >= 0))
        if count < on_device.pairs:
            return on_device
        alike = likeness.by_counts(a, b, count, (len(a), len(b)))
        return _Order(kth, count, _KTH, repeated=False, likeness=alike)


class _Order(NamedTuple):
    """Dispatches matched by an order."""

    position: Array
    """For each counted dispatch its index among the timed ones; -1 if uncertain or missing."""
    pairs: int
    """Number of counted dispatches with a counterpart, also of uncertain ones."""
    how: str
    repeated: bool
    """True if a repetition was chosen, see `order_match.OrderMatch`."""
    likeness: Likeness


_KTH = "in another order: the k-th of each kernel that both have as often"


def _match_order(a: Array, b: Array) -> _Order:
    """For each of `b` its index in `a`, by order."""
    matched = order_match.match_order(a, b)
    position = np.full(len(b), -1, np.int64)
    rows = np.flatnonzero(matched.position >= 0)
    position[matched.position[rows]] = rows
    return _Order(position, matched.pairs, "in the same order", matched.repeated, matched.likeness)


def _match_lanes(a: Array, b: Array, lane_a: Array, lane_b: Array) -> _Order:
    """For each of `b` its index in `a`, by order within each lane."""
    position, pairs, repeated, how = np.full(len(b), -1, np.int64), 0, False, ""
    alike = []
    for lane in np.unique(lane_a).tolist():
        rows_a, rows_b = np.flatnonzero(lane_a == lane), np.flatnonzero(lane_b == lane)
        part = _match_order(a[rows_a], b[rows_b])
        certain = part.position >= 0
        position[rows_b[certain]] = rows_a[part.position[certain]]
        pairs += part.pairs
        repeated |= part.repeated
        how = part.how
        alike.append(part.likeness)
    together = likeness.combined(alike)
    return _Order(position, pairs, f"{how} on each stream", repeated, together)


def _kth_of_each(timed: Array, counted: Array) -> Array:
    """For each counted key the index of its k-th equal timed one, if both have equally many."""
    partner = np.full(len(counted), -1, np.int64)
    first, code = gather.distinct(np.concatenate([timed, counted]))
    codes = code[: len(timed)], code[len(timed) :]
    equal = np.equal(*(np.bincount(c, minlength=len(first)) for c in codes))
    # sorted by code, stably, the k-th of each code stands at the same index in both
    timed_order, counted_order = (np.argsort(c, kind="stable") for c in codes)
    timed_order = timed_order[equal[codes[0][timed_order]]]
    counted_order = counted_order[equal[codes[1][counted_order]]]
    partner[counted_order] = timed_order
    return partner


class PassCounters(NamedTuple):
    """Counters of another run, or of another tool, on the nodes of the timing run."""

    run: Trace
    target: Array
    """For each node of `run` the node of the timing run that it is, -1 for none."""
    issues: IssueLog
    """Log for counters that the timing run or an earlier one of these has too."""


def carry_counters(timing: Trace, passes: Sequence[PassCounters]) -> Trace:
    """Return the timing run with the counters of these, all at once: the cost is linear in their number.

    The pass of the most counters comes first, so that they are divided by cycles of their own run: rocprof-compute
    counts cycles in pmc_perf, which has hundreds, and in levels of one, whose names come before it.
    """
    passes = sorted(passes, key=_distinct_counters, reverse=True)
    tables = [timing.counters, *map(_carried, passes)]
    combined = pa.concat_tables(tables).unify_dictionaries()
    nodes, names = (
        arrow.to_numpy(combined["node"]),
        arrow.to_numpy(combined["name"].combine_chunks()),
    )
    first, _ = gather.distinct(nodes, names)
    duplicate = ~_is_counter(combined, DURATION)
    duplicate[first] = False
    source = np.repeat(np.arange(len(tables)), [table.num_rows for table in tables])
    count = np.bincount(source[duplicate], minlength=len(tables))
    for number, each in enumerate(passes, 1):
        each.issues.add(COUNTED_BEFORE, int(count[number]))
    # a duration is that of the run whose cycles were taken
    counted_by = np.full(int(nodes.max(initial=-1)) + 1, -1)
    cycles = first[_is_counter(combined, _CYCLES)[first]]
    counted_by[nodes[cycles]] = source[cycles]
    of_others = _is_counter(combined, DURATION)[first] & (counted_by[nodes[first]] != source[first])
    first = first[~of_others]
    order = first[np.argsort(nodes[first], kind="stable")]
    result = arrow.take(combined, order).combine_chunks().cast(hub.schema("counters"))
    return replace(timing, counters=result)


def _distinct_counters(counted: PassCounters) -> int:
    return len(arrow.single_chunk(counted.run.counters["name"]).dictionary)


def _carried(counted: PassCounters) -> pa.Table:
    """Counters of the nodes that the timing run has, by its nodes."""
    counters = _with_durations(counted.run)
    node = counted.target[arrow.to_numpy(counters["node"])]
    carried = arrow.take(counters, node >= 0)
    return arrow.replace_column(carried, "node", node[node >= 0])


def _with_durations(run: Trace) -> pa.Table:
    """Counters of a pass, with the duration of each dispatch whose cycles were counted."""
    if run.meta.clock == ORDER:
        return run.counters
    node = run.array("node", "counters")
    node = np.unique(node[_is_counter(run.counters, _CYCLES)])
    value = run.array("dur")[node].astype(np.float64)
    node, value = node[value > 0], value[value > 0]
    name = arrow.dictionary(np.zeros(len(node), np.int32), [DURATION])
    schema = hub.schema("counters")
    columns = {"node": node.astype(np.int32), "name": name, "value": value}
    durations = pa.table([arrow.column(columns[f.name], f.type) for f in schema], schema=schema)
    return pa.concat_tables([run.counters, durations]).unify_dictionaries()


def _is_counter(counters: pa.Table, name: str) -> Array:
    """Mark the rows of a counter."""
    column = arrow.single_chunk(counters["name"])
    is_name = np.array([*(text == name for text in column.dictionary.to_pylist()), False])
    return is_name[arrow.to_numpy(column, -1)]

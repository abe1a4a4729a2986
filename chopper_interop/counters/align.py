"""Counters of runs of their own, brought to the kernels of the timing run.

Counter passes run the program once more, with its kernels one after the other: their times mean
nothing beside the timing run. What can be carried over is which dispatch is which. Dispatches that
both runs number alike are the same; else the runs are matched by the order of their dispatches
(`order_match`), of each device or stream, or, where streams mix them otherwise, by the k-th of each
kernel that both have as often. What does not fit well enough is refused as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow, gather
from chopper_interop.counters import order_match
from chopper_interop.counters.dispatches import Dispatches, base_name, dispatches, plain_name
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.meta import ASSUMED, ORDER

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

__all__ = ["DURATION", "join_counters", "plain_name"]

JOINED = Fault(
    "dispatch-joined",
    Severity.INFO,
    "Dispatches of a counter pass were joined to the same kernels of the timing run.",
    events=True,
)
REPEATED = Fault(
    "counters-of-last-repetition",
    Severity.INFO,
    "Dispatches of a counter pass fit several repetitions in the timing run, such as training "
    "steps, as it repeats what was counted once or as dispatches are missing: the counters went to "
    "the last that fits, which may be another step than theirs.",
)
NOT_JOINED = Fault(
    "dispatch-not-joined",
    Severity.LOSS,
    "Dispatches of a counter pass have no sure counterpart in the timing run: it lacks them, or "
    "made another number of equal ones in a row.",
    events=True,
)
REFUSED = Fault(
    "counter-pass-refused",
    Severity.LOSS,
    "The dispatches of a counter pass on a device are not those of the timing run: too few of them "
    "match for any to be trusted, and none was joined.",
)
NO_DEVICE = Fault(
    "counter-pass-without-device",
    Severity.LOSS,
    "Dispatches of a counter pass are of a device that no device of the timing run is known to be.",
)
HELPERS = Fault(
    "helper-dispatch-skipped",
    Severity.INFO,
    "Dispatches of a counter pass by which the runtime copies and fills memory were not matched, "
    "as runs differ in them.",
    events=True,
)
SHARE = Fault(
    "dispatches-matched",
    Severity.INFO,
    "How many dispatches of a counter pass match the timing run's, and by what.",
)
LEFT_OUT = Fault(
    "dispatch-shape-not-compared",
    Severity.INFO,
    "Sizes of grids or workgroups, or the templates of names, do not agree between a counter pass "
    "and the timing run although the kernels do; they were not compared.",
)
COUNTED_BEFORE = Fault(
    "counter-of-several-runs",
    Severity.INFO,
    "Counters that several passes counted, as clocks are; the first pass was taken.",
)
OTHER_RUN = Fault(
    "event-of-another-run",
    Severity.INFO,
    "Host calls and copies of a counter pass are not those of the timing run and were left out.",
    events=True,
)

DURATION = "dispatch_duration_ns"
"""Counter that a dispatch of a pass brings along: how long it lasted in that pass."""
_NOWHERE = -2
_CYCLES = "GRBM_GUI_ACTIVE"
_LEAST = 0.8
"""Of the dispatches that both runs could have in common, so many must match."""
_SAME_PROGRAM = 0.5
"""Of either run's dispatches, so many must be of kernels that the other has too."""
_IN_ORDER = 0.95
"""Of the dispatches in common, so many are in the same order if the order means anything."""
_NUMBERED_ALIKE = 0.95
_SHIFTS = (-4, -3, -2, -1, 1, 2, 3, 4)
_NEARLY = 0.9


def join_counters(timing: Trace, run: Trace, devices: dict[int, int], issues: IssueLog) -> Trace:
    """Carry the counters of another run over to the kernels of the timing run.

    Parameters
    ----------
    timing
        The run whose times hold.
    run
        A run of the same program in which dispatches were counted.
    devices
        Device of `run` → device of `timing`.
    issues
        Where it is told how many match, and what could not be joined is counted.
    """
    ours, theirs = dispatches(timing), dispatches(run)
    numbers, place = np.unique(theirs.device, return_inverse=True)
    targets = [devices.get(n, _NOWHERE) for n in numbers.tolist()]
    mapped = np.array([*targets, _NOWHERE], np.int64)[place]
    keys = _keys(ours, theirs, mapped != _NOWHERE, issues)
    partner = np.full(len(theirs.node), -1, np.int64)
    skipped = np.zeros(len(theirs.node), bool)
    for device in np.unique(mapped[mapped != _NOWHERE]).tolist():
        other = np.flatnonzero(mapped == device)
        mine = _of_ranks(timing, ours, device, run)
        if not mine.size:
            why = "several ranks call a GPU so" if (ours.device == device).any() else "no kernels"
            issues.add(REFUSED, other.size, f"device {device}: {why}")
            continue
        pair = _Pair(ours, theirs, mine, other, keys)
        found = pair.match(issues, f"device {device}")
        partner[other] = found.partner
        skipped[other] = found.skipped
    _note(run, theirs, partner, skipped, issues)
    issues.add(
        NO_DEVICE, np.count_nonzero(mapped == _NOWHERE), f"{sorted(set(theirs.device.tolist()))}"
    )
    target = np.full(run.nodes.num_rows, -1, np.int32)
    target[theirs.node[partner >= 0]] = ours.node[partner[partner >= 0]]
    return with_counters(timing, run, target, issues)


def _of_ranks(timing: Trace, ours: Dispatches, device: int, run: Trace) -> Array:
    """Dispatches of the timing run on a device: of several hosts those of the pass's own.

    Ranks of several hosts call GPUs by the same numbers. There are none if it is not told which.
    """
    mine = np.flatnonzero(ours.device == device)
    rank = timing.array("rank")[ours.node[mine]]
    ranks = [r for r in timing.meta.ranks if r.rank in set(np.unique(rank).tolist())]
    if len(ranks) <= 1:
        return mine
    stated = {r.rank for r in run.meta.ranks if r.known_by != ASSUMED}
    hosts = {r.host for r in run.meta.ranks if r.host}
    told = [r.rank for r in ranks if r.rank in stated] or [r.rank for r in ranks if r.host in hosts]
    if not told and len({r.host for r in ranks}) > 1:
        return mine[:0]
    return mine[np.isin(rank, told)] if told else mine


def _note(run: Trace, theirs: Dispatches, partner: Array, skipped: Array, issues: IssueLog) -> None:
    lost = np.flatnonzero((partner < 0) & ~skipped)
    example = theirs.names[theirs.name[lost[0]]][:80] if lost.size else ""
    issues.add(JOINED, np.count_nonzero(partner >= 0))
    issues.add(HELPERS, np.count_nonzero(skipped))
    issues.add(NOT_JOINED, lost.size, example)
    issues.add(OTHER_RUN, run.nodes.num_rows - len(theirs.node))


def _keys(ours: Dispatches, theirs: Dispatches, known: Array, issues: IssueLog) -> _Keys:
    """Numbers of what both runs say alike of their dispatches; equal ones for equal kernels."""
    kept = np.flatnonzero(known)
    size = len(ours.node)
    names = _codes(ours, theirs, kept, plain_name)
    bases = _codes(ours, theirs, kept, base_name)
    threads = np.concatenate([ours.threads, theirs.threads[kept]])
    group = np.concatenate([ours.workgroup, theirs.workgroup[kept]])
    ways = {
        "names, grids and workgroups": (names, threads, group),
        "names and workgroups": (names, group),
        "names": (names,),
        "names without templates, grids and workgroups": (bases, threads, group),
        "names without templates and workgroups": (bases, group),
        "names without templates": (bases,),
    }
    codes = {way: gather.distinct(*columns)[1] for way, columns in ways.items()}
    common = {way: _common(c[:size], c[size:]) for way, c in codes.items()}
    best = max(common.values())
    way = next(way for way, count in common.items() if count >= _NEARLY * best)
    issues.add(LEFT_OUT, 0 if way == next(iter(ways)) else len(kept), f"compared: {way}")
    of_theirs = np.full(len(theirs.node), -1, np.int64)
    of_theirs[kept] = codes[way][size:]
    return _Keys(codes[way][:size], of_theirs)


def _common(a: Array, b: Array) -> int:
    """How many elements both have, whatever their order: of numbers from 0 on."""
    most = int(max(a.max(initial=0), b.max(initial=0))) + 1
    return int(np.minimum(np.bincount(a, minlength=most), np.bincount(b, minlength=most)).sum())


@dataclass(frozen=True)
class _Keys:
    ours: Array
    theirs: Array


def _codes(ours: Dispatches, theirs: Dispatches, kept: Array, short: Callable[[str], str]) -> Array:
    """For each dispatch of both, the number of its name."""
    table: dict[str, int] = {}
    codes = []
    for side, rows in ((ours, slice(None)), (theirs, kept)):
        of_name = [table.setdefault(short(name), len(table)) for name in side.names]
        codes.append(np.array([*of_name, -1], np.int64)[side.name[rows]])
    return np.concatenate(codes)


@dataclass(frozen=True)
class _Found:
    """For each dispatch of a pass its place among ours, and whether it was left out on purpose."""

    partner: Array
    skipped: Array


@dataclass(frozen=True)
class _Pair:
    """The dispatches of both runs on one device: rows `mine` of `ours`, `other` of `theirs`."""

    ours: Dispatches
    theirs: Dispatches
    mine: Array
    other: Array
    keys: _Keys

    def match(self, issues: IssueLog, where: str) -> _Found:
        """Which is which."""
        partner = self._by_number()
        if partner is not None:
            count = int(np.count_nonzero(partner >= 0))
            issues.add(SHARE, count, f"{where}: {count} of {len(self.other)} by their numbers")
            return _Found(partner, self.theirs.helper[self.other] & (partner < 0))
        if np.array_equal(self.keys.ours[self.mine], self.keys.theirs[self.other]):
            count = len(self.other)
            issues.add(SHARE, count, f"{where}: {count} of {count}, as both runs are alike")
            return _Found(self.mine.copy(), np.zeros(count, bool))
        skipped = self.theirs.helper[self.other]
        mine = self.mine[~self.ours.helper[self.mine]]
        other = self.other[~skipped]
        partner = np.full(len(self.other), -1, np.int64)
        partner[~skipped] = self._by_order(mine, other, issues, where)
        return _Found(partner, skipped)

    def _by_number(self) -> Array | None:
        """Partners by the numbers that both processes gave; None if these do not agree.

        They agree if nearly all dispatches of a number are of the same kernel, and are not if
        either run's numbers are moved by a few.
        """
        ours, theirs = self.ours.number[self.mine], self.theirs.number[self.other]
        if not ours.size or not theirs.size or (ours < 0).any() or (theirs < 0).any():
            return None
        order = np.argsort(ours, kind="stable")
        ours, mine = ours[order], self.mine[order]
        if (np.diff(ours) == 0).any() or len(np.unique(theirs)) < len(theirs):
            return None
        there, at, same = self._numbered(ours, mine, theirs)
        if not there.any() or same.sum() < _NUMBERED_ALIKE * there.sum():
            return None
        share = same.sum() / there.sum()
        for shift in _SHIFTS:
            moved, _, fits = self._numbered(ours, mine, theirs + shift)
            if fits.sum() >= _NUMBERED_ALIKE * max(moved.sum(), 1) * share:
                return None
        return np.where(same, mine[at], -1)

    def _numbered(self, ours: Array, mine: Array, theirs: Array) -> tuple[Array, Array, Array]:
        """Which numbers of theirs ours has, where, and which of these are of the same kernel."""
        at = np.minimum(np.searchsorted(ours, theirs), len(ours) - 1)
        there = ours[at] == theirs
        return there, at, there & (self.keys.ours[mine[at]] == self.keys.theirs[self.other])

    def _by_order(self, mine: Array, other: Array, issues: IssueLog, where: str) -> Array:
        """Partners of rows of theirs among rows of ours by order; -1 where that is not sure."""
        partner = np.full(len(other), -1, np.int64)
        a, b = self.keys.ours[mine], self.keys.theirs[other]
        both, both_2 = np.isin(a, b), np.isin(b, a)
        possible = min(int(both.sum()), int(both_2.sum()))
        if not other.size:
            return partner
        if not possible or max(both.mean(), both_2.mean()) < _SAME_PROGRAM:
            told = f"{where}: {int(both_2.sum())} of {len(other)} are of kernels that it has"
            issues.add(REFUSED, len(other), told)
            return partner
        found, pairs, way, repeated = self._best(mine, other, _common(a, b))
        told = f"{where}: {pairs} of {possible} that both may have, {way}"
        if pairs < _LEAST * possible:
            issues.add(REFUSED, len(other), f"{told}; {_LEAST:.0%} are needed")
            return partner
        joined = int(np.count_nonzero(found >= 0))
        unsure = f"; {joined} are sure and joined" if joined < pairs else ""
        issues.add(SHARE, joined, told + unsure)
        longer = both.sum() >= both_2.sum() + max(pairs, 1) / 2
        if way != _KTH and joined and (repeated or longer):
            times = f", {both.sum() / max(pairs, 1):.3g} repetitions" if longer else ""
            issues.add(REPEATED, 1, where + times)
        partner[found >= 0] = mine[found[found >= 0]]
        return partner

    def _best(self, mine: Array, other: Array, common: int) -> _Way:
        """Partners by the first way of matching that finds nearly all that can be in common."""
        a, b = self.keys.ours[mine], self.keys.theirs[other]
        enough = _IN_ORDER * common
        whole = _ordered(a, b)
        if whole.pairs >= enough:
            return whole
        lanes, lanes_2 = self.ours.lane[mine], self.theirs.lane[other]
        if len(np.unique(lanes)) > 1 and set(lanes.tolist()) == set(lanes_2.tolist()):
            of_lanes, of_all, any_repeated = np.full(len(b), -1, np.int64), 0, False
            for lane in np.unique(lanes).tolist():
                rows, rows_2 = np.flatnonzero(lanes == lane), np.flatnonzero(lanes_2 == lane)
                part, count, way, repeated = _ordered(a[rows], b[rows_2])
                of_lanes[rows_2[part >= 0]] = rows[part[part >= 0]]
                of_all += count
                any_repeated |= repeated
            if of_all >= enough:
                return _Way(of_lanes, of_all, f"{way} on each stream", any_repeated)
        kth = _kth_of_each(a, b)
        count = int(np.count_nonzero(kth >= 0))
        return _Way(kth, count, _KTH, repeated=False) if count >= whole.pairs else whole


class _Way(NamedTuple):
    """For each of theirs its place in ours, how many have one, sure or not, and by what."""

    place: Array
    pairs: int
    way: str
    repeated: bool


_KTH = "in another order: the k-th of each kernel that both have as often"


def _ordered(a: Array, b: Array) -> _Way:
    """For each of `b` its place in `a` by order."""
    found = order_match.match(a, b)
    place = np.full(len(b), -1, np.int64)
    at = np.flatnonzero(found.place >= 0)
    place[found.place[at]] = at
    return _Way(place, found.pairs, "in the same order", found.repeated)


def _kth_of_each(ours: Array, theirs: Array) -> Array:
    """For each of theirs, the position of ours that is the same, where both have as many."""
    partner = np.full(len(theirs), -1, np.int64)
    first, code = gather.distinct(np.concatenate([ours, theirs]))
    our_code, their_code = code[: len(ours)], code[len(ours) :]
    our_count, their_count = (np.bincount(c, minlength=len(first)) for c in (our_code, their_code))
    sure = our_count == their_count
    our_order, their_order = (np.argsort(c, kind="stable") for c in (our_code, their_code))
    our_order = our_order[sure[our_code[our_order]]]
    their_order = their_order[sure[their_code[their_order]]]
    partner[their_order] = our_order
    return partner


def with_counters(timing: Trace, run: Trace, target: Array, issues: IssueLog) -> Trace:
    """The timing run with the counters of another, or of another tool.

    Parameters
    ----------
    timing, run
        The two.
    target
        For each node of `run` the one of `timing` that it is, -1 for none.
    issues
        Where it is noted what both count.
    """
    counted = _with_durations(run)
    node = target[arrow.numbers(counted["node"])]
    carried = arrow.take(counted, node >= 0)
    carried = arrow.replaced(carried, "node", node[node >= 0])
    both = pa.concat_tables([timing.counters, carried]).unify_dictionaries()
    nodes, names = arrow.numbers(both["node"]), arrow.numbers(both["name"].combine_chunks())
    first, _ = gather.distinct(nodes, names)
    twice = np.ones(len(nodes), bool)
    twice[first] = False
    issues.add(COUNTED_BEFORE, np.count_nonzero(twice & ~_named(both, DURATION)))
    order = first[np.argsort(nodes[first], kind="stable")]
    counters = arrow.take(both, order).combine_chunks().cast(hub.schema("counters"))
    return replace(timing, counters=counters)


def _with_durations(run: Trace) -> pa.Table:
    """Counters of a pass, with the duration of each dispatch of which cycles were counted."""
    if run.meta.clock == ORDER:
        return run.counters
    node = run.array("node", "counters")
    node = np.unique(node[_named(run.counters, _CYCLES)])
    value = run.array("dur")[node].astype(np.float64)
    node, value = node[value > 0], value[value > 0]
    name = arrow.dictionary(np.zeros(len(node), np.int32), [DURATION])
    schema = hub.schema("counters")
    columns = {"node": node.astype(np.int32), "name": name, "value": value}
    more = pa.table([arrow.column(columns[f.name], f.type) for f in schema], schema=schema)
    return pa.concat_tables([run.counters, more]).unify_dictionaries()


def _named(counters: pa.Table, name: str) -> Array:
    """Which rows are of this counter."""
    column = arrow.flat(counters["name"])
    wanted = np.array([*(text == name for text in column.dictionary.to_pylist()), False])
    found: Array = wanted[arrow.numbers(column, -1)]
    return found

"""Clocks of a job's sources: relations that sources record, and those that the user states.

A clock that counts from boot is that of one host: its relation to real time holds for the sources
of that host only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.clocks import relations as clocks
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.errors import UsageError
from chopper_interop.grouping import by_key
from chopper_interop.schemas.meta import COMPUTED, ORDER, REALTIME, ClockFit, Offset
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.joining.fragment import Fragment

NOT_CLOCKS = (ORDER, COMPUTED)
"""Values of `Meta.clock` of times that no clock showed."""
_SAME_OFFSET_NS = 1_000_000
"""Sources that read two clocks of one host differ by less; hosts booted separately by much more."""


@dataclass(frozen=True)
class Relation:
    """Relation of a host's clock to real time, as a source on real time records it."""

    offset: Offset
    hosts: frozenset[str]
    path: Path
    """First file of the source that records it."""


@dataclass(frozen=True)
class SourceClocks:
    """Known relations of the clocks of a job's sources.

    Parameters
    ----------
    relations
        Relations that sources record.
    rules
        Offsets that the user states.
    hosts
        Hosts named by sources whose clocks are not real time.
    user_fits
        First file of each profile whose clock the user states → its fit.
    """

    relations: tuple[Relation, ...] = ()
    rules: tuple[ClockRule, ...] = ()
    hosts: frozenset[str] = frozenset()
    user_fits: dict[Path, ClockFit] = field(default_factory=dict)

    def relation(self, fragment: Fragment) -> Relation | None:
        """Relation of a fragment's clock to real time; None where that is not certain.

        A source of its host determines it, else the source whose files lie nearest. Sources that
        disagree determine nothing; where there are several hosts, neither does a source of another
        host or in another folder.
        """
        of_clock = [r for r in self.relations if r.offset.clock == fragment.trace.meta.clock]
        hosts = _hosts(fragment)
        relations = [r for r in of_clock if r.hosts & hosts]
        if not relations:
            without_host = [r for r in of_clock if not r.hosts or not hosts]
            relations = _nearest(without_host, fragment.path, several=len(self.hosts) > 1)
        return relations[0] if relations and _agree(relations) else None


def collect_clocks(
    fragments: Sequence[Fragment], rules: Iterable[ClockRule]
) -> tuple[SourceClocks, list[Fragment]]:
    """Collect relations of clocks, and move profiles as the user states.

    A moved profile keeps the name of its clock until the clock of the trace is known.
    """
    of_hosts = [f for f in fragments if f.trace.meta.clock not in (REALTIME, *NOT_CLOCKS)]
    hosts: frozenset[str] = frozenset().union(*map(_hosts, of_hosts))
    relations = [
        Relation(offset, _hosts(f) or _hosts_in_path(f.path, hosts), f.path)
        for f in fragments
        if f.trace.meta.clock == REALTIME
        for offset in f.trace.meta.offsets
    ]
    known = SourceClocks(tuple(relations), tuple(rules), hosts)
    are_joined = _are_joined(fragments)
    moved = [_moved_by_user(f, known, joined=are_joined and _is_relative(f)) for f in fragments]
    return known, moved


def _moved_by_user(fragment: Fragment, known: SourceClocks, *, joined: bool) -> Fragment:
    """Move a profile as the user states, and record the fit in `known.user_fits`."""
    meta = fragment.trace.meta
    if not fragment.trace.nodes.num_rows or meta.clock in NOT_CLOCKS:
        return fragment
    name, path = fragment.files.converter.name, fragment.path
    rule = clock_rules.rule_of_source(known.rules, name, str(path), joined=joined)
    if rule is None:
        return fragment
    known.user_fits[path] = user_fit(str(path), meta.clock, rule)
    refuse_before_1970(meta.origin_ns, rule)
    moved = clocks.shift_trace(fragment.trace, rule.offset_ns, meta.clock)
    return replace(fragment, trace=moved)


def _are_joined(fragments: Sequence[Fragment]) -> bool:
    """True if rules without a source apply to profiles on other clocks: only if there is no telemetry."""
    if any(is_telemetry(f) for f in fragments):
        return False
    return any(not _is_relative(f) and f.trace.nodes.num_rows for f in fragments)


def _is_relative(fragment: Fragment) -> bool:
    """True if its clock is not real time."""
    return fragment.trace.meta.clock != REALTIME


def is_telemetry(fragment: Fragment) -> bool:
    """True if it has samples and no nodes."""
    return bool(fragment.trace.samples.num_rows) and not fragment.trace.nodes.num_rows


def reference_telemetry(fragment: Fragment, known: SourceClocks) -> tuple[Trace, list[ClockFit]]:
    """Telemetry to which other telemetry is joined, moved as the user states, and its fit."""
    meta, path = fragment.trace.meta, str(fragment.path)
    name = fragment.files.converter.name
    rule = clock_rules.rule_of_source(known.rules, name, path, joined=False)
    if rule is None:
        return fragment.trace, []
    refuse_before_1970(meta.origin_ns, rule)
    moved = clocks.shift_trace(fragment.trace, rule.offset_ns, meta.clock)
    return moved, [user_fit(path, meta.clock, rule)]


def user_fit(of: str, clock: str, rule: ClockRule) -> ClockFit:
    """Fit of a rank or source that the user states."""
    return ClockFit(of, clock, clocks.USER, rule.offset_ns)


def refuse_before_1970(origin_ns: int, rule: ClockRule) -> None:
    """Raise `UsageError` if the user's offset gives times before those that clocks show."""
    if origin_ns + rule.offset_ns < 0:
        raise UsageError(
            f"--clock-offset {rule.text}: times would lie before those that a clock can show",
            hint="it is what is added to the times of the source to get those of the trace",
        )


def on_one_clock(
    timing: list[Fragment], known: SourceClocks, *, real: bool
) -> tuple[list[Fragment], list[ClockFit]]:
    """Bring profiles to real time, if the relations of all their clocks to it are known.

    Parameters
    ----------
    timing
        Profiles.
    known
        Relations of their clocks.
    real
        True if any source of the job is on real time.
    """
    fits = [known.user_fits[f.path] for f in timing if f.path in known.user_fits]
    others = [f for f in timing if f.trace.meta.clock not in (REALTIME, *NOT_CLOCKS)]
    relations = {f.path: known.relation(f) for f in others if f.path not in known.user_fits}
    if not others or not (real or known.relations) or None in relations.values():
        return timing, fits
    moved = []
    for fragment in timing:
        if fragment.trace.meta.clock in (REALTIME, *NOT_CLOCKS):
            moved.append(fragment)
            continue
        relation = relations.get(fragment.path)
        offset_ns = 0  # that of the user is applied already
        if relation is not None:
            offset_ns = relation.offset.offset_ns
            fits.append(related_fit(str(fragment.path), relation))
        trace = clocks.shift_trace(fragment.trace, offset_ns, REALTIME)
        moved.append(replace(fragment, trace=trace))
    return moved, fits


def related_fit(of: str, relation: Relation) -> ClockFit:
    """Fit of a source whose clock another source relates to real time."""
    offset = relation.offset
    return ClockFit(
        of,
        offset.clock,
        clocks.THREE_CLOCKS,
        offset.offset_ns,
        uncertainty_ns=offset.uncertainty_ns,
        reason=f"recorded by {relation.path.name}",
    )


def move_ranks_by_user(
    timing: list[Fragment], known: SourceClocks
) -> tuple[list[Fragment], list[ClockFit]]:
    """Move the ranks whose clock the user states."""
    fits, moved = {}, []
    for fragment in timing:
        offsets = {}
        for rank in fragment.trace.ranks:
            rule = clock_rules.rule_of_rank(known.rules, rank)
            if rule is not None:
                refuse_before_1970(fragment.trace.meta.origin_ns, rule)
                offsets[rank] = rule.offset_ns
                fits[rank] = user_fit(clocks.rank_label(rank), fragment.trace.meta.clock, rule)
        trace = clocks.shift_ranks(fragment.trace, offsets)
        moved.append(replace(fragment, trace=trace) if offsets else fragment)
    return moved, [fits[rank] for rank in sorted(fits)]


def offsets_of_job(known: SourceClocks) -> tuple[Offset, ...]:
    """Relations that hold for the job as one: those of one host, or on which all agree."""
    by_clock = by_key(known.relations, lambda relation: relation.offset.clock)
    return tuple(same[0].offset for same in by_clock.values() if _agree(same))


def refuse_unused(
    rules: Iterable[ClockRule], fragments: Iterable[Fragment], ranks: Iterable[int]
) -> None:
    """Raise `UsageError` for a rule of a clock that the job does not have."""
    fragments = list(fragments)
    timed = [f for f in fragments if _has_times(f)]
    sources = [(f.files.converter.name, str(f.path)) for f in timed]
    is_any_joined = any(map(is_telemetry, timed)) or (
        _are_joined(fragments) and any(map(_is_relative, timed))
    )
    numbers = set(ranks)
    for rule in rules:
        if rule.rank >= 0:
            used = rule.rank in numbers
        elif rule.source:
            used = any(rule.applies_to(*source) for source in sources)
        else:
            used = len(timed) > 1 and is_any_joined
        if not used:
            raise UsageError(
                f"--clock-offset {rule.text}: {_reason_unused(rule)}",
                hint="name a format, a pattern of files or a rank that is among what is read",
            )


def _reason_unused(rule: ClockRule) -> str:
    if rule.rank >= 0:
        return f"there is no rank {rule.rank}"
    if rule.source:
        return f"no source {rule.source!r} has times"
    return "nothing is joined to the profiles that has a clock of its own"


def _has_times(fragment: Fragment) -> bool:
    trace = fragment.trace
    has_rows = trace.nodes.num_rows or trace.samples.num_rows
    return bool(has_rows) and trace.meta.clock not in NOT_CLOCKS


def _hosts(fragment: Fragment) -> frozenset[str]:
    """Short names of the hosts of a fragment's ranks and devices, in lower case."""
    meta = fragment.trace.meta
    names = {d.host for d in meta.devices} | {r.host for r in meta.ranks}
    return frozenset(name.lower().split(".")[0] for name in names) - {""}


def _hosts_in_path(path: Path, hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(host for host in hosts if names_host(path, host))


def names_host(path: Path, host: str) -> bool:
    """True if a part of a path is a host's name, or has it between other than letters and digits."""
    short = host.lower().split(".")[0]
    return any(_has_name(part.lower(), short) for part in path.parts)


def _has_name(part: str, short: str) -> bool:
    at = part.find(short)
    bounds = (part[at - 1 : at], part[at + len(short) :][:1])
    return at >= 0 and not any(b.isalnum() for b in bounds)


def _nearest(relations: list[Relation], path: Path, *, several: bool) -> list[Relation]:
    """Relations whose files lie nearest to a path: in its folder, or the nearest one around it.

    Where there are several hosts, none if all relations are as near: they may be of any host.
    """
    for folder in path.resolve().parents:
        inside = [r for r in relations if r.path.resolve().is_relative_to(folder)]
        if inside:
            return inside if not several or len(inside) < len(relations) else []
    return []


def _agree(relations: list[Relation]) -> bool:
    """True if all relations are the same within their uncertainties."""
    first = relations[0].offset
    return all(
        abs(r.offset.offset_ns - first.offset_ns)
        <= first.uncertainty_ns + r.offset.uncertainty_ns + _SAME_OFFSET_NS
        for r in relations
    )

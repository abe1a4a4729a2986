"""The clocks of a job's sources: what they tell of each other's, and what the user says.

Clocks that count from boot are those of one node: what tells how one of them relates to real time
holds for the sources of its node alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chopper_interop.clocks import relations as clocks
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.errors import UsageError
from chopper_interop.schemas.meta import COMPUTED, ORDER, REALTIME, ClockFit, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.trace import Trace

NO_CLOCK = (ORDER, COMPUTED)
"""What times may be on that are none."""


@dataclass(frozen=True)
class Relation:
    """How a clock of a node relates to real time, as a source of real time tells it."""

    offset: Offset
    hosts: frozenset[str]
    path: Path
    """First file of who tells it."""


@dataclass(frozen=True)
class Clocks:
    """What is known of the clocks of a job's sources.

    Parameters
    ----------
    relations
        What sources tell.
    rules
        What the user says.
    hosts
        The nodes that sources name whose clocks are not real time.
    told
        First file of each profile whose clock the user told → its fit.
    """

    relations: tuple[Relation, ...] = ()
    rules: tuple[ClockRule, ...] = ()
    hosts: frozenset[str] = frozenset()
    told: dict[Path, ClockFit] = field(default_factory=dict)

    def relation(self, fragment: Fragment) -> Relation | None:
        """How the clock of a fragment relates to real time; None where that is not sure.

        Who is of its host tells it, else who lies nearest to it. Of those who disagree none is
        believed, and where there are several hosts none that tells another or lies elsewhere.
        """
        about = [r for r in self.relations if r.offset.clock == fragment.trace.meta.clock]
        mine = _hosts(fragment)
        same = [r for r in about if r.hosts & mine]
        if not same:
            open_ = [r for r in about if not r.hosts or not mine]
            same = _nearest(open_, _path(fragment), several=len(self.hosts) > 1)
        return same[0] if same and _agree(same) else None


def known(
    fragments: Sequence[Fragment], rules: Iterable[ClockRule]
) -> tuple[Clocks, list[Fragment]]:
    """What is known of clocks, and the fragments with profiles moved as the user says.

    A profile so moved keeps the name of its clock until it is known which the trace's is.
    """
    of_nodes = [f for f in fragments if f.trace.meta.clock not in (REALTIME, *NO_CLOCK)]
    hosts: frozenset[str] = frozenset().union(*map(_hosts, of_nodes))
    relations = [
        Relation(offset, _hosts(f) or _hosts_in_path(_path(f), hosts), _path(f))
        for f in fragments
        if f.trace.meta.clock == REALTIME
        for offset in f.trace.meta.offsets
    ]
    found = Clocks(tuple(relations), tuple(rules), hosts)
    moved = [_as_told(f, found, joined=_is_joined(f, fragments)) for f in fragments]
    return found, moved


def _as_told(fragment: Fragment, about: Clocks, *, joined: bool) -> Fragment:
    meta = fragment.trace.meta
    if not fragment.trace.nodes.num_rows or meta.clock in NO_CLOCK:
        return fragment
    name, path = fragment.files.converter.name, _path(fragment)
    said = clock_rules.of_source(about.rules, name, str(path), joined=joined)
    if said is None:
        return fragment
    about.told[path] = user_fit(str(path), meta.clock, said)
    refuse_before_1970(meta.origin_ns, said)
    return replace(fragment, trace=clocks.moved(fragment.trace, said.offset_ns, meta.clock))


def _is_joined(fragment: Fragment, fragments: Sequence[Fragment]) -> bool:
    """Whether a profile is one that rules for all are about: only if there is no telemetry."""
    if any(is_telemetry(f) for f in fragments) or fragment.trace.meta.clock == REALTIME:
        return False
    return any(f.trace.meta.clock == REALTIME and f.trace.nodes.num_rows for f in fragments)


def is_telemetry(fragment: Fragment) -> bool:
    """Whether it holds samples alone."""
    return bool(fragment.trace.samples.num_rows) and not fragment.trace.nodes.num_rows


def first_as_told(fragment: Fragment, about: Clocks) -> tuple[Trace, list[ClockFit]]:
    """Telemetry to which other telemetry is brought, if the user tells of its clock as well."""
    meta, path = fragment.trace.meta, str(_path(fragment))
    name = fragment.files.converter.name
    said = clock_rules.of_source(about.rules, name, path, joined=False)
    if said is None:
        return fragment.trace, []
    refuse_before_1970(meta.origin_ns, said)
    moved = clocks.moved(fragment.trace, said.offset_ns, meta.clock)
    return moved, [user_fit(path, meta.clock, said)]


def user_fit(of: str, clock: str, said: ClockRule) -> ClockFit:
    """The fit that the user tells."""
    return ClockFit(of, clock, clocks.USER, said.offset_ns)


def refuse_before_1970(origin_ns: int, said: ClockRule) -> None:
    """Raise `UsageError` if what the user says gives times that no clock shows."""
    if origin_ns + said.offset_ns < 0:
        raise UsageError(
            f"--clock-offset {said.text}: times would lie before those that a clock can show",
            hint="it is what is added to the times of the source to get those of the trace",
        )


def on_one_clock(
    timing: list[Fragment], about: Clocks, *, real: bool
) -> tuple[list[Fragment], list[ClockFit]]:
    """Bring profiles to real time, if it is known of all how their clocks relate to it.

    Parameters
    ----------
    timing
        Profiles.
    about
        What is known of their clocks.
    real
        Whether any source of the job is on real time.
    """
    fits = [about.told[_path(f)] for f in timing if _path(f) in about.told]
    others = [f for f in timing if f.trace.meta.clock not in (REALTIME, *NO_CLOCK)]
    free = [f for f in others if _path(f) not in about.told]
    relations = {_path(f): about.relation(f) for f in free}
    if not others or not (real or about.relations) or None in relations.values():
        return timing, fits
    made = []
    for fragment in timing:
        meta, path = fragment.trace.meta, _path(fragment)
        if meta.clock in (REALTIME, *NO_CLOCK):
            made.append(fragment)
            continue
        relation = relations.get(path)
        offset_ns = 0
        if relation is not None:
            offset_ns = relation.offset.offset_ns
            fits.append(related_fit(str(path), relation))
        made.append(replace(fragment, trace=clocks.moved(fragment.trace, offset_ns, REALTIME)))
    return made, fits


def related_fit(of: str, relation: Relation) -> ClockFit:
    """The fit of a source whose clock another source tells."""
    offset = relation.offset
    return ClockFit(
        of,
        offset.clock,
        clocks.THREE_CLOCKS,
        offset.offset_ns,
        uncertainty_ns=offset.uncertainty_ns,
        reason=f"told by {relation.path.name}",
    )


def ranks_as_told(timing: list[Fragment], about: Clocks) -> tuple[list[Fragment], list[ClockFit]]:
    """Move the ranks of which the user says what their clock is."""
    fits, made = {}, []
    for fragment in timing:
        by = {}
        for rank in fragment.trace.ranks:
            said = clock_rules.of_rank(about.rules, rank)
            if said is not None:
                refuse_before_1970(fragment.trace.meta.origin_ns, said)
                by[rank] = said.offset_ns
                fits[rank] = user_fit(clocks.of_rank(rank), fragment.trace.meta.clock, said)
        moved = clocks.with_ranks_moved(fragment.trace, by)
        made.append(replace(fragment, trace=moved) if by else fragment)
    return made, [fits[rank] for rank in sorted(fits)]


def offsets(about: Clocks) -> tuple[Offset, ...]:
    """Relations that hold for the whole job: those of one node, or on which all agree."""
    found: dict[str, list[Relation]] = {}
    for relation in about.relations:
        found.setdefault(relation.offset.clock, []).append(relation)
    return tuple(same[0].offset for same in found.values() if _agree(same))


def refuse_unused(
    rules: Iterable[ClockRule], fragments: Iterable[Fragment], ranks: Iterable[int]
) -> None:
    """Raise `UsageError` for what the user says of a clock that the job has not."""
    given = list(fragments)
    sources = [(f.files.converter.name, str(_path(f))) for f in given if _has_times(f)]
    some = [f for f in given if _has_times(f)]
    all_ = len(some) > 1 and any(is_telemetry(f) or _is_joined(f, given) for f in some)
    numbers = set(ranks)
    for rule in rules:
        if rule.rank >= 0:
            used = rule.rank in numbers
        elif rule.source:
            used = any(rule.is_of(*source) for source in sources)
        else:
            used = all_
        if not used:
            raise UsageError(
                f"--clock-offset {rule.text}: {_missing(rule)}",
                hint="name a format, a pattern of files or a rank that is among what is read",
            )


def _missing(rule: ClockRule) -> str:
    if rule.rank >= 0:
        return f"there is no rank {rule.rank}"
    if rule.source:
        return f"no source {rule.source!r} has times"
    return "nothing is joined to the profiles that has a clock of its own"


def _has_times(fragment: Fragment) -> bool:
    trace = fragment.trace
    some = trace.nodes.num_rows or trace.samples.num_rows
    return bool(some) and trace.meta.clock not in NO_CLOCK


def _path(fragment: Fragment) -> Path:
    return fragment.files.paths[0]


def _hosts(fragment: Fragment) -> frozenset[str]:
    meta = fragment.trace.meta
    names = {d.host for d in meta.devices} | {r.host for r in meta.ranks}
    return frozenset(name.lower().split(".")[0] for name in names) - {""}


def _hosts_in_path(path: Path, hosts: Iterable[str]) -> frozenset[str]:
    return frozenset(host for host in hosts if names_host(path, host))


def names_host(path: Path, host: str) -> bool:
    """Whether a part of a path is a host's name, or has it apart from other letters."""
    short = host.lower().split(".")[0]
    return any(_has_name(part.lower(), short) for part in path.parts)


def _has_name(part: str, short: str) -> bool:
    at = part.find(short)
    bounds = (part[at - 1 : at], part[at + len(short) :][:1])
    return at >= 0 and not any(b.isalnum() for b in bounds)


def _nearest(relations: list[Relation], path: Path, *, several: bool) -> list[Relation]:
    """Those whose files lie nearest to a path: in its folder, or the nearest one around it.

    Where there are several hosts, they are only believed if nobody else is as near.
    """
    for folder in path.resolve().parents:
        inside = [r for r in relations if r.path.resolve().is_relative_to(folder)]
        if inside:
            return inside if not several or len(inside) < len(relations) else []
    return []


def _agree(relations: list[Relation]) -> bool:
    """Whether all tell the same, within what they are uncertain by."""
    first = relations[0].offset
    return all(
        abs(r.offset.offset_ns - first.offset_ns)
        <= first.uncertainty_ns + r.offset.uncertainty_ns + _SAME_NS
        for r in relations
    )


_SAME_NS = 1_000_000
"""Who reads two clocks of a node differs by less; nodes that were booted apart by much more."""

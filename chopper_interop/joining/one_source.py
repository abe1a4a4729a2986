"""A job of one source: nothing is joined, so that a file alone does not import what joins several.

What `joining.job` does in the same way for several sources is here, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chopper_interop.build import concat
from chopper_interop.edges import collectives
from chopper_interop.gpus import devices
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import ORDER, REALTIME, ClockFit, DeviceMatch, Meta, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment


def is_whole(fragments: list[Fragment]) -> bool:
    """True if there is one source, with times on one clock: nothing has to be joined."""
    if len(fragments) != 1:
        return False
    trace = fragments[0].trace
    return (
        trace.nodes.num_rows > 0
        and trace.meta.clock != ORDER
        and not trace.meta.offsets
        and len({r.host for r in trace.meta.ranks}) < 2  # noqa: PLR2004
    )


def job_of_one(fragment: Fragment, name: str) -> Trace:
    """Trace of a job's only source."""
    issues = IssueLog("job")
    meta = meta_of(name, [fragment], [fragment])
    trace = with_collectives(concat([fragment.trace], meta), issues)
    trace = trace.with_meta(devices=devices.identified_devices(trace, meta.devices))
    return with_sources_and_issues(trace, [fragment], issues)


def with_collectives(trace: Trace, issues: IssueLog) -> Trace:
    """Match the collectives of all ranks, and bring the ranks to one clock by them."""
    trace = collectives.match_collectives(collectives.name_collectives(trace), issues)
    if len(trace.ranks) < 2:  # noqa: PLR2004
        return trace
    from chopper_interop.clocks import ranks as rank_clocks

    return rank_clocks.align_ranks(trace, issues)


def with_sources_and_issues(trace: Trace, fragments: list[Fragment], issues: IssueLog) -> Trace:
    """The trace with the sources and issues of all fragments."""
    collected = IssueLog()
    for fragment in fragments:
        collected.extend(fragment.trace.meta.issues)
    collected.extend(issues)
    sources = (source for fragment in fragments for source in fragment.trace.meta.sources)
    return trace.with_meta(issues=tuple(collected), sources=tuple(sources))


def meta_of(
    name: str,
    fragments: list[Fragment],
    timing: list[Fragment],
    fits: Sequence[ClockFit] = (),
    matches: Sequence[DeviceMatch] = (),
) -> Meta:
    """Description of the job, with the ranks and devices of the run whose times it has."""
    ranks: dict[int, Rank] = {}
    for f in timing:
        ranks |= {r.rank: r for r in f.trace.meta.ranks}
    distinct_devices = {d: None for f in timing for d in f.trace.meta.devices}
    clock_names = {f.trace.meta.clock for f in timing}
    earlier_fits = [fit for f in timing for fit in f.trace.meta.clocks]
    return Meta(
        job=name,
        clock=REALTIME if REALTIME in clock_names else min(clock_names, default=REALTIME),
        clocks=tuple(dict.fromkeys([*earlier_fits, *fits])),
        ranks=tuple(ranks[r] for r in sorted(ranks)),
        devices=tuple(distinct_devices),
        device_matches=(*(m for f in timing for m in f.trace.meta.device_matches), *matches),
        facts=facts_of(fragments),
        issues=tuple(issue for f in timing for issue in f.trace.meta.issues),
        # of several traces the analyses would say something else
        marks=fragments[0].trace.meta.marks if len(fragments) == 1 else (),
    )


def facts_of(fragments: list[Fragment]) -> dict[str, str]:
    """Facts that sources state, of the last where they differ."""
    facts: dict[str, str] = {}
    for fragment in fragments:
        facts |= fragment.trace.meta.facts
    return facts

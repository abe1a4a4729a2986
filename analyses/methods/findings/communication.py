"""Transfers that nothing hides: communication and copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.activity import host_waits
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.arrays import gather
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind
from chopper_interop.schemas.names import HOST_COPY

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import ExaminedJob

_SENDS, _UNKNOWN = "sends and receives", "communication of an unknown kind"
_TWO_ENDS = {Collective.SEND: _SENDS, Collective.RECV: _SENDS}
"""Kinds that are two ends of one communication."""
_CONDITIONS = {_SENDS: "collective in ('send', 'recv')", _UNKNOWN: "collective.isna()"}
"""Queries for what is no kind of collective."""
_MAX_KINDS = 6
"""Kinds of communication, and of copies, that are re-timed. Chosen: those with most time, few enough to be quick."""


def exposed_collectives(job: ExaminedJob) -> Iterator[Finding]:
    """Find kinds of communication whose transfers make steps longer."""
    trace = job.trace
    row = np.flatnonzero((trace.array("kind") == Kind.COMM) & job.inside)
    if not row.size:
        return
    code, texts = trace.texts("collective", row)
    kinds = [_TWO_ENDS.get(text, text) for text in (*texts, _UNKNOWN)]
    of_row = np.array(kinds)[code]
    total = {kind: int(trace.array("dur")[row[of_row == kind]].sum()) for kind in set(kinds)}
    unlaunched = job.on_gpu & (trace.launch < 0) & job.inside
    for name in sorted(total, key=lambda kind: (-total[kind], kind))[:_MAX_KINDS]:
        members = job.mask(row[of_row == name])
        times = job.times().take_no_time(members)
        alone = bool((trace.integers("instance")[members] < 0).all())
        waiters_unknown = alone and bool(unlaunched[members].all())
        if waiters_unknown:
            times.start_without(unlaunched & ~members, members)
        saved = job.saved(times)
        place = job.place(members)
        condition = _CONDITIONS.get(name, f"collective == '{name}'")
        waits = " It includes waits for ranks that were not recorded." if alone else ""
        waits += " What waits for it was not recorded." if waiters_unknown else ""
        change = f"scale=0 where kind == 'comm' and {condition}"
        yield Finding.from_saving(
            "exposed-collective",
            saved,
            place,
            name,
            LIKELY if alone else MODELLED,
            f"Transfers of {name} are not hidden by compute.{waits}",
            job.command("overlap") if waiters_unknown else job.what_if(change),
        )


def exposed_copies(job: ExaminedJob) -> Iterator[Finding]:
    """Find kinds of copies that make steps longer, but for those that their call or a later one waits for."""
    trace = job.trace
    blocking = np.append(job.mask(host_waits.calls_that_waited(trace)), False)
    copies = (trace.array("kind") == Kind.MEMCPY) & job.inside & ~blocking[trace.launch]
    waits = trace.array("kind", "edges") == EdgeKind.SYNC
    work = trace.array("src", "edges")[waits]
    is_of_host = np.array([HOST_COPY.search(name) is not None for name in trace.names()], bool)
    copies[work[is_of_host[trace.array("name")[work]]]] = False  # waits for others are for all work
    row = np.flatnonzero(copies)
    first, of_row = gather.distinct(trace.array("name")[row])
    total = np.bincount(of_row, trace.array("dur")[row], len(first))
    for k in np.argsort(-total, kind="stable")[:_MAX_KINDS].tolist():
        members = job.mask(row[of_row == k])
        name = trace.names()[trace.array("name")[row[first[k]]]]
        yield Finding.from_saving(
            "exposed-copy",
            job.saved(job.times().take_no_time(members)),
            job.place(members),
            name,
            MODELLED,
            f"Copies are not hidden by compute: {name}.",
            job.without(members) or job.command("critical_path --by kernel"),
        )

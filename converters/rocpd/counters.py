"""Hardware counters of a rocpd database: of dispatches, or sampled in time.

A row of ``pmc_event`` is the value of one instance of a counter for one event. The event is one of

* a dispatch;
* an instant (``rocpd_sample``) at which rocprofiler-systems samples clocks, power and the like: it
  writes one event for all that it samples at a time, and as many instants as counters;
* a call, where the driver (KFD) counts pages that it moves.

Streamed counters (SPM, schema 3.0.3) name a sample themselves; they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.converters.rocm.database_parts import Columns, Lookup
from chopper_interop.converters.rocm.dispatch_counters import SAMPLES_NOT_READ, DispatchCounters
from chopper_interop.converters.rocm.recording import SampledCounters
from chopper_interop.converters.rocm.rows import interned
from chopper_interop.converters.rocm.tables import COUNTERS
from chopper_interop.converters.rocpd.columns import READ
from chopper_interop.io.sqlite import INTEGER, TEXT
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    from chopper_interop.converters.rocpd.event_tables import EventTable, EventTableBuilder

NO_VALUE = Fault.loss_of_events(
    "counter-row-without-value", "Rows of counters without a finite value were left out."
)
NO_OWNER = Fault.loss_of_events(
    "counter-without-event",
    "Rows of counters that belong to no dispatch, no moment and no call were left out.",
)
IN_TIME = Fault.info_of_events(
    "counter-sampled", "Counters that were sampled in time became series."
)


@dataclass(frozen=True)
class Counted:
    """Rows of counters, split into those of dispatches and those sampled in time.

    Parameters
    ----------
    events
        Number of rows.
    dispatch, owner
        Of those of dispatches: the dispatch, a row of the table of kernels, and the counter, a
        row of `info`.
    value
        Their values.
    sampled
        Of those sampled in time: the row of the table of instants, followed by that of calls, the
        counter and the value.
    instants
        Mask of rows of the table of instants that are no events of their own, as counters were
        sampled there.
    info
        Descriptions of the counters.
    numbers
        Ids of counters; one without a description has as its row of `info` -2 less its index here.
    """

    events: int
    dispatch: Array
    owner: Array
    value: Array
    sampled: tuple[Array, Array, Array]
    instants: Array
    info: Columns
    numbers: Array


def counted(
    builder: EventTableBuilder,
    kernels: EventTable,
    instants: EventTable,
    calls: EventTable,
    issues: IssueLog,
) -> Counted:
    """Split the rows of counters of one part.

    Parameters
    ----------
    builder
        The builder of the part's tables.
    kernels, instants, calls
        Its dispatches, its instants and its calls.
    issues
        Log in which omitted rows are counted.
    """
    part = builder.part
    events = part.read("pmc_event", READ["pmc_event"])
    numbers = ("id", "agent_id")
    texts = ("name", "symbol", "units")
    info = part.read("info_pmc", dict.fromkeys(numbers, INTEGER) | dict.fromkeys(texts, TEXT))
    streamed = events.known("sample_id")
    value = arrow.to_numpy(events.table["value"], np.nan)
    valued = np.isfinite(value) & ~streamed
    event, has = events.number("event_id"), events.known("event_id") & valued
    dispatch = Lookup(kernels.events).rows(event, has & (event >= 0))
    timed = np.concatenate([instants.events, calls.events])
    place = Lookup(timed).rows(event, has & (dispatch < 0) & (event >= 0))
    issues.add(SAMPLES_NOT_READ, np.count_nonzero(streamed), part.where)
    issues.add(NO_VALUE, np.count_nonzero(~valued & ~streamed), part.where)
    issues.add(NO_OWNER, np.count_nonzero(valued & (dispatch < 0) & (place < 0)), part.where)
    issues.add(IN_TIME, np.count_nonzero(place >= 0), part.where)
    counter = Lookup(info.number("id")).rows(events.number("pmc_id"))
    by_spm = Lookup(instants.ids).rows(events.number("sample_id"), streamed)
    bare = np.zeros(instants.rows.count, bool)
    bare[by_spm[by_spm >= 0]] = True
    issues.add(SAMPLES_NOT_READ, np.count_nonzero(bare), part.where)
    # of the instants of one event all are measured, not only the one that is looked up
    measured = Lookup(np.unique(event[place >= 0])).rows(instants.events, instants.events >= 0) >= 0
    issues.add(IN_TIME, np.count_nonzero(measured & ~bare), part.where)
    dispatched, sampled = dispatch >= 0, place >= 0
    # a counter without a description is identified by its number
    first, code = gather.distinct(events.number("pmc_id", 0))
    named = np.where(counter >= 0, counter, -2 - code)
    return Counted(
        events=events.count,
        dispatch=dispatch[dispatched],
        owner=named[dispatched],
        value=value[dispatched],
        sampled=(place[sampled], named[sampled], value[sampled]),
        instants=bare | measured,
        info=info,
        numbers=events.number("pmc_id", 0)[first],
    )


def counts_of(
    counted: Counted, kernels: EventTable, process: Array, device: Array
) -> DispatchCounters | None:
    """Counters of dispatches, each the sum over its instances; None if there are none."""
    if not counted.dispatch.size:
        return None
    rows, place = np.unique(counted.dispatch, return_inverse=True)
    names, name = _names(counted.owner, counted)
    first, code = gather.distinct(place, name)
    total = np.bincount(code, counted.value, minlength=len(first))
    total[np.isinf(total)] = np.nan
    return DispatchCounters(
        dispatches=replace(kernels.rows.take(rows), form=COUNTERS),
        process=process[rows],
        device=device[rows],
        weight=np.bincount(place, minlength=len(rows)),
        dispatch=place[first],
        name=interned([names[i] for i in name[first].tolist()]),
        value=total,
    )


def sampled_of(
    counted: Counted,
    builder: EventTableBuilder,
    timed: Sequence[EventTable],
    process: Sequence[Array],
    gpus: set[int],
) -> SampledCounters | None:
    """Counters that were sampled in time; None if there are none.

    Parameters
    ----------
    counted
        The rows.
    builder
        The builder of the part's tables.
    timed, process
        Its instants and its calls, and the process of each of their rows.
    gpus
        Devices that are GPUs.
    """
    place, owner, value = counted.sampled
    if not place.size:
        return None
    names, name = _names(owner, counted)
    units, agents = counted.info.texts("units"), counted.info.number("agent_id")
    agents = builder.agents(agents, counted.info.known("agent_id"))
    process_of_row = np.concatenate(process)[place]
    start = np.concatenate([table.rows.number("start") for table in timed])[place]
    first, which = gather.distinct(process_of_row, owner)
    series = []
    for i in first.tolist():
        row = int(owner[i])
        device = int(agents[row]) if row >= 0 and int(agents[row]) in gpus else -1
        unit = units[row] if row >= 0 else ""
        series.append((int(process_of_row[i]), device, names[name[i]], unit))
    return SampledCounters(series, which, start, value)


def _names(owner: Array, counted: Counted) -> tuple[list[str], Array]:
    """Distinct names of counters, and which of them each has."""
    name = counted.info.texts("name")
    symbols = counted.info.texts("symbol")
    first, code = gather.distinct(owner)
    texts = [
        (name[row] or symbols[row]) if row >= 0 else f"counter {counted.numbers[-2 - row]}"
        for row in owner[first].tolist()
    ]
    names = list(dict.fromkeys(texts))
    place = {text: i for i, text in enumerate(names)}
    return names, np.array([place[text] for text in texts], np.int64)[code]

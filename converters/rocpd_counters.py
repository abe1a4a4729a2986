"""Hardware counters of a rocpd database: of dispatches, or sampled in time.

A row of ``pmc_event`` is what one instance of a counter counted during one event. The event is a
dispatch; or a moment (``rocpd_sample``) where rocprofiler-systems samples clocks, power and the
like, which writes one event for all that it samples at a time and as many moments as counters; or
a call, where the driver (KFD) counts pages that it moves. Streamed counters (SPM, schema 3.0.3)
name a sample themselves; they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import arrow, gather
from chopper_interop.converters.rocpd_columns import READ
from chopper_interop.converters.rocpd_parts import Columns, Lookup
from chopper_interop.converters.rocprof_counters import Counts
from chopper_interop.converters.rocprof_json import SAMPLED
from chopper_interop.converters.rocprof_rows import interned
from chopper_interop.converters.rocprof_tables import COUNTERS
from chopper_interop.converters.rocprof_trace import Sampled
from chopper_interop.files.sqlite import INTEGER, TEXT
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocpd_made import Made, Maker

NO_VALUE = Fault(
    "counter-without-value",
    Severity.LOSS,
    "Rows of counters without a finite value were left out.",
    events=True,
)
NO_OWNER = Fault(
    "counter-without-event",
    Severity.LOSS,
    "Rows of counters that belong to no dispatch, no moment and no call were left out.",
    events=True,
)
IN_TIME = Fault(
    "counter-sampled",
    Severity.INFO,
    "Counters that were sampled in time became series.",
    events=True,
)


@dataclass(frozen=True)
class Counted:
    """Rows of counters, told apart.

    Parameters
    ----------
    events
        How many rows there are.
    dispatch, owner
        Of those of dispatches: the dispatch, a row of the table of kernels, and the counter, a
        row of `info`.
    value
        Their values.
    sampled
        Of those sampled in time: the place, a row of the moments and the calls behind them, the
        counter and the value.
    moments
        Which rows of the table of moments are no events of their own, as counters were sampled
        there.
    info
        What is known of the counters.
    numbers
        Ids of counters; one that is not described has as its row of `info` -2 less its place here.
    """

    events: int
    dispatch: Array
    owner: Array
    value: Array
    sampled: tuple[Array, Array, Array]
    moments: Array
    info: Columns
    numbers: Array


def counted(maker: Maker, kernels: Made, moments: Made, calls: Made, issues: IssueLog) -> Counted:
    """Tell apart the rows of counters of one part.

    Parameters
    ----------
    maker
        What made the part's tables.
    kernels, moments, calls
        Its dispatches, its moments and its calls.
    issues
        Where it is counted what is left out.
    """
    part = maker.part
    found = part.read("pmc_event", READ["pmc_event"])
    numbers = ("id", "agent_id")
    texts = ("name", "symbol", "units")
    info = part.read("info_pmc", dict.fromkeys(numbers, INTEGER) | dict.fromkeys(texts, TEXT))
    streamed = found.known("sample_id")
    value = arrow.numbers(found.table["value"], np.nan)
    valued = np.isfinite(value) & ~streamed
    event, has = found.number("event_id"), found.known("event_id") & valued
    dispatch = Lookup(kernels.events).rows(event, has & (event >= 0))
    timed = np.concatenate([moments.events, calls.events])
    place = Lookup(timed).rows(event, has & (dispatch < 0) & (event >= 0))
    issues.add(SAMPLED, np.count_nonzero(streamed), part.where)
    issues.add(NO_VALUE, np.count_nonzero(~valued & ~streamed), part.where)
    issues.add(NO_OWNER, np.count_nonzero(valued & (dispatch < 0) & (place < 0)), part.where)
    issues.add(IN_TIME, np.count_nonzero(place >= 0), part.where)
    counter = Lookup(info.number("id")).rows(found.number("pmc_id"))
    by_spm = Lookup(moments.ids).rows(found.number("sample_id"), streamed)
    bare = np.zeros(moments.rows.count, bool)
    bare[by_spm[by_spm >= 0]] = True
    issues.add(SAMPLED, np.count_nonzero(bare), part.where)
    # of the moments of one event all are measured, not only the one that is looked up
    measured = Lookup(np.unique(event[place >= 0])).rows(moments.events, moments.events >= 0) >= 0
    issues.add(IN_TIME, np.count_nonzero(measured & ~bare), part.where)
    mine, sampled = dispatch >= 0, place >= 0
    # a counter that is not described is told by its number
    first, code = gather.distinct(found.number("pmc_id", 0))
    named = np.where(counter >= 0, counter, -2 - code)
    return Counted(
        events=found.count,
        dispatch=dispatch[mine],
        owner=named[mine],
        value=value[mine],
        sampled=(place[sampled], named[sampled], value[sampled]),
        moments=bare | measured,
        info=info,
        numbers=found.number("pmc_id", 0)[first],
    )


def counts_of(found: Counted, kernels: Made, process: Array, device: Array) -> Counts | None:
    """Counters of dispatches, each the sum over its instances; None if there are none."""
    if not found.dispatch.size:
        return None
    rows, place = np.unique(found.dispatch, return_inverse=True)
    names, name = _names(found.owner, found)
    first, code = gather.distinct(place, name)
    total = np.bincount(code, found.value, minlength=len(first))
    total[np.isinf(total)] = np.nan
    return Counts(
        dispatches=replace(kernels.rows.take(rows), form=COUNTERS),
        process=process[rows],
        device=device[rows],
        weight=np.bincount(place, minlength=len(rows)),
        dispatch=place[first],
        name=interned([names[i] for i in name[first].tolist()]),
        value=total,
    )


def sampled_of(
    found: Counted, maker: Maker, timed: Sequence[Made], process: Sequence[Array], gpus: set[int]
) -> Sampled | None:
    """Counters that were sampled in time; None if there are none.

    Parameters
    ----------
    found
        The rows.
    maker
        What made the part's tables.
    timed, process
        Its moments and its calls, and the process of each of their rows.
    gpus
        Devices that are GPUs.
    """
    place, owner, value = found.sampled
    if not place.size:
        return None
    names, name = _names(owner, found)
    units, agents = found.info.texts("units"), found.info.number("agent_id")
    agents = maker.agents(agents, found.info.known("agent_id"))
    whose = np.concatenate(process)[place]
    start = np.concatenate([made.rows.number("start") for made in timed])[place]
    first, which = gather.distinct(whose, owner)
    series = []
    for i in first.tolist():
        row = int(owner[i])
        device = int(agents[row]) if row >= 0 and int(agents[row]) in gpus else -1
        unit = units[row] if row >= 0 else ""
        series.append((int(whose[i]), device, names[name[i]], unit))
    return Sampled(series, which, start, value)


def _names(owner: Array, found: Counted) -> tuple[list[str], Array]:
    """Distinct names of counters, and which of them each has."""
    told = found.info.texts("name")
    symbols = found.info.texts("symbol")
    first, code = gather.distinct(owner)
    texts = [
        (told[row] or symbols[row]) if row >= 0 else f"counter {found.numbers[-2 - row]}"
        for row in owner[first].tolist()
    ]
    names = list(dict.fromkeys(texts))
    place = {text: i for i, text in enumerate(names)}
    return names, np.array([place[text] for text in texts], np.int64)[code]

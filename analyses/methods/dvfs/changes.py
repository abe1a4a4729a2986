"""Changes to a job, and the lags and delays of its timing model under them.

A change names what is different, and on which nodes: ``"scale=0.5 where kind == 'kernel'"``. Several
changes are separated by ``;``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import pandas_view
from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.analyses.methods.communication import network
from chopper_interop.analyses.methods.dvfs import ideal, sensitivity, target_clocks
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.arrays import gather
from chopper_interop.arrays.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.graph.chains import stream_orders
from chopper_interop.schemas.kinds import GPU_LANES, EdgeKind, Kind, LaneKind

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.arrays.types import Array
    from chopper_interop.timing.model import Timing

_UNITS = {"": 1.0, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_TIME_PATTERN = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s)?")
_CHANGE_PATTERN = re.compile(r"\s*(.*?)(?:\s*\bwhere\b\s*(.*?))?\s*", re.DOTALL)
_PART_PATTERN = re.compile(r"""((?:[^;'"]|'[^']*'|"[^"]*")*)(?:;|$)""")
_MAX_NS = 10**15
"""Longest time that a change may set, about 11 days. Chosen: longer than any profile, and few enough
nanoseconds that sums of many fit 64 bits."""
_MAX_FACTOR = 1e6
"""Largest factor and number; divisors go down to one by this. Chosen: far beyond any real change, and
small enough that one change cannot overflow a time (`_MAX_TOTAL_NS` guards several)."""
_MAX_TOTAL_NS = 2.0**62
"""Largest sum of all times, half of what 64 bits hold, so that no start or end overflows."""


class Time(NamedTuple):
    """A time to set or, written with a sign, to add."""

    ns: int
    is_added: bool

    def applied_to(self, lag: Array) -> Array:
        """Return lags with this time; lags below 0, where clocks contradict each other, stay."""
        new = np.maximum(lag + self.ns, 0) if self.is_added else np.full_like(lag, self.ns)
        return np.where(lag < 0, lag, new)


@dataclass(frozen=True)
class Change:
    """A change to the times of some nodes.

    Parameters
    ----------
    verb
        A name of `VERBS`.
    value
        Its value, of the type that the verb takes.
    query
        Nodes that change, as a query of `pandas.DataFrame.query` on the columns of
        ``trace.to_pandas()``; all nodes if empty.
    options
        Further options by name.
    kinds
        Kinds of the nodes that change; all kinds if empty.
    text
        Name of the change in results and messages.
    """

    verb: str
    value: Any = None
    query: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = ()
    text: str = ""


class ChangedTimes(NamedTuple):
    """Lags and delays of a timing model under changes.

    Parameters
    ----------
    lag_ns
        Lag of each edge.
    delay_ns
        Delay of each endpoint (start or end of a node).
    notes
        Counts of what the changes were to change and of what stayed, by description.
    """

    lag_ns: Array
    delay_ns: Array
    notes: Counter[str]


class Changer:
    """Applies changes to a timing model."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.trace = timing.trace
        self._groups: dict[str, Array] = {}

    def apply(self, changes: Sequence[Change]) -> ChangedTimes:
        """Return lags and delays under changes, each applied to the result of those before it."""
        now = ChangedTimes(self.timing.lag_ns.copy(), self.timing.delay_ns.copy(), Counter())
        limit = max(_total_ns(now), _MAX_TOTAL_NS)
        for change in changes:
            chosen = self._chosen(change)
            now.notes["nodes chosen"] += int(np.count_nonzero(chosen))
            VERBS[change.verb].apply(self, now, change, chosen)
            if _total_ns(now) > limit:
                raise UsageError(
                    f"change={change.text}: all times together are too long to compute with",
                    hint="choose smaller factors or times",
                )
        return now

    @cached_property
    def owner(self) -> Array:
        """Node whose own time passes along each edge; -1 if none."""
        return paths.edge_owners(self.timing)

    def edges(self, nodes: Array) -> Array:
        """Edges along which own time of the marked nodes passes."""
        return np.flatnonzero(np.append(nodes, False)[self.owner])

    def group(self, across: str) -> Array:
        """Group of counterparts of each node, found once; see `counterparts.counterpart_groups`."""
        if across not in self._groups:
            self._groups[across] = counterparts.counterpart_groups(self.trace, across=across)
        return self._groups[across]

    def _chosen(self, change: Change) -> Array:
        """Mark the nodes that the query and kinds of a change select."""
        kind = self.trace.array("kind")
        chosen = np.ones(len(kind), bool)
        if change.query:
            chosen = pandas_view.query_mask(self.trace, change.query)
            if not chosen.any():  # a gain of 0 would look like an answer
                kinds = ", ".join(sorted({Kind(k).name.lower() for k in np.unique(kind)}))
                message = f"change={change.text}: no node is one where {change.query}"
                raise UsageError(message, hint=f"kinds are {kinds}")
        if change.kinds:
            chosen = chosen & is_any(kind, change.kinds)
        return chosen

    def within(self, chosen: Array) -> Array:
        """Mark the chosen nodes, and on host threads all nodes that they call."""
        if chosen.all():
            return chosen
        is_thread = self.trace.array("kind", "lanes") == LaneKind.THREAD
        inside = np.append(chosen & is_thread[self.trace.array("lane")], False)
        if not inside.any():
            return chosen
        # Each round looks one level further up; the last element is the parent of the outermost.
        ancestor = np.append(self.trace.array("parent"), -1)
        while (ancestor >= 0).any():
            inside |= inside[ancestor]
            ancestor = ancestor[ancestor]
        return inside[:-1] | chosen


def parse_changes(text: str) -> list[Change]:
    """Parse changes such as ``"scale=0.5 where rank == 3; launch=0"``.

    Raises
    ------
    UsageError
        The text cannot be parsed.
    """
    return [_parse_change(part) for part in _split(text)]


def apply_changes(timing: Timing, changes: Sequence[Change]) -> ChangedTimes:
    """Return lags and delays of a model under changes, each applied to the result of those before.

    Parameters
    ----------
    timing
        The model.
    changes
        Changes as `parse_changes` returns them.
    """
    return Changer(timing).apply(changes)


def _split(text: str) -> list[str]:
    """Split at semicolons outside of quotes."""
    parts, start = [], 0
    while start < len(text):
        match = _PART_PATTERN.match(text, start)
        if match is None or match.end() == start:
            raise UsageError(f"change={text}: a quote is not closed")
        parts.append(match[1].strip())
        start = match.end()
    return [part for part in parts if part]


def _parse_change(text: str) -> Change:
    """Parse ``"verb=value option=value where query"``."""
    match = _CHANGE_PATTERN.fullmatch(text)
    head, query = (match[1], match[2]) if match else (text, None)
    if query is not None and not query:
        raise UsageError(f"change={text}: there is no condition behind where", hint=_HINT)
    words = [word.partition("=") for word in head.split()]
    if not words:
        raise UsageError(f"change={text}: it does not say what changes", hint=_verbs_hint())
    name, equals, value = words[0]
    if name not in VERBS:
        raise UsageError(f"change={text}: there is no {name!r}", hint=_verbs_hint())
    verb = VERBS[name]
    options = {key: parse("") for key, parse in verb.options.items()}
    for key, _, option in words[1:]:
        if key not in options:
            hint = f"{name} takes {', '.join(options) or 'no options'}; {_HINT}"
            raise UsageError(f"change={text}: {name} has no option {key!r}", hint=hint)
        options[key] = _parse_value(verb.options[key], option, text, verb)
    if equals and not value:
        raise UsageError(f"change={text}: there is no value behind {name}=", hint=verb.syntax)
    return Change(
        name, _parse_value(verb.value, value, text, verb), query or "", options, text=text
    )


def _parse_value(parse: Callable[[str], Any], value: str, text: str, verb: Verb) -> Any:
    """Parse a value; the error of one that cannot be parsed names the change `text`."""
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"change={text}: {error}", hint=f"write {verb.syntax}") from error


def _verbs_hint() -> str:
    """Syntax of all changes, for messages."""
    return "there are " + "; ".join(verb.syntax for verb in VERBS.values())


_HINT = "as in scale=0.5 where kind == 'kernel'"


def _factor(text: str) -> float:
    """Parse a number that is 0 or more."""
    number = _number(text)
    if number < 0:
        raise ValueError(f"{text} is less than 0")
    return number


def _fusion_factor(text: str) -> float:
    """Parse the factor to durations of fused work; 1 if the text is empty."""
    return _factor(text) if text else 1.0


def _positive(text: str) -> float:
    """Parse a divisor: a number above 0 that is not too small."""
    number = _number(text)
    if number <= 0:
        raise ValueError(f"{text} is not more than 0")
    if number < 1 / _MAX_FACTOR:
        raise ValueError(f"{text} is less than {1 / _MAX_FACTOR:g}")
    return number


def _number(text: str) -> float:
    """Parse a number of no more than `_MAX_FACTOR`."""
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text or 'nothing'} is no number") from None
    if not abs(number) <= _MAX_FACTOR:
        raise ValueError(f"{text} is out of range: numbers go up to {_MAX_FACTOR:,.0f}")
    return number


def _time(text: str) -> Time:
    """Parse a time such as ``"5us"``, or ``"+5us"`` to add."""
    match = _TIME_PATTERN.fullmatch(text)
    if match is None or (unit := _UNITS[match[3] or ""]) * float(match[2]) > _MAX_NS:
        raise ValueError(f"{text or 'nothing'} is no time")
    ns = round(float(match[2]) * unit)
    return Time(-ns if match[1] == "-" else ns, bool(match[1]))


def _latency(text: str) -> int:
    """Parse a time without a sign; 0 if the text is empty."""
    time = _time(text or "0")
    if time.is_added:
        raise ValueError(f"{text} has a sign")
    return time.ns


def _group_size(text: str) -> int:
    """Parse a number of ranks; 0, for each group's own, if the text is empty."""
    if not text:
        return 0
    if not text.isdecimal() or not 2 <= int(text) <= _MAX_FACTOR:  # noqa: PLR2004 # one rank alone sends nothing
        raise ValueError(f"{text} is no number of ranks from 2 on")
    return int(text)


def _length(text: str) -> int:
    """Parse the time of an operation, without a sign."""
    if not text:
        raise ValueError("it takes a time")
    return _latency(text)


def _beta(text: str) -> float | None:
    """Parse a sensitivity; None, for each kernel's own by the trace, if the text is empty."""
    if not text:
        return None
    number = _factor(text)
    if number > 1:
        raise ValueError(f"{text} is more than 1")
    return number


def _across(text: str) -> str:
    """Parse one of `counterparts.ACROSS`; "both" if the text is empty."""
    if (text or "both") not in counterparts.ACROSS:
        raise ValueError(f"{text} is none of {', '.join(counterparts.ACROSS)}")
    return text or "both"


def _no_value(text: str) -> None:
    """Raise `ValueError` unless the text is empty."""
    if text:
        raise ValueError("it takes no value")


def _scaled(lag: Array, factor: float) -> Array:
    """Multiply lags above 0; the others, where clocks contradict each other, stay."""
    return np.where(lag > 0, _rounded(lag * factor), lag)


def _rounded(ns: Array) -> Array:
    """Round times to integers; those beyond 64 bits become long enough to be refused."""
    return np.minimum(np.rint(ns), _MAX_TOTAL_NS).astype(np.int64)


def _total_ns(now: ChangedTimes) -> float:
    """Sum of all lags and delays: no endpoint is later than the first by more than this."""
    return sum(float(np.maximum(ns, 0).sum(dtype=float)) for ns in (now.lag_ns, now.delay_ns))


def _scale(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Multiply own time of nodes by a factor."""
    edge = changer.edges(changer.within(chosen))
    now.lag_ns[edge] = _scaled(now.lag_ns[edge], change.value)


def _remove(changer: Changer, now: ChangedTimes, _change: Change, chosen: Array) -> None:
    """Set own time of nodes to 0, and the delay of launches by these calls."""
    inside = changer.within(chosen)
    edge = changer.edges(inside)
    now.lag_ns[edge] = np.minimum(now.lag_ns[edge], 0)
    launches = _launches(changer)
    from_removed = launches[inside[changer.timing.graph.src[launches] // 2]]
    now.lag_ns[from_removed] = np.minimum(now.lag_ns[from_removed], 0)


def _launches(changer: Changer) -> Array:
    """Edges from launching calls to the work that they launched."""
    return np.flatnonzero(changer.timing.graph.kind == EdgeKind.LAUNCH)


def _launch(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set or add the least time from launching calls to the start of their work."""
    graph, inside = changer.timing.graph, changer.within(chosen)
    edge = _launches(changer)
    edge = edge[inside[graph.src[edge] // 2] | inside[graph.after[edge] // 2]]
    now.notes["launches changed"] += len(edge)
    now.lag_ns[edge] = change.value.applied_to(now.lag_ns[edge])


def _calls(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set or add the own time of launching calls."""
    trace = changer.trace
    calls = np.zeros(len(chosen), bool)
    work = np.flatnonzero(trace.launch >= 0)
    calls[trace.launch[work]] = True
    inside = changer.within(chosen).copy()  # the query's result is read-only
    inside[trace.launch[work[chosen[work]]]] = True
    edge = changer.edges(calls & inside)
    # A call's own time passes along several edges where it waits in between; one leaves its start.
    begins = changer.timing.graph.src[edge] == 2 * changer.owner[edge]
    now.notes["launching calls changed"] += int(np.count_nonzero(begins))
    lag = now.lag_ns[edge]
    if change.value.is_added:
        lag[begins] = change.value.applied_to(lag[begins])
    else:  # the first part of a call has its whole time
        lag = np.minimum(lag, 0)
        lag[begins] = change.value.applied_to(lag[begins])
    now.lag_ns[edge] = lag


_BANDWIDTHS = {"GiB/s": 2**30 / 1e9, "GB/s": 1.0}
"""Units of bandwidth in 10^9 bytes a second. ASTRA-sim's analytical networks count in the first."""


class Speed(NamedTuple):
    """A bandwidth of links in gigabytes a second, or a factor to what transfers took."""

    value: float
    is_factor: bool


def _speed(text: str) -> Speed:
    """Parse a factor, or a bandwidth such as ``"50GB/s"`` or ``"50GiB/s"``."""
    for unit, gigabytes in _BANDWIDTHS.items():
        if text.endswith(unit):
            return Speed(_positive(text.removesuffix(unit)) * gigabytes, is_factor=False)
    return Speed(_positive(text), is_factor=True)


def _bandwidth(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set transfers to those of another network: divided by a factor, or by sizes and bandwidth."""
    edge = changer.edges(chosen & (changer.trace.array("kind") == Kind.COMM))
    lag = now.lag_ns[edge]
    latency_ns = change.options["latency"]
    if change.value.is_factor:
        if change.options["ranks"]:
            raise UsageError(f"change={change.text}: ranks= needs a bandwidth such as 50GB/s")
        fixed = np.minimum(lag, latency_ns)
        new = fixed + _scaled(lag - fixed, 1 / change.value.value)
    else:
        transfer = network.transfer_times(
            changer.trace, change.value.value, latency_ns, change.options["ranks"]
        )
        new = transfer[changer.owner[edge]]
        unknown = new < 0
        now.notes["transfers of unknown kind or size, left unchanged"] += int(unknown.sum())
        new = np.where(unknown, lag, new)
    now.notes["transfers changed"] += int(np.count_nonzero(new != lag))
    now.lag_ns[edge] = new


def _clock(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set the duration of kernels to that at another core clock."""
    trace, beta = changer.trace, change.options["beta"]
    known = sensitivity.kernel_sensitivities(trace)
    measured, node = known.repeats.clocks.mhz, known.repeats.node
    mhz = change.value.applied_to(measured if beta is not None else known.mhz)
    kernels = chosen & (trace.array("kind") == Kind.KERNEL)
    is_known = np.zeros(len(kernels), bool)
    log = np.zeros(len(kernels))
    if beta is None:
        is_change = change.value.is_change
        target_clocks.check_possible(mhz, known.mhz, target_clocks.highest(known))
        ratio, *_ = known.ratio(mhz, is_change=is_change)
        durations = ideal.durations(known, ratio, mhz, is_change=is_change)
        is_known, log = durations.key >= 0, durations.log
    else:
        has_clock = ~np.isnan(measured)
        is_known[node] = has_clock
        log[node[has_clock]] = np.log(beta * measured / mhz + 1 - beta)[has_clock]
    unchanged = int((kernels & ~is_known).sum())
    now.notes["kernels without a known clock, left unchanged"] += unchanged
    edge = changer.edges(kernels & is_known)
    factor = np.exp(log[changer.owner[edge]])
    now.lag_ns[edge] = _rounded(now.lag_ns[edge] * factor)


def _insert(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Insert an operation before each node: it starts later by its time than all it waits for allows."""
    has_cause = np.zeros(len(now.delay_ns), bool)
    has_cause[changer.timing.graph.after] = True
    start = 2 * np.flatnonzero(chosen)
    now.notes["nodes left unchanged as nothing is known to precede them"] += int(
        np.count_nonzero(~has_cause[start])
    )
    now.delay_ns[start] += change.value


def _fuse(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Make one piece of the chosen work that follows each other on a stream.

    Of each run the launches of all but the first take no time, and neither do the gaps between; its
    durations are multiplied by the factor.
    """
    trace, graph = changer.trace, changer.timing.graph
    kind = trace.array("kind")
    work = chosen & is_any(kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET))
    on_gpu = is_any(trace.array("kind", "lanes"), GPU_LANES)
    before = stream_orders(trace.array("ts"), trace.array("dur"), trace.array("lane"), on_gpu)
    joined = work & (before >= 0) & work[before]
    inside = joined.copy()
    inside[before[joined]] = True
    into = np.flatnonzero(is_any(graph.kind, (EdgeKind.STREAM, EdgeKind.LAUNCH)))
    into = into[joined[graph.node[graph.after[into]]]]
    now.lag_ns[into] = np.minimum(now.lag_ns[into], 0)
    now.delay_ns[2 * np.flatnonzero(joined)] = 0
    calls = np.zeros(len(joined), bool)
    calls[trace.launch[joined & (trace.launch >= 0)]] = True
    launching = changer.edges(calls)
    now.lag_ns[launching] = np.minimum(now.lag_ns[launching], 0)
    lasting = changer.edges(inside)
    now.lag_ns[lasting] = _scaled(now.lag_ns[lasting], change.value)
    now.notes["pieces of work joined to the one before"] += int(np.count_nonzero(joined))


def _delays(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Multiply the waits of endpoints without a known reason by a factor."""
    endpoint = np.flatnonzero(changer.within(chosen)[changer.timing.graph.node])
    now.delay_ns[endpoint] = _scaled(now.delay_ns[endpoint], change.value)


def _median(changer: Changer, now: ChangedTimes, change: Change, chosen: Array) -> None:
    """Set the median of the counterparts that are not chosen; of all, where all are chosen."""
    inside = changer.within(chosen)
    kind = changer.trace.array("kind")
    same_kind = np.zeros(256, bool)  # counterparts are of one kind, which is 8 bits wide
    same_kind[kind[inside]] = True
    edge = changer.edges(same_kind[kind])
    key = _edge_keys(changer, edge, changer.group(change.value))
    selected = inside[changer.owner[edge]]
    edge, key, selected = edge[key >= 0], key[key >= 0], selected[key >= 0]
    lag = changer.timing.lag_ns[edge]
    new, count = counterparts.group_medians(lag, key)
    if not selected.all():
        median, others = counterparts.group_medians(lag, key, counts=~selected)
        new = np.where(others > 0, median, new)
    changes = selected & (count > 1)
    now.lag_ns[edge[changes]] = new[changes]
    unchanged = np.append(inside, False)[changer.owner]
    unchanged[edge[changes]] = False
    nodes = np.unique(changer.owner[unchanged])
    now.notes["nodes left unchanged at least in part for lack of a counterpart"] += len(nodes)


def _edge_keys(changer: Changer, edge: Array, group: Array) -> Array:
    """Number edges so that those between counterparts share a number; -1 where there are none."""
    graph = changer.timing.graph
    src, dst = graph.src[edge], graph.after[edge]
    nodes = len(group)
    from_barrier = src >= 2 * nodes  # vertices behind all endpoints are collective barriers
    before = np.where(from_barrier, 0, src)
    begin = np.where(from_barrier, -2, _endpoint_group(group, before))
    end = _endpoint_group(group, dst)
    _, number = gather.distinct(begin, end)
    return np.where((end >= 0) & (begin != -1), number, -1)


def _endpoint_group(group: Array, endpoint: Array) -> Array:
    """Group of counterparts of endpoints, starts and ends apart; -1 where there is none."""
    of_node = group[endpoint // 2]
    return np.where(of_node >= 0, 2 * of_node + endpoint % 2, -1)


class Verb(NamedTuple):
    """A kind of change.

    Parameters
    ----------
    syntax
        Syntax of the change, for messages.
    value
        Parses the text behind the "=".
    options
        Parsers of further options by name; an empty text gives the default.
    apply
        ``(changer, now, change, nodes)``: writes the change into the lags and delays.
    """

    syntax: str
    value: Callable[[str], Any]
    options: dict[str, Callable[[str], Any]]
    apply: Callable[[Changer, ChangedTimes, Change, Array], None]


VERBS = {
    "scale": Verb("scale=FACTOR", _factor, {}, _scale),
    "remove": Verb("remove", _no_value, {}, _remove),
    "median": Verb("median=both|ranks|iterations", _across, {}, _median),
    "launch": Verb("launch=0|5us|+2us", _time, {}, _launch),
    "calls": Verb("calls=0|5us|+2us", _time, {}, _calls),
    "bandwidth": Verb(
        "bandwidth=FACTOR|50GB/s|50GiB/s latency=5us ranks=16",
        _speed,
        {"latency": _latency, "ranks": _group_size},
        _bandwidth,
    ),
    "clock": Verb(
        "clock=1900|0.9x|max1900 beta=0..1", target_clocks.parse_clock, {"beta": _beta}, _clock
    ),
    "delays": Verb("delays=FACTOR", _factor, {}, _delays),
    "insert": Verb("insert=50us", _length, {}, _insert),
    "fuse": Verb("fuse=FACTOR", _fusion_factor, {}, _fuse),
}
"""Kinds of changes by name.

``scale``: multiply the own time of nodes: of GPU work its duration, of collectives their transfer, of
host nodes the host's time within them. ``remove``: the same by 0, and launches by these calls reach
the GPU at once. ``median``: own time becomes the median of that of counterparts. ``launch``: the
least time from a launching call to the start of its work. ``calls``: time of the host in launching
calls. ``bandwidth``: transfers become faster by that factor, except for a fixed latency; with a unit
they take what rings take over links of that bandwidth, with that latency a step
(`methods.communication.network`). ``clock``:
kernels run at another core clock (MHz, a factor to their own, or a limit), by their sensitivities to
the clock as the trace shows them, or by t (beta measured / new + 1 - beta). ``delays``: multiply waits
that have no known reason. ``insert``: an operation of that time before each node, on its stream or
thread. ``fuse``: selected GPU work that follows each other on a stream becomes one piece, with one launch
and that factor to its durations. ``ranks`` of ``bandwidth``: groups of another size, as for another
number of data-parallel ranks.
"""

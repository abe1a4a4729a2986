"""Changes to a job, and the lags and delays of its timing model under them.

A change says of which nodes something is different, and what: ``"scale=0.5 where kind == 'kernel'"``.
Several are separated by ``;``.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import pandas_view
from chopper_interop.activity import counterparts
from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.dvfs import ideal, sensitivity, target_clocks
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.timing import paths

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.timing.model import Timing

_UNITS = {"": 1.0, "ns": 1.0, "us": 1e3, "ms": 1e6, "s": 1e9}
_TIME = re.compile(r"([+-]?)(\d+(?:\.\d*)?|\.\d+)(ns|us|ms|s)?")
_WHERE = re.compile(r"\s*(.*?)(?:\s*\bwhere\b\s*(.*?))?\s*", re.DOTALL)
_PARTS = re.compile(r"""((?:[^;'"]|'[^']*'|"[^"]*")*)(?:;|$)""")
_MOST_NS = 10**15
_MOST = 1e6
"""Factors and clocks go up to this, and those that divide down to one by this."""
_MOST_IN_ALL_NS = 2.0**62


class Time(NamedTuple):
    """A time to set, or with a sign one to add."""

    ns: int
    is_added: bool

    def of(self, lag: Array) -> Array:
        """Lags with it; those below 0, where clocks contradict each other, stay."""
        new = np.maximum(lag + self.ns, 0) if self.is_added else np.full_like(lag, self.ns)
        return np.where(lag < 0, lag, new)


@dataclass(frozen=True)
class Change:
    """What is different.

    Parameters
    ----------
    what
        A name of `VERBS`.
    value
        Of the type that this takes.
    where
        A query of `pandas.DataFrame.query` on the columns of ``trace.to_pandas()``; of all nodes if
        empty.
    options
        Further ones by name.
    kinds
        Nodes of these kinds alone; of all if empty.
    text
        What it is called.
    """

    what: str
    value: Any = None
    where: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[Kind, ...] = ()
    text: str = ""


class Applied(NamedTuple):
    """Lags and delays under changes.

    Parameters
    ----------
    lag_ns
        Of each edge.
    delay_ns
        Of each moment.
    notes
        How much was asked to change and how much stayed, by what it is.
    """

    lag_ns: Array
    delay_ns: Array
    notes: Counter[str]


class Changer:
    """Applies changes to a model.

    Parameters
    ----------
    timing
        The model.
    """

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.trace = timing.graph.trace
        self._groups: dict[str, Array] = {}

    def applied(self, changes: Sequence[Change]) -> Applied:
        """Lags and delays under changes, each made to what those before it left."""
        now = Applied(self.timing.lag_ns.copy(), self.timing.delay_ns.copy(), Counter())
        most = max(_in_all(now), _MOST_IN_ALL_NS)
        for change in changes:
            chosen = self._chosen(change)
            now.notes["nodes chosen"] += int(np.count_nonzero(chosen))
            VERBS[change.what].apply(self, now, change, chosen)
            if _in_all(now) > most:
                raise UsageError(
                    f"change={change.text}: all times together are too long to reckon with",
                    hint="choose smaller factors or times",
                )
        return now

    @cached_property
    def owner(self) -> Array:
        """Whose own time passes along each edge."""
        return paths.owners(self.timing)

    def edges(self, nodes: Array) -> Array:
        """Edges along which own time of these nodes passes."""
        return np.flatnonzero(np.append(nodes, False)[self.owner])

    def group(self, across: str) -> Array:
        """Counterparts; see `counterparts.of`."""
        if across not in self._groups:
            self._groups[across] = counterparts.of(self.trace, across=across)
        return self._groups[across]

    def _chosen(self, change: Change) -> Array:
        """Nodes that a change is about: those chosen, and on threads what they call."""
        kind = self.trace.array("kind")
        chosen = np.ones(len(kind), bool)
        if change.where:
            chosen = pandas_view.rows(self.trace, change.where)
            if not chosen.any():  # a gain of 0 would look like an answer
                there = ", ".join(sorted({Kind(k).name.lower() for k in np.unique(kind)}))
                what = f"change={change.text}: no node is one where {change.where}"
                raise UsageError(what, hint=f"kinds are {there}")
        if change.kinds:
            chosen = chosen & is_any(kind, change.kinds)
        return chosen

    def within(self, chosen: Array) -> Array:
        """These nodes, and on host threads all that they call."""
        if chosen.all():
            return chosen
        thread = self.trace.array("kind", "lanes") == LaneKind.THREAD
        found = np.append(chosen & thread[self.trace.array("lane")], False)
        if not found.any():
            return chosen
        above = np.append(self.trace.array("parent"), -1)
        while (above >= 0).any():
            found |= found[above]
            above = above[above]
        return found[:-1] | chosen


def parsed(text: str) -> list[Change]:
    """Changes of a text such as ``"scale=0.5 where rank == 3; launch=0"``.

    Raises
    ------
    UsageError
        The text makes no sense.
    """
    return [_one(part) for part in _split(text)]


def applied(timing: Timing, changes: Sequence[Change]) -> Applied:
    """Lags and delays of a model under changes, each made to what those before it left.

    Parameters
    ----------
    timing
        The model.
    changes
        As `parsed` gives them.
    """
    return Changer(timing).applied(changes)


def _split(text: str) -> list[str]:
    """Parts between semicolons that are in no quotes."""
    parts, at = [], 0
    while at < len(text):
        found = _PARTS.match(text, at)
        if found is None or found.end() == at:
            raise UsageError(f"change={text}: a quote is not closed")
        parts.append(found[1].strip())
        at = found.end()
    return [part for part in parts if part]


def _one(text: str) -> Change:
    told = _WHERE.fullmatch(text)
    head, query = (told[1], told[2]) if told else (text, None)
    if query is not None and not query:
        raise UsageError(f"change={text}: nothing stands behind where", hint=_HINT)
    words = head.split()
    if not words:
        raise UsageError(f"change={text}: it does not say what changes", hint=_known())
    given = [word.partition("=") for word in words]
    name, equals, value = given[0]
    if name not in VERBS:
        raise UsageError(f"change={text}: there is no {name!r}", hint=_known())
    verb = VERBS[name]
    options = {key: parse("") for key, parse in verb.options.items()}
    for key, _, told_value in given[1:]:
        if key not in options:
            hint = f"{name} takes {', '.join(options) or 'no options'}; {_HINT}"
            raise UsageError(f"change={text}: {name} has no option {key!r}", hint=hint)
        options[key] = _read(verb.options[key], told_value, text, verb)
    if equals and not value:
        raise UsageError(f"change={text}: nothing stands behind {name}=", hint=verb.form)
    return Change(name, _read(verb.value, value, text, verb), query or "", options, text=text)


def _read(parse: Callable[[str], Any], value: str, text: str, verb: Verb) -> Any:
    try:
        return parse(value)
    except ValueError as error:
        raise UsageError(f"change={text}: {error}", hint=f"write {verb.form}") from error


def _known() -> str:
    return "there are " + "; ".join(verb.form for verb in VERBS.values())


_HINT = "as in scale=0.5 where kind == 'kernel'"


def _factor(text: str) -> float:
    """A number from 0 on."""
    number = _number(text)
    if number < 0:
        raise ValueError(f"{text} is less than 0")
    return number


def _positive(text: str) -> float:
    number = _number(text)
    if number <= 0:
        raise ValueError(f"{text} is not more than 0")
    if number < 1 / _MOST:
        raise ValueError(f"{text} is less than {1 / _MOST:g}")
    return number


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"{text or 'nothing'} is no number") from None
    if not abs(number) <= _MOST:
        raise ValueError(f"{text} is no number to reckon with: it takes up to {_MOST:,.0f}")
    return number


def _time(text: str) -> Time:
    told = _TIME.fullmatch(text)
    if told is None or (unit := _UNITS[told[3] or ""]) * float(told[2]) > _MOST_NS:
        raise ValueError(f"{text or 'nothing'} is no time")
    ns = round(float(told[2]) * unit)
    return Time(-ns if told[1] == "-" else ns, bool(told[1]))


def _fixed(text: str) -> int:
    """A time, 0 if none is said."""
    time = _time(text or "0")
    if time.is_added:
        raise ValueError(f"{text} has a sign")
    return time.ns


def _beta(text: str) -> float | None:
    """A sensitivity; None for what the trace tells of each kernel's."""
    if not text:
        return None
    number = _factor(text)
    if number > 1:
        raise ValueError(f"{text} is more than 1")
    return number


def _across(text: str) -> str:
    if (text or "both") not in counterparts.ACROSS:
        raise ValueError(f"{text} is none of {', '.join(counterparts.ACROSS)}")
    return text or "both"


def _nothing(text: str) -> None:
    if text:
        raise ValueError("it takes no value")


def _scaled(lag: Array, factor: float) -> Array:
    return np.where(lag > 0, _whole(lag * factor), lag)


def _whole(ns: Array) -> Array:
    """As integers; far too long ones as long enough to be refused."""
    return np.minimum(np.rint(ns), _MOST_IN_ALL_NS).astype(np.int64)


def _in_all(now: Applied) -> float:
    """No moment is later than the first ones by more than this."""
    return sum(float(np.maximum(ns, 0).sum(dtype=float)) for ns in (now.lag_ns, now.delay_ns))


def _scale(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    edge = changer.edges(changer.within(chosen))
    now.lag_ns[edge] = _scaled(now.lag_ns[edge], change.value)


def _remove(changer: Changer, now: Applied, _change: Change, chosen: Array) -> None:
    inside = changer.within(chosen)
    edge = changer.edges(inside)
    now.lag_ns[edge] = np.minimum(now.lag_ns[edge], 0)
    launches = _launches(changer)
    by_call = launches[inside[changer.timing.graph.src[launches] // 2]]
    now.lag_ns[by_call] = np.minimum(now.lag_ns[by_call], 0)


def _launches(changer: Changer) -> Array:
    return np.flatnonzero(changer.timing.graph.kind == EdgeKind.LAUNCH)


def _launch(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    graph, inside = changer.timing.graph, changer.within(chosen)
    edge = _launches(changer)
    edge = edge[inside[graph.src[edge] // 2] | inside[graph.after[edge] // 2]]
    now.notes["launches changed"] += len(edge)
    now.lag_ns[edge] = change.value.of(now.lag_ns[edge])


def _calls(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    trace = changer.trace
    calls = np.zeros(len(chosen), bool)
    work = np.flatnonzero(trace.launch >= 0)
    calls[trace.launch[work]] = True
    asked = changer.within(chosen).copy()  # the query's own is for reading
    asked[trace.launch[work[chosen[work]]]] = True
    edge = changer.edges(calls & asked)
    begins = changer.timing.graph.src[edge] == 2 * changer.owner[edge]
    now.notes["launching calls changed"] += int(np.count_nonzero(begins))
    lag = now.lag_ns[edge]
    if change.value.is_added:
        lag[begins] = change.value.of(lag[begins])
    else:  # the first of its pieces has it all
        lag = np.minimum(lag, 0)
        lag[begins] = change.value.of(lag[begins])
    now.lag_ns[edge] = lag


def _bandwidth(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    edge = changer.edges(chosen & (changer.trace.array("kind") == Kind.COMM))
    lag = now.lag_ns[edge]
    fixed = np.minimum(lag, change.options["latency"])
    now.notes["transfers changed"] += len(edge)
    now.lag_ns[edge] = fixed + _scaled(lag - fixed, 1 / change.value)


def _clock(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    trace, beta = changer.trace, change.options["beta"]
    known = sensitivity.of(trace)
    own, node = known.repeats.clocks.mhz, known.repeats.node
    mhz = change.value.of(own if beta is not None else known.mhz)
    kernels = chosen & (trace.array("kind") == Kind.KERNEL)
    told = np.zeros(len(kernels), bool)
    log = np.zeros(len(kernels))
    if beta is None:
        is_change = change.value.is_change
        target_clocks.check_possible(mhz, known.mhz, target_clocks.highest(known))
        ratio, *_ = known.ratio(mhz, is_change=is_change)
        found = ideal.durations(known, ratio, mhz, is_change=is_change)
        told, log = found.key >= 0, found.log
    else:
        told[node] = ~np.isnan(own)
        log[node[~np.isnan(own)]] = np.log(beta * own / mhz + 1 - beta)[~np.isnan(own)]
    now.notes["kernels without a known clock, which stay"] += int((kernels & ~told).sum())
    edge = changer.edges(kernels & told)
    factor = np.exp(log[changer.owner[edge]])
    now.lag_ns[edge] = _whole(now.lag_ns[edge] * factor)


def _delays(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    moment = np.flatnonzero(changer.within(chosen)[changer.timing.graph.node])
    now.delay_ns[moment] = _scaled(now.delay_ns[moment], change.value)


def _median(changer: Changer, now: Applied, change: Change, chosen: Array) -> None:
    """Median of counterparts that are not chosen; of all of those of which all are chosen."""
    inside = changer.within(chosen)
    kind = changer.trace.array("kind")
    alike = np.zeros(256, bool)  # counterparts are of one kind
    alike[kind[inside]] = True
    edge = changer.edges(alike[kind])
    key = _places(changer, edge, changer.group(change.value))
    own = inside[changer.owner[edge]]
    edge, key, own = edge[key >= 0], key[key >= 0], own[key >= 0]
    lag = changer.timing.lag_ns[edge]
    new, every = counterparts.medians(lag, key)
    if not own.all():
        of_others, others = counterparts.medians(lag, key, counts=~own)
        new = np.where(others > 0, of_others, new)
    has_one = own & (every > 1)
    now.lag_ns[edge[has_one]] = new[has_one]
    alone = np.append(inside, False)[changer.owner]
    alone[edge[has_one]] = False
    left = np.unique(changer.owner[alone])
    now.notes["nodes of which something has no counterpart and stays"] += len(left)


def _places(changer: Changer, edge: Array, group: Array) -> Array:
    """Edges with one number lead between counterparts; -1 where there are none."""
    graph = changer.timing.graph
    src, dst = graph.src[edge], graph.after[edge]
    nodes = len(group)
    from_meeting = src >= 2 * nodes
    before = np.where(from_meeting, 0, src)
    begin = np.where(from_meeting, -2, _moment(group, before))
    end = _moment(group, dst)
    _, number = gather.distinct(begin, end)
    return np.where((end >= 0) & (begin != -1), number, -1)


def _moment(group: Array, moment: Array) -> Array:
    of_node = group[moment // 2]
    return np.where(of_node >= 0, 2 * of_node + moment % 2, -1)


class Verb(NamedTuple):
    """Something that changes can do.

    Parameters
    ----------
    form
        How it is written.
    value
        Makes of its text what stands behind the "=".
    options
        The same of further options by name; an empty text gives the default.
    apply
        ``(changer, now, change, nodes)``: writes it into the lags and delays.
    """

    form: str
    value: Callable[[str], Any]
    options: dict[str, Callable[[str], Any]]
    apply: Callable[[Changer, Applied, Change, Array], None]


VERBS = {
    "scale": Verb("scale=FACTOR", _factor, {}, _scale),
    "remove": Verb("remove", _nothing, {}, _remove),
    "median": Verb("median=both|ranks|iterations", _across, {}, _median),
    "launch": Verb("launch=0|5us|+2us", _time, {}, _launch),
    "calls": Verb("calls=0|5us|+2us", _time, {}, _calls),
    "bandwidth": Verb("bandwidth=FACTOR latency=5us", _positive, {"latency": _fixed}, _bandwidth),
    "clock": Verb(
        "clock=1900|0.9x|max1900 beta=0..1", target_clocks.parsed, {"beta": _beta}, _clock
    ),
    "delays": Verb("delays=FACTOR", _factor, {}, _delays),
}
"""What changes can do, by name.

``scale``: own time of nodes times a factor, of GPU work its duration, of collectives their transfer,
of host nodes the host's time within them. ``remove``: the same by 0, and launches by these calls reach
the GPU at once. ``median``: own time becomes the median of that of counterparts. ``launch``: the
least time from a launching call to the start of its work. ``calls``: time of the host in launching
calls. ``bandwidth``: transfers by that factor faster, but for a fixed latency. ``clock``: kernels as
if at another core clock (MHz, a factor to their own, or a limit), by what the trace tells of how each
follows it, or by t (beta measured / new + 1 - beta). ``delays``: waits that nothing explains
times a factor.
"""

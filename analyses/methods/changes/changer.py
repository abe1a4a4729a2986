"""A change, and what changes need to know of a timing model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import pandas_view
from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.analyses.methods.timing import paths
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.timing.model import Timing


@dataclass(frozen=True)
class Change:
    """A change to the times of some nodes.

    Parameters
    ----------
    verb
        A name of `verbs.VERBS`.
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


@dataclass(frozen=True)
class ChangedJob:
    """A job with changes: its timing model, and when everything happens.

    Parameters
    ----------
    timing
        The model, with the edges that the job has.
    lag_ns, delay_ns
        Lags of these edges and delays of the vertices.
    at_ns
        Time of each vertex; of a job with another plan more vertices than were recorded.
    has_paths
        False if no path through the model explains the times.
    """

    timing: Timing
    lag_ns: Array
    delay_ns: Array
    at_ns: Array
    has_paths: bool = True


class ChangedTimes(NamedTuple):
    """Lags and delays of a timing model under changes.

    Parameters
    ----------
    lag_ns
        Lag of each edge.
    delay_ns
        Delay of each endpoint (start or end of a node).
    inserted_ns
        Time of the operations that are inserted before each endpoint, which is no delay.
    notes
        Counts of what the changes were to change and of what stayed, by description.
    plans
        What gives the job other dependencies when all times are known, by kind.
    """

    lag_ns: Array
    delay_ns: Array
    inserted_ns: Array
    notes: Counter[str]
    plans: dict[str, Callable[[ChangedJob], ChangedJob]]


class Changer:
    """Timing model as changes query it."""

    def __init__(self, timing: Timing) -> None:
        self.timing = timing
        self.trace = timing.trace
        self._groups: dict[str, Array] = {}

    @cached_property
    def owner(self) -> Array:
        """Node whose own time passes along each edge; -1 if none."""
        return paths.edge_owners(self.timing)

    def as_measured(self) -> ChangedTimes:
        """Copies of the model's lags and delays, for changes to write into."""
        lag, delay = self.timing.lag_ns.copy(), self.timing.delay_ns.copy()
        return ChangedTimes(lag, delay, np.zeros_like(delay), Counter(), {})

    def edges(self, nodes: Array) -> Array:
        """Edges along which own time of the marked nodes passes."""
        return np.flatnonzero(np.append(nodes, False)[self.owner])

    def group(self, across: str) -> Array:
        """Group of counterparts of each node, found once; see `counterparts.counterpart_groups`."""
        if across not in self._groups:
            self._groups[across] = counterparts.counterpart_groups(self.trace, across=across)
        return self._groups[across]

    def chosen(self, change: Change) -> Array:
        """Mark the nodes that the query and kinds of a change select."""
        kind = self.trace.array("kind")
        chosen = np.ones(len(kind), bool)
        if change.query:
            chosen = pandas_view.query_mask(self.trace, change.query)
            if not chosen.any():  # a gain of 0 would look like an answer
                kinds = ", ".join(sorted({Kind(k).name.lower() for k in np.unique(kind)}))
                message = f"change={change.text}: no node is one where {change.query}"
                near = pandas_view.similar_text(self.trace, change.query)
                raise UsageError(message, hint=near or f"kinds are {kinds}")
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


def sets_no_times(_value: Any) -> bool:
    """Return False: every value of the change applies to what changes before it left."""
    return False


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
    sets
        True for a value that sets times whatever they are, and so would overwrite other changes.
    """

    syntax: str
    value: Callable[[str], Any]
    options: dict[str, Callable[[str], Any]]
    apply: Callable[[Changer, ChangedTimes, Change, Array], None]
    sets: Callable[[Any], bool] = sets_no_times


def scaled(lag: Array, factor: float | Array) -> Array:
    """Multiply lags above 0; the others, where clocks contradict each other, stay."""
    return np.where(lag > 0, paths.rounded(lag * factor), lag)


def total_ns(now: ChangedTimes) -> float:
    """Sum of all lags and delays: no endpoint is later than the first by more than this."""
    all_ns = (now.lag_ns, now.delay_ns, now.inserted_ns)
    return sum(float(np.maximum(ns, 0).sum(dtype=float)) for ns in all_ns)

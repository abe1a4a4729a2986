"""A job as findings ask of it: its steps, and how much sooner they would end under a change."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop import number_ranges, registry, training_steps
from chopper_interop.analyses.methods.activity import concurrent_work, windows
from chopper_interop.analyses.methods.changes import own_times
from chopper_interop.analyses.methods.changes.changer import Changer
from chopper_interop.analyses.methods.fleet import comparison
from chopper_interop.analyses.methods.fleet.comparison import Comparison
from chopper_interop.analyses.methods.timing import spans
from chopper_interop.analyses.methods.timing.steps import is_isolated, timing_of_steps
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import MissingDataError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ORDER
from chopper_interop.timing import variation
from chopper_interop.trace import Trace

_MIN_STEPS = 3
"""Steps from which on their range is stated. Chosen: two have none worth the name."""
_MAX_NAMES = 3
"""Names of nodes in a command. Chosen: a command is read, and copied, as one line."""
_PLAIN = re.compile(r"[\w:#.,()<> -]+\Z")
"""Names that need no quoting in a query and a shell."""


class Saved(NamedTuple):
    """Time by which the mean step would be shorter; the lowest and the highest of single steps."""

    ns: int
    low_ns: int | None = None
    high_ns: int | None = None


class FindingPlace(NamedTuple):
    """Place where something can be seen: ranks as text, and a span of time on the axis of `ts`."""

    ranks: str
    at_ns: int
    until_ns: int


class LagChanges:
    """Lags and delays of a model that a finding changes; see `timing.model.Timing`."""

    def __init__(self, changer: Changer) -> None:
        self._changer, self._timing = changer, changer.timing
        self.lag_ns, self.delay_ns = (
            ns.copy() for ns in (self._timing.lag_ns, self._timing.delay_ns)
        )

    def retimed(self) -> Array:
        """Time of each endpoint with these times, which are used up: lags get what of delays belongs to them."""
        lag = variation.with_own_times(self._timing, self.lag_ns)
        variation.put_on_edges(self._timing, lag, self.delay_ns)
        return self._timing.retimed(lag, self.delay_ns)

    def take_no_time(
        self, nodes: Array, *, factor: float = 0.0, below_ns: int | None = None
    ) -> LagChanges:
        """Multiply the own time of the marked nodes, or such pieces of it as are shorter than a time."""
        edge = self._changer.edges(nodes)
        lag = self.lag_ns[edge]
        changes = (lag > 0) & (below_ns is None or lag < below_ns)
        self.lag_ns[edge] = np.where(changes, np.rint(lag * factor), lag).astype(np.int64)
        return self

    def follow_without_gaps(self, edges: Array) -> LagChanges:
        """Let what these edges lead to follow at once what they come from."""
        self.lag_ns[edges] = 0
        return self

    def shorten(self, nodes: Array, by_ns: Array) -> LagChanges:
        """Shorten nodes of GPU work by times of which there is one for each node of the trace."""
        edge = self._changer.edges(nodes)
        lag, by = self.lag_ns[edge], by_ns[self._changer.owner[edge]]
        self.lag_ns[edge] = np.where(lag > 0, np.maximum(lag - by, 0), lag)
        return self

    def return_without_waiting(self, calls: Array) -> LagChanges:
        """Let the marked calls of hosts return without the GPU work that they waited for."""
        own_times.return_without_waiting(self._timing, calls, self.lag_ns, self.delay_ns)
        return self

    def without_delays(self, nodes: Array) -> LagChanges:
        """Let the marked nodes start without the waits that nothing recorded explains."""
        self.delay_ns[2 * np.flatnonzero(nodes)] = 0
        return self

    def start_without(self, work: Array, awaited: Array) -> LagChanges:
        """Let marked GPU work start sooner by what of its unexplained delay passed while marked others ran.

        Nothing says that it waited for these, and nothing else what it waited for.
        """
        trace = self._timing.trace
        row, start = np.flatnonzero(work), trace.array("ts")[work]
        delay_ns, rank = self.delay_ns[2 * row], trace.array("rank")[row]
        self.delay_ns[2 * row] -= concurrent_work.time_with_nodes(
            trace, np.flatnonzero(awaited), rank, start - delay_ns, start
        )
        return self

    def follow_at_once(self, nodes: Array) -> LagChanges:
        """Let the marked GPU work start with neither its own launch nor a gap before it."""
        graph, trace = self._timing.graph, self._timing.trace
        starts = np.zeros(len(graph), bool)
        starts[2 * np.flatnonzero(nodes)] = True
        before = np.isin(graph.kind, (EdgeKind.STREAM, EdgeKind.LAUNCH)) & starts[graph.after]
        self.lag_ns[before] = np.minimum(self.lag_ns[before], 0)
        self.delay_ns[starts] = 0
        calls = np.zeros(trace.nodes.num_rows, bool)
        calls[trace.launch[nodes & (trace.launch >= 0)]] = True
        return self.take_no_time(calls)


class ExaminedJob:
    """A job, its steps and its timing model.

    Parameters
    ----------
    trace
        The job.
    steps, ranks
        As of `windows.rank_windows`; steps and findings are of these ranks.
    """

    def __init__(self, trace: Trace, steps: str = "", ranks: str = "") -> None:
        self.trace, self.chosen_steps = trace, "" if steps == "each" else steps
        self.chosen_ranks, self.ranks = ranks, windows.chosen_ranks(trace, ranks)
        self.timing = timing_of_steps(trace)
        self.changer = Changer(self.timing)
        self._is_isolated = is_isolated(self.timing)
        self.has_steps = windows.has_steps(trace, ranks)
        each = "each" if self.has_steps else ""
        self._spans = spans.spans_of_timing(self.timing, self.chosen_steps or each, ranks)
        self.iterations = self._spans.iteration
        self._results: dict[str, Result | None] = {}
        self._marks: dict[Callable[[ExaminedJob], Array], Array] = {}
        self.of_steps_ns = self._spans.lengths(self.timing.at_ns)
        self.before_ns = int(self.of_steps_ns.sum())
        self.inside = self._inside()
        kind = trace.array("kind")
        self.on_gpu = is_any(kind, GPU_WORK)
        self.copies = is_any(kind, (Kind.MEMCPY, Kind.MEMSET))
        thread = trace.array("kind", "lanes") == LaneKind.THREAD
        self.on_host = thread[trace.array("lane")] & ~self.on_gpu

    def span_ns(self) -> tuple[int, int]:
        """Start of the first step that counts, and end of the last, on the axis of `ts`."""
        at = self.timing.at_ns
        start, end = self._spans.starts(at), self._spans.ends(at)
        return (int(start[0]), int(end[-1])) if len(start) else (0, 0)

    def windows(self) -> list[windows.Window]:
        """Steps of the job that count, for each of the chosen ranks with GPU work that has them."""
        at = self.timing.at_ns
        of_ranks = {(step.rank, step.iteration) for step in training_steps.marked(self.trace)}
        columns = (self._spans.iteration, self._spans.starts(at), self._spans.ends(at))
        with_work = set(np.unique(self.trace.array("rank")[self.on_gpu]).tolist())
        return [
            windows.Window(rank, *one)
            for rank in self.ranks
            if rank in with_work
            for one in zip(*(column.tolist() for column in columns), strict=True)
            if not self.has_steps or (rank, one[0]) in of_ranks
        ]

    @property
    def steps(self) -> int:
        """Steps that count; a job without steps is one."""
        return max(len(self._spans), 1)

    @property
    def each(self) -> str:
        """Text for what counts are given of: steps and ranks, where there are some."""
        of = ["step"] * self.has_steps + ["rank"] * (len(self.ranks) > 1)
        return f"a {' and '.join(of)}" if of else "in all"

    @property
    def first_work_ns(self) -> int:
        """Start of the first GPU work, on the axis of `ts`."""
        ts = self.trace.array("ts")[self.on_gpu]
        return int(ts.min()) if ts.size else 0

    @property
    def has_times(self) -> bool:
        """True if operations have times; an execution trace alone has only their order."""
        return self.step_ns > 0 and self.trace.meta.clock != ORDER

    @property
    def step_ns(self) -> int:
        """Mean length of a step."""
        return round(self.before_ns / self.steps)

    def _inside(self) -> Array:
        """Mark the nodes of the steps that count, on the chosen ranks."""
        inside = np.isin(self.trace.array("rank"), self.ranks)
        if self.has_steps:
            inside &= np.isin(self.trace.integers("iteration"), self.iterations)
        return inside

    def times(self) -> LagChanges:
        """Times to change."""
        return LagChanges(self.changer)

    def saved(self, times: LagChanges) -> Saved:
        """Time by which the mean step is shorter with these times, which are used up."""
        gains = self.of_steps_ns - self._spans.lengths(times.retimed())
        ns = gains.sum() / self.steps
        if len(gains) < _MIN_STEPS:
            return Saved(round(ns))
        return Saved(round(ns), max(int(gains.min()), 0), max(int(gains.max()), 0))

    def result(self, analysis: str, **options: Any) -> Result | None:
        """Result of another analysis of the same steps and ranks; None where data for it is missing."""
        chosen = {"steps": self.chosen_steps, "ranks": self.chosen_ranks} | options
        key = f"{analysis} {sorted(chosen.items())}"
        if key not in self._results:
            try:
                self._results[key] = registry.analysis(analysis)(self.trace, **chosen)
            except MissingDataError:
                self._results[key] = None
        return self._results[key]

    def figures(self, analysis: str, **options: Any) -> dict[str, Any]:
        """Summary of another analysis; empty where data for it is missing."""
        known = self.result(analysis, **options)
        return known.summary if known else {}

    @cached_property
    def compared(self) -> Comparison | None:
        """Ranks and links, all of them, compared by the same steps; None if there is nothing to compare."""
        if comparison.why_not(self.trace, self.chosen_steps):
            return None
        return Comparison(self.trace, self.chosen_steps, causes_alone=True)

    def marks(self, find: Callable[[ExaminedJob], Array]) -> Array:
        """Marks of nodes that a function finds of this job, found once for all that ask."""
        if find not in self._marks:
            self._marks[find] = find(self)
        return self._marks[find]

    def command(self, analyses: str, *, of_ranks: bool = True) -> str:
        """Command of analyses with their options, of the steps that count, and the chosen ranks or all."""
        chosen = options_text(self.chosen_steps, self.chosen_ranks if of_ranks else "")
        return f"chopper-analyze RUN/ {analyses}{chosen}"

    def what_if(self, change: str) -> str:
        """Command that re-times the same with a change of nodes: its gain is the saving of all steps that count."""
        steps, number = self.chosen_steps, self.trace.integers("iteration")[self.on_gpu]
        if self._is_isolated:  # steps that begin when they did, each by itself
            steps = steps or "each"
        elif self.has_steps and not np.isin(number, self.iterations).all():
            change += f" and {self._steps_query(number)}"
        if len(self.ranks) < len(self.trace.ranks):
            change += f" and rank in {self.ranks}"
        option = options_text(steps, self.chosen_ranks)
        return f'chopper-analyze RUN/ what_if{option} -O "change={change}"'

    def _steps_query(self, number: Array) -> str:
        """Query for the steps that count, of these steps."""
        low, high = self.iterations.min(), self.iterations.max()
        others = np.setdiff1d(number[(number >= low) & (number <= high)], self.iterations)
        if others.size:
            return f"iteration in {self.iterations.tolist()}"
        return f"{low} <= iteration <= {high}" if low < high else f"iteration == {low}"

    def without(self, nodes: Array) -> str | None:
        """Command that re-times the same without the marked nodes; None if a short query does not choose just them."""
        query, chosen = self._by_name(nodes)
        return self.what_if(f"scale=0 where {query}") if np.array_equal(chosen, nodes) else None

    def without_waiting(self, calls: Array, callers: Array) -> str | None:
        """The same for calls that wait, by their names or those of their callers: they return at once."""
        calls = calls & self.inside  # those behind the last step hold up none
        alike = self.times().return_without_waiting(calls)
        for nodes in (callers, calls):
            query, chosen = self._by_name(nodes)
            chosen &= is_any(self.trace.array("kind"), CALLS)
            now = self.times().return_without_waiting(chosen)
            same_lags = np.array_equal(now.lag_ns, alike.lag_ns)
            if query and same_lags and np.array_equal(now.delay_ns, alike.delay_ns):
                return self.what_if(f"nowait where {query}")
        return None

    def _by_name(self, nodes: Array) -> tuple[str, Array]:
        """A short query by names and kind, and the nodes that a change of it changes; none if it would be long."""
        names, kinds = (np.unique(self.trace.array(column)[nodes]) for column in ("name", "kind"))
        texts = [self.trace.names()[code] for code in names[:_MAX_NAMES].tolist()]
        if len(names) > _MAX_NAMES or len(kinds) != 1 or not all(map(_PLAIN.match, texts)):
            return "", np.zeros(len(nodes), bool)
        same = np.isin(self.trace.array("name"), names) & (self.trace.array("kind") == kinds[0])
        query = f"kind == '{Kind(int(kinds[0])).name.lower()}' and name in {texts}"
        # a change of a node changes what it calls, too
        return query, self.changer.within(same & self.inside)

    def place(self, nodes: Array) -> FindingPlace:
        """Ranks of the marked nodes, and the longest of them."""
        row = np.flatnonzero(nodes)
        if not row.size:
            return FindingPlace("", 0, 0)
        longest = row[np.argmax(self.trace.array("dur")[row])]
        at = int(self.trace.array("ts")[longest])
        present = np.unique(self.trace.array("rank")[row]).tolist()
        return FindingPlace(ranks_text(present), at, at + int(self.trace.array("dur")[longest]))

    def own_ns(self, nodes: Array) -> int:
        """Own time of the marked nodes: without that of what they call and wait for."""
        return int(self.own_times_ns(nodes).sum())

    def own_times_ns(self, nodes: Array) -> Array:
        """Own time of each node of the trace, 0 of those that are not marked."""
        edge = self.changer.edges(nodes)
        own_ns = np.maximum(self.timing.lag_ns[edge], 0)
        return np.bincount(self.changer.owner[edge], own_ns, len(nodes)).astype(np.int64)

    def idlest(self, work: Array, causes: Collection[str], below_ns: int) -> FindingPlace:
        """Ranks of the marked work, and the longest idle time before it for one of these causes.

        Idle time of `below_ns` and more counts only where there is no shorter one.
        """
        place, idle = self.place(work), self.result("idle")
        if idle is None:
            return place
        import pyarrow.compute as pc

        cause = idle.annotations["idle_cause"]
        chosen = arrow.to_numpy(
            pc.fill_null(pc.is_in(cause.cast("string"), pa.array(causes)), False)
        )
        idle_ns = arrow.to_numpy(pc.fill_null(idle.annotations["idle_ns"], 0)) * (work & chosen)
        short_ns = np.where(idle_ns < below_ns, idle_ns, 0)
        longest = int(np.argmax(short_ns if short_ns.any() else idle_ns))
        until = int(self.trace.array("ts")[longest])
        return (
            FindingPlace(place.ranks, until - int(idle_ns[longest]), until)
            if idle_ns.any()
            else place
        )

    def names(self, nodes: Array) -> list[str]:
        """The two names of the marked nodes that take most time, the first one first."""
        row = np.flatnonzero(nodes)
        code = self.trace.array("name")[row]
        first, group = gather.distinct(code)
        total = np.bincount(group, self.trace.array("dur")[row], len(first))
        texts = self.trace.names()
        return [texts[code[first[k]]] for k in np.argsort(-total, kind="stable")[:2].tolist()]

    def mask(self, row: Array) -> Array:
        """Mark nodes by their rows."""
        marked = np.zeros(self.trace.nodes.num_rows, bool)
        marked[row] = True
        return marked


def options_text(steps: str, ranks: str) -> str:
    """Options of a command by which it is of some steps and ranks."""
    given = {"steps": steps, "ranks": ranks}
    return "".join(f" --{name} {text}" for name, text in given.items() if text)


def ranks_text(ranks: list[int]) -> str:
    """Write numbers of ranks as ``"0-3,7"``."""
    return number_ranges.describe(sorted(ranks)) if ranks else ""

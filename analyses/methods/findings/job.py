"""A job as findings ask of it: its steps, and how much sooner they would end under a change."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from chopper_interop import registry
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.activity.backlog import backlog_ns
from chopper_interop.analyses.methods.changes.changer import Changer
from chopper_interop.analyses.methods.timing import spans
from chopper_interop.analyses.methods.timing.steps import BORDER_EDGE, timing_of_steps
from chopper_interop.arrays import arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import MissingDataError
from chopper_interop.schemas.kinds import GPU_WORK, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import ORDER

if TYPE_CHECKING:
    from collections.abc import Collection

    from chopper_interop.arrays.types import Array
    from chopper_interop.result import Result
    from chopper_interop.trace import Trace

_MIN_STEPS = 3
"""Steps from which on their range is stated. Chosen: two have none worth the name."""
_MAX_NAMES = 3
"""Names of nodes in a command. Chosen: a command is read, and copied, as one line."""
_PLAIN = re.compile(r"[\w:#.,()<> -]+\Z")
"""Names that need no quoting in a query and a shell."""
_NO_WAIT_NS = -(2**60)
"""Least time along an edge that no longer makes anything wait."""


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
        self.lag_ns, self.delay_ns = self._timing.lag_ns.copy(), self._timing.delay_ns.copy()

    def take_no_time(self, nodes: Array, *, factor: float = 0.0) -> LagChanges:
        """Multiply the own time of the marked nodes."""
        edge = self._changer.edges(nodes)
        lag = self.lag_ns[edge]
        self.lag_ns[edge] = np.where(lag > 0, np.rint(lag * factor), lag).astype(np.int64)
        return self

    def shorten(self, nodes: Array, by_ns: Array) -> LagChanges:
        """Shorten nodes of GPU work by times of which there is one for each node of the trace."""
        edge = self._changer.edges(nodes)
        lag, by = self.lag_ns[edge], by_ns[self._changer.owner[edge]]
        self.lag_ns[edge] = np.where(lag > 0, np.maximum(lag - by, 0), lag)
        return self

    def return_without_waiting(self, calls: Array) -> LagChanges:
        """Let the marked calls of hosts return without the GPU work that they waited for."""
        graph = self._timing.graph
        ends = np.zeros(len(graph), bool)
        ends[2 * np.flatnonzero(calls) + 1] = True
        self.lag_ns[(graph.kind == EdgeKind.SYNC) & ends[graph.after]] = _NO_WAIT_NS
        self.delay_ns[ends] = 0
        return self

    def without_delays(self, nodes: Array) -> LagChanges:
        """Let the marked nodes start without the waits that nothing recorded explains."""
        self.delay_ns[2 * np.flatnonzero(nodes)] = 0
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
        As of `windows.rank_windows`; findings are of these ranks.
    """

    def __init__(self, trace: Trace, steps: str = "", ranks: str = "") -> None:
        self.trace, self.chosen_steps = trace, "" if steps == "each" else steps
        self.ranks = windows.chosen_ranks(trace, ranks)
        self.timing = timing_of_steps(trace)
        self.changer = Changer(self.timing)
        self._is_isolated = self.timing.graph.kind.max(initial=0) == BORDER_EDGE
        self.has_steps = bool(windows.step_windows(trace))
        self._every = spans.spans_of_timing(self.timing, "each" if self.has_steps else "")
        self._chosen = self._choose()
        self._backlog_ns = self._backlog() if self.has_steps else 0
        self.iterations = self._every.iteration[self._chosen]
        self._results: dict[str, Result | None] = {}
        self.of_steps_ns = self._lengths(self.timing.at_ns)
        self.before_ns = int(self.of_steps_ns.sum())
        self.inside = self._inside()
        kind = trace.array("kind")
        self.on_gpu = is_any(kind, GPU_WORK)
        self.copies = is_any(kind, (Kind.MEMCPY, Kind.MEMSET))
        thread = trace.array("kind", "lanes") == LaneKind.THREAD
        self.on_host = thread[trace.array("lane")] & ~self.on_gpu

    def _choose(self) -> Array:
        """Positions of the steps that count among all."""
        if not self.chosen_steps:
            return np.arange(len(self._every))
        chosen = {w.iteration for w in windows.rank_windows(self.trace, self.chosen_steps)}
        return np.flatnonzero(np.isin(self._every.iteration, list(chosen)))

    def _backlog(self) -> int:
        """Time of the first step that belongs to work from before the recording, on all ranks."""
        begin_ns = int(self._every.starts(self.timing.at_ns)[0])
        first = int(self._every.iteration[0])
        return backlog_ns(self.trace, self.trace.rank_rows, first, begin_ns)

    def _lengths(self, at: Array) -> Array:
        """Length of each step that counts: from the end of the step before, of the first from its start.

        So they add up to the time of the job, also where GPUs lag behind and steps overlap.
        """
        start, end = self._every.starts(at), self._every.ends(at)
        if len(start):
            start[0] = min(start[0] + self._backlog_ns, end[0])
        if not self._is_isolated:
            start[1:] = end[:-1]
        return (end - start)[self._chosen]

    def span_ns(self) -> tuple[int, int]:
        """Start of the first step that counts, and end of the last, on the axis of `ts`."""
        at = self.timing.at_ns
        start, end = self._every.starts(at)[self._chosen], self._every.ends(at)[self._chosen]
        return (int(start[0]), int(end[-1])) if len(start) else (0, 0)

    @property
    def steps(self) -> int:
        """Steps that count; a job without steps is one."""
        return max(len(self._chosen), 1)

    @property
    def each(self) -> str:
        """Text for what counts are given of: a step of a rank, or a rank where there are no steps."""
        return "a step and rank" if self.has_steps else "a rank"

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
        return self.before_ns // self.steps

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
        """Time by which the mean step is shorter with these times."""
        at = self.timing.retimed(times.lag_ns, times.delay_ns)
        gains = self.of_steps_ns - self._lengths(at)
        ns = gains.sum() / self.steps
        if len(gains) < _MIN_STEPS:
            return Saved(round(ns))
        return Saved(round(ns), max(int(gains.min()), 0), max(int(gains.max()), 0))

    def result(self, analysis: str, **options: Any) -> Result | None:
        """Result of another analysis of the same steps; None where data for it is missing."""
        chosen = {"steps": self.chosen_steps} | options
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

    def what_if(self, change: str) -> str:
        """Command that re-times the same with a change of nodes: its gain is the saving of all steps that count."""
        option, number = "", self.trace.integers("iteration")[self.on_gpu]
        if self._is_isolated:  # steps that begin when they did, each by itself
            option = f" --steps {self.chosen_steps or 'each'}"
        elif self.has_steps and not np.isin(number, self.iterations).all():
            change += f" and {self.iterations.min()} <= iteration <= {self.iterations.max()}"
        if len(self.ranks) < len(self.trace.ranks):
            change += f" and rank in {self.ranks}"
        return f'chopper-analyze RUN/ what_if{option} -O "change={change}"'

    def without(self, nodes: Array) -> str | None:
        """Command that re-times the same without the marked nodes; None if a short query does not choose just them."""
        names, kinds = (np.unique(self.trace.array(column)[nodes]) for column in ("name", "kind"))
        texts = [self.trace.names()[code] for code in names[:_MAX_NAMES].tolist()]
        same = np.isin(self.trace.array("name"), names) & np.isin(self.trace.array("kind"), kinds)
        is_short = len(names) <= _MAX_NAMES and len(kinds) == 1 and all(map(_PLAIN.match, texts))
        # a change of a node changes what it calls, too
        chosen = self.changer.within(same & self.inside) if is_short else ~nodes
        if not np.array_equal(chosen, nodes):
            return None
        kind = Kind(int(kinds[0])).name.lower()
        return self.what_if(f"scale=0 where kind == '{kind}' and name in {texts}")

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
        return int(np.maximum(self.timing.lag_ns[self.changer.edges(nodes)], 0).sum())

    def idlest(self, work: Array, causes: Collection[str], below_ns: int) -> FindingPlace:
        """Ranks of the marked work, and the longest idle time before it for one of these causes.

        Idle time of `below_ns` and more counts only where there is no shorter one.
        """
        place, idle = self.place(work), self.result("idle")
        if idle is None:
            return place
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


def ranks_text(ranks: list[int]) -> str:
    """Write numbers of ranks as ``"0-3,7"``."""
    parts: list[list[int]] = []
    for rank in sorted(ranks):
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return ",".join("-".join(map(str, part)) for part in parts)

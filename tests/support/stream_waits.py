"""Waits between streams of a simulated program, against the edges that are inferred."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from programs.simulation import Run

    from chopper_interop.trace import Trace

Edge = tuple[int, int]
"""Correlation of the awaited and of the waiting work; those of a rank are in the order of its launches."""


@dataclass
class Comparison:
    """Inferred edges against what was waited for.

    Parameters
    ----------
    needed
        Waits that no others imply.
    recovered
        Those that the inferred edges imply.
    inferred, wrong
        Edges, and those that the waits do not imply.
    """

    needed: int = 0
    recovered: int = 0
    inferred: int = 0
    wrong: int = 0

    def add(
        self, needed: set[Edge], true: set[Edge], inferred: set[Edge], stream: Mapping[int, int]
    ) -> None:
        """Compare edges of one rank; `true` may have more than what is `needed`."""
        in_truth, in_inferred = behind(true, stream), behind(inferred, stream)
        kept = {e for e in needed if not implied(e, behind(true - {e}, stream), stream)}
        self.needed += len(kept)
        self.recovered += sum(implied(e, in_inferred, stream) for e in kept)
        self.inferred += len(inferred)
        self.wrong += sum(not implied(e, in_truth, stream) for e in inferred)


def behind(edges: Iterable[Edge], stream: Mapping[int, int]) -> dict[int, dict[int, int]]:
    """For each piece of work the last work of each stream behind which it starts.

    Parameters
    ----------
    stream
        Stream of each piece of work, by correlation.
    """
    into: dict[int, list[int]] = {}
    for source, target in edges:
        into.setdefault(target, []).append(source)
    of_stream: dict[int, dict[int, int]] = {}
    result: dict[int, dict[int, int]] = {}
    for work in sorted(stream):
        last = dict(of_stream.get(stream[work], {}))
        for source in into.get(work, []):
            for other, number in result.get(source, {}).items():
                last[other] = max(last.get(other, -1), number)
        last[stream[work]] = work
        result[work] = of_stream[stream[work]] = last
    return result


def implied(edge: Edge, last: Mapping[int, Mapping[int, int]], stream: Mapping[int, int]) -> bool:
    """True if work starts behind other work, directly or not."""
    source, target = edge
    return last.get(target, {}).get(stream[source], -1) >= source


def streams(run: Run, rank: int) -> dict[int, int]:
    """Stream of each piece of work of a rank."""
    return {s.correlation: s.lane for s in run.slices if s.on_gpu and s.place.rank == rank}


def waited_for(run: Run, rank: int, *, recorded: bool) -> set[Edge]:
    """Waits between streams: all, or those of which both sides and the call are recorded."""
    stream = streams(run, rank)
    seen = {s.correlation for s in run.recorded() if s.place.rank == rank}
    calls = [s for s in run.slices if s.place.rank == rank and s.category == "cuda_runtime"]
    # of each stream the last work, and what the stream waits for since then
    last: dict[int, int] = {}
    pending: dict[int, list[tuple[int, int]]] = {}
    awaited: dict[int, list[tuple[int, int]]] = {}
    edges = set()
    for call in sorted(calls, key=lambda c: (c.start_ns, c.correlation)):
        if call.name == "Record":
            on = call.facts["stream"]
            own = [(last[on], call.correlation)] if on in last else []
            awaited[call.facts["event"]] = own + pending.get(on, [])
        elif call.name == "StreamWait":
            waits = [(source, call.correlation) for source, _ in awaited[call.facts["event"]]]
            pending.setdefault(call.facts["stream"], []).extend(waits)
        elif call.correlation in stream:
            last[stream[call.correlation]] = call.correlation
            for source, wait_call in pending.pop(stream[call.correlation], []):
                known = {source, wait_call, call.correlation} <= seen
                if known or not recorded:
                    edges.add((source, call.correlation))
    return {(s, t) for s, t in edges if stream[s] != stream[t]}


def inferred(trace: Trace, rank: int) -> set[Edge]:
    """EVENT edges of a rank."""
    kind, number = trace.array("kind", "edges"), trace.array("correlation")
    src, dst = (trace.array(c, "edges")[kind == EdgeKind.EVENT] for c in ("src", "dst"))
    of_rank = trace.array("rank")[src] == rank
    return set(zip(number[src[of_rank]].tolist(), number[dst[of_rank]].tolist(), strict=True))


def compare(run: Run, trace: Trace, result: Comparison) -> None:
    """Add all ranks of a program to a comparison."""
    for rank in range(len(run.program.threads)):
        result.add(
            waited_for(run, rank, recorded=True), waited_for(run, rank, recorded=False),
            inferred(trace, rank), streams(run, rank),
        )  # fmt: skip

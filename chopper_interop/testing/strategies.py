"""Hypothesis strategies: any trace that the hub allows, unusual ones above all.

Times are drawn from few values, so that equal starts, zero durations, nesting, overruns and
overlaps all turn up in small traces.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

from chopper_interop.build import TraceBuilder
from chopper_interop.issues import Issue, Severity
from chopper_interop.schemas import meta
from chopper_interop.schemas.kinds import (
    GPU_LANES,
    GPU_WORK,
    HOST_KINDS,
    Collective,
    EdgeKind,
    Kind,
    LaneKind,
)
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    Draw = Callable[[st.SearchStrategy[Any]], Any]

ODD_NAMES = (
    "",
    " ",
    "aten::mm",
    'quoted "twice" \\ and escaped \\n',
    "two\nlines\r\n\tand a tab",
    "\x00\x01\x1f\x7f",
    "名前 имя 🐎",
    "\u2028\u2029\ufeff",
    "</script>{}[],:",
    "Cijk_Ailk_Bljk_" + 40 * "HSS_BH_",
    "ProfilerStep#7",
    "unknown",
)
"""Names that have broken a reader or writer."""

OTHER_KINDS: dict[Kind, LaneKind] = {
    Kind.GPU_ANNOTATION: LaneKind.GPU_ANNOTATION,
    Kind.GPU_SYNC: LaneKind.GPU_SYNC,
    Kind.ALLOCATION: LaneKind.MEMORY,
    Kind.OVERHEAD: LaneKind.PROFILER,
    Kind.SPAN: LaneKind.PROFILER,
    Kind.INSTANT: LaneKind.THREAD,
    Kind.HOST_GAP: LaneKind.THREAD,
    Kind.OTHER: LaneKind.THREAD,
}
"""Further kinds, and the lanes that they run on."""
COMM_NAMES = ("ncclDevKernel_Generic_1", "rcclKernel", "mscclpp_exchange")
"""Names of communication kernels that do not contain the collective."""
ELEMENTS = {"Float": 4, "BFloat16": 2, "Long": 8, "Byte": 1}
"""Element types with their sizes in bytes."""

# Times at which traces begin: small ones, and two of Unix time, to find overflow and rounding.
_EPOCHS = (0, 1, 1_712_195_495_502_094_513, 1_767_189_312_000_000_000)
_SHIFTS_NS = (0, 0, 0, 1_000, 10**9, 3_600 * 10**9)


@cache
def names() -> st.SearchStrategy[str]:
    """Draw names of nodes: unusual ones, and any Unicode text."""
    return st.sampled_from(ODD_NAMES) | st.text(max_size=12)


@cache
def json_values() -> st.SearchStrategy[Any]:
    """Draw values of arguments: numbers of any size, texts, nested lists and objects."""
    plain = (
        st.none()
        | st.booleans()
        | st.integers(-(2**70), 2**70)
        | st.floats(allow_nan=False, allow_infinity=False)
        | names()
    )
    return st.recursive(
        plain,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
        ),
        max_leaves=4,
    )


@cache
def arguments(keys: st.SearchStrategy[str] | None = None) -> st.SearchStrategy[str]:
    """Draw arguments of a node as JSON text, spaced and escaped in different ways; "" for none.

    Parameters
    ----------
    keys
        Names of the members; by default those that sources use, and any text.
    """
    if keys is None:
        usual = st.sampled_from(("External id", "Input Dims", "grid", "Python id", "ptr"))
        keys = usual | st.text(max_size=4)
    drawn = st.dictionaries(keys, json_values(), max_size=3)
    texts = st.builds(_to_json, drawn, st.booleans(), st.sampled_from((None, 1)))
    return st.just("") | texts


def _to_json(value: dict[str, Any], ascii_only: bool, indent: int | None) -> str:  # noqa: FBT001
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent)


@st.composite
def traces(  # noqa: PLR0913 - what a trace may or may not hold
    draw: Draw,
    *,
    max_ranks: int = 3,
    max_nodes: int = 12,
    node_names: st.SearchStrategy[str] | None = None,
    node_args: st.SearchStrategy[str] | None = None,
    samples: bool = True,
    counters: bool = True,
    collectives: bool = True,
    clocks: tuple[str, ...] = (meta.REALTIME, meta.BOOTTIME),
) -> Trace:
    """Draw valid traces.

    They have several ranks, threads on which ranges nest and overrun, streams on which work
    overlaps, launches of one and of many kernels, work whose launch is not recorded, collectives
    with their groups across ranks, edges from forward to backward, telemetry, hardware counters, arguments.

    Parameters
    ----------
    draw
        Passed by Hypothesis.
    max_ranks
        Maximum number of ranks; there may be none.
    max_nodes
        Maximum number of nodes on the host, on the GPU and elsewhere, each, in a rank.
    node_names, node_args
        Strategies for names and arguments (`arguments`).
    samples, counters, collectives
        True to draw telemetry, hardware counters and process groups.
    clocks
        Clocks of `schemas.meta` to draw from.
    """
    ranks = sorted(draw(st.sets(st.integers(0, 9), max_size=max_ranks)))
    parts = _TraceDrawer(
        draw=draw,
        builder=TraceBuilder(meta.Meta(job=draw(names()), clock=draw(st.sampled_from(clocks)))),
        origin=draw(st.sampled_from(_EPOCHS)),
        names=names() if node_names is None else node_names,
        args=arguments() if node_args is None else node_args,
        max_nodes=max_nodes,
    )
    if collectives and ranks:
        parts.groups(ranks)
    for rank in ranks:
        parts.host(rank)
        parts.gpu(rank)
        parts.others(rank)
    parts.further_edges()
    if samples:
        parts.samples([*ranks, -1])
    if counters:
        parts.counters()
    return parts.finish(ranks)


@dataclass
class _TraceDrawer:
    """Draws the parts of a trace and builds it."""

    draw: Draw
    builder: TraceBuilder
    origin: int
    names: st.SearchStrategy[str]
    args: st.SearchStrategy[str]
    max_nodes: int
    calls: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Numbers of the calls of each rank, with their correlation ids."""
    kernels: list[int] = field(default_factory=list)
    group_rows: list[tuple[int, list[int]]] = field(default_factory=list)
    """Rows of process groups with their members."""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """Nodes, which are added to the builder at once: a call for each takes longer than drawing it."""
    correlations: int = 0

    @property
    def count(self) -> int:
        """Number of nodes so far."""
        return len(self.rows)

    def groups(self, ranks: list[int]) -> None:
        """Draw process groups: one of all ranks, and some of subsets."""
        row = self.builder.group("", ranks, "default_pg", "nccl")
        self.group_rows.append((row, ranks))
        for k in range(self.draw(st.integers(0, 2))):
            members = self.draw(st.lists(st.sampled_from(ranks), min_size=1, unique=True))
            row = self.builder.group(str(k), members, self.draw(names()), "cpu:gloo,cuda:nccl")
            self.group_rows.append((row, members))

    def host(self, rank: int) -> None:
        """Draw nodes of host threads; runtime calls have correlation ids."""
        number = st.integers(1, 3) | st.just(2**40)
        threads = self.draw(st.lists(number, min_size=1, max_size=2, unique=True))
        operators: dict[tuple[int, int], list[int]] = {}
        for start, dur in self._intervals():
            kind = self.draw(st.sampled_from(HOST_KINDS))
            thread = self.draw(st.sampled_from(threads))
            lane = self.builder.lane(rank, LaneKind.THREAD, thread, f"thread {thread}")
            correlation = -1
            if kind in (Kind.RUNTIME, Kind.DRIVER) and self.draw(st.booleans()):
                self.correlations += 1
                correlation = self.correlations
                self.calls.setdefault(rank, []).append((self.count, correlation))
            if kind is Kind.CPU_OP:
                operators.setdefault((thread, start), []).append(self.count)
            self._node(rank, kind, lane, (start, dur), correlation)
        alone = [numbers[0] for numbers in operators.values() if len(numbers) == 1]
        if len(alone) > 1:
            pair = self.draw(st.lists(st.sampled_from(alone), min_size=2, max_size=2, unique=True))
            self._edge(pair[0], pair[1], EdgeKind.FWDBWD)

    def gpu(self, rank: int) -> None:
        """Draw nodes of a GPU's queues, most of them launched by calls."""
        device = self.draw(st.integers(0, 8))
        for start, dur in self._intervals():
            kind = self.draw(st.sampled_from(GPU_WORK))
            lane_kind = self.draw(st.sampled_from(GPU_LANES))
            number = self.draw(st.integers(0, 2) | st.just(0x7F0000001000))
            name = f"{lane_kind.name.lower()} {number}"
            lane = self.builder.lane(rank, lane_kind, number, name, device)
            call, correlation = self.draw(
                st.sampled_from([*self.calls.get(rank, []), (-1, -1), (-1, 10**6 + self.count)])
            )
            if call >= 0:
                self._edge(call, self.count, EdgeKind.LAUNCH)
            if kind is Kind.KERNEL:
                self.kernels.append(self.count)
            columns = self._communication(rank) if kind is Kind.COMM else {}
            if kind in (Kind.MEMCPY, Kind.MEMSET) and self.draw(st.booleans()):
                columns["bytes"] = self.draw(st.integers(0, 2**40))
            self._node(rank, kind, lane, (start, dur), correlation, **columns)

    def others(self, rank: int) -> None:
        """Draw nodes of all further kinds."""
        device = self.draw(st.integers(0, 8))
        for start, dur in self._intervals(self.max_nodes // 3):
            kind = self.draw(st.sampled_from(tuple(OTHER_KINDS)))
            lane_kind = OTHER_KINDS[kind]
            number = self.draw(st.integers(0, 2))
            on_host = lane_kind in (LaneKind.THREAD, LaneKind.PROFILER)
            name = f"{lane_kind.name.lower()} {number}"
            lane = self.builder.lane(rank, lane_kind, number, name, -1 if on_host else device)
            self._node(rank, kind, lane, (start, 0 if kind is Kind.INSTANT else dur))

    def further_edges(self) -> None:
        """Draw edges of the kinds that connect any two nodes, of different ranks too."""
        if self.count > 1:
            node = st.integers(0, self.count - 1)
            kinds = st.sampled_from(
                (EdgeKind.COMM, EdgeKind.SYNC, EdgeKind.DATA, EdgeKind.DEPENDENCY)
            )
            for a, b, kind in self.draw(st.lists(st.tuples(node, node, kinds), max_size=3)):
                if a != b:
                    self._edge(min(a, b), max(a, b), kind)

    def samples(self, ranks: list[int]) -> None:
        """Draw telemetry of some ranks and of the node."""
        for k in range(self.draw(st.integers(0, 3))):
            series = self.builder.series(
                self.draw(st.sampled_from(ranks)),
                self.draw(names()),
                self.draw(st.sampled_from(("W", "MHz", "B", "", "%"))),
                f"tool {k % 2}",
                device=self.draw(st.integers(-1, 3)),
                uncertainty_ns=self.draw(st.sampled_from((0, 500_000))),
            )
            number = st.floats(allow_nan=False, allow_infinity=False)
            point = st.tuples(st.integers(0, 20), number)
            drawn = self.draw(st.lists(point, min_size=1, max_size=4))
            ts = np.array([at for at, _ in drawn]) + self.origin
            self.builder.samples(series, ts, np.array([value for _, value in drawn]))

    def counters(self) -> None:
        """Draw hardware counters of some kernels."""
        for node in self.kernels:
            if self.draw(st.booleans()):
                value = self.draw(st.floats(0, 1e18))
                self.builder.counters(
                    np.array([node]), self.draw(st.sampled_from(("SQ_WAVES", 'odd "one"'))),
                    np.array([value]),
                )  # fmt: skip

    def finish(self, ranks: list[int]) -> Trace:
        """Build the trace with its metadata."""
        self._add_rows()
        trace = self.builder.finish()
        lost = self.draw(st.integers(0, 3))
        issues = [Issue("left-out", Severity.LOSS, "Left out.", lost, "row 3", True, "in.txt")]
        source = meta.Source("in.txt", "toy", "toy 1", "", 1, self.count + lost, self.count)
        return trace.with_meta(
            ranks=tuple(meta.Rank(r, "host", 100 + r, 2, "header") for r in ranks),
            devices=tuple(meta.Device("host", d, f"GPU {d}", "toy", d) for d in range(2)),
            offsets=(meta.Offset(meta.BOOTTIME, 17, 3),)
            if trace.meta.clock == meta.REALTIME
            else (),
            clocks=self._clocks(ranks),
            sources=(source,),
            issues=tuple(issues[:lost]),
            facts={"version": self.draw(names())},
        )

    def _clocks(self, ranks: list[int]) -> tuple[meta.ClockFit, ...]:
        """Draw alignments of the clocks of some ranks and of a source."""
        number = st.integers(-(1 << 62), 1 << 62)
        fit = st.builds(
            meta.ClockFit,
            of=st.sampled_from([*(f"rank {r}" for r in ranks), "in.txt"]),
            clock=st.just(meta.REALTIME),
            method=st.sampled_from(("user", "collective ends")),
            offset_ns=number,
            drift_ppb=st.integers(-100, 100),
            applied=st.booleans(),
            reason=names(),
        )
        return tuple(self.draw(st.lists(fit, max_size=2, unique=True)))

    def _intervals(self, max_size: int | None = None) -> list[tuple[int, int]]:
        """Draw starts and durations, ns since the origin."""
        few = st.integers(0, 12)
        interval = st.tuples(few, few | st.just(0) | st.just(10**6))
        drawn = self.draw(
            st.lists(interval, max_size=self.max_nodes if max_size is None else max_size)
        )
        shift = self.draw(st.sampled_from(_SHIFTS_NS))
        return [(start + shift, dur) for start, dur in drawn]

    def _communication(self, rank: int) -> dict[str, Any]:
        """Draw the columns of a collective or a message; none if it is unknown."""
        groups = [row for row, members in self.group_rows if rank in members]
        if not groups or self.draw(st.booleans()):
            return {}
        kind = self.draw(st.sampled_from((Collective.ALL_REDUCE, Collective.ALL_TO_ALL,
                                          Collective.SEND, Collective.BARRIER)))  # fmt: skip
        dtype = self.draw(st.sampled_from(tuple(ELEMENTS)))
        known = {"collective": kind, "group": self.draw(st.sampled_from(groups)), "dtype": dtype}
        known["bytes"] = ELEMENTS[dtype] * self.draw(st.integers(0, 2**30))
        if self.draw(st.booleans()):
            known |= {"out_bytes": known["bytes"], "seq": self.draw(st.integers(0, 2**40))}
        if kind == Collective.SEND:
            known["peer"] = self.draw(st.integers(0, 9))
        return known

    def _node(
        self, rank: int, kind: Kind, lane: int, when: tuple[int, int], correlation: int = -1,
        **columns: Any,
    ) -> None:  # fmt: skip
        text = self.draw(self.args).encode()
        name = self.draw(self.names if kind is not Kind.COMM else st.sampled_from(COMM_NAMES))
        if self.draw(st.booleans()):
            columns |= {"iteration": self.draw(st.integers(0, 3)), "phase": "forward"}
        at = self.builder.text(np.frombuffer(bytearray(b" " + text), np.uint8)) + 1
        core = {
            "kind": int(kind), "name": name, "rank": rank, "lane": lane,
            "ts": when[0] + self.origin, "dur": when[1], "correlation": correlation,
            "args_at": at, "args_len": len(text),
        }  # fmt: skip
        self.rows.append(core | columns)

    def _add_rows(self) -> None:
        """Add all nodes to the builder."""
        columns = {
            name: [row.get(name) for row in self.rows]
            for name in dict.fromkeys(name for row in self.rows for name in row)
        }
        if self.rows:
            ts, at, length = (np.array(columns.pop(c)) for c in ("ts", "args_at", "args_len"))
            core = {c: columns.pop(c) for c in ("kind", "name", "rank", "lane", "dur")}
            self.builder.nodes(ts=ts, args=(at, length), **core, **columns)

    def _edge(self, src: int, dst: int, kind: EdgeKind) -> None:
        self.builder.edges(np.array([src], np.int32), np.array([dst], np.int32), int(kind))

"""Hypothesis strategies: any trace that the hub allows, odd ones first of all.

Times are drawn from few values, so that equal starts, zero durations, nesting, overruns and
overlaps all turn up in small traces.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from chopper_interop.build import TraceBuilder
from chopper_interop.issues import Issue, Severity
from chopper_interop.schemas.kinds import Collective, EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import (
    BOOTTIME,
    REALTIME,
    ClockFit,
    Device,
    Meta,
    Offset,
    Rank,
    Source,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.trace import Trace

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
"""Names that have broken a reader or writer somewhere."""

HOST_KINDS = (Kind.CPU_OP, Kind.ANNOTATION, Kind.PYTHON, Kind.RUNTIME, Kind.DRIVER, Kind.API)
GPU_KINDS = (Kind.KERNEL, Kind.COMM, Kind.MEMCPY, Kind.MEMSET)
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
GPU_LANES = (LaneKind.STREAM, LaneKind.QUEUE, LaneKind.COPY)
COMM_NAMES = ("ncclDevKernel_Generic_1", "rcclKernel", "mscclpp_exchange")
"""Names of kernels that communicate and do not tell what."""
ELEMENTS = {"Float": 4, "BFloat16": 2, "Long": 8, "Byte": 1}
"""Element types with their sizes in bytes."""

_EPOCHS = (0, 1, 1_712_195_495_502_094_513, 1_767_189_312_000_000_000)
_LONG_AFTER = (0, 0, 0, 1_000, 10**9, 3_600 * 10**9)


def names() -> st.SearchStrategy[str]:
    """Names of nodes: odd ones, and any text that is Unicode."""
    return st.sampled_from(ODD_NAMES) | st.text(max_size=12)


def json_values() -> st.SearchStrategy[Any]:
    """Values that arguments have: numbers of any size, texts, lists and objects within."""
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


def arguments(
    keys: st.SearchStrategy[str] | None = None,
) -> st.SearchStrategy[str]:
    """Arguments of a node as JSON text, spaced and escaped in different ways; "" for none.

    Parameters
    ----------
    keys
        Names of the members; by default those that sources use, and any text.
    """
    if keys is None:
        named = st.sampled_from(("External id", "Input Dims", "grid", "Python id", "ptr"))
        keys = named | st.text(max_size=4)
    drawn = st.dictionaries(keys, json_values(), max_size=3)
    texts = st.builds(_rendered, drawn, st.booleans(), st.sampled_from((None, 1)))
    return st.just("") | texts


def _rendered(value: dict[str, Any], ascii_only: bool, indent: int | None) -> str:  # noqa: FBT001
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
    clocks: tuple[str, ...] = (REALTIME, BOOTTIME),
) -> Trace:
    """Valid traces.

    They have several ranks, threads on which ranges nest and overrun, streams on which work
    overlaps, launches of one and of many kernels, work whose launch is not recorded, collectives
    with their groups across ranks, forward to backward, telemetry, hardware counters, arguments.

    Parameters
    ----------
    draw
        Given by Hypothesis.
    max_ranks
        Most ranks; there may be none.
    max_nodes
        Most nodes of each of host, GPU and the rest in a rank.
    node_names, node_args
        What to draw names and arguments (`arguments`) from.
    samples, counters, collectives
        Whether to have telemetry, hardware counters and process groups.
    clocks
        Clocks of `schemas.meta` that the times may be on.
    """
    ranks = sorted(draw(st.sets(st.integers(0, 9), max_size=max_ranks)))
    make = _Maker(
        draw=draw,
        builder=TraceBuilder(Meta(job=draw(names()), clock=draw(st.sampled_from(clocks)))),
        origin=draw(st.sampled_from(_EPOCHS)),
        names=names() if node_names is None else node_names,
        args=arguments() if node_args is None else node_args,
        max_nodes=max_nodes,
    )
    if collectives and ranks:
        make.groups(ranks)
    for rank in ranks:
        make.host(rank)
        make.gpu(rank)
        make.others(rank)
    make.further_edges()
    if samples:
        make.samples([*ranks, -1])
    if counters:
        make.counters()
    return make.finish(ranks)


@dataclass
class _Maker:
    """Draws the parts of a trace and puts them together."""

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
    count: int = 0
    correlations: int = 0

    def groups(self, ranks: list[int]) -> None:
        """Process groups: all ranks, and some of them."""
        whole = self.builder.group("", ranks, "default_pg", "nccl")
        self.group_rows.append((whole, ranks))
        for k in range(self.draw(st.integers(0, 2))):
            some = self.draw(st.lists(st.sampled_from(ranks), min_size=1, unique=True))
            row = self.builder.group(str(k), some, self.draw(names()), "cpu:gloo,cuda:nccl")
            self.group_rows.append((row, some))

    def host(self, rank: int) -> None:
        """Nodes of host threads; those that call the runtime get correlation ids."""
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
        """Nodes of a GPU's queues, most of them launched by calls."""
        device = self.draw(st.integers(0, 8))
        for start, dur in self._intervals():
            kind = self.draw(st.sampled_from(GPU_KINDS))
            on = self.draw(st.sampled_from(GPU_LANES))
            number = self.draw(st.integers(0, 2) | st.just(0x7F0000001000))
            lane = self.builder.lane(rank, on, number, f"{on.name.lower()} {number}", device)
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
        """Nodes of all further kinds."""
        device = self.draw(st.integers(0, 8))
        for start, dur in self._intervals(self.max_nodes // 3):
            kind = self.draw(st.sampled_from(tuple(OTHER_KINDS)))
            on = OTHER_KINDS[kind]
            number = self.draw(st.integers(0, 2))
            place = -1 if on in (LaneKind.THREAD, LaneKind.PROFILER) else device
            lane = self.builder.lane(rank, on, number, f"{on.name.lower()} {number}", place)
            self._node(rank, kind, lane, (start, 0 if kind is Kind.INSTANT else dur))

    def further_edges(self) -> None:
        """Edges of the kinds that tie any two nodes, of different ranks too."""
        if self.count > 1:
            node = st.integers(0, self.count - 1)
            kinds = st.sampled_from(
                (EdgeKind.COMM, EdgeKind.SYNC, EdgeKind.DATA, EdgeKind.DEPENDENCY)
            )
            for a, b, kind in self.draw(st.lists(st.tuples(node, node, kinds), max_size=3)):
                if a != b:
                    self._edge(min(a, b), max(a, b), kind)

    def samples(self, ranks: list[int]) -> None:
        """Telemetry of some ranks and of the node."""
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
        """Hardware counters of some kernels."""
        for node in self.kernels:
            if self.draw(st.booleans()):
                value = self.draw(st.floats(0, 1e18))
                self.builder.counters(
                    np.array([node]), self.draw(st.sampled_from(("SQ_WAVES", 'odd "one"'))),
                    np.array([value]),
                )  # fmt: skip

    def finish(self, ranks: list[int]) -> Trace:
        """The trace, with what is known of it as a whole."""
        trace = self.builder.finish()
        lost = self.draw(st.integers(0, 3))
        issues = [Issue("left-out", Severity.LOSS, "Left out.", lost, "row 3", True, "in.txt")]
        source = Source("in.txt", "toy", "toy 1", "", 1, self.count + lost, self.count)
        return trace.with_meta(
            ranks=tuple(Rank(r, "host", 100 + r, 2, "header") for r in ranks),
            devices=tuple(Device("host", d, f"GPU {d}", "toy", d) for d in range(2)),
            offsets=(Offset(BOOTTIME, 17, 3),) if trace.meta.clock == REALTIME else (),
            clocks=self._clocks(ranks),
            sources=(source,),
            issues=tuple(issues[:lost]),
            facts={"version": self.draw(names())},
        )

    def _clocks(self, ranks: list[int]) -> tuple[ClockFit, ...]:
        """How clocks of some ranks and of a source were brought together."""
        number = st.integers(-(1 << 62), 1 << 62)
        fit = st.builds(
            ClockFit,
            of=st.sampled_from([*(f"rank {r}" for r in ranks), "in.txt"]),
            clock=st.just(REALTIME),
            method=st.sampled_from(("user", "collective ends")),
            offset_ns=number,
            drift_ppb=st.integers(-100, 100),
            applied=st.booleans(),
            reason=names(),
        )
        return tuple(self.draw(st.lists(fit, max_size=2, unique=True)))

    def _intervals(self, most: int | None = None) -> list[tuple[int, int]]:
        """Starts and durations, ns since the origin."""
        few = st.integers(0, 12)
        interval = st.tuples(few, few | st.just(0) | st.just(10**6))
        drawn = self.draw(st.lists(interval, max_size=self.max_nodes if most is None else most))
        shift = self.draw(st.sampled_from(_LONG_AFTER))
        return [(start + shift, dur) for start, dur in drawn]

    def _communication(self, rank: int) -> dict[str, Any]:
        """What a collective's or a message's columns hold; nothing if it is not known."""
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
        self.builder.nodes(
            kind=int(kind),
            name=name,
            rank=rank,
            lane=lane,
            ts=np.array([when[0] + self.origin]),
            dur=when[1],
            correlation=correlation,
            args=(np.array([at]), np.array([len(text)], np.int32)),
            **{name: pa.array([value]) for name, value in columns.items()},
        )
        self.count += 1

    def _edge(self, src: int, dst: int, kind: EdgeKind) -> None:
        self.builder.edges(np.array([src], np.int32), np.array([dst], np.int32), int(kind))

"""Reading Perfetto traces: track events of any producer, those of ROCm's tools and our own best.

What is not a track event (ftrace, process statistics, …) is counted by its kind. rocprofv3 moves
kernels that overlap on a queue apart; where a slice carries `begin_ns` and `end_ns` these are its
times.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop import arrow, gather, inputs, outputs, progress
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import perfetto_about
from chopper_interop.converters import perfetto_read_kinds as kinds
from chopper_interop.converters import perfetto_read_links as links
from chopper_interop.converters import perfetto_read_packets_decode as wire_packets
from chopper_interop.converters.perfetto_columns import GROUP
from chopper_interop.converters.perfetto_read_annotations_text import (
    INTEGER,
    NO_FACTS,
    OF_KERNELS,
    OUR_FACTS,
    REAL,
    REAL_FACTS,
    TEXT,
    UNKNOWN,
    numbers_of,
)
from chopper_interop.converters.perfetto_read_arguments import TASK, Arguments, arguments
from chopper_interop.converters.perfetto_read_clock import Clocks
from chopper_interop.converters.perfetto_read_decode import NO_STATE, NO_TIME, decode
from chopper_interop.converters.perfetto_read_events_decode import OTHER, Events
from chopper_interop.converters.perfetto_read_places import (
    Place,
    first_of,
    kinds_of,
    lanes,
    places,
    ways,
)
from chopper_interop.converters.perfetto_read_samples import samples
from chopper_interop.converters.perfetto_read_slices import Slices, slices
from chopper_interop.converters.perfetto_read_tracks import NOBODY, Tracks, described
from chopper_interop.errors import ReadError
from chopper_interop.interning import interned
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import GPU_LANES, GPU_WORK, Kind
from chopper_interop.schemas.meta import ASSUMED, Device, Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.converters.perfetto_read_annotations_text import Facts
    from chopper_interop.converters.perfetto_read_interned_decode import Texts
    from chopper_interop.converters.perfetto_read_lists_decode import Lists
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

BROKEN_PACKETS = Fault(
    "perfetto-packet-broken",
    Severity.LOSS,
    "Packets that are no proper messages were left out.",
    events=True,
)
NOT_TAKEN = Fault(
    "perfetto-other-data",
    Severity.INFO,
    "Packets of data sources other than track events were not taken over.",
    events=True,
)
WITHOUT_TIME = Fault(
    "event-without-time", Severity.LOSS, "Events without a time were left out.", events=True
)
WITHOUT_STATE = Fault(
    "event-state-lost",
    Severity.LOSS,
    "Events that refer to texts in packets that were dropped were left out.",
    events=True,
)
WITHOUT_CLOCK = Fault(
    "event-clock-unknown",
    Severity.LOSS,
    "Events on a clock that no snapshot ties to the trace's were left out.",
    events=True,
)
OUT_OF_REACH = Fault(
    "time-out-of-reach",
    Severity.LOSS,
    "Events with times that no clock shows were left out.",
    events=True,
)
OTHER_EVENT = Fault(
    "event-type-unknown",
    Severity.LOSS,
    "Events of a type not known here were left out.",
    events=True,
)
BUFFER_FULL = Fault(
    "perfetto-buffer-full",
    Severity.LOSS,
    "The recorder's buffer was full, and pieces of the trace were dropped: record with a larger one "
    "(rocprofv3: --perfetto-buffer-size).",
)
DERIVED_SLICES = Fault(
    "slices-derived",
    Severity.INFO,
    "Slices of iterations and phases, which our writer draws of annotations, are no nodes.",
    events=True,
)
TIMES_MOVED = Fault(
    "kernel-times-moved",
    Severity.INFO,
    "Slices were drawn at other times than their begin_ns and end_ns, which were taken.",
)
KERNELS_TOUCH = Fault(
    "kernel-times-touch",
    Severity.INFO,
    "Kernels of a queue that touch exactly: rocprofv3 moves kernels that overlap so, and some "
    "versions write the moved times only.",
)
NEGATIVE = Fault(
    "duration-negative", Severity.LOSS, "Ends before their starts were taken as the starts."
)
GROUPS_UNKNOWN = Fault(
    "process-groups-unknown",
    Severity.INFO,
    "Collectives are without their process group, of which older versions of this package wrote no "
    "more than a number.",
)
SUMS = Fault(
    "counter-values-are-sums",
    Severity.LOSS,
    "Counters of kernels were left among their arguments: rocprofv3 of ROCm 6.4, and rocpd's "
    "conversion, give each kernel the sum over all of them; CSV, JSON or rocpd have its own.",
)
FURTHER_CATEGORIES = Fault(
    "further-categories",
    Severity.LOSS,
    "Slices with several categories: the first was taken, the others were left out.",
)
RANK_ASSUMED = Fault(
    "rank-assumed",
    Severity.INFO,
    "Neither the file nor its name says its rank, so 0 was assumed.",
)
OWN_CLOCK = Fault(
    "clock-of-its-own",
    Severity.INFO,
    "Times are on a clock of the writer's own, which the trace ties to no other: they were taken as "
    "nanoseconds since boot.",
)
PROCESSES_AS_RANKS = Fault(
    "processes-as-ranks",
    Severity.INFO,
    "Processes that do not say their rank were numbered by their process ids.",
)

_PACKET_NAMES = {1: "ftrace", 2: "process tree", 9: "process stats", 66: "perf samples"}
_ABOUT_TRACE = (0, 6, 33, 34, 35, 36, 43, 44, 45, 46, 60, 61, 64, 69, 72, 84, 89, 124, 126, 128)
"""Packets that tell of the trace, the system or tracks, and are no events."""
_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})", re.IGNORECASE)
_LARGEST = 1 << 62
_MOST_APART = 10_000_000
"""Nanoseconds that times in arguments may be away from the slice without touching it."""
_DERIVED = "derived"
_OF_TEXTS = ("name_at", "name_len", "category_at", "category_len", "body_at", "body_len", "state")
"""Columns of events that are not needed when all texts are taken."""
_DISPATCHED = (int(Kind.KERNEL), int(Kind.COMM), int(Kind.MEMCPY), int(Kind.MEMSET))
"""Kinds of what rocprofv3 calls kernels: RCCL's, and those that copy and fill, are among them."""
_TRACE_STATS = 35
_FIRST_PACKETS = 32
_TELLING = frozenset({1, 2, 6, 11, 33, 35, 36, 43, 44, 45, 50, 60, 69, 89, 133})
"""Payloads that traces begin with."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is a Perfetto trace, by the fields of its first packets."""
    if head[:1] != b"\n":
        return False
    at, told = 0, False
    for _ in range(_FIRST_PACKETS):
        if at >= len(head):
            break
        field = _field(head, at)
        if field is None or field[:2] != (1, 2):
            return told and field is None and at > 0
        _, _, begin, end = field
        fields = _packet_fields(head[begin : min(end, len(head))], whole=end <= len(head))
        if fields is None:
            return told  # damaged, if there was a sound packet before
        told = told or bool(fields & _TELLING)
        at = end
    return told


def _packet_fields(raw: bytes, *, whole: bool) -> set[int] | None:
    """Numbers of a packet's fields; None if it is none."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    types = messages.TracePacket.DESCRIPTOR.fields_by_number
    found: set[int] = set()
    at = 0
    while at < len(raw):
        field = _field(raw, at)
        if field is None or (field[3] > len(raw) and whole):
            return None if whole else found
        number, wire, _, at = field
        known = types.get(number)
        expected = 2 if known is None or known.message_type or known.type in (9, 12) else 0
        if known is not None and known.type in (1, 6, 16):
            expected = 1
        if wire != expected:
            return None
        found.add(number)
    return found


def _field(raw: bytes, at: int) -> tuple[int, int, int, int] | None:
    """Number, wire type, begin and end of a field; None if there is none."""
    key, at = _varint(raw, at)
    if at < 0 or key >> 3 == 0:
        return None
    wire = key & 7
    if wire == 0:
        _, end = _varint(raw, at)
        return None if end < 0 else (key >> 3, 0, at, end)
    if wire == 2:  # noqa: PLR2004
        size, at = _varint(raw, at)
        return None if at < 0 else (key >> 3, 2, at, at + size)
    sizes = {1: 8, 5: 4}
    return (key >> 3, wire, at, at + sizes[wire]) if wire in sizes else None


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(raw) and shift < 70:  # noqa: PLR2004 - ten bytes
        value |= (raw[at] & 127) << shift
        at += 1
        if raw[at - 1] < 128:  # noqa: PLR2004
            return value, at
        shift += 7
    return 0, -1


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one Perfetto trace.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for files that hold several processes.

    Returns
    -------
    Trace
        Of a rank for each process that has slices.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    return _Reader(path, rank, issues).trace()


class _Reader:
    """One trace on its way from packets to nodes."""

    def __init__(self, path: Path, rank: int | None, issues: IssueLog) -> None:
        self.path, self.given, self.issues = path, rank, issues
        self.packets = wire_packets.packets(inputs.read(path, issues), issues)
        if not len(self.packets.at):
            raise ReadError("there is no whole packet in it", path=path, hint="record it again")
        self.tracks: Tracks = described(self.packets, issues)
        events, lists, snapshots, texts, lost = decode(self.packets)
        self.events: Events = events
        self.lists: Lists = lists
        self.texts: Texts = texts
        used = [int(c) for c in np.unique(events.clock)]
        self.clocks = Clocks(snapshots, _primary(self.packets), used)
        issues.add(OWN_CLOCK, int(self.clocks.is_own))
        self.ours = self._is_ours()
        own = self.packets.of_kind(perfetto_about.PACKET) if self.ours else []
        self.about = perfetto_about.told(raw for _, raw in own)
        self.counted = self._count_packets(lost)
        issues.add(BUFFER_FULL, _dropped(self.packets))
        self.builder = TraceBuilder()

    def _is_ours(self) -> bool:
        known = slice(0, int(self.texts.known[0]))
        first = np.flatnonzero((self.texts.field[known] == 3) & (self.texts.iid[known] == 1))  # noqa: PLR2004
        return any(
            self._text(int(self.texts.at[k]), int(self.texts.length[k])) == GROUP for k in first
        )

    def _text(self, at: int, length: int) -> str:
        return self.packets.buffer[at : at + length].tobytes().decode("utf-8", "replace")

    def _count_packets(self, lost: Array) -> int:
        """Note packets that hold no event that is taken; how many there are."""
        kind = self.packets.kind
        broken = np.flatnonzero(kind == wire_packets.BROKEN_PACKET)
        where = f"at byte {self.packets.at[broken[0]]}" if broken.size else ""
        self.issues.add(BROKEN_PACKETS, broken.size, where)
        self.issues.add(WITHOUT_TIME, np.count_nonzero(lost == NO_TIME))
        self.issues.add(WITHOUT_STATE, np.count_nonzero(lost == NO_STATE))
        known = (*_ABOUT_TRACE, wire_packets.TRACK_EVENT, wire_packets.BROKEN_PACKET)
        own = (perfetto_about.PACKET,) if self.ours else ()
        foreign = kind[~np.isin(kind, (*known, *own))]
        number, count = np.unique(foreign, return_counts=True)
        told = [f"{c:,} {_packet_name(n)}" for n, c in zip(number.tolist(), count, strict=True)]
        self.issues.add(NOT_TAKEN, foreign.size, ", ".join(told[:6]))
        lost_packets = broken.size + foreign.size + self.packets.damaged
        return lost_packets + np.count_nonzero(lost)

    def trace(self) -> Trace:
        """Everything."""
        events = self.events
        progress.start(TASK, len(events.ts), "events")
        ts, keep = self._times()
        n_events = len(ts)
        further = np.count_nonzero(keep[self.lists.counter_event])
        unknown = keep & (events.type == OTHER)
        self.issues.add(OTHER_EVENT, np.count_nonzero(unknown))
        track, told = places(events, self.tracks, self.about, ours=self.ours)
        names, name = self._named(events.name_at, events.name_len)
        type_ = np.where(keep, events.type, OTHER)
        found = slices(type_, ts, track, name, events.dur, self.issues)
        self.counted += n_events - np.count_nonzero(found.end >= 0) + further
        some = np.where(events.category_len > 0, events.category_len, -1)
        categories, category = self._named(events.category_at, some)
        found = self._without_derived(found, category, categories)
        further = np.maximum(events.categories[found.begin] - 1, 0)
        self.issues.add(FURTHER_CATEGORIES, np.count_nonzero(further))
        tool = self._tool(categories)
        args = arguments(
            self.packets.buffer, events, self.texts, found.begin, found.end,
            facts_of=self._facts_of(tool), builder=self.builder, issues=self.issues,
        )  # fmt: skip
        del self.packets  # the largest that there is, and no longer wanted
        events = self.events = events._replace(**dict.fromkeys(_OF_TEXTS, np.zeros(0, np.int64)))
        ranks = self._ranks(track, told, found)
        nodes = self._nodes(
            found, track, told, name, names, category, categories, args, ranks, tool
        )
        samples(
            self.builder, events, self.lists, ts, keep, self.tracks, ranks, tool, self.issues,
            self.about, ours=self.ours,
        )  # fmt: skip
        self.builder.meta = self._meta(tool, ranks, nodes)
        return self.builder.finish()

    def _times(self) -> tuple[Array, Array]:
        ts, known = self.clocks.converted(self.events.ts, self.events.clock)
        self.issues.add(WITHOUT_CLOCK, np.count_nonzero(~known))
        far = known & ((ts < 0) | (ts > _LARGEST))
        self.issues.add(OUT_OF_REACH, np.count_nonzero(far))
        return np.where(known & ~far, ts, 0), known & ~far

    def _named(self, at: Array, length: Array) -> tuple[list[str], Array]:
        """Distinct texts among byte ranges, and of each range which it is (-1 if it is none)."""
        ranges = np.unique(at + (length.astype(np.int64) << 40))
        table = interned(len(ranges) + 1)
        codes = numbers_of(self.packets.buffer, at, length, table)
        texts = table.texts(self.packets.buffer)
        return [t.decode("utf-8", "replace") for t in texts], codes

    def _without_derived(self, found: Slices, category: Array, categories: list[str]) -> Slices:
        if not self.ours or _DERIVED not in categories:
            return found
        own = category[found.begin] != categories.index(_DERIVED)
        self.issues.add(DERIVED_SLICES, np.count_nonzero(~own))
        return Slices(found.begin[own], found.end[own], found.ts[own], found.dur[own])

    def _tool(self, categories: list[str]) -> str:
        if self.ours:
            return outputs.MARK
        for pattern, tool in kinds.SOURCES:
            if any(pattern.fullmatch(c) for c in categories):
                return tool
        return "Perfetto"

    def _facts_of(self, tool: str) -> int:
        """Of which arguments facts are made: our columns, or counters of rocprofv3."""
        if self.ours:
            return OUR_FACTS
        return REAL_FACTS if tool == kinds.ROCPROF else NO_FACTS

    def _ranks(self, track: Array, told: list[Place], found: Slices) -> dict[int, int]:
        """Process id → rank, of all processes that have slices; our writer's node has -1."""
        used = sorted({told[t].pid for t in np.unique(track[found.begin]).tolist()})
        counted = {self.tracks.owner(u) for u, t in self.tracks.by_uuid.items() if t.counts}
        said = {pid: self.tracks.rank_of(pid) for pid in [*used, *sorted(counted)]}
        self.known_by = ASSUMED
        if self.given is not None and len(used) <= 1:
            self.known_by = "user"
            return dict.fromkeys(used, self.given)
        stated = {pid: rank for pid, rank in said.items() if rank is not None}
        if used and all(said[pid] is not None for pid in used) and _distinct(stated, used):
            self.known_by = "labels"
            return stated
        in_name = _IN_NAME.search(self.path.name)
        if len(used) == 1 and in_name:
            self.known_by = "name"
            return {used[0]: int(in_name.group(1))}
        self.issues.add(PROCESSES_AS_RANKS, len(used) if len(used) > 1 else 0)
        self.issues.add(RANK_ASSUMED, int(len(used) == 1))
        return {pid: number for number, pid in enumerate(used)}

    def _nodes(  # noqa: PLR0913, PLR0917 # columns of one table
        self, found: Slices, track: Array, told: list[Place], name: Array, names: list[str],
        category: Array, categories: list[str], args: Arguments, ranks: dict[int, int], tool: str,
    ) -> Nodes:  # fmt: skip
        begin = found.begin
        n = len(begin)
        on_gpu = np.array([p.kind in GPU_LANES for p in told] + [False])[track[begin]]
        kind = kinds_of(
            self.events.type[begin], category[begin], categories, name[begin], names, on_gpu,
            args.values,
        )  # fmt: skip
        owner = np.array([max(ranks.get(p.pid, 0), 0) for p in told] + [0], np.int64)[track[begin]]
        ts, dur = self._exact(found, args)
        columns, correlation = self._columns(args, kind, n)
        if tool == kinds.ROCPROF_V2:
            correlation = self._by_flows(found, correlation)
        lane = lanes(
            self.builder, owner, track[begin], told, kind, args.values, ways(names, name[begin]),
            ours=self.ours,
        )  # fmt: skip
        if n:
            self.builder.nodes(
                kind=kind,
                name=arrow.dictionary(
                    np.where(name[begin] < 0, len(names), name[begin]), [*names, ""]
                ),
                rank=owner,
                lane=lane,
                ts=ts,
                dur=dur,
                correlation=correlation,
                args=(args.at, args.length),
                **columns,
            )
        self._counters(args)
        self._counters_of_kernels(args, kind)
        self._links(found, kind, owner, ts, correlation, name[begin], names)
        if tool == kinds.ROCPROF:
            self._note_touching(kind, lane, ts, dur)
        return Nodes(kind, lane)

    def _exact(self, found: Slices, args: Arguments) -> tuple[Array, Array]:
        """Times as arguments tell them, where they are of the same clock."""
        begin, end = (args.values.get(k) for k in ("begin_ns", "end_ns"))
        ts, dur = found.ts, found.dur
        if begin is not None and end is not None and not self.ours:
            told = (begin != UNKNOWN) & (end != UNKNOWN) & (begin >= 0) & (end >= 0)
            near = (begin <= ts + dur + _MOST_APART) & (end >= ts - _MOST_APART)
            told &= near & (end >= begin)
            moved = told & ((begin != ts) | (end - begin != dur))
            self.issues.add(TIMES_MOVED, np.count_nonzero(moved))
            ts, dur = np.where(told, begin, ts), np.where(told, end - begin, dur)
        self.issues.add(NEGATIVE, np.count_nonzero(dur < 0))
        return ts, np.maximum(dur, 0)

    def _columns(self, args: Arguments, kind: Array, n: int) -> tuple[dict[str, Any], Array]:
        """Annotation columns and correlation ids."""
        correlation = first_of(args.values, n, "corr_id", "correlation")
        columns: dict[str, Any] = {}
        size = first_of(args.values, n, "copy_bytes", "bytes", "allocation_size")
        moves = np.isin(kind, (int(Kind.MEMCPY), int(Kind.MEMSET), int(Kind.ALLOCATION)))
        known = moves & (size >= 0)
        facts = args.facts
        mine = facts.group == 0
        for code in np.unique(facts.name[mine]).tolist():
            label = args.names[code]
            rows = np.flatnonzero(mine & (facts.name == code))
            if label == "correlation":
                correlation = np.full(n, UNKNOWN, np.int64) if correlation is None else correlation
                correlation[facts.slice[rows]] = facts.value[rows]
            elif label == "group":
                columns |= self._groups(facts, rows, n)
            elif label in hub.ANNOTATION_TYPES:
                column = _column(label, facts, rows, args.words, n)
                if column is not None:
                    columns[label] = column
        if known.any() and "bytes" not in columns:
            columns["bytes"] = arrow.array(np.where(known, size, 0), mask=~known)
        return columns, np.where(correlation == UNKNOWN, -1, correlation)

    def _groups(self, facts: Facts, rows: Array, n: int) -> dict[str, Any]:
        """The column of process groups, if the trace says what they are."""
        made = [self.builder.group(**group) for group in self.about.groups]
        values = facts.value[rows]
        good = (facts.type[rows] == INTEGER) & (values >= 0) & (values < len(made))
        self.issues.add(GROUPS_UNKNOWN, np.count_nonzero(~good))
        if not good.any():
            return {}
        column, unknown = np.zeros(n, np.int64), np.ones(n, np.bool_)
        at = facts.slice[rows[good]]
        column[at], unknown[at] = np.array(made, np.int64)[values[good]], False
        return {"group": arrow.array(column, hub.ANNOTATION_TYPES["group"], mask=unknown)}

    def _counters(self, args: Arguments) -> None:
        facts = args.facts
        rows = np.flatnonzero((facts.group == 1) & np.isin(facts.type, (INTEGER, REAL)))
        if len(rows):
            bits = facts.value[rows]
            real = facts.type[rows] == REAL
            value = np.where(real, bits.view(np.float64), bits.astype(np.float64))
            names = arrow.dictionary(facts.name[rows], args.names)
            self.builder.counters(facts.slice[rows], names, value)

    def _counters_of_kernels(self, args: Arguments, kind: Array) -> None:
        """Decimal arguments of rocprofv3's kernels, which are their hardware counters."""
        facts = args.facts
        rows = np.flatnonzero(facts.group == OF_KERNELS)
        rows = rows[np.isin(kind[facts.slice[rows]], _DISPATCHED) & (facts.name[rows] >= 0)]
        if not len(rows):
            return
        order = np.argsort(facts.name[rows], kind="stable")
        node, name = facts.slice[rows][order], facts.name[rows][order]
        value = facts.value[rows][order].view(np.float64)
        first, code = gather.distinct(name)
        of_kernel = np.isfinite(value) & ~_is_sum(args, node, code, len(first), value)
        self.issues.add(SUMS, np.count_nonzero(~of_kernel))
        names = arrow.dictionary(name[of_kernel], args.names)
        self.builder.counters(node[of_kernel], names, value[of_kernel])

    def _slice_of(self, found: Slices) -> Array:
        """Of each event the slice that it begins or ends, -1 without one."""
        slice_of = np.full(len(self.events.ts) + 1, -1, np.int64)
        ended = found.end >= 0
        slice_of[found.end[ended]] = np.flatnonzero(ended)
        slice_of[found.begin] = np.arange(len(found.begin))
        return slice_of

    def _by_flows(self, found: Slices, correlation: Array) -> Array:
        """Correlation ids of rocprofv2, which are in its flows: XOR the uuid of the process."""
        own = [u for u, t in self.tracks.by_uuid.items() if t.pid != NOBODY and t.tid < 0]
        node = self._slice_of(found)[self.lists.flow_event]
        if len(own) != 1:
            return correlation
        told = (self.lists.flow ^ np.uint64(own[0])).view(np.int64)
        good = (node >= 0) & (told >= 0)
        correlation = correlation.copy()
        correlation[node[good]] = told[good]
        return correlation

    def _links(  # noqa: PLR0913, PLR0917 # columns of one table
        self, found: Slices, kind: Array, rank: Array, ts: Array, correlation: Array, name: Array,
        names: list[str],
    ) -> None:  # fmt: skip
        node = self._slice_of(found)[self.lists.flow_event]
        flow, node = self.lists.flow.view(np.int64)[node >= 0], node[node >= 0]
        if self.ours:
            waits = links.waiting(name, names)
            links.ours(self.builder, flow, node, kind, rank, ts, waits, correlation)
        else:
            links.launches(self.builder, flow, node, kind, rank, ts, correlation)

    def _note_touching(self, kind: Array, lane: Array, ts: Array, dur: Array) -> None:
        work = np.flatnonzero(np.isin(kind, [int(k) for k in GPU_WORK]))
        work = work[np.lexsort((ts[work], lane[work]))]
        touch = (ts[work[1:]] == (ts + dur)[work[:-1]]) & (lane[work[1:]] == lane[work[:-1]])
        self.issues.add(KERNELS_TOUCH, np.count_nonzero(touch))

    def _meta(self, tool: str, ranks: dict[int, int], nodes: Nodes) -> Meta:
        lanes_of = self.builder.lanes()
        work = np.isin(nodes.kind, [int(k) for k in GPU_WORK])
        used = {lanes_of[i] for i in np.unique(nodes.lane[work]).tolist()}
        devices = sorted({d for _, d, _, _ in used if d >= 0})
        of_rank = {r: [d for rr, d, _, _ in used if rr == r and d >= 0] for r in ranks.values()}
        made = tuple(
            Rank(
                r, pid=pid if pid > 0 else -1, device=min(of_rank.get(r) or [-1]),
                known_by=self.known_by,
            )
            for pid, r in sorted(ranks.items(), key=lambda item: item[1])
            if r >= 0 and r in {k[0] for k in lanes_of}
        )  # fmt: skip
        source = Source(
            str(self.path),
            "perfetto",
            tool,
            inputs.sha256(self.path),
            self.path.stat().st_size,
            int(self.counted),
            len(nodes.kind),
        )
        agents = tool == kinds.ROCPROF
        return Meta(
            job=inputs.plain_name(self.path),
            clock=self.clocks.name,
            offsets=self.clocks.offsets,
            ranks=made,
            devices=tuple(Device("", d, "", tool, agent=d if agents else -1) for d in devices),
            sources=(source,),
            issues=tuple(self.issues),
        )


def _is_sum(args: Arguments, node: Array, code: Array, n: int, value: Array) -> Array:
    """Which counters are the same for all kernels, in a version that gives them their sum.

    The versions that do not say the stream as ``stream_ID`` do so: ROCm 6.4, and rocpd's conversion.
    """
    stream = args.values.get("stream_ID")
    by_kernel = stream is not None and bool((stream[node] != UNKNOWN).any())
    least, most = np.full(n, np.inf), np.full(n, -np.inf)
    np.minimum.at(least, code, value)
    np.maximum.at(most, code, value)
    same = (least == most) & (np.bincount(code, minlength=n) > 1)
    return same[code] & (not by_kernel)


class Nodes:
    """Kinds and lanes of the nodes that were made."""

    def __init__(self, kind: Array, lane: Array) -> None:
        self.kind, self.lane = kind, lane


def _distinct(stated: dict[int, int], used: list[int]) -> bool:
    return len({stated[pid] for pid in used}) == len(used)


def _packet_name(number: int) -> str:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    known = messages.TracePacket.DESCRIPTOR.fields_by_number.get(number)
    return _PACKET_NAMES.get(number) or (known.name if known else f"field {number}")


def _primary(packets: wire_packets.Packets) -> int:
    """The clock that the trace says it is on; 0 if it does not."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for _, raw in packets.of_kind(wire_packets.CLOCK_SNAPSHOT):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        if packet.clock_snapshot.primary_trace_clock:
            return int(packet.clock_snapshot.primary_trace_clock)
    return 0


def _dropped(packets: wire_packets.Packets) -> int:
    """Pieces that the recorder says it discarded or overwrote, by its last statistics."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for _, raw in reversed(packets.of_kind(_TRACE_STATS)):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        buffers = packet.trace_stats.buffer_stats
        return min(sum(b.chunks_discarded + b.chunks_overwritten for b in buffers), 1 << 62)
    return 0


def _column(label: str, facts: Any, rows: Array, words: list[str], n: int) -> Any:
    """An annotation column of our own; None if its values are of the wrong type."""
    declared = hub.ANNOTATION_TYPES[label]
    at, types, values = facts.slice[rows], facts.type[rows], facts.value[rows]
    unknown = np.ones(n, np.bool_)
    if pa.types.is_dictionary(declared):
        good = (types == TEXT) & (values >= 0)
        codes = np.zeros(n, np.int64)
        codes[at[good]], unknown[at[good]] = values[good], False
        return arrow.dictionary(codes, words or [""], mask=unknown) if good.any() else None
    real = pa.types.is_floating(declared)
    good = np.isin(types, (REAL, INTEGER)) if real else types == INTEGER
    if declared == pa.int32():
        good &= (values >= -(1 << 31)) & (values < 1 << 31)
    column = np.zeros(n, np.float64 if real else np.int64)
    whole = values[good]
    column[at[good]] = (
        np.where(types[good] == REAL, whole.view(np.float64), whole) if real else whole
    )
    unknown[at[good]] = False
    return arrow.array(column, declared, mask=unknown) if good.any() else None

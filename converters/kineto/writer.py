"""Writing Kineto JSON: for HTA, TensorBoard, chrome://tracing and whatever reads PyTorch traces.

Format: libkineto's ``output_json.cpp``. Times are microseconds with three decimals since
``baseTimeNanoseconds``, made of whole nanoseconds. Reading the file again gives what was written,
with these exceptions, which Kineto cannot express:

* API calls, allocations, gaps and other nodes become annotations, kernels named like NCCL's
  communicate; their original kind stands in ``args.chopper.kind``;
* hardware queues and copy engines become streams, lanes without a name get one;
* arrows end at an operator by its thread and start: forward → backward connects the shortest
  operator that starts there to the longest;
* process groups are identified by name, and a collective without one is of the whole job;
* dependencies other than launches and forward → backward are not written, but counted;
* hardware counters of kernels stand in ``args.counters`` and are not read back, but counted;
* annotation columns for which Kineto has no name stand in ``args.chopper`` and are not read back,
  but counted;
* series have neither device nor tool: both stand in their names; they are counted.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from chopper_interop import progress
from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.combined import SourceIssues
from chopper_interop.converters.kineto import events_encode as encode
from chopper_interop.converters.kineto.added_members import (
    CORRELATED,
    AddedMembers,
    columns_without_name,
    is_comm_name,
    render_reals,
)
from chopper_interop.converters.kineto.edges import launch_edges
from chopper_interop.converters.kineto.header import head, tail
from chopper_interop.converters.kineto.samples import MEMORY, SOURCE
from chopper_interop.converters.kineto.strict_json_text import json_bytes
from chopper_interop.converters.kineto.tracks import Tracks
from chopper_interop.io import json_events, outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.categories import PYTORCH_CATEGORY
from chopper_interop.schemas.kinds import CALLS, GPU_WORK, EdgeKind, Kind
from chopper_interop.schemas.time_units import KINETO_BASE_NS
from chopper_interop.trace import Trace

WITHOUT_ARROW = Fault.info(
    "edges-without-arrow",
    "Dependencies other than launches and forward to backward, for which "
    "Kineto has no arrows, are not in the JSON.",
)
COUNTERS = Fault.info(
    "counters-as-arguments",
    "Hardware counters of kernels stand among their arguments, as "
    "`counters`, which readers do not take for counters.",
)
COLUMNS = Fault.info(
    "annotations-as-arguments",
    "Annotation columns for which Kineto has no names stand among "
    "arguments, in `chopper`, which readers do not take for columns.",
)
SERIES = Fault.info(
    "series-by-name",
    "Series with a device, unit, tool or uncertainty, or of the whole node, which "
    "Kineto cannot express: a reader finds device and unit in their names alone, and the rest "
    "nowhere.",
)
ARROWS = (EdgeKind.LAUNCH, EdgeKind.FWDBWD)
_IMPLIED = (EdgeKind.CALL, EdgeKind.ORDER, EdgeKind.STREAM)
"""Edges that nesting and order imply."""
_ENDINGS = (".json", ".json.gz")
_CHUNK_EVENTS = 1 << 16
_BUFFER_BYTES = 8 << 20
"""Both chosen: chunks large enough for the cost of numpy's calls not to show, and small enough for
their columns and text to stay far below the size of the trace in memory."""
_TASK = "writing Kineto"
_UNLIKE_NCCL = "collective_comm"
"""Category of communication kernels that are not named like NCCL's."""
_PROBES = 1000
_MIN_STATED_SHARE = 0.9
"""Probed spans, and the share of them that must state their ranks, as when they are read: a reader takes them then."""
_MALFORMED = "malformed args"
_NODE_FILE = "node.json.gz"
"""File of the node's telemetry, in a folder without any rank."""
_RANK_FILE = re.compile(r"rank\d+\.json\.gz")


def write(trace: Trace, path: Path) -> IssueLog:
    """Write a trace as PyTorch's profiler does.

    Parameters
    ----------
    trace
        Any trace.
    path
        ``….json`` or ``….json.gz`` for one file. Several ranks are fused in it: each has pids of
        its own, and its events state their ``rank`` and their original pid as ``pid_raw``. Any
        other name is that of a folder, which gets a ``rank0.json.gz``, ``rank1.json.gz``, … as
        PyTorch writes them on each rank.

    Returns
    -------
    IssueLog
        Counts of dependencies that have no arrow, of counters and annotation columns that stand
        among arguments, and of series that Kineto cannot describe completely.
    """
    outputs.require_times(trace, path)
    issues = IssueLog("Kineto")
    implied = [int(k) for k in (*ARROWS, *_IMPLIED)]
    issues.add(COUNTERS, trace.counters.num_rows)
    columns = columns_without_name(trace)
    issues.add(COLUMNS, len(columns), ", ".join(columns))
    issues.add(SERIES, *_count_series_by_name(trace))
    issues.add(WITHOUT_ARROW, np.count_nonzero(~np.isin(trace.array("kind", "edges"), implied)))
    progress.start(_TASK, trace.nodes.num_rows, "events")
    ranks_of_series = trace.array("rank", "series")
    ranks = sorted({*trace.ranks, *(int(r) for r in ranks_of_series[ranks_of_series >= 0])})
    base = _base_ns(trace)
    if path.name.endswith(_ENDINGS):
        with outputs.file(path) as stream:
            _FileWriter(trace, ranks, base, stream).write(path.name, with_node=True)
        return issues
    with outputs.folder(path, owns=_is_written_here) as folder:
        for rank in ranks:
            name = f"rank{rank}.json.gz"
            with outputs.file(folder / name) as stream:
                writer = _FileWriter(_select_rank(trace, rank), [rank], base, stream)
                writer.write(name, with_node=rank == ranks[0])
        if not ranks:
            with outputs.file(folder / _NODE_FILE) as stream:
                _FileWriter(trace, [], base, stream).write(_NODE_FILE, with_node=True)
    return issues


def _is_written_here(path: Path) -> bool:
    is_our_name = path.name == _NODE_FILE or _RANK_FILE.fullmatch(path.name)
    return bool(is_our_name) and outputs.is_marked(path)


def _select_rank(trace: Trace, rank: int) -> Trace:
    """Return one rank of a trace, which may have telemetry only, with the series of all ranks."""
    if rank in trace.ranks:
        return replace(trace.rank(rank), series=trace.series, samples=trace.samples)
    empty = {name: getattr(trace, name).slice(0, 0) for name in ("nodes", "edges", "counters")}
    return replace(trace, **empty)


def _base_ns(trace: Trace) -> int:
    """Return the start of the window of three months in which the first event lies."""
    starts = [int(trace.array("ts", t).min()) for t in ("nodes", "samples") if _rows(trace, t)]
    return (trace.meta.origin_ns + min(starts, default=0)) // KINETO_BASE_NS * KINETO_BASE_NS


def _rows(trace: Trace, table: str) -> int:
    return int(getattr(trace, table).num_rows)


class _FileWriter:
    """Writes one file of some ranks of a trace."""

    def __init__(self, trace: Trace, ranks: list[int], base_ns: int, stream: IO[bytes]) -> None:
        self.trace = trace
        self.ranks = ranks
        self.base_ns = base_ns
        self.offset_ns = trace.meta.origin_ns - base_ns
        self.stream = stream
        self.tracks = Tracks(trace, ranks)
        self.heads, self.head_of_node = _heads(trace)
        self.fixed = encode.Fixed(
            heads=encode.join_texts(self.heads),
            names=encode.join_texts(json_bytes(name) for name in trace.names()),
            tracks=self.tracks.texts,
        )
        self.buffer = np.empty(_BUFFER_BYTES, np.uint8)
        self.rank_in_args = self._is_rank_in_args()
        self.members = AddedMembers(
            trace, self.tracks, _correlations(trace), rank_in_args=self.rank_in_args
        )

    def write(self, name: str, *, with_node: bool) -> None:
        """Write everything.

        Parameters
        ----------
        name
            Name of the file, which its ``traceName`` repeats.
        with_node
            Whether to write the series that belong to the node and no rank.
        """
        self.stream.write(head(self.trace, self.ranks, self.base_ns))
        series = [
            (row, description)
            for row, description in enumerate(self.trace.series.to_pylist())
            if description["rank"] in self.ranks or (description["rank"] < 0 and with_node)
        ]
        metadata = self.tracks.metadata(rank_in_args=self.rank_in_args)
        if any(description["rank"] < 0 for _, description in series) or not metadata:
            args = {"name": "node"}
            metadata.append(
                {"ph": "M", "name": "process_name", "pid": "node", "tid": 0, "args": args}
            )
        self.stream.write(b",\n".join(json_bytes(event) for event in metadata))
        nodes = self.trace.nodes.num_rows
        for start in range(0, nodes, _CHUNK_EVENTS):
            self._write_nodes(start, min(start + _CHUNK_EVENTS, nodes))
        self._write_arrows()
        self._write_samples(series)
        self.stream.write(tail(name))

    def _is_rank_in_args(self) -> bool:
        """True if a reader will take ranks from the arguments of most events.

        So it is in a fused file, and in one with events that came out of such a file.
        """
        if self.tracks.fused:
            return True
        spans = np.flatnonzero(~self._is_instant(slice(None)))
        probe = spans[:: max(1, len(spans) // _PROBES)]
        at, length = (self.trace.array(c)[probe] for c in ("args_at", "args_len"))
        buffer, start = self.trace.text.block(at, length)
        _, present = json_events.extract_integers(buffer, start, length, ("rank", "pid_raw"))
        return bool(probe.size) and bool(present.all(axis=0).mean() >= _MIN_STATED_SHARE)

    def _is_instant(self, rows: slice) -> Array:
        """Mark nodes that become instants: none that a reader would take for samples of memory."""
        is_memory_name = np.array([*(name == MEMORY for name in self.trace.names()), False])
        memory = is_memory_name[self.trace.array("name")[rows]]
        instant = self.trace.array("kind")[rows] == Kind.INSTANT
        return np.asarray(instant & (self.trace.array("dur")[rows] == 0) & ~memory)

    def _write_nodes(self, start: int, stop: int) -> None:
        """Write the nodes from `start` to `stop`."""
        rows = slice(start, stop)
        instants = self._is_instant(rows)
        events = encode.OutEvents(
            ts=self.trace.array("ts")[rows] + self.offset_ns,
            dur=np.where(instants, -1, self.trace.array("dur")[rows]),
            head=np.where(instants, len(self.heads) - 1, self.head_of_node[rows]),
            name=np.array(self.trace.array("name")[rows], np.int64),
            track=np.array(self.tracks.of_node[rows], np.int64),
        )
        length = self.trace.array("args_len")[rows].astype(np.int64)
        buffer, at = self.trace.text.block(self.trace.array("args_at")[rows], length)
        arguments = encode.Arguments(_writable(buffer), np.array(at, np.int64), length)
        members = self.members.of_chunk(start, stop, arguments, instants)
        max_size = encode.max_sizes(0, stop - start, events, arguments, members, self.fixed)
        if max_size.max(initial=0) > len(self.buffer):
            self.buffer = np.empty(int(max_size.max()) + _BUFFER_BYTES, np.uint8)
        done, count = 0, stop - start
        while done < count:
            size, done, status = encode.write_events(
                self.buffer, done, count, events, arguments, members, self.fixed, max_size
            )
            self.stream.write(self.buffer[:size].data)
            if status == encode.IMPROPER:
                self._write_repaired(done, events, arguments, members)
                done += 1
        progress.advance(_TASK, count)

    def _write_repaired(
        self, k: int, events: encode.OutEvents, arguments: encode.Arguments, members: encode.Members
    ) -> None:
        """Write one event whose arguments are not JSON, with arguments that are."""
        at, length = int(arguments.at[k]), int(arguments.length[k])
        repaired = _repair(arguments.buffer[at : at + length].tobytes())
        arguments.at[k], arguments.length[k] = 0, len(repaired)
        proper = arguments._replace(buffer=np.frombuffer(bytearray(repaired), np.uint8))
        max_size = encode.max_sizes(k, k + 1, events, proper, members, self.fixed)
        buffer = np.empty(int(max_size[k]), np.uint8)
        size, _, _ = encode.write_events(
            buffer, k, k + 1, events, proper, members, self.fixed, max_size
        )
        self.stream.write(buffer[:size].data)

    def _write_arrows(self) -> None:
        """Write launches, and forward → backward, as arrows."""
        kind, src, dst = (self.trace.array(c, "edges") for c in ("kind", "src", "dst"))
        launch = np.flatnonzero(kind == EdgeKind.LAUNCH)
        calls, call_of_launch = np.unique(src[launch], return_inverse=True)
        self._write_ends("s", "ac2g", np.arange(len(calls)), calls)
        self._write_ends("f", "ac2g", call_of_launch, dst[launch])
        pairs = np.flatnonzero(kind == EdgeKind.FWDBWD)
        self._write_ends("s", "fwdbwd", np.arange(len(pairs)), src[pairs])
        self._write_ends("f", "fwdbwd", np.arange(len(pairs)), dst[pairs])

    def _write_ends(self, phase: str, category: str, ids: Array, nodes: Array) -> None:
        """Write the same end of many arrows."""
        binding = {"bp": "e"} if phase == "f" else {}
        event = {"ph": phase, "cat": category, "name": category} | binding
        prefix = np.frombuffer(bytearray(b",\n" + json_bytes(event)[:-1] + b","), np.uint8)
        track = np.array(self.tracks.of_node[nodes], np.int64)
        ts = self.trace.array("ts")[nodes] + self.offset_ns
        ids = np.ascontiguousarray(ids, np.int64) + 1
        done = 0
        while done < len(nodes):
            size, done = encode.write_arrows(
                self.buffer, done, prefix, ids, track, ts, self.tracks.texts
            )
            self.stream.write(self.buffer[:size].data)

    def _write_samples(self, series: list[tuple[int, dict[str, Any]]]) -> None:
        """Write samples as counter events."""
        series_of_sample = self.trace.array("series", "samples")
        ts = self.trace.array("ts", "samples") + self.offset_ns
        value = self.trace.array("value", "samples")
        for (row, description), name in zip(series, _series_names(series), strict=True):
            start, stop = np.searchsorted(series_of_sample, [row, row + 1]).tolist()
            rank = description["rank"]
            pid = self.tracks.host_pids[rank] if rank >= 0 else "node"
            event = json_bytes({"ph": "C", "name": name, "pid": pid})
            prefix = np.frombuffer(bytearray(b",\n" + event[:-1]), np.uint8)
            for at in range(start, stop, _CHUNK_EVENTS):
                chunk = slice(at, min(at + _CHUNK_EVENTS, stop))
                texts, done = render_reals(value[chunk]), 0
                while done < chunk.stop - chunk.start:
                    size, done = encode.write_samples(self.buffer, done, prefix, ts[chunk], texts)
                    self.stream.write(self.buffer[:size].data)


def _heads(trace: Trace) -> tuple[list[bytes], Array]:
    """Return the beginnings of events, those of instants last; and the index of each node's."""
    heads = [
        b',\n{"ph":"X","cat":%b,"name":' % json_bytes(category)
        for category in (*PYTORCH_CATEGORY.values(), _UNLIKE_NCCL)
    ]
    head_of_kind = np.zeros(256, np.int64)
    head_of_kind[[int(kind) for kind in PYTORCH_CATEGORY]] = np.arange(len(PYTORCH_CATEGORY))
    kind = trace.array("kind")
    head_of_node = head_of_kind[kind]
    head_of_node[(kind == Kind.COMM) & ~is_comm_name(trace)] = len(heads) - 1
    instant = b',\n{"ph":"i","s":"t","cat":%b,"name":' % json_bytes(PYTORCH_CATEGORY[Kind.INSTANT])
    return [*heads, instant], head_of_node


def _count_series_by_name(trace: Trace) -> tuple[int, str]:
    """Count the series that Kineto cannot describe completely; with the name of one."""
    expressible = {"device": -1, "unit": "", "source": SOURCE, "uncertainty_ns": 0}
    names = [
        series["name"]
        for series in trace.series.to_pylist()
        if series["rank"] < 0 or any(series[key] != value for key, value in expressible.items())
    ]
    return len(names), next(iter(names), "")


def _series_names(series: list[tuple[int, dict[str, Any]]]) -> list[str]:
    """Make names that include device and unit; no two of one rank are alike."""
    names: list[str] = []
    uses: dict[tuple[int, str], int] = {}
    for _, description in series:
        rank, device, unit = (description[key] for key in ("rank", "device", "unit"))
        parts = ["node"] * (rank < 0) + [f"GPU {device}"] * (device >= 0)
        parts += [description["name"]] * bool(description["name"]) + [f"({unit})"] * bool(unit)
        name = " ".join(parts)
        if (rank, name) in uses:
            name = f"{name} by {description['source']}"
        uses[rank, name] = use = uses.get((rank, name), 0) + 1
        names.append(name if use == 1 else f"{name} #{use}")
    return names


def _correlations(trace: Trace) -> Array:
    """Return correlation ids by which a reader finds the same launches again.

    They are those of the trace, and fresh ones where these lead to another launch or none. A fresh
    id can disturb the order by which a reader matches other kernels, so the launches are matched as
    a reader does until all are the same.
    """
    correlation = trace.array("correlation").copy()
    kind = trace.array("kind")
    correlated = is_any(kind, CORRELATED)
    correlation[~correlated] = -1
    call = trace.launch
    work = np.flatnonzero(is_any(kind, GPU_WORK))
    is_call = is_any(kind, CALLS)
    rank = trace.array("rank")
    expressible = (call[work] >= 0) & is_call[call[work]] & (rank[work] == rank[call[work]])
    expected = np.where(expressible, call[work], -1)
    while True:
        wrong = np.flatnonzero(_calls_as_read(trace, correlation)[work] != expected)
        if not wrong.size:
            return correlation
        fresh = max(int(correlation.max(initial=0)), 0) + 1
        calls = np.unique(expected[wrong][expected[wrong] >= 0])
        correlation[calls] = fresh + np.arange(len(calls))
        launched = np.isin(expected, calls)
        correlation[work[launched]] = correlation[expected[launched]]
        without_call = wrong[expected[wrong] < 0]
        correlation[work[without_call]] = fresh + len(calls) + np.arange(len(without_call))


def _calls_as_read(trace: Trace, correlation: Array) -> Array:
    """Return the call that a reader will take for each node's launch, given these ids."""
    kind = np.array(trace.array("kind"))
    kind[(kind == Kind.KERNEL) & is_comm_name(trace)] = Kind.COMM
    nodes = trace.nodes
    for name, values in (("kind", kind), ("correlation", correlation)):
        nodes = arrow.replace_column(nodes, name, values)
    src, dst = launch_edges(replace(trace, nodes=nodes), SourceIssues([IssueLog()]))
    call = np.full(trace.nodes.num_rows, -1, np.int64)
    call[dst] = src
    return call


def _repair(arguments: bytes) -> bytes:
    """Return arguments that are not proper JSON as proper JSON, with what can be read of them."""
    text = arguments.decode("utf-8", "replace")
    try:
        value = json.loads(text, parse_constant=str, strict=False)
        return json_bytes(value) if isinstance(value, dict) else json_bytes({_MALFORMED: text})
    except (ValueError, RecursionError):
        return json_bytes({_MALFORMED: text})


def _writable(buffer: Array) -> Array:
    """Return the buffer, copied if read-only: numba would compile its functions again for such."""
    return buffer if buffer.flags.writeable else buffer.copy()

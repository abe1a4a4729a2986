"""Check that a simulator runs ETs to the end, and find why it does not.

ASTRA-sim ends with status 0 even if not all nodes ran: it drops a node that it cannot run, and a
rank that waits for another for ever just stops. The rules below are those of its feeder
and workload layer, and of MLCommons' own feeder where that is stricter.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import DecodeError

from chopper_interop.arrays import gather
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.chakra import files as chakra_files
from chopper_interop.converters.chakra import run
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.converters.chakra.edges import dependencies
from chopper_interop.errors import ReadError
from chopper_interop.io.inputs import read as read_bytes
from chopper_interop.schemas.chakra import CommType, NodeType, message_class

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.arrays.types import Array

JOINED = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL)
TIMED = (CommType.BROADCAST,)
_COMM = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
_P2P = (NodeType.COMM_SEND, NodeType.COMM_RECV)
_GZIP = b"\x1f\x8b"
_MIN_GATHER_BYTES = 4
"""ASTRA-sim cuts an all-gather into `preferred-dataset-splits` chunks, 4 in its examples; smaller ones
make chunks of 0 bytes, at which it loops for ever (Sys.cc)."""
_SHOWN = 3
"""Nodes named as examples of a fault."""
_ROUNDING_NS = 20_000
"""Deviation that is no fault whatever the span: files hold whole microseconds a node."""
_INT_MAX = 2**31 - 1
_LAST_TICK_NS = 2**63 - 1

FEEDER_TYPES: dict[str, int] = {
    "is_cpu_op": 27,
    "comm_type": 9,
    "comm_size": 9,
    "comm_priority": 7,
    "comm_src": 7,
    "comm_dst": 7,
    "comm_tag": 7,
    "pg_name": 29,
    "num_ops": 9,
    "tensor_size": 13,
}
"""Attribute → field number of the value that MLCommons' feeder reads; anything else reads as 0."""
_NUMBERS = tuple(name for name in FEEDER_TYPES if name != "pg_name")


@dataclass(frozen=True)
class Finding:
    """A kind of fault in one rank's file, or between ranks.

    Parameters
    ----------
    where
        The file, or "all ranks".
    what
        The fault and its consequence.
    count
        Number of nodes that have it.
    example
        The first of them.
    stops
        True if the simulation does not run to the end because of it.
    """

    where: str
    what: str
    count: int = 1
    example: str = ""
    stops: bool = True

    def __str__(self) -> str:
        times = [f"{self.count:,} times"] if self.count > 1 else []
        example = [f"for example {self.example}"] if self.example else []
        details = ", ".join(times + example)
        return f"{self.where}: {self.what}" + (f" ({details})" if details else "")


@dataclass
class Findings:
    """All findings, and the outcome of a run by the simulator's rules.

    Parameters
    ----------
    found
        The findings.
    nodes, ranks
        Numbers of what was checked.
    makespan_us
        Length of the run; None if it does not end.
    span_ns
        Rank → its measured span, where the file states it.
    unexplained
        Rank → share of its critical path that nothing recorded explains, where the file states it.
    """

    entries: list[Finding] = field(default_factory=list)
    nodes: int = 0
    ranks: int = 0
    makespan_us: int | None = None
    span_ns: dict[int, int] = field(default_factory=dict)
    unexplained: dict[int, float] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """True if a simulator will run all nodes of all ranks."""
        return not any(f.stops for f in self.entries)

    @property
    def verdict(self) -> str:
        """Human-readable summary in one line."""
        size = f"{self.nodes:,} nodes of {self.ranks} rank{'s' if self.ranks != 1 else ''}"
        if not self.runs:
            return f"{size}: a simulator will NOT run them to the end"
        text = f"{size}: they run to the end; by their durations in {self.makespan_us:,} µs"
        if self.span_ns:
            text += f", measured {(max(self.span_ns.values()) + 500) // 1000:,} µs"
        if self.unexplained:
            worst = max(self.unexplained, key=lambda rank: self.unexplained[rank])
            text += f"; unexplained: {self.unexplained[worst]:.1%} of the path of rank {worst}"
        return text

    def add(
        self, where: str, what: str, count: int = 1, example: str = "", *, stops: bool = True
    ) -> None:
        """Add a finding; see `Finding` for the parameters."""
        self.entries.append(Finding(where, what, count, example, stops))

    def add_nodes(
        self, where: str, et: EtFile, rows: Array, what: str, *, stops: bool = True
    ) -> None:
        """Add a finding about these nodes, if there are any."""
        if len(rows):
            self.add(where, what, len(rows), _example(et, rows), stops=stops)


def check(prefix: Path, tolerance: float = 0.005) -> Findings:
    """Check ``PREFIX.0.et``, ``PREFIX.1.et``, … and ``PREFIX.comm_groups.json``.

    Parameters
    ----------
    prefix
        Path without the ending ``.RANK.et``.
    tolerance
        Deviation of a rank from its measured span that counts as a fault, as a share of the span.

    Raises
    ------
    ReadError
        There are no such files.
    """
    findings = Findings()
    files = _files(prefix, findings)
    groups = _groups(prefix, len(files), findings)
    for rank, (path, et) in enumerate(files):
        _check_file(path.name, et, findings)
        _check_comms(path.name, et, rank, len(files), findings)
    findings.nodes, findings.ranks = sum(len(et.id) for _, et in files), len(files)
    if len(files) == 1:
        what = "ASTRA-sim needs at least two ranks: give it the file twice"
        findings.add("all ranks", what, stops=False)
    ets = [et for _, et in files]
    _check_groups(ets, groups, findings)
    _read_spans(ets, findings)
    if findings.runs:
        _run(ets, groups, findings, tolerance)
    return findings


def _read_spans(ets: list[EtFile], findings: Findings) -> None:
    """Read what the files state of their ranks: measured spans, and time that nothing explains."""
    for rank, et in enumerate(ets):
        facts = metadata_integers(et)
        span_ns = facts.get("span_ns", 0)
        if span_ns > 0:
            findings.span_ns[rank] = span_ns
            findings.unexplained[rank] = facts.get("unexplained_ns", 0) / span_ns


def metadata_integers(et: EtFile) -> dict[str, int]:
    """Attributes of a file's metadata that are integers; none if it cannot be read."""
    try:
        parsed = message_class("GlobalMetadata").FromString(et.metadata)
    except DecodeError:
        return {}
    return {a.name: a.int64_val for a in parsed.attr if a.WhichOneof("value") == "int64_val"}


def _with_ending(prefix: Path, ending: str) -> Path:
    """Path of `prefix` and an ending; `Path.with_name` refuses ".", which has no name."""
    return prefix.parent / f"{prefix.name}{ending}"


def _files(prefix: Path, findings: Findings) -> list[tuple[Path, EtFile]]:
    """Read the files of all ranks, up to the first that is missing."""
    files: list[tuple[Path, EtFile]] = []
    while (path := _with_ending(prefix, f".{len(files)}.et")).exists():
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            findings.add(path.name, "it is gzipped, which the newer feeder does not read")
        files.append((path, decode(read_bytes(path).copy())))
    if not files:
        raise ReadError(
            "there is no such file",
            path=_with_ending(prefix, ".0.et"),
            hint="give the path of the ETs without .RANK.et; ranks count from 0",
        )
    rank_file = re.compile(rf"{re.escape(prefix.name)}\.[0-9]+\.et")
    if sum(bool(rank_file.fullmatch(p.name)) for p in prefix.parent.glob("*.et")) > len(files):
        findings.add("all ranks", f"ranks have a hole: there is no {prefix.name}.{len(files)}.et")
    return files


def _groups(prefix: Path, ranks: int, findings: Findings) -> dict[str, list[int]]:
    """Process groups by name: "" has all ranks, the others are in the file next to the ETs."""
    groups = {"": list(range(ranks))}
    path = _with_ending(prefix, ".comm_groups.json")
    if not path.exists():
        return groups
    try:
        listed = chakra_files.parsed_groups(path.read_text())
    except chakra_files.NOT_GROUPS as error:
        findings.add(path.name, f"it is no object of lists of ranks: {error}")
        return groups
    invalid = [key for key in listed if not _is_group_number(key)]
    if invalid:
        what = "names that are no numbers from 1 on, at which ASTRA-sim aborts"
        findings.add(path.name, what, len(invalid), repr(invalid[0]))
    return groups | listed


def _is_group_number(key: str) -> bool:
    """True if a key of the file of groups begins with a number from 1 on, as it must."""
    number = re.match(r"\s*\+?0*([1-9][0-9]{0,9})(?![0-9])", key)
    return number is not None and int(number.group(1)) <= _INT_MAX


def _check_file(name: str, et: EtFile, findings: Findings) -> None:
    """Check the nodes of one rank."""
    fault = partial(findings.add_nodes, name, et)
    if et.broken_at >= 0:
        findings.add(name, f"it breaks off at byte {et.broken_at}")
    if not len(et.id):
        findings.add(name, "it holds no nodes")
        return
    if not et.has_metadata:
        findings.add(name, "it has no GlobalMetadata: feeders lose its first node")
    elif b"\n" not in et.metadata and b"\x12" not in et.metadata:
        what = "its first message is no GlobalMetadata with a version: a node may be lost"
        findings.add(name, what, stops=False)
    fault(_repeated(et.id), "ids occur twice: the last one wins")
    for deps, first, kind in (
        (et.data, et.data_first, "data"),
        (et.ctrl, et.ctrl_first, "control"),
    ):
        owner = np.repeat(np.arange(len(et.id)), np.diff(first))
        fault(owner[~np.isin(deps, et.id)], f"{kind} dependencies on nodes that do not exist")
        fault(owner[deps == et.id[owner]], f"{kind} dependencies of nodes on themselves")
    fault(_in_circles(et), "dependencies go in circles: these nodes are never run")
    fault(np.flatnonzero(et.type == NodeType.METADATA), "METADATA nodes, at which ASTRA-sim aborts")
    fault(
        np.flatnonzero((et.type == NodeType.INVALID) | (et.type > max(NodeType))),
        "nodes without a valid type, whose children are not run",
    )
    memory = np.isin(et.type, (NodeType.MEM_LOAD, NodeType.MEM_STORE))
    fault(
        np.flatnonzero(memory),
        "MEM_LOAD or MEM_STORE nodes, at which ASTRA-sim exits unless it is given a remote memory",
    )
    sized = integers(et, "tensor_size", -1) >= 0
    fault(np.flatnonzero(memory & ~sized), "MEM_LOAD or MEM_STORE nodes without tensor_size")
    if et.duration_us.astype(np.uint64).sum(dtype=np.float64) * 1000 > _LAST_TICK_NS:
        longest = np.argsort(et.duration_us.astype(np.uint64))[-1:]
        fault(longest, "durations of more than 2^63 ns in all, which simulators cannot count")
    _check_attributes(name, et, findings)


def _check_attributes(name: str, et: EtFile, findings: Findings) -> None:
    """Check the types of one rank's attributes."""
    fault = partial(findings.add_nodes, name, et)
    for attribute, expected in FEEDER_TYPES.items():
        nodes, fields, _ = et.attribute(attribute)
        usable = np.isin(fields, TEXT_FIELDS)
        if attribute in _NUMBERS:
            usable = ~usable & ~np.isin(fields, REAL_FIELDS)
        refused = ~usable | (fields % 2 == 0)  # the even fields are lists
        if attribute == "pg_name":  # of other nodes it is not read
            refused &= et.type[nodes] == NodeType.COMM_COLL
        fault(nodes[refused], f"attribute {attribute} has a type that the feeder refuses")
        read_as_0 = nodes[(fields != expected) & usable]
        what = f"attribute {attribute} has a type that MLCommons' feeder reads as 0"
        fault(read_as_0, what, stops=False)
    has_side = np.zeros(len(et.id), bool)
    has_side[et.attribute("is_cpu_op")[0]] = True
    what = "nodes without is_cpu_op are taken as GPU work"
    fault(np.flatnonzero(~has_side), what, stops=False)


def _check_comms(name: str, et: EtFile, rank: int, ranks: int, findings: Findings) -> None:
    """Check the communication of one rank."""
    fault = partial(findings.add_nodes, name, et)
    p2p = np.isin(et.type, _P2P)
    comm = is_any(et.type, _COMM)
    on_host = integers(et, "is_cpu_op", 0) != 0
    fault(np.flatnonzero(comm & on_host), "communication with is_cpu_op, which ASTRA-sim refuses")
    collective = et.type == NodeType.COMM_COLL
    kind, size = integers(et, "comm_type", -1), integers(et, "comm_size", -1)
    fault(np.flatnonzero(collective & (kind < 0)), "collectives without comm_type")
    runnable = is_any(kind, (*JOINED, *TIMED))
    fault(
        np.flatnonzero(collective & (kind >= 0) & ~runnable),
        "collectives of a kind that ASTRA-sim does not support (reduce, gather, scatter, barrier)",
    )
    fault(np.flatnonzero(comm & (size < 0)), "communication without comm_size")
    gathers = collective & (kind == CommType.ALL_GATHER)
    empty = size == 0
    fault(
        np.flatnonzero(empty & collective & ~gathers),
        "collectives of 0 bytes, which ASTRA-sim takes as its smallest",
        stops=False,
    )
    fault(np.flatnonzero(empty & (p2p | gathers)), "communication of 0 bytes, which never ends")
    small = gathers & (size > 0) & (size < _MIN_GATHER_BYTES)
    what = (
        f"all-gathers of less than {_MIN_GATHER_BYTES} bytes, which never end where ASTRA-sim's "
        f"preferred-dataset-splits is {_MIN_GATHER_BYTES}, as in its examples (they need as many "
        "bytes as that)"
    )
    fault(np.flatnonzero(small), what)
    src, dst, tag = p2p_ends(et, rank)
    absent = p2p & ((src < 0) | (dst < 0) | (tag < 0))
    fault(np.flatnonzero(absent), "sends or receives without comm_src, comm_dst or comm_tag")
    of_other_rank = np.where(et.type == NodeType.COMM_SEND, src, dst) != rank
    fault(
        np.flatnonzero(p2p & ~absent & of_other_rank),
        "sends from another rank, or receives of another rank, which ASTRA-sim refuses",
    )
    fault(np.flatnonzero(p2p & ~absent & (src == dst)), "sends of a rank to itself")
    outside = p2p & ((src >= ranks) | (dst >= ranks))
    fault(np.flatnonzero(outside), "sends or receives with ranks that are not there")


def p2p_ends(et: EtFile, rank: int) -> tuple[Array, Array, Array]:
    """Source, destination and tag of sends and receives; -1 where not recorded.

    A send without a source is the rank's own, and so is a receive without a destination.
    """
    src, dst = (
        np.where(et.type == default_type, integers(et, name, rank), integers(et, name, -1))
        for name, default_type in (
            ("comm_src", NodeType.COMM_SEND),
            ("comm_dst", NodeType.COMM_RECV),
        )
    )
    return src, dst, integers(et, "comm_tag", -1)


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """Attribute of each node that is neither a float nor a text; `missing` where it has none.

    Lists, which feeders refuse, count as there, unlike in `chakra_values.integers`.
    """
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, stored = et.attribute(attribute)
    present = ~np.isin(fields, REAL_FIELDS + TEXT_FIELDS)
    values[nodes[present]] = stored[present]
    return values


def group_names(et: EtFile, rows: Array) -> list[str]:
    """Names of the nodes' process groups; "" for that of all ranks, which files may call "0"."""
    codes, texts = et.texts("pg_name")
    plain = ["" if text == "0" else text for text in texts]
    return [plain[code] if code >= 0 else "" for code in codes[rows].tolist()]


def _check_groups(ets: list[EtFile], groups: dict[str, list[int]], findings: Findings) -> None:
    """Check that collectives agree between the ranks of each group, and sends with receives."""
    sequences: dict[str, dict[int, list[tuple[int, int]]]] = {}
    for rank, et in enumerate(ets):
        kind, size = integers(et, "comm_type", -1), integers(et, "comm_size", -1)
        joined = (et.type == NodeType.COMM_COLL) & is_any(kind, JOINED)
        rows = np.flatnonzero(joined)
        rows = rows[np.argsort(et.id[rows])]
        for row, name in zip(rows.tolist(), group_names(et, rows), strict=True):
            of_rank = sequences.setdefault(name, {}).setdefault(rank, [])
            of_rank.append((int(kind[row]), int(size[row])))
    for name, by_rank in sequences.items():
        label = _label(name)
        members = groups.get(name)
        if not name.isdigit() and name:
            what = f"{label}: pg_name is no decimal number, which ASTRA-sim cannot read"
        elif members is None:
            what = f"{label}: it is not in the file of groups"
        elif len(members) < 2:  # noqa: PLR2004
            what = f"{label}: collectives of a group of one never end"
        elif not set(by_rank) <= set(members):
            outside = sorted(set(by_rank) - set(members))
            what = f"{label}: ranks {outside} use it and are not in it"
        else:
            what = _difference(label, members, by_rank)
        if what:
            findings.add("all ranks", what)
    _check_p2p(ets, findings)


def _label(name: str) -> str:
    return f"group {name or 'of all ranks'}"


def _mismatch_text(label: str, index: int, a: tuple[str, int], b: tuple[str, int]) -> str:
    """Sentence about the index-th collective of a group, which is (text, rank) `a` and `b`."""
    return f"{label}: collective {index} is {a[0]} on rank {a[1]} and {b[0]} on rank {b[1]}"


def _difference(label: str, members: list[int], by_rank: dict[int, list[tuple[int, int]]]) -> str:
    """Describe how the ranks' collectives differ, in any order; empty if they do not.

    Order is not checked here, as it is that of the starts, which only the run decides.
    """
    first = members[0]
    reference = by_rank.get(first, [])
    for rank in members[1:]:
        of_rank = by_rank.get(rank, [])
        if Counter(reference) == Counter(of_rank):
            continue
        for k, (a, b) in enumerate(zip(reference, of_rank, strict=False)):
            if a != b:
                return _mismatch_text(
                    label, k, (_kind_and_size(a), first), (_kind_and_size(b), rank)
                )
        if len(reference) != len(of_rank):
            return (
                f"{label}: rank {first} has {len(reference)} collectives and rank {rank} "
                f"{len(of_rank)}"
            )
    return ""


def _kind_and_size(collective: tuple[int, int]) -> str:
    kind, size = collective
    return f"{CommType(kind).name} of {size:,} bytes"


def p2p_counts(ets: list[EtFile]) -> tuple[Counter[Any], Counter[Any]]:
    """Count sends and receives by (tag, source, destination, size)."""
    sent: Counter[Any] = Counter()
    received: Counter[Any] = Counter()
    for rank, et in enumerate(ets):
        src, dst, tag = p2p_ends(et, rank)
        columns = (tag, src, dst, integers(et, "comm_size", -1))
        for counter, kind in zip((sent, received), _P2P, strict=True):
            rows = np.flatnonzero(et.type == kind)
            counter.update(zip(*(c[rows].tolist() for c in columns), strict=True))
    return sent, received


def _check_p2p(ets: list[EtFile], findings: Findings) -> None:
    """Check that each receive has a send and each send a receive."""
    sends, receives = p2p_counts(ets)
    for counter, what, stops in (
        (receives - sends, "receives without a send, which never end", True),
        (sends - receives, "sends without a receive", False),
    ):
        if counter:
            tag, src, dst, size = next(iter(counter))
            example = f"tag {tag}, {src} → {dst}, {size:,} bytes"
            count = sum(counter.values())
            findings.add("all ranks", what, count, example, stops=stops)


def _repeated(ids: Array) -> Array:
    """Rows with an id that an earlier row has."""
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0) + 1
    return order[same]


def _in_circles(et: EtFile) -> Array:
    """Rows of the nodes on circles of dependencies or behind one."""
    src, dst = dependencies(et)
    return np.flatnonzero(gather.blocked_by_cycles(*gather.group_values(src, dst, len(et.id))))


def _run(
    ets: list[EtFile], groups: dict[str, list[int]], findings: Findings, tolerance: float
) -> None:
    """Run all ranks by the simulator's rules, to find nodes that wait for ever and wrong spans."""
    job = _job(ets, groups)
    outcome = run.run(job, len(ets))
    replay = run.run(job._replace(role=np.zeros(len(job.role), np.int64)), len(ets))
    findings.makespan_us = replay.makespan_us
    stuck = np.flatnonzero(outcome.end_ns < 0)
    for name, (index, *nodes) in zip(groups, outcome.mismatch.tolist(), strict=True):
        if index >= 0:
            a, b = ((_kind_and_size((job.kind[i], job.size[i])), job.rank[i]) for i in nodes)
            findings.add("all ranks", _mismatch_text(_label(name), index, a, b))
    if not findings.runs:
        return
    if not stuck.size:
        _check_spans(job, replay, findings, tolerance)
        _check_last_messages(ets, job, outcome, findings)
        return
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    for rank, et in enumerate(ets):
        rows = stuck[(stuck >= bounds[rank]) & (stuck < bounds[rank + 1])] - bounds[rank]
        if rows.size:
            started = rows[outcome.started[rows + bounds[rank]]]
            what = "nodes never end, as ranks wait for each other"
            example = _example(et, started if started.size else rows)
            findings.add(f"rank {rank}", what, rows.size, example)


def _ends(job: run.Job, outcome: run.Outcome, ranks: int) -> Array:
    """End of each rank's last node."""
    last = np.zeros(ranks, np.int64)
    np.maximum.at(last, job.rank, outcome.end_ns)
    return last


def _check_spans(job: run.Job, replay: run.Outcome, findings: Findings, tolerance: float) -> None:
    """Compare the end of each rank by durations alone with the measured one."""
    last = _ends(job, replay, findings.ranks)
    for rank, span_ns in findings.span_ns.items():
        deviation = last[rank] / span_ns - 1
        if abs(deviation) > tolerance and abs(last[rank] - span_ns) > _ROUNDING_NS:
            what = (
                f"it ends after {last[rank] / 1e3:,.0f} µs by its durations, and was measured to take "
                f"{span_ns / 1e3:,.0f} µs ({deviation:+.2%}, tolerance {tolerance:.2%})"
            )
            findings.add(f"rank {rank}", what)


def _check_last_messages(
    ets: list[EtFile], job: run.Job, outcome: run.Outcome, findings: Findings
) -> None:
    """Find ranks with host nodes that end with a send or receive, at which ASTRA-sim aborts."""
    last = _ends(job, outcome, len(ets))
    message = (job.role == run.SEND) | (job.role == run.RECEIVE)
    leaf = np.diff(job.first) == 0
    for rank, et in enumerate(ets):
        of_rank = job.rank == rank
        if not (of_rank & (job.slot == run.HOST)).any():
            continue
        final = np.flatnonzero(of_rank & message & leaf)
        if final.size:
            rows = final - int(np.argmax(of_rank))
            stops = bool((outcome.end_ns[final] == last[rank]).any())
            findings.add_nodes(
                f"rank {rank}",
                et,
                rows,
                "sends or receives that nothing depends on, in a file with host nodes: ASTRA-sim aborts "
                "in its statistics if one is the last to end",
                stops=stops,
            )


def _job(ets: list[EtFile], groups: dict[str, list[int]]) -> run.Job:
    """Nodes of all ranks for a run; those of rank r have the numbers from ``bounds[r]`` on."""
    numbers = {name: k for k, name in enumerate(groups)}
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    names = ("rank", "order", "slot", "role", "partner", "kind", "size")
    columns: dict[str, list[Array]] = {n: [] for n in names}
    sources, targets = [], []
    for rank, et in enumerate(ets):
        src, dst = dependencies(et)
        sources.append(src + bounds[rank])
        targets.append(dst + bounds[rank])
        order = np.empty(len(et.id), np.int64)
        order[np.argsort(et.id, kind="stable")] = np.arange(len(et.id))
        of_rank = (np.full(len(et.id), rank), order, *_behaviour(et, numbers))
        for name, column in zip(columns, of_rank, strict=True):
            columns[name].append(column)
    job_columns = {name: np.concatenate(parts) for name, parts in columns.items()}
    job_columns["partner"] = _with_senders(ets, bounds, job_columns["partner"])
    src, dst = np.concatenate(sources), np.concatenate(targets)
    first, after = gather.group_values(src, dst, int(bounds[-1]))
    return run.Job(
        **job_columns,
        members=np.array([len(m) for m in groups.values()]),
        duration=np.maximum(np.concatenate([et.duration_us for et in ets]) * 1000, 1),
        first=first,
        after=after,
        waits=np.bincount(dst, minlength=int(bounds[-1])),
    )


def _behaviour(et: EtFile, numbers: dict[str, int]) -> tuple[Array, ...]:
    """Slot, role, group, kind of collective and size of each node."""
    on_host = integers(et, "is_cpu_op", 0) != 0
    comm = np.isin(et.type, (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.MEM_LOAD,
                             NodeType.MEM_STORE))  # fmt: skip
    slot = np.where(on_host, run.HOST, np.where(comm, run.COMM, run.COMPUTE))
    slot[et.type == NodeType.COMM_RECV] = run.NO_SLOT
    kind = integers(et, "comm_type", -1)
    joined = (et.type == NodeType.COMM_COLL) & is_any(kind, JOINED)
    role = np.where(joined, run.JOINED, run.PLAIN)
    role[et.type == NodeType.COMM_SEND] = run.SEND
    role[et.type == NodeType.COMM_RECV] = run.RECEIVE
    partner = np.full(len(et.id), -1, np.int64)
    rows = np.flatnonzero(joined)
    partner[rows] = [numbers[name] for name in group_names(et, rows)]
    return slot, role, partner, kind, integers(et, "comm_size", -1)


def _with_senders(ets: list[EtFile], bounds: Array, partner: Array) -> Array:
    """Return partners with those of receives: the first free send of the same ends, tag and size."""
    senders: dict[Any, deque[int]] = {}
    for kind in _P2P:
        for rank, et in enumerate(ets):
            columns = (*p2p_ends(et, rank), integers(et, "comm_size", -1))
            rows = np.flatnonzero(et.type == kind)
            for row in rows[np.argsort(et.id[rows])].tolist():
                key = tuple(int(c[row]) for c in columns)
                if kind is NodeType.COMM_SEND:
                    senders.setdefault(key, deque()).append(row + int(bounds[rank]))
                elif senders.get(key):
                    partner[row + int(bounds[rank])] = senders[key].popleft()
    return partner


def _example(et: EtFile, rows: Array) -> str:
    """Ids and names of the first nodes."""
    return ", ".join(f"node {et.id[r]} {et.name(r)[:40]!r}" for r in rows[:_SHOWN].tolist())

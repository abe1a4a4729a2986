"""What a simulator will not say: whether ETs run to the end, and if not, why.

ASTRA-sim ends with status 0 whether or not all nodes ran: a node that it cannot run is dropped, a
rank that waits for another that never comes just stops. The rules below are those of its feeder
and workload layer, and of MLCommons' own feeder where that is stricter.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.converters import chakra_run
from chopper_interop.converters.chakra_decode import REAL_FIELDS, TEXT_FIELDS, EtFile, decode
from chopper_interop.errors import ReadError
from chopper_interop.files.inputs import read as read_bytes
from chopper_interop.schemas.chakra import CommType, NodeType

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array

JOINED = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL)
TIMED = (CommType.BROADCAST,)
_COMM = (NodeType.COMM_COLL, NodeType.COMM_SEND, NodeType.COMM_RECV)
_P2P = (NodeType.COMM_SEND, NodeType.COMM_RECV)
_GZIP = b"\x1f\x8b"
_SMALLEST_GATHER = 4
_SHOWN = 3
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
    """One kind of fault in one rank's file, or between ranks.

    Parameters
    ----------
    where
        The file, or "all ranks".
    what
        The fault and what comes of it.
    count
        How many nodes have it.
    example
        The first of them.
    stops
        Whether the simulation does not run to the end because of it.
    """

    where: str
    what: str
    count: int = 1
    example: str = ""
    stops: bool = True

    def __str__(self) -> str:
        some = f" ({self.count:,} times" if self.count > 1 else " ("
        example = (
            f"{', ' if self.count > 1 else ''}for example {self.example}" if self.example else ""
        )
        more = f"{some}{example})" if self.count > 1 or self.example else ""
        return f"{self.where}: {self.what}{more}"


@dataclass
class Findings:
    """Everything found, and the outcome of a run by the simulator's rules."""

    found: list[Finding] = field(default_factory=list)
    nodes: int = 0
    ranks: int = 0
    makespan_us: int | None = None

    @property
    def runs(self) -> bool:
        """Whether a simulator will run all nodes of all ranks."""
        return not any(f.stops for f in self.found)

    @property
    def verdict(self) -> str:
        """One line for people."""
        size = f"{self.nodes:,} nodes of {self.ranks} rank{'s' if self.ranks != 1 else ''}"
        if not self.runs:
            return f"{size}: a simulator will NOT run them to the end"
        return f"{size}: they run to the end; by their durations in {self.makespan_us:,} µs"


def check(prefix: Path) -> Findings:
    """Check ``PREFIX.0.et``, ``PREFIX.1.et``, … and ``PREFIX.comm_groups.json``.

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
        findings.found.append(Finding("all ranks", what, stops=False))
    ets = [et for _, et in files]
    _check_groups(ets, groups, findings)
    if findings.runs:
        _run(ets, groups, findings)
    return findings


def _beside(prefix: Path, ending: str) -> Path:
    return prefix.parent / f"{prefix.name}{ending}"  # "." has no name


def _files(prefix: Path, findings: Findings) -> list[tuple[Path, EtFile]]:
    files: list[tuple[Path, EtFile]] = []
    while (path := _beside(prefix, f".{len(files)}.et")).exists():
        raw = path.read_bytes()
        if raw.startswith(_GZIP):
            findings.found.append(
                Finding(path.name, "it is gzipped, which the newer feeder does not read")
            )
        files.append((path, decode(read_bytes(path).copy())))
    if not files:
        raise ReadError(
            "there is no such file",
            path=_beside(prefix, ".0.et"),
            hint="give the path of the ETs without .RANK.et; ranks count from 0",
        )
    ours = re.compile(rf"{re.escape(prefix.name)}\.[0-9]+\.et")
    if sum(bool(ours.fullmatch(p.name)) for p in prefix.parent.glob("*.et")) > len(files):
        findings.found.append(
            Finding("all ranks", f"ranks have a hole: there is no {prefix.name}.{len(files)}.et")
        )
    return files


def _groups(prefix: Path, ranks: int, findings: Findings) -> dict[str, list[int]]:
    """Process groups: 0 is everybody, the others stand in the file beside the ETs."""
    groups = {"": list(range(ranks))}
    path = _beside(prefix, ".comm_groups.json")
    if not path.exists():
        return groups
    try:
        listed = json.loads(path.read_text())
        groups |= {str(k): [int(r) for r in v] for k, v in listed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        findings.found.append(Finding(path.name, f"it is no object of lists of ranks: {error}"))
        return groups
    wrong = [key for key in listed if not _is_group_number(key)]
    if wrong:
        what = "names that are no numbers from 1 on, at which ASTRA-sim aborts"
        findings.found.append(Finding(path.name, what, len(wrong), repr(wrong[0])))
    return groups


def _is_group_number(key: str) -> bool:
    """Whether a key of the file of groups begins with a number from 1 on, as it must."""
    number = re.match(r"\s*\+?0*([1-9][0-9]{0,9})(?![0-9])", key)
    return number is not None and int(number.group(1)) <= _INT_MAX


def _check_file(name: str, et: EtFile, findings: Findings) -> None:
    """Check one rank for itself."""

    def fault(rows: Array, what: str, *, stops: bool = True) -> None:
        if len(rows):
            findings.found.append(Finding(name, what, len(rows), _example(et, rows), stops))

    if et.broken_at >= 0:
        findings.found.append(Finding(name, f"it breaks off at byte {et.broken_at}"))
    if not len(et.id):
        findings.found.append(Finding(name, "it holds no nodes"))
        return
    if not et.has_metadata:
        findings.found.append(
            Finding(name, "it has no GlobalMetadata: feeders lose its first node")
        )
    elif b"\n" not in et.metadata and b"\x12" not in et.metadata:
        what = "its first message is no GlobalMetadata with a version: a node may be lost"
        findings.found.append(Finding(name, what, stops=False))
    fault(_repeated(et.id), "ids occur twice: the last one wins")
    for deps, first, kind in (
        (et.data, et.data_first, "data"),
        (et.ctrl, et.ctrl_first, "control"),
    ):
        owner = np.repeat(np.arange(len(et.id)), np.diff(first))
        fault(owner[~np.isin(deps, et.id)], f"{kind} dependencies on nodes that do not exist")
        fault(owner[deps == et.id[owner]], f"{kind} dependencies of nodes on themselves")
    fault(_on_cycles(et), "dependencies go in circles: these nodes are never run")
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
    for attribute, wanted in FEEDER_TYPES.items():
        nodes, fields, _ = et.attribute(attribute)
        fine = np.isin(fields, TEXT_FIELDS)
        if attribute in _NUMBERS:
            fine = ~fine & ~np.isin(fields, REAL_FIELDS)
        refused = ~fine | (fields % 2 == 0)
        if attribute == "pg_name":  # of other nodes it is not read
            refused &= et.type[nodes] == NodeType.COMM_COLL
        bad = nodes[refused]
        if len(bad):
            what = f"attribute {attribute} has a type that the feeder refuses"
            findings.found.append(Finding(name, what, len(bad), _example(et, bad)))
        other = nodes[(fields != wanted) & fine]
        if len(other):
            what = f"attribute {attribute} has a type that MLCommons' feeder reads as 0"
            findings.found.append(Finding(name, what, len(other), _example(et, other), stops=False))
    has = np.zeros(len(et.id), bool)
    has[et.attribute("is_cpu_op")[0]] = True
    if not has.all():
        rows = np.flatnonzero(~has)
        what = "nodes without is_cpu_op are taken as GPU work"
        findings.found.append(Finding(name, what, len(rows), _example(et, rows), stops=False))


def _check_comms(name: str, et: EtFile, rank: int, ranks: int, findings: Findings) -> None:
    """Check one rank's communication for itself."""

    def fault(rows: Array, what: str, *, stops: bool = True) -> None:
        if len(rows):
            findings.found.append(Finding(name, what, len(rows), _example(et, rows), stops))

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
    small = gathers & (size > 0) & (size < _SMALLEST_GATHER)
    what = (
        f"all-gathers of less than {_SMALLEST_GATHER} bytes, which never end where ASTRA-sim's "
        f"preferred-dataset-splits is {_SMALLEST_GATHER}, as in its examples (they need as many "
        "bytes as that)"
    )
    fault(np.flatnonzero(small), what)
    src, dst, tag = ends(et, rank)
    absent = p2p & ((src < 0) | (dst < 0) | (tag < 0))
    fault(np.flatnonzero(absent), "sends or receives without comm_src, comm_dst or comm_tag")
    theirs = np.where(et.type == NodeType.COMM_SEND, src, dst) != rank
    fault(
        np.flatnonzero(p2p & ~absent & theirs),
        "sends from another rank, or receives of another rank, which ASTRA-sim refuses",
    )
    fault(np.flatnonzero(p2p & ~absent & (src == dst)), "sends of a rank to itself")
    outside = p2p & ((src >= ranks) | (dst >= ranks))
    fault(np.flatnonzero(outside), "sends or receives with ranks that are not there")


def ends(et: EtFile, rank: int) -> tuple[Array, Array, Array]:
    """Source, destination and tag of sends and receives; -1 where they do not say.

    A send without a source is the rank's own, and so is a receive without a destination.
    """
    src, dst = (
        np.where(et.type == own, integers(et, name, rank), integers(et, name, -1))
        for name, own in (("comm_src", NodeType.COMM_SEND), ("comm_dst", NodeType.COMM_RECV))
    )
    return src, dst, integers(et, "comm_tag", -1)


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """An attribute of all nodes as integers."""
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, found = et.attribute(attribute)
    whole = ~np.isin(fields, REAL_FIELDS + TEXT_FIELDS)
    values[nodes[whole]] = found[whole]
    return values


def group_names(et: EtFile, rows: Array) -> list[str]:
    """Process groups of nodes as the file names them; "" and "0" are everybody."""
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
            ours = sequences.setdefault(name, {}).setdefault(rank, [])
            ours.append((int(kind[row]), int(size[row])))
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
            findings.found.append(Finding("all ranks", what))
    _check_pairs(ets, findings)


def _label(name: str) -> str:
    return f"group {name or 'of all ranks'}"


def _differs(label: str, place: int, one: tuple[str, int], other: tuple[str, int]) -> str:
    (a, first), (b, rank) = one, other
    return f"{label}: collective {place} is {a} on rank {first} and {b} on rank {rank}"


def _difference(label: str, members: list[int], by_rank: dict[int, list[tuple[int, int]]]) -> str:
    """In what the ranks' collectives differ, in whatever order; empty if in nothing.

    Order is not that of ids but that of the starts, of which the run decides.
    """
    first = members[0]
    reference = by_rank.get(first, [])
    for rank in members[1:]:
        theirs = by_rank.get(rank, [])
        if Counter(reference) == Counter(theirs):
            continue
        for k, (a, b) in enumerate(zip(reference, theirs, strict=False)):
            if a != b:
                return _differs(label, k, (_told(a), first), (_told(b), rank))
        if len(reference) != len(theirs):
            return (
                f"{label}: rank {first} has {len(reference)} collectives and rank {rank} "
                f"{len(theirs)}"
            )
    return ""


def _told(collective: tuple[int, int]) -> str:
    kind, size = collective
    return f"{CommType(kind).name} of {size:,} bytes"


def pairs(ets: list[EtFile]) -> tuple[Counter[Any], Counter[Any]]:
    """Sends and receives by (tag, source, destination, size)."""
    sent: Counter[Any] = Counter()
    received: Counter[Any] = Counter()
    for rank, et in enumerate(ets):
        src, dst, tag = ends(et, rank)
        columns = (tag, src, dst, integers(et, "comm_size", -1))
        for counter, kind in zip((sent, received), _P2P, strict=True):
            rows = np.flatnonzero(et.type == kind)
            counter.update(zip(*(c[rows].tolist() for c in columns), strict=True))
    return sent, received


def _check_pairs(ets: list[EtFile], findings: Findings) -> None:
    sends, receives = pairs(ets)
    for counter, what, stops in (
        (receives - sends, "receives without a send, which never end", True),
        (sends - receives, "sends without a receive", False),
    ):
        if counter:
            tag, src, dst, size = next(iter(counter))
            example = f"tag {tag}, {src} → {dst}, {size:,} bytes"
            count = sum(counter.values())
            findings.found.append(Finding("all ranks", what, count, example, stops))


def _repeated(ids: Array) -> Array:
    order = np.argsort(ids, kind="stable")
    same = np.flatnonzero(np.diff(ids[order]) == 0) + 1
    return order[same]


def dependencies(et: EtFile) -> tuple[Array, Array]:
    """Rows of (what must end, what waits for it), of both kinds; ids that do not exist left out."""
    src = np.concatenate([et.data, et.ctrl])
    rows = np.arange(len(et.id))
    dst = np.concatenate(
        [np.repeat(rows, np.diff(et.data_first)), np.repeat(rows, np.diff(et.ctrl_first))]
    )
    order = np.argsort(et.id, kind="stable")
    at = np.minimum(np.searchsorted(et.id[order], src), max(len(order) - 1, 0))
    exists = et.id[order][at] == src if len(order) else np.zeros(0, bool)
    return order[at][exists], dst[exists]


def _on_cycles(et: EtFile) -> Array:
    """Nodes on circles of dependencies or behind one."""
    src, dst = dependencies(et)
    return np.flatnonzero(gather.unreached(*gather.lists(src, dst, len(et.id))))


def _run(ets: list[EtFile], groups: dict[str, list[int]], findings: Findings) -> None:
    """Run everything by the simulator's rules, to see what waits for ever."""
    job = _job(ets, groups)
    outcome = chakra_run.run(job, len(ets))
    findings.makespan_us = outcome.makespan_us
    stuck = np.flatnonzero(outcome.end_ns < 0)
    for name, (place, *nodes) in zip(groups, outcome.clash.tolist(), strict=True):
        if place >= 0:
            one, other = ((_told((job.kind[i], job.size[i])), job.rank[i]) for i in nodes)
            findings.found.append(Finding("all ranks", _differs(_label(name), place, one, other)))
    if not stuck.size or not findings.runs:
        return
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    for rank, et in enumerate(ets):
        mine = stuck[(stuck >= bounds[rank]) & (stuck < bounds[rank + 1])] - bounds[rank]
        if mine.size:
            held = mine[outcome.started[mine + bounds[rank]]]
            what = "nodes never end, as ranks wait for each other"
            example = _example(et, held if held.size else mine)
            findings.found.append(Finding(f"rank {rank}", what, mine.size, example))


def _job(ets: list[EtFile], groups: dict[str, list[int]]) -> chakra_run.Job:
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
        told = (np.full(len(et.id), rank), order, *_behaviour(et, numbers))
        for name, column in zip(columns, told, strict=True):
            columns[name].append(column)
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    joined["partner"] = _with_senders(ets, bounds, joined["partner"])
    src, dst = np.concatenate(sources), np.concatenate(targets)
    first, after = gather.lists(src, dst, int(bounds[-1]))
    return chakra_run.Job(
        **joined,
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
    slot = np.where(on_host, chakra_run.HOST, np.where(comm, chakra_run.COMM, chakra_run.COMPUTE))
    slot[et.type == NodeType.COMM_RECV] = chakra_run.NO_SLOT
    kind = integers(et, "comm_type", -1)
    joined = (et.type == NodeType.COMM_COLL) & is_any(kind, JOINED)
    role = np.where(joined, chakra_run.JOINED, chakra_run.PLAIN)
    role[et.type == NodeType.COMM_SEND] = chakra_run.SEND
    role[et.type == NodeType.COMM_RECV] = chakra_run.RECEIVE
    partner = np.full(len(et.id), -1, np.int64)
    rows = np.flatnonzero(joined)
    partner[rows] = [numbers[name] for name in group_names(et, rows)]
    return slot, role, partner, kind, integers(et, "comm_size", -1)


def _with_senders(ets: list[EtFile], bounds: Array, partner: Array) -> Array:
    """Partners, with for each receive the send that it belongs to."""
    senders: dict[Any, list[int]] = {}
    for kind in _P2P:
        for rank, et in enumerate(ets):
            columns = (*ends(et, rank), integers(et, "comm_size", -1))
            rows = np.flatnonzero(et.type == kind)
            for row in rows[np.argsort(et.id[rows])].tolist():
                key = tuple(int(c[row]) for c in columns)
                if kind is NodeType.COMM_SEND:
                    senders.setdefault(key, []).append(row + int(bounds[rank]))
                elif senders.get(key):
                    partner[row + int(bounds[rank])] = senders[key].pop(0)
    return partner


def _example(et: EtFile, rows: Array) -> str:
    return ", ".join(f"node {et.id[r]} {et.name(r)[:40]!r}" for r in rows[:_SHOWN].tolist())

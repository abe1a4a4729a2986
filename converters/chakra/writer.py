"""Chakra ETs: one file a rank, which a simulator runs to the end and in the measured time.

Read by feeders of versions 1 and 3, whose demands differ (types of attributes, which dependencies
count); what is written here satisfies both. Plain files: the newer feeder reads no gzip.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Literal, NamedTuple, get_args

import msgspec
import numpy as np
from google.protobuf import proto

from chopper_interop import progress
from chopper_interop.arrays import Array
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks import relations
from chopper_interop.converters.chakra import comms as chakra_comms
from chopper_interop.converters.chakra import encode, node_files, reaction, recorded
from chopper_interop.converters.chakra import files as chakra_files
from chopper_interop.converters.chakra import streams as chakra_streams
from chopper_interop.converters.chakra.attributes import Attributes, PlannedRanks
from chopper_interop.converters.chakra.checks.findings import shares_text
from chopper_interop.converters.chakra.planning.batches import batches
from chopper_interop.converters.chakra.planning.build import build_plan, planned
from chopper_interop.converters.chakra.planning.plan import Communication, Figures, Mode, Plan
from chopper_interop.converters.chakra.reaction import (
    CONCURRENT,
    DEVIATIONS,
    NPUS_DEVIATION,
    is_far,
)
from chopper_interop.converters.chakra.reader import CLOCKS
from chopper_interop.converters.chakra.relays import Relays, find_relays, no_relays
from chopper_interop.converters.chakra.roofline import bandwidths_gbs
from chopper_interop.converters.chakra.schedule import COMM
from chopper_interop.errors import UsageError, WriteError
from chopper_interop.gpus.ratings import DevicesOfRanks
from chopper_interop.grouping import by_key
from chopper_interop.io import memory, outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.chakra import CONTROL, VERSION, NodeType, message_class
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.schemas.meta import REALTIME, ClockFit
from chopper_interop.timing.populations import populations
from chopper_interop.trace import Trace

RENUMBERED = Fault.info(
    "ranks-renumbered",
    "Simulators count ranks from 0 without a hole, so the ETs do; the rank is in their metadata.",
)
LEFT_OUT = Fault.info(
    "et-nodes-left-out",
    "Nodes that the mode leaves out are not in the ET: Python frames, instant events and the "
    "profiler's own ranges; in mode=gpu and mode=kernels all of the host's.",
)
WAITS_AS_TIME = Fault.info(
    "waits-as-time",
    "Waits of the host for GPU work that overlapped other work have their measured time in the ET, "
    "and do not depend on that work, as simulators run it later, after the other.",
)
OVERLAPPED = Fault.info(
    "et-work-overlapped",
    "GPU work that ran while other work of its slot did has less than its duration in the ET, as "
    "simulators have one slot for compute and one for communication; it reacts to changes by that much.",
)
UNEXPLAINED = Fault.info(
    "et-time-unexplained",
    "Ranks on whose critical path there is time that nothing recorded explains: it stays as it is "
    "whatever changes. Nodes with the attribute cause=unexplained hold it.",
)
REACTS_OTHERWISE = Fault.info(
    "et-reacts-otherwise",
    "Ranks whose ET ends by more than 2 % of its span sooner or later than the timing model (what_if) predicts, "
    "if kernels and copies take half or twice their time, communication twice, or the kernel with the most time a "
    "tenth: a simulator has one slot for several streams or threads. With -O streams=npus, which streams=auto tries, each "
    "stream is an NPU of its own.",
)
ANSWERS_AS_TIME = Fault.info(
    "et-answers-as-time",
    "Receives and sends that waited for another rank before it recorded keep their measured time, whatever changes. "
    "With -O streams=npus they follow what they waited for.",
)
CONCURRENT_COLLECTIVES = Fault.info(
    "et-collectives-concurrent",
    "Ranks whose collectives run at the same time for more than 2 % of the span: in a simulated network they run "
    "one after the other, so where communication limits a rank it ends later by up to that, and by twice as much "
    "with half the bandwidth. With -O streams=npus they run at the same time.",
)
_HINTS = (
    (
        Kind.RUNTIME,
        "host calls (ProfilerActivity.CPU, or rocprofv3 --hip-trace) were not recorded",
        "",
    ),
    (
        Kind.GPU_SYNC,
        "enable_cuda_sync_events=True of PyTorch's profiler would record waits",
        "cuda",
    ),
)
"""Kind of records that would explain more, what to say of a rank that has none, and how names of calls
begin where the option exists: CUPTI alone records waits."""

_TASK = "writing ETs"
ModeName = Literal["full", "gpu", "kernels"]
StreamsName = Literal["auto", "slots", "npus"]
_NPUS = "npus"
"""Attribute of a file: how many NPUs a simulator needs, where streams have their own."""
_TRIED_SHARE = 0.01
"""Deviation from which NPUs of streams are tried. Chosen: half of what is worth a line, as other changes than those few
that are tried may be twice as far off."""
_LESS_OFF = 0.5
"""By what factor an ET has to react less wrongly for NPUs of streams. Chosen: more NPUs are a price, as networks and
statistics of simulators count them."""


def write(
    trace: Trace, path: Path, *, mode: ModeName = "full", streams: StreamsName = "auto"
) -> IssueLog:
    """Write ``path/<job>.<rank>.et`` for each rank and ``path/<job>.comm_groups.json``.

    A path that ends in ``.et`` names the job as well: ``runs/a.et`` gives ``runs/a.0.et``, ….

    Parameters
    ----------
    trace
        A trace with GPU work.
    path
        A folder; other files in it stay.
    mode
        "full": GPU work and each operation of the host. "gpu": GPU work, and what the host does from
        one launch or wait to the next, as far as GPU work waits for it. "kernels": GPU work alone, as
        if hosts took no time; on these ASTRA-sim gives all its statistics.
    streams
        "slots": all streams of a rank share its slots. "npus": each stream but the busiest one is an NPU
        of its own (`streams`), so that their work runs at the same time in a simulator too. "auto": "npus"
        where a rank would otherwise end by more than 1 % of its span sooner or later than `what_if` predicts
        with a change, or has collectives that run at the same time for more than 2 %; else "slots".

    Returns
    -------
    IssueLog
        The number of nodes that the mode leaves out, and the communication that goes out with
        its measured time only.

    Raises
    ------
    UsageError
        There is no such mode, or not of streams.
    WriteError
        There is nothing to write, or no room.
    """
    how = _mode(mode, streams)
    folder, name = _place(trace, path)
    issues = IssueLog("ET")
    ranks = trace.ranks
    if not ranks:
        raise WriteError("the trace has no nodes to make ETs of", path=path)
    outputs.require_times(trace, path)
    held = np.flatnonzero(planned(trace, how))
    if not len(held):
        raise WriteError(f"the trace has no operations that ETs of mode {mode} hold", path=path)
    numbering = {rank: number for number, rank in enumerate(ranks)}
    issues.add(RENUMBERED, sum(r != n for r, n in numbering.items()), f"ranks {ranks[:8]}")
    comms = chakra_comms.communications(trace, numbering, issues)
    origin_ns = int(trace.array("ts")[held].min())
    del held
    # made once, though each rank may ask for it
    other = cache(lambda: _job(trace, how, comms, origin_ns, npus=True))
    job = other() if streams == "npus" else _job(trace, how, comms, origin_ns, npus=False)
    may_change = streams == "auto" and how is not Mode.KERNELS
    with outputs.folder(folder, owns=_earlier_files(folder, name)) as target:
        written = _write_ranks(target / name, job, other if may_change else None)
        if written is None:
            job = other()
            written = _write_ranks(target / name, job)
    assert written is not None  # noqa: S101 # as other jobs are written as they are
    _note_written(job, written, issues)
    return issues


@dataclass(frozen=True)
class _Job:
    """A job to write, with all that its ranks have in common.

    Parameters
    ----------
    trace, mode, origin_ns
        All ranks, how much of the host their ETs hold, and when the job begins on the trace's `ts` axis.
    npus
        NPUs of streams; None if these share the slots of ranks.
    comms, relays
        Communication on the NPUs of ranks, and dependencies through ranks that do not record yet.
    concurrent_ns
        For how long collectives of a rank's slot run at the same time, by rank.
    ranks, devices
        All ranks, and devices by rank: made once, as for each rank they would take time that grows with the square.
    """

    trace: Trace
    mode: Mode
    origin_ns: int
    npus: chakra_streams.Streams | None
    comms: chakra_comms.Comms
    relays: Relays
    concurrent_ns: dict[int, int]
    ranks: Array
    devices: DevicesOfRanks


class _Members(NamedTuple):
    """Ranks of a job that are planned at once.

    Parameters
    ----------
    rows
        Their nodes among those of the job.
    ranks, number
        Ranks, and the number of each in the ETs.
    trace, comms, relays
        Their nodes, communication and relays.
    bandwidth_gbs
        Bandwidth of the memory of each one's GPU.
    """

    rows: slice
    ranks: list[int]
    number: Array
    trace: Trace
    comms: dict[str, Array]
    relays: Relays
    bandwidth_gbs: Array


class _Written(NamedTuple):
    """Figures of the plans of ranks, by how much each ET ends otherwise than predicted, and how many nodes are left out."""

    figures: dict[int, Figures]
    reacts: dict[int, dict[str, float]]
    left_out: Counter[int]


def _job(
    trace: Trace, mode: Mode, comms: chakra_comms.Comms, origin_ns: int, *, npus: bool
) -> _Job:
    numbering = {rank: number for number, rank in enumerate(trace.ranks)}
    streams = chakra_streams.assigned(trace, comms, numbering) if npus else None
    concurrent = {} if streams else chakra_comms.concurrent_ns(trace, comms)
    comms = streams.on_ranks if streams else comms
    relays = no_relays()
    if mode is not Mode.KERNELS:
        relays, comms = find_relays(trace, comms, numbering, origin_ns)
    streams = replace(streams, relays=relays) if streams else None
    ranks, devices = np.array(trace.ranks), DevicesOfRanks(trace)
    return _Job(trace, mode, origin_ns, streams, comms, relays, concurrent, ranks, devices)


def _members(job: _Job, rows: slice) -> _Members:
    """Return what a job has of the ranks with these nodes."""
    trace = job.trace.apart(rows).with_own_lanes()
    number, relays = np.searchsorted(job.ranks, trace.ranks), job.relays.of_rank(rows)
    gbs = bandwidths_gbs(trace, job.devices)
    return _Members(rows, trace.ranks, number, trace, _rows_of(job.comms, rows), relays, gbs)


def _planned(job: _Job, members: _Members) -> tuple[Plan, list[dict[str, float]]]:
    """Plan of some ranks, and by how much each one's ET ends otherwise than predicted."""
    trace, communication = members.trace, _communication(members.comms, members.relays)
    predicted = (
        {}
        if job.mode is Mode.KERNELS
        else reaction.predicted_ends(trace, operations=job.mode is Mode.FULL)
    )
    plan = build_plan(trace, mode=job.mode, origin_ns=job.origin_ns, comm=communication)
    return plan, reaction.deviations(trace, predicted, plan, members.comms["npu"])


def _write_ranks(
    prefix: Path, job: _Job, other: Callable[[], _Job] | None = None
) -> _Written | None:
    """Write the ETs of all ranks, and the groups; None where streams should rather have NPUs of their own.

    Parameters
    ----------
    prefix
        Path without the ending ``.RANK.et``.
    job
        All ranks.
    other
        Returns the job with NPUs of streams; None if it is written as it is.
    """
    trace, written = job.trace, _Written({}, {}, Counter())
    facts: dict[str, str | int] = {
        "job": trace.meta.job,
        "mode": job.mode.value,
        "streams": "npus" if job.npus else "slots",
        "written_by": outputs.MARK,
        "origin_ns": trace.meta.origin_ns + job.origin_ns,
    }
    if job.npus is not None:
        facts[_NPUS] = len(trace.ranks) * job.npus.per_rank
    if trace.meta.clock != REALTIME:
        facts["clock"] = trace.meta.clock
    fits, hints = _clock_fits(trace), _possible_hints(trace)
    progress.start(_TASK, trace.nodes.num_rows, "events")
    for rows in batches(trace):
        members = _members(job, rows)
        plan, reacts = _planned(job, members)
        figures = dict(zip(members.ranks, plan.figures, strict=True))
        of_ranks = _rank_facts(job, members, figures, reacts, fits, hints)
        if other and not _note_tried_npus(job, other, members, figures, reacts, of_ranks):
            return None
        _write_nodes(prefix, job, members, plan, [facts | of_rank for of_rank in of_ranks])
        if job.npus is not None:
            _write_streams(prefix, job, members, plan, job.npus, facts)
        written.figures.update(figures)
        written.reacts.update(zip(members.ranks, reacts, strict=True))
        written.left_out.update(_left_out(members.trace, plan))
        progress.advance(_TASK, members.trace.nodes.num_rows)
    groups = {str(k): v for k, v in job.comms.groups.items()}
    prefix.with_name(f"{prefix.name}.comm_groups.json").write_text(json.dumps(groups, indent=1))
    return written


def _note_tried_npus(
    job: _Job,
    other: Callable[[], _Job],
    members: _Members,
    figures: dict[int, Figures],
    reacts: list[dict[str, float]],
    facts: list[dict[str, str | int]],
) -> bool:
    """Try whether ranks react less wrongly if their streams have NPUs; False if these are needed.

    Facts of ranks that were tried get by how much they would end otherwise than predicted then.
    """
    tried = cache(lambda: _planned(other(), _members(other(), members.rows))[1])
    for k, (rank, of_rank) in enumerate(figures.items()):
        span_ns = of_rank.span_ns
        if span_ns and is_far(job.concurrent_ns.get(rank, 0) / span_ns, span_ns):
            return False
        off = _largest(reacts[k])
        if not is_far(off, span_ns, _TRIED_SHARE):
            continue
        npus = other().npus
        with_npus = off if npus is None or npus.per_rank == 1 else _largest(tried()[k])
        if with_npus < _LESS_OFF * off:
            return False
        facts[k][NPUS_DEVIATION] = round(with_npus * span_ns)
    return True


def _largest(reacts: dict[str, float]) -> float:
    """Largest share of its span by which a rank ends otherwise than predicted."""
    return max(map(abs, reacts.values()), default=0.0)


def _note_written(job: _Job, written: _Written, issues: IssueLog) -> None:
    """Log what the ETs of all ranks leave out, and cannot express."""
    figures, left_out = written.figures, written.left_out
    issues.add(LEFT_OUT, left_out.total(), _counts_by_kind(left_out))
    issues.add(ANSWERS_AS_TIME, job.relays.as_time)
    _note_figures(job.trace, figures, issues)
    _note_reactions(written.reacts, figures, issues)
    _note_concurrent(job.concurrent_ns, figures, issues)


def _mode(mode: str, streams: str) -> Mode:
    """Return the mode of that name, if it goes with this way of running streams."""
    modes = [how.value for how in Mode]
    if mode not in modes:
        raise UsageError(f"mode={mode}: there are {', '.join(modes)}")
    if streams not in get_args(StreamsName):
        raise UsageError(f"streams={streams}: there are {', '.join(get_args(StreamsName))}")
    if streams == "npus" and mode == "kernels":
        raise UsageError("streams=npus needs hosts, which mode=kernels leaves out")
    return Mode(mode)


def usage(trace: Trace, path: Path) -> str:
    """Line on what a simulator takes, and whether one NPU for each rank is too few."""
    folder, name = _place(trace, path)
    stated = [
        chakra_files.facts_of(folder / f"{name}.{rank}.et") for rank in range(len(trace.ranks))
    ]
    spans = [max(chakra_files.integer(s, "span_ns"), 1) for s in stated]
    shares = [reaction.largest_ns(s) / span for s, span in zip(stated, spans, strict=True)]
    text = f"simulators take the prefix {folder / name}; chopper-check {folder}{os.sep} checks it"
    npus = chakra_files.integer(stated[0], _NPUS)
    if npus:
        text += (
            f"; {npus} NPUs, so that streams run at the same time (-O streams=slots: one a rank)"
        )
    if any(shares):
        text += f"; changes may be off by {max(shares):.0%} of the span and more"
        tried = [chakra_files.integer(s, NPUS_DEVIATION) / span
                 for s, span in zip(stated, spans, strict=True) if NPUS_DEVIATION in s]  # fmt: skip
        if tried:
            text += f", and by {max(tried):.0%} with -O streams=npus, which was tried"
        elif not npus:
            text += ", as what ran at the same time runs one after the other: see -O streams=npus"
    return text


def _place(trace: Trace, path: Path) -> tuple[Path, str]:
    """Folder of the ETs, and the job in their names."""
    if path.suffix == ".et":
        return path.parent, path.stem
    return path, outputs.file_name(trace.meta.job)


def _rank_facts(
    job: _Job,
    members: _Members,
    figures: dict[int, Figures],
    reacts: list[dict[str, float]],
    fits: dict[int, list[ClockFit]],
    hints: list[tuple[Kind, str]],
) -> list[dict[str, str | int]]:
    """Metadata of each rank's ET, as far as other ranks have others."""
    kinds = members.trace.array("kind")
    listed = []
    for (rank, rows), of_rank, off, gbs in zip(
        members.trace.rank_rows.items(),
        figures.values(),
        reacts,
        members.bandwidth_gbs.tolist(),
        strict=True,
    ):
        facts: dict[str, str | int] = {"rank": rank, "roofline_gbs": round(gbs)}
        facts |= _accuracy(of_rank, off, partial(_hints, hints, kinds[rows]))
        if concurrent_ns := job.concurrent_ns.get(rank, 0):
            facts[CONCURRENT] = concurrent_ns
        if fits[rank]:
            facts[CLOCKS] = json.dumps(msgspec.to_builtins(fits[rank]))
        listed.append(facts)
    return listed


def _clock_fits(trace: Trace) -> dict[int, list[ClockFit]]:
    """Fits of clocks that are of each rank or of none, in the order of the trace."""
    clocks = trace.meta.clocks
    places = by_key(range(len(clocks)), lambda n: relations.rank_of(clocks[n]))
    of_none = places.get(-1, [])
    return {r: [clocks[n] for n in sorted(of_none + places.get(r, []))] for r in trace.ranks}


def _accuracy(
    figures: Figures, reacts: dict[str, float], hints: Callable[[], list[str]]
) -> dict[str, str | int]:
    """Accuracy of a rank's ET, as the ET itself states it."""
    if not figures.span_ns:
        return {}
    facts: dict[str, str | int] = {
        "span_ns": figures.span_ns,
        "unexplained_ns": 1000 * figures.unexplained_us,
    }
    facts |= {name: round(share * figures.span_ns) for name, share in reacts.items()}
    if figures.unexplained_us >= _SHOWN_SHARE * figures.length_us and (texts := hints()):
        facts["would_explain_more"] = texts[0]
    return facts


def _possible_hints(trace: Trace) -> list[tuple[Kind, str]]:
    """Kinds of records that would explain more where they are missing, and what to say then, by the names of calls."""
    names = trace.names()
    return [(k, text) for k, text, prefix in _HINTS if any(n.startswith(prefix) for n in names)]


def _hints(possible: list[tuple[Kind, str]], kind: Array) -> list[str]:
    """Sources that were not recorded of nodes of these kinds and would explain more: of GPU work, if there is any."""
    kinds = set(np.unique(kind).tolist())
    return [t for k, t in possible if k not in kinds and not kinds.isdisjoint(GPU_WORK)]


def _note_reactions(
    reacts: dict[int, dict[str, float]],
    figures: dict[int, Figures],
    issues: IssueLog,
) -> None:
    """Log the ranks whose ETs react otherwise than the timing model."""
    off = {r: max(by.items(), key=lambda item: abs(item[1])) for r, by in reacts.items() if by}
    far = {r: entry for r, entry in off.items() if is_far(entry[1], figures[r].span_ns)}
    if far:
        worst = max(far, key=lambda rank: abs(far[rank][1]))
        name, share = far[worst]
        text = f"rank {worst}: {share:+.1%} with {DEVIATIONS[name]}"
        issues.add(REACTS_OTHERWISE, len(far), text)


def _note_concurrent(
    concurrent: dict[int, int], figures: dict[int, Figures], issues: IssueLog
) -> None:
    """Log the ranks whose collectives run at the same time."""
    span_ns = {rank: of_rank.span_ns for rank, of_rank in figures.items() if of_rank.span_ns}
    share = {r: ns / span_ns[r] for r, ns in concurrent.items() if r in span_ns}
    share = {r: part for r, part in share.items() if is_far(part, span_ns[r])}
    issues.add(CONCURRENT_COLLECTIVES, len(share), shares_text(share) if share else "")


def _note_figures(trace: Trace, figures: dict[int, Figures], issues: IssueLog) -> None:
    """Log what the ETs of these ranks cannot express, and what nothing explains."""
    issues.add(WAITS_AS_TIME, sum(of_rank.waits_as_time for of_rank in figures.values()))
    issues.add(OVERLAPPED, sum(of_rank.overlapped for of_rank in figures.values()))
    share = {r: f.unexplained_us / max(f.length_us, 1) for r, f in figures.items()}
    worst = max(share, key=lambda rank: share[rank])
    hints = _hints(_possible_hints(trace), trace.array("kind")[trace.rank_rows[worst]])
    example = f"{shares_text(share)}" + "".join(f"; {h}" for h in hints[:1])
    issues.add(UNEXPLAINED, sum(part >= _SHOWN_SHARE for part in share.values()), example)


_SHOWN_SHARE = 0.005
"""Share of a critical path from which unexplained time is worth a line: the accuracy of a replay."""


def _earlier_files(folder: Path, job: str) -> Callable[[Path], bool]:
    """Return a predicate of the folder's files that an earlier run wrote for this job."""
    rank_file = re.compile(rf"{re.escape(job)}\.\d+\.et")
    groups = f"{job}.comm_groups.json"
    paths = folder.iterdir() if folder.is_dir() else ()
    written = {p.name for p in paths if rank_file.fullmatch(p.name) and outputs.is_marked(p)}
    return lambda path: path.name in written or (path.name == groups and bool(written))


def _left_out(trace: Trace, plan: Plan) -> Counter[int]:
    """Count the nodes of each kind that are not in a plan."""
    absent = np.ones(trace.nodes.num_rows, np.bool_)
    absent[plan.row[plan.row >= 0]] = False
    kinds, counts = np.unique(trace.array("kind")[absent], return_counts=True)
    return Counter(dict(zip(kinds.tolist(), counts.tolist(), strict=True)))


def _counts_by_kind(left_out: Counter[int]) -> str:
    """Counts of kinds as a text, the most frequent first."""
    names = {int(kind): kind.name.lower() for kind in Kind}
    return ", ".join(f"{n:,} {names.get(kind, kind)}" for kind, n in left_out.most_common())


def _communication(comms: dict[str, Array], relays: Relays) -> Communication:
    """Communication of ranks as their plan needs it."""
    is_message = comms["node_type"] != NodeType.COMM_COLL
    has_control = comms["control_tag"] >= 0
    return Communication(
        sends=comms["node_type"] == NodeType.COMM_SEND,
        receives=comms["node_type"] == NodeType.COMM_RECV,
        synchronous=has_control & is_message,
        sender_later_ns=comms["sender_later_ns"],
        sends_end=has_control & ~is_message,
        turn=comms["turn"],
        npu=comms["npu"],
        relays=relays,
    )


def _write_nodes(
    prefix: Path,
    job: _Job,
    members: _Members,
    plan: Plan,
    facts: list[dict[str, str | int]],
) -> None:
    """Write the files of ranks, with these metadata of each."""
    trace, comms = members.trace, members.comms
    of = populations(trace, each_rank=True)
    own = members.number[of.of_node]
    attributes = Attributes(
        PlannedRanks(trace, plan, comms, members.relays, job.ranks, own, members.bandwidth_gbs)
    )
    table, ids = encode.text_table(attributes.texts), plan.ids
    dep = plan.dep - np.repeat(plan.of_nodes(plan.first[:-1]), np.diff(plan.dep_first))
    lasts = map(recorded.encoded, recorded.recorded(trace, plan, job.mode, job.origin_ns))
    memory.give_back(trace.nodes.nbytes)

    def columns(part: slice) -> node_files.Part:
        nodes = encode.Nodes(
            type=_node_types(plan, comms["node_type"], part),
            name=attributes.name(part),
            start_us=(np.maximum(plan.start_ns[part], 0) + 500) // 1000,
            slot_us=plan.slot_us[part],
            dep_first=plan.dep_first,
            dep=dep,
        )
        return node_files.Part(part, nodes, *attributes.columns(part), ids[part])

    paths = [prefix.with_name(f"{prefix.name}.{n}.et") for n in members.number.tolist()]
    if len(paths) == 1:
        with paths[0].open("wb") as stream:
            stream.write(_metadata(facts[0]))
            node_files.write_parts(stream, len(plan.row), table, columns, next(lasts))
        return
    encoded = node_files.encoded_ranks(plan.first, table, columns)
    for path, of_rank, (nodes, last), of_last in zip(paths, facts, encoded, lasts, strict=True):
        path.write_bytes(_metadata(of_rank) + nodes + encode.extended(last, of_last))


def _node_types(plan: Plan, of_rows: Array, part: slice) -> Array:
    """`NodeType` of a part of a plan's nodes, from those of the trace's nodes that communicate."""
    row, slot, cause = plan.row[part], plan.slot[part], plan.cause[part]
    comm_type = np.where(row >= 0, of_rows[row], int(NodeType.COMM_COLL))
    of_control = np.where(slot == COMM, int(NodeType.COMM_SEND), int(NodeType.COMM_RECV))
    comm_type = np.where(is_any(cause, CONTROL), of_control, comm_type)
    return np.where(slot >= COMM, comm_type, int(NodeType.COMP)).astype(np.int64)


def _write_streams(
    prefix: Path,
    job: _Job,
    members: _Members,
    plan: Plan,
    npus: chakra_streams.Streams,
    facts: dict[str, str | int],
) -> None:
    """Write the files of the streams of ranks."""
    comms, ranks = _rows_of(npus.on_streams, members.rows), len(job.ranks)
    streams = chakra_streams.stream_nodes(
        members.trace, plan, npus, members.rows, comms, members.number, members.bandwidth_gbs
    )
    for own in members.number.tolist():
        for number in range(own + ranks, ranks * npus.per_rank, ranks):
            of_npu = streams.of_npu(number)
            with prefix.with_name(f"{prefix.name}.{number}.et").open("wb") as stream:
                stream.write(_metadata(facts | {chakra_files.STREAM_OF: own}))
                parts = node_files.parts_of(of_npu)
                node_files.write_parts(stream, len(of_npu.nodes.type), of_npu.table, parts)


def _rows_of(comms: chakra_comms.Comms, rows: slice) -> dict[str, Array]:
    """Columns of the communication of some ranks."""
    return {n: v[rows] for n, v in vars(comms).items() if n != "groups"}


def _metadata(facts: dict[str, str | int]) -> bytes:
    """First message of a file."""
    meta = message_class("GlobalMetadata")(version=VERSION)
    for name, value in facts.items():
        attribute = meta.attr.add(name=name)
        if isinstance(value, str):
            attribute.string_val = value
        else:
            attribute.int64_val = value
    message = io.BytesIO()
    proto.serialize_length_prefixed(meta, message)
    return message.getvalue()

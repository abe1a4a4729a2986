"""Checks of communication: of one rank, and that ranks agree."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra.checks.values import (
    JOINED,
    P2P,
    TIMED,
    group_names,
    integers,
    p2p_ends,
)
from chopper_interop.converters.chakra.comms import MIN_BYTES
from chopper_interop.schemas.chakra import CommType, NodeType

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.checks.findings import Findings
    from chopper_interop.converters.chakra.decode import EtFile


_COMM = (NodeType.COMM_COLL, *P2P)
_INSTANT_BYTES = 1000
"""Bytes below which a message may take no time. Chosen: what a link of 1000 GB/s, faster than today's, moves in a
nanosecond."""


def check_communication(name: str, et: EtFile, rank: int, ranks: int, findings: Findings) -> None:
    """Check the communication of one rank."""
    fault = partial(findings.add_nodes, name, et)
    p2p = np.isin(et.type, P2P)
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
    small = gathers & (size > 0) & (size < MIN_BYTES)
    text = (
        f"all-gathers of less than {MIN_BYTES} bytes, which never end where ASTRA-sim's "
        f"preferred-dataset-splits is {MIN_BYTES}, as in its examples (they need as many "
        "bytes as that)"
    )
    fault(np.flatnonzero(small), text)
    at_once = (np.diff(et.data_first) == 0) & (np.diff(et.ctrl_first) == 0)
    at_once &= (collective & is_any(kind, JOINED)) | (
        (et.type == NodeType.COMM_SEND) & (size < _INSTANT_BYTES)
    )
    fault(
        np.flatnonzero(at_once),
        "communication that nothing comes before: ASTRA-sim's analytical networks abort at what takes no time "
        "at 0, as collectives do with an endpoint-delay of 0, and messages of fewer bytes than go in a nanosecond",
        stops=False,
    )
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


_NO_GROUPS = ", PREFIX.comm_groups.json next to the ETs, which is missing or has none"


def check_agreement(ets: list[EtFile], groups: dict[str, list[int]], findings: Findings) -> None:
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
        label = group_label(name)
        members = groups.get(name)
        if not name.isdigit() and name:
            text = f"{label}: pg_name is no decimal number, which ASTRA-sim cannot read"
        elif members is None:
            text = f"{label}: it is not in the file of groups" + (
                "" if len(groups) > 1 else _NO_GROUPS
            )
        elif len(members) < 2:  # noqa: PLR2004
            text = f"{label}: collectives of a group of one never end"
        elif not set(by_rank) <= set(members):
            outside = sorted(set(by_rank) - set(members))
            text = f"{label}: ranks {outside} use it and are not in it"
        else:
            text = _difference(label, members, by_rank)
        if text:
            findings.add("all ranks", text)
    _check_p2p(ets, findings)


def group_label(name: str) -> str:
    """Name of a process group in findings."""
    return f"group {name or 'of all ranks'}"


def mismatch_text(label: str, index: int, a: tuple[str, int], b: tuple[str, int]) -> str:
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
                return mismatch_text(label, k, (kind_and_size(a), first), (kind_and_size(b), rank))
        if len(reference) != len(of_rank):
            return (
                f"{label}: rank {first} has {len(reference)} collectives and rank {rank} "
                f"{len(of_rank)}"
            )
    return ""


def kind_and_size(collective: tuple[int, int]) -> str:
    """Kind and bytes of a collective as a text."""
    kind, size = collective
    return f"{CommType(kind).name} of {size:,} bytes"


def p2p_counts(ets: list[EtFile]) -> tuple[Counter[Any], Counter[Any]]:
    """Count sends and receives by (tag, source, destination, size)."""
    sent: Counter[Any] = Counter()
    received: Counter[Any] = Counter()
    for rank, et in enumerate(ets):
        src, dst, tag = p2p_ends(et, rank)
        columns = (tag, src, dst, integers(et, "comm_size", -1))
        for counter, kind in zip((sent, received), P2P, strict=True):
            rows = np.flatnonzero(et.type == kind)
            counter.update(zip(*(c[rows].tolist() for c in columns), strict=True))
    return sent, received


def _check_p2p(ets: list[EtFile], findings: Findings) -> None:
    """Check that each receive has a send and each send a receive."""
    sends, receives = p2p_counts(ets)
    for counter, text, stops in (
        (receives - sends, "receives without a send, which never end", True),
        (sends - receives, "sends without a receive", False),
    ):
        if counter:
            tag, src, dst, size = next(iter(counter))
            example = f"tag {tag}, {src} → {dst}, {size:,} bytes"
            count = sum(counter.values())
            findings.add("all ranks", text, count, example, stops=stops)

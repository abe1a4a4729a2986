"""ETs in which some nodes take another time."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import schedule

from chopper_interop.schemas.chakra import CommType

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from programs.program import Change

_COMMUNICATES = 5
"""Types of nodes from this on communicate."""


def write(prefix: Path, target: Path, change: Change, *, replay: bool) -> None:
    """Write the ETs of a job again, with other durations, which add up though each is whole microseconds.

    Parameters
    ----------
    prefix, target
        Paths up to the rank's number, of what is read and of what is written.
    replay
        Communication lasts as the ETs say, so that a change of it changes them; else only of that which simulators
        time, as its other members are not known.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted(prefix.parent.glob(f"{prefix.name}.*")):
        copied = target.with_name(path.name.replace(prefix.name, target.name, 1))
        if path.suffix != ".et":
            shutil.copy(path, copied)
            continue
        metadata, nodes = schedule.messages(path)
        facts = {a.name: a.int64_val for a in metadata.attr}
        rank = facts.get("stream_of", int(path.suffixes[-2][1:]))
        rounded_off = 0.0
        for node in nodes:
            if _changes(node, rank, change, replay=replay):
                exact_us = _changed_us(node, change.factor) + rounded_off
                node.duration_micros = max(round(exact_us), 0)
                rounded_off = exact_us - node.duration_micros
        write_nodes(copied, metadata, nodes)


def write_nodes(path: Path, metadata: Any, nodes: list[Any]) -> None:
    """Write messages with their lengths before them."""
    from chakra.src.third_party.utils.protolib import encodeMessage

    with path.open("wb") as file:
        for message in (metadata, *nodes):
            encodeMessage(file, message)


def _changed_us(node: Any, factor: float) -> float:
    """Duration of a node; a return from a wait takes its latency whatever the host itself takes."""
    facts = schedule.attributes(node)
    if facts.get("cause") != "return":
        return node.duration_micros * factor
    own_us = facts["own_ns"] / 1000
    latency_us = node.duration_micros if node.duration_micros > own_us + 0.5 else 0
    return max(latency_us, own_us * factor)


def _changes(node: Any, rank: int, change: Change, *, replay: bool) -> bool:
    facts = schedule.attributes(node)
    if node.type >= _COMMUNICATES:
        is_timed = facts.get("comm_type") == CommType.BROADCAST and facts.get("kind") == "comm"
        return (replay or is_timed) and change.of == "communication"
    if facts["is_cpu_op"]:
        # what the host does within ranges, and calls; not latencies and time outside
        is_work = facts.get("cause", "host") == "host" and facts["kind"] != "host_gap"
        return change.of == "host" and (is_work or "continues" in facts)
    return facts.get("kind") == "kernel" and (
        change.of == "compute"
        or (change.of == "kernel" and node.name == change.name)
        or (change.of == "rank" and rank == change.rank)
    )

"""Small ETs of several ranks, made by hand or at random, with many ends at the same moment."""

from __future__ import annotations

import io
import random
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf import proto

from chopper_interop.schemas.chakra import VERSION, CommType, NodeType, message_class

if TYPE_CHECKING:
    from pathlib import Path

BYTES_PER_US = 50_000
"""Bandwidth of links, 50 GB/s, over which messages take as long as their nodes say."""
_TYPES = {
    "send": NodeType.COMM_SEND, "recv": NodeType.COMM_RECV, "timed": NodeType.COMM_COLL, "joined": NodeType.COMM_COLL,
}  # fmt: skip
_COLLECTIVES = {"timed": CommType.BROADCAST, "joined": CommType.ALL_REDUCE}


class Node(NamedTuple):
    """A node: "host", "kernel", "timed" or "joined" (collectives), "send" or "recv"; its id is its place."""

    kind: str
    us: int
    deps: tuple[int, ...] = ()
    ends: tuple[int, int, int] | None = None
    """Of a message the rank that sends, the one that receives, and the tag."""


def write(prefix: Path, ranks: list[list[Node]]) -> int:
    """Write ``PREFIX.0.et`` and so on; return the number of nodes."""
    for rank, nodes in enumerate(ranks):
        stream = io.BytesIO()
        proto.serialize_length_prefixed(message_class("GlobalMetadata")(version=VERSION), stream)
        for number, node in enumerate(nodes):
            proto.serialize_length_prefixed(_message(number, node), stream)
        prefix.with_name(f"{prefix.name}.{rank}.et").write_bytes(stream.getvalue())
    return sum(map(len, ranks))


def _message(number: int, node: Node):
    message = message_class("Node")(
        id=number, name=f"{node.kind} {number}", type=int(_TYPES.get(node.kind, NodeType.COMP)),
        duration_micros=node.us, data_deps=node.deps,
    )  # fmt: skip
    message.attr.add(name="is_cpu_op").bool_val = node.kind == "host"
    if node.kind in _TYPES:
        message.attr.add(name="comm_size").int64_val = node.us * BYTES_PER_US
    if node.kind in _COLLECTIVES:
        message.attr.add(name="comm_type").int64_val = int(_COLLECTIVES[node.kind])
    if node.ends:
        for name, value in zip(("comm_src", "comm_dst", "comm_tag"), node.ends, strict=True):
            message.attr.add(name=name).int32_val = value
    return message


def drawn(seed: int) -> list[list[Node]]:
    """Ranks of which each begins with work, as networks must not begin with communication."""
    rng = random.Random(seed)  # noqa: S311 # no secret
    count, shortest = rng.choice([2, 2, 3]), rng.randint(0, 1)
    host = "host" if rng.random() < 0.7 else "kernel"
    kinds = [host, "kernel", "timed", "message", "message"] + ["joined"] * (rng.random() < 0.4)
    ranks = [[Node(host, 1)] for _ in range(count)]
    for tag in range(rng.randint(2, 16)):
        kind = rng.choice(kinds)
        if kind == "joined":
            for nodes in ranks:
                before = [n for n, node in enumerate(nodes) if node.kind == "joined"][-1:]
                nodes.append(Node(kind, 2, _deps(rng, nodes, before)))
        elif kind == "message":
            src, dst = rng.sample(range(count), 2)
            us = rng.randint(1, 3)
            for rank, end in ((src, "send"), (dst, "recv")):
                ranks[rank].append(Node(end, us, _deps(rng, ranks[rank]), (src, dst, tag)))
        else:
            nodes = rng.choice(ranks)
            nodes.append(Node(kind, rng.randint(shortest, 3), _deps(rng, nodes)))
    return ranks


def _deps(rng: random.Random, nodes: list[Node], more: list[int] | None = None) -> tuple[int, ...]:
    chosen = {rng.randrange(len(nodes)) for _ in range(rng.choice([1, 1, 2]))}
    return tuple(sorted(chosen.union(more or ())))

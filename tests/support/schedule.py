"""Plain readings of ETs, as oracles: MLCommons' own reader, and a list scheduler."""

import heapq
from pathlib import Path
from typing import Any


def messages(path: Path) -> tuple[Any, list[Any]]:
    """GlobalMetadata and Nodes of a file, by the reader of MLCommons' package."""
    from chakra.src.third_party.utils.protolib import openFileRd

    with openFileRd(str(path)) as file:
        return _decoded(file)


def _decoded(file: Any) -> tuple[Any, list[Any]]:
    from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node
    from chakra.src.third_party.utils.protolib import decodeMessage

    metadata = GlobalMetadata()
    decodeMessage(file, metadata)
    nodes = []
    while decodeMessage(file, node := Node()):
        nodes.append(node)
    return metadata, nodes


def attributes(node: Any) -> dict[str, Any]:
    """Attributes of a node by name."""
    return {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}


def replay_us(nodes: list[Any]) -> int:  # noqa: C901 # the plainest form, to be read at once
    """End of the last node of a rank: one slot each for host, compute and communication.

    Every node lasts its duration; of those that are ready, the one with the lowest id goes first.
    """
    slot = {}
    for node in nodes:
        values = attributes(node)
        slot[node.id] = "host" if values["is_cpu_op"] else "comm" if node.type >= 5 else "compute"
    duration = {n.id: n.duration_micros for n in nodes}
    children: dict[int, list[int]] = {n.id: [] for n in nodes}
    waits = {}
    for node in nodes:
        parents = set(node.data_deps) | set(node.ctrl_deps)
        waits[node.id] = len(parents)
        for parent in parents:
            children[parent].append(node.id)
    ready: dict[str, list[int]] = {"host": [], "compute": [], "comm": []}
    for node, count in waits.items():
        if not count:
            heapq.heappush(ready[slot[node]], node)
    busy: set[str] = set()
    running: list[tuple[int, int]] = []
    now = done = 0
    while True:
        for name, queue in ready.items():
            if name not in busy and queue:
                node = heapq.heappop(queue)
                busy.add(name)
                heapq.heappush(running, (now + duration[node], node))
        if not running:
            assert done == len(nodes), "some nodes never run"
            return now
        now, node = heapq.heappop(running)
        done += 1
        busy.discard(slot[node])
        for child in children[node]:
            waits[child] -= 1
            if not waits[child]:
                heapq.heappush(ready[slot[child]], child)

"""Host execution traces read by the json library, and the flow of data by brute force."""

import gzip
import json
from pathlib import Path
from typing import Any

ALLOCATIONS = {"aten::" + n for n in ("empty", "empty_like", "empty_strided", "empty_quantized")}
ALLOCATIONS |= {"aten::new_empty", "aten::new_empty_strided"}
Node = dict[str, Any]


def nodes_of(path: Path) -> list[Node]:
    """All nodes, by their calls, those of process and threads left out; one form for all schemas."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    result = [_flat(node) for node in json.loads(raw)["nodes"]]
    return sorted((n for n in result if not n["name"].startswith("[py")), key=lambda n: n["id"])


def count_of(path: Path) -> int:
    """Number of nodes in the file."""
    raw = path.read_bytes()
    raw = gzip.decompress(raw) if raw.startswith(b"\x1f\x8b") else raw
    return len(json.loads(raw)["nodes"])


def _flat(node: Node) -> Node:
    if "attrs" not in node:
        sides = {s: list(zip(node[s], node[f"{s[:-1]}_types"], strict=False)) for s in _SIDES}
        return node | sides
    flat = {a["name"]: a["value"] for a in node["attrs"]}
    sides = {s: list(zip(node[s]["values"], node[s]["types"], strict=False)) for s in _SIDES}
    return flat | {"id": node["id"], "name": node["name"], "parent": node["ctrl_deps"]} | sides


_SIDES = ("inputs", "outputs")


def tensors(values: list[tuple[Any, str]]) -> list[tuple[int, int, int, int, int]]:
    """(argument, tensor, storage, first byte, byte behind the last) of each tensor."""
    result = []

    def look(value: Any, argument: int) -> None:
        if not isinstance(value, list):
            return
        if len(value) == 6 and isinstance(value[5], str):
            number, storage, offset, elements, size, _ = value
            if storage and elements * size:
                first = offset * size
                result.append((argument, number, storage, first, first + elements * size))
            elif not storage:
                result.append((argument, number, number, 0, 1))
            return
        for one in value:
            look(one, argument)

    for argument, (value, kind) in enumerate(values):
        if "Tensor(" in kind:
            look(value, argument)
    return result


def marked(schema: str) -> set[int]:
    """Arguments that a schema marks as written."""
    if "!" not in schema:
        return set()
    depth, argument, result = 0, 0, set()
    for c in schema[schema.index("(") :]:
        depth += (c in "([") - (c in ")]")
        if depth == 0:
            break
        argument += c == "," and depth == 1
        if c == "!":
            result.add(argument)
    return result


def _time(node: Node, ids: dict[int, Node], outer: set[int]) -> float:
    """An operator's own allocations come before it."""
    around = node
    while around["name"] in ALLOCATIONS and around["parent"] in ids:
        around = ids[around["parent"]]
    own = around is not node and around["id"] not in outer
    return around["id"] - 0.5 if own and around["name"] not in ALLOCATIONS else node["id"]


def flow(nodes: list[Node]) -> set[tuple[int, int]]:  # noqa: C901, PLR0912 # slow and plain
    """Makers and readers of data, by ids: for each read, all writes are looked through."""
    ids = {n["id"]: n for n in nodes}
    outer = {
        n["parent"]
        for n in nodes
        if n["name"] not in ALLOCATIONS and ids.get(n["parent"], {}).get("tid") == n["tid"]
    }
    wrote: dict[int, list[tuple[int, int, int]]] = {}
    views: dict[int, int] = {}
    edges = set()
    for node in sorted(nodes, key=lambda n: _time(n, ids, outer)):
        outputs = tensors(node["outputs"])
        if node["name"] in ALLOCATIONS:
            for _, number, storage, _, _ in outputs:
                wrote.pop(storage, None)
                views.pop(number, None)
            continue
        if node["id"] in outer:
            continue
        inputs = tensors(node["inputs"])
        for _, number, storage, first, stop in inputs:
            if number in views:
                edges.add((views[number], node["id"]))
            left = [(first, stop)]
            for low, high, who in reversed(wrote.get(storage, [])):
                if not left:
                    break
                if any(a < high and low < b for a, b in left):
                    edges.add((who, node["id"]))
                cut = [((a, min(b, low)), (max(a, high), b)) for a, b in left]
                left = [(a, b) for pair in cut for a, b in pair if a < b]
        schema = node["op_schema"]
        written = [t for t in inputs if t[0] in marked(schema)]
        for t in outputs:
            shares = any(t[2] == i[2] for i in inputs)
            if schema and "!" not in schema and shares:
                views[t[1]] = node["id"]
            else:
                written.append(t)
        for _, number, storage, first, stop in written:
            wrote.setdefault(storage, []).append((first, stop, node["id"]))
            views.pop(number, None)
    return {(a, b) for a, b in edges if a != b}

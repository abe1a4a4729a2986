"""What the communication kernels of a Kineto file do: kind, group, sizes, sequence, peer, root.

The facts stand in the arguments of the host operator ``record_param_comms`` around the launch,
and on NVIDIA also on the kernel. Names by version of PyTorch: ``Collective name``, ``In msg
nelems``, ``dtype``, ``Group size`` since 2.2; group name, description and ranks since 2.4; ``Src
Rank``/``Dst Rank`` since 2.5; ``Seq`` since 2.11. Older files say it only by the annotation
``nccl:all_reduce`` and its input shapes, or by the kernel's name. The root is an input of the
operator ``c10d::broadcast_`` around it all (where shapes were recorded), and since 2.4 ``Rank``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.build import TraceBuilder
from chopper_interop.columns import arrow
from chopper_interop.converters.kineto_numbers import MOST_RANKS, ranks, whole
from chopper_interop.edges.collective_names import collective
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.dtypes import element_bytes
from chopper_interop.schemas.kinds import Collective, Kind

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.kineto_events import TraceFile
    from chopper_interop.trace import Trace

    Facts = dict[str, Any]

UNTYPED = Fault(
    "collective-unknown",
    Severity.INFO,
    "Communication kernels of which neither metadata nor name says what they do.",
)
UNSIZED = Fault(
    "collective-size-unknown",
    Severity.INFO,
    "Communication kernels of which the file does not say how much they move.",
)

PARAMETERS = "record_param_comms"
_ANNOTATIONS = ("nccl:", "rccl:", "c10d::")
_ROOT_AT: dict[str, tuple[str, int]] = {
    "c10d::broadcast_": (Collective.BROADCAST, 2),
    "c10d::reduce_": (Collective.REDUCE, 3),
    "c10d::gather_": (Collective.GATHER, 3),
    "c10d::scatter_": (Collective.SCATTER, 3),
}
"""Operator → what it does, and which of its inputs is the root's number within the group."""
_ROOTED = tuple(kind for kind, _ in _ROOT_AT.values())
_CUT_LIST = "..."
"""PyTorch writes the first 30 ranks of a group and then this."""


def annotate(trace: Trace, file: TraceFile, issues: IssueLog) -> Trace:
    """Add the columns collective, group, seq, peer, root, dtype, bytes and out_bytes."""
    kernels = np.flatnonzero(trace.array("kind") == Kind.COMM)
    groups = _Groups(file.header)
    if kernels.size:
        trace = _annotated(trace, kernels, groups, issues)
    return replace(trace, groups=groups.table())


def _annotated(trace: Trace, kernels: Array, groups: _Groups, issues: IssueLog) -> Trace:
    names = trace.names()
    launch = trace.launch[kernels]
    facts = [
        _facts(trace, names, int(node), int(call))
        for node, call in zip(kernels, launch, strict=True)
    ]
    kinds = [f.get("collective") for f in facts]
    sizes = [f.get("bytes") for f in facts]
    issues.add(UNTYPED, kinds.count(None))
    issues.add(UNSIZED, sum(s is None for s, k in zip(sizes, kinds, strict=True) if k))
    columns = {
        "collective": kinds,
        "group": [groups.row(f, typed=k is not None) for f, k in zip(facts, kinds, strict=True)],
        "seq": [f.get("seq") for f in facts],
        "peer": [f.get("peer") for f in facts],
        "root": [groups.root(f) for f in facts],
        "dtype": [f.get("dtype") for f in facts],
        "out_bytes": [f.get("out_bytes") for f in facts],
    }
    n = trace.nodes.num_rows
    told = {name: v for name, v in columns.items() if any(value is not None for value in v)}
    spread = {name: _spread(n, kernels, values) for name, values in told.items()}
    payload = arrow.numbers(trace.nodes["bytes"], -1).copy()
    payload[kernels] = [-1 if size is None else size for size in sizes]
    spread["bytes"] = arrow.array(payload, mask=payload < 0)
    return trace.annotate(**spread)


def _spread(n: int, rows: Array, values: list[Any]) -> pa.Array:
    """A column of n numbers or texts that holds `values` at `rows` and nulls elsewhere."""
    texts = [value for value in values if isinstance(value, str)]
    known = rows[[value is not None for value in values]]
    mask = np.ones(n, np.bool_)
    mask[known] = False
    numbers = np.zeros(n, np.int64)
    if not texts:
        numbers[known] = [value for value in values if value is not None]
        return arrow.array(numbers, mask=mask)
    distinct = list(dict.fromkeys(texts))
    code = {text: k for k, text in enumerate(distinct)}
    numbers[known] = [code[text] for text in texts]
    return arrow.dictionary(numbers, distinct, mask=mask)


def _facts(trace: Trace, names: list[str], kernel: int, call: int) -> Facts:
    """All that is known of one kernel's communication, the best source first."""
    code, parent = trace.array("name"), trace.array("parent")
    around = []
    node = int(parent[call]) if call >= 0 else -1
    while node >= 0:
        around.append(node)
        if names[code[node]] == PARAMETERS:
            break
        node = int(parent[node])
    told = [trace.args(n) for n in (kernel, *around[::-1])]
    stated = next((_stated(args) for args in told if "Collective name" in args), {})
    facts: Facts = {}
    for node, args in zip(around[::-1], told[1:], strict=True):
        name = names[code[node]]
        if name.startswith(_ANNOTATIONS) or name == PARAMETERS:
            facts = _merged(facts, _shown(name, args))
    facts = _merged(stated, facts)
    facts = _merged(facts, {"collective": collective(names[code[kernel]])})
    if facts["collective"] in _ROOTED:
        facts["root"] = _root(trace, names, call, facts["collective"], told)
    return facts


def _root(trace: Trace, names: list[str], call: int, kind: str, told: list[Facts]) -> int | None:
    """The root's number within the group: by the operator around the launch, else by ``Rank``."""
    code, parent = trace.array("name"), trace.array("parent")
    stated = [a.get("Rank") for a in told if "Collective name" in a]
    node = call
    while node >= 0:
        of, at = _ROOT_AT.get(names[code[node]], ("", 0))
        inputs = trace.args(node).get("Concrete Inputs") if of == kind else None
        if isinstance(inputs, list) and len(inputs) > at:
            stated.insert(0, inputs[at])
            break
        node = int(parent[node])
    known = (whole(value, most=MOST_RANKS) for value in stated)
    return next((rank for rank in known if rank is not None), None)


def _merged(first: Facts, second: Facts) -> Facts:
    return second | {k: v for k, v in first.items() if v is not None}


def _stated(args: Facts) -> Facts:
    """Facts of a set of arguments that has ``Collective name``."""
    dtype = str(args.get("dtype", ""))
    size = element_bytes(dtype)
    kind = collective(str(args["Collective name"]))
    group_ranks = _ranks(args)
    return {
        "collective": kind,
        "dtype": dtype or None,
        "bytes": _times(args.get("In msg nelems"), size),
        "out_bytes": _times(args.get("Out msg nelems"), size),
        "seq": _sequence(args),
        "peer": _peer(args, kind, group_ranks),
        "group_name": args.get("Process Group Name"),
        "group_description": args.get("Process Group Description"),
        "group_ranks": group_ranks,
        "group_size": whole(args.get("Group size")),
    }


def _peer(args: Facts, kind: str | None, group_ranks: tuple[int, ...] | None) -> int | None:
    """The other end of a send or receive; before torch 2.5 only its number within the group."""
    if kind not in (Collective.SEND, Collective.RECV):
        return None
    key = "Dst Rank" if kind == Collective.SEND else "Src Rank"
    stated = whole(args.get(key), most=MOST_RANKS)
    within = whole(args.get("Rank"), most=len(group_ranks or ()) - 1)
    if stated is None and within is not None and group_ranks:
        return group_ranks[within]
    return stated


def _times(elements: Any, size: int | None) -> int | None:
    count = whole(elements)
    return whole(count * size) if count is not None and size is not None else None


def _sequence(args: Facts) -> int | None:
    """``Seq``, or in torch 2.4 the second of the operator's inputs."""
    stated = whole(args.get("Seq"))
    inputs = args.get("Concrete Inputs")
    second = inputs[1] if isinstance(inputs, list) and len(inputs) > 1 else None
    return whole(second) if stated is None else stated


def _ranks(args: Facts) -> tuple[int, ...] | None:
    """Global ranks of the group, from their list or from start, stride and size."""
    listed = args.get("Process Group Ranks")
    if isinstance(listed, str) and _CUT_LIST not in listed:
        try:
            listed = msgspec.json.decode(listed)
        except msgspec.DecodeError:
            listed = None
    known = ranks(listed)
    if known is not None:
        return known
    start = whole(args.get("Global rank start"))
    stride = whole(args.get("Global rank stride"), least=1)
    size = whole(args.get("Group size"))
    if start is None or stride is None or size is None:
        return None
    stop = start + stride * size
    return tuple(range(start, stop, stride)) if stop <= MOST_RANKS else None


def _shown(name: str, args: Facts) -> Facts:
    """Facts of an operator or annotation: its name, and the shapes and types of its inputs.

    ``record_param_comms`` itself says in its first input what was communicated; its sequence
    number may stand there even where the kernel carries everything else.
    """
    facts: Facts = {"seq": _sequence(args)} if name == PARAMETERS else {}
    if name != PARAMETERS:
        facts["collective"] = collective(name)
    dims, types = args.get("Input Dims"), args.get("Input type")
    if name.startswith("c10d::") or not isinstance(dims, list) or not isinstance(types, list):
        return facts
    total = 0
    for shape, dtype in zip(dims[:1], types[:1], strict=False):
        size = element_bytes(str(dtype))
        if size is None or not isinstance(shape, list) or not shape:
            return facts
        if any(whole(extent) is None for extent in shape):
            return facts
        total += math.prod(int(extent) for extent in shape) * size
    return (
        facts | {"bytes": whole(total), "dtype": str(types[0]).rsplit("::", 1)[-1]}
        if dims
        else facts
    )


class _Groups:
    """Process groups of the header and those that collectives name."""

    def __init__(self, header: Facts) -> None:
        self.builder = TraceBuilder()
        info = header.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self.backend = str(info.get("backend", ""))
        self.world = tuple(range(whole(info.get("world_size"), most=MOST_RANKS) or 0))
        listed = info.get("pg_config")
        for group in listed if isinstance(listed, list) else []:
            if isinstance(group, dict):
                self._configured(group)

    def _configured(self, group: Facts) -> None:
        ranks = _ranks({"Process Group Ranks": group.get("ranks")})
        self.builder.group(
            str(group.get("pg_name", "")),
            ranks or self.world,
            str(group.get("pg_desc", "")),
            str(group.get("backend_config", self.backend)),
        )

    def row(self, facts: Facts, *, typed: bool) -> int | None:
        """Row of the group of a collective; the whole job if it does not say which."""
        name = facts.get("group_name")
        if not typed:
            return None
        ranks = facts.get("group_ranks") or self.world
        if name is None:
            name = "" if tuple(ranks) == self.world else str(list(ranks))
        description = str(facts.get("group_description") or "")
        return self.builder.group(str(name), ranks, description, self.backend)

    def root(self, facts: Facts) -> int | None:
        """Global rank of the root, which is told by its number within the group."""
        ranks = facts.get("group_ranks")
        if not ranks and facts.get("group_size") == len(self.world):
            ranks = self.world
        within = facts.get("root")
        return ranks[within] if ranks and within is not None and within < len(ranks) else None

    def table(self) -> pa.Table:
        return self.builder.finish().groups

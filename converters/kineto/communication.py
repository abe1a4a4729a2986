"""Communication kernels of Kineto files: what they do, group, sizes, sequence number, peer, root.

All this stands in the arguments of the host operator ``record_param_comms`` around the launch, and
on NVIDIA also of the kernel. Names by version of PyTorch: ``Collective name``, ``In msg nelems``,
``dtype``, ``Group size`` since 2.2; group name, description and ranks since 2.4; ``Src Rank`` and
``Dst Rank`` since 2.5; ``Seq`` since 2.11. Older files have only the annotation ``nccl:all_reduce``
and its input shapes, or the kernel's name. The root is an input of the operator
``c10d::broadcast_`` around it all (where shapes were recorded), and since 2.4 ``Rank``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.arrays import Array, arrow, spill
from chopper_interop.build import group_row, group_table
from chopper_interop.converters.kineto.edges import member_of_nodes
from chopper_interop.converters.kineto.header import world_size
from chopper_interop.converters.kineto.trace_file import TraceFile, rank_list, whole_number
from chopper_interop.edges.communication import collective_of_kernel, collective_of_name
from chopper_interop.issues import Fault
from chopper_interop.schemas import hub
from chopper_interop.schemas.dtypes import element_bytes
from chopper_interop.schemas.hub import MAX_RANK
from chopper_interop.schemas.kinds import POINT_TO_POINT, Collective, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.combined import SourceIssues

    Arguments = dict[str, Any]
    """Arguments of an event, or members of the header."""
    Facts = dict[str, Any]
    """Facts of one kernel's communication; a name that is absent or None is unknown."""

UNKNOWN_COLLECTIVE = Fault.info(
    "collective-unknown",
    "Communication kernels of which neither metadata nor name states what they do.",
)
UNKNOWN_SIZE = Fault.info(
    "collective-size-unknown",
    "Communication kernels of which the file does not state how much they move.",
)

PARAMETERS = "record_param_comms"
_ANNOTATIONS = ("nccl:", "rccl:", "c10d::")
_ROOT_INPUT: dict[str, tuple[str, int]] = {
    "c10d::broadcast_": (Collective.BROADCAST, 2),
    "c10d::reduce_": (Collective.REDUCE, 3),
    "c10d::gather_": (Collective.GATHER, 3),
    "c10d::scatter_": (Collective.SCATTER, 3),
}
"""Operator → its collective, and index of the input that is the root's number within the group."""
_ROOTED = tuple(kind for kind, _ in _ROOT_INPUT.values())
_CUT_LIST = "..."
"""PyTorch writes the first 30 ranks of a group and then this."""
_KEPT_TEXTS = 1 << 12
"""Texts of groups' ranks whose lists are kept (chosen: more groups than a rank is in)."""


def add_communication(trace: Trace, file: TraceFile, issues: SourceIssues) -> tuple[Trace, Array]:
    """Add the columns collective, group, seq, peer, root, dtype, bytes, out_bytes, and groups.

    Returns
    -------
    trace, groups
        Groups of a file follow each other, and nodes refer to them by the number in their file; the first
        group of each file, and behind the last one their number.
    """
    kernels = np.flatnonzero(trace.array("kind") == Kind.COMM)
    groups = [_Groups(member.header) for member in file.members]
    if kernels.size:
        trace = _with_columns(trace, kernels, file, groups, issues)
    rows = [row for of_file in groups for row in of_file.rows]
    starts = np.cumsum([0, *(len(of_file.rows) for of_file in groups)])
    return replace(trace, groups=group_table(rows)), starts


def _with_columns(
    trace: Trace, kernels: Array, file: TraceFile, groups: list[_Groups], issues: SourceIssues
) -> Trace:
    member = member_of_nodes(trace, file)
    around = _Around(trace)
    calls = trace.launch[kernels].tolist()
    facts = [around.facts(*pair) for pair in zip(kernels.tolist(), calls, strict=True)]
    groups_of = [groups[number] for number in member[kernels].tolist()]
    kinds = [f.get("collective") for f in facts]
    sizes = [f.get("bytes") for f in facts]
    no_kind = np.array([kind is None for kind in kinds])
    no_size = np.array([size is None for size in sizes])
    issues.add_rows(UNKNOWN_COLLECTIVE, kernels[no_kind], member)
    issues.add_rows(UNKNOWN_SIZE, kernels[no_size & ~no_kind], member)
    with_groups = list(zip(facts, groups_of, strict=True))
    columns = {
        "collective": kinds,
        "group": [None if f.get("collective") is None else g.row(f) for f, g in with_groups],
        "seq": [f.get("seq") for f in facts],
        "peer": [f.get("peer") for f in facts],
        "root": [g.root(f) for f, g in with_groups],
        "dtype": [f.get("dtype") for f in facts],
        "out_bytes": [f.get("out_bytes") for f in facts],
    }
    n = trace.nodes.num_rows
    known = {name: v for name, v in columns.items() if any(value is not None for value in v)}
    spread = {
        name: _spread(n, kernels, values, hub.ANNOTATION_TYPES[name])
        for name, values in known.items()
    }
    size = trace.integers("bytes")
    size[kernels] = [-1 if value is None else value for value in sizes]
    spread["bytes"] = arrow.negative_to_null(size)
    return trace.with_columns(**spread)


def _spread(n: int, rows: Array, values: list[Any], declared: pa.DataType) -> pa.Array:
    """Make a column of n numbers or texts that holds `values` at `rows` and nulls elsewhere.

    Kernels are few: it is made of the declared type, as a copy would write to all of its pages.
    """
    texts = [value for value in values if isinstance(value, str)]
    known_rows = rows[[value is not None for value in values]]
    mask = np.ones(n, np.bool_)
    mask[known_rows] = False
    numbers = spill.full(n, 0, np.int32 if texts else declared.to_pandas_dtype())
    if not texts:
        numbers[known_rows] = np.array([v for v in values if v is not None], numbers.dtype)
        return arrow.array(numbers, mask=mask)
    distinct = list(dict.fromkeys(texts))
    code = {text: k for k, text in enumerate(distinct)}
    numbers[known_rows] = [code[text] for text in texts]
    return arrow.dictionary(numbers, distinct, mask=mask)


class _Around:
    """Operators around the calls that launch communication kernels."""

    def __init__(self, trace: Trace) -> None:
        self.names = trace.names()
        self.code, self.parent = trace.array("name"), trace.array("parent")
        self.args = trace.args

    def name(self, node: int) -> str:
        """Name of a node."""
        return self.names[self.code[node]]

    def facts(self, kernel: int, call: int) -> Facts:
        """Collect what is known of one kernel's communication, the best source first.

        First come arguments with ``Collective name``, of the kernel or of the outermost operator; then
        names and shapes of the operators around the call, outermost first; last the kernel's name.
        """
        around = []
        node = int(self.parent[call]) if call >= 0 else -1
        while node >= 0:
            around.append(node)
            if self.name(node) == PARAMETERS:
                break
            node = int(self.parent[node])
        outermost_first = around[::-1]
        arguments = [self.args(n) for n in (kernel, *outermost_first)]
        stated = next((_stated_facts(args) for args in arguments if "Collective name" in args), {})
        facts: Facts = {}
        for node, args in zip(outermost_first, arguments[1:], strict=True):
            name = self.name(node)
            if name.startswith(_ANNOTATIONS) or name == PARAMETERS:
                facts = _merged(facts, _operator_facts(name, args))
        facts = _merged(stated, facts)
        if facts.get("collective") is None:
            facts["collective"] = collective_of_kernel(self.name(kernel))
        if facts["collective"] in _ROOTED:
            facts["root"] = self._root(call, facts["collective"], arguments)
        return facts

    def _root(self, call: int, kind: str, arguments: list[Arguments]) -> int | None:
        """Return the root's number within the group: an input of the operator, else ``Rank``."""
        candidates = [a.get("Rank") for a in arguments if "Collective name" in a]
        node = call
        while node >= 0:
            of_kind, at = _ROOT_INPUT.get(self.name(node), ("", 0))
            inputs = self.args(node).get("Concrete Inputs") if of_kind == kind else None
            if isinstance(inputs, list) and len(inputs) > at:
                candidates.insert(0, inputs[at])
                break
            node = int(self.parent[node])
        ranks = (whole_number(value, maximum=MAX_RANK) for value in candidates)
        return next((rank for rank in ranks if rank is not None), None)


def _merged(preferred: Facts, other: Facts) -> Facts:
    return other | {k: v for k, v in preferred.items() if v is not None}


def _stated_facts(args: Arguments) -> Facts:
    """Facts in a set of arguments that has ``Collective name``."""
    dtype = str(args.get("dtype", ""))
    size = element_bytes(dtype)
    kind = collective_of_name(str(args["Collective name"]))
    group_ranks = _group_ranks(args)
    return {
        "collective": kind,
        "dtype": dtype or None,
        "bytes": _bytes_of(args.get("In msg nelems"), size),
        "out_bytes": _bytes_of(args.get("Out msg nelems"), size),
        "seq": _sequence(args),
        "peer": _peer(args, kind, group_ranks),
        "group_name": args.get("Process Group Name"),
        "group_description": args.get("Process Group Description"),
        "group_ranks": group_ranks,
        "group_size": whole_number(args.get("Group size")),
    }


def _peer(args: Arguments, kind: str | None, group_ranks: tuple[int, ...] | None) -> int | None:
    """Return the other end of a send or receive.

    Before torch 2.5 only its number within the group is stated, as ``Rank``.
    """
    if kind not in POINT_TO_POINT:
        return None
    key = "Dst Rank" if kind == Collective.SEND else "Src Rank"
    stated = whole_number(args.get(key), maximum=MAX_RANK)
    within = whole_number(args.get("Rank"), maximum=len(group_ranks or ()) - 1)
    if stated is None and within is not None and group_ranks:
        return group_ranks[within]
    return stated


def _bytes_of(elements: Any, size: int | None) -> int | None:
    count = whole_number(elements)
    return whole_number(count * size) if count is not None and size is not None else None


def _sequence(args: Arguments) -> int | None:
    """Return ``Seq``, or as in torch 2.4 the second of the operator's inputs."""
    stated = whole_number(args.get("Seq"))
    inputs = args.get("Concrete Inputs")
    second = inputs[1] if isinstance(inputs, list) and len(inputs) > 1 else None
    return whole_number(second) if stated is None else stated


def _group_ranks(args: Arguments) -> tuple[int, ...] | None:
    """Return the group's global ranks, from their list or from start, stride and size."""
    listed = args.get("Process Group Ranks")
    ranks = _ranks_of_text(listed) if isinstance(listed, str) else rank_list(listed)
    if ranks is not None:
        return ranks
    start = whole_number(args.get("Global rank start"))
    stride = whole_number(args.get("Global rank stride"), minimum=1)
    size = whole_number(args.get("Group size"))
    if start is None or stride is None or size is None:
        return None
    stop = start + stride * size
    return tuple(range(start, stop, stride)) if stop <= MAX_RANK else None


@lru_cache(_KEPT_TEXTS)
def _ranks_of_text(text: str) -> tuple[int, ...] | None:
    """Return the ranks of a list as text; None if it is cut or none. Kernels of a group state the same one."""
    try:
        return None if _CUT_LIST in text else rank_list(msgspec.json.decode(text))
    except msgspec.DecodeError:
        return None


def _operator_facts(name: str, args: Arguments) -> Facts:
    """Facts of an operator or annotation: its name, and the shapes and types of its inputs.

    ``record_param_comms`` itself has in its first input what was communicated; its sequence
    number may stand there even where the kernel carries everything else.
    """
    facts: Facts = {"seq": _sequence(args)} if name == PARAMETERS else {}
    if name != PARAMETERS:
        facts["collective"] = collective_of_name(name)
    dims, types = args.get("Input Dims"), args.get("Input type")
    if name.startswith("c10d::") or not isinstance(dims, list) or not isinstance(types, list):
        return facts
    shape, dtype = next(zip(dims, types, strict=False), (None, ""))
    size = element_bytes(str(dtype))
    if size is None or not isinstance(shape, list) or not shape:
        return facts
    if any(whole_number(extent) is None for extent in shape):
        return facts
    total = math.prod(int(extent) for extent in shape) * size
    return facts | {"bytes": whole_number(total), "dtype": str(dtype).rsplit("::", 1)[-1]}


class _Groups:
    """Process groups of a file: those of the header, and those that collectives name."""

    def __init__(self, header: Arguments) -> None:
        self._rows: dict[str, tuple[int, dict[str, Any]]] = {}
        info = header.get("distributedInfo")
        info = info if isinstance(info, dict) else {}
        self.backend = str(info.get("backend", ""))
        self.world = range(world_size(header) or 0)
        listed = info.get("pg_config")
        for group in listed if isinstance(listed, list) else []:
            if isinstance(group, dict):
                self._add_listed(group)

    def _add_listed(self, group: Arguments) -> None:
        ranks = _group_ranks({"Process Group Ranks": group.get("ranks")})
        self._add(
            str(group.get("pg_name", "")),
            ranks or self.world,
            str(group.get("pg_desc", "")),
            str(group.get("backend_config", self.backend)),
        )

    def _add(self, name: str, ranks: Sequence[int], description: str, backend: str) -> int:
        """Number of a group, which the first call with its name adds."""
        if name not in self._rows:
            row = group_row(name, ranks, description, backend)
            self._rows[name] = len(self._rows), row
        return self._rows[name][0]

    def row(self, facts: Facts) -> int:
        """Number of a collective's group, which is added; the whole job if none is stated."""
        ranks = facts.get("group_ranks") or self.world
        name = facts.get("group_name")
        if name is None:
            name = "" if list(ranks) == list(self.world) else str(list(ranks))
        description = str(facts.get("group_description") or "")
        return self._add(str(name), ranks, description, self.backend)

    def root(self, facts: Facts) -> int | None:
        """Global rank of the root, whose number within the group is known."""
        ranks = facts.get("group_ranks")
        if not ranks and facts.get("group_size") == len(self.world):
            ranks = self.world
        within = facts.get("root")
        return ranks[within] if ranks and within is not None and within < len(ranks) else None

    @property
    def rows(self) -> list[dict[str, Any]]:
        """All groups as rows of the hub's table."""
        return [row for _, row in self._rows.values()]

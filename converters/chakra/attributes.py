"""Names and attributes of an ET's nodes, from the columns of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import arrow
from chopper_interop.arrays.members import is_any
from chopper_interop.converters.chakra.comms import MIN_BYTES
from chopper_interop.converters.chakra.encode import (
    BOOL_VAL,
    DOUBLE_VAL,
    INT32_VAL,
    INT64_VAL,
    UINT64_VAL,
    Numbers,
    Words,
)
from chopper_interop.converters.chakra.roofline import roofline
from chopper_interop.converters.chakra.schedule import COMM
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import CAUSE_NAMES, Cause, CommType, NodeType
from chopper_interop.schemas.kinds import GPU_LANES, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.plan import Plan
    from chopper_interop.trace import Trace

    Values = tuple[Array, Array]
    """Values, and a mask of those that are known."""


_KIND_NAMES = {int(k): k.name.lower() for k in Kind}


class _StringTable:
    """Distinct texts, numbered in order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def number_all(self, texts: list[str]) -> Array:
        return np.array([self.number(t) for t in texts] or [0], np.int64)


def attributes(
    trace: Trace, plan: Plan, comms: dict[str, Array]
) -> tuple[list[str], Array, Numbers, Words]:
    """Return all texts, the number of each node's name, and the nodes' attributes.

    Parameters
    ----------
    trace, plan
        One rank and its schedule.
    comms
        Columns of its communication (fields of `Comms`), a value for each node of the trace.
    """
    strings = _StringTable()
    name = _names(trace, plan, strings)
    columns = _number_columns(trace, plan, comms)
    numbers = Numbers(
        name=strings.number_all(list(columns)),
        tag=np.array([tag for tag, _ in columns.values()], np.int64),
        values=_stacked([_bits(values) for _, (values, _) in columns.values()], np.int64),
        known=_stacked([known for _, (_, known) in columns.values()], np.bool_),
    )
    texts = _text_columns(trace, plan, comms, strings)
    words = Words(
        name=strings.number_all(list(texts)), values=_stacked(list(texts.values()), np.int64)
    )
    return list(strings.numbers), name, numbers, words


def _stacked(columns: list[Array], dtype: Any) -> Array:
    """Columns as rows of one array; an empty array if there are none."""
    return np.stack(columns) if columns else np.empty((0, 0), dtype)


def _bits(values: Array) -> Array:
    """Reinterpret floats as the integers of the same bits; integers stay as they are."""
    if values.dtype == np.float64:
        return values.view(np.int64)
    return values.astype(np.int64)


def _names(trace: Trace, plan: Plan, strings: _StringTable) -> Array:
    """Numbers of the nodes' names; a piece of an operation's own time has that operation's name."""
    number_of_code = strings.number_all(trace.names())
    code = trace.array("name")
    source = np.where(plan.row >= 0, plan.row, plan.owner)
    by_cause = strings.number_all([CAUSE_NAMES.get(cause, "") for cause in Cause])[plan.cause]
    return np.where(source >= 0, number_of_code[code[source]] if len(code) else by_cause, by_cause)


def _planned(plan: Plan, values: Array, known: Array) -> Values:
    """Rearrange a column of the trace's nodes for the plan's; unknown for gaps."""
    is_node = plan.row >= 0
    return np.where(is_node, values[plan.row], 0), is_node & known[plan.row]


def _or_delay(delays: Array, value: int, of_nodes: Values) -> Values:
    """Values of nodes, and one value of the delays that hold the slot of communication."""
    values, known = of_nodes
    return np.where(delays, value, values), known | delays


def _number_columns(
    trace: Trace, plan: Plan, comms: dict[str, Array]
) -> dict[str, tuple[int, Values]]:
    """Attributes that are numbers: name → tag of their type, and values of the plan's nodes."""
    always = np.ones(len(plan.row), np.bool_)
    lane = trace.array("lane")
    lane_kind, lane_number = (trace.array(c, "lanes")[lane] for c in ("kind", "number"))
    streams = is_any(lane_kind, GPU_LANES)
    node_type = comms["node_type"]
    p2p = np.isin(node_type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    device = trace.array("device", "lanes")[lane].astype(np.int64)
    correlation = trace.array("correlation")
    work = roofline(trace, plan)
    delays = (plan.slot == COMM) & (plan.row < 0)
    continues = (plan.row < 0) & (plan.owner >= 0)
    table: dict[str, tuple[int, Values]] = {
        "is_cpu_op": (BOOL_VAL, (plan.on_host.astype(np.int64), always)),
        "start_ns": (INT64_VAL, (plan.start_ns, always)),
        "duration_ns": (INT64_VAL, (plan.duration_ns, always)),
        "comm_type": (
            INT64_VAL,
            _or_delay(
                delays,
                int(CommType.BROADCAST),
                _planned(plan, comms["comm_type"], node_type == NodeType.COMM_COLL),
            ),
        ),
        "comm_size": (
            INT64_VAL,
            _or_delay(delays, MIN_BYTES, _planned(plan, comms["size"], node_type > 0)),
        ),
        "comm_src": (INT32_VAL, _planned(plan, comms["src"], p2p)),
        "comm_dst": (INT32_VAL, _planned(plan, comms["dst"], p2p)),
        "comm_tag": (INT32_VAL, _planned(plan, comms["tag"], p2p)),
        "num_ops": (INT64_VAL, (work.num_ops, work.is_computed)),
        "tensor_size": (UINT64_VAL, (work.tensor_size, work.is_computed)),
        "bytes_from_time": (BOOL_VAL, _from_time(plan, work.is_assumed, comms["from_time"] > 0)),
        "stream": (INT64_VAL, _planned(plan, lane_number, streams)),
        "tid": (INT64_VAL, _planned(plan, lane_number, lane_kind == LaneKind.THREAD)),
        "device": (INT64_VAL, _planned(plan, device, streams)),
        "correlation": (INT64_VAL, _planned(plan, correlation, correlation > 0)),
        "continues_ns": (INT64_VAL, (trace.array("ts")[plan.owner], continues)),
    }
    for name, (values, known) in _annotated_numbers(trace).items():
        tag = DOUBLE_VAL if values.dtype == np.float64 else INT64_VAL
        table[name] = (tag, _planned(plan, values, known))
    for name, (values, known) in _counters(trace).items():
        table[name] = (DOUBLE_VAL, _planned(plan, values, known))
    return {n: (t, (v, k)) for n, (t, (v, k)) in table.items() if k.any()}


def _from_time(plan: Plan, assumed: Array, comm_assumed: Array) -> Values:
    """Mark nodes of which the bytes stand for their measured time."""
    mask = assumed | ((plan.row >= 0) & comm_assumed[plan.row])
    return mask.astype(np.int64), mask


def _annotated_numbers(trace: Trace) -> dict[str, Values]:
    """Annotation columns that hold numbers, except the group, which goes out by its name."""
    core = {c.name for c in hub.NODES} | {"group"}
    columns = {}
    for name in trace.nodes.column_names:
        column = trace.nodes[name].combine_chunks()
        if name in core or pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            continue
        known = arrow.is_valid(column)
        values = arrow.to_numpy(column)
        real = np.float64 if pa.types.is_floating(column.type) else np.int64
        columns[name] = (values.astype(real), known)
    return columns


def _counters(trace: Trace) -> dict[str, Values]:
    """Hardware counters of the nodes, a column each."""
    table = trace.counters
    if not table.num_rows:
        return {}
    node, code, value = (trace.array(c, "counters") for c in ("node", "name", "value"))
    columns = {}
    for number, name in enumerate(table["name"].chunk(0).dictionary.to_pylist()):
        rows = code == number
        values, known = np.zeros(trace.nodes.num_rows), np.zeros(trace.nodes.num_rows, np.bool_)
        values[node[rows]], known[node[rows]] = value[rows], True
        columns[name] = (values, known)
    return columns


def _text_columns(
    trace: Trace, plan: Plan, comms: dict[str, Array], strings: _StringTable
) -> dict[str, Array]:
    """Attributes that are texts: name → numbers of the texts of the plan's nodes, -1 without."""
    is_node = plan.row >= 0
    kind_text = strings.number_all([_KIND_NAMES.get(k, "") for k in range(int(max(Kind)) + 1)])
    gap = strings.number(_KIND_NAMES[int(Kind.HOST_GAP)])
    table = {"kind": np.where(is_node, kind_text[trace.array("kind")[plan.row]], gap)}
    collective = comms["node_type"] == NodeType.COMM_COLL
    groups = strings.number_all(
        ["" if g == 0 else str(g) for g in range(int(comms["group"].max(initial=0)) + 1)]
    )
    causes = strings.number_all([cause.name.lower() for cause in Cause])
    table["cause"] = np.where(is_node, -1, causes[plan.cause])
    group = np.where(is_node, comms["group"][plan.row], 0)
    has_group = (plan.slot == COMM) & (~is_node | collective[plan.row])
    table["pg_name"] = np.where(has_group, groups[group], -1)
    for name in trace.nodes.column_names:
        column = trace.nodes[name].combine_chunks()
        if name == "name" or not pa.types.is_dictionary(column.type):
            continue
        texts = strings.number_all(column.dictionary.to_pylist())
        codes = arrow.to_numpy(column, -1)[plan.row]
        table[name] = np.where(is_node & (codes >= 0), texts[codes], -1)
    return {n: v for n, v in table.items() if (v >= 0).any()}

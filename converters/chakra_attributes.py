"""Names and attributes of an ET's nodes, out of the hub's columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.columns import arrow
from chopper_interop.columns.members import is_any
from chopper_interop.converters.chakra_encode import (
    BOOL_VAL,
    DOUBLE_VAL,
    INT32_VAL,
    INT64_VAL,
    Numbers,
    Words,
)
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import NodeType
from chopper_interop.schemas.kinds import GPU_LANES, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.chakra_plan import Plan
    from chopper_interop.trace import Trace

    Values = tuple[Array, Array]

GAP_NAME = "host gap"

_KIND_NAMES = {int(k): k.name.lower() for k in Kind}


class _Strings:
    """Texts with their numbers."""

    def __init__(self) -> None:
        self.known: dict[str, int] = {}

    def __call__(self, text: str) -> int:
        return self.known.setdefault(text, len(self.known))

    def all(self, texts: list[str]) -> Array:
        return np.array([self(t) for t in texts] or [0], np.int64)


def attributes(
    trace: Trace, plan: Plan, comms: dict[str, Array]
) -> tuple[list[str], Array, Numbers, Words]:
    """Texts, the name of each node, and its attributes.

    Parameters
    ----------
    trace, plan
        One rank and its schedule.
    comms
        What is known of its communication, a value for each node of the trace.
    """
    strings = _Strings()
    name = _names(trace, plan, strings)
    told = _numbers(trace, plan, comms)
    numbers = Numbers(
        name=strings.all(list(told)),
        tag=np.array([tag for tag, _ in told.values()], np.int64),
        values=_rows([_bits(values) for _, (values, _) in told.values()], np.int64),
        known=_rows([known for _, (_, known) in told.values()], np.bool_),
    )
    texts = _words(trace, plan, comms, strings)
    words = Words(name=strings.all(list(texts)), values=_rows(list(texts.values()), np.int64))
    return list(strings.known), name, numbers, words


def _rows(columns: list[Array], kind: Any) -> Array:
    """Columns as rows of one array; a rank of which nothing is known has none."""
    return np.stack(columns) if columns else np.empty((0, 0), kind)


def _bits(values: Array) -> Array:
    """Decimals as the integers that have the same bits; integers as they are."""
    if values.dtype == np.float64:
        return values.view(np.int64)
    return values.astype(np.int64)


def _names(trace: Trace, plan: Plan, strings: _Strings) -> Array:
    """A gap that is an operation's own time has that operation's name."""
    of_code = strings.all(trace.names())
    code = trace.array("name")
    source = np.where(plan.row >= 0, plan.row, plan.of)
    gap = strings(GAP_NAME)
    return np.where(source >= 0, of_code[code[source]] if len(code) else gap, gap)


def _spread(plan: Plan, values: Array, known: Array) -> Values:
    """A column of the trace's nodes as one of the plan's; gaps have nothing."""
    has = plan.row >= 0
    return np.where(has, values[plan.row], 0), has & known[plan.row]


def _numbers(trace: Trace, plan: Plan, comms: dict[str, Array]) -> dict[str, tuple[int, Values]]:
    always = np.ones(len(plan.row), np.bool_)
    lane = trace.array("lane")
    lane_kind, lane_number = (trace.array(c, "lanes")[lane] for c in ("kind", "number"))
    streams = is_any(lane_kind, GPU_LANES)
    typed = comms["node_type"]
    p2p = np.isin(typed, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    device = trace.array("device", "lanes")[lane].astype(np.int64)
    correlation = trace.array("correlation")
    part = (plan.row < 0) & (plan.of >= 0)
    table: dict[str, tuple[int, Values]] = {
        "is_cpu_op": (BOOL_VAL, (plan.on_host.astype(np.int64), always)),
        "start_ns": (INT64_VAL, (plan.start_ns, always)),
        "duration_ns": (INT64_VAL, (plan.duration_ns, always)),
        "comm_type": (INT64_VAL, _spread(plan, comms["comm_type"], typed == NodeType.COMM_COLL)),
        "comm_size": (INT64_VAL, _spread(plan, comms["size"], typed > 0)),
        "comm_src": (INT32_VAL, _spread(plan, comms["src"], p2p)),
        "comm_dst": (INT32_VAL, _spread(plan, comms["dst"], p2p)),
        "comm_tag": (INT32_VAL, _spread(plan, comms["tag"], p2p)),
        "stream": (INT64_VAL, _spread(plan, lane_number, streams)),
        "tid": (INT64_VAL, _spread(plan, lane_number, lane_kind == LaneKind.THREAD)),
        "device": (INT64_VAL, _spread(plan, device, streams)),
        "correlation": (INT64_VAL, _spread(plan, correlation, correlation > 0)),
        "continues_ns": (INT64_VAL, (trace.array("ts")[plan.of], part)),
    }
    for name, (values, known) in _annotated_numbers(trace).items():
        tag = DOUBLE_VAL if values.dtype == np.float64 else INT64_VAL
        table[name] = (tag, _spread(plan, values, known))
    for name, (values, known) in _counters(trace).items():
        table[name] = (DOUBLE_VAL, _spread(plan, values, known))
    return {n: (t, (v, k)) for n, (t, (v, k)) in table.items() if k.any()}


def _annotated_numbers(trace: Trace) -> dict[str, Values]:
    core = {c.name for c in hub.NODES} | {"group"}
    found = {}
    for name in trace.nodes.column_names:
        column = trace.nodes[name].combine_chunks()
        if name in core or pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            continue
        known = arrow.known(column)
        values = arrow.numbers(column)
        real = np.float64 if pa.types.is_floating(column.type) else np.int64
        found[name] = (values.astype(real), known)
    return found


def _counters(trace: Trace) -> dict[str, Values]:
    """Hardware counters of the nodes, a column each."""
    table = trace.counters
    if not table.num_rows:
        return {}
    node, code, value = (trace.array(c, "counters") for c in ("node", "name", "value"))
    found = {}
    for number, name in enumerate(table["name"].chunk(0).dictionary.to_pylist()):
        mine = code == number
        values, known = np.zeros(trace.nodes.num_rows), np.zeros(trace.nodes.num_rows, np.bool_)
        values[node[mine]], known[node[mine]] = value[mine], True
        found[name] = (values, known)
    return found


def _words(
    trace: Trace, plan: Plan, comms: dict[str, Array], strings: _Strings
) -> dict[str, Array]:
    has = plan.row >= 0
    kind_text = strings.all([_KIND_NAMES.get(k, "") for k in range(int(max(Kind)) + 1)])
    gap = strings(_KIND_NAMES[int(Kind.HOST_GAP)])
    table = {"kind": np.where(has, kind_text[trace.array("kind")[plan.row]], gap)}
    collective = comms["node_type"] == NodeType.COMM_COLL
    groups = strings.all(
        ["" if g == 0 else str(g) for g in range(int(comms["group"].max(initial=0)) + 1)]
    )
    told = has & collective[plan.row]
    table["pg_name"] = np.where(told, groups[comms["group"][plan.row]], -1)
    for name in trace.nodes.column_names:
        column = trace.nodes[name].combine_chunks()
        if name == "name" or not pa.types.is_dictionary(column.type):
            continue
        texts = strings.all(column.dictionary.to_pylist())
        codes = arrow.numbers(column, -1)[plan.row]
        table[name] = np.where(has & (codes >= 0), texts[codes], -1)
    return {n: v for n, v in table.items() if (v >= 0).any()}

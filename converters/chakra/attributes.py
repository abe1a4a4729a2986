"""Names and attributes of an ET's nodes, from the columns of a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.arrays import Array, arrow
from chopper_interop.arrays.gather import is_any
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
from chopper_interop.converters.chakra.roofline import Roofline, roofline
from chopper_interop.converters.chakra.schedule import COMM, COMPUTE
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import CAUSE_NAMES, CONTROL, Cause, CommType, NodeType
from chopper_interop.schemas.kinds import GPU_LANES, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.planning.plan import Plan
    from chopper_interop.converters.chakra.relays import Relays

    Values = tuple[Array, Array]
    """Values, and a mask of those that are known."""
    Column = Callable[[slice], Values]
    """Gives the values of a part of the plan's nodes."""


_KIND_NAMES = {int(k): k.name.lower() for k in Kind}


class _StringTable:
    """Distinct texts, numbered in order of their first use."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.numbers.setdefault(text, len(self.numbers))

    def number_all(self, texts: list[str]) -> Array:
        return np.array([self.number(t) for t in texts] or [0], np.int64)


class PlannedRanks(NamedTuple):
    """Ranks whose ETs are written.

    Parameters
    ----------
    trace, plan
        Their nodes and their schedule.
    comms
        Columns of their communication (fields of `Comms`), a value for each node of the trace.
    relays
        Dependencies through ranks that do not record yet, of a single rank.
    ranks, number
        All ranks of the job, and for each node of the trace the number of its rank in the ETs.
    bandwidth_gbs
        Bandwidth of the memory of the GPU of each of these ranks.
    """

    trace: Trace
    plan: Plan
    comms: dict[str, Array]
    relays: Relays
    ranks: Array
    number: Array
    bandwidth_gbs: Array


class Attributes:
    """Names and attributes of the nodes of a plan, of which a part at a time is put in columns.

    All together they take several times the memory of the trace.
    """

    def __init__(self, planned: PlannedRanks) -> None:
        trace, plan, strings = planned.trace, planned.plan, _StringTable()
        self.name = _names(trace, plan, strings)
        """Gives numbers of the names of a part of the plan's nodes in `texts`."""
        self._numbers = _number_columns(planned)
        self._number_names = strings.number_all(list(self._numbers))
        self._words = _text_columns(trace, plan, planned.comms, strings)
        self._word_names = strings.number_all(list(self._words))
        self.texts = list(strings.numbers)
        """All texts that nodes have."""

    def columns(self, part: slice) -> tuple[Numbers, Words]:
        """Attributes of these nodes of the plan, those that any of them has."""
        columns = [(tag, *of_part(part)) for tag, of_part in self._numbers.values()]
        has = np.array([known.any() for _, _, known in columns], bool)
        columns = [column for column, taken in zip(columns, has, strict=True) if taken]
        numbers = Numbers(
            name=self._number_names[: len(has)][has],
            tag=np.array([tag for tag, _, _ in columns], np.int64),
            values=_stacked([_bits(values) for _, values, _ in columns], np.int64),
            known=_stacked([known for _, _, known in columns], np.bool_),
        )
        words = [of_part(part) for of_part in self._words.values()]
        has = np.array([(numbers >= 0).any() for numbers in words], bool)
        words = [of_nodes for of_nodes, taken in zip(words, has, strict=True) if taken]
        return numbers, Words(self._word_names[: len(has)][has], _stacked(words, np.int64))


def _stacked(columns: list[Array], dtype: Any) -> Array:
    """Columns as rows of one array; an empty array if there are none."""
    return np.stack(columns) if columns else np.empty((0, 0), dtype)


def _bits(values: Array) -> Array:
    """Reinterpret floats as the integers of the same bits; integers stay as they are."""
    if values.dtype == np.float64:
        return values.view(np.int64)
    return values.astype(np.int64)


def _names(trace: Trace, plan: Plan, strings: _StringTable) -> Callable[[slice], Array]:
    """Numbers of the nodes' names; a piece of an operation's own time has that operation's name."""
    number_of_code = strings.number_all(trace.names())
    code = trace.array("name")
    number_of_cause = strings.number_all([CAUSE_NAMES.get(cause, "") for cause in Cause])

    def of_part(part: slice) -> Array:
        row, cause = plan.row[part], plan.cause[part]
        source = np.where((row >= 0) | is_any(cause, CONTROL), row, plan.owner[part])
        by_cause = number_of_cause[cause]
        return np.where(
            source >= 0, number_of_code[code[source]] if len(code) else by_cause, by_cause
        )

    return of_part


def _annotated(plan: Plan, column: pa.Array) -> Column:
    """Column of the trace's nodes that is null of some, as `_planned`."""
    real = np.float64 if pa.types.is_floating(column.type) else np.int64

    def of_part(part: slice) -> Values:
        row = plan.row[part]
        values, known = arrow.values_at(column, np.maximum(row, 0))
        return values.astype(real), known & (row >= 0)

    return of_part


def _planned(plan: Plan, values: Array, known: Array) -> Column:
    """Column of the trace's nodes, rearranged for the plan's; unknown for gaps."""
    real = np.float64 if values.dtype.kind == "f" else np.int64

    def of_part(part: slice) -> Values:
        row = plan.row[part]
        is_node = row >= 0
        return np.where(is_node, values[row].astype(real), 0), is_node & known[row]

    return of_part


def _ready(values: Array, known: Array) -> Column:
    """Column of the plan's nodes."""
    return lambda part: (values[part], known[part])


def _or_control(
    plan: Plan, of_ready: Array, of_ends: tuple[Array, Array], of_relays: Array, of_nodes: Column
) -> Column:
    """Values of nodes, and of messages of a few bytes.

    Parameters
    ----------
    of_ready
        Values of messages by which receivers say that they are there, by the send or receive that they are for.
    of_ends
        Values of messages by which collectives say that they have ended, sent and received, by the collective.
    of_relays
        Values of the rank's relays.
    of_nodes
        Values of all other nodes.
    """

    def of_part(part: slice) -> Values:
        values, known = of_nodes(part)
        owner, cause, is_sent = plan.owner[part], plan.cause[part], plan.slot[part] == COMM
        of_end = np.where(is_sent, of_ends[0][owner], of_ends[1][owner])
        values = np.where(cause == Cause.READY, of_ready[owner], values)
        return np.where(cause == Cause.ENDED, of_end, values), known | is_any(cause, CONTROL)

    return _or_relay(plan, of_relays, of_part)


def _or_relay(plan: Plan, of_relays: Array, of_nodes: Column) -> Column:
    """Values of nodes, and of the rank's relays."""

    def of_part(part: slice) -> Values:
        values, known = of_nodes(part)
        relayed = np.flatnonzero(plan.relay[part] >= 0)
        values[relayed] = of_relays[plan.relay[part][relayed]]
        return values, known

    return of_part


def _or_delay(delays: Array, value: int, of_nodes: Column) -> Column:
    """Values of nodes, and one value of the delays that hold the slot of communication."""

    def of_part(part: slice) -> Values:
        values, known = of_nodes(part)
        return np.where(delays[part], value, values), known | delays[part]

    return of_part


def _number_columns(planned: PlannedRanks) -> dict[str, tuple[int, Column]]:
    """Attributes that are numbers: name → tag of their type, and values of the plan's nodes."""
    trace, plan, comms, relays, ranks, own, bandwidth_gbs = planned
    always = np.ones(len(plan.row), np.bool_)
    lane = trace.array("lane")
    lane_kind, lane_number = (trace.array(c, "lanes")[lane] for c in ("kind", "number"))
    streams = is_any(lane_kind, GPU_LANES)
    node_type = comms["node_type"]
    p2p = np.isin(node_type, (NodeType.COMM_SEND, NodeType.COMM_RECV))
    device = trace.array("device", "lanes")[lane]
    correlation = trace.array("correlation")
    work = _computed(trace, plan, plan.of_nodes(bandwidth_gbs))
    control = is_any(plan.cause, CONTROL)
    delays = (plan.slot == COMM) & (plan.row < 0) & ~control
    continues = (plan.row < 0) & (plan.owner >= 0) & ~control
    collective = _planned(plan, comms["comm_type"], node_type == NodeType.COMM_COLL)
    size = _planned(plan, comms["size"], node_type > 0)
    src, dst, pair = (_planned(plan, comms[name], p2p) for name in ("src", "dst", "tag"))
    table: dict[str, tuple[int, Column]] = {
        "is_cpu_op": (BOOL_VAL, _ready(plan.on_host, always)),
        "start_ns": (INT64_VAL, _ready(plan.start_ns, always)),
        "duration_ns": (INT64_VAL, _ready(plan.duration_ns, always)),
        "comm_type": (INT64_VAL, _or_delay(delays, int(CommType.BROADCAST), collective)),
        "comm_size": (INT64_VAL, _or_relay(plan, relays.size, _or_delay(delays | control, MIN_BYTES, size))),
        "comm_src": (INT32_VAL, _or_control(plan, comms["dst"], (own, comms["src"]), relays.sender, src)),
        "comm_dst": (INT32_VAL, _or_control(plan, comms["src"], (comms["dst"], own), relays.receiver, dst)),
        "comm_tag": (
            INT32_VAL,
            _or_control(plan, comms["control_tag"], (comms["tag"], comms["control_tag"]), relays.tag, pair),
        ),
        "num_ops": (INT64_VAL, lambda part: (work(part).num_ops, work(part).is_computed)),
        "tensor_size": (UINT64_VAL, lambda part: (work(part).tensor_size, work(part).is_computed)),
        "bytes_from_time": (BOOL_VAL, _from_time(plan, work, comms["from_time"] > 0)),
        "stream": (INT64_VAL, _planned(plan, lane_number, streams)),
        "tid": (INT64_VAL, _threads(plan, trace.array("number", "lanes"))),
        "device": (INT64_VAL, _planned(plan, device, streams)),
        "correlation": (INT64_VAL, _planned(plan, correlation, correlation > 0)),
        "npu": (INT32_VAL, _planned(plan, comms["npu"], comms["npu"] >= 0)),
        "continues": (INT64_VAL, _continued(plan, continues, len(node_type))),
        "own_ns": (INT64_VAL, _ready(plan.own_ns, plan.own_ns >= 0)),
    }  # fmt: skip
    for name, column in _annotated_numbers(trace).items():
        tag = DOUBLE_VAL if pa.types.is_floating(column.type) else INT64_VAL
        table[name] = (tag, _annotated(plan, column))
    if "peer" in table:
        table["peer"] = (INT64_VAL, _numbered_ranks(table["peer"][1], ranks))
    for name, (values, known) in _counters(trace).items():
        table[name] = (DOUBLE_VAL, _planned(plan, values, known))
    return table


def _computed(trace: Trace, plan: Plan, bandwidth_gbs: Array) -> Callable[[slice], Roofline]:
    """Operations and bytes of a part of the plan's nodes, of which several columns are made."""

    @lru_cache(maxsize=1)
    def between(start: int, stop: int) -> Roofline:
        part = slice(start, stop)
        computed = plan.slot[part] == COMPUTE
        return roofline(trace, bandwidth_gbs[part], plan.row[part], computed, plan.slot_us[part])

    return lambda part: between(part.start, part.stop)


def _threads(plan: Plan, lane_number: Array) -> Column:
    """Thread of operations, and of what a thread does in between."""
    known = plan.on_host & (plan.thread >= 0)
    return lambda part: (lane_number[plan.thread[part]], known[part])


def _continued(plan: Plan, continues: Array, rows: int) -> Column:
    """Id of the node of which pieces are the rest, in a trace of so many rows."""
    node_of_row = np.full(rows, -1, np.int32)
    is_row = np.flatnonzero(plan.row >= 0)
    node_of_row[plan.row[is_row]] = plan.ids[is_row]

    def of_part(part: slice) -> Values:
        node = node_of_row[plan.owner[part]]
        return node, continues[part] & (node >= 0)

    return of_part


def _from_time(plan: Plan, work: Callable[[slice], Roofline], comm_assumed: Array) -> Column:
    """Mark nodes of which the bytes stand for their measured time."""

    def of_part(part: slice) -> Values:
        row = plan.row[part]
        mask = work(part).is_assumed | ((row >= 0) & comm_assumed[row])
        return mask, mask

    return of_part


def _annotated_numbers(trace: Trace) -> dict[str, pa.Array]:
    """Annotation columns that hold numbers, except the group, which goes out by its name."""
    core = {c.name for c in hub.NODES} | {"group"}
    columns = {}
    for name in trace.nodes.column_names:
        column = arrow.single_chunk(trace.nodes[name])
        if name in core or pa.types.is_dictionary(column.type) or pa.types.is_string(column.type):
            continue
        columns[name] = column
    return columns


def _numbered_ranks(of_nodes: Column, ranks: Array) -> Column:
    """Numbers that ranks have in the ETs; unknown for those that the job lacks where its ranks have other numbers."""
    if np.array_equal(ranks, np.arange(len(ranks))):
        return of_nodes

    def of_part(part: slice) -> Values:
        rank, known = of_nodes(part)
        place = np.searchsorted(ranks, rank)
        return place, known & (np.append(ranks, -1)[place] == rank)

    return of_part


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
) -> dict[str, Callable[[slice], Array]]:
    """Attributes that are texts: name → numbers of the texts of the plan's nodes, -1 without."""
    kind_text = strings.number_all([_KIND_NAMES.get(k, "") for k in range(int(max(Kind)) + 1)])
    gap = strings.number(_KIND_NAMES[int(Kind.HOST_GAP)])
    kind = trace.array("kind")
    collective = comms["node_type"] == NodeType.COMM_COLL
    groups = strings.number_all(
        ["" if g == 0 else str(g) for g in range(int(comms["group"].max(initial=0)) + 1)]
    )
    causes = strings.number_all([cause.name.lower() for cause in Cause])

    def of_kind(part: slice) -> Array:
        row = plan.row[part]
        return np.where(row >= 0, kind_text[kind[row]], gap)

    def of_cause(part: slice) -> Array:
        return np.where(plan.row[part] >= 0, -1, causes[plan.cause[part]])

    def of_group(part: slice) -> Array:
        row = plan.row[part]
        group = np.where(row >= 0, comms["group"][row], 0)
        is_delay = (row < 0) & ~is_any(plan.cause[part], CONTROL)
        has_group = (plan.slot[part] == COMM) & (is_delay | ((row >= 0) & collective[row]))
        of_stream = (group > 0) & (comms["npu"][row] >= 0)
        return np.where(has_group | of_stream, groups[group], -1)

    table: dict[str, Callable[[slice], Array]] = {
        "kind": of_kind,
        "cause": of_cause,
        "pg_name": of_group,
    }
    for name in trace.nodes.column_names:
        column = arrow.single_chunk(trace.nodes[name])
        if name != "name" and pa.types.is_dictionary(column.type):
            texts = strings.number_all(column.dictionary.to_pylist())
            table[name] = _numbered(plan, column, texts)
    return table


def _numbered(plan: Plan, column: pa.Array, texts: Array) -> Callable[[slice], Array]:
    """Numbers of the texts of a column of the trace's nodes, whose codes stand for `texts`."""

    def of_part(part: slice) -> Array:
        row = plan.row[part]
        code, known = arrow.values_at(column, np.maximum(row, 0))
        return np.where((row >= 0) & known, texts[code], -1)

    return of_part

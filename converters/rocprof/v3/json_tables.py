"""Tables of rocprofv3's JSON records, with the columns of its CSV files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.arrow import dictionary
from chopper_interop.converters.rocm import tables
from chopper_interop.converters.rocm.agents import UNKNOWN, is_garbled
from chopper_interop.converters.rocm.json_texts import TextBytes
from chopper_interop.converters.rocm.rows import TableRows, interned
from chopper_interop.converters.rocprof.v3 import json_records as records
from chopper_interop.issues import Fault, IssueLog

if TYPE_CHECKING:
    import pyarrow as pa

NO_NAME = Fault.loss(
    "name-unknown",
    "Records of kernels, operations or counters whose name the file does not hold are called by "
    "their number.",
)
NO_AGENT = Fault.loss(
    "agent-unknown",
    "Records of an agent that the file does not describe: on which GPU they ran is not known.",
)

RECORD_LISTS: dict[str, tables.TableFormat] = {
    "kernel_dispatch": tables.KERNELS, "hip_api": tables.CALLS, "hsa_api": tables.CALLS,
    "marker_api": tables.CALLS, "rccl_api": tables.CALLS, "rocdecode_api": tables.CALLS,
    "rocjpeg_api": tables.CALLS, "rocshmem_api": tables.CALLS, "hipfile_api": tables.CALLS,
    "ompt": tables.CALLS, "memory_copy": tables.COPIES, "memory_allocation": tables.ALLOCATIONS,
    "scratch_memory": tables.SCRATCH, "hip_graph": tables.GRAPHS,
}  # fmt: skip
"""Lists of ``buffer_records`` → their tables; lists that are missing here become `OTHERS`."""
SAMPLES = ("pc_sample", "spm")
"""Beginnings of the names of lists of samples."""
MARKERS = "marker_api"

_INT64_MAX = (1 << 63) - 1
_DISPATCHES = msgspec.json.Decoder(list[records.Dispatch])
_OPERATIONS = msgspec.json.Decoder(list[records.Operation])
_OTHERS = msgspec.json.Decoder(list[records.Other])
_COUNTED = msgspec.json.Decoder(list[records.CountedDispatch])
_RAW = msgspec.json.Decoder(list[msgspec.Raw])


class RecordTables:
    """Builds tables of the records of one process.

    Parameters
    ----------
    process
        The process.
    where
        Name of the file in examples.
    issues
        Log of what the file does not name.
    """

    def __init__(self, process: records.Process, where: str, issues: IssueLog) -> None:
        self.process = process
        self.where = where
        self.issues = issues
        self.agent = {
            a.id.handle: f"Agent {number}"
            for a in process.agents
            if (number := a.logical) != UNKNOWN
        }
        self.symbol = {s.kernel_id: s for s in process.kernel_symbols}
        self.renamed = {p.key: p.value for p in process.strings.correlation_id.external}

    def rows(self, name: str, raw: msgspec.Raw) -> TableRows:
        """Build the table of a list of ``buffer_records``."""
        form = RECORD_LISTS.get(name, tables.OTHERS)
        if form is tables.KERNELS:
            return self.dispatches(form, _DISPATCHES.decode(raw))
        if form is tables.OTHERS:
            return self._others(name, raw)
        return self._operations(form, name, _OPERATIONS.decode(raw))

    def dispatches(self, form: tables.TableFormat, items: Sequence[records.Dispatch]) -> TableRows:
        """Build a table of kernels."""
        info = [r.dispatch_info for r in items]
        numbers = {
            "thread": _ids([r.thread_id for r in items]),
            "correlation": _integers([r.correlation_id.internal for r in items]),
            "start": _integers([r.start_timestamp for r in items]),
            "end": _integers([r.end_timestamp for r in items]),
            "dispatch": _integers([i.dispatch_id for i in info]),
            "kernel_id": _integers([i.kernel_id for i in info]),
            "queue": _ids([i.queue_id.handle for i in info]),
            "scratch": _integers([i.private_segment_size for i in info]),
            "group_segment": _integers([i.group_segment_size for i in info]),
        }
        for axis in "xyz":
            numbers[f"grid_{axis}"] = _integers([getattr(i.grid_size, axis) for i in info])
            numbers[f"workgroup_{axis}"] = _integers(
                [getattr(i.workgroup_size, axis) for i in info]
            )
        known = self._optional(numbers, items)
        name, registers = self._kernels(numbers["kernel_id"], items)
        return TableRows(
            form,
            len(items),
            numbers | registers,
            known,
            {"agent": self._agents([i.agent_id.handle for i in info]), "name": name},
            where=self.where,
        )

    def counted(self, raw: msgspec.Raw) -> tuple[TableRows, Array, pa.DictionaryArray, Array]:
        """Build the table of ``counter_collection``.

        Returns
        -------
        dispatches, dispatch, name, value
            A row for each dispatch; and for each counter of each, the index of its dispatch, its
            name, and the sum over its instances.
        """
        counted = _COUNTED.decode(raw)
        rows = self.dispatches(tables.COUNTERS, [r.dispatch_data for r in counted])
        numbers = {**rows.numbers, "thread": _ids([r.thread_id for r in counted])}
        rows = replace(rows, numbers=numbers, known=self._optional(numbers, counted))
        agent = [r.dispatch_data.dispatch_info.agent_id.handle for r in counted]
        count = np.array([len(r.records) for r in counted], np.int64)
        owner = np.repeat(np.arange(len(counted)), count)
        counter = _integers([v.counter_id.handle for r in counted for v in r.records])
        value = np.array([v.value for r in counted for v in r.records], np.float64)
        first, code = gather.distinct(owner, counter)
        total = np.bincount(code, value, minlength=len(first)) if len(code) else np.empty(0)
        total[np.isinf(total)] = np.nan
        name = self._counters(_integers(agent)[owner[first]], counter[first])
        return rows, owner[first], name, total

    def _kernels(
        self, kernel: Array, items: Sequence[records.Dispatch]
    ) -> tuple[pa.DictionaryArray, dict[str, Array]]:
        """Return the names of kernels, and the registers that each uses."""
        distinct, code = np.unique(kernel, return_inverse=True)
        symbols = [self.symbol.get(int(k), records.Symbol(int(k))) for k in distinct]
        columns = ("arch_vgpr_count", "accum_vgpr_count", "sgpr_count")
        registers = {
            tables.COLUMNS[c]: _integers([getattr(s, c) for s in symbols])[code] for c in columns
        }
        names = [_name(symbol) for symbol in symbols]
        if self.renamed:
            pairs = zip(items, code.tolist(), strict=True)
            texts = [self.renamed.get(r.correlation_id.external, names[k]) for r, k in pairs]
            return interned(texts), registers
        self._note_unnamed(code, names, [int(k) in self.symbol for k in distinct])
        return dictionary(code, names), registers

    def _operations(
        self, form: tables.TableFormat, name: str, items: Sequence[records.Operation]
    ) -> TableRows:
        numbers = {
            "thread": _ids([r.thread_id for r in items]),
            "correlation": _integers([r.correlation_id.internal for r in items]),
            "start": _integers([r.start_timestamp for r in items]),
            "end": _integers([r.end_timestamp for r in items]),
        }
        texts = self._texts(name, items)
        raw: dict[str, pa.Array] = {}
        if form is tables.CALLS:
            raw = {
                key: TextBytes.of([bytes(getattr(r, key)) for r in items]).column()
                for key in ("args", "retval")
                if any(getattr(r, key) for r in items)
            }
        elif form is tables.COPIES:
            numbers["size"] = _integers([r.bytes for r in items])
            texts["source_agent"] = self._agents([r.src_agent_id.handle for r in items])
            texts["destination_agent"] = self._agents([r.dst_agent_id.handle for r in items])
        else:
            numbers["size"] = _integers([r.allocation_size for r in items])
            numbers["queue"] = _ids([r.queue_id.handle for r in items])
            numbers["flags"] = _integers([r.flags for r in items])
            texts["agent"] = self._agents([r.agent_id.handle for r in items])
            texts["address"] = interned([_address(r.address) for r in items])
        known = self._optional(numbers, items)
        return TableRows(form, len(items), numbers, known, texts, raw=raw, where=self.where)

    def _others(self, name: str, raw: msgspec.Raw) -> TableRows:
        """Build the table of records of an unknown kind, which keep their JSON text."""
        items = _OTHERS.decode(raw)
        texts = self._texts(name, items)
        start = [r.start_timestamp or r.timestamp for r in items]
        numbers = {
            "start": _integers(start),
            "end": _integers([r.end_timestamp or s for r, s in zip(items, start, strict=True)]),
        }
        text = TextBytes.of([bytes(r) for r in _RAW.decode(raw)]).column()
        return TableRows(
            tables.OTHERS, len(items), numbers, texts=texts, raw={"record": text}, where=self.where
        )

    def _optional(self, numbers: dict[str, Array], items: Sequence[Any]) -> dict[str, Array]:
        """Add the columns that only newer versions write to `numbers`; return where they are known."""
        known = {}
        if any(r.stream_id is not None for r in items):
            known["stream"] = np.array([r.stream_id is not None for r in items])
            numbers["stream"] = _ids([r.stream_id.handle if r.stream_id else 0 for r in items])
        for name in ("graph_exec_id", "graph_node_id"):
            value = [_handle(getattr(r, name, None)) for r in items]
            if any(value):
                known[name] = np.array([bool(v) for v in value])
                numbers[name] = _integers(value)
        return known

    def _texts(self, name: str, items: Sequence[Any]) -> dict[str, pa.DictionaryArray]:
        """Return the operations and domains of a list's records, as the file names them."""
        names = self.process.strings.buffer_records
        kind, operation = (_integers([getattr(r, k) for r in items]) for k in ("kind", "operation"))
        first, code = gather.distinct(kind, operation)
        domains, titles, is_named = [], [], []
        for k, o in zip(kind[first].tolist(), operation[first].tolist(), strict=True):
            named = names[k] if 0 <= k < len(names) else records.KindNames()
            domains.append(named.kind or name.upper())
            is_named.append(0 <= o < len(named.operations))
            titles.append(named.operations[o] if is_named[-1] else f"{name} {o}")
        titled = dictionary(code, titles)
        messages = {p.key: p.value for p in self.process.strings.marker_api}
        if name == MARKERS and messages:
            ids = [r.correlation_id.internal for r in items]
            pairs = zip(ids, titled.to_pylist(), strict=True)
            titled = interned([messages.get(i, title) for i, title in pairs])
        else:
            self._note_unnamed(code, titles, is_named)
        return {"domain": dictionary(code, domains), "name": titled}

    def _note_unnamed(self, code: Array, names: list[str], is_named: list[bool]) -> None:
        """Count records that are called by their number: a name for each code, and whether it is known."""
        unnamed = np.flatnonzero(~np.array(is_named, bool)[code])
        example = f"{self.where}: {names[code[unnamed[0]]]}" if unnamed.size else ""
        self.issues.add(NO_NAME, unnamed.size, example)

    def _agents(self, handles: list[int]) -> pa.DictionaryArray:
        distinct, code = np.unique(_integers(handles), return_inverse=True)
        described = {agent.id.handle for agent in self.process.agents}
        unknown = np.array([int(h) > 0 and int(h) not in described for h in distinct], bool)[code]
        example = f"{self.where}: agent {handles[int(np.argmax(unknown))]}" if unknown.any() else ""
        self.issues.add(NO_AGENT, np.count_nonzero(unknown), example)
        return dictionary(code, [self.agent.get(int(h), "") for h in distinct])

    def _counters(self, agent: Array, counter: Array) -> pa.DictionaryArray:
        """Return the names of counters, which each agent numbers separately."""
        by_agent = {(c.agent_id.handle, c.id.handle): c.name for c in self.process.counters}
        by_number = {c.id.handle: c.name for c in self.process.counters}
        first, code = gather.distinct(agent, counter)
        pairs = zip(agent[first].tolist(), counter[first].tolist(), strict=True)
        known = [(by_agent.get((a, c)) or by_number.get(c), c) for a, c in pairs]
        names = [name or f"counter {c}" for name, c in known]
        self._note_unnamed(code, names, [bool(name) for name, _ in known])
        return interned(dictionary(code, names).to_pylist())


def _integers(values: list[Any]) -> Array:
    """Return integers; -1 for those beyond 64 bits, among them all bits set, which means none."""
    try:
        return np.array(values, np.int64)
    except OverflowError:
        return np.array([v if abs(v) <= _INT64_MAX else -1 for v in values], np.int64)


def _ids(values: list[int]) -> Array:
    """Return integers as `_integers`, but -2 for impossible ids, which are counted later."""
    ids = _integers(values)
    unknown = ids == -1
    if unknown.any():
        ids[unknown] = [-2 if is_garbled(values[i]) else -1 for i in np.flatnonzero(unknown)]
    return ids


def _name(symbol: records.Symbol) -> str:
    names = (symbol.formatted_kernel_name, symbol.demangled_kernel_name, symbol.kernel_name)
    return next((n for n in names if n), f"kernel {symbol.kernel_id}")


def _handle(value: Any) -> int:
    """Return a number, which may stand in an object."""
    if isinstance(value, dict):
        value = value.get("handle", value.get("id", 0))
    return value if isinstance(value, int) else 0


def _address(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("handle", "")
    return f"0x{value:016x}" if isinstance(value, int) else str(value or "")

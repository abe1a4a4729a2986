"""Structures of rocprofv3's JSON; fields that some versions do not write have a default.

Format: rocprofiler-sdk's ``lib/output/generateJSON.cpp`` and ``cxx/serialization/save.hpp``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from chopper_interop.converters.rocm.agents import UNKNOWN, number_in, valid_id
from chopper_interop.converters.rocm.sniff import V3_JSON_KEY
from chopper_interop.io import json_truncated
from chopper_interop.issues import Fault, IssueLog


class Handle(msgspec.Struct, frozen=True, gc=False):
    """Number of an object."""

    handle: int = 0


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Three dimensions, in work-items."""

    x: int = 0
    y: int = 0
    z: int = 0


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """The API call that an operation follows from, and an id that the program set."""

    internal: int = 0
    external: Any = 0


_NO_CORRELATION, _NO_HANDLE, _NO_EXTENT = Correlation(), Handle(), Extent()


class DispatchInfo(msgspec.Struct, frozen=True, gc=False):
    """A dispatched kernel, its agent and queue; sizes in bytes."""

    agent_id: Handle = _NO_HANDLE
    queue_id: Handle = _NO_HANDLE
    kernel_id: int = 0
    dispatch_id: int = 0
    private_segment_size: int = 0
    group_segment_size: int = 0
    workgroup_size: Extent = _NO_EXTENT
    grid_size: Extent = _NO_EXTENT


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """A record of ``kernel_dispatch``, or the dispatch of counters. Times in ns since boot."""

    dispatch_info: DispatchInfo
    thread_id: int = 0
    correlation_id: Correlation = _NO_CORRELATION
    start_timestamp: int = 0
    end_timestamp: int = 0
    stream_id: Handle | None = None
    graph_exec_id: Any = None
    graph_node_id: Any = None


class CounterValue(msgspec.Struct, frozen=True, gc=False):
    """Value of one instance of a counter; the file does not say of which."""

    counter_id: Handle
    value: float | None = None


class CountedDispatch(msgspec.Struct, frozen=True, gc=False):
    """A record of ``counter_collection``: a dispatch with the values of all its counters."""

    dispatch_data: Dispatch
    records: list[CounterValue] = []
    thread_id: int = 0
    stream_id: Handle | None = None


class Operation(msgspec.Struct, frozen=True, gc=False):
    """Any other record: an API call, a copy, an allocation, a graph launch.

    `bytes` is of copies, `allocation_size` of allocations.
    """

    kind: int = 0
    operation: int = 0
    thread_id: int = 0
    correlation_id: Correlation = _NO_CORRELATION
    start_timestamp: int = 0
    end_timestamp: int = 0
    agent_id: Handle = _NO_HANDLE
    queue_id: Handle = _NO_HANDLE
    stream_id: Handle | None = None
    src_agent_id: Handle = _NO_HANDLE
    dst_agent_id: Handle = _NO_HANDLE
    bytes: int = 0
    allocation_size: int = 0
    address: Any = None
    flags: int = 0
    graph_exec_id: Any = None
    graph_node_id: Any = None
    args: msgspec.Raw = msgspec.Raw()
    retval: msgspec.Raw = msgspec.Raw()


class Other(msgspec.Struct, frozen=True, gc=False):
    """Fields that a record of an unknown kind may have."""

    kind: int = 0
    operation: int = 0
    start_timestamp: int = 0
    end_timestamp: int = 0
    timestamp: int = 0


class KindNames(msgspec.Struct, frozen=True):
    """A kind of records and its operations, by their numbers."""

    kind: str = ""
    operations: list[str] = []


class Pair(msgspec.Struct, frozen=True):
    """An entry of a table of texts."""

    key: int
    value: str = ""


class ExternalNames(msgspec.Struct, frozen=True):
    """Texts behind external correlation ids: names of ``--kernel-rename``."""

    external: list[Pair] = []


class Strings(msgspec.Struct, frozen=True):
    """Texts that records stand for by numbers."""

    buffer_records: list[KindNames] = []
    marker_api: list[Pair] = []
    correlation_id: ExternalNames = ExternalNames()


class AgentRecord(msgspec.Struct, frozen=True):
    """A processor of the node; type 2 is a GPU."""

    id: Handle
    type: int = 0
    name: str = ""
    product_name: str = ""
    node_id: int = -1
    logical_node_id: int = -1
    logical_node_type_id: int = -1
    num_xcc: int = 0
    cu_count: int = 0
    simd_count: int = 0
    max_engine_clk_fcompute: int = 0

    @property
    def node(self) -> int:
        """Number among all agents of the node, -1 if unknown."""
        return valid_id(self.node_id)

    @property
    def logical(self) -> int:
        """Number among the agents that the process may see; `node` if unknown."""
        number = valid_id(self.logical_node_id)
        return self.node if number == UNKNOWN else number


class CounterRecord(msgspec.Struct, frozen=True):
    """A counter that an agent has."""

    id: Handle
    name: str = ""
    agent_id: Handle = _NO_HANDLE


class Symbol(msgspec.Struct, frozen=True):
    """A kernel's code, with its names as ``-T``, ``-M`` and neither of them write them."""

    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    arch_vgpr_count: int = 0
    accum_vgpr_count: int = 0
    sgpr_count: int = 0


class Node(msgspec.Struct, frozen=True):
    """The computer."""

    hostname: str = ""


class Config(msgspec.Struct, frozen=True):
    """Names of the tool's output, with keys such as ``%rank%`` (raw) and with their values."""

    output_path: str = ""
    output_file: str = ""
    raw_output_path: str = ""
    raw_output_file: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """Facts of the process."""

    node: Node = Node()
    pid: int = -1

    @property
    def process(self) -> int:
        """The process id, -1 if unknown."""
        return valid_id(self.pid)

    config: Config = Config()


class Process(msgspec.Struct, frozen=True):
    """One process; lists of records stay undecoded until their type is known."""

    metadata: Metadata = Metadata()
    agents: list[AgentRecord] = []
    counters: list[CounterRecord] = []
    strings: Strings = Strings()
    kernel_symbols: list[Symbol] = []
    callback_records: dict[str, msgspec.Raw] = {}
    buffer_records: dict[str, msgspec.Raw] = {}


class File(msgspec.Struct, rename={"processes": V3_JSON_KEY}):
    """The root of a file."""

    processes: list[Process] | Process


_NOT_JSON = re.compile(rb"(?<=[:\[,\s])-?(?:nan|inf(?:inity)?)(?=[,\s\]}])", re.IGNORECASE)
"""NaN and infinity, which JSON lacks and the tool writes where a ratio has no value."""
CUT_SHORT = Fault.loss(
    "json-cut-short",
    "The file breaks off: complete records were kept, the one that was begun and "
    "all after it are lost.",
)
_DEPTH = 5
"""Number of brackets around a record: the file, its processes, a process, its buffers, a buffer."""
_ONE_PROCESS = re.compile(rb'[^"]*"[^"]*"\s*:\s*\{')


def processes_of(data: Any, issues: IssueLog) -> list[Process]:
    """Decode the processes of a file; of one that was cut short, with its complete records.

    Raises
    ------
    msgspec.MsgspecError
        It is no JSON, or its structure is not rocprofv3's.
    """
    try:
        processes = msgspec.json.decode(data, type=File).processes
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        processes = msgspec.json.decode(_mended(data, issues), type=File).processes
    return processes if isinstance(processes, list) else [processes]


def _mended(data: Any, issues: IssueLog) -> bytes:
    """Make a file valid JSON: close it if it breaks off, replace NaN by null and what is no UTF-8."""
    text = bytes(memoryview(data)).decode("utf-8", "replace").encode()
    text = _NOT_JSON.sub(b"null", text)
    depth = _DEPTH - bool(_ONE_PROCESS.match(text))
    closed = json_truncated.close_truncated(np.frombuffer(bytearray(text), np.uint8), depth)
    issues.add(CUT_SHORT, int(closed is not None))
    return text if closed is None else closed


def rank_in(config: Config) -> int:
    """Return the rank that the tool put in for ``%rank%`` in the names of its output; -1 if none."""
    for raw, resolved in (
        (config.raw_output_file, config.output_file),
        (config.raw_output_path, config.output_path),
    ):
        if "%rank%" not in raw:
            continue
        parts = re.split(r"(%[^%]+%)", raw)
        pattern = "".join(
            r"(\d+)" if p == "%rank%" else ".+?" if p.startswith("%") else re.escape(p)
            for p in parts
            if p
        )
        match = re.fullmatch(pattern, resolved)
        if match:
            return valid_id(number_in(match[1]))
    return -1

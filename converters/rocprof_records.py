"""rocprofv3's JSON as structures: what is read of it, with what each version may lack.

Format: rocprofiler-sdk's ``lib/output/generateJSON.cpp`` and ``cxx/serialization/save.hpp``.
Fields that ROCm 6.2 did not write have a default.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from chopper_interop.converters.rocprof_agents import UNKNOWN, id_of, number_in
from chopper_interop.files import jsoncut
from chopper_interop.issues import Fault, IssueLog, Severity

KEY = "rocprofiler-sdk-tool"
"""The only key of a file: a list with an object for each process."""


class Handle(msgspec.Struct, frozen=True, gc=False):
    """A number that stands for an object."""

    handle: int = 0


class Extent(msgspec.Struct, frozen=True, gc=False):
    """Three dimensions, in work-items."""

    x: int = 0
    y: int = 0
    z: int = 0


class Correlation(msgspec.Struct, frozen=True, gc=False):
    """Which API call an operation follows from."""

    internal: int = 0
    external: Any = 0


_NONE, _NOWHERE, _POINT = Correlation(), Handle(), Extent()


class DispatchInfo(msgspec.Struct, frozen=True, gc=False):
    """What was dispatched, and where; sizes in bytes."""

    agent_id: Handle = _NOWHERE
    queue_id: Handle = _NOWHERE
    kernel_id: int = 0
    dispatch_id: int = 0
    private_segment_size: int = 0
    group_segment_size: int = 0
    workgroup_size: Extent = _POINT
    grid_size: Extent = _POINT


class Dispatch(msgspec.Struct, frozen=True, gc=False):
    """A kernel: a record of ``kernel_dispatch``, or what was counted. Times in ns since boot."""

    dispatch_info: DispatchInfo
    thread_id: int = 0
    correlation_id: Correlation = _NONE
    start_timestamp: int = 0
    end_timestamp: int = 0
    stream_id: Handle | None = None
    graph_exec_id: Any = None
    graph_node_id: Any = None


class CounterValue(msgspec.Struct, frozen=True, gc=False):
    """What one instance of a counter counted; which instance is not told."""

    counter_id: Handle
    value: float | None = None


class Counted(msgspec.Struct, frozen=True, gc=False):
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
    correlation_id: Correlation = _NONE
    start_timestamp: int = 0
    end_timestamp: int = 0
    agent_id: Handle = _NOWHERE
    queue_id: Handle = _NOWHERE
    stream_id: Handle | None = None
    src_agent_id: Handle = _NOWHERE
    dst_agent_id: Handle = _NOWHERE
    bytes: int = 0
    allocation_size: int = 0
    address: Any = None
    flags: int = 0
    graph_exec_id: Any = None
    graph_node_id: Any = None
    args: msgspec.Raw = msgspec.Raw()
    retval: msgspec.Raw = msgspec.Raw()


class Other(msgspec.Struct, frozen=True, gc=False):
    """What all records of a kind that is not known here may have."""

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
        """Its number among all agents of the node, -1 if that is not told."""
        return id_of(self.node_id)

    @property
    def logical(self) -> int:
        """Its number among the agents that the process may see."""
        seen = id_of(self.logical_node_id)
        return self.node if seen == UNKNOWN else seen


class CounterRecord(msgspec.Struct, frozen=True):
    """A counter that an agent has."""

    id: Handle
    name: str = ""
    agent_id: Handle = _NOWHERE


class Symbol(msgspec.Struct, frozen=True):
    """A kernel's code; names as ``-T``, ``-M`` and neither make them."""

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
    """Where the tool was to write, and with which keys."""

    output_path: str = ""
    output_file: str = ""
    raw_output_path: str = ""
    raw_output_file: str = ""


class Metadata(msgspec.Struct, frozen=True):
    """What is known of the process."""

    node: Node = Node()
    pid: int = -1

    @property
    def process(self) -> int:
        """The process id, -1 if it is not told."""
        return id_of(self.pid)

    config: Config = Config()


class Process(msgspec.Struct, frozen=True):
    """One process; lists of records are decoded when it is known what they hold."""

    metadata: Metadata = Metadata()
    agents: list[AgentRecord] = []
    counters: list[CounterRecord] = []
    strings: Strings = Strings()
    kernel_symbols: list[Symbol] = []
    callback_records: dict[str, msgspec.Raw] = {}
    buffer_records: dict[str, msgspec.Raw] = {}


class File(msgspec.Struct, rename={"processes": KEY}):
    """A whole file."""

    processes: list[Process] | Process


_NOT_JSON = re.compile(rb"(?<=[:\[,\s])-?(?:nan|inf(?:inity)?)(?=[,\s\]}])", re.IGNORECASE)
"""Numbers that are none, which the tool writes where a ratio had no value."""


CUT_SHORT = Fault(
    "json-cut-short",
    Severity.LOSS,
    "The file breaks off: records before that were kept, the one that was begun and all behind it "
    "are gone.",
)
_DEPTH = 5
"""Brackets around a record: the file, its processes, a process, its buffers, one of them."""
_ONE_PROCESS = re.compile(rb'[^"]*"[^"]*"\s*:\s*\{')


def processes_of(data: Any, issues: IssueLog) -> list[Process]:
    """The processes of a file; of one that was cut short, with the records that are whole.

    Raises
    ------
    msgspec.MsgspecError
        It is no JSON, or not what rocprofv3 writes.
    """
    try:
        found = msgspec.json.decode(data, type=File).processes
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError):
        found = msgspec.json.decode(_mended(data, issues), type=File).processes
    return found if isinstance(found, list) else [found]


def _mended(data: Any, issues: IssueLog) -> bytes:
    """The text closed if it breaks off, numbers that are none as null, what is no UTF-8 replaced."""
    text = bytes(memoryview(data)).decode("utf-8", "replace").encode()
    text = _NOT_JSON.sub(b"null", text)
    depth = _DEPTH - bool(_ONE_PROCESS.match(text))
    whole = jsoncut.closed(np.frombuffer(text, np.uint8), depth)
    issues.add(CUT_SHORT, int(whole is not None))
    return text if whole is None else whole


def rank_in(config: Config) -> int:
    """The rank that the tool put in for ``%rank%`` in the names of its output; -1 if none."""
    for raw, made in (
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
        found = re.fullmatch(pattern, made)
        if found:
            return id_of(number_in(found[1]))
    return -1

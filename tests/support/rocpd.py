# ruff: noqa: S105, S608
"""rocpd databases as rocprofv3 writes them, of any size, in each version of the schema."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

GUID = "0198a2f4-9aaf-7ffb-9d6b-32b1fd6d3f1c"
PID, NODE = 4242, 1234567
SECRET = "hunter2-do-not-tell"
BOOT = 811_000_000_000_000
ID = "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, guid TEXT DEFAULT '{guid}' NOT NULL"
WHO = "nid INTEGER NOT NULL, pid INTEGER NOT NULL"
SPAN = "start BIGINT NOT NULL, end BIGINT NOT NULL"
MORE = "extdata JSONB DEFAULT '{{}}' NOT NULL"
XYZ = ", ".join(f"{w}_size_{a} INTEGER NOT NULL" for w in ("workgroup", "grid") for a in "xyz")
TABLES: dict[str, str] = {
    "metadata": "id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, tag TEXT NOT NULL, value TEXT NOT NULL",
    "string": f"{ID}, string TEXT NOT NULL UNIQUE ON CONFLICT ABORT",
    "info_node": f"{ID}, hash BIGINT NOT NULL UNIQUE, machine_id TEXT NOT NULL UNIQUE, "
    "system_name TEXT, hostname TEXT, release TEXT, version TEXT, hardware_name TEXT, domain_name TEXT",
    "info_process": f"{ID}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, init BIGINT, "
    f"fini BIGINT, start BIGINT, end BIGINT, command TEXT, environment JSONB DEFAULT '{{{{}}}}' NOT NULL, {MORE}",
    "info_thread": f"{ID}, nid INTEGER NOT NULL, ppid INTEGER, pid INTEGER NOT NULL, "
    f"tid INTEGER NOT NULL, name TEXT, start BIGINT, end BIGINT, {MORE}",
    "info_agent": f"{ID}, {WHO}, type TEXT CHECK (type IN ('CPU', 'GPU', 'NIC')), "
    "absolute_index INTEGER, logical_index INTEGER, type_index INTEGER, uuid INTEGER, name TEXT, "
    f"model_name TEXT, vendor_name TEXT, product_name TEXT, user_name TEXT, {MORE}",
    "info_queue": f"{ID}, {WHO}, name TEXT, {MORE}",
    "info_stream": f"{ID}, {WHO}, name TEXT, {MORE}",
    "info_pmc": f"{ID}, {WHO}, agent_id INTEGER, target_arch TEXT, event_code INT, "
    "instance_id INTEGER, name TEXT NOT NULL, symbol TEXT NOT NULL, description TEXT, "
    "long_description TEXT DEFAULT '', component TEXT, units TEXT DEFAULT '', value_type TEXT, "
    f"block TEXT, expression TEXT, is_constant INTEGER, is_derived INTEGER, {MORE}",
    "info_code_object": f"{ID}, {WHO}, agent_id INTEGER, uri TEXT, load_base BIGINT, "
    f"load_size BIGINT, load_delta BIGINT, storage_type TEXT, {MORE}",
    "info_kernel_symbol": f"{ID}, {WHO}, code_object_id INTEGER NOT NULL, kernel_name TEXT, "
    "display_name TEXT, kernel_object INTEGER, kernarg_segment_size INTEGER, "
    "kernarg_segment_alignment INTEGER, group_segment_size INTEGER, private_segment_size INTEGER, "
    f"sgpr_count INTEGER, arch_vgpr_count INTEGER, accum_vgpr_count INTEGER, {MORE}",
    "track": f"{ID}, nid INTEGER NOT NULL, pid INTEGER, tid INTEGER, name_id INTEGER, {MORE}",
    "event": f"{ID}, category_id INTEGER, stack_id INTEGER, parent_stack_id INTEGER, "
    "correlation_id INTEGER, call_stack JSONB DEFAULT '{{}}' NOT NULL, "
    f"line_info JSONB DEFAULT '{{{{}}}}' NOT NULL, {MORE}",
    "arg": f"{ID}, event_id INTEGER NOT NULL, position INTEGER NOT NULL, type TEXT NOT NULL, "
    f"name TEXT NOT NULL, value TEXT, {MORE}",
    "pmc_event": f"{ID}, event_id INTEGER, pmc_id INTEGER NOT NULL, value REAL DEFAULT 0.0, {MORE}",
    "region": f"{ID}, {WHO}, tid INTEGER NOT NULL, {SPAN}, name_id INTEGER NOT NULL, event_id INTEGER, {MORE}",
    "sample": f"{ID}, track_id INTEGER NOT NULL, timestamp BIGINT NOT NULL, event_id INTEGER, {MORE}",
    "kernel_dispatch": f"{ID}, {WHO}, tid INTEGER, agent_id INTEGER NOT NULL, "
    "kernel_id INTEGER NOT NULL, dispatch_id INTEGER NOT NULL, queue_id INTEGER NOT NULL, "
    f"stream_id INTEGER NOT NULL, {SPAN}, private_segment_size INTEGER, group_segment_size INTEGER, "
    f"{XYZ}, region_name_id INTEGER, event_id INTEGER, {MORE}",
    "memory_copy": f"{ID}, {WHO}, tid INTEGER, {SPAN}, name_id INTEGER NOT NULL, "
    "dst_agent_id INTEGER, dst_address INTEGER, src_agent_id INTEGER, src_address INTEGER, "
    "size INTEGER NOT NULL, queue_id INTEGER, stream_id INTEGER, region_name_id INTEGER, "
    f"event_id INTEGER, {MORE}",
    "memory_allocate": f"{ID}, {WHO}, tid INTEGER, agent_id INTEGER, type TEXT, level TEXT, {SPAN}, "
    "address INTEGER, size INTEGER NOT NULL, queue_id INTEGER, stream_id INTEGER, event_id INTEGER, "
    f"{MORE}",
}
"""Tables of schema 3, in the tool's order: name → columns."""
LATER: dict[str, dict[str, str]] = {
    "3.0.2": {
        "kernel_dispatch": "graph_exec_id INTEGER, graph_node_id INTEGER",
        "memory_copy": "graph_exec_id INTEGER, graph_node_id INTEGER",
        "graph_launch": f"{ID}, {WHO}, tid INTEGER, agent_id INTEGER, queue_id INTEGER, {SPAN}, "
        f"graph_exec_id INTEGER, kernel_dispatch_count INTEGER, event_id INTEGER, {MORE}",
    },
    "3.0.3": {
        "pmc_event": "sample_id INTEGER, xcc INTEGER, shader_engine INTEGER, instance INTEGER",
        "info_pmc": "spm_support INTEGER",
    },
    "3.0.4": {
        "hip_event": f"{ID}, {WHO}, tid INTEGER, agent_id INTEGER, queue_id INTEGER, "
        f"source_queue_id INTEGER, stream_id INTEGER, {SPAN}, event_handle INTEGER, "
        f"name_id INTEGER, event_id INTEGER, {MORE}"
    },
}
"""Version → what it brought: tables, and columns of those that were there."""
AGENTS = (
    (0, "CPU", "AMD EPYC", {}),
    (1, "CPU", "AMD EPYC", {}),
    (2, "GPU", "AMD Instinct MI300X", {"location_id": 0x0C00, "domain": 0}),
    (3, "GPU", "AMD Instinct MI300X", {"location_id": 0x2600, "domain": 0}),
    (4, "NIC", "Pollara", {}),
)
GPU_FACTS = {"num_xcc": 8, "cu_count": 304, "simd_count": 1216, "max_engine_clk_fcompute": 2100}


def version_tables(version: str) -> dict[str, str]:
    """Tables of a version: name → columns."""
    tables = dict(TABLES)
    for later, brought in LATER.items():
        if version >= later:
            for name, columns in brought.items():
                tables[name] = f"{tables[name]}, {columns}" if name in tables else columns
    return tables


def in_one_transaction(path: Path) -> sqlite3.Connection:
    """Open a database whose changes are written at once: a file that need not survive a crash."""
    base = sqlite3.connect(path)
    base.execute("PRAGMA synchronous = OFF")
    base.execute("BEGIN")
    return base


def insert(base: sqlite3.Connection, table: str, cells: Mapping[str, Any]) -> int:
    """Add a row to a table; its id."""
    names = ", ".join(f'"{name}"' for name in cells)
    marks = ", ".join("?" * len(cells))
    done = base.execute(f"INSERT INTO `{table}` ({names}) VALUES ({marks})", tuple(cells.values()))
    return int(done.lastrowid or 0)


class Base:
    """A database in the making.

    Parameters
    ----------
    path
        Where.
    version
        Of the schema.
    guid, pid, parent, node, host
        Of the process.
    environment
        Of the process.
    suffix
        Whether tables carry the guid in their names.
    views
        Whether there are views without it.
    config
        The tool's configuration.
    """

    def __init__(
        self,
        path: Path,
        version: str = "3",
        *,
        guid: str = GUID,
        pid: int = PID,
        parent: int = 1,
        node: int = NODE,
        host: str = "node7",
        environment: Mapping[str, str] | None = None,
        suffix: bool = True,
        views: bool = True,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.base = in_one_transaction(path)
        self.guid, self.pid, self.node = guid, pid, node
        self.suffix = "_" + guid.replace("-", "_") if suffix else ""
        self.tables = version_tables(version)
        for name, columns in self.tables.items():
            self.base.execute(
                f"CREATE TABLE IF NOT EXISTS `rocpd_{name}{self.suffix}` ({columns.format(guid=guid)})"
            )
            if self.suffix and views:
                self.base.execute(
                    f"CREATE VIEW IF NOT EXISTS `rocpd_{name}` AS SELECT * FROM `rocpd_{name}{self.suffix}`"
                )
        self.texts: dict[str, int] = {}
        self.add("metadata", tag="schema_version", value=version[0])
        self.add("info_node", id=node, hash=node, machine_id=f"m{node}", hostname=host)
        self.add(
            "info_process", id=pid, nid=node, ppid=parent, pid=pid, start=BOOT, end=BOOT + 10**9,
            command=f"python train.py --token {SECRET}",
            environment=json.dumps({"TOKEN": SECRET, **(environment or {})}),
            extdata=json.dumps({"config": dict(config or {})}),
        )  # fmt: skip

    def add(self, table: str, **cells: Any) -> int:
        """Add a row; its id."""
        if table != "metadata" and not self.suffix:
            cells.setdefault("guid", self.guid)
        if "nid INTEGER NOT NULL" in self.tables.get(table, "") and table != "info_process":
            cells = {"nid": self.node, "pid": self.pid, **cells}
        return insert(self.base, f"rocpd_{table}{self.suffix}", cells)

    def text(self, text: str) -> int:
        """Id of a text."""
        if text not in self.texts:
            self.texts[text] = self.add("string", string=text)
        return self.texts[text]

    def event(self, category: str, stack: int, **more: Any) -> int:
        """Add an event; its id."""
        return self.add(
            "event", category_id=self.text(category), stack_id=stack, correlation_id=0, **more
        )

    def agents(self) -> None:
        """Add two CPUs, two GPUs and a network card."""
        ordinal: dict[str, int] = {}
        for index, kind, product, more in AGENTS:
            facts = {**more, **(GPU_FACTS if kind == "GPU" else {})}
            if kind == "GPU":
                facts["uuid"] = {"bytes": {f"value{i}": index + i for i in range(16)}}
            place = ordinal[kind] = ordinal.get(kind, -1) + 1
            self.add(
                "info_agent", id=index, type=kind, absolute_index=index, logical_index=index,
                type_index=place, uuid=29857, name="gfx942" if kind == "GPU" else "",
                product_name=product, extdata=json.dumps(facts),
            )  # fmt: skip

    def kernel(self, number: int, start: int, end: int, stack: int, **more: Any) -> int:
        """Add a dispatch; the id of its event."""
        event = self.event("KERNEL_DISPATCH", stack, parent_stack_id=stack)
        cells = {
            "tid": self.pid,
            "agent_id": 2,
            "kernel_id": 1,
            "queue_id": 1,
            "stream_id": 0,
            "private_segment_size": 0,
            "group_segment_size": 1024,
            **{f"workgroup_size_{a}": n for a, n in zip("xyz", (256, 1, 1), strict=True)},
            **{f"grid_size_{a}": n for a, n in zip("xyz", (65536, 1, 1), strict=True)},
            "region_name_id": self.text(""),
        }
        self.add(
            "kernel_dispatch", id=number, dispatch_id=number, start=start, end=end, event_id=event,
            **{**cells, **more},
        )  # fmt: skip
        return event

    def call(
        self,
        category: str,
        name: str,
        stack: int,
        start: int,
        end: int,
        tid: int = PID,
        **more: Any,
    ) -> int:
        """Add a call, as a moment if it takes no time; the id of its event."""
        event = self.event(category, stack, **more)
        if start != end:
            self.add(
                "region", tid=tid, start=start, end=end, name_id=self.text(name), event_id=event
            )
            return event
        track = self.add("track", tid=tid, name_id=self.text(category))
        self.add("sample", track_id=track, timestamp=start, event_id=event)
        return event

    def symbol(self, number: int, name: str, plain: str = "") -> None:
        """Add a kernel symbol."""
        self.add(
            "info_kernel_symbol", id=number, code_object_id=1, kernel_name=plain or f"{name}.kd",
            display_name=name, sgpr_count=32, arch_vgpr_count=16, accum_vgpr_count=4,
        )  # fmt: skip

    def thread(self, number: int, tid: int | None = None) -> None:
        """Add a thread."""
        self.add("info_thread", id=number, tid=number if tid is None else tid)

    def close(self) -> None:
        """Write it."""
        self.base.commit()
        self.base.close()


def small(path: Path, version: str = "3.0.4", **options: Any) -> Path:
    """A database with something in each of its tables: two kernels, three calls, two markers, a
    copy, an allocation and its release, a scratch allocation, counters of one kernel."""
    base = Base(path, version, **options)
    base.agents()
    base.thread(base.pid)
    base.symbol(1, "void add<float>(float*)")
    base.symbol(2, "gemm_kernel")
    tid = base.pid
    t = BOOT
    one = base.call("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 7, t + 100, t + 200, tid)
    base.add("arg", event_id=one, position=0, type="void*", name="function_address", value="0x10")
    base.add("arg", event_id=one, position=1, type="dim3", name="numBlocks", value='{"x"}')
    base.call("HIP_RUNTIME_API_EXT", "hipLaunchKernel", 8, t + 300, t + 350, tid)
    base.call("HSA_CORE_API", "hsa_signal_wait", 9, t + 360, t + 390, tid)
    base.call(
        "MARKER_CORE_RANGE_API", "roctxThreadRangeA", 5, t + 50, t + 400, tid,
        extdata='{"message":"step 1"}',
    )  # fmt: skip
    base.call(
        "MARKER_CORE_RANGE_API", "roctxMarkA", 6, t + 60, t + 60, tid, extdata='{"message":"mark"}'
    )
    event = base.kernel(1, t + 250, t + 450, 7, tid=tid, region_name_id=base.text("step 1"))
    base.kernel(2, t + 460, t + 700, 8, tid=None, kernel_id=2, stream_id=1)
    for number, name in ((11, "SQ_WAVES"), (12, "GRBM_COUNT")):
        base.add("info_pmc", id=number, agent_id=2, target_arch="GPU", name=name, symbol=name)
    for xcc in range(8):
        base.add("pmc_event", event_id=event, pmc_id=11, value=100.0 + xcc)
        base.add("pmc_event", event_id=event, pmc_id=12, value=0.5)
    copied = base.event("MEMORY_COPY", 10)
    base.add(
        "memory_copy", tid=tid, start=t + 710, end=t + 720,
        name_id=base.text("MEMORY_COPY_DEVICE_TO_HOST"), src_agent_id=2, dst_agent_id=0, size=4096,
        stream_id=1, event_id=copied,
    )  # fmt: skip
    for kind, level, agent, size, at in (
        ("ALLOC", "REAL", 2, 1 << 20, 10),
        ("FREE", "REAL", None, 0, 800),
        ("ALLOC", "SCRATCH", 2, 1 << 12, 20),
    ):
        base.add(
            "memory_allocate", tid=tid, agent_id=agent, type=kind, level=level, start=t + at,
            end=t + at + 5, address=0x7F0000000000, size=size, queue_id=1,
            event_id=base.event("MEMORY_ALLOCATION", 20 + at),
            extdata='{"flags":"2"}' if level == "SCRATCH" else "{}",
        )  # fmt: skip
    if "graph_launch" in base.tables:
        base.add(
            "graph_launch", tid=tid, agent_id=3, queue_id=4, start=t + 900, end=t + 950,
            graph_exec_id=77, kernel_dispatch_count=5, event_id=base.event("HIP_GRAPH", 31),
        )  # fmt: skip
    if "hip_event" in base.tables:
        base.add(
            "hip_event", tid=tid, agent_id=2, queue_id=1, source_queue_id=4, stream_id=1,
            start=t + 960, end=t + 970, event_handle=0xABC, name_id=base.text("HIP_EVENT_WAIT"),
            event_id=base.event("HIP_EVENT", 32),
        )  # fmt: skip
    base.close()
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """Result of a query, by sqlite3 itself."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as base:
        return base.execute(sql).fetchall()


def large(path: Path, dispatches: int, version: str = "3.0.2") -> Path:
    """A database of many dispatches, each launched by a call."""
    base = Base(path, version)
    base.agents()
    base.thread(base.pid)
    for number in range(1, 41):
        base.symbol(number, f"void kernel_{number}<float, {number}>(float*, int)")
    category = [base.text("HIP_RUNTIME_API_EXT"), base.text("KERNEL_DISPATCH")]
    name, empty = base.text("hipLaunchKernel"), base.text("")
    base.base.executemany(
        f"INSERT INTO rocpd_event{base.suffix} (id, category_id, stack_id, parent_stack_id, "
        "correlation_id) VALUES (?, ?, ?, ?, 0)",
        _each(
            dispatches,
            lambda i: (
                (2 * i + 1, category[0], i + 1, i + 1),
                (2 * i + 2, category[1], i + 1, i + 1),
            ),
        ),
    )
    base.base.executemany(
        f"INSERT INTO rocpd_region{base.suffix} (nid, pid, tid, start, end, name_id, event_id) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        _each(
            dispatches,
            lambda i: ((NODE, PID, PID, BOOT + 5000 * i, BOOT + 5000 * i + 900, name, 2 * i + 1),),
        ),
    )
    columns = "nid, pid, tid, agent_id, kernel_id, dispatch_id, queue_id, stream_id, start, end, "
    columns += "private_segment_size, group_segment_size, "
    columns += ", ".join(f"{w}_size_{a}" for w in ("workgroup", "grid") for a in "xyz")
    columns += ", region_name_id, event_id"
    base.base.executemany(
        f"INSERT INTO rocpd_kernel_dispatch{base.suffix} ({columns}) VALUES ({', '.join('?' * 20)})",
        _each(
            dispatches,
            lambda i: (
                (
                    NODE, PID, PID, 2, i % 40 + 1, i + 1, i % 4 + 1, i % 3,
                    BOOT + 5000 * i + 1000, BOOT + 5000 * i + 4000, 0, 1024,
                    256, 1, 1, 65536, 1, 1, empty, 2 * i + 2,
                ),
            ),
        ),
    )  # fmt: skip
    base.close()
    return path


def _each(count: int, made: Any) -> Iterator[tuple[Any, ...]]:
    for i in range(count):
        yield from _tuples(made(i))


def _tuples(rows: Iterable[tuple[Any, ...]]) -> Iterable[tuple[Any, ...]]:
    return rows


def systems(path: Path) -> Path:
    """A database as rocprofiler-systems fills it: rows have ids of their own, GPU metrics are one
    event with as many times as counters, and there is nothing of the environment."""
    base = Base(path, "3")
    base.base.execute(
        f"UPDATE rocpd_info_process{base.suffix} SET environment = '{{}}', extdata = '{{}}'"
    )
    for row, (kind, node, place) in enumerate((("CPU", 0, 0), ("GPU", 4, 0), ("GPU", 5, 1)), 1):
        base.add(
            "info_agent", id=row, type=kind, absolute_index=node, logical_index=row - 1,
            type_index=place, uuid=node, name="gfx942", product_name="MI300X", extdata="",
        )  # fmt: skip
    base.thread(1, base.pid)
    base.symbol(1, "gemm_kernel")
    t = BOOT
    metrics = (
        ("device_busy", "Busy", "%"),
        ("device_power", "Pow", "w"),
        ("device_temp", "Temp", "°C"),
    )
    tracks = {
        name: base.add("track", name_id=base.text(name), extdata="{}") for name, _, _ in metrics
    }
    pmc = {
        (agent, name): base.add(
            "info_pmc", agent_id=agent, target_arch="GPU", event_code=0, instance_id=0, name=name,
            symbol=symbol, description=f"{name} of a GPU", units=unit, value_type="ABS",
        )
        for agent in (2, 3)
        for name, symbol, unit in metrics
    }  # fmt: skip
    for tick in range(3):
        for agent in (2, 3):
            event = base.event("amd_smi", 0, parent_stack_id=0)
            for place, (name, _, _) in enumerate(metrics):
                value = 100.0 * agent + 10 * tick + place
                base.add("pmc_event", event_id=event, pmc_id=pmc[agent, name], value=value)
                base.add("sample", track_id=tracks[name], timestamp=t + 1000 * tick, event_id=event)
    base.call("host", "main", 0, t, t + 5000, 1)
    base.call("rocm_hip_api", "hipLaunchKernel", 7, t + 100, t + 200, 1)
    base.kernel(1, t + 250, t + 450, 7, tid=1, agent_id=3)
    track = base.add("track", tid=1, name_id=base.text("thread 0"), extdata="{}")
    base.add("sample", track_id=track, timestamp=t + 10, event_id=base.event("timer_sampling", 0))
    base.close()
    return path

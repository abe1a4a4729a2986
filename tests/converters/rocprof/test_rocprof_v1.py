"""rocprof v1: what comes out is counted by the csv, json and sqlite3 libraries."""

import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from issue_counts import counts
from rocprof import counters_by_node, csv_rows, nodes
from seeds import rocprof_old as seeds
from shared_data import SHARED, each, real

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.annotate.counters.join_passes import plain_name as plain
from chopper_interop.converters.rocm.sniff import is_v1_statistics
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import BOOTTIME, ORDER

TWO_PASSES = each(sorted(p.name for p in (SHARED / "rocprof/v1_two_pass_mi250x").glob("*")))


def query(path: Path, sql: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as opened:
        return opened.execute(sql).fetchall()


def events(trace: ci.Trace) -> Counter[tuple[str, int, int]]:
    names = trace.names()
    starts = trace.array("ts") + trace.meta.origin_ns
    columns = (trace.array("name"), starts, trace.array("dur"))
    return Counter((names[n], t, d) for n, t, d in zip(*(c.tolist() for c in columns), strict=True))


def read(folder: Path, **files: bytes) -> ci.Trace:
    paths = []
    for name, data in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(data)
        paths.append(path)
    return registry.converter("rocprof-v1").reader(paths)


@pytest.mark.parametrize("name", TWO_PASSES)
def test_timing_pass_and_counter_pass(name: str) -> None:
    folder = real(f"rocprof/v1_two_pass_mi250x/{name}")
    timed, counted = csv_rows(folder / "results.csv"), csv_rows(folder / "data_movement.csv")
    trace = ci.read(folder)
    expected = Counter((r["KernelName"], int(r["BeginNs"]), int(r["DurationNs"])) for r in timed)
    assert events(trace) == expected
    columns = ("FETCH_SIZE", "WRITE_SIZE", "TCP_TOTAL_CACHE_ACCESSES_sum")
    values = counters_by_node(trace)
    for column in columns:
        given = {int(r["Index"]): float(r[column]) for r in counted}
        assert sum(v for (_, c), v in values.items() if c == column) == pytest.approx(
            sum(given.values())
        )
    assert trace.counters.num_rows == 5 * len(counted)
    assert trace.meta.clock == BOOTTIME
    assert {d.agent for d in trace.meta.devices} == {int(r["gpu-id"]) for r in timed}
    assert {d.ordinal for d in trace.meta.devices} == {-1}


@pytest.mark.parametrize("name", TWO_PASSES)
def test_the_kth_dispatch_of_a_kernel_gets_its_own_counters(name: str) -> None:
    folder = real(f"rocprof/v1_two_pass_mi250x/{name}")
    trace = ci.read(folder)
    names, code = trace.names(), trace.array("name").tolist()
    nodes_of: dict[str, list[int]] = {}
    for node, c in enumerate(code):
        nodes_of.setdefault(plain(names[c]), []).append(node)
    values = counters_by_node(trace)
    seen: Counter[str] = Counter()
    for row in csv_rows(folder / "data_movement.csv"):
        kernel = plain(row["KernelName"])
        node = nodes_of[kernel][seen[kernel]]
        seen[kernel] += 1
        assert values[node, "FETCH_SIZE"] == float(row["FETCH_SIZE"])


@pytest.mark.parametrize("ending", ["csv", "db"])
def test_table_and_database_hold_the_same(ending: str) -> None:
    folder = real("rocprof/v1_gfx942")
    trace = ci.read(folder / f"results.{ending}")
    expected = Counter(
        (r["KernelName"], int(r["BeginNs"]), int(r["EndNs"]) - int(r["BeginNs"]))
        for r in csv_rows(folder / "results.csv")
    )
    assert events(trace) == expected
    assert sum(expected.values()) == 56


def test_files_of_one_name_are_read_once() -> None:
    folder = real("rocprof/v1_gfx942")
    trace = ci.read(folder)
    assert trace.nodes.num_rows == 56
    assert counts(trace)["same-events-in-another-file"] == 1


@pytest.mark.parametrize("ending", ["json", "db"])
def test_every_table_of_an_old_recording(ending: str) -> None:
    folder = real("rocprof/v1_old_gfx906")
    path = folder / "results.db"
    trace = ci.read(folder / f"results.{ending}")
    expected: Counter[tuple[str, int, int]] = Counter()
    for table in ("HIP", "OPS", "COPY", "rocTX"):
        expected.update(
            (name.strip('"'), begin, end - begin)
            for name, begin, end in query(path, f"SELECT Name, BeginNs, EndNs FROM {table}")  # noqa: S608
        )
    assert events(trace) == expected
    kinds = Counter(trace.array("kind").tolist())
    fills = query(path, "SELECT count(*) FROM COPY WHERE Name = 'FillBuffer'")[0][0]
    assert kinds[Kind.RUNTIME] == query(path, "SELECT count(*) FROM HIP")[0][0] == 104
    assert kinds[Kind.KERNEL] == query(path, "SELECT count(*) FROM OPS")[0][0] == 14
    assert kinds[Kind.MEMSET] == fills
    assert kinds[Kind.MEMCPY] + fills == query(path, "SELECT count(*) FROM COPY")[0][0] == 30
    assert kinds[Kind.ANNOTATION] == 9
    assert [r.pid for r in trace.meta.ranks] == [216796]


def links(trace: ci.Trace) -> set[tuple[int, int]]:
    src, dst, kind = (trace.array(c, "edges") for c in ("src", "dst", "kind"))
    start = trace.array("ts") + trace.meta.origin_ns
    launch = kind == EdgeKind.LAUNCH
    pairs = zip(start[src[launch]].tolist(), start[dst[launch]].tolist(), strict=True)
    return set(pairs)


def test_launches_of_a_database_are_those_of_its_index() -> None:
    path = real("rocprof/v1_old_gfx906/results.db")
    expected = set()
    for table in ("OPS", "COPY"):
        sql = f'SELECT h.BeginNs, o.BeginNs FROM {table} o JOIN HIP h ON h."Index" = o."Index"'  # noqa: S608
        expected |= set(query(path, sql))
    assert len(expected) == 44
    assert links(ci.read(path)) == expected


def test_launches_by_flows_are_those_of_the_database() -> None:
    # hipMemcpyToSymbol contains hipMemcpy, and hipMemset of an odd size fills twice, with one flow
    folder = real("rocprof/v1_old_gfx906")
    actual = links(ci.read(folder / "results.json"))
    assert actual == links(ci.read(folder / "results.db"))
    assert len(actual) == 44


def test_copies_have_the_bytes_that_their_calls_were_given() -> None:
    path = real("rocprof/v1_old_gfx906/results.db")
    sql = (
        'SELECT o.BeginNs, h.args FROM COPY o JOIN HIP h ON h."Index" = o."Index" '
        "WHERE h.args LIKE '%sizeBytes(%'"
    )
    expected = {at: int(a.split("sizeBytes(")[1].split(")")[0]) for at, a in query(path, sql)}
    trace = ci.read(path)
    start = (trace.array("ts") + trace.meta.origin_ns).tolist()
    actual = {start[i]: n for i, n in enumerate(trace.nodes["bytes"].to_pylist()) if n is not None}
    assert actual == expected
    assert expected


@pytest.mark.parametrize(
    "path", each(sorted(p for p in SHARED.glob("rocprof/v1_*/**/*") if p.is_file())), ids=str
)
def test_every_real_file_is_read_or_refused_for_a_reason(path: Path) -> None:
    actual = registry.sniffed(inputs.head(path))
    assert len(actual) == 1
    assert actual[0].name in ("rocprof-v1", "rocprof-v1-stats")
    refused = "stats" in path.name or path.name == "data_movement.csv"
    if refused or path.stat().st_size == len(seeds.EMPTY_JSON):
        with pytest.raises(ci.errors.ChopperError, match=r"statistics|without times|no events"):
            ci.read(path)
    else:
        assert ci.read(path).nodes.num_rows


def test_a_lone_pass_without_times_has_only_an_order(tmp_path: Path) -> None:
    trace = read(tmp_path, pmc__csv=seeds.V1_COUNTERS.encode())
    assert trace.meta.clock == ORDER
    assert trace.meta.run == "pmc"
    assert trace.array("dur").tolist() == [0] * 6
    values = counters_by_node(trace)
    assert [values[i, "SQ_WAVES"] for i in range(6)] == [16, 17, 18, 19, 20, 21]
    assert values[3, "TCC_MISS[0]"] == 3
    with pytest.raises(ReadError, match="give the run that was timed"):
        ci.read(tmp_path)


def test_names_differ_by_tool_and_are_joined(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(seeds.V1)
    (tmp_path / "b.csv").write_text(seeds.V1_COUNTERS)
    trace = ci.read(tmp_path)
    assert counters_by_node(trace)[1, "SQ_WAVES"] == 17


def test_facts_of_a_dispatch(tmp_path: Path) -> None:
    trace = read(tmp_path, r__csv=seeds.V1.encode())
    assert trace.args(0) == {
        "agent": 8,
        "queue": 0,
        "thread": 78,
        "dispatch_id": 0,
        "grid_size": 1024,
        "workgroup_size": 64,
        "vgpr": 16,
        "accum_vgpr": 0,
        "sgpr": 32,
        "queue_index": 0,
        "wave_size": 64,
        "lds_bytes": 0,
        "scratch_bytes": 0,
        "kernel_object": "0x7f8e",
        "dispatch_ns": seeds.BOOT - 50,
        "complete_ns": seeds.BOOT + 750,
    }
    (lane,) = trace.lanes.to_pylist()
    assert (lane["device"], lane["kind"], lane["number"]) == (8, LaneKind.QUEUE, 0)
    assert trace.meta.ranks[0].pid == 77


def test_old_names_of_registers(tmp_path: Path) -> None:
    text = seeds.V1.replace(
        '"arch_vgpr","accum_vgpr","sgpr","wave_size"', '"vgpr","x","sgpr","fbar"'
    )
    args = read(tmp_path, r__csv=text.encode()).args(0)
    assert (args["vgpr"], args["sgpr"], args["fbar"]) == (16, 32, 64)


def test_agent_0_is_a_processor_so_that_numbers_from_0_count_gpus(tmp_path: Path) -> None:
    text = seeds.V1.replace(",8,0,", ",0,0,")
    (device,) = read(tmp_path, r__csv=text.encode()).meta.devices
    assert (device.device, device.ordinal, device.agent) == (0, 0, -1)


def test_a_database_of_today(tmp_path: Path) -> None:
    trace = read(tmp_path, r__db=seeds.DATABASE)
    actual = [(r["kind"], r["name"]) for r in nodes(trace)]
    assert actual == [
        ("RUNTIME", "hipLaunchKernel"),
        ("KERNEL", "k(int)"),
        ("RUNTIME", "hipMemcpy"),
        ("MEMCPY", "CopyHostToDevice"),
        ("GPU_SYNC", "<barrier packet>"),
    ]
    assert len(links(trace)) == 2
    assert trace.nodes["bytes"].to_pylist()[3] == 64
    assert [r.pid for r in trace.meta.ranks] == [77]


def test_a_kernel_in_two_tables_is_one_node_with_counters_and_launch(tmp_path: Path) -> None:
    tables = (seeds.KERN_TABLE, seeds.HIP_TABLE, seeds.OPS_TABLE, seeds.COPY_TABLE)
    trace = read(tmp_path, r__db=seeds.database(*tables))
    assert sum(r["kind"] == "KERNEL" for r in nodes(trace)) == 1
    assert counters_by_node(trace) == {(1, "SQ_WAVES"): 16.0}
    assert (seeds.BOOT + 100, seeds.BOOT + 115) in links(trace)


def test_ids_of_hsa_are_not_those_of_hip(tmp_path: Path) -> None:
    hsa = (
        "HSA",
        seeds.HIP_TABLE[1],
        [(seeds.BOOT + 90, seeds.BOOT + 95, 77, 78, "hsa_signal_load", "()", 5, "", 3, 78, 5)],
    )
    trace = read(tmp_path, r__db=seeds.database(seeds.HIP_TABLE, seeds.OPS_TABLE, hsa))
    assert links(trace) == {(seeds.BOOT + 100, seeds.BOOT + 115)}


@pytest.mark.parametrize("call_between", ["hipGetLastError", "hipMemcpy"])
def test_a_copy_before_its_call_is_of_that_call(tmp_path: Path, call_between: str) -> None:
    # A flow begins in the middle of its call, here 200 us, so that the one at 300 us, in the first
    # call as well, is of a later one that it precedes; each call has one flow.
    boot = seeds.BOOT // 1_000_000 * 1_000_000

    def event(pid: int, tid: int, name: str, begin_us: int, end_us: int) -> dict[str, Any]:
        begin, end = (boot + us * 1000 for us in (begin_us, end_us))
        args = {"BeginNs": str(begin), "EndNs": str(end), "Name": name, "proc-id": "9"}
        at = {"ts": str(begin // 1000), "dur": str(end_us - begin_us)}
        return {"ph": "X", **at, "pid": str(pid), "tid": str(tid), "name": name, "args": args}

    def flow(number: int, begin_us: int, end_us: int) -> list[dict[str, Any]]:
        ends = (("s", 2, 5, begin_us), ("t", 1, 0, end_us))
        return [
            {
                "ts": boot // 1000 + us,
                "ph": ph,
                "cat": "DataFlow",
                "id": number,
                "pid": pid,
                "tid": tid,
            }
            for ph, pid, tid, us in ends
        ]

    label = {"args": {"name": "0 CPU HIP API"}, "ph": "M", "pid": 2, "name": "process_name"}
    content = [
        {},
        {**label, "sort_index": 0},
        event(2, 5, "hipMemcpy", 0, 400),
        event(2, 5, call_between, 420, 421),
        event(2, 5, "hipMemcpy", 430, 600),
        event(1, 0, "CopyHostToDevice", 250, 280),
        event(1, 0, "CopyHostToDevice", 300, 590),
        *flow(0, 200, 250),
        *flow(1, 300, 300),
        *(flow(2, 420, 425) if call_between == "hipMemcpy" else []),
    ]
    if call_between == "hipMemcpy":
        content.append(event(1, 0, "CopyHostToDevice", 425, 426))
    data = json.dumps({"traceEvents": content}, separators=(",", ":")).encode()
    actual = links(read(tmp_path, a__json=data))
    expected = {(0, 250), (430, 300), (420, 425)}
    assert {((a - boot) // 1000, (b - boot) // 1000) for a, b in actual} == (
        expected if call_between == "hipMemcpy" else expected - {(420, 425)}
    )


def test_json_that_is_valid_is_read_as_one_that_is_not(tmp_path: Path) -> None:
    json.loads(seeds.V1_JSON)
    one = read(tmp_path, a__json=seeds.V1_JSON.encode())
    broken = seeds.V1_JSON[: seeds.V1_JSON.index("],")].encode()
    other = read(tmp_path, b__json=broken)
    assert events(one) == events(other)
    assert links(one) == links(other) == {(seeds.BOOT + 100_000, seeds.BOOT + 120_001)}


@pytest.mark.parametrize("name", ["aten::mm", "other"])
def test_json_of_v1_is_of_no_other_format_whatever_ranges_are_named(name: str) -> None:
    label = '{"args":{"name":"0 Markers and Ranges"},"ph":"M","pid":0,"name":"process_name","sort_index":0}'
    mark = f'{{"ts":"1","dur":"2","ph":"X","pid":"0","tid":"3","name":"{name}","args":{{}}}}'
    head = f'{{"traceEvents":[{{}},{label},{mark}'.encode()
    assert [c.name for c in registry.sniffed(head)] == ["rocprof-v1"]
    other = head.replace(b'"sort_index":0', b'"args":{}')
    assert [c.name for c in registry.sniffed(other)] == [
        "kineto" if "aten" in name else "chrome-trace"
    ]


def test_statistics_are_those_of_v1_only() -> None:
    assert is_v1_statistics(seeds.STATS.encode())
    of_v3 = seeds.STATS.replace('"Percentage"', '"Percentage","MinNs","MaxNs","StdDev"')
    assert not is_v1_statistics(of_v3.encode())


def test_raw_text_is_one_source(tmp_path: Path) -> None:
    (tmp_path / "hip_api_trace.txt").write_text(seeds.HIP_TEXT)
    (tmp_path / "hcc_ops_trace.txt").write_text(seeds.OPS_TEXT)
    (tmp_path / "roctx_trace.txt").write_text(seeds.ROCTX_TEXT)
    (tmp_path / "begin_ts_file.txt").write_text(f"{seeds.BOOT}\n")
    trace = ci.read(tmp_path)
    (source,) = trace.meta.sources
    assert (source.events, source.nodes) == (10, 8)
    actual = {r["name"]: r for r in nodes(trace)}
    assert actual["k(int)"]["kind"] == "KERNEL"
    assert actual['outer "quoted"']["dur"] == 80
    assert actual["inner"]["dur"] == 65
    assert actual["mark"]["kind"] == "INSTANT"
    assert actual["hcCommandMarker"]["kind"] == "GPU_SYNC"
    assert actual["CopyHostToDevice"]["bytes"] == 128
    assert links(trace) == {
        (seeds.BOOT + 100, seeds.BOOT + 115),
        (seeds.BOOT + 120, seeds.BOOT + 122),
    }

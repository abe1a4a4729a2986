# ruff: noqa: S608
"""rocpd databases: every row against sqlite3, joins by stack_id, and nothing of the environment."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import rocpd
from issue_counts import counts, uncounted_events
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.rocpd import sniff
from chopper_interop.converters.rocpd.reader import read
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.io.inputs import head
from chopper_interop.issues import Severity
from chopper_interop.schemas.kinds import Kind
from chopper_interop.testing import check_converter

VERSIONS = ("3", "3.0.2", "3.0.3", "3.0.4")
T = rocpd.BOOT


def node(trace, name):
    (row,) = np.flatnonzero(trace.to_pandas()["name"] == name)
    return int(row)


@pytest.fixture
def small(tmp_path):
    return rocpd.small(tmp_path / "4242_results.db")


def test_times_with_a_fraction_are_rounded_in_every_table(tmp_path):
    path = rocpd.small(tmp_path / "x.db", suffix=False)
    whole, cells = read([path]), 0
    with closing(sqlite3.connect(path)) as base, base:
        tables = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            columns = {row[1] for row in base.execute(f"PRAGMA table_info({table})")}
            for column in columns & {"start", "end", "timestamp"}:
                cells += base.execute(f'UPDATE {table} SET "{column}" = "{column}" + 0.25').rowcount
    trace = read([path])
    for column in ("ts", "dur"):
        assert trace.array(column).tolist() == whole.array(column).tolist()
    codes = counts(trace)
    assert 0 < codes.pop("time-with-fraction") <= cells
    assert codes == counts(whole)


@pytest.mark.parametrize(
    ("version", "suffix"),
    slow_from(
        [
            (VERSIONS[-1], False),
            *((v, True) for v in VERSIONS),
            *((v, False) for v in VERSIONS[:-1]),
        ],
        2,
    ),
)
def test_every_row_of_every_version_is_there(tmp_path, version, suffix):
    path = rocpd.small(tmp_path / "x.db", version, suffix=suffix)
    trace = read([path])
    names = ["kernel_dispatch", "region", "sample", "memory_copy", "memory_allocate"]
    names += ["graph_launch"] * (version >= "3.0.2") + ["hip_event"] * (version >= "3.0.4")
    numbers = [rocpd.rows(path, f"SELECT count(*) FROM rocpd_{n}")[0][0] for n in names]
    assert trace.nodes.num_rows == sum(numbers)
    assert not uncounted_events(trace)
    assert sniff(head(path))
    check_converter(registry.converters()["rocpd"], path)


def test_times_are_those_of_the_rows(small):
    trace = read([small])
    origin = trace.meta.origin_ns
    actual = sorted(
        zip((trace.array("ts") + origin).tolist(), trace.array("dur").tolist(), strict=True)
    )
    tables = (
        "kernel_dispatch", "region", "memory_copy", "memory_allocate", "graph_launch", "hip_event",
    )  # fmt: skip
    expected = [
        r for t in tables for r in rocpd.rows(small, f"SELECT start, end - start FROM rocpd_{t}")
    ]
    expected += rocpd.rows(small, "SELECT timestamp, 0 FROM rocpd_sample")
    assert actual == sorted(expected)


def test_calls_launch_what_has_their_stack_id(small):
    trace = read([small])
    names = trace.to_pandas()["name"]
    pairs = [
        (names[a], names[b])
        for a, b in zip(trace.array("src", "edges"), trace.array("dst", "edges"), strict=True)
    ]
    assert pairs == [
        ("hipLaunchKernel", "void add<float>(float*)"),
        ("hipLaunchKernel", "gemm_kernel"),
    ]


def test_a_dispatch_without_a_thread_stays_and_says_all_else(small):
    trace = read([small])
    assert trace.args(node(trace, "gemm_kernel")) == {
        "agent": "Agent 2",
        "queue": 1,
        "stream": 1,
        "dispatch_id": 2,
        "kernel_id": 2,
        "grid": [65536, 1, 1],
        "workgroup": [256, 1, 1],
        "vgpr": 16,
        "accum_vgpr": 4,
        "sgpr": 32,
        "group_segment_bytes": 1024,
        "scratch_bytes": 0,
    }


def test_markers_are_called_by_their_messages(small):
    frame = read([small]).to_pandas().set_index("name")
    assert frame.loc["step 1", "kind"] == "annotation"
    assert frame.loc["mark", "kind"] == "instant"
    assert frame.loc["mark", "dur"] == 0


def test_arguments_of_calls(small):
    trace = read([small])
    (row,) = np.flatnonzero(trace.array("correlation") == 7)[:1]
    assert trace.args(int(row))["args"] == {"function_address": "0x10", "numBlocks": '{"x"}'}


def test_counters_are_sums_over_instances(small):
    trace = read([small])
    frame = trace.to_pandas("counters").set_index("name")["value"]
    expected = rocpd.rows(
        small,
        "SELECT name, sum(value) FROM rocpd_pmc_event e JOIN rocpd_info_pmc p ON p.id = pmc_id "
        "GROUP BY event_id, name",
    )
    assert frame.to_dict() == dict(expected)
    assert counts(trace)["counter-row"] == 16
    assert trace.meta.run


def test_streamed_counters_are_left_out_and_counted(tmp_path):
    path = rocpd.small(tmp_path / "x.db", "3.0.3")
    with sqlite3.connect(path) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        base.execute(
            f"INSERT INTO rocpd_sample{suffix} (id, track_id, timestamp) VALUES (900, 1, ?)",
            (T + 5,),
        )
        base.execute(
            f"INSERT INTO rocpd_pmc_event{suffix} (event_id, pmc_id, value, sample_id) "
            "SELECT event_id, 11, 1e9, 900 FROM rocpd_pmc_event LIMIT 4"
        )
    trace = read([path])
    assert trace.to_pandas("counters").set_index("name")["value"].to_dict()["SQ_WAVES"] == 828
    assert counts(trace)["sample-not-read"] == 5
    assert not uncounted_events(trace)


def test_counters_sampled_in_time_are_series(tmp_path):
    base = rocpd.Base(tmp_path / "x.db")
    base.agents()
    base.symbol(1, "kernel")
    base.kernel(1, T, T + 10, 1)
    base.add("info_pmc", id=5, agent_id=3, name="Power", symbol="Power", units="W")
    track = base.add("track", name_id=base.text("GPU power"))
    for at, value in ((100, 300.5), (200, 310.0)):
        event = base.event("amd_smi_power", 0)
        base.add("sample", track_id=track, timestamp=T + at, event_id=event)
        base.add("pmc_event", event_id=event, pmc_id=5, value=value)
    base.close()
    trace = read([tmp_path / "x.db"])
    assert trace.to_pandas("series").iloc[0].to_dict() == {
        "rank": 0, "device": 3, "name": "Power", "unit": "W", "source": "rocpd", "uncertainty_ns": 0,
    }  # fmt: skip
    samples = trace.to_pandas("samples")
    assert samples["ts"].tolist() == [100, 200]
    assert samples["value"].tolist() == [300.5, 310.0]
    assert trace.nodes.num_rows == 1
    assert not uncounted_events(trace)


def test_threads_go_by_the_numbers_of_the_system(tmp_path):
    base = rocpd.Base(tmp_path / "x.db")
    base.thread(1, tid=777)
    base.call("rocm_hip_api", "hipMalloc", 1, T, T + 5, tid=1)
    base.close()
    trace = read([tmp_path / "x.db"])
    assert trace.to_pandas("lanes")["number"].tolist() == [777]
    assert trace.array("kind").tolist() == [Kind.RUNTIME]


@pytest.mark.parametrize("renamed", [True, False])
def test_kernels_are_renamed_only_where_the_user_asked_for_it(tmp_path, renamed):
    path = rocpd.small(tmp_path / "x.db", config={"kernel_rename": renamed})
    trace = read([path])
    (row,) = np.flatnonzero(
        (trace.array("kind") == Kind.KERNEL) & (trace.array("correlation") == 7)
    )
    assert trace.names()[trace.array("name")[row]] == (
        "step 1" if renamed else "void add<float>(float*)"
    )
    assert trace.args(int(row)).get("region") == (None if renamed else "step 1")


def test_allocations_and_scratch(small):
    trace = read([small])
    frame = trace.to_pandas().set_index("name")
    assert frame.loc["MEMORY_ALLOCATION_ALLOCATE", "bytes"] == 1 << 20
    assert frame.loc["SCRATCH_MEMORY_ALLOC", "bytes"] == 1 << 12
    assert trace.args(node(trace, "SCRATCH_MEMORY_ALLOC"))["flags"] == 2
    lanes = trace.to_pandas("lanes")
    assert lanes["device"][frame.loc["MEMORY_ALLOCATION_FREE", "lane"]] == 2


def test_devices_have_all_their_names(small):
    one, two = read([small]).meta.devices
    assert (one.host, one.device, one.agent, one.ordinal) == ("node7", 2, 2, 0)
    assert (one.pci, two.pci) == ("0000:0c:00.0", "0000:26:00.0")
    assert re.fullmatch(r"GPU-[0-9a-f]{16}", one.uuid)
    assert two.ordinal == 1


def merged(path, *, one_set):
    """A database of two nodes with a process of one number on each."""
    for node_id, host in ((1, "a"), (2, "b")):
        guid = f"0198a2f4-0000-0000-0000-00000000000{node_id}"
        base = rocpd.Base(
            path, guid=guid, node=node_id, host=host, pid=10 if not one_set else 10 * node_id,
            suffix=not one_set, views=False, environment={"RANK": str(2 - node_id), "WORLD_SIZE": "2"},
        )  # fmt: skip
        shift = 100 * node_id if one_set else 0
        base.add("info_agent", id=shift + 4, type="GPU", absolute_index=4, type_index=0)
        base.symbol(shift + 1, f"kernel of {host}")
        base.texts = dict(base.base.execute(f"SELECT string, id FROM rocpd_string{base.suffix}"))
        base.kernel(shift + 7, T, T + 10 * node_id, 5, agent_id=shift + 4, kernel_id=shift + 1)
        base.close()
    return path


def test_several_sets_of_tables_are_several_processes(tmp_path):
    trace = read([merged(tmp_path / "x.db", one_set=False)])
    assert [(r.rank, r.host, r.pid, r.known_by) for r in trace.meta.ranks] == [
        (0, "b", 10, "header"),
        (1, "a", 10, "header"),
    ]
    assert trace.to_pandas()["name"].tolist() == ["kernel of b", "kernel of a"]
    with pytest.raises(UsageError):
        read([tmp_path / "x.db"], rank=3)


def test_guids_that_share_tables_are_distinguished(tmp_path):
    path = merged(tmp_path / "x.db", one_set=True)
    trace = read([path])
    # texts are of the guid that wrote them first, so that the second has no category
    assert [r.host for r in trace.meta.ranks] == ["b", "a"]
    assert sorted(trace.to_pandas()["name"]) == ["kernel of a", "kernel of b"]


def test_databases_of_several_processes_are_one_job(tmp_path):
    for rank in range(2):
        rocpd.small(
            tmp_path / f"{100 + rank}_results.db",
            guid=f"0198a2f4-0000-0000-0000-00000000000{rank}",
            pid=100 + rank,
            environment={"RANK": str(1 - rank), "WORLD_SIZE": "2"},
        )
    trace = ci.read(tmp_path)
    assert [(r.rank, r.pid) for r in trace.meta.ranks] == [(0, 101), (1, 100)]


def test_a_launcher_of_one_rank_determines_no_rank(tmp_path):
    path = rocpd.small(tmp_path / "x.db", environment={"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert read([path]).meta.ranks[0].known_by == "assumed"


@pytest.mark.parametrize("out", ["x.pftrace", "x.parquet", "et/x.et"])
def test_nothing_of_the_environment_or_the_command_gets_out(small, tmp_path, out):
    trace = ci.read(small)
    assert rocpd.SECRET.encode() in small.read_bytes()
    target = tmp_path / "out" / out
    target.parent.mkdir(parents=True)
    ci.write(trace, target)
    assert rocpd.SECRET not in repr(trace.meta)
    files = [p for p in (tmp_path / "out").rglob("*") if p.is_file()]
    assert files
    assert not [p for p in files if rocpd.SECRET.encode() in p.read_bytes()]
    buffers = [
        b
        for t in (trace.nodes, trace.lanes)
        for c in t.columns
        for k in c.chunks
        for b in k.buffers()
    ]
    assert not any(rocpd.SECRET.encode() in bytes(b) for b in buffers if b)
    assert not any(rocpd.SECRET.encode() in bytes(b) for b in trace.text.buffers)


def test_unknown_tables_are_counted(tmp_path):
    path = rocpd.small(tmp_path / "x.db")
    with sqlite3.connect(path) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        base.execute(f"CREATE TABLE rocpd_new_thing{suffix} (id INTEGER, start BIGINT, end BIGINT)")
        base.executemany(f"INSERT INTO rocpd_new_thing{suffix} VALUES (?, 1, 2)", [(1,), (2,)])
    trace = read([path])
    assert counts(trace)["table-not-read"] == 2
    assert not uncounted_events(trace)


def test_columns_are_probed_and_never_trusted(tmp_path):
    path = rocpd.small(tmp_path / "x.db", "3")
    with sqlite3.connect(path) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        for view in [
            r[0] for r in base.execute("SELECT name FROM sqlite_master WHERE type='view'")
        ]:
            base.execute(f"DROP VIEW {view}")
        base.execute(f"DROP TABLE rocpd_event{suffix}")
        base.execute(f"ALTER TABLE rocpd_kernel_dispatch{suffix} DROP COLUMN stream_id")
        base.execute(f"DROP TABLE rocpd_info_kernel_symbol{suffix}")
    trace = read([path])
    assert trace.nodes.num_rows == 11
    assert not trace.edges.num_rows
    assert {"kernel 1", "kernel 2"} <= set(trace.to_pandas()["name"])
    assert not uncounted_events(trace)


def test_numbers_that_cannot_be_are_counted(tmp_path):
    path = rocpd.small(tmp_path / "x.db")
    with sqlite3.connect(path) as base:
        suffix = "_" + rocpd.GUID.replace("-", "_")
        base.execute(f"UPDATE rocpd_kernel_dispatch{suffix} SET queue_id = -5 WHERE id = 1")
        base.execute(f"UPDATE rocpd_kernel_dispatch{suffix} SET end = start - 3 WHERE id = 2")
        base.execute(f"UPDATE rocpd_memory_copy{suffix} SET start = 0, end = 0")
        base.execute(
            f"UPDATE rocpd_region{suffix} SET start = 'soon' WHERE name_id IN (SELECT id FROM rocpd_string WHERE string LIKE 'hsa%')"
        )
    trace = read([path])
    actual = counts(trace)
    assert actual["number-out-of-range"] == 1
    assert actual["duration-negative"] == 1
    assert actual["event-without-time"] == 2
    assert actual["cells-of-wrong-type"] == 1
    assert not uncounted_events(trace)


def test_a_database_of_other_tables_is_refused_in_a_line(tmp_path):
    path = tmp_path / "x.db"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE KERN (x)")
    assert not sniff(head(path))
    with pytest.raises(ReadError, match="none of the tables"):
        read([path])


def test_an_empty_database_has_no_events(tmp_path):
    rocpd.Base(tmp_path / "x.db").close()
    trace = read([tmp_path / "x.db"])
    assert trace.nodes.num_rows == 0
    assert trace.meta.sources[0].events == 0


@pytest.mark.parametrize("part", [0.7, 0.9])
def test_a_database_that_ends_early_gives_what_it_holds(tmp_path, part):
    complete = rocpd.large(tmp_path / "whole.db", 5000)
    cut = tmp_path / "cut.db"
    cut.write_bytes(complete.read_bytes()[: int(complete.stat().st_size * part)])
    trace = read([cut])
    spans = set(rocpd.rows(complete, "SELECT start, end FROM rocpd_region"))
    spans |= set(rocpd.rows(complete, "SELECT start, end FROM rocpd_kernel_dispatch"))
    start = trace.array("ts") + trace.meta.origin_ns
    actual = set(zip(start.tolist(), (start + trace.array("dur")).tolist(), strict=True))
    assert actual
    assert actual < spans
    assert len(actual) == trace.nodes.num_rows
    assert counts(trace)["database-damaged"] >= 1
    assert not uncounted_events(trace)


def test_many_dispatches_are_read_by_columns(tmp_path):
    path = rocpd.large(tmp_path / "x.db", 20_000)
    trace = read([path])
    assert trace.nodes.num_rows == 40_000
    assert trace.edges.num_rows == 20_000
    assert trace.array("dur").sum() == 20_000 * 3900
    assert Path(path).exists()


@pytest.mark.parametrize(
    ("change", "lost"),
    [
        ("DELETE FROM {info_kernel_symbol} WHERE id = 1", {"name-unknown": 1}),
        ("UPDATE {kernel_dispatch} SET agent_id = 99", {"agent-unknown": 2}),
        (
            "UPDATE {event} SET extdata = '{{\"message\":' WHERE extdata != '{{}}'",
            {"extdata-unreadable": 2},
        ),
        ("UPDATE {info_agent} SET extdata = '{{' WHERE id = 2", {"extdata-unreadable": 1}),
        ("UPDATE {info_process} SET environment = '{{\"A\":'", {"extdata-unreadable": 1}),
        ("DELETE FROM {event} WHERE stack_id = 8", {"event-record-missing": 2}),
    ],
)
def test_what_rows_point_at_and_is_not_there_is_counted(tmp_path, change, lost):
    path = rocpd.small(tmp_path / "x.db", suffix=False)
    with closing(sqlite3.connect(path)) as base:
        tables = {name: f"rocpd_{name}" for name in rocpd.version_tables("3.0.4")}
        base.execute(change.format(**tables))
        base.commit()
    trace = read([path])
    assert not uncounted_events(trace)
    actual = {i.code: i.count for i in trace.meta.issues if i.severity is Severity.LOSS}
    assert actual == lost


def test_a_database_without_events_says_that_launches_are_unknown(tmp_path):
    path = rocpd.small(tmp_path / "x.db", suffix=False)
    complete = read([path])
    with closing(sqlite3.connect(path)) as base:
        base.execute("DROP TABLE rocpd_event")
        base.commit()
    trace = read([path])
    assert not uncounted_events(trace)
    assert complete.edges.num_rows
    assert not trace.edges.num_rows
    assert counts(trace)["event-record-missing"] >= 2


def test_grid_and_workgroup_swapped_are_reported(tmp_path):
    path = rocpd.small(tmp_path / "x.db", suffix=False)
    with closing(sqlite3.connect(path)) as base:
        base.execute(
            "UPDATE rocpd_kernel_dispatch SET workgroup_size_x = 65536, grid_size_x = 256 WHERE id = 1"
        )
        base.commit()
    assert counts(read([path]))["workgroup-impossible"] == 1

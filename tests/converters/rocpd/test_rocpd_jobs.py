# ruff: noqa: S608
"""Jobs of many databases: ranks, processes that a rank starts, and nodes."""

import sqlite3
from contextlib import closing

import pytest
import rocpd
from issue_counts import counts

import chopper_interop as ci
from chopper_interop.errors import AmbiguousRunError

TIMES = ("region", "kernel_dispatch", "memory_copy", "memory_allocate", "graph_launch", "hip_event")


def process(folder, pid, rank, *, parent=1, size=2, later=0, host="node7", node=1):
    """A database of a process, all of whose times are so much later."""
    guid = f"0198a2f4-0000-0000-0000-{pid:012d}"
    path = rocpd.small(
        folder / f"{pid}_results.db",
        guid=guid,
        pid=pid,
        parent=parent,
        host=host,
        node=node,
        environment={"RANK": str(rank), "WORLD_SIZE": str(size)},
    )
    suffix = "_" + guid.replace("-", "_")
    with closing(sqlite3.connect(path)) as base:
        for table in TIMES:
            base.execute(
                f"UPDATE rocpd_{table}{suffix} SET start = start + {later}, end = end + {later}"
            )
        base.execute(f"UPDATE rocpd_sample{suffix} SET timestamp = timestamp + {later}")
        base.commit()
    return path


@pytest.mark.parametrize("later", [1, 10**9])
def test_what_a_rank_starts_stands_in_that_rank(tmp_path, later):
    process(tmp_path, 99, 0, parent=100, later=later)
    process(tmp_path, 100, 0)
    process(tmp_path, 200, 1, later=2)
    trace = ci.read(tmp_path)
    assert [(r.rank, r.pid, r.known_by) for r in trace.meta.ranks] == [
        (0, 100, "header"),
        (1, 200, "header"),
    ]
    assert trace.nodes.num_rows == 39
    lanes = trace.to_pandas("lanes")
    assert sum(lanes["name"].str.contains("process 99")) * 3 == len(lanes)
    assert counts(trace)["processes-of-one-rank"] == 1
    assert trace.edges.num_rows == 6
    ci.write(trace, tmp_path / "x.pftrace")


def test_processes_of_a_rank_that_ran_at_the_same_time(tmp_path):
    process(tmp_path, 100, 0, parent=50)
    process(tmp_path, 101, 0, parent=51, later=7)
    trace = ci.read(tmp_path)
    assert [r.rank for r in trace.meta.ranks] == [0]
    assert trace.nodes.num_rows == 26


@pytest.mark.parametrize(("host", "node"), [("node7", 1), ("node8", 2)])
def test_two_runs_are_still_refused(tmp_path, host, node):
    process(tmp_path, 100, 0)
    process(tmp_path, 101, 0, later=10**12, host=host, node=node)
    with pytest.raises(AmbiguousRunError):
        ci.read(tmp_path)


def test_nodes_are_one_job_whose_clocks_are_stated(tmp_path):
    process(tmp_path, 100, 0, host="a")
    process(tmp_path, 101, 1, host="b", node=2, later=5)
    trace = ci.read(tmp_path, keep_environment=True)
    assert [(r.rank, r.host, r.pid) for r in trace.meta.ranks] == [(0, "a", 100), (1, "b", 101)]
    assert counts(trace)["clocks-of-hosts-unrelated"] == 2
    assert {d.host for d in trace.meta.devices} == {"a", "b"}


def test_one_node_has_one_clock(tmp_path):
    process(tmp_path, 100, 0)
    process(tmp_path, 101, 1, later=5)
    assert "clocks-of-hosts-unrelated" not in counts(ci.read(tmp_path))


def test_processes_of_one_database_that_share_a_rank(tmp_path):
    path = tmp_path / "x.db"
    for pid, parent, rank in ((10, 20, "0"), (20, 1, "0"), (30, 1, "1")):
        base = rocpd.Base(
            path,
            guid=f"0198a2f4-0000-0000-0000-{pid:012d}",
            pid=pid,
            parent=parent,
            environment={"RANK": rank, "WORLD_SIZE": "2"},
            views=False,
        )
        base.agents()
        base.symbol(1, f"kernel of {pid}")
        base.kernel(1, rocpd.BOOT + pid, rocpd.BOOT + pid + 5, 1)
        base.close()
    trace = ci.read(path)
    assert [(r.rank, r.pid, r.known_by) for r in trace.meta.ranks] == [
        (0, 20, "header"),
        (1, 30, "header"),
        (2, 10, "assumed"),
    ]
    assert counts(trace)["rank-assumed"] == 1


def test_a_copy_of_a_counter_run_is_left_out(tmp_path):
    path = rocpd.small(tmp_path / "a.db")
    alone = ci.read(path)
    (tmp_path / "b.db").write_bytes(path.read_bytes())
    trace = ci.read(tmp_path)
    assert counts(trace)["same-events-twice"] == 1
    assert not counts(trace).keys() & {"event-of-another-run", "counter-of-several-runs"}
    assert trace.nodes.num_rows == alone.nodes.num_rows
    assert trace.counters.equals(alone.counters)


def test_windows_of_a_rank_and_of_its_child_are_one_job(tmp_path):
    alone = tmp_path / "0"
    for later in (0, 10**9):
        folder = tmp_path / str(later)
        folder.mkdir()
        process(folder, 100, 0, later=later)
        process(folder, 99, 0, parent=100, later=later + 7)
    with pytest.raises(AmbiguousRunError):
        ci.read(tmp_path)
    trace, one = ci.read(tmp_path, run="all"), ci.read(alone)
    assert trace.nodes.num_rows == 2 * one.nodes.num_rows
    assert trace.lanes.num_rows == one.lanes.num_rows
    assert counts(trace)["processes-of-one-rank"] == 1
    assert [(r.rank, r.pid) for r in trace.meta.ranks] == [(0, 100)]

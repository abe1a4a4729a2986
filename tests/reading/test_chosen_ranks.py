"""`--ranks` leaves the files of other ranks unread, and ranks of other files out."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from issue_counts import counts
from kineto_files import kernel, write

import chopper_interop as ci
from chopper_interop.converters.kineto.stated_rank import stated_rank
from chopper_interop.errors import OptionError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def job(folder: Path, count: int = 3) -> Path:
    for rank in range(count):
        events = [kernel(f"k{rank}", 10, 5, 1)]
        write(folder / f"{rank}.json", events, distributedInfo={"backend": "nccl", "rank": rank})
    return folder


def left_out(trace: ci.Trace) -> int:
    return counts(trace).get("ranks-left-out", 0)


def test_files_of_other_ranks_are_not_read(tmp_path: Path, run) -> None:
    job(tmp_path)
    (tmp_path / "1.json").write_bytes((tmp_path / "1.json").read_bytes()[:-20])  # cut short
    trace = ci.read(tmp_path, ranks="0,2")
    assert (trace.ranks, left_out(trace)) == ([0, 2], 1)
    assert [s.path.rpartition("/")[2] for s in trace.meta.sources] == ["0.json", "2.json"]
    assert not [issue for issue in trace.meta.issues if issue.severity != "info"]
    status, _, text = run("convert", tmp_path, "--ranks", "0,2", "-o", tmp_path / "a.pftrace")
    assert status == 0
    assert "rank 1 is not among those to read" in " ".join(text.split())


def test_it_is_what_these_files_alone_give(tmp_path: Path) -> None:
    job(tmp_path)
    some = ci.read(tmp_path, ranks=[2, 0], name="a")
    alone = ci.read(tmp_path / "0.json", tmp_path / "2.json", name="a")
    for table in ("nodes", "edges", "lanes", "groups"):
        assert getattr(some, table).equals(getattr(alone, table)), table


def test_ranks_that_only_reading_tells(tmp_path: Path) -> None:
    ci.write(ci.read(job(tmp_path)), tmp_path / "all.parquet")
    trace = ci.read(tmp_path / "all.parquet", ranks=[1])
    assert (trace.ranks, left_out(trace)) == ([1], 2)
    assert trace.to_pandas()["name"].tolist() == ["k1"]
    assert trace.to_pandas("lanes")["rank"].tolist() == [1]
    assert [rank.rank for rank in trace.meta.ranks] == [1]


WRONG = {
    "0-": (OptionError, "numbers and ranges"),
    "7": (UsageError, "they have 0-2"),
    "1,7": (UsageError, "no rank 7"),
}


@pytest.mark.parametrize("ranks", WRONG)
def test_a_rank_that_is_not_there_is_an_error(tmp_path: Path, ranks: str) -> None:
    kind, text = WRONG[ranks]
    with pytest.raises(kind, match=text):
        ci.read(job(tmp_path), ranks=ranks)


STATED = {
    "a.json": (b'{"distributedInfo": {"backend": "nccl", "rank": 5, "world_size": 8},', 5),
    "rank-7.json": (b'{"schemaVersion": 1, "traceEvents": [', 7),
    "rank_10/trace.json": (b'{"schemaVersion": 1, "traceEvents": [', 10),
    "rank_10/rank2.json": (b'{"schemaVersion": 1, "traceEvents": [', 2),
    "rank_10_of_16/trace.json": (b'{"schemaVersion": 1, "traceEvents": [', None),
    "rank7.json": (b'{"distributedInfo": {"backend": "nccl", "rank": 5},', 5),
    "rank8.json": (b'{"distributedInfo": {"pg_config": [{"rank": 1}]},', None),
    "rank0.json": (b'{"traceEvents": [{"ph": "X", "args": {"rank": 0, "pid_raw": 9}}', None),
    "rank1.json": (b'{"traceEvents": [{"ph": "M", "args": {"name": "[rank 0] python"}}', None),
    "b.json": (b'{"schemaVersion": 1', None),
}


@pytest.mark.parametrize("name", STATED)
def test_a_rank_is_stated_near_the_beginning(tmp_path: Path, name: str) -> None:
    head, rank = STATED[name]
    assert stated_rank(tmp_path / name, head) == rank


def test_folders_of_ranks_state_them(tmp_path: Path) -> None:
    """They were numbered in the order of their names: 10 was 0."""
    for i in (2, 10):
        path = tmp_path / f"rank_{i}" / "trace.json"
        path.parent.mkdir()
        event = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": i, "dur": 5}
        event["args"] = {"device": 0, "stream": 7, "correlation": i}
        path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    assert ci.read(tmp_path).ranks == [2, 10]


def test_it_is_the_rank_that_reading_gives(shared: Path) -> None:
    from chopper_interop.io import inputs

    for path in sorted((shared / "pytorch/torchrec_4rank_v100").iterdir()):
        assert [stated_rank(path, inputs.head(path))] == ci.read(path).ranks

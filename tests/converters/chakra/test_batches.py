"""ETs of small ranks, which are planned at once: the same bytes as of each rank alone."""

import gzip
import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from kineto_files import span, write
from mixed_jobs import mixed_job
from programs import families, kineto
from programs.simulation import simulate
from slow import slow_from

import chopper_interop as ci
from chopper_interop.arrays import arrow
from chopper_interop.converters.chakra.planning import batches, connected, links
from chopper_interop.converters.chakra.planning.ranks import NodeRanks
from chopper_interop.timing import unrecorded

PROGRAMS = (
    families.streams, families.forks, families.copies, families.host_bound, families.gpu_bound,
    families.full_queue, families.backlog, families.threads, families.polls,
)  # fmt: skip


def unlike_ranks(folder: Path, seed: int) -> Path:
    """A job whose ranks have nothing in common: programs of one rank each, and hosts whose clock is off."""
    documents = [{"schemaVersion": 1, "traceEvents": mixed_job(seed + k, 80)} for k in range(3)]
    for number, program in enumerate(PROGRAMS):
        path, *_ = kineto.write(simulate(program(seed)), folder / f"of{number}")
        documents.append(json.loads(gzip.decompress(path.read_bytes())))
    job = folder / "job"
    job.mkdir()
    for rank, document in enumerate(documents):
        document["distributedInfo"] = {"rank": rank, "world_size": len(documents)}
        (job / f"rank{rank:02}.json").write_text(json.dumps(document))
    return job


def connected_ranks(folder: Path, seed: int) -> Path:
    """A job of stages that send to each other, of which some begin to record late."""
    kineto.write(simulate(families.pipeline(seed)), folder / "job")
    return folder / "job"


def written(trace: ci.Trace, folder: Path, **options: str) -> dict[str, bytes]:
    folder.mkdir()
    ci.write(trace, folder / "a.et", **options)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("make", [unlike_ranks, connected_ranks])
@pytest.mark.parametrize("seed", slow_from(range(6), 1))
def test_ranks_that_are_planned_at_once_have_the_ets_that_each_has_alone(
    make, seed, tmp_path, monkeypatch
):
    trace = ci.read(make(tmp_path, seed))
    for mode in ("full", "gpu", "kernels"):
        for streams in ("slots", "auto", *(() if mode == "kernels" else ("npus",))):
            with monkeypatch.context() as patched:
                patched.setattr(batches, "_NODES", 0)
                alone = written(
                    trace, tmp_path / f"{mode} {streams} alone", mode=mode, streams=streams
                )
            with monkeypatch.context() as patched:
                patched.setattr(batches, "_NODES", 1 << 30)
                at_once = written(trace, tmp_path / f"{mode} {streams}", mode=mode, streams=streams)
            assert at_once == alone


def test_ranks_with_more_to_do_with_each_other_than_communication_are_planned_alone(tmp_path):
    """A late rank answers messages that others have recorded, in ranks behind it and before it."""
    for seed in range(3):
        trace = ci.read(connected_ranks(tmp_path / str(seed), seed))
        rows = batches.batches(trace)
        assert rows[0].start == 0
        assert rows[-1].stop == trace.nodes.num_rows
        assert all(a.stop == b.start for a, b in pairwise(rows))
        unpaired = trace.array("rank")[unrecorded.unpaired_rows(trace)]
        for rank in np.unique(unpaired).tolist():
            assert trace.rank_rows[rank] in rows


def test_ranks_in_front_of_one_that_is_planned_alone_and_behind_it_are_not_planned_with_it(
    tmp_path, monkeypatch
):
    trace = ci.read(unlike_ranks(tmp_path, 0))
    rows = list(trace.rank_rows.values())
    alone = np.arange(len(rows)) == 1
    monkeypatch.setattr(batches, "_are_alone", lambda _: alone)
    monkeypatch.setattr(batches, "_NODES", 1 << 30)
    assert batches.batches(trace) == [rows[0], rows[1], slice(rows[2].start, rows[-1].stop)]


def test_only_ranks_of_contradicting_clocks_lose_dependencies_against_the_order_of_starts():
    """Nodes 0 and 1 of the first rank wait for each other; 2 of the other began before 3, for which it waits."""
    src, dst = np.array([[0, 1, 3], [1, 0, 2]])
    ranks = NodeRanks(2, np.array([0, 0, 1, 1]))
    order, *pairs = connected._ordered(np.array([5, 6, 0, 9]), np.ones(4, bool), src, dst, ranks)
    assert order.tolist() == [0, 1, 3, 2]
    assert np.array(pairs).tolist() == [[0, 3], [1, 2]]


def test_threads_are_idle_at_the_same_times_however_far_from_zero_these_are(tmp_path):
    """Threads times a time of years since 1970 are more than 64 bits hold."""
    events = [
        span("cpu_op", "op", second * 1_000_000 + tid, 9, tid=tid)
        for second in range(3)
        for tid in range(4)
    ]
    trace = ci.read(write(tmp_path / "a.json", events))
    ts = trace.array("ts") + (7 << 60)
    later = replace(trace, nodes=arrow.replace_column(trace.nodes, "ts", ts))
    borders = links.idle_borders(trace)
    assert borders.any()
    assert (links.idle_borders(later) == borders).all()

"""A job that is larger than memory: columns in files, some ranks at a time, and the outputs of any other job."""

from __future__ import annotations

import errno
import io
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_from

from chopper_interop import job_reading, pipeline, rank_batches, registry
from chopper_interop.arrays import arrow, spill
from chopper_interop.converters.perfetto.write import writer
from chopper_interop.edges.event import AMBIGUOUS
from chopper_interop.errors import ChopperError, WriteError
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind

if TYPE_CHECKING:
    from chopper_interop.arrays import Array
    from chopper_interop.trace import Trace

JOBS = slow_from(
    [
        "dlrm_8rank_v100/*/*[012][_.][sj]*",  # with execution traces
        "clock_skew_4rank_amd/rank[01].json.gz",  # clocks that differ
        "dlrm_8rank_v100",
        "torchrec_4rank_v100",
        "rtx2080ti_pairs",
        "clock_skew_4rank_amd",
        "ddp_resnet_4rank_amd",
        "base_boundary_4rank_amd",
    ],
    0,
)
WAITS_BY_BATCH = {"torchrec_4rank_v100"}
"""Jobs of which the times of other ranks in the batch decide what some streams wait for (15 of 304 waits)."""
BLOCK = 1000
"""Nodes of a batch: fewer than two ranks have together, so that each is one, and than a column has, so that it has
several blocks."""

LEAST_ANALYSES = 20
"""Analyses that any job has, whether or not it can be compared."""
OUTPUTS: dict[str, dict[str, object]] = {
    "a.parquet": {},
    "a.pftrace": {},
    "split": {"to_format": "perfetto", "split": "yes"},
    "et": {"to_format": "chakra"},
}


def _outputs(trace: Trace, folder: Path) -> dict[str, bytes]:
    folder.mkdir()
    for name, options in OUTPUTS.items():
        pipeline.write(trace, folder / name, **options)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _check(sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank at a time derives what all at once derive, and the same from files as from memory, to the byte."""
    at_once = pipeline.read(*sources, name="job")
    monkeypatch.setattr(rank_batches, "MAX_NODES", BLOCK)
    monkeypatch.setattr(rank_batches, "_BLOCK", BLOCK)
    assert min(rows.stop - rows.start for rows in at_once.rank_rows.values()) > BLOCK / 2
    from_memory = pipeline.read(*sources, name="job")
    in_memory = _outputs(from_memory, tmp_path / "memory")
    _keep_in_files(monkeypatch)
    by_rank = pipeline.read(*sources, name="job")
    _assert_equal(by_rank, from_memory)
    _assert_equal(by_rank, at_once, but_waits=sources[0].name in WAITS_BY_BATCH)
    in_files = _outputs(by_rank, tmp_path / "files")
    assert in_memory.keys() == in_files.keys()
    assert [name for name in in_memory if in_memory[name] != in_files[name]] == []


def _keep_in_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have small columns and arrays lie in files, of any job."""
    monkeypatch.setattr(spill, "_MIN_BYTES", 1 << 12)
    monkeypatch.setattr(spill, "_SCRATCH_BYTES", (1 << 12, 1 << 12))
    monkeypatch.setattr(job_reading, "exceeds_memory", lambda *_: True)


def _assert_equal(one: Trace, other: Trace, *, but_waits: bool = False) -> None:
    metas = [replace(trace.meta, issues=()) for trace in (one, other)]
    assert metas[0] == metas[1]
    issues = [
        {
            (issue.source, issue.code, issue.count, issue.example)
            for issue in trace.meta.issues
            if not (but_waits and issue.code == AMBIGUOUS.code)
        }
        for trace in (one, other)
    ]
    assert issues[0] == issues[1]
    for name in hub.TABLES:
        tables = [getattr(trace, name) for trace in (one, other)]
        if name == "edges":  # their order is that of the batches
            order = [(column, "ascending") for column in tables[0].column_names]
            tables = [table.sort_by(order) for table in tables]
            if but_waits:
                assert len({table.num_rows for table in tables}) == 1
                tables = [table.filter(pc.field("kind") != EdgeKind.EVENT) for table in tables]
        assert tables[0].equals(tables[1]), name


@pytest.mark.parametrize("job", JOBS)
def test_real_jobs(job: str, shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check(sorted((shared / "pytorch").glob(job)), tmp_path, monkeypatch)


@pytest.mark.parametrize("job", JOBS)
def test_analyses_of_a_job_in_files_are_those_of_one_in_memory(
    job: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_analyses(sorted((shared / "pytorch").glob(job)), monkeypatch)


@pytest.mark.slow
def test_analyses_of_the_sample_job_in_files(demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _check_analyses([demo], monkeypatch)


def _check_analyses(sources: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    in_memory = _results(pipeline.read(*sources, name="job"))
    _keep_in_files(monkeypatch)
    in_files = _results(pipeline.read(*sources, name="job"))
    assert len(in_memory) > LEAST_ANALYSES
    assert in_memory.keys() == in_files.keys()
    assert [name for name in in_memory if in_memory[name] != in_files[name]] == []


def _results(trace: Trace) -> dict[str, object]:
    """What each analysis returns, or the error that it raises."""
    results: dict[str, object] = {}
    for name, function in registry.working_analyses().items():
        if "against" in registry.options(function):
            continue
        try:
            result = pipeline.analyze(trace, name)
        except ChopperError as error:
            results[name] = str(error)
            continue
        annotations = {n: pa.array(c).to_pylist() for n, c in result.annotations.items()}
        results[name] = repr((result.to_dict(), annotations))  # where NaN equals NaN
    return results


@pytest.mark.slow
def test_the_sample_job_with_telemetry(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check([demo], tmp_path, monkeypatch)


_COLUMNS = {
    pa.int32(): st.integers(-5, 5),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=3),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from("abcd"),
}


@given(data=st.data(), kind=st.sampled_from(list(_COLUMNS)), in_files=st.booleans())
def test_parts_are_joined_as_arrow_joins_them(
    *, data: st.DataObject, kind: pa.DataType, in_files: bool
) -> None:
    lists = data.draw(st.lists(st.lists(st.none() | _COLUMNS[kind], max_size=20), max_size=4))
    arrays = [
        arrow.column(pa.array(values, getattr(kind, "value_type", kind)), kind) for values in lists
    ]
    parts = [len(a) if a.null_count == len(a) and data.draw(st.booleans()) else a for a in arrays]
    with pytest.MonkeyPatch.context() as patch, spill.when(in_files):
        patch.setattr(spill, "_MIN_BYTES", 1)
        result = spill.joined_column(parts, sum(map(len, lists)), kind)
        result.validate(full=True)
        assert result.type == kind
        assert result.to_pylist() == [value for values in lists for value in values]
        assert spill.kept_column(result).to_pylist() == result.to_pylist()


def test_what_the_writer_has_of_each_node_is_in_files_too(
    demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 62 million nodes in files it took 1.4 GB of memory, 23 bytes each, and kept 8 of these."""
    monkeypatch.setattr(rank_batches, "MAX_NODES", BLOCK)
    monkeypatch.setattr(rank_batches, "_BLOCK", BLOCK)
    monkeypatch.setattr(spill, "_MIN_BYTES", 1 << 12)
    monkeypatch.setattr(job_reading, "exceeds_memory", lambda *_: True)
    trace = pipeline.read(demo)
    count = trace.nodes.num_rows
    options = {"args": False, "derived": False, "all_samples": False}
    slices = writer.PerfettoWriter(trace, io.BytesIO(), **options)
    first, ids = slices.flows.of_nodes
    assert len(first) == count + 1
    assert all(map(spill.holds, (first, ids, slices.is_drawn)))
    assert slices.tracks.lanes  # made before memory is measured
    monkeypatch.setattr(rank_batches, "_BLOCK", BLOCK // 10)
    steps = {
        "work": lambda: slices.tracks._work_labels,
        "window": lambda: writer.window_of_work(trace),
    }
    for name, step in steps.items():
        tracemalloc.start()
        try:
            step()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 4 * count, (name, peak / count)


@pytest.fixture(params=[True, False], ids=["allocator", "python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether files are the allocator's, or mapped by Python as on other systems than Linux."""
    if not request.param:
        monkeypatch.setattr(spill, "_has_allocator", lambda: False)
    elif not spill._has_allocator():
        pytest.skip("no allocator here")
    monkeypatch.setattr(spill, "_shared", None)
    return bool(request.param)


@pytest.mark.usefixtures("way")
def test_arrays_lie_in_files_only_where_that_is_wanted() -> None:
    before = set(spill._mapped)  # of other tests
    assert not spill.holds(spill.empty(1 << 20, np.int64))
    with spill.when(True):
        values = spill.full(1 << 20, 7, np.int64)
        assert spill.holds(values[5:])
        assert not spill.holds(spill.empty(10, np.int64))
        spill.release()
        assert (values == 7).all()
    del values
    assert set(spill._mapped) <= before


_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not Path("/proc/self/pagemap").exists()
    or (_HUGE_PAGES.exists() and "[always]" in _HUGE_PAGES.read_text()),
    reason="pages of 4 KB on Linux",
)
def test_zeros_take_memory_only_where_they_are_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the C library has memory that was freed, which numpy's zeros would be written to."""
    monkeypatch.setattr(spill, "in_use", lambda: False)  # by other tests
    count = 1 << 18
    for _ in range(2):  # the C library keeps what it gets of this size from the second time on
        used = [np.ones(count, np.int64) for _ in range(32)]
        kept = used[3::4]  # between them is room for the zeros
        del used
    zeros = [spill.full(count, 0, np.int64) for _ in range(16)]
    for values in zeros:
        values[1000] = 8
    assert sum(map(_pages, zeros)) <= 2 * len(zeros)
    assert [int(values.sum()) for values in zeros] == [8] * len(zeros)
    assert all((values == 1).all() for values in kept)


def _pages(values: Array) -> int:
    """Number of pages of an array that are in memory."""
    size = os.sysconf("SC_PAGE_SIZE")
    first = values.__array_interface__["data"][0] // size
    with Path("/proc/self/pagemap").open("rb") as file:
        file.seek(8 * first)
        entries = np.frombuffer(file.read(8 * (values.nbytes // size)), np.uint64)
    return int((entries >> np.uint64(63)).sum())


@pytest.mark.usefixtures("way")
def test_small_arrays_share_files_and_nothing_else() -> None:
    """Of thousands of ranks with some fifteen columns each there would be too many files."""
    before = set(spill._mapped)
    sizes = [1 << 14, (1 << 14) + 1, 3 << 20] * 20
    with spill.when(True):
        arrays = [spill.full(size, number, np.uint8) for number, size in enumerate(sizes)]
        wide = spill.full(1 << 14, 5, np.float64)
    assert all(map(spill.holds, arrays))
    assert len(set(spill._mapped) - before) <= 2  # 61 MB, in files of 64
    assert all((array == number).all() for number, array in enumerate(arrays))
    assert (wide == 5).all()
    del arrays, wide
    assert set(spill._mapped) <= before


def test_a_full_disk_is_one_line(way: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 # a fixture
    """Writing to a page for which there is no room would end the process by SIGBUS."""

    def fails(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", fails)
    count, said = (
        (10**15, r"1,000,000\.0 GB .* (No space left|File too large)")
        if way
        else (1 << 23, r"8\.4 MB .* No space left")
    )
    with spill.when(True), pytest.raises(WriteError, match=rf"no room for {said}.*TMPDIR"):
        spill.empty(count, np.int8)


def test_a_job_in_files_that_python_maps(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on other systems."""
    monkeypatch.setattr(spill, "_has_allocator", lambda: False)
    _check([shared / "pytorch" / "clock_skew_4rank_amd"], tmp_path, monkeypatch)

"""Jobs of more rows than int32 numbers: one line with a status of its own, no number that wraps around."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from read_once import read_once

import chopper_interop as ci
from chopper_interop.arrays import arrow, row_numbers
from chopper_interop.cli import analyze_main, convert_main
from chopper_interop.errors import TooLargeError
from chopper_interop.graph import build_graph, endpoint_graph

_LIMIT = 2**31 - 1


@pytest.fixture
def job(demo: Path) -> ci.Trace:
    return read_once(demo)


def test_the_limit_is_that_of_the_tables() -> None:
    assert _LIMIT == row_numbers.MOST == np.iinfo(np.int32).max
    row_numbers.require(_LIMIT, "nodes")
    with pytest.raises(TooLargeError, match=r"2,147,483,648 nodes .* at most 2,147,483,647"):
        row_numbers.require(_LIMIT + 1, "nodes")
    row_numbers.require(_LIMIT // 2, "nodes", rows_each=2)
    with pytest.raises(TooLargeError, match=r"1,073,741,824 nodes .* at most 1,073,741,823"):
        row_numbers.require(_LIMIT // 2 + 1, "nodes", rows_each=2)


def test_ranks_of_too_many_nodes_are_not_joined(
    demo: Path,
    job: ci.Trace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = job.nodes.num_rows
    monkeypatch.setattr(row_numbers, "MOST", nodes - 1)
    out = tmp_path / "job.pftrace"
    assert convert_main([str(demo), "-o", str(out)]) == TooLargeError.exit_status == 11
    assert not out.exists()
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "too many" in text)
    assert f"{nodes:,} nodes" in line
    assert f"at most {nodes - 1:,} are" in line
    assert "--ranks" in line
    assert "--steps" in line
    assert convert_main([str(demo), "-o", str(out), "--ranks", "0"]) == 0


def test_ranks_of_a_user_are_not_joined(job: ci.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [job.rank(rank) for rank in job.ranks]
    monkeypatch.setattr(row_numbers, "MOST", job.nodes.num_rows - 1)
    with pytest.raises(TooLargeError, match="nodes are too many"):
        ci.concat(ranks)


def test_starts_and_ends_are_twice_as_many(
    demo: Path,
    job: ci.Trace,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    nodes = job.nodes.num_rows
    monkeypatch.setattr(row_numbers, "MOST", 2 * nodes - 1)
    with pytest.raises(TooLargeError, match=f"{nodes:,} nodes with a start and an end"):
        endpoint_graph(job)
    assert analyze_main([str(demo), "temporal", "critical_path", "-q"]) == 11
    said = capsys.readouterr().err
    assert f"critical_path: {nodes:,} nodes" in said
    assert "temporal:" not in said  # its figures need no timing model


def test_vertices_beyond_starts_and_ends(job: ci.Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.arange(job.nodes.num_rows, dtype=np.int32)
    none = np.empty(0, np.int32)
    monkeypatch.setattr(row_numbers, "MOST", len(rows) - 1)
    with pytest.raises(TooLargeError, match="vertices"):
        build_graph(job, rows, job.array("ts"), (none, none, none.astype(np.uint8)))


def test_texts_of_more_than_a_column_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "_MOST_IN_COLUMN", 5)
    assert arrow.texts(["abc", "de"]).to_pylist() == ["abc", "de"]
    with pytest.raises(TooLargeError, match="6 bytes of texts"):
        arrow.texts(["abc", "def"])


def test_names_of_ranks_beyond_a_column_are_one_line(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Dictionaries of all ranks together, and of one rank: the same status."""
    texts = read_once(demo).nodes["name"].chunk(0).dictionary
    monkeypatch.setattr(arrow, "_MOST_IN_COLUMN", sum(len(str(t)) for t in texts) - 1)
    out = tmp_path / "job.parquet"
    assert convert_main([str(demo), "-o", str(out), "-q"]) == TooLargeError.exit_status
    assert not out.exists()
    (line,) = (text for text in capsys.readouterr().err.splitlines() if "error" in text)
    assert "bytes of texts in a column are too many" in line
    assert "--ranks" in line


def _of_a_gigabyte() -> pa.Array:
    """A column of one text, of memory that nothing touches."""
    size = 1_100_000_000
    offsets = np.array([0, size], np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.zeros(size, np.uint8))]
    return pa.Array.from_buffers(pa.string(), 1, buffers)


def _join_columns(*_: object, **__: object) -> None:
    text = _of_a_gigabyte()
    arrow.single_chunk(pa.chunked_array([text, text]))


def _join_dictionaries(*_: object, **__: object) -> None:
    raise pa.ArrowCapacityError(
        "array cannot contain more than 2147483646 bytes, have 2199999999"
    )  # as `unify_dictionaries` does, which reads all texts


@pytest.mark.parametrize("join", [_join_columns, _join_dictionaries])
@pytest.mark.parametrize("place", ["chopper_interop.pipeline.Conversion.run", "a reader"])
def test_what_arrow_cannot_join_is_one_line(
    demo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    join: Callable[..., None],
    place: str,
) -> None:
    if place == "a reader":
        place = "chopper_interop.converters.kineto.reader.trace_file.load"
    monkeypatch.setattr(place, join)
    rank = next(demo.rglob("rank*0*.json*"))
    assert convert_main([str(rank), "-o", str(tmp_path / "a.parquet"), "-q"]) == 11
    (line,) = capsys.readouterr().err.splitlines()
    assert "more text than a column can hold" in line
    assert "--ranks" in line

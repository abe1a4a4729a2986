"""Parquet folders: what is written comes back, other tools can read it, damage is reported."""

import json
import re
import shutil
from dataclasses import replace

import field_changes
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from read_once import read_once

import chopper_interop as ci
from chopper_interop import progress, sources
from chopper_interop.converters.parquet import PARQUET, writer
from chopper_interop.errors import ReadError, TooLittleMemoryError, WriteError
from chopper_interop.testing import assert_trace_equal, check_converter, check_trace
from chopper_interop.testing.strategies import traces

TOOK_OVER = ["meta.job"]
"""Difference that `ci.read` makes: the job is called after the folder."""


@settings(suppress_health_check=list(HealthCheck))
@given(trace=traces())
def test_any_trace_comes_back_as_it_was(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("any") / "job.parquet"
    PARQUET.writer(trace, path)
    again = PARQUET.reader([path / "meta.json"])
    check_trace(again)
    assert_trace_equal(trace, again)


@settings(max_examples=10, suppress_health_check=list(HealthCheck))
@given(trace=traces(max_nodes=8))
def test_any_size_of_row_groups_gives_the_same(tmp_path_factory, trace):
    path = tmp_path_factory.mktemp("groups") / "job.parquet"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "ROWS_PER_GROUP", 3)
        patch.setattr(writer, "BYTES_PER_GROUP", 20)
        PARQUET.writer(trace, path)
    assert_trace_equal(trace, PARQUET.reader([path / "meta.json"]))
    for file in path.glob("*/*.parquet"):
        about = pq.ParquetFile(file).metadata
        assert all(about.row_group(k).num_rows <= 3 for k in range(about.num_row_groups))


@pytest.fixture(scope="module")
def trace(demo):
    return read_once(demo)


@pytest.fixture
def folder(trace, tmp_path):
    ci.write(trace, tmp_path / "job.parquet")
    return tmp_path / "job.parquet"


def test_job_comes_back_through_the_public_functions(trace, folder):
    assert_trace_equal(trace, ci.read(folder), ignore=TOOK_OVER)


def test_writing_again_replaces_what_was_there(trace, folder):
    ci.write(trace.rank(1), folder)
    assert [path.name for path in (folder / "nodes").iterdir()] == ["rank00001.parquet"]
    again = ci.read(folder)
    assert again.ranks == [1]
    assert again.nodes.num_rows == trace.rank(1).nodes.num_rows


def test_plain_pandas_sees_one_table_with_names_and_global_numbers(trace, folder):
    nodes = pd.read_parquet(folder / "nodes")
    assert len(nodes) == trace.nodes.num_rows
    assert nodes["node"].to_numpy().tolist() == list(range(len(nodes)))
    assert nodes["name"].tolist() == trace.to_pandas()["name"].tolist()
    assert nodes["kind"].tolist() == trace.to_pandas()["kind"].tolist()
    assert nodes["rank"].dtype == np.int32
    row = int(np.flatnonzero(trace.array("args_len"))[0])
    assert json.loads(nodes["args"][row]) == trace.args(row)
    edges = pd.read_parquet(folder / "edges")
    launches = edges[edges["kind"] == "launch"].merge(nodes, left_on="dst", right_on="node")
    assert len(launches) == np.count_nonzero(trace.array("kind", "edges") == 3)
    assert set(launches["kind_y"]) <= {"kernel", "comm", "memcpy", "memset"}


def test_each_rank_has_its_own_files_in_order_of_rank(trace, folder):
    names = sorted(path.name for path in (folder / "nodes").iterdir())
    assert names == [f"rank{rank:05d}.parquet" for rank in trace.ranks]
    for rank, name in zip(trace.ranks, names, strict=True):
        assert set(pq.read_table(folder / "nodes" / name)["rank"].to_pylist()) == {rank}


def test_files_are_zstd_and_hold_our_mark(folder):
    for path in folder.rglob("*.parquet"):
        file = pq.ParquetFile(path)
        table = path.parent.name if path.parent != folder else path.stem
        assert file.schema_arrow.metadata[b"chopper_interop"] == f"{table}/1".encode()
        if file.metadata.num_row_groups:
            assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_edges_between_ranks_are_kept(trace, tmp_path):
    last = trace.nodes.num_rows - 1
    both = pa.table({"src": [0, last], "dst": [last, 0], "kind": [8, 8]}, trace.edges.schema)
    crossed = replace(trace, edges=pa.concat_tables([trace.edges, both]).combine_chunks())
    ci.write(crossed, tmp_path / "crossed.parquet")
    assert_trace_equal(crossed, ci.read(tmp_path / "crossed.parquet"), ignore=TOOK_OVER)


def test_args_that_are_no_json_and_no_utf8_are_kept_byte_by_byte(trace, tmp_path):
    raw = bytearray(b'{"path": "C:\\temp", "bad": "\xff"}')
    places = {"args_at": np.full(trace.nodes.num_rows, 0), "args_len": np.full(trace.nodes.num_rows, len(raw))}  # fmt: skip
    nodes = trace.nodes
    for name, values in places.items():
        at = nodes.schema.get_field_index(name)
        field = nodes.schema.field(at)
        nodes = nodes.set_column(at, field, pa.array(values, field.type))
    text = replace(trace.text, buffers=(np.frombuffer(raw, np.uint8),))
    odd = replace(trace, nodes=nodes, text=text)
    ci.write(odd, tmp_path / "odd.parquet")
    again = ci.read(tmp_path / "odd.parquet")
    assert again.text.buffers[0][: len(raw)].tobytes() == bytes(raw)
    assert_trace_equal(odd, again, ignore=TOOK_OVER)


def test_further_columns_keep_their_types(trace, tmp_path):
    n = trace.nodes.num_rows
    richer = trace.with_columns(
        critical=pa.array([True] * n), slack_ns=pa.array([None] * (n - 1) + [5], pa.int64())
    )
    ci.write(richer, tmp_path / "richer.parquet")
    assert_trace_equal(richer, ci.read(tmp_path / "richer.parquet"), ignore=TOOK_OVER)


def test_folder_is_one_source_and_its_tables_are_no_noise(folder):
    actual = sources.find([folder])
    assert [source.converter.name for source in actual.sources] == ["parquet"]
    assert actual.skipped == []
    assert {path.name for path in actual.sources[0].paths} >= {"meta.json", "rank00000.parquet"}


@pytest.mark.parametrize(
    "word", ["traceEvents", "schemaVersion", "baseTimeNanoseconds", "gpu_data"]
)
def test_texts_by_which_other_formats_are_recognised_are_no_others(tmp_path, trace, word):
    quoting = trace.with_meta(facts={word: word})
    ci.write(quoting, tmp_path / "job.parquet")
    again = ci.read(tmp_path / "job.parquet", keep_environment=True)
    assert_trace_equal(quoting, again, ignore=TOOK_OVER)


def test_next_to_profiles_a_folder_is_left_out_in_one_line(demo, trace, tmp_path):
    shutil.copytree(demo, tmp_path / "run")
    ci.write(trace, tmp_path / "run" / "job.parquet")
    actual = sources.find([tmp_path / "run"])
    assert "parquet" not in {source.converter.name for source in actual.sources}
    reasons = [why for path, why in actual.skipped if "job.parquet" in str(path)]
    assert reasons == ["parquet: made from profiles such as those next to it"]


def test_somebody_elses_parquet_is_skipped_with_the_reason(folder):
    pq.write_table(pa.table({"a": [1]}), folder / "notes.parquet")
    actual = sources.find([folder])
    assert [path.name for path, _ in actual.skipped] == ["notes.parquet"]
    assert ci.read(folder).nodes.num_rows


def test_contract_of_converters(trace, tmp_path):
    ci.write(trace.rank(0), tmp_path / "job.parquet")
    check_converter(PARQUET, tmp_path / "job.parquet")


def _remove(folder):
    (folder / "nodes" / "rank00001.parquet").unlink()


def _swap(folder):
    first, second = (folder / "nodes" / f"rank0000{k}.parquet" for k in (0, 1))
    kept = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(kept)


def _mix_up(folder):
    shutil.copy(folder / "edges" / "rank00000.parquet", folder / "nodes" / "rank00000.parquet")


def _flip(folder):
    path = folder / "nodes" / "rank00000.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x55
    path.write_bytes(data)


def _edit(folder):
    text = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(text.replace('"origin_ns":1', '"origin_ns":2', 1))


def _newer(folder):
    text = (folder / "meta.json").read_text()
    (folder / "meta.json").write_text(text.replace('"version":1', '"version":2', 1))


def _no_lanes(folder):
    (folder / "lanes.parquet").unlink()


def _wrong_type(folder):
    path = folder / "lanes.parquet"
    lanes = pq.read_table(path)
    at = lanes.schema.get_field_index("device")
    pq.write_table(lanes.set_column(at, "device", lanes["device"].cast(pa.string())), path)


def _wrong_reference(folder):
    path = folder / "edges" / "rank00000.parquet"
    edges = pq.read_table(path)
    at = edges.schema.get_field_index("dst")
    far = pa.array([10**9] * edges.num_rows, pa.int32())
    pq.write_table(edges.set_column(at, edges.schema.field(at), far), path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (_remove, "a file of nodes is missing"),
        (_swap, "rows of nodes are out of place"),
        (_mix_up, "holds no nodes"),
        (_flip, "rank00000.parquet: it cannot be read"),
        (_edit, "meta.json: it is not as it was written"),
        (_newer, "version 2, known here is 1"),
        (_no_lanes, "lanes.parquet: it cannot be read"),
        (_wrong_type, "column 'device' is string, not int32"),
        (_wrong_reference, "edges.dst in row 0 is not a row of nodes"),
    ],
)
def test_damage_is_reported_in_a_line(folder, damage, message):
    damage(folder)
    with pytest.raises(ReadError, match=message) as raised:
        ci.read(folder)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("table", "column", "change", "message"),
    [
        (
            "lanes",
            "rank",
            lambda v: [-1, *v[1:]],
            "lanes.rank in row 0 is not 0 to 1048576",
        ),
        (
            "lanes",
            "rank",
            lambda v: [v[0] + 1, *v[1:]],
            "nodes.lane in row . is a lane of another rank",
        ),
        ("nodes", "ts", lambda v: v[::-1], "is out of the order"),
        ("nodes", "dur", lambda v: [-1, *v[1:]], "nodes.dur in row 0 is negative"),
        ("nodes", "dur", lambda v: [*v[:-1], 2**63 - 1], "ends beyond 64 bits"),
        ("nodes", "parent", lambda v: [*range(len(v))], "nodes.parent in row 0 is not an earlier"),
        ("nodes", "parent", lambda v: [-1, *v[1:-1], 0], "is not an earlier node of the same lane"),
        ("nodes", "operation", lambda v: [1] * len(v), "its column 'operation' is int64, not dict"),
    ],
)
def test_values_that_no_trace_has_are_refused(folder, table, column, change, message) -> None:
    """Writers, for which they cannot be, failed with an internal error; calls of themselves were followed for ever."""
    for path in (folder / f"{table}.parquet", *(folder / table).glob("*.parquet")):
        if path.exists():
            data = pq.read_table(path)
            at = data.column_names.index(column)
            kind = None if column == "operation" else data.schema.field(at).type
            changed = pa.array(change(data[column].to_pylist()), kind)
            pq.write_table(data.set_column(at, column, changed), path)
    with pytest.raises(ReadError, match=message):
        ci.read(folder)


@pytest.mark.parametrize(
    ("key", "value", "status"),
    [("origin_ns", b"9" * 40, 4), ("pid", b"18446744073709551615", 4), ("path", b'"%b"' % (b"x" * 70_000), 0)],
)  # fmt: skip
def test_a_description_of_impossible_values_is_no_defect(tmp_path, run, key, value, status) -> None:
    """Its sum is right, as somebody's who means harm is."""
    folder = field_changes.trace_folder(tmp_path)
    raw = (folder / "meta.json").read_bytes()
    changed = re.sub(rb'("%b":)(?:-?\d+|"[^"]*")' % key.encode(), rb"\g<1>" + value, raw)
    (folder / "meta.json").write_bytes(field_changes.summed(changed))
    outputs = ("-o", tmp_path / "a.pftrace", "-o", tmp_path / "a.json")
    actual, _, output = run("convert", "-q", folder, *outputs)
    assert actual == status, output
    assert output.count("\n") == (status != 0)


def test_too_little_memory_is_no_unreadable_file(folder, monkeypatch: pytest.MonkeyPatch, run):
    def fails(_file) -> None:
        raise pa.ArrowMemoryError("malloc of size 600000000 failed")

    monkeypatch.setattr(pq.ParquetFile, "read", fails)
    status, _, text = run("convert", "-q", folder, "-o", folder.parent / "a.pftrace")
    assert status == TooLittleMemoryError.exit_status
    assert "memory" in text


def test_table_alone_says_what_is_missing(folder):
    with pytest.raises(ReadError, match=r"meta.json is not among what is read"):
        ci.read(folder / "lanes.parquet", from_format="parquet")


def test_target_that_is_a_file_is_refused_and_stays(trace, tmp_path):
    (tmp_path / "job.parquet").write_text("of the user")
    with pytest.raises(WriteError, match="cannot be written"):
        ci.write(trace, tmp_path / "job.parquet")
    assert (tmp_path / "job.parquet").read_text() == "of the user"
    assert [path.name for path in tmp_path.iterdir()] == ["job.parquet"]


def test_progress_adds_up(trace, tmp_path):
    class Sum:
        total = done = 0

        def start(self, task, total, unit):
            assert (task, unit) == ("writing Parquet", "events")
            self.total = total

        def advance(self, task, amount):
            assert task == "writing Parquet"
            self.done += amount

    seen = Sum()
    with progress.reporting(seen):
        ci.write(trace, tmp_path / "job.parquet")
    assert seen.done == seen.total == trace.nodes.num_rows


def test_real_job_comes_back(shared, tmp_path):
    ranks = [shared / f"pytorch/ddp_resnet_4rank_amd/rank{rank}.json.gz" for rank in range(2)]
    job = ci.read(*ranks)
    ci.write(job, tmp_path / "job.parquet")
    assert_trace_equal(job, ci.read(tmp_path / "job.parquet"), ignore=TOOK_OVER)

# ruff: noqa: S608
"""Databases are distinguished by their tables, wherever in the file these are defined."""

import gzip
import shutil
import sqlite3
from contextlib import closing

import pytest
import rocpd
import rpd
from seeds.rocprof_old import HIP_TABLE, OPS_TABLE

import chopper_interop as ci
from chopper_interop import registry, sources
from chopper_interop.errors import UnknownFormatError
from chopper_interop.io import inputs, sqlite_schema


def v1(path):
    with closing(sqlite3.connect(path)) as base:
        for name, columns, rows in (HIP_TABLE, OPS_TABLE):
            base.execute(f"CREATE TABLE {name} ({columns})")
            base.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(rows[0]))})", rows)
        base.commit()


KINDS = {"rocpd": rocpd.small, "rpd": rpd.small, "rocprof-v1": v1}


def late(path, make, *pragmas):
    """A database whose schema follows on 300 kB of another table's rows."""
    with closing(sqlite3.connect(path)) as base:
        for pragma in pragmas:
            base.execute(pragma)
        base.execute("CREATE TABLE aaa_first (x)")
        base.executemany("INSERT INTO aaa_first VALUES (?)", [("x" * 1000,)] * 300)
        base.execute(
            "CREATE TABLE aaa_second (" + ", ".join(f"c{i} TEXT" for i in range(900)) + ")"
        )
        base.commit()
    make(path)
    return path


def names(path):
    return [c.name for c in registry.sniffed(inputs.head(path), path)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "pragmas",
    [
        ("PRAGMA page_size = 65536",),
        ("PRAGMA page_size = 1024",),
        ("PRAGMA auto_vacuum = FULL",),
        ("PRAGMA encoding = 'UTF-16be'",),
        ("PRAGMA journal_mode = WAL",),
    ],
)
def test_a_schema_is_found_anywhere_in_the_file(tmp_path, kind, pragmas):
    path = late(tmp_path / "x.bin", KINDS[kind], *pragmas)
    before = sorted(tmp_path.iterdir())
    assert names(path) == [kind]
    assert ci.read(path).nodes.num_rows
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_behind_the_first_bytes(tmp_path, kind):
    path = late(tmp_path / "x.db", KINDS[kind], "PRAGMA page_size = 512")
    with closing(sqlite3.connect(path)) as base:
        base.execute("VACUUM")
    packed = tmp_path / "y.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert names(path) == names(packed) == [kind]


@pytest.mark.parametrize("kind", KINDS)
def test_a_write_ahead_log_that_holds_everything(tmp_path, kind):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA wal_autocheckpoint = 0")
        base.execute("CREATE TABLE t (x)")
        base.commit()
        KINDS[kind](path)
        assert b"rocpd_" not in path.read_bytes()
        assert names(path) == [kind]


def crashed(folder, make, row_bytes=0):
    """A database of which everything is in its log, as a profiler leaves it that was ended."""
    (folder / "run").mkdir()
    with closing(sqlite3.connect(folder / "x.db")) as base:
        base.execute("PRAGMA journal_mode = WAL")
        base.execute("PRAGMA wal_autocheckpoint = 0")
        base.execute("CREATE TABLE t (x)")
        base.commit()
        make(folder / "x.db")
        base.execute("INSERT INTO t VALUES (zeroblob(?))", (row_bytes,))
        base.commit()
        for file in folder.glob("x.db*"):
            shutil.copy(file, folder / "run")
    return folder / "run"


def test_what_sqlite_keeps_next_to_a_database_is_not_skipped(tmp_path):
    folder = crashed(tmp_path, rpd.small)
    rpd.small(folder / "y.db")
    for name in ("y.db-wal", "other.db-wal"):  # empty, as after a checkpoint
        (folder / name).touch()
    inventory = sources.find([folder])
    assert [source.first.name for source in inventory.sources] == ["x.db", "y.db"]
    assert [path.name for path, _ in inventory.skipped] == ["other.db-wal"]
    assert [path.name for path in inventory.unreadable] == ["other.db-wal"]


def test_a_large_log_is_unpacked_with_its_database(tmp_path):
    folder = crashed(tmp_path, rpd.small, row_bytes=17 << 20)
    packed = shutil.make_archive(str(tmp_path / "run"), "zip", folder)
    assert ci.read(packed).nodes.num_rows == ci.read(folder).nodes.num_rows > 0


@pytest.mark.parametrize(
    ("tables", "description"),
    [
        (
            ["StringIds", "CUPTI_ACTIVITY_KIND_KERNEL", "TARGET_INFO_GPU", "NVTX_EVENTS"],
            "StringIds",
        ),
        (["moz_places", "moz_bookmarks"], "moz_places"),
        ([], "without tables"),
    ],
)
def test_unknown_databases_are_described_by_their_tables(tmp_path, tables, description):
    path = tmp_path / "x.sqlite"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE gone (x)")
        base.execute("DROP TABLE gone")
        for table in tables:
            base.execute(f"CREATE TABLE {table} (id INTEGER, name TEXT)")
        if tables:  # what rows say is no table
            base.execute(f"INSERT INTO {tables[0]} VALUES (1, 'rocpd_info_node rocpd_api')")
        base.commit()
    assert names(path) == []
    with pytest.raises(
        UnknownFormatError, match=f"no format that is known here: an SQLite.*{description}"
    ):
        sources.find([path])


def test_a_changed_file_is_read_again(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE t (x)")
        base.commit()
    assert list(sqlite_schema.tables_of(path) or ()) == ["t"]
    rpd.small(path)
    assert "rocpd_op" in (sqlite_schema.tables_of(path) or ())


def test_a_format_with_damaged_schema_is_recognized_by_its_first_bytes(tmp_path):
    path = tmp_path / "x.db"
    path.write_bytes(rocpd.small(tmp_path / "y.db").read_bytes()[:20_000])
    assert sqlite_schema.tables_of(path) is None
    assert names(path) == ["rocpd"]
    path.write_bytes(path.read_bytes()[:3000])
    assert names(path) == []

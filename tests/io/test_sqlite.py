"""Databases: cells are those of sqlite3, nothing is written, and damage is reported."""

import gzip
import lzma
import os
import sqlite3
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from issue_counts import counts
from slow import slow_from

import chopper_interop as ci
from chopper_interop.errors import ReadError
from chopper_interop.io import sqlite_pages, sqlite_rows, sqlite_schema
from chopper_interop.io.sqlite import INTEGER, REAL, TEXT, TIME, Database
from chopper_interop.io.sqlite_files import MAGIC
from chopper_interop.issues import IssueLog

KINDS = {"a": INTEGER, "b": TEXT, "c": REAL}
ROWS = [(None, None, None)] * 70_000 + [(i, f"x{i}", i / 2) for i in range(5000)]


@pytest.fixture(autouse=True, params=["adbc", "python"])
def driver(request, monkeypatch):
    """Both ways in which rows are read, with and without the extra."""
    if request.param == "python":
        monkeypatch.setattr(sqlite_rows, "find_spec", lambda _: None)


def make_database(path, rows, ddl="CREATE TABLE t(id INTEGER PRIMARY KEY, a, b, c)"):
    with closing(sqlite3.connect(path)) as base:
        base.execute(ddl)
        base.executemany("INSERT INTO t(a, b, c) VALUES(?, ?, ?)", rows)
        base.commit()
    return path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_database(tmp_path_factory.mktemp("made") / "x.db", ROWS).read_bytes()


@pytest.fixture
def base(made, tmp_path):
    path = tmp_path / "a b?#%é.db"
    path.write_bytes(made)
    return path


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def contents(path, kinds=KINDS, table="t"):
    issues = IssueLog()
    with Database(path, issues) as database:
        return database.read(table, kinds), counts(issues)


def test_columns_are_of_the_declared_types_however_many_nulls_come_first(base):
    table, issues = contents(base)
    assert table.schema.types == [pa.int64(), pa.string(), pa.float64()]
    assert list(zip(*table.to_pydict().values(), strict=True)) == ROWS
    assert not issues


def test_an_empty_table_and_absent_columns_have_types_too(tmp_path):
    table, _ = contents(make_database(tmp_path / "x.db", []), {"A": INTEGER, "none": TEXT})
    assert table.schema.names == ["A", "none"]
    assert table.schema.types == [pa.int64(), pa.string()]


def test_nothing_that_a_schema_says_is_run(base):
    with closing(sqlite3.connect(base)) as db:
        db.executescript(
            "CREATE VIEW v AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n;"
            "CREATE TABLE g(a, b TEXT GENERATED ALWAYS AS (hex(zeroblob(4000000))));"
            "INSERT INTO g VALUES (1), (2);"
            "CREATE TRIGGER r AFTER INSERT ON t BEGIN DELETE FROM t; END;"
            "CREATE VIRTUAL TABLE f USING fts5(a);"
            "CREATE VIRTUAL TABLE d USING dbstat(main)"
        )
    with Database(base, IssueLog()) as database:
        assert database.tables["t"] == ("id", "a", "b", "c")
        assert not {"v", "f", "d"} & set(database.tables)
        table = database.read("g", {"a": INTEGER, "b": TEXT})
        assert table.to_pydict() == {"a": [1, 2], "b": [None, None]}
    assert "d" not in sqlite_schema.tables_of(base)


@pytest.mark.parametrize("ahead", [False, True])
def test_a_text_that_rows_have_by_default_is_not_multiplied(tmp_path, ahead):
    path = make_database(tmp_path / "x.db", [(i, "", 0.5) for i in range(2000)])
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"ALTER TABLE t ADD COLUMN d TEXT DEFAULT '{'x' * 500_000}'")
    with Database(path, IssueLog()) as database:
        if ahead:
            database.read_ahead("t", {"d": TEXT})
        with pytest.raises(ReadError, match="many times the file"):
            database.read("t", {"d": TEXT})
        assert database.read("t", {"a": INTEGER}).num_rows == 2000


def test_pages_that_repeat_have_an_end(tmp_path):
    """Each level of pages refers to the next a hundred times: 10 kB of a file are 10**8 rows."""
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA page_size=1024")
        db.execute("CREATE TABLE t(a)")
        db.executemany("INSERT INTO t VALUES(?)", [(1,)] * 100)
        root = db.execute("SELECT rootpage FROM sqlite_master").fetchone()[0]
        db.commit()
    data = bytearray(path.read_bytes())
    leaf = data[(root - 1) * 1024 : root * 1024]
    pages = len(data) // 1024
    for level in range(4):
        below = (pages + level + 2 if level < 3 else pages + 5).to_bytes(4, "big")
        cells = b"".join((100 + 5 * k).to_bytes(2, "big") for k in range(20))
        page = b"\5\0\0" + (20).to_bytes(2, "big") + b"\0d\0" + below + cells
        page = page.ljust(100, b"\0") + (below + b"\1") * 20
        data += page.ljust(1024, b"\0")
    data += leaf
    data[(root - 1) * 1024 : root * 1024] = data[pages * 1024 : (pages + 1) * 1024]
    data[28:32] = (len(data) // 1024).to_bytes(4, "big")
    path.write_bytes(data)
    with closing(sqlite3.connect(path)) as db:
        assert len(db.execute("SELECT a FROM t LIMIT 100000").fetchall()) == 100_000
    with pytest.raises(ReadError, match="repeat many times"), Database(path, IssueLog()):
        pass


def with_a_shared_cell(path, size, leaves):
    """Make a table ``t(a, b)`` whose rows, six a leaf, all have the same pages for a text of so many bytes in ``a``."""
    page = 512
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA page_size={page}")
        db.execute("CREATE TABLE t(a, b TEXT)")
        db.execute("INSERT INTO t VALUES(?, 'b')", ("9" * size,))
        db.commit()
        (root,) = db.execute("SELECT rootpage FROM sqlite_master").fetchone()
    data = bytearray(path.read_bytes())
    leaf = data[(root - 1) * page : root * page]
    begin = int.from_bytes(leaf[8:10], "big")
    payload, after = (
        leaf[begin : begin + 3],
        leaf[begin + 4 :],
    )  # its size (of three bytes), a row number
    cell_bytes, first = 3 + 3 + len(after), len(data) // page + 1
    cells = []
    for number in range(leaves):
        made, starts = bytearray(page), []
        for k in range(min(6, (page - 8) // (cell_bytes + 2))):
            row = 6 * number + k + 1
            starts.append(page - (k + 1) * cell_bytes)
            made[starts[-1] : starts[-1] + cell_bytes] = payload + varint(row) + after
        made[:8] = (
            b"\x0d\0\0" + len(starts).to_bytes(2, "big") + starts[-1].to_bytes(2, "big") + b"\0"
        )
        made[8 : 8 + 2 * len(starts)] = b"".join(at.to_bytes(2, "big") for at in starts)
        data += made
        cells.append((first + number).to_bytes(4, "big") + varint(6 * number + 6))
    top, at = bytearray(page), [page - 7 * (k + 1) for k in range(leaves - 1)]
    top[:12] = (b"\5\0\0" + (leaves - 1).to_bytes(2, "big") + at[-1].to_bytes(2, "big") + b"\0"
                + cells[-1][:4])  # fmt: skip
    top[12 : 12 + 2 * len(at)] = b"".join(place.to_bytes(2, "big") for place in at)
    for place, cell in zip(at, cells, strict=False):
        top[place : place + 7] = cell
    data[(root - 1) * page : root * page] = top
    data[28:32] = (len(data) // page).to_bytes(4, "big")
    path.write_bytes(data)
    return path


def varint(number):
    """A number as SQLite writes it, in three bytes."""
    return bytes([0x80 | number >> 14, 0x80 | number >> 7 & 0x7F, number & 0x7F])


def test_pages_of_a_cell_that_rows_share_are_not_gone_through_for_each(tmp_path):
    """1 MB in each of 300 rows of a file of 1 MB, before the cell that is read: work is the square of the size."""
    path = with_a_shared_cell(tmp_path / "x.db", 1 << 20, 50)
    with closing(sqlite3.connect(path)) as db:
        sizes = db.execute("SELECT count(*), sum(length(a)), max(b) FROM t").fetchone()
    assert sizes == (6 * 50, 6 * 50 << 20, "b")
    with pytest.raises(ReadError, match="repeat many times"), Database(path, IssueLog()):
        pass


@pytest.mark.parametrize("page", slow_from([512, 65536, 4096], 2))
@pytest.mark.parametrize("end", ["", " WITHOUT ROWID"])
def test_long_cells_of_their_own_are_read(tmp_path, page, end):
    """Also if each is continued on a page of its own, and of pages that were free again."""
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        db.execute(f"PRAGMA page_size={page}")
        db.execute(f"CREATE TABLE t(a INTEGER PRIMARY KEY, b TEXT){end}")
        for size in (page - 30, 3 * page, page // 4, page + 1):
            db.execute("DELETE FROM t")
            db.executemany("INSERT INTO t VALUES(?, ?)", [(i, "x" * size) for i in range(40)])
            db.commit()
            with Database(tmp_path / "x.db", IssueLog()) as database:
                table = database.read("t", {"a": INTEGER, "b": TEXT})
            assert table["a"].to_pylist() == list(range(40))
            assert {*table["b"].to_pylist()} == {"x" * size}


@pytest.mark.parametrize("kind", [2, 5])
def test_a_table_too_deep_hides_no_endless_one(tmp_path, kind):
    """Pages below a page are counted again for a table in which they are less deep."""
    size, repeats, shared = 512, 50, 22
    chain = {page: [page + 1] for page in range(2, shared)}
    tree = {
        shared: [shared + 1] * repeats,
        shared + 1: [shared + 2] * repeats,
        shared + 3: [shared],
    }
    pages = [bytearray(size) for _ in range(shared + 3)]
    pages[0][16:18] = size.to_bytes(2, "big")
    for number, below in (chain | tree).items():
        page = pages[number - 1]
        page[0], page[3:5] = kind, (len(below) - 1).to_bytes(2, "big")
        page[8:12] = below[-1].to_bytes(4, "big")
        for k, child in enumerate(below[:-1]):
            at = size - 4 * (k + 1)
            page[12 + 2 * k : 14 + 2 * k] = at.to_bytes(2, "big")
            page[at : at + 4] = child.to_bytes(4, "big")
    (tmp_path / "pages").write_bytes(b"".join(pages))
    assert sqlite_pages.never_ends(tmp_path / "pages", [shared + 3])
    assert sqlite_pages.never_ends(tmp_path / "pages", [2, shared + 3])


@pytest.mark.parametrize("before", [0, 70_000])
def test_cells_of_other_types_are_counted_and_all_others_read(tmp_path, before):
    odd = [("foo", b"\xff", "bar"), ("12", 5, "1.5"), (1.5, 2.5, float("inf")), (2**63 - 1, "", 1)]
    table, issues = contents(make_database(tmp_path / "x.db", [(1, "x", 1.0)] * before + odd))
    assert table.slice(before).to_pydict() == {
        "a": [None, 12, None, 2**63 - 1],
        "b": ["\ufffd", "5", "2.5", ""],
        "c": [None, 1.5, float("inf"), 1.0],
    }
    assert issues == {"cells-of-wrong-type": 3, "text-not-utf-8": 1}


@pytest.mark.parametrize("number", [2**53 + 1, 2**63 - 1])
@pytest.mark.parametrize("kind", [int, str])
def test_whole_numbers_that_no_real_holds_are_rounded(tmp_path, number, kind):
    path = make_database(tmp_path / "x.db", [(1, "x", kind(number)), (2, "y", 0.5)])
    table, issues = contents(path)
    assert table["c"].to_pylist() == [float(number), 0.5]
    assert not issues


def test_times_are_rounded_and_only_those_with_a_fraction_are_counted(tmp_path):
    """Columns have no type here, so that texts stay texts."""
    times = [
        2.5,
        -2.5,
        3,
        4.0,
        "5",
        2**53 + 1,
        9.1e18,
        -(2**63),
        9.3e18,
        float("inf"),
        float("nan"),
    ]
    rows = [(time, "x", 0.5) for time in times]
    table, issues = contents(make_database(tmp_path / "x.db", rows), {"a": TIME})
    unknown = [None] * 3
    assert table["a"].to_pylist() == [3, -3, 3, 4, 5, 2**53 + 1, 91 * 10**17, -(2**63), *unknown]
    assert issues == {
        "time-with-fraction": 2,
        "cells-of-wrong-type": 2,
    }  # SQLite stores NaN as null


def test_times_with_a_fraction_may_be_texts(tmp_path):
    """Of more digits than a real has; a fraction of zeros rounds nothing."""
    times = [
        "1700000000123456789.5",
        "1700000000123456789.49",
        "6.0",
        "1.2.3",
        "-1.5",
        "1.5 ",
        "1.",
        "9999999999999999999.5",
    ]
    rows = [(time, "x", 0.5) for time in times]
    ddl = "CREATE TABLE t(id INTEGER PRIMARY KEY, a TEXT, b, c)"
    table, issues = contents(make_database(tmp_path / "x.db", rows, ddl), {"a": TIME})
    assert table["a"].to_pylist() == [
        1_700_000_000_123_456_790,
        1_700_000_000_123_456_789,
        6,
        *[None] * 5,
    ]
    assert issues == {"cells-of-wrong-type": 5, "time-with-fraction": 2}


def test_threads_may_share_a_database(base):
    with Database(base, IssueLog()) as database, ThreadPoolExecutor(8) as pool:
        tables = list(pool.map(lambda _: database.read("t", KINDS), range(8)))
    assert all(table.equals(tables[0]) for table in tables)


@pytest.mark.parametrize("mode", ["wal", "persist"])
def test_logs_next_to_a_database_count_and_nothing_is_written(tmp_path, mode):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA journal_mode={mode}")
        db.execute("CREATE TABLE t(a, b, c)")
        db.executemany("INSERT INTO t VALUES(?, ?, ?)", [(i, "", 0.5) for i in range(10)])
        db.commit()
        before = files_of(tmp_path)
        table, issues = contents(path)
        assert files_of(tmp_path) == before
    assert table.num_rows == 10
    assert not issues


@pytest.mark.parametrize(
    ("at", "rows", "lost"),
    [
        (0, 0, 3),  # the log's header: no page is applied
        (9, 0, 1),  # the size of pages there
        (17, 0, 3),  # the salts there
        (32 + 9, 0, 3),  # the salts of the first page
        (32 + 24 + 4096 + 100, 1, 2),  # the second transaction
        (-100, 2, 1),
    ],
)
def test_transactions_behind_damage_of_a_log_are_counted(tmp_path, at, rows, lost):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t(a, b, c)")
        db.execute("PRAGMA journal_mode=wal")
        for number in range(3):
            db.execute("INSERT INTO t VALUES(?, '', 0.5)", (number,))
            db.commit()
        log = bytearray((tmp_path / "x.db-wal").read_bytes())
        for name in ("x.db", "x.db-wal"):
            (tmp_path / f"copy-{name}").write_bytes((tmp_path / name).read_bytes())
    log[at] ^= 0xFF
    (tmp_path / "copy-x.db-wal").write_bytes(log)
    table, issues = contents(tmp_path / "copy-x.db")
    assert table.num_rows == rows
    assert issues == {"database-log-damaged": lost}


def test_pages_of_an_older_log_are_no_damage(tmp_path):
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE t(a, b, c)")
        db.execute("PRAGMA journal_mode=wal")
        db.executemany("INSERT INTO t VALUES(?, ?, 0.5)", [(i, "x" * 3000) for i in range(20)])
        db.commit()
        db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
        db.execute("INSERT INTO t VALUES(20, '', 0.5)")
        db.commit()
        table, issues = contents(path)
    assert table.num_rows == 21
    assert not issues


def test_an_unfinished_transaction_is_undone(tmp_path):
    path = make_database(tmp_path / "x.db", [(i, "x" * 500, 0.5) for i in range(1000)])
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA cache_size=1")
        db.execute("BEGIN")
        db.execute("UPDATE t SET a = -1")
        crashed = tmp_path / "crashed.db"
        crashed.write_bytes(path.read_bytes())
        journal = (tmp_path / "x.db-journal").read_bytes()
        (tmp_path / "crashed.db-journal").write_bytes(journal)
    table, _ = contents(crashed)
    assert table["a"].to_pylist() == list(range(1000))


def test_a_journal_that_names_a_file_of_others_removes_it_not(tmp_path):
    """SQLite undoes the transaction, and removes a super-journal that no journal names any more."""
    path, page = make_database(tmp_path / "x.db", [(1, "", 0.5)]), 4096
    kept = tmp_path / "elsewhere" / "kept.txt"
    kept.parent.mkdir()
    kept.write_text("keep me")
    name = os.fsencode(kept)
    magic = bytes.fromhex("d9d505f920a163d7")
    header = magic + struct.pack(">5I", 0, 1, path.stat().st_size // page, 512, page)
    named = struct.pack(">I", 2**30 // page + 1) + name + struct.pack(">2I", len(name), sum(name))
    (tmp_path / "x.db-journal").write_bytes(header.ljust(512, b"\0") + named + magic)
    with pytest.raises(ReadError, match="over several databases"):
        contents(path)
    assert kept.read_text() == "keep me"


def test_a_locked_file_is_read(base):
    with closing(sqlite3.connect(base, isolation_level=None)) as db:
        db.execute("BEGIN EXCLUSIVE")
        assert contents(base)[0].num_rows == len(ROWS)


@pytest.mark.parametrize(
    "pack",
    slow_from(
        [
            lambda raw: gzip.compress(raw, 1),
            lambda raw: pa.compress(raw, "zstd", asbytes=True),
            lzma.compress,
        ],
        2,
    ),
)
def test_copies_of_compressed_databases_are_removed(base, tmp_path, monkeypatch, pack):
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    packed = tmp_path / "packed"
    packed.write_bytes(pack(base.read_bytes()))
    assert contents(packed)[0].num_rows == len(ROWS)
    assert not list(folder.iterdir())


def test_rows_before_the_end_of_a_truncated_file_are_read(base, tmp_path):
    raw = base.read_bytes()
    cut = tmp_path / "cut.db"
    rows = []
    for part in (0.5, 0.9, 1):
        cut.write_bytes(raw[: int(len(raw) * part)])
        table, issues = contents(cut)
        rows.append(table.num_rows)
        assert list(zip(*table.to_pydict().values(), strict=True)) == ROWS[: table.num_rows]
        assert issues == ({"database-damaged": 1} if part < 1 else {})
    assert 0 < rows[0] < rows[1] < rows[2] == len(ROWS)


def test_rows_before_and_behind_a_damaged_page_are_read(tmp_path):
    path = make_database(tmp_path / "x.db", [(i, "x" * 50, 0.5) for i in range(5000)])
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 2 // 4096 * 4096
    raw[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(raw)
    table, issues = contents(path)
    values = table["a"].to_pylist()
    assert 4800 < len(values) < 5000
    assert values[0] == 0
    assert values[-1] == 4999
    assert issues == {"database-damaged": 1}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no database" * 100,
        MAGIC,
        MAGIC + bytes(range(256)) * 64,
        gzip.compress(b"x", mtime=0),  # else each of several test processes has another
    ],
)
def test_a_file_that_is_no_database_is_refused_in_one_line(tmp_path, raw):
    path = tmp_path / "x.db"
    path.write_bytes(raw)
    with pytest.raises(ReadError) as error:
        Database(path, IssueLog())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("known", ["rpd", None])
def test_a_length_that_no_memory_has_is_damage(tmp_path: Path, known: str | None) -> None:
    """It was a defect of the reader that looked at it, or too little memory."""
    path = tmp_path / "x.rpd"
    path.write_bytes((Path(__file__).parents[1] / "corpus/rpd-8").read_bytes()[1:])
    with pytest.raises(ReadError, match="its schema is damaged"):
        ci.read(path, from_format=known)

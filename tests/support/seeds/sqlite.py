"""SQLite databases: rocpd of rocprofv3, rpd of rocmProfileData."""

from __future__ import annotations

import gzip
import lzma
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import rocpd
import rpd

from chopper_interop.errors import ReadError, UnknownFormatError
from seeds import Odd, Reads, Refused, Seed, reads

if TYPE_CHECKING:
    from collections.abc import Callable

SUFFIX = "_" + rocpd.GUID.replace("-", "_")


def made(make: Callable[[Path], object], *sql: str) -> bytes:
    """Bytes of a database, changed by statements in which ``?`` is the suffix of its tables."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.db"
        make(path)
        with closing(rocpd.in_one_transaction(path)) as base:
            for statement in sql:
                base.execute(statement.replace("?", SUFFIX))
            base.commit()
        return path.read_bytes()


def utf_16(path: Path) -> None:
    """A database whose texts are in UTF-16."""
    with closing(sqlite3.connect(path)) as base:
        base.execute("PRAGMA encoding = 'UTF-16le'")
        base.execute("CREATE TABLE first (x)")
        base.commit()
    rocpd.small(path)


ROCPD = made(rocpd.small)
FIRST = made(lambda path: rocpd.small(path, "3"))
RPD = made(rpd.small)
RPD_3 = made(lambda path: rpd.small(path, 3))
SEEDS = [
    Seed("rocpd", "rocpd.db", ROCPD),
    Seed("rocpd", "rocpd3.db", FIRST),
    Seed("rpd", "x.rpd", RPD),
    Seed("rpd", "x3.rpd", RPD_3),
]

ROWS = {"counter_row": 16}
UTF_16 = made(utf_16)


def _rocpd(name: str, outcome: Reads | Refused, *sql: str) -> Odd:
    return Odd(f"rocpd, {name}", {"x.db": made(rocpd.small, *sql)}, outcome)


def _rpd(name: str, outcome: Reads, *sql: str) -> Odd:
    return Odd(f"rpd, {name}", {"x.rpd": made(rpd.small, *sql)}, outcome)


ODD = [
    *(
        Odd(f"rocpd, {how}", {name: data}, reads(13, **ROWS))
        for how, name, data in (
            ("as it is", "x.db", ROCPD),
            ("packed with gzip", "x.db.gz", gzip.compress(ROCPD)),
            ("packed with xz", "x.db.xz", lzma.compress(ROCPD)),
            ("packed with zstd", "x.db.zst", pa.compress(ROCPD, "zstd", asbytes=True)),
            ("called otherwise", "x.txt", ROCPD),
            ("texts in UTF-16", "x.db", UTF_16),
            ("pages behind its end", "x.db", ROCPD + bytes(8192)),
            ("rubbish behind its end", "x.db", ROCPD + b"rubbish"),
        )
    ),
    _rocpd("every row twice", reads(14, **ROWS, kernel_recorded_twice=1),
        "CREATE TABLE t AS SELECT * FROM rocpd_memory_copy?", "UPDATE t SET id = id + 1000",
        "INSERT INTO rocpd_memory_copy? SELECT * FROM t", "DROP TABLE t"),
    Odd("rocpd, all tables empty", {"x.db": made(lambda path: rocpd.Base(path).close())},
        Refused(ReadError, "no events")),
    Odd("rocpd, no tables but two",
        {"x.db": made(lambda _: None, "CREATE TABLE rocpd_string (id, string)",
            "CREATE TABLE rocpd_info_node (id)")}, Refused(ReadError, "no events")),
    _rocpd("times as texts", reads(13, **ROWS),
        "CREATE TABLE t AS SELECT id, nid, pid, tid, CAST(start AS TEXT) AS start, "
        "CAST(end AS TEXT) AS end, name_id, event_id FROM rocpd_region?",
        "PRAGMA writable_schema = ON", "DROP TABLE rocpd_region?",
        "ALTER TABLE t RENAME TO rocpd_region?"),
    _rocpd("cells of other types",
        reads(12, cells_of_wrong_type=3, event_without_time=1, counter_row_without_value=1,
            dispatch_without_time=15),
        "UPDATE rocpd_kernel_dispatch? SET start = 'soon' WHERE id = 1",
        "UPDATE rocpd_pmc_event? SET value = 'much' WHERE id = 1",
        "UPDATE rocpd_memory_copy? SET size = x'00ff'"),
    _rocpd("numbers beyond all bounds",
        reads(13, counter_row=8, counter_row_without_value=8, number_out_of_range=2, agent_unknown=1),
        "UPDATE rocpd_kernel_dispatch? SET agent_id = 9223372036854775807 WHERE id = 1",
        "UPDATE rocpd_kernel_dispatch? SET stream_id = -9223372036854775808 WHERE id = 2",
        "UPDATE rocpd_pmc_event? SET value = 9e999 WHERE pmc_id = 11"),
    _rocpd("texts that are not UTF-8 and NUL bytes", reads(13, **ROWS, text_not_utf_8=1),
        "UPDATE rocpd_string? SET string = CAST(x'ff41' AS TEXT) WHERE string = 'hsa_signal_wait'",
        "UPDATE rocpd_string? SET string = CAST(x'410042' AS TEXT) WHERE string = 'HIP_EVENT_WAIT'"),
    _rocpd("foreign columns and tables", reads(13, **ROWS),
        "ALTER TABLE rocpd_region? ADD COLUMN colour TEXT", "CREATE TABLE other (start, end)"),
    _rocpd("names gone", reads(13, **ROWS, name_unknown=7), "DELETE FROM rocpd_string?"),
    _rocpd("the environment is no JSON", reads(13, **ROWS, extdata_unreadable=1),
        "UPDATE rocpd_info_process? SET environment = '{', extdata = '['"),
    Odd("rocpd, cut before the definitions of its tables end", {"x.db": ROCPD[:100_100]},
        Refused(ReadError, "malformed")),
    Odd("rocpd, cut within its first page", {"x.db": ROCPD[:3000]},
        Refused(UnknownFormatError, "no format")),
    Odd("rpd, schema 2", {"x.rpd": RPD}, reads(8, 3)),
    Odd("rpd, schema 3", {"x.rpd": RPD_3}, reads(8, 3, counter_row=2)),
    _rpd("no strings", reads(8, 3, name_unknown=8), "DROP TABLE rocpd_string"),
    _rpd("operations without ends", reads(8, 3, event_without_end=3, cells_of_wrong_type=3),
        "UPDATE rocpd_op SET \"end\" = 'soon'"),
    _rpd("calls alone", reads(5, launch_without_ends=2, dependency_without_ends=1),
        "DROP TABLE rocpd_op", "DROP TABLE rocpd_monitor"),
    _rpd("monitors without numbers", reads(8, 2, monitor_without_number=1),
        "UPDATE rocpd_monitor SET value = 'NaN' WHERE id = 1"),
    Odd("a database of something else", {"x.db": made(lambda _: None, "CREATE TABLE t (x)")},
        Refused(UnknownFormatError, "no format")),
]  # fmt: skip

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
from seeds import Odd, Reads, Refused, Seed

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

ROWS = {"counter-row": 16}
UTF_16 = made(utf_16)
ODD = [
    *(
        Odd(f"rocpd, {how}", {name: data}, Reads(nodes=13, issues=ROWS))
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
    Odd(
        "rocpd, every row twice",
        {
            "x.db": made(
                rocpd.small,
                "CREATE TABLE t AS SELECT * FROM rocpd_memory_copy?",
                "UPDATE t SET id = id + 1000",
                "INSERT INTO rocpd_memory_copy? SELECT * FROM t",
                "DROP TABLE t",
            )
        },
        Reads(nodes=14, issues={**ROWS, "kernel-recorded-twice": 1}),
    ),
    Odd(
        "rocpd, all tables empty",
        {"x.db": made(lambda path: rocpd.Base(path).close())},
        Refused(ReadError, "no events"),
    ),
    Odd(
        "rocpd, no tables but two",
        {
            "x.db": made(
                lambda _: None,
                "CREATE TABLE rocpd_string (id, string)",
                "CREATE TABLE rocpd_info_node (id)",
            )
        },
        Refused(ReadError, "no events"),
    ),
    Odd(
        "rocpd, times as texts",
        {
            "x.db": made(
                rocpd.small,
                "CREATE TABLE t AS SELECT id, nid, pid, tid, CAST(start AS TEXT) AS start, "
                "CAST(end AS TEXT) AS end, name_id, event_id FROM rocpd_region?",
                "PRAGMA writable_schema = ON",
                "DROP TABLE rocpd_region?",
                "ALTER TABLE t RENAME TO rocpd_region?",
            )
        },
        Reads(nodes=13, issues=ROWS),
    ),
    Odd(
        "rocpd, cells of other types",
        {
            "x.db": made(
                rocpd.small,
                "UPDATE rocpd_kernel_dispatch? SET start = 'soon' WHERE id = 1",
                "UPDATE rocpd_pmc_event? SET value = 'much' WHERE id = 1",
                "UPDATE rocpd_memory_copy? SET size = x'00ff'",
            )
        },
        Reads(
            nodes=12,
            issues={
                "cells-of-wrong-type": 3,
                "event-without-time": 1,
                "counter-without-value": 1,
                "dispatch-without-time": 15,
            },
        ),
    ),
    Odd(
        "rocpd, numbers beyond all bounds",
        {
            "x.db": made(
                rocpd.small,
                "UPDATE rocpd_kernel_dispatch? SET agent_id = 9223372036854775807 WHERE id = 1",
                "UPDATE rocpd_kernel_dispatch? SET stream_id = -9223372036854775808 WHERE id = 2",
                "UPDATE rocpd_pmc_event? SET value = 9e999 WHERE pmc_id = 11",
            )
        },
        Reads(
            nodes=13,
            issues={
                "counter-row": 8,
                "counter-without-value": 8,
                "number-out-of-range": 2,
                "agent-unknown": 1,
            },
        ),
    ),
    Odd(
        "rocpd, texts that are not UTF-8 and NUL bytes",
        {
            "x.db": made(
                rocpd.small,
                "UPDATE rocpd_string? SET string = CAST(x'ff41' AS TEXT) WHERE string = 'hsa_signal_wait'",
                "UPDATE rocpd_string? SET string = CAST(x'410042' AS TEXT) WHERE string = 'HIP_EVENT_WAIT'",
            )
        },
        Reads(nodes=13, issues={**ROWS, "text-not-utf-8": 1}),
    ),
    Odd(
        "rocpd, foreign columns and tables",
        {
            "x.db": made(
                rocpd.small,
                "ALTER TABLE rocpd_region? ADD COLUMN colour TEXT",
                "CREATE TABLE other (start, end)",
            )
        },
        Reads(nodes=13, issues=ROWS),
    ),
    Odd(
        "rocpd, names gone",
        {"x.db": made(rocpd.small, "DELETE FROM rocpd_string?")},
        Reads(nodes=13, issues={**ROWS, "name-unknown": 7}),
    ),
    Odd(
        "rocpd, the environment is no JSON",
        {
            "x.db": made(
                rocpd.small, "UPDATE rocpd_info_process? SET environment = '{', extdata = '['"
            )
        },
        Reads(nodes=13, issues={**ROWS, "extdata-unreadable": 1}),
    ),
    Odd(
        "rocpd, cut before the definitions of its tables end",
        {"x.db": ROCPD[:100_100]},
        Refused(ReadError, "malformed"),
    ),
    Odd(
        "rocpd, cut within its first page",
        {"x.db": ROCPD[:3000]},
        Refused(UnknownFormatError, "no format"),
    ),
    Odd("rpd, schema 2", {"x.rpd": RPD}, Reads(nodes=8, samples=3)),
    Odd("rpd, schema 3", {"x.rpd": RPD_3}, Reads(nodes=8, samples=3, issues={"counter-row": 2})),
    Odd(
        "rpd, no strings",
        {"x.rpd": made(rpd.small, "DROP TABLE rocpd_string")},
        Reads(nodes=8, samples=3, issues={"name-unknown": 8}),
    ),
    Odd(
        "rpd, operations without ends",
        {"x.rpd": made(rpd.small, "UPDATE rocpd_op SET \"end\" = 'soon'")},
        Reads(nodes=8, samples=3, issues={"event-without-end": 3, "cells-of-wrong-type": 3}),
    ),
    Odd(
        "rpd, calls alone",
        {"x.rpd": made(rpd.small, "DROP TABLE rocpd_op", "DROP TABLE rocpd_monitor")},
        Reads(nodes=5, issues={"launch-without-ends": 2, "dependency-without-ends": 1}),
    ),
    Odd(
        "rpd, monitors without numbers",
        {"x.rpd": made(rpd.small, "UPDATE rocpd_monitor SET value = 'NaN' WHERE id = 1")},
        Reads(nodes=8, samples=2, issues={"monitor-without-number": 1}),
    ),
    Odd(
        "a database of something else",
        {"x.db": made(lambda _: None, "CREATE TABLE t (x)")},
        Refused(UnknownFormatError, "no format"),
    ),
]

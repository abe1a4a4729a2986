# ruff: noqa: S608
"""Files made to exhaust whoever reads them, at full size or scaled down.

`FILES` has for each what it is, the name of the file, and a function that writes it at a scale: 1 is full size.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
import sqlite3
import zlib
from contextlib import closing
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from protobuf_wire import varint

import chopper_interop as ci
from chopper_interop.testing.samples import tiny_trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

GB, MILLION = 10**9, 10**6
EVENT = b'{"ph":"X","cat":"kernel","name":%s,"ts":%s,"dur":1,"pid":0,"tid":7,"args":%s}'
TRACE = b'{"schemaVersion":1,"traceEvents":[%s]}'
HOST_ET = b'{"schema":"1.1.1-chakra.0.0.4","nodes":[{"id":%s,"name":"a","ctrl_deps":1,"attrs":%s}]}'
SDK = b'{"rocprofiler-sdk-tool":[{"metadata":{},"buffer_records":{"kernel_dispatch":[%s]}}]}'
AMD = b'[{"gpu":0,"timestamp":1700000000,"power":{"socket_power":{"value":%s,"unit":"W"}}}]'
CSV = (
    b'"Kind","Agent_Id","Queue_Id","Kernel_Name","Correlation_Id","Start_Timestamp","End_Timestamp"\n'
    b'"KERNEL_DISPATCH",1,1,%s,1,%s,2\n'
)
LARGE = {
    b"\1digits\1": (b"9", 100 * MILLION),
    b"\1letters\1": (b"x", GB),
    b"\1lists\1": (b"[", MILLION),
    b"\1objects\1": (b'{"a":', MILLION),
    b"\1ends\1": (b"}", MILLION),
}
"""Placeholders for text that is too long to be kept, and how often which text is repeated at full size."""
DIGITS, LISTS, OBJECTS, TEXT = b"\1digits\1", b"\1lists\1", b"\1objects\1", b'"\1letters\1"'
NESTED = OBJECTS + b"1" + b"\1ends\1"


def filled(pattern: bytes, path: Path, scale: float) -> None:
    """Write a file in which `LARGE` is repeated."""
    with path.open("wb") as file:
        for part in re.split(rb"(\x01\w+\x01)", pattern):
            repeated, times = LARGE.get(part, (part, 1))
            times = max(1, round(times * scale)) if part in LARGE else 1
            block = min(times, MILLION)
            for _ in range(times // block):
                file.write(repeated * block)


def event(name: bytes = b'"a"', ts: bytes = b"1", args: bytes = b"{}") -> Callable[..., None]:
    """A trace with an ordinary event and one of these members."""
    events = b",".join([EVENT % (b'"b"', b"5", b"{}"), EVENT % (name, ts, args)])
    return partial(filled, TRACE % events)


def bomb(opened: Callable[[str], Any], path: Path, scale: float) -> None:
    """A trace, cut short, that is followed by 4 GB of blanks."""
    block = b" " * (1 << 20)
    with opened(str(path)) as file:
        file.write(TRACE[:-2] % EVENT % (b'"a"', b"1", b"{}"))
        for _ in range(round(4 * GB * scale) >> 20):
            file.write(block)


def nested_bomb(path: Path, scale: float) -> None:
    """A bomb in gzip in gzip."""
    gzip_bomb(path, scale)
    path.write_bytes(gzip.compress(gzip.compress(path.read_bytes())))


def folder_of_bombs(path: Path, scale: float) -> None:
    """Eight bombs next to a sound trace."""
    path.mkdir()
    gzip_bomb(path / "0.json.gz", scale)
    for number in range(1, 8):
        (path / f"{number}.json.gz").write_bytes((path / "0.json.gz").read_bytes())
    (path / "a.json").write_bytes(TRACE % EVENT % (b'"b"', b"5", b"{}"))


gzip_bomb = partial(bomb, partial(gzip.open, mode="wb"))


def packets_bomb(path: Path, scale: float) -> None:
    """A sound trace, and a hundred compressed packets of 100 MB each."""
    packed = zlib.compress(b"\x0a\x02\x08\x01" * round(scale * GB / 40), 9)
    packet = b"\x92\x03" + varint(len(packed)) + packed
    ci.write(tiny_trace(), path)
    path.write_bytes(path.read_bytes() + (b"\x0a" + varint(len(packet)) + packet) * 100)


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n {})"
OPERATION = """
CREATE TABLE rocpd_op(id INTEGER PRIMARY KEY, gpuId INTEGER, queueId INTEGER, sequenceId INTEGER,
    start INTEGER, end INTEGER, description_id INTEGER, opType_id INTEGER);
INSERT INTO rocpd_op VALUES(1, 0, 0, 0, 1000, 1010, 1, 1);
"""
CALLS = f"""
CREATE TABLE rocpd_api(id INTEGER PRIMARY KEY, pid INTEGER, tid INTEGER, start INTEGER, end INTEGER,
    apiName_id INTEGER, args_id INTEGER);
CREATE TABLE rocpd_string(id INTEGER PRIMARY KEY, string TEXT);
INSERT INTO rocpd_api {NUMBERS.format("LIMIT 2000")} SELECT i, 1, 1, i * 10, i * 10 + 5, 1, 1 FROM n;
"""
RUNS = f"""
CREATE VIEW rocpd_api AS {NUMBERS.format("")} SELECT i AS id, i AS start, i AS end FROM n;
CREATE TABLE rocpd_string(id INTEGER, string TEXT GENERATED ALWAYS AS (hex(zeroblob({{}}))));
INSERT INTO rocpd_string(id) VALUES (1), (2), (3);
CREATE VIRTUAL TABLE rocpd_monitor USING dbstat(main);
CREATE TRIGGER t AFTER INSERT ON rocpd_op BEGIN DELETE FROM rocpd_op; END;
"""
SHARED = CALLS + "INSERT INTO rocpd_string VALUES (1, hex(zeroblob({})));"
DEFAULT = (
    CALLS
    + "ALTER TABLE rocpd_string ADD COLUMN t;"
    + (
        f"CREATE TABLE rocpd_monitor(id INTEGER PRIMARY KEY);"
        f"INSERT INTO rocpd_monitor {NUMBERS.format('LIMIT 100000')} SELECT i FROM n;"
        "ALTER TABLE rocpd_monitor ADD COLUMN value TEXT DEFAULT '{}';"
    )
)


def database(schema: str, size: int, path: Path, scale: float) -> None:
    """A database with the tables of rpd and statements, `size` bytes of a text at full size."""
    with closing(sqlite3.connect(path)) as base:
        size = round(size * scale)
        text = "x" * size if "DEFAULT" in schema else str(size)
        base.executescript(OPERATION + schema.replace("{}", text))
        base.commit()


def entities(path: Path, _scale: float) -> None:
    """Entities that consist of ten others each: 10 billion letters in a kilobyte."""
    names = [b"e%d" % k for k in range(10)]
    defined = [b'<!ENTITY %b "%b">' % (n, b"&%b;" % m * 10) for m, n in pairwise(names)]
    path.write_bytes(
        b'<?xml version="1.0"?><!DOCTYPE nvidia_smi_log [<!ENTITY e0 "aaaaaaaaaa">'
        + b"".join(defined)
        + b']><nvidia_smi_log><timestamp>&e9;</timestamp><gpu id="0"></gpu></nvidia_smi_log>'
    )


def parquet_bomb(path: Path, scale: float) -> None:
    """A trace's folder whose nodes are 2 * 10**8 equal rows, of a megabyte or so."""
    ci.write(tiny_trace(), path)
    for file in (path / "nodes").glob("*.parquet"):
        row = pq.read_table(file).slice(0, 1)
        some = pa.concat_tables([row] * 1000).combine_chunks()
        many = pa.concat_tables([some] * 1000).combine_chunks()
        with pq.ParquetWriter(file, row.schema, compression="zstd") as writer:
            for _ in range(max(2, round(200 * scale))):
                writer.write_table(many)


def lying_packets(path: Path, _scale: float) -> None:
    """A sound trace, and a packet whose lengths are 2**63."""
    ci.write(tiny_trace(), path)
    lie = b"\xff" * 9 + b"\x01"
    path.write_bytes(path.read_bytes() + b"\x0a\x0c\x5a" + lie + b"\x0a" + lie)


def lying_et(path: Path, _scale: float) -> None:
    """An ET whose first message has a terabyte, it says."""
    path.write_bytes(varint(2**40) + b"\x08\x01" + b"\xff" * 100)


def overlapping(path: Path, scale: float) -> None:
    """Write kernels of one stream that all run at the same time."""
    count = round(400_000 * scale)
    event = (
        b'{"ph":"X","cat":"kernel","name":"k","ts":%d,"dur":%d,"pid":0,"tid":7,"args":{"stream":7}}'
    )
    events = b",".join(event % (i, 2 * count + i) for i in range(count))
    path.write_bytes(TRACE % events)


FILES: dict[str, tuple[str, Callable[[Path, float], None]]] = {
    "gzip bomb": ("a.json.gz", gzip_bomb),
    "gzip bomb in gzip in gzip": ("a.json.gz", nested_bomb),
    "xz bomb": ("a.json.xz", partial(bomb, partial(lzma.open, mode="wb", preset=0))),
    "bzip2 bomb": ("a.json.bz2", partial(bomb, partial(bz2.open, mode="wb"))),
    "zstd bomb": ("a.json.zst", partial(bomb, lambda p: pa.CompressedOutputStream(p, "zstd"))),
    "eight bombs next to a trace": ("folder", folder_of_bombs),
    "bomb of compressed packets": ("a.pftrace", packets_bomb),
    "deep lists": ("a.json", partial(filled, LISTS)),
    "deep objects": ("a.json", partial(filled, OBJECTS)),
    "deep Kineto, events": ("a.json", partial(filled, TRACE % LISTS)),
    "deep Kineto, arguments": ("a.json", event(args=NESTED)),
    "deep Kineto, open arguments": ("a.json", event(args=OBJECTS)),
    "deep host ET": ("a.json", partial(filled, HOST_ET % (b"1", LISTS))),
    "deep rocprofv3 JSON": ("a_results.json", partial(filled, SDK % LISTS)),
    "deep amd-smi": ("a.json", partial(filled, AMD % LISTS)),
    "long name in Kineto": ("a.json", event(name=TEXT)),
    "long argument in Kineto": ("a.json", event(args=b'{"a":' + TEXT + b"}")),
    "slices that all overlap": ("a.json", overlapping),
    "long text in amd-smi": ("a.json", partial(filled, AMD % TEXT)),
    "long name in rocprofv3 CSV": ("a.csv", partial(filled, CSV % (TEXT, b"1"))),
    "digits of a time in Kineto": ("a.json", event(ts=DIGITS)),
    "digits of an argument in Kineto": ("a.json", event(args=b'{"Grid":' + DIGITS + b"}")),
    "digits in amd-smi": ("a.json", partial(filled, AMD % DIGITS)),
    "digits of an id in a host ET": ("a.json", partial(filled, HOST_ET % (DIGITS, b"[]"))),
    "digits of a time in rocprofv3 CSV": ("a.csv", partial(filled, CSV % (b'"k"', DIGITS))),
    "SQLite: schema that runs": ("a.rpd", partial(database, RUNS, 2 * GB // 5)),
    "SQLite: text of 2000 calls": ("a.rpd", partial(database, SHARED, GB // 20)),
    "SQLite: default text": ("a.rpd", partial(database, DEFAULT, MILLION)),
    "XML: entities of entities": ("a.xml", entities),
    "Parquet: equal rows": ("a.parquet", parquet_bomb),
    "protobuf: lengths beyond the file": ("a.pftrace", lying_packets),
    "ET: lengths beyond the file": ("a.0.et", lying_et),
}

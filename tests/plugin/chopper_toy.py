"""Example of a plug-in for chopper-interop: the format "toy" and the analysis "toy_longest".

A toy file is CSV: a line ``#chopper-toy 1``, the names of the columns, and a row for each range on
a host thread, with times in microseconds with up to three decimals:

    #chopper-toy 1
    rank,thread,name,start_us,duration_us
    0,17,load batch,0.5,12.25
"""

from __future__ import annotations

import csv
import io
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ReadError
from chopper_interop.io import outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import Converter
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

FIRST_LINE = "#chopper-toy 1"
COLUMNS = ["rank", "thread", "name", "start_us", "duration_us"]

BAD_ROW = Fault.loss_of_events("toy-row-malformed", "Malformed rows were left out.")
CUT = Fault.loss("toy-file-cut", "The last line is incomplete: rows may be missing.")

Row = tuple[int, int, str, int, int]


def sniff(head: bytes) -> bool:
    """Return True if a file that begins with these bytes is a toy file."""
    return head.startswith(FIRST_LINE.encode())


def read(paths: list[Path], *, shift_us: int = 0) -> Trace:
    """Read one toy file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    shift_us
        Add this to all starts.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise ReadError("it is not UTF-8", path=path, at=f"byte {error.start}") from error
    if not text.endswith("\n"):
        issues.add(CUT, 1, text[-40:])
    first, _, table = text.partition("\n")
    lines = list(csv.reader(io.StringIO(table.replace("\0", "�"))))
    if first.strip() != FIRST_LINE or not lines or lines[0] != COLUMNS:
        raise ReadError("it does not begin like a toy file", path=path, at="line 1")
    parsed = [_row(line) for line in lines[1:]]
    rows = [row for row in parsed if row is not None]
    issues.add(BAD_ROW, len(parsed) - len(rows))
    trace = _trace(rows, shift_us * 1000, path)
    source = Source(str(path), "toy", size=len(text), events=len(parsed), nodes=len(rows))
    return trace.with_meta(sources=(source,), issues=tuple(issues))


def _row(cells: list[str]) -> Row | None:
    """Parse rank, thread, name, start and duration in nanoseconds; None if the row is malformed."""
    try:
        rank, thread, name, start, duration = cells
        times = [int(Decimal(cell) * 1000) for cell in (start, duration)]
        row = (int(rank), int(thread), name, times[0], times[1])
    except (ValueError, InvalidOperation, OverflowError):
        return None
    in_range = 0 <= row[0] < 2**31 and abs(row[1]) < 2**62 and 0 <= row[4] < 2**62
    return row if in_range and abs(row[3]) < 2**62 else None


def _trace(rows: list[Row], shift_ns: int, path: Path) -> Trace:
    ranks = sorted({row[0] for row in rows})
    builder = TraceBuilder(
        Meta(job=path.stem, ranks=tuple(Rank(r, known_by="header") for r in ranks))
    )
    if rows:
        rank, thread, name, ts, dur = zip(*rows, strict=True)
        lanes = [
            builder.lane(r, LaneKind.THREAD, t, f"thread {t}")
            for r, t in zip(rank, thread, strict=True)
        ]
        builder.nodes(
            kind=int(Kind.ANNOTATION),
            name=pa.array(name),
            rank=np.array(rank, np.int32),
            lane=np.array(lanes, np.int32),
            ts=np.array(ts, np.int64) + shift_ns,
            dur=np.array(dur, np.int64),
        )
    return builder.finish()


def write(trace: Trace, path: Path) -> None:
    """Write the nodes as ranges of host threads."""
    names, lanes = trace.names(), trace.array("number", "lanes")
    columns = (trace.array(c).tolist() for c in ("rank", "lane", "name", "ts", "dur"))
    with outputs.file(path) as stream:
        text = io.TextIOWrapper(stream, "utf-8", newline="")
        text.write(f"{FIRST_LINE}\n")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for rank, lane, name, ts, dur in zip(*columns, strict=True):
            start = Decimal(ts + trace.meta.origin_ns) / 1000
            writer.writerow([rank, lanes[lane], names[name], start, Decimal(dur) / 1000])
        text.detach()


def toy_longest(trace: Trace, *, top: int = 3) -> Result:
    """Find the longest nodes.

    Parameters
    ----------
    trace
        Any trace.
    top
        Number of nodes.
    """
    dur, names = trace.array("dur"), trace.names()
    rows = np.argsort(-dur, kind="stable")[:top]
    table = pa.table(
        {
            "name": pa.array([names[trace.array("name")[row]] for row in rows], pa.string()),
            "dur_ns": pa.array(dur[rows], pa.int64()),
        }
    )
    return Result("toy_longest", table, {"nodes": trace.nodes.num_rows})


TOY = Converter(
    name="toy",
    description="toy ranges (CSV)",
    versions="1",
    suffixes=(".toy.csv",),
    sniff=sniff,
    read=read,
    write=write,
    carries="host ranges",
)

# ruff: noqa: S608
"""Reading a rocpd database of many dispatches: how much of the time is SQLite's.

Usage: ``python tests/benchmarks/rocpd.py [DISPATCHES] [FILE]``. The database holds a call for each
dispatch; it is made unless there is a file. Shares are of processor seconds of the second reading
in one process, all threads together, as a busy machine does not change them much.
"""

import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

import rocpd

from chopper_interop.converters.rocpd.reader import read
from chopper_interop.io.sqlite import Database

SPENT = {"SQLite to Arrow": 0.0, "nodes, lanes, edges": 0.0}


def timed(stage: str, owner: object, name: str) -> None:
    """Add the time that a function takes to a stage."""
    function = getattr(owner, name)

    def measured(*args, **kwargs):
        start = time.thread_time()  # several tables are read at a time
        try:
            return function(*args, **kwargs)
        finally:
            SPENT[stage] += time.thread_time() - start

    setattr(owner, name, measured)


def plain(path: Path) -> float:
    """Seconds that sqlite3 alone takes to step over the same cells in C, without giving them."""
    import sqlite3

    start = time.process_time()
    with sqlite3.connect(path) as base:
        for table in ("event", "region", "kernel_dispatch"):
            columns = [row[1] for row in base.execute(f"PRAGMA table_info(rocpd_{table})")]
            cells = " + ".join(f'total(length("{column}"))' for column in columns)
            base.execute(f"SELECT {cells} FROM rocpd_{table}").fetchall()
    return time.process_time() - start


def main() -> None:
    """Make the database, read it twice, print shares."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as folder:
        path = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(folder) / "large.db"
        if not path.exists():
            rocpd.large(path, count)
        read([path])
        timed("SQLite to Arrow", Database, "_fetched")
        from chopper_interop.converters import rocpd as converter

        timed("nodes, lanes, edges", converter, "trace_of")
        begin, start = time.perf_counter(), time.process_time()
        trace = read([path])
        process_time, wall = time.process_time() - start, time.perf_counter() - begin
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        size = path.stat().st_size / 1e6
        print(
            f"{count:,} dispatches, {trace.nodes.num_rows:,} nodes, {size:,.0f} MB: "
            f"{process_time:.2f} s of processors, {wall:.2f} s by the clock, {memory:,.0f} MiB at most"
        )
        for stage, spent in {**SPENT, "joins": process_time - sum(SPENT.values())}.items():
            print(f"  {stage:24} {spent:6.2f} s {spent / process_time:6.1%}")
        print(f"  sqlite3, every cell's length: {plain(path):.2f} s")


if __name__ == "__main__":
    main()

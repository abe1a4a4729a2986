"""Layout of a trace in a folder of Parquet files.

    job.parquet/
        meta.json                  what is known of the whole, and how many rows each table has
        lanes.parquet series.parquet groups.parquet
        nodes/rank00000.parquet    … one file a rank; edges, counters and samples likewise
        edges/rank00000.parquet    an edge lies with the rank of its `dst`

Common readers of Parquet shaped this layout. `rank` is a column of the files and no
part of their paths, so that a folder reads as one table with plain types everywhere
(``pandas.read_parquet("job.parquet/nodes")``, dask the same, polars and DuckDB with
``nodes/*.parquet``); the files' statistics leave other ranks out as well as a path would. Names
sort by rank. Rows are numbered in a column of their own (`node`, `lane`, `series`, `group`), as not
every tool keeps the order, and kinds are texts.
"""

from __future__ import annotations

import pyarrow as pa

from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import TABLE_KINDS

FORMAT = "chopper-interop/parquet"
VERSION = 1
"""Version of the tables' layout; a reader refuses others."""
META = "meta.json"
KEY = b"chopper_interop"
"""Key of the files' schema metadata whose value is "table/version"."""

BY_RANK = ("nodes", "edges", "counters", "samples")
WHOLE = ("lanes", "series", "groups")
NUMBERED = {"nodes": "node", "lanes": "lane", "series": "series", "groups": "group"}
"""Table → the column in which the files number its rows."""
ARGS = "args"
"""Column of the nodes' files with their arguments, a JSON object each."""

PLACES = ("args_at", "args_len")
"""Columns of `nodes` that say where arguments lie in memory, and are not on disk."""
KIND = pa.dictionary(pa.int8(), pa.string())


def stored_core(table: str) -> dict[str, pa.DataType]:
    """Columns that the files of a table must have, with their types."""
    columns = {NUMBERED[table]: pa.int32()} if table in NUMBERED else {}
    columns |= {c.name: c.type for c in hub.TABLES[table] if c.name not in PLACES}
    if table in TABLE_KINDS:
        columns["kind"] = KIND
    if table == "nodes":
        columns[ARGS] = pa.large_binary()
    return columns


def file_of(rank: int) -> str:
    """Name of a rank's file; -1 is the node's, where it has samples."""
    return f"rank{rank:05d}.parquet"

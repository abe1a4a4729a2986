"""Traces as folders of Parquet files: what other tools' analyses read, and nothing is lost.

`layout` names the files of such a folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from chopper_interop.converters.parquet.layout import BY_RANK, FORMAT, META, WHOLE
from chopper_interop.registry import Converter

_HEAD = re.compile(rb'\s*\{\s*"format"\s*:\s*"' + FORMAT.encode() + rb'"')
"""Beginning of the ``meta.json`` of such a folder. The tables themselves cannot be recognised by their
first bytes: all Parquet files begin alike."""


def group(paths: list[Path]) -> list[list[Path]]:
    """Group each ``meta.json`` with the tables that belong to it."""
    folders = [path.parent for path in paths if path.name == META]
    groups = [[folder / META, *_tables(folder)] for folder in folders]
    grouped = {path for files in groups for path in files}
    return groups + [[path] for path in paths if path not in grouped]


def _tables(folder: Path) -> list[Path]:
    patterns = [*(f"{table}.parquet" for table in WHOLE), *(f"{t}/*.parquet" for t in BY_RANK)]
    return sorted(path for pattern in patterns for path in folder.glob(pattern))


PARQUET = Converter(
    name="parquet",
    description="tables of a trace (folder of Parquet files)",
    versions="1; Parquet 2.6 with zstd",
    suffixes=(".parquet",),
    sniff=_HEAD.match,
    json=True,
    json_words=(FORMAT.encode(),),  # its description may quote what other formats are recognised by
    group=group,
    read="chopper_interop.converters.parquet.reader:read",
    write="chopper_interop.converters.parquet.writer:write",
    folder=True,
    derived=True,
    carries="everything: read back, it is the trace that was written",
)

"""Contents of the outputs of a trace, byte for byte, whatever their format packs away."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import chopper_interop as ci

OUTPUTS = ("a.parquet", "a.pftrace", "a.json", "a.graphml", "et/")


def content(path: Path) -> bytes:
    """All that an output says, names of files included; of Parquet files the columns, words of no row and metadata too."""
    if path.is_dir():
        inner = sorted(p for p in path.rglob("*") if p.is_file())
        return b"".join(str(p.relative_to(path)).encode() + content(p) for p in inner)
    if path.suffix == ".parquet":
        table = pq.read_table(path)
        coded = [c for c in table.columns if pa.types.is_dictionary(c.type)]
        words = [chunk.dictionary.to_pylist() for column in coded for chunk in column.chunks]
        return str((table.to_pydict(), words, table.schema.metadata)).encode()
    return path.read_bytes()


def written(trace: ci.Trace, folder: Path) -> dict[str, bytes]:
    """Write a trace in every format; the content of each output."""
    for name in OUTPUTS:
        ci.write(trace, f"{folder}/{name}")
    return {name: content(folder / name) for name in OUTPUTS}

"""Contents of the outputs of a trace, byte for byte, whatever their format packs away."""

from pathlib import Path

import pyarrow.parquet as pq

import chopper_interop as ci

OUTPUTS = ("a.parquet", "a.pftrace", "a.json", "a.graphml", "et/")


def content(path: Path) -> bytes:
    """All that an output says, names of files included; the columns of Parquet files unpacked."""
    if path.is_dir():
        inner = sorted(p for p in path.rglob("*") if p.is_file())
        return b"".join(str(p.relative_to(path)).encode() + content(p) for p in inner)
    if path.suffix == ".parquet":
        return str(pq.read_table(path).to_pydict()).encode()
    return path.read_bytes()


def written(trace: ci.Trace, folder: Path) -> dict[str, bytes]:
    """Write a trace in every format; the content of each output."""
    for name in OUTPUTS:
        ci.write(trace, f"{folder}/{name}")
    return {name: content(folder / name) for name in OUTPUTS}

"""A tiny trace for examples, and samples of a format, complete and damaged, for acceptance tests."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.registry import Converter

FOREIGN: dict[str, bytes] = {
    "an empty file": b"",
    "white space": b" \n\n\t ",
    "an empty object": b"{}",
    "an empty list": b"[]",
    "a note": b"Remember to run the profiler with warm caches.\n",
    "a table of something else": b"name,age\nAda,36\nAlan,41\n",
    "a settings file": b"[tool]\nverbose = true\n",
    "a picture": b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x02\x00",
    "a program": b"\x7fELF\x02\x01\x01\x00" + bytes(56),
    "rubbish": random.Random(1).randbytes(4096),  # noqa: S311
}
"""First bytes of files that no converter may recognise."""

_CUTS = (0.25, 0.5, 0.9)
"""Shares of a file that are kept. Chosen: a cut in the head, in the middle and near the end."""
_GARBLED = 4
"""Garbled copies of each file. Chosen: few, as each is read; `make mutate` tries many more."""
_MAX_FILES = 3
"""Files of a sample that are damaged, one at a time. Chosen: keeps the test short."""
_BYTES_PER_FAULT = 500
"""One byte in so many is garbled. Chosen: most records stay readable, some do not."""


def files(sample: Path) -> list[Path]:
    """List the files of a sample."""
    paths = [p for p in sample.rglob("*") if p.is_file()] if sample.is_dir() else [sample]
    return sorted(paths)


def read(converter: Converter, sample: Path) -> Trace:
    """Read a sample, which must be one source.

    Raises
    ------
    ChopperError
        The converter refuses it, or recognises none of its files.
    """
    sniff = converter.sniff or bool
    paths = [path for path in files(sample) if sniff(inputs.head(path))]
    if not paths:
        raise ReadError("none of its files is recognised", path=sample)
    groups = converter.group(paths) if converter.group else [[path] for path in paths]
    return converter.reader(list(groups[0]))


def any_trace(sample: Path) -> Trace:
    """Read a sample with the installed converters."""
    from chopper_interop import pipeline

    return pipeline.read(sample)


def empty_trace() -> Trace:
    """Build a trace without rows."""
    return TraceBuilder().finish()


def tiny_trace() -> Trace:
    """Build a trace of one rank: an operator launches two kernels, which run on one stream.

    ::

        node 0  aten::linear      ├─────────────────┤                     thread 1
        node 1  hipLaunchKernel      ├──┤                                 thread 1
        node 2  gemm                       ├─────────────────┤            stream 7
        node 3  hipLaunchKernel               ├──┤                        thread 1
        node 4  relu                                           ├────┤     stream 7
                                  0  1  2  3  4  5  6  7  8  9  10 11 µs

    The kernels have a phase, "forward".
    """
    builder = TraceBuilder(Meta(job="tiny", ranks=(Rank(0, known_by="header"),)))
    thread = builder.lane(0, LaneKind.THREAD, 1, "main")
    stream = builder.lane(0, LaneKind.STREAM, 7, "stream 7", device=0)
    builder.nodes(
        kind=np.array([Kind.CPU_OP, Kind.RUNTIME, Kind.RUNTIME]),
        name=pa.array(["aten::linear", "hipLaunchKernel", "hipLaunchKernel"]),
        rank=0,
        lane=thread,
        ts=np.array([0, 1_000, 4_000]),
        dur=np.array([6_000, 1_000, 1_000]),
        correlation=np.array([-1, 1, 2]),
    )
    builder.nodes(
        kind=int(Kind.KERNEL),
        name=pa.array(["gemm", "relu"]),
        rank=0,
        lane=stream,
        ts=np.array([3_000, 9_500]),
        dur=np.array([6_000, 1_500]),
        correlation=np.array([1, 2]),
        phase="forward",
    )
    builder.edges(np.array([1, 2]), np.array([3, 4]), int(EdgeKind.LAUNCH))
    return builder.finish()


def row_count(trace: Trace) -> int:
    """Number of nodes and samples."""
    return trace.nodes.num_rows + trace.samples.num_rows


def events(trace: Trace) -> Counter[tuple[Any, ...]]:
    """Count equal nodes: rank, name, start in nanoseconds of the trace's clock, and duration."""
    names = trace.names()
    rows = zip(
        trace.array("rank").tolist(),
        trace.array("name").tolist(),
        (trace.array("ts") + trace.meta.origin_ns).tolist(),
        trace.array("dur").tolist(),
        strict=True,
    )
    return Counter((rank, names[name], ts, dur) for rank, name, ts, dur in rows)


def damaged_copies(converter: Converter, sample: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield copies of a sample in which one file is cut or garbled.

    Yields
    ------
    what, copy, is_cut
        Description of the damage; path of the copy, which exists until the next one is made; True
        if bytes are missing for certain.
    """
    sniff = converter.sniff or bool
    recognised = [path for path in files(sample) if sniff(inputs.head(path))]
    others = [path for path in files(sample) if path not in recognised]
    for path in [*recognised, *others][:_MAX_FILES]:
        data = path.read_bytes()
        for damage, damaged, is_cut in _damage(data):
            with tempfile.TemporaryDirectory() as folder:
                yield f"{path.name} {damage}", _copy(sample, path, damaged, Path(folder)), is_cut


def _copy(sample: Path, path: Path, data: bytes, folder: Path) -> Path:
    """Copy the sample to a folder, with these bytes in one of its files."""
    copy = folder / sample.name
    if sample.is_dir():
        shutil.copytree(sample, copy)
        (copy / path.relative_to(sample)).write_bytes(data)
    else:
        copy.write_bytes(data)
    return copy


def _damage(data: bytes) -> Iterator[tuple[str, bytes, bool]]:
    """Yield damaged versions: a description, the bytes, and True if some are missing."""
    for share in _CUTS:
        size = _within_a_line(data, int(len(data) * share))
        yield f"cut at byte {size}", data[:size], True
    chance = random.Random(len(data))  # noqa: S311 - the same damage each time
    for turn in range(_GARBLED):
        garbled = bytearray(data)
        for _ in range(1 + len(data) // _BYTES_PER_FAULT):
            at = chance.randrange(len(data)) if data else 0
            garbled[at : at + 1] = chance.randbytes(1)
        yield f"garbled ({turn + 1})", bytes(garbled), False
    middle = len(data) // 2
    yield "with zeros in the middle", data[:middle] + bytes(64) + data[middle + 64 :], False


def _within_a_line(data: bytes, at: int) -> int:
    """Return the middle of the line at this byte: a cut there breaks any format made of lines."""
    start = data.rfind(b"\n", 0, at) + 1
    stop = data.find(b"\n", at)
    stop = len(data) if stop < 0 else stop
    return at if stop - start > len(data) // 2 else (start + stop) // 2

"""Samples of a format, whole and broken, for acceptance tests."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.build import TraceBuilder
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.registry import Converter
    from chopper_interop.trace import Trace

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
"""First bytes of files that are of nobody's format."""

_CUTS = (0.25, 0.5, 0.9)
_GARBLED = 4
_FILES = 3
_BYTES_PER_FAULT = 500


def files(sample: Path) -> list[Path]:
    """The files of a sample."""
    found = [p for p in sample.rglob("*") if p.is_file()] if sample.is_dir() else [sample]
    return sorted(found)


def read(converter: Converter, sample: Path) -> Trace:
    """The trace of a sample, which must be one source.

    Raises
    ------
    ChopperError
        The converter refuses it, or recognises none of its files.
    """
    assert converter.read is not None  # noqa: S101 - for the type checker
    sniff = converter.sniff or bool
    paths = [path for path in files(sample) if sniff(inputs.head(path))]
    if not paths:
        raise ReadError("nothing in it is recognised", path=sample)
    groups = converter.group(paths) if converter.group else [[path] for path in paths]
    trace: Trace = converter.read(list(groups[0]))
    return trace


def any_trace(sample: Path) -> Trace:
    """What installed converters read of a sample."""
    from chopper_interop import pipeline

    return pipeline.read(sample)


def nothing() -> Trace:
    """A trace without anything."""
    return TraceBuilder().finish()


def content(trace: Trace) -> tuple[int, int]:
    """How many nodes and samples there are."""
    return trace.nodes.num_rows, trace.samples.num_rows


def events(trace: Trace) -> Counter[tuple[Any, ...]]:
    """What happened, in which rank and when (epoch or boot nanoseconds), in no order."""
    names = trace.names()
    rows = zip(
        trace.array("rank").tolist(),
        trace.array("name").tolist(),
        (trace.array("ts") + trace.meta.origin_ns).tolist(),
        trace.array("dur").tolist(),
        strict=True,
    )
    return Counter((rank, names[name], ts, dur) for rank, name, ts, dur in rows)


def kind_of(converter: Converter) -> str:
    """What the converter's output is on disk."""
    return "folder" if converter.folder else "file"


def broken_copies(converter: Converter, sample: Path) -> Iterator[tuple[str, Path, bool]]:
    """Copies of a sample in which one file is cut or garbled.

    Yields
    ------
    what, copy, cut
        What was done; where the copy lies until the next is asked for; whether something is
        missing for sure.
    """
    sniff = converter.sniff or bool
    known = [path for path in files(sample) if sniff(inputs.head(path))]
    others = [path for path in files(sample) if path not in known]
    for path in [*known, *others][:_FILES]:
        data = path.read_bytes()
        for what, changed, cut in _faults(data):
            with tempfile.TemporaryDirectory() as folder:
                yield f"{path.name} {what}", _copy(sample, path, changed, Path(folder)), cut


def _copy(sample: Path, path: Path, data: bytes, folder: Path) -> Path:
    """The sample in another folder, with other bytes in one of its files."""
    copy = folder / sample.name
    if sample.is_dir():
        shutil.copytree(sample, copy)
        (copy / path.relative_to(sample)).write_bytes(data)
    else:
        copy.write_bytes(data)
    return copy


def _faults(data: bytes) -> Iterator[tuple[str, bytes, bool]]:
    for share in _CUTS:
        size = _within_a_line(data, int(len(data) * share))
        yield f"cut at byte {size}", data[:size], True
    chance = random.Random(len(data))  # noqa: S311 - faults shall be the same each time
    for turn in range(_GARBLED):
        garbled = bytearray(data)
        for _ in range(1 + len(data) // _BYTES_PER_FAULT):
            at = chance.randrange(len(data)) if data else 0
            garbled[at : at + 1] = chance.randbytes(1)
        yield f"garbled ({turn + 1})", bytes(garbled), False
    middle = len(data) // 2
    yield "with zeros in the middle", data[:middle] + bytes(64) + data[middle + 64 :], False


def _within_a_line(data: bytes, at: int) -> int:
    """The middle of the line at this byte: a cut that shows in any format made of lines."""
    start = data.rfind(b"\n", 0, at) + 1
    stop = data.find(b"\n", at)
    stop = len(data) if stop < 0 else stop
    return at if stop - start > len(data) // 2 else (start + stop) // 2

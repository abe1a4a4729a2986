"""CSV of nvidia-smi called in a loop by a script: what only lines between its rows, or texts in front of them, say becomes a column.

``while true; do date; nvidia-smi --query-gpu=power.draw --format=csv; sleep 1; done >> log`` writes the time
and the header in front of the rows of each call. The time becomes the column ``timestamp``. Where each
header is followed by equally many rows, these are the GPUs in the tool's order, the column ``index``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from enum import Enum

from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.headers import cells_of, is_header, names_of
from chopper_interop.converters.sampling.timestamps import (
    Timestamp,
    parse_labelled_timestamp,
    split_leading_timestamp,
)

_SHORT = re.compile(r"^[^,\n]{8,80}$", re.MULTILINE)
"""Lines that may be a time alone: the shortest has 10 characters, and a line feed of Windows is gone."""
_MIN_CALLS = 3
"""Fewer calls that happen to have equally many rows may be runs of ``-l``."""
_MAX_GPUS = 16
"""GPUs of a node at most; more rows behind each header are those of several times."""
_LINE = re.compile(r"^[A-Za-z_][^\n]*", re.MULTILINE)
_MAX_OTHERS = 64
"""Different lines that begin like a header, are none, and are looked at. Chosen: messages of scripts are fewer, and rows
that begin with a name are many."""
_OWN = tables.INDEX | tables.UUID | tables.PCI


class _Use(Enum):
    """Kind of a line."""

    HEADER = "a header"
    ROW = "no header, with as many cells as one"
    OTHER = "neither"


def with_columns(text: str) -> tuple[str, int]:
    """Return the text with these columns, and how many rows got an index by their order.

    A text is returned as it is if its rows say when they are of, or nothing between them does.
    """
    text = _with_leading_stamps(text)
    headers = _headers(text)
    keys = {key for names in headers.values() for key, _ in names}
    if not headers:
        return text, 0
    lines = text.split("\n")
    stamped = any(parse_labelled_timestamp(line) for line in _SHORT.findall(text))
    is_ordered = not keys & _OWN
    if not (stamped or is_ordered):
        return text, 0
    uses = [_use(line, headers) for line in lines]
    count = _rows_a_call(uses, len(headers)) if is_ordered else 0
    # of two queries behind one time, the rows of the second are of no other GPUs
    is_unclear = is_ordered and len(headers) > 1 and not count
    if is_unclear or not (stamped or count):
        return text, 0
    rows = uses.count(_Use.ROW) if count else 0
    return "\n".join(_lines(lines, uses, stamped=stamped, count=count)), rows


def _with_leading_stamps(text: str) -> str:
    """Return lines with the time in front of each as a cell (``| ts '%s'``, logs of containers); without it if rows have one."""
    stamp, first = split_leading_timestamp(text.lstrip().partition("\n")[0])
    names = names_of(first)
    if not stamp or not is_header(names):
        return text
    headers, is_own = {first: names}, not tables.STAMP.isdisjoint(key for key, _ in names)
    lines = []
    for line in text.split("\n"):
        written, rest = split_leading_timestamp(line)
        if is_own or not (rest == first or _use(rest, headers) is _Use.ROW):
            lines.append(rest)
        else:
            lines.append(f"{'timestamp' if rest == first else written}, {rest}")
    return "\n".join(lines)


def _headers(text: str) -> dict[str, list[tuple[str, str]]]:
    """Headers of a text, each once, with keys and units; none if they have a column of times."""
    headers: dict[str, list[tuple[str, str]]] = {}
    others: set[str] = set()
    for match in _LINE.finditer(text):
        line = match.group()
        if line in headers or line in others:
            continue
        names = names_of(line)
        if not is_header(names):
            others.add(line)
        elif tables.STAMP.isdisjoint(key for key, _ in names):
            headers[line] = names
        else:
            return {}
        if len(others) == _MAX_OTHERS:
            break
    return headers


def _use(line: str, headers: dict[str, list[tuple[str, str]]]) -> _Use:
    if line in headers:
        return _Use.HEADER
    cells = len(cells_of(line))
    is_alike = any(len(names) == cells for names in headers.values())
    is_row = is_alike and bool(line.strip()) and not parse_labelled_timestamp(line)
    return _Use.ROW if is_row else _Use.OTHER


def _rows_a_call(uses: list[_Use], queries: int) -> int:
    """Rows behind each header if there are always as many, of several GPUs or queries; the last call may be cut; else 0."""
    counts: list[int] = []
    for use in uses:
        if use is _Use.HEADER:
            counts.append(0)
        elif use is _Use.ROW:
            if not counts:
                return 0
            counts[-1] += 1
    if len(counts) < _MIN_CALLS or len(set(counts[:-1])) > 1 or counts[-1] > counts[0]:
        return 0
    least = 1 if queries > 1 else 2
    return counts[0] if least <= counts[0] <= _MAX_GPUS else 0


def _lines(lines: list[str], uses: list[_Use], *, stamped: bool, count: int) -> Iterator[str]:
    now, place = "", 0
    for line, use in zip(lines, uses, strict=True):
        is_heading = use is _Use.HEADER
        stamp = parse_labelled_timestamp(line) if stamped and use is not _Use.ROW else None
        if stamp:
            now = _written(stamp)
            yield ""  # so that the others keep their numbers
            continue
        place = 0 if is_heading else place
        if use is _Use.OTHER:
            yield line
            continue
        cells = ["timestamp" if is_heading else now] * stamped
        cells += ["index" if is_heading else str(place)] * bool(count)
        place += not is_heading
        yield ", ".join([*cells, line])


def _written(stamp: Timestamp) -> str:
    """A time as a cell, with as many decimals as it had."""
    text = datetime.fromtimestamp(stamp.second, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    fraction = f".{stamp.nanosecond:09d}"[: stamp.digits + 1] if stamp.digits else ""
    return f"{text}{fraction}{'Z' if stamp.has_zone else ''}"

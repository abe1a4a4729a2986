"""Rows of amd-smi's JSON: one document after the other, in envelopes or not, the last perhaps cut.

Up to 6.4 and in ``monitor`` of all versions a document is a list of GPUs; in 7.x ``metric`` has
``{"gpu_data": […]}``. A watch writes one document a tick, the file of ``--file`` one for all;
7.1 and later close with a document of all samples, in 7.1 without their times.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi import layout
from chopper_interop.converters.amd_smi.row_reader import RowReader, is_unreadable, no_time
from chopper_interop.converters.sampling import faults, layouts, pieces, templates
from chopper_interop.converters.sampling.cells import (
    LARGEST_EXACT,
    ColumnBuilder,
    Rows,
    cell_of_json,
    is_quantity,
)
from chopper_interop.converters.sampling.text import NO_NUMBER, encoded
from chopper_interop.io.json_text import byte_table
from chopper_interop.issues import IssueLog

_START = re.compile(r"\[(?=\s*(?:[\[\]{]|\Z))|\{(?=\s*(?:[\"}]|\Z))")
_LIST_OF = re.compile(r'\{\s*"gpu_data"\s*:\s*(?=\[)')
_BETWEEN = re.compile(r"[\s,]*")
_MAX_DIGITS = 20
"""The largest number of 64 bits has as many."""


def _number(text: str) -> float:
    """Parse a whole number of JSON; one beyond 64 bits becomes a float."""
    return int(text) if len(text) <= _MAX_DIGITS else float(text)


_DECODER = json.JSONDecoder(parse_int=_number)

_RESOLVED = {
    ("temperature", "mem"): "temperature.mem", ("usage", "mem_usage"): "usage.mem_usage",
    ("pcie", "speed"): "pcie.speed", ("fan", "speed"): "fan.speed", ("fan", "max"): "fan.max",
    ("fan", "usage"): "fan.usage", ("mem",): "monitor.mem",
}  # fmt: skip
"""Paths whose names mean two things → their keys."""
_BOARDS = ("gpu_board", "base_board")


class _IrregularError(Exception):
    """A document ends within another piece than it begins in."""


@dataclass
class _JsonReader(RowReader):
    text: str
    seen_values: Counter[str] = field(default_factory=Counter)
    state: int = 0
    """1 from the first row on that a closing document may repeat."""
    places: Array | None = None
    """Where the pieces begin, each with a document, and where the text ends."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.has_envelopes = layout.GPU_DATA in self.text
        self.has_processes = layout.PROCESS_LIST in self.text

    def read(self) -> Rows:
        """Read the text from document to document."""
        self._read_to(0, len(self.text))
        return self.finish(None)

    def read_pieces(self) -> Rows:
        """Read the text in pieces that begin where a line does with a bracket.

        Raises
        ------
        _IrregularError
            A document does not end in its piece.
        """
        data = encoded(self.text)
        opens = byte_table(b"[{")
        starts = [np.zeros(1, np.int64)]
        for begin, _ in pieces.line_windows(data):
            lines = begin[begin < len(data)]
            starts.append(lines[opens[data[lines]]])
        self.places = np.append(np.unique(np.concatenate(starts)), len(data))
        laid = templates.read_pieces(data, self.places[:-1], self.places[1:], self)
        return self.finish(laid)

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read one piece."""
        del text, is_complete
        if self.places is not None:
            start, stop = self.places[number - 1 : number + 1].tolist()
            if self._read_to(start, stop) > stop:
                raise _IrregularError
            self.state = int(bool(self.seen_values) and self.has_envelopes)

    def layout(self, probe: str, sample: str) -> list[layouts.Layout] | None:  # noqa: ARG002 - the probe is enough
        if self.has_processes or self.state or not _START.match(probe):
            return None
        try:
            document, end = _DECODER.raw_decode(probe)
        except (json.JSONDecodeError, RecursionError):
            return None
        is_envelope = isinstance(document, dict) and set(document) == {layout.GPU_DATA}
        if _BETWEEN.fullmatch(probe, end) is None or is_envelope != self.has_envelopes:
            return None
        rows = list(_flat(document[layout.GPU_DATA] if is_envelope else document))
        readable = [one for row in rows if (one := _layout_of(row)) is not None]
        if not readable or len(readable) < len(rows):
            return None
        exact = [
            layouts.Guard(number, 0, LARGEST_EXACT, layouts.EXACT)
            for number in layouts.slots_in(probe)
        ]
        return [replace(readable[0], guards=(*readable[0].guards, *exact)), *readable[1:]]

    def _read_to(self, at: int, stop: int) -> int:
        """Read the documents that begin in [at, stop); return where the last one ends."""
        while (start := self._next_document(at, stop)) is not None:
            at = self._document(start)
        return at

    def _next_document(self, at: int, stop: int) -> int | None:
        """Return where the next document begins; other lines are messages."""
        while at < stop:
            at = _BETWEEN.match(self.text, at).end()  # type: ignore[union-attr]
            if at >= stop:
                return None
            if _START.match(self.text, at):
                return at
            end = self.text.find("\n", at)
            end = len(self.text) if end < 0 else end
            if self.text[at:end].strip():
                self.issues.add(faults.NOT_A_ROW, 1, self.text[at:end][:80])
            at = end + 1
        return None

    def _document(self, start: int) -> int:
        """Read one document; return where it ends."""
        try:
            document, end = _DECODER.raw_decode(self.text, start)
        except (json.JSONDecodeError, RecursionError):
            return self._broken(start)
        if isinstance(document, dict) and "gpu" not in document:
            self._envelope(document)
        else:
            for row in _flat(document):
                self._row_if_shallow(row, combined=False)
        return end

    def _broken(self, start: int) -> int:
        """Read the complete rows of a document that is cut; return where the next may begin."""
        envelope = _LIST_OF.match(self.text, start)
        at = envelope.end() if envelope else start
        if self.text[at] == "[":
            at += 1
            while True:
                at = _BETWEEN.match(self.text, at).end()  # type: ignore[union-attr]
                try:
                    row, at = _DECODER.raw_decode(self.text, at)
                except (json.JSONDecodeError, RecursionError):
                    break
                self._row_if_shallow(row, combined=envelope is not None)
        self.lose(own_faults.CUT, f"character {at}")
        following = layout.JSON_NEXT.search(self.text, max(at, start + 1))
        return following.end() if following else len(self.text)

    def _envelope(self, document: dict[str, Any]) -> None:
        if "error" in document:
            self.lose(own_faults.ERROR, str(document["error"]))
        for row in _flat(document.get(layout.GPU_DATA, [])):
            self._row_if_shallow(row, combined=True)
        for part in layout.OTHER_PARTS:
            for _ in _flat(document.get(part, [])):
                self.lose(own_faults.OTHER_PART, part)
        if not {"error", *layout.DOCUMENT_PARTS} & set(document):
            self.lose(faults.NO_GPU, ", ".join(document)[:80])

    def _row_if_shallow(self, row: Any, *, combined: bool) -> None:
        try:
            self._row(row, combined=combined)
        except RecursionError:
            self.lose(own_faults.DEEP, "")

    def _row(self, row: Any, *, combined: bool) -> None:
        if isinstance(row, dict) and "gpu" not in row and "error" in row:
            self.lose(own_faults.ERROR, str(row["error"]))
            return
        gpu = _integer(row, "gpu") if isinstance(row, dict) else NO_NUMBER
        if gpu == NO_NUMBER:
            self.lose(faults.NO_GPU, str(row)[:80])
            return
        stamp = _integer(row, "timestamp")
        if self._repeated(row, stamp, combined=combined):
            self.lose(own_faults.REPEATED, f"GPU {gpu}")
            return
        number = self.rows
        self.processes.rows[stamp, gpu] = number
        for process in _flat(row.get(layout.PROCESS_LIST, [])):
            self._process(stamp, gpu, process)
        cells = [(key, cell_of_json(value)) for key, value in leaves(row)]
        for place, (key, cell) in enumerate(cells):
            column = self.columns.setdefault(key, ColumnBuilder(key, place=place))
            column.add(number, cell)
        if stamp == NO_NUMBER:
            stamp = no_time(str(row.get("timestamp", "")))
        self.row_keys[number] = (stamp, gpu, _integer(row, "xcp"))
        self.rows += 1

    def _process(self, stamp: int, gpu: int, process: Any) -> None:
        info = process.get("process_info") if isinstance(process, dict) else process
        if isinstance(info, str):  # "No running processes detected"
            self.issues.add(faults.NOT_A_ROW, 1, info[:80])
            return
        self.lost += 1
        self.processes.add(stamp, gpu, process, f"GPU {gpu}")

    def _repeated(self, row: dict[str, Any], stamp: int, *, combined: bool) -> bool:
        """True if a closing document repeats a row that came before, with its time."""
        if not combined and stamp == NO_NUMBER:
            return False
        values = json.dumps({k: v for k, v in row.items() if k != "timestamp"})
        if not combined:
            self.seen_values[values] += 1
            return False
        if self.seen_values[values] <= 0:
            return False
        self.seen_values[values] -= 1
        return True


def read(text: str, issues: IssueLog) -> Rows:
    """Read the rows of a JSON file, or of several JSON documents one after the other.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    if text.isascii():  # so that places of bytes are those of characters
        issues_here = IssueLog(issues.source)
        with suppress(_IrregularError):
            rows = _JsonReader(issues_here, text).read_pieces()
            issues.extend(issues_here)
            return rows
    return _JsonReader(issues, text).read()


def _layout_of(row: Any) -> layouts.Layout | None:
    """Return the layout of one GPU's object; None if it must be read by itself."""
    if not isinstance(row, dict) or "gpu" not in row:
        return None
    cells = {key: cell_of_json(value) for key, value in leaves(row)}
    number = sum(1 for _ in leaves(row))
    is_plain = all(layouts.with_slots(cell) is not None for cell in cells.values())
    if len(cells) < number or not is_plain or any(map(layouts.slots_in, cells)):
        return None
    wholes = [(str(row.get(name, "")), layout.LARGEST[name]) for name in layout.ROW_KEYS]
    if is_unreadable(wholes[0][0]):
        return None
    return layouts.layout_of_row(wholes, cells.items(), needed=layout.ROW_KEYS.index("gpu"))


def leaves(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield keys and values of one GPU's object, named like the columns of CSV."""
    for section, value in row.items():
        if section in layout.ROW_KEYS or section == layout.PROCESS_LIST:
            continue
        if isinstance(value, dict) and not is_quantity(value):
            if section in _BOARDS and isinstance(value.get("temperature"), dict):
                value = value["temperature"]  # noqa: PLW2901 - CSV drops this level too
            for path, leaf in _leaves_below(value, ()):
                yield _RESOLVED.get((section, *path)) or "_".join(path), leaf
        else:
            yield _RESOLVED.get((section,), section), value


def _leaves_below(
    value: dict[str, Any], path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and not is_quantity(inner):
            yield from _leaves_below(inner, (*path, name))
        else:
            yield (*path, name), inner


def _flat(value: Any) -> Iterator[Any]:
    """Yield the elements of a list and of lists in it; another value as it is."""
    pending = [value]
    while pending:
        first = pending.pop()
        if isinstance(first, list):
            pending += reversed(first)
        else:
            yield first


def _integer(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = _number(value)
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not 0 <= value <= layout.LARGEST[name]
    ):
        return NO_NUMBER
    return value

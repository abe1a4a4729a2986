"""Rows of amd-smi's JSON: one document after the other, in envelopes or not, the last perhaps cut.

Up to 6.4 and in ``monitor`` of all versions a document is a list of GPUs; in 7.x ``metric`` has
``{"gpu_data": […]}``. A watch writes one document a tick, the file of ``--file`` one for all;
7.1 and later close with a document of all samples, in 7.1 without their times.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi import layout
from chopper_interop.converters.amd_smi.processes import Processes
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import (
    ColumnBuilder,
    Rows,
    cell_of_json,
    is_quantity,
    rows_from_keys,
)
from chopper_interop.converters.sampling.text import NO_NUMBER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.issues import Fault, IssueLog

_START = re.compile(r"\[(?=\s*(?:[\[\]{]|\Z))|\{(?=\s*(?:[\"}]|\Z))")
_LIST_OF = re.compile(r'\{\s*"gpu_data"\s*:\s*(?=\[)')
_NEXT = re.compile(r"\n(?=[\[{])")
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


@dataclass
class _JsonReader:
    text: str
    issues: IssueLog
    row_keys: list[tuple[int, int, int]] = field(default_factory=list)
    columns: dict[str, ColumnBuilder] = field(default_factory=dict)
    seen_values: Counter[str] = field(default_factory=Counter)
    events: int = 0

    def __post_init__(self) -> None:
        self.processes = Processes(self.issues)

    def read(self) -> Rows:
        at = 0
        while (start := self._next_document(at)) is not None:
            at = self._document(start)
        columns = [c.finish() for c in self.columns.values()]
        columns += self.processes.finish()
        return rows_from_keys(self.row_keys, columns, self.events)

    def _next_document(self, at: int) -> int | None:
        """Return where the next document begins; other lines are messages."""
        while at < len(self.text):
            at = _BETWEEN.match(self.text, at).end()  # type: ignore[union-attr]
            if at < len(self.text) and _START.match(self.text, at):
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
        self._lose(own_faults.CUT, f"character {at}")
        following = _NEXT.search(self.text, max(at, start + 1))
        return following.end() if following else len(self.text)

    def _envelope(self, document: dict[str, Any]) -> None:
        if "error" in document:
            self._lose(own_faults.ERROR, str(document["error"]))
        for row in _flat(document.get(layout.GPU_DATA, [])):
            self._row_if_shallow(row, combined=True)
        for part in layout.OTHER_PARTS:
            for _ in _flat(document.get(part, [])):
                self._lose(own_faults.OTHER_PART, part)
        if not {"error", *layout.DOCUMENT_PARTS} & set(document):
            self._lose(faults.NO_GPU, ", ".join(document)[:80])

    def _row_if_shallow(self, row: Any, *, combined: bool) -> None:
        try:
            self._row(row, combined=combined)
        except RecursionError:
            self._lose(own_faults.DEEP, "")

    def _row(self, row: Any, *, combined: bool) -> None:
        if isinstance(row, dict) and "gpu" not in row and "error" in row:
            self._lose(own_faults.ERROR, str(row["error"]))
            return
        gpu = _integer(row, "gpu") if isinstance(row, dict) else NO_NUMBER
        if gpu == NO_NUMBER:
            self._lose(faults.NO_GPU, str(row)[:80])
            return
        stamp = _integer(row, "timestamp")
        if self._repeated(row, stamp, combined=combined):
            self._lose(own_faults.REPEATED, f"GPU {gpu}")
            return
        number = len(self.row_keys)
        self.processes.rows[stamp, gpu] = number
        for process in _flat(row.get(layout.PROCESS_LIST, [])):
            self._process(stamp, gpu, process)
        for key, cell in [(key, cell_of_json(value)) for key, value in leaves(row)]:
            column = self.columns.setdefault(key, ColumnBuilder(key))
            column.add(number, cell)
        self.row_keys.append((stamp, gpu, _integer(row, "xcp")))
        self.events += 1

    def _process(self, stamp: int, gpu: int, process: Any) -> None:
        info = process.get("process_info") if isinstance(process, dict) else process
        if isinstance(info, str):  # "No running processes detected"
            self.issues.add(faults.NOT_A_ROW, 1, info[:80])
            return
        self.events += 1
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

    def _lose(self, fault: Fault, example: str) -> None:
        self.events += 1
        self.issues.add(fault, 1, example[:80])


def read(text: str, issues: IssueLog) -> Rows:
    """Read the rows of a JSON file, or of several JSON documents one after the other.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    return _JsonReader(text, issues).read()


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

"""amd-smi's JSON as rows: documents one behind the other, envelopes, a last one that breaks off.

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

import numpy as np

from chopper_interop.converters import amd_smi_faults as own_faults
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_csv import LARGEST, OWN
from chopper_interop.converters.amd_smi_processes import Processes
from chopper_interop.converters.telemetry_cells import ColumnBuilder, Rows, is_quantity, of_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.issues import Fault, IssueLog

COMBINED = "gpu_data"
"""Key around the rows of GPUs."""
PROCESSES = "process_list"
"""Key of what ``monitor -q`` and ``process`` say of each process."""
_OTHER_PARTS = ("cpu_data", "core_data", "nic_data", "switch_data")
PARTS = (COMBINED, *_OTHER_PARTS)
"""Keys around the lists of a document in 7.x."""
BEGIN = re.compile(r"^\s*[\[{]", re.MULTILINE)
"""How a document begins."""
_START = re.compile(r"\[(?=\s*(?:[\[\]{]|\Z))|\{(?=\s*(?:[\"}]|\Z))")
_LIST_OF = re.compile(r'\{\s*"gpu_data"\s*:\s*(?=\[)')
_NEXT = re.compile(r"\n(?=[\[{])")
_BETWEEN = re.compile(r"[\s,]*")
_MOST_DIGITS = 20


def _number(text: str) -> float:
    """A whole number of JSON; of more digits than any has, what floating point makes of it."""
    return int(text) if len(text) <= _MOST_DIGITS else float(text)


_DECODER = json.JSONDecoder(parse_int=_number)
_NOT_TOLD = -1

_RESOLVED = {
    ("temperature", "mem"): "temperature.mem",
    ("usage", "mem_usage"): "usage.mem_usage",
    ("pcie", "speed"): "pcie.speed",
    ("fan", "speed"): "fan.speed",
    ("fan", "max"): "fan.max",
    ("fan", "usage"): "fan.usage",
    ("mem",): "monitor.mem",
}
"""Paths whose names mean two things → their keys."""
_BOARDS = ("gpu_board", "base_board")


@dataclass
class _Reader:
    text: str
    issues: IssueLog
    own: list[tuple[int, int, int]] = field(default_factory=list)
    columns: dict[str, ColumnBuilder] = field(default_factory=dict)
    seen: Counter[str] = field(default_factory=Counter)
    events: int = 0

    def __post_init__(self) -> None:
        self.processes = Processes(self.issues)

    def read(self) -> Rows:
        at = 0
        while (start := self._next_document(at)) is not None:
            at = self._document(start)
        own = np.array(self.own, np.int64).reshape(-1, len(OWN))
        columns = [c.finish() for c in self.columns.values()]
        columns += self.processes.finish()
        return Rows(own[:, 0], own[:, 1], own[:, 2], columns, self.events)

    def _next_document(self, at: int) -> int | None:
        """Where the next line begins with a bracket; other lines are messages."""
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
        """Rows of one document; where it ends."""
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
        """Take the whole rows at the beginning of a document that breaks off."""
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
        self._lost(own_faults.CUT, f"character {at}")
        following = _NEXT.search(self.text, max(at, start + 1))
        return following.end() if following else len(self.text)

    def _envelope(self, document: dict[str, Any]) -> None:
        if "error" in document:
            self._lost(own_faults.ERROR, str(document["error"]))
        for row in _flat(document.get(COMBINED, [])):
            self._row_if_shallow(row, combined=True)
        for part in _OTHER_PARTS:
            for _ in _flat(document.get(part, [])):
                self._lost(own_faults.OTHER_PART, part)
        if not {"error", *PARTS} & set(document):
            self._lost(faults.NO_GPU, ", ".join(document)[:80])

    def _row_if_shallow(self, row: Any, *, combined: bool) -> None:
        try:
            self._row(row, combined=combined)
        except RecursionError:
            self._lost(own_faults.DEEP, "")

    def _row(self, row: Any, *, combined: bool) -> None:
        if isinstance(row, dict) and "gpu" not in row and "error" in row:
            self._lost(own_faults.ERROR, str(row["error"]))
            return
        gpu = _integer(row, "gpu") if isinstance(row, dict) else _NOT_TOLD
        if gpu == _NOT_TOLD:
            self._lost(faults.NO_GPU, str(row)[:80])
            return
        stamp = _integer(row, "timestamp")
        if self._repeated(row, stamp, combined=combined):
            self._lost(own_faults.REPEATED, f"GPU {gpu}")
            return
        number = len(self.own)
        self.processes.rows[stamp, gpu] = number
        for process in _flat(row.get(PROCESSES, [])):
            self._process(stamp, gpu, process)
        for key, cell in [(key, of_json(value)) for key, value in leaves(row)]:
            column = self.columns.setdefault(key, ColumnBuilder(key))
            column.add(number, cell)
        self.own.append((stamp, gpu, _integer(row, "xcp")))
        self.events += 1

    def _process(self, stamp: int, gpu: int, process: Any) -> None:
        told = process.get("process_info") if isinstance(process, dict) else process
        if isinstance(told, str):  # "No running processes detected"
            self.issues.add(faults.NOT_A_ROW, 1, told[:80])
            return
        self.events += 1
        self.processes.add(stamp, gpu, process, f"GPU {gpu}")

    def _repeated(self, row: dict[str, Any], stamp: int, *, combined: bool) -> bool:
        """Whether a closing document gives a row that came with its time before."""
        if not combined and stamp == _NOT_TOLD:
            return False
        values = json.dumps({k: v for k, v in row.items() if k != "timestamp"})
        if not combined:
            self.seen[values] += 1
            return False
        if self.seen[values] <= 0:
            return False
        self.seen[values] -= 1
        return True

    def _lost(self, fault: Fault, example: str) -> None:
        self.events += 1
        self.issues.add(fault, 1, example[:80])


def read(text: str, issues: IssueLog) -> Rows:
    """Rows of a JSON file, or of several JSON documents one behind the other.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    return _Reader(text, issues).read()


def leaves(row: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Keys and values of one GPU's object, named as the columns of CSV are."""
    for section, value in row.items():
        if section in OWN or section == PROCESSES:
            continue
        if isinstance(value, dict) and not is_quantity(value):
            if section in _BOARDS and isinstance(value.get("temperature"), dict):
                value = value["temperature"]  # noqa: PLW2901 - CSV drops this level too
            for path, leaf in _below(value, ()):
                yield _RESOLVED.get((section, *path)) or "_".join(path), leaf
        else:
            yield _RESOLVED.get((section,), section), value


def _below(value: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, inner in value.items():
        if isinstance(inner, dict) and not is_quantity(inner):
            yield from _below(inner, (*path, name))
        else:
            yield (*path, name), inner


def _flat(value: Any) -> Iterator[Any]:
    """Elements of a list and of lists in it; anything else as it is."""
    left = [value]
    while left:
        first = left.pop()
        if isinstance(first, list):
            left += reversed(first)
        else:
            yield first


def _integer(row: dict[str, Any], name: str) -> int:
    value = row.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = _number(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST[name]:
        return _NOT_TOLD
    return value

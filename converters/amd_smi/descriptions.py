"""Entries of amd-smi's descriptions: one GPU's object, row or block each, in any form."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from json import JSONDecoder
from typing import Any

from chopper_interop.converters.amd_smi import descriptions_text
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.descriptions_text import NO_GPU, Entry, index_of
from chopper_interop.converters.amd_smi.layout import JSON_BEGIN, JSON_NEXT, LARGEST
from chopper_interop.converters.amd_smi.row_reader import LossCount
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import is_quantity
from chopper_interop.converters.sampling.text import csv_cells, whole_number
from chopper_interop.issues import IssueLog

GPU_KEYS = ("gpu", "gpu_id")
CSV_HEADER = re.compile(r"(?:timestamp,)?gpu(?:_id)?(?:,|$)")
_ENTRY = re.compile(r'\{\s*(?:"timestamp"\s*:\s*\d+\s*,\s*)?"gpu(?:_id)?"\s*:')
_NO_GPU_NEEDED = ("partition_resources",)
_DEEPEST = 20
"""Chosen: deeper than any output (4 levels), shallow enough for recursion."""
_BOARD = "model_number"
"""With this column CSV is a full ``static``, where the driver's `version` replaced the VBIOS's."""


@dataclass
class _DescriptionReader(LossCount):
    entries: list[Entry] = field(default_factory=list)

    def add(self, tree: dict[str, Any], kind: str, at: str) -> None:
        """Add one GPU's tree, whose keys may be of any case."""
        gpu = index_of(next((tree[key] for key in GPU_KEYS if key in tree), None))
        if gpu == NO_GPU and kind not in _NO_GPU_NEEDED:
            self.lose(own_faults.ERROR if "error" in tree else faults.NO_GPU, at)
            return
        stamp = whole_number(str(tree.get("timestamp", "")), LARGEST["timestamp"])
        leaves = {k: v for k, v in _leaves(tree, "", 0) if k not in (*GPU_KEYS, "timestamp")}
        self.entries.append(Entry(gpu, leaves, stamp, kind))

    def json(self, text: str) -> None:
        decoder, at = JSONDecoder(), 0
        while (start := JSON_BEGIN.search(text, at)) is not None:
            begin = start.end() - 1
            try:
                document, at = decoder.raw_decode(text, begin)
            except (ValueError, RecursionError):
                at = self._broken(decoder, text, begin)
                continue
            for kind, row in _rows(document, ""):
                self.add(row, kind, str(row))

    def _broken(self, decoder: JSONDecoder, text: str, begin: int) -> int:
        """Read the complete entries of a document that is cut; return where the next may begin."""
        at = begin
        while (match := _ENTRY.search(text, at)) is not None:
            try:
                row, at = decoder.raw_decode(text, match.start())
            except (ValueError, RecursionError):
                break
            self.add(row, "", str(row))
        self.lose(own_faults.CUT, f"character {at}")
        following = JSON_NEXT.search(text, max(at, begin + 1))
        return following.end() if following else len(text)

    def csv(self, text: str) -> None:
        names: list[str] = []
        for number, line in enumerate(text.split("\n"), 1):
            line = line.strip("\r \0")  # noqa: PLW2901 - of a file that Windows wrote
            at = f"line {number}"
            if CSV_HEADER.match(line) or line == "error,code":
                names = [name.strip() for name in csv_cells(line)]
            elif names[:1] == ["error"] and line:
                self.lose(own_faults.ERROR, line)
            elif not line[:1].isdigit():
                self.issues.add(faults.NOT_A_ROW, int(bool(line)), line[:80])
            else:
                self._csv_row(names, line, at)

    def _csv_row(self, names: list[str], line: str, at: str) -> None:
        cells = csv_cells(line)
        if not names:
            self.lose(faults.NO_HEADER, at)
        elif len(cells) != len(names) or line.count('"') % 2:
            self.lose(own_faults.CUT, f"{at}: {len(cells)} cells for {len(names)} columns")
        else:
            row = {n: _literal(c) for n, c in zip(names, cells, strict=True)}
            if _BOARD in row and "version" in row:
                row["driver.version"] = row["version"]
            self.add(row, "", at)

    def text(self, text: str) -> None:
        entries, others = descriptions_text.read(text, self.issues)
        self.entries += entries
        for at in others:
            self.lose(own_faults.OTHER_PART, at)


def read(text: str, issues: IssueLog) -> tuple[list[Entry], int]:
    """Read the entries of a file, and count its records that are none.

    Parameters
    ----------
    text
        The file.
    issues
        Where records that cannot be read are counted.
    """
    reader = _DescriptionReader(issues)
    begin = descriptions_text.form_of(text, CSV_HEADER)
    {"json": reader.json, "csv": reader.csv}.get(begin, reader.text)(text)
    return reader.entries, reader.lost


def _rows(value: Any, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield objects in lists, and in the lists of envelopes."""
    if isinstance(value, list):
        for inner in value:
            yield from _rows(inner, kind)
    elif isinstance(value, dict):
        lists = {k: v for k, v in value.items() if isinstance(v, list)}
        if lists and not set(GPU_KEYS) & set(value):
            for name, inner in lists.items():
                yield from _rows(inner, name)
        else:
            yield kind, value


def _leaves(value: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """Yield values by path (``limit.max_power``), elements of lists by their number."""
    if depth > _DEEPEST:
        return
    if isinstance(value, dict) and not is_quantity(value):
        for name, inner in value.items():
            yield from _leaves(inner, f"{path}.{name}".strip(".").lower(), depth + 1)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _leaves(inner, f"{path}.{number}", depth + 1)
    else:
        yield path, value


def _literal(cell: str) -> Any:
    """Parse a cell: amd-smi writes dicts and lists into CSV as Python prints them."""
    if cell[:1] not in ("{", "["):
        return cell
    try:
        return ast.literal_eval(cell)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return cell

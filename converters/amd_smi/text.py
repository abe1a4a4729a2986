"""Rows of amd-smi's human-readable form: the blocks of ``metric``, the table of ``monitor``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.amd_smi import blocks, json
from chopper_interop.converters.amd_smi import faults as own_faults
from chopper_interop.converters.amd_smi.layout import LARGEST, ROW_KEYS
from chopper_interop.converters.amd_smi.row_reader import RowReader, is_unreadable, no_time
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.cells import ColumnBuilder, Rows, cell_of_text
from chopper_interop.converters.sampling.layouts import Layout, layout_of_row, slots_in
from chopper_interop.converters.sampling.starts import BEGIN, NO_MARK, STAMP, starts_of
from chopper_interop.converters.sampling.templates import read_lines, read_pieces
from chopper_interop.converters.sampling.text import NO_NUMBER, encoded, whole_number, without_tabs
from chopper_interop.converters.sampling.units import UNITS
from chopper_interop.io.json_text import byte_table
from chopper_interop.issues import IssueLog

HEADER = re.compile(r"\s*(?:TIMESTAMP +)?GPU +[A-Z][A-Z0-9_%]*(?: +[A-Z0-9_%/]+)*\s*$")
"""Header of a table."""
_FIRST_BLOCK = re.compile(rf"^(?:{blocks.BLOCK.pattern}|TIMESTAMP: )", re.MULTILINE)
_STAMP_IN_FRONT = re.compile(r"TIMESTAMP: ")
_PROCESS = "PID"
_GPU = ROW_KEYS.index("gpu")
_ROW = re.compile(r"\s*-?\d+ ")
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_CELL = re.compile(
    rf"\[[^\]]*\]|NOT ACTIVE|(?:[-+]?\d[\d.]*(?:/ *\d[\d.]*)?|N/A(?:/N/A)?)(?: (?:{_UNIT})(?=\s|$))?"
    r"(?=\s|$)|\S+"
)

COLUMNS = {
    "POWER": "power_usage", "PWR_CAP": "max_power", "GPU_TEMP": "hotspot_temperature",
    "GPU_T": "hotspot_temperature", "MEM_TEMP": "memory_temperature", "MEM_T": "memory_temperature",
    "GFX_UTIL": "gfx", "GFX%": "gfx", "MEM_UTIL": "monitor.mem", "MEM%": "monitor.mem",
    "ENC_UTIL": "encoder", "ENC%": "encoder", "ENC_CLOCK": "encoder_clock", "DEC_UTIL": "decoder",
    "DEC%": "decoder", "DEC_CLOCK": "decoder_clock", "THROTTLE": "throttle_status",
    "SINGLE_ECC": "single_bit_ecc", "DOUBLE_ECC": "double_bit_ecc", "VRAM%": "vram_percent",
}  # fmt: skip
"""Headers of columns that differ from the names in CSV by more than their capitals."""
_USAGE = {"VRAM_USAGE": ("vram_used", "vram_total"), "GTT_USAGE": ("used_gtt", "total_gtt")}
"""Columns of two amounts, such as ``2.9/ 15.9 GB``; GPUs in one chip with a CPU may have the second."""
_AMOUNTS = re.compile(r"(?!N/A(?: |$))(N/A|[^/]*)/ *(N/A|\S*) ?(.*)")
_DEGREE = re.compile(r"(?<=\d )\S{1,3}(?=C\b)")
_GARBLED = ("Â°", "\ufffd", "┬░", "ø", "?")
"""Signs of a degree that were decoded wrongly."""


class _Table(RowReader):
    """Rows of tables and blocks; it reads the lines of a table that have no layout."""

    def __init__(self, text: str, issues: IssueLog) -> None:
        super().__init__(issues)
        self.headings: dict[tuple[str, ...], int] = {(): 0}
        self.state = 0
        self.has_processes = _PROCESS in text
        self.first_line = 1

    @property
    def heads(self) -> tuple[str, ...]:
        return list(self.headings)[self.state]

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        line, heads = probe.strip(" \r\0"), self.heads
        if HEADER.match(line) or not _ROW.match(line) or self.has_processes:
            return None
        cells = _CELL.findall(line)
        if len(cells) != len(heads) or not heads:
            return None
        values = {head.lower(): cell for head, cell in zip(heads, cells, strict=True)}
        wholes = [(values.pop(name, ""), LARGEST[name]) for name in ROW_KEYS]
        if is_unreadable(wholes[0][0]):
            return None
        return layout_of_row(wholes, dict(_by_csv_keys(values)).items(), needed=_GPU)

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        if text.strip():
            self.read(text, number, is_complete=is_complete)

    def read(self, text: str, number: int, *, is_complete: bool) -> None:
        """Read one line, in which only blanks, returns and zeros are nothing."""
        stripped = text.strip(" \r\0")
        if stripped:
            _line(stripped, f"line {self.first_line + number - 1}", self, complete=is_complete)

    def add(self, texts: Iterable[str], cells: Iterable[tuple[str, str]], at: str) -> None:
        """Add a row, of which time, GPU and partition are as they are written; one that names no GPU is counted."""
        time, *_ = texts
        keys = tuple(whole_number(t, LARGEST[n]) for t, n in zip(texts, ROW_KEYS, strict=True))
        if keys[_GPU] < 0:
            self.lose(faults.NO_GPU, at)
            return
        for place, (key, text) in enumerate(dict(cells).items()):
            column = self.columns.setdefault(key, ColumnBuilder(key, place=place))
            column.add(self.rows, cell_of_text(text))
        self.processes.rows[keys[0], keys[_GPU]] = self.rows
        stamp = no_time(time.strip()) if keys[0] == NO_NUMBER else keys[0]
        self.row_keys[self.rows] = (stamp, *keys[1:])
        self.rows += 1


class _BlockTable(_Table):
    """Rows of blocks; it reads the blocks that have no layout."""

    def __init__(self, text: str, issues: IssueLog, lines: Array) -> None:
        super().__init__(text, IssueLog(issues.source))
        self.lines = lines
        """Number of lines in front of each piece."""
        self.of_blocks = IssueLog(issues.source)
        self.is_watched = False

    def effects(self) -> int:
        return super().effects() + self.of_blocks.total()

    def layout(self, probe: str, sample: str) -> Layout | None:  # noqa: ARG002 - the probe is enough
        issues = IssueLog()
        read = blocks.read(probe, issues)
        if len(read) != 1 or read[0].kind != "GPU" or issues.total():
            return None
        wholes, cells = _row_of_block(read[0])
        if any(slots_in(key) for key, _ in cells) or is_unreadable(wholes[0]):
            return None
        self.is_watched |= bool(read[0].stamp)
        sizes = [(text, LARGEST[name]) for text, name in zip(wholes, ROW_KEYS, strict=True)]
        return layout_of_row(sizes, dict(cells).items(), needed=_GPU)

    def line(self, text: str, number: int, *, is_complete: bool) -> None:
        del is_complete  # the block's own end says it
        first = int(self.lines[number - 1]) + 1
        read = blocks.read(text, self.of_blocks, is_watched=self.is_watched)
        self.is_watched |= any(block.stamp for block in read)
        _add_blocks(read, first, self)


def _mark(line: str) -> int:
    """Return what a line that is not indented marks: a block begins, or a time stands in front of one."""
    line = line.rstrip("\r\0 ")
    if blocks.STAMP.match(line):
        return STAMP
    return BEGIN if blocks.BLOCK.match(line) else NO_MARK


def _read_blocks(text: str, issues: IssueLog) -> Rows:
    """Read a text of blocks alone, in front of which messages may stand."""
    data = encoded(text)
    starts, places = starts_of(data, byte_table(b" ", but=True), lambda _, line: _mark(line), _mark)
    messages = _Table("", issues)
    if not len(places):  # what looks like the first line of a block is none
        _lines(text, 1, messages)
        return messages.finish(None)
    _lines(data[: places[0]].tobytes().decode(), 1, messages)
    table = _BlockTable(text, issues, starts)
    laid = read_pieces(data, places, np.append(places[1:], len(data)), table)
    issues.extend(table.of_blocks)
    issues.extend(table.issues)
    table.lost += messages.lost
    return table.finish(laid)


def read(text: str, issues: IssueLog) -> Rows:
    """Read the rows of a text.

    Parameters
    ----------
    text
        The file.
    issues
        Where rows that cannot be read are counted.
    """
    text = _with_degrees(without_tabs(text))
    table = _Table(text, issues)
    if ":" not in text or not any(f"{kind}:" in text for kind in blocks.KINDS):
        return table.finish(read_lines(encoded(text), table, gaps=True))
    if "GPU " not in text and _FIRST_BLOCK.search(text):
        return _read_blocks(text, issues)
    for reader, first, part in _parts(text):
        reader(part, first, table)
    return table.finish(None)


def _parts(text: str) -> Iterator[tuple[Callable[[str, int, _Table], None], int, str]]:
    """Yield the blocks and tables of a text, with the line on which each begins."""
    reader, first, lines = _lines, 1, list[str]()
    for number, line in enumerate(text.split("\n"), 1):
        block = blocks.BLOCK.match(line) or _STAMP_IN_FRONT.match(line)
        next_reader = _blocks if block else _lines if HEADER.match(line) else reader
        if next_reader is not reader:
            yield reader, first, "\n".join([*lines, ""])
            reader, first, lines = next_reader, number, []
        lines.append(line)
    yield reader, first, "\n".join(lines)


def _with_degrees(text: str) -> str:
    """Restore degrees in a text that was decoded wrongly."""
    if not any(sign[0] in text for sign in _GARBLED):
        return text
    return _DEGREE.sub(lambda sign: "°" if sign[0] in _GARBLED else sign[0], text)


def _blocks(text: str, first: int, table: _Table) -> None:
    _add_blocks(blocks.read(text, table.issues), first, table)


def _add_blocks(read: list[blocks.Block], first: int, table: _Table) -> None:
    for block in read:
        at = f"line {first + block.line - 1}"
        if block.kind != "GPU":
            table.lose(own_faults.OTHER_PART, f"{at}: {block.kind}")
            continue
        texts, cells = _row_of_block(block)
        table.add(texts, cells, at)


def _row_of_block(block: blocks.Block) -> tuple[tuple[str, str, str], list[tuple[str, str]]]:
    """Return the time, GPU and partition of a block as they are written, and its cells by key."""
    texts = (block.stamp, block.number, str(block.tree.pop("xcp", "")))
    return texts, [(key, str(leaf)) for key, leaf in json.leaves(block.tree) if leaf != {}]


def _lines(text: str, first: int, table: _Table) -> None:
    table.first_line = first
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        table.read(line, number, is_complete=number < len(lines))


def _line(line: str, at: str, table: _Table, *, complete: bool) -> None:
    watched = "TIMESTAMP" in table.heads
    if HEADER.match(line):
        if complete:
            table.state = table.headings.setdefault(tuple(line.split()), len(table.headings))
        else:
            table.issues.add(faults.FILE_CUT, 1, at)
    elif not _ROW.match(line):
        fault = faults.NOT_A_ROW if complete or not watched else faults.FILE_CUT
        table.issues.add(fault, 1, line[:80])
    elif not table.heads:
        table.lose(faults.NO_HEADER, at)
    elif _PROCESS in table.heads:
        _process(line, at, table)
    else:
        _row(line, at, table, cut=not complete and (watched or blocks.ENDS_IN_NUMBER.search(line)))


def _row(line: str, at: str, table: _Table, *, cut: object) -> None:
    cells = _CELL.findall(line)
    if len(cells) != len(table.heads):
        table.lose(own_faults.CUT, f"{at}: {len(cells)} cells for {len(table.heads)} columns")
        return
    if cut:
        table.issues.add(faults.CELL_CUT, 1, at)
        cells[-1] = ""
    values = {head.lower(): cell for head, cell in zip(table.heads, cells, strict=True)}
    texts = [values.pop(name, "") for name in ROW_KEYS]
    table.add(texts, _by_csv_keys(values), at)


def _process(line: str, at: str, table: _Table) -> None:
    cells = _CELL.findall(line)
    values = {h.lower(): c for h, c in zip(table.heads, cells, strict=False)}
    if len(cells) != len(table.heads):
        table.lose(own_faults.CUT, f"{at}: {len(cells)} cells for {len(table.heads)} columns")
        return
    stamp, gpu = (whole_number(values.get(name, ""), LARGEST[name]) for name in ROW_KEYS[:2])
    table.lost += 1
    table.processes.add(stamp, gpu, values, at)


def _by_csv_keys(values: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield cells by their keys in CSV; used and total memory in one cell become two."""
    for name, text in values.items():
        head = name.upper()
        amounts = _AMOUNTS.fullmatch(text) if head in _USAGE else None
        if amounts:
            for key, amount in zip(_USAGE[head], amounts.groups(), strict=False):
                yield key, f"{amount} {amounts[3]}"
        else:
            yield COLUMNS.get(head, name), text

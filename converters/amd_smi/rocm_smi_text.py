"""rocm-smi's human-readable output: ``GPU[0] : key: value`` lines, and the concise table."""

from __future__ import annotations

import re
from functools import partial
from typing import NamedTuple

from chopper_interop.converters.amd_smi.rocm_smi_records import SYSTEM, Records, card_of
from chopper_interop.converters.amd_smi.rocm_smi_table import (
    Form,
    Place,
    RecordTable,
    read_outputs,
)
from chopper_interop.converters.amd_smi.sniff import ROCM_SMI_CARD, ROCM_SMI_TITLE
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.facts import amount
from chopper_interop.converters.sampling.text import LARGEST_INDEX, whole_number, without_tabs
from chopper_interop.converters.sampling.timestamps import parse_labelled_timestamp
from chopper_interop.issues import IssueLog

_RULE = re.compile(r"[=-]{3,}")
_FINISHED = re.compile(r"[=-]{3,}|GPU\[\d+\](?: XCP\[\d+\])?\s*: ?[^:]+:|\d+ {2,}|$")
"""Lines whose truncation by the end of a file is detected elsewhere."""
HEAD = re.compile(r"(?:GPU|Device) (?:(?=.*\bTemp\b)(?=.*\bSCLK\b)|(?=.*\bDID\b)(?=.*\bBUS\b))")
"""Heads of the concise table, and of that of the hardware (``--showhw``)."""
_TWO_WORDS = re.compile(r"(?<=\S) (?=VER\b|RAS\b|ID\b|OD\b)")
"""The space in a head, such as ``GFX VER`` of the hardware's table and ``SCLK OD`` of ROCm 2's concise one."""
_SENSOR = re.compile(r"\((DieEdge|Edge|Junction|Memory|HBM \d)\)", re.IGNORECASE)
_NAME = re.compile(r"\s+\S.*$")
_SUPPORTED = re.compile(r"Supported (\w+) frequencies on GPU\d+")
_FREQUENCY = re.compile(r"\d+: *(\S+hz)(?: \*)?", re.IGNORECASE)
_SYSTEM = re.compile(r"([A-Z][\w -]*version): +(\S.*)$")

COLUMNS = {
    "Power": "Average Graphics Package Power (W)", "AvgPwr": "Average Graphics Package Power (W)",
    "SCLK": "sclk clock speed", "MCLK": "mclk clock speed", "PCLK": "pcie clock level",
    "Fan": "Fan Speed (%)", "Perf": "Performance Level", "PwrCap": "Max Graphics Package Power (W)",
    "VRAM%": "GPU Memory Allocated (VRAM%)", "GPU%": "GPU use (%)", "Node": "Node ID",
    "Partitions": "Partitions", "NODE": "Node ID", "DID": "Device ID", "GUID": "GUID",
    "GFX_VER": "GFX Version", "VBIOS": "VBIOS version",
    "SCLK_OD": "GPU OverDrive value (%)", "MCLK_OD": "GPU Memory OverDrive value (%)",
}  # fmt: skip
"""Heads of tables → keys of the long form. What is not here says which card it is; ``BUS`` is that of all
partitions of a card."""


class _State(NamedTuple):
    """Decides with the line how a line is read.

    Parameters
    ----------
    heads
        Heads of the table.
    sensor
        Sensor of its temperatures.
    clock
        Clock whose levels follow.
    card
        The card of the table's last row, whose name may stand on the next line.
    """

    heads: tuple[str, ...] = ()
    sensor: str = "edge"
    clock: str = ""
    card: int | None = None


_STATE = _State()
"""In front of the first line."""


class _RocmSmiTextReader:
    def __init__(self, issues: IssueLog, state: _State, *, marked: bool) -> None:
        self.records = Records(issues, marked=marked)
        self.heads, self.sensor, self.clock, self.card = state

    @property
    def state(self) -> _State:
        return _State(self.heads, self.sensor, self.clock, self.card)

    def line(self, line: str, number: int, *, is_complete: bool) -> None:
        line = line.rstrip("\r \0")
        stamp = parse_labelled_timestamp(line)
        if not is_complete and stamp is None and line and not _FINISHED.match(line):
            self.records.issues.add(faults.FILE_CUT, 1, line[:80])
        elif ROCM_SMI_TITLE.match(line):
            self.records.begin()
            self.heads = ()
        elif stamp is not None:
            self.records.moment(stamp)
        elif match := ROCM_SMI_CARD.match(line):
            of_partition = f"{match[2]} {match[3]}" if match[2] else match[3]
            self._value(match[1], of_partition, is_complete=is_complete)
        elif HEAD.match(line):
            self._head(line)
        elif self.heads and line[:1].isdigit():
            self._row(line, f"line {number}", is_complete=is_complete)
        elif line:
            self._other(line)

    def _value(self, name: str, text: str, *, is_complete: bool) -> None:
        card = card_of(name)
        if card is None:
            self.records.lose(faults.NO_GPU, text)
            return
        supported, frequency = _SUPPORTED.match(text), _FREQUENCY.fullmatch(text.strip())
        key, colon, value = text.partition(":")
        if supported:
            self.clock = supported[1]
        elif frequency and self.clock:
            level = amount(frequency[1], "MHz")
            if level is not None:
                levels = self.records.record(card).levels
                levels.setdefault(self.clock, []).append(level)
        elif colon and key.strip():
            self.clock = self.clock if len(key) <= 1 else ""
            if is_complete:
                self.records.add(card, key, value)
            else:  # the file ends here: digits may be missing
                self.records.record(card)
                self.records.issues.add(faults.CELL_CUT, 1, text[:80])
        else:
            self.records.record(card)

    def _head(self, line: str) -> None:
        self.records.begin()
        sensor = _SENSOR.search(line)
        self.sensor = sensor[1] if sensor else "edge"
        self.heads = tuple(_TWO_WORDS.sub("_", _without_brackets(line)).split())
        self.card = None

    def _row(self, line: str, at: str, *, is_complete: bool) -> None:
        cells = _cells(line)
        heads = self.heads
        if len(cells) != len(heads) or not is_complete:
            detail = f"{at}: {len(cells)} cells for {len(heads)} columns"
            self.records.lose(faults.CUT, detail)
            return
        card = whole_number(cells[0], LARGEST_INDEX)
        if card < 0:
            self.records.lose(faults.NO_GPU, at)
            return
        self.card = card
        for head, cell in zip(heads[1:], cells[1:], strict=True):
            if head == "Temp":
                sensor = self.sensor.lower().replace("dieedge", "edge")
                self.records.add(card, f"Temperature (Sensor {sensor}) (C)", cell)
            elif head in COLUMNS:
                self.records.add(card, COLUMNS[head], cell)
            else:
                self.records.record(card)

    def _other(self, line: str) -> None:
        sensor = _SENSOR.search(line)
        system = _SYSTEM.match(line)
        if _RULE.match(line):
            self.clock = ""
            self.card = None
        elif self.heads and self.card is None and sensor:
            self.sensor = sensor[1]
        elif self.heads and self.card is not None and _NAME.match(line):
            self.records.add(self.card, "Device Name", line)
            self.card = None
        elif system:
            self.records.add(SYSTEM, system[1], system[2])
        elif not self.heads or self.card is not None:
            self.records.issues.add(faults.NOT_A_ROW, 1, line.strip()[:80])


def read(text: str, issues: IssueLog) -> RecordTable:
    """Records of a text, or of several one behind the other."""
    text = without_tabs(text)
    marked = ROCM_SMI_TITLE.search(text) is not None
    begin = ROCM_SMI_TITLE if marked else HEAD
    form = Form(
        partial(_read_part, marked=marked), _STATE,
        begins=lambda line: begin.match(line) is not None, no_mark=b"G" if marked else b"", gaps=True,
    )  # fmt: skip
    return read_outputs(text, form, issues)


def _read_part(
    text: str, issues: IssueLog, state: _State, place: Place, *, marked: bool
) -> tuple[Records, _State]:
    reader = _RocmSmiTextReader(issues, state, marked=marked)
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        is_complete = number < len(lines)
        reader.line(line, place.line + number - 1, is_complete=is_complete)
    return reader.records, reader.state


def _without_brackets(head: str) -> str:
    """The heads of columns without the texts in brackets below or next to them."""
    return re.sub(r"\[[^\]]*\]", "Model", re.sub(r"\([^)]*\)", "", head))


def _cells(line: str) -> list[str]:
    """Cells of a row; ``NPS1, SPX, 0`` and ``[0x74a1 : 0x00]`` are one each."""
    line = re.sub(r"\[[^\]]*\]", lambda m: m[0].replace(" ", ""), line)
    return re.sub(r",\s+", ",", line).split()

"""The table that nvidia-smi prints without options, again and again (``-l``, ``watch``, a loop of a script).

Each output begins with its time, as ``ctime`` writes it, and has two lines for a GPU: index, name and PCI
address; fan, temperature, performance state, power and its limit, memory and utilization.
"""

from __future__ import annotations

import re
from itertools import pairwise

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi.headers import TABLE_TITLE
from chopper_interop.converters.nvidia_smi.table_builder import Identity, Table, TableBuilder
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.facts import pci_of
from chopper_interop.converters.sampling.timestamps import parse_labelled_timestamp
from chopper_interop.issues import IssueLog

_PCI = re.compile(r"N/A|(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f]")
_KEYS = (("fan_speed", "temperature_gpu", "pstate"), ("power_draw", "power_limit"))
_MEMORY = ("memory_used", "memory_total")
_CELLS = 3
"""Cells of a line: the GPU, its bus or memory, its use."""


def read(text: str, issues: IssueLog) -> Table:
    """Rows of the tables of a file.

    Parameters
    ----------
    text
        The file.
    issues
        Where it is noted what could not be read.
    """
    table, stamp = TableBuilder(issues), ""
    messages: list[str] = []
    _facts(table, text)
    lines = [line.strip() for line in text.split("\n")]
    for line, behind in pairwise([*lines, ""]):
        if line[:1] not in ("|", "+"):
            is_stamp = parse_labelled_timestamp(line) is not None
            stamp = line.strip("= ") if is_stamp else stamp
            if line and not is_stamp:
                messages.append(line)
            continue
        gpu = _gpu(line)
        if gpu is None:
            continue
        values = _values(behind)
        if values:
            table.add(stamp, gpu, [((key, ""), cell) for key, cell in values.items()])
        else:
            table.lose(faults.CUT, behind)
    issues.add(
        own_faults.PROCESSES_OF_TABLE, len(re.findall(r"^\| Processes:", text, re.MULTILINE))
    )
    return table.finish()


def _facts(table: TableBuilder, text: str) -> None:
    title = TABLE_TITLE.search(text)
    for key, name in (("driver_version", "Driver Version:"), ("cuda_version", "CUDA Version:")):
        words = title[0].partition(name)[2].split() if title else []
        if words:
            table.facts[key] = words[0]


def _cells(line: str) -> list[str]:
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    return cells if len(cells) == _CELLS else []


def _gpu(line: str) -> Identity | None:
    """Names of the GPU of a first line; None for other lines."""
    cells = _cells(line)
    words = cells[0].split(None, 1) if cells else []
    bus = cells[1].split() if cells else []
    if len(words) < 2 or not words[0].isdecimal() or not bus or not _PCI.fullmatch(bus[0]):  # noqa: PLR2004
        return None
    name = words[1].rsplit(None, 1)[0]  # without the mode of persistence, or of the driver
    return Identity(number=words[0], pci=pci_of(bus[0]), name=name)


def _values(line: str) -> dict[str, str]:
    """Values of a second line by the keys that ``--query-gpu`` has for them; empty for other lines."""
    cells = _cells(line)
    front, slash, limit = cells[0].partition("/ ") if cells else ("", "", "")
    words = front.split()
    use = cells[2].split() if cells else []
    used, _, total = cells[1].partition("/") if cells else ("", "", "")
    if not slash or len(words) < len(_KEYS[0]) + 1 or not use:
        return {}
    keys = (*_KEYS[0], *_KEYS[1], *_MEMORY, "utilization_gpu")
    texts = (*words[:3], words[-1], limit.strip(), used.strip(), total.strip(), use[0])
    return dict(zip(keys, texts, strict=True))

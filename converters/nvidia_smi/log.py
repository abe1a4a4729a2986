"""``nvidia-smi -q`` as text and as XML, once or in a loop: one row for each GPU of each output.

Names of values are made of where they stand: ``Clocks`` / ``SM`` becomes ``clocks_sm``, the
element ``<clocks><sm_clock>`` becomes ``clocks_sm_clock``; `lanes` knows both.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any
from xml.etree import ElementTree as ET

from chopper_interop.converters.nvidia_smi import faults as own_faults
from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.headers import BANNER
from chopper_interop.converters.nvidia_smi.table_builder import Identity, Table, TableBuilder
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.facts import pci_of
from chopper_interop.issues import IssueLog

_GPU = re.compile(r"GPU ((?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\s*$")
_ROOT = "nvidia_smi_log"


def read_text(text: str, issues: IssueLog) -> Table:
    """Rows of ``nvidia-smi -q``.

    Parameters
    ----------
    text
        The file.
    issues
        Where it is noted what could not be read.
    """
    table = TableBuilder(issues)
    if re.search(r"[\w.]\Z", text):
        issues.add(faults.CELL_CUT)
        text = text[: text.rfind("\n") + 1]
    for log in BANNER.split(text)[1:]:
        _read_log(table, log)
    return table.finish()


def _read_log(table: TableBuilder, log: str) -> None:
    stamp, attached = "", 0
    gpus: list[tuple[str, list[str]]] = []
    current: list[str] | None = None
    for line in (written.rstrip() for written in log.split("\n")):
        gpu = _GPU.match(line)
        if gpu:
            current = []
            gpus.append((gpu[1], current))
        elif current is not None:
            current.append(line)
        elif pair := _pair(line):
            name, value = pair[0], pair[1] or ""
            stamp = value if name == "Timestamp" else stamp
            attached = int(value) if name == "Attached GPUs" and _is_count(value) else attached
            _fact(table, name, value)
    for place, (address, lines) in enumerate(gpus):
        cells = _tree(lines)
        _add(table, stamp.strip(), place if attached == len(gpus) else -1, address, cells)


def _pair(line: str) -> tuple[str, str | None] | None:
    """Name and value of ``Name : value``; the value is None where the line ends with the colon."""
    name, colon, value = line.partition(":")
    if not colon or not name.strip() or value[:1] not in ("", " "):
        return None
    return name.strip(), value[1:] if value else None


def _tree(lines: list[str]) -> dict[str, str]:
    """Values by their path of headings, which the indentation of lines gives."""
    path: list[tuple[int, str]] = []
    values: dict[str, str] = {}
    for line in lines:
        if not line.strip():
            continue
        indent = len(line) - len(line.lstrip())
        while path and path[-1][0] >= indent:
            path.pop()
        pair = _pair(line)
        if pair and pair[1] is not None:
            key = tables.key_of(" ".join([*(name for _, name in path), pair[0]]))[0]
            values.setdefault(key, pair[1].strip())
        else:
            path.append((indent, line.strip(" :")))
    return values


def read_xml(text: str, issues: IssueLog) -> Table:
    """Rows of ``nvidia-smi -q -x``.

    Parameters
    ----------
    text
        The file: documents one behind the other, the last perhaps cut.
    issues
        Where it is noted what could not be read.
    """
    table = TableBuilder(issues)
    for document in re.split(r"(?=<nvidia_smi_log\b)", text)[1:]:
        body = re.split(r"<\?xml|<!DOCTYPE", document, maxsplit=1)[0]
        _read_document(table, body)
    return table.finish()


def _read_document(table: TableBuilder, document: str) -> None:
    parser: Any = ET.XMLPullParser(["end"])
    stamp, attached, is_complete = "", 0, False
    gpus: list[tuple[str, dict[str, str]]] = []
    with suppress(ET.ParseError):  # what stands in front of the fault is read
        parser.feed(document)
        for _, element in parser.read_events():
            text = (element.text or "").strip()
            if element.tag == "timestamp":
                stamp = stamp or text
            elif element.tag == "attached_gpus" and _is_count(text):
                attached = int(text)
            elif element.tag == "gpu" and len(element):
                gpus.append((element.get("id", ""), _elements(element, "")))
            elif element.tag in tables.FACTS:
                table.facts[element.tag] = text
            is_complete = is_complete or element.tag == _ROOT
    for place, (address, cells) in enumerate(gpus):
        _add(table, stamp, place if attached == len(gpus) else -1, address, cells)
    opened = len(re.findall(r"<gpu[ >]", document))
    if opened > len(gpus):
        table.lose(faults.CUT, "a GPU of an XML document that breaks off", opened - len(gpus))
    elif not is_complete:
        table.issues.add(own_faults.FILE_CUT)


def _elements(element: ET.Element, path: str) -> dict[str, str]:
    values: dict[str, str] = {}
    pending = [(child, path) for child in reversed(element)]
    while pending:
        one, where = pending.pop()
        key = tables.key_of(f"{where} {one.tag}".strip())[0]
        if len(one):
            pending += [(child, key) for child in reversed(one)]
        else:
            values.setdefault(key, (one.text or "").strip())
    return values


def _add(table: TableBuilder, stamp: str, place: int, address: str, cells: dict[str, str]) -> None:
    """Add a GPU. Its index is its place in the list, if that is whole, for both are by address."""
    gpu = Identity(
        number=str(place) if place >= 0 else "",
        uuid=cells.get("gpu_uuid") or cells.get("uuid", ""),
        pci=pci_of(address),
        name=cells.get("product_name", ""),
    )
    known = [((key, ""), text) for key, text in cells.items() if tables.meaning(key)]
    table.add(stamp, gpu, known)


def _fact(table: TableBuilder, name: str, text: str) -> None:
    key = tables.key_of(name)[0]
    if key in tables.FACTS:
        table.facts[key] = text.strip()


def _is_count(text: str | None) -> bool:
    return bool(text) and str(text).strip().isdecimal() and len(str(text).strip()) < 6  # noqa: PLR2004

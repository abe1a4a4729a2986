"""Forms of rocm-smi's output, recognised by the start of a file.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import re
from enum import Enum

from chopper_interop.converters.amd_smi import rocm_smi_lanes
from chopper_interop.converters.sampling.text import without_tabs
from chopper_interop.converters.sampling.timestamps import parse_labelled_timestamp


class Form(Enum):
    """Forms of rocm-smi's output."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"


CSV_HEADER = re.compile(r"(?:(?:timestamp|time|date|datetime),\s*)?device,", re.IGNORECASE)
SYSTEM_HEADER = re.compile(r"name, ?value\s*$")
JSON_BEGIN = re.compile(r'^[ \t]*[\[{](?=\s*(?:[\[{"}\]]|\Z))', re.MULTILINE)
TITLE = re.compile(r"=+ *ROCm System Management Interface *=+")
CARD_LINE = re.compile(r"(GPU\[\d+\])\s*: ?(.*)$")
_LINES_AT_MOST = 60
_MESSAGE = re.compile(r"WARNING|ERROR|\[?INFO|cat: |python|\s*$")
_CARD = re.compile(r'"(?:card\d+|system)"\s*:\s*\{([^{}]*)')
_CARD_ROW = re.compile(r"^(?:[^,\n]*,)?\s*(?:card\d+|system),", re.MULTILINE)
_CONCISE = re.compile(r"(?:GPU|Device) +.*\bTemp\b.*\bSCLK\b.*\bMCLK\b.*\bPwrCap\b")


def form_of(head: bytes) -> Form | None:
    """Identify the form of rocm-smi's output by a file's first bytes; None if it is none.

    Parameters
    ----------
    head
        First bytes of the file, unpacked. May end anywhere.
    """
    text = without_tabs(head.decode("utf-8", "replace").lstrip("\ufeff"))
    lines = text.split("\n")
    for number, raw in enumerate(lines[:_LINES_AT_MOST]):
        line = raw.rstrip("\r \0")
        if not line or _MESSAGE.match(line):
            continue
        form = _form(line, "\n".join(lines[number:]))
        if form is not None or parse_labelled_timestamp(line) is None:
            return form
    return None


def _form(line: str, rest: str) -> Form | None:
    if TITLE.match(line) or _CONCISE.match(line):
        return Form.TEXT
    if CARD_LINE.match(line):
        return Form.TEXT if rocm_smi_lanes.MARKS.search(rest) else None
    if re.fullmatch(r"[=\s]+", line) or line.startswith("==="):
        return Form.TEXT if TITLE.search(rest) else None
    if JSON_BEGIN.match(rest):
        cards = _CARD.search(rest)
        return Form.JSON if cards and rocm_smi_lanes.MARKS.search(cards[1]) else None
    if CSV_HEADER.match(line):
        marked = rocm_smi_lanes.MARKS.search(line)
        return Form.CSV if marked and _CARD_ROW.search(rest) else None
    system = SYSTEM_HEADER.match(line)
    return Form.CSV if system and re.search(r'"?Driver version"?,', rest) else None

"""Whether a file is rocm-smi's, and in which form, by how it begins."""

from __future__ import annotations

import re
from enum import Enum

from chopper_interop.converters import (
    rocm_smi_csv,
    rocm_smi_json,
    rocm_smi_tables,
    rocm_smi_text,
    rocm_smi_time,
)
from chopper_interop.converters.telemetry_text import without_tabs


class Form(Enum):
    """Forms of rocm-smi's output."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"


_LINES_AT_MOST = 60
_MESSAGE = re.compile(r"WARNING|ERROR|\[?INFO|cat: |python|\s*$")
_CARD = re.compile(r'"(?:card\d+|system)"\s*:\s*\{([^{}]*)')
_CARD_ROW = re.compile(r"^(?:[^,\n]*,)?\s*(?:card\d+|system),", re.MULTILINE)
_CONCISE = re.compile(r"(?:GPU|Device) +.*\bTemp\b.*\bSCLK\b.*\bMCLK\b.*\bPwrCap\b")


def form_of(head: bytes) -> Form | None:
    """Which form of rocm-smi's output a file is that begins so; None if it is none.

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
        if form is not None or rocm_smi_time.moment(line) is None:
            return form
    return None


def _form(line: str, rest: str) -> Form | None:
    if rocm_smi_text.BEGIN.match(line) or _CONCISE.match(line):
        return Form.TEXT
    if rocm_smi_text.LINE.match(line):
        return Form.TEXT if rocm_smi_tables.MARKS.search(rest) else None
    if re.fullmatch(r"[=\s]+", line) or line.startswith("==="):
        return Form.TEXT if rocm_smi_text.BEGIN.search(rest) else None
    if rocm_smi_json.BEGIN.match(rest):
        cards = _CARD.search(rest)
        return Form.JSON if cards and rocm_smi_tables.MARKS.search(cards[1]) else None
    if rocm_smi_csv.HEADER.match(line):
        marked = rocm_smi_tables.MARKS.search(line)
        return Form.CSV if marked and _CARD_ROW.search(rest) else None
    system = rocm_smi_csv.SYSTEM_HEADER.match(line)
    return Form.CSV if system and re.search(r'"?Driver version"?,', rest) else None

"""rocm-smi's JSON: ``{"card0": {"key": "text"}, …, "system": {…}}``, once or one behind the other."""

from __future__ import annotations

import re
from json import JSONDecoder
from typing import Any

from chopper_interop.converters.amd_smi.rocm_smi_records import Records, card_of
from chopper_interop.converters.amd_smi.rocm_smi_table import (
    Form,
    Place,
    RecordTable,
    read_outputs,
)
from chopper_interop.converters.amd_smi.sniff import ROCM_SMI_JSON
from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.timestamps import parse_labelled_timestamp
from chopper_interop.issues import IssueLog

_CARD = re.compile(r'"((?:card\d+)|system)"\s*:\s*(?=\{)')
_TIMES = ("timestamp", "time", "date", "datetime")
_DEEPEST = 4
"""Levels of brackets around the cards. Chosen: a list and an object of a script, and as many again."""


def read(text: str, issues: IssueLog) -> RecordTable:
    """Records of a file."""
    return read_outputs(text, _FORM, issues)


def _read_part(text: str, issues: IssueLog, state: None, place: Place) -> tuple[Records, None]:
    records = Records(issues)
    decoder, at = JSONDecoder(), 0
    while at < len(text):
        begin = ROCM_SMI_JSON.search(text, at)
        stop = begin.end() - 1 if begin else len(text)
        _read_between_objects(
            text[at:stop], records, is_complete=begin is not None or text.endswith("\n")
        )
        if begin is None:
            break
        try:
            document, at = decoder.raw_decode(text, stop)
        except (ValueError, RecursionError):
            at = _broken(text, stop, records, decoder, place)
        else:
            _document(document, records, 0)
    return records, state


def _read_between_objects(text: str, records: Records, *, is_complete: bool) -> None:
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        stamp = parse_labelled_timestamp(line)
        if stamp is not None:
            records.moment(stamp)
        elif line.strip(" \r\0,]"):
            cut = number == len(lines) and not is_complete
            fault = faults.FILE_CUT if cut else faults.NOT_A_ROW
            records.issues.add(fault, 1, line.strip()[:80])


def _document(value: Any, records: Records, depth: int, timestamp: Any = None) -> None:
    """Cards of a document, or of those in it that somebody else put around them."""
    if depth > _DEEPEST:
        return
    if isinstance(value, list):
        for inner in value:
            _document(inner, records, depth + 1, timestamp)
    elif isinstance(value, dict):
        stamps = (parse_labelled_timestamp(str(v)) for k, v in value.items() if k.lower() in _TIMES)
        timestamp = next(stamps, None) or timestamp
        cards = {k: v for k, v in value.items() if card_of(k) is not None and isinstance(v, dict)}
        if cards:
            records.begin()
            if timestamp:
                records.moment(timestamp)
            for name, values in cards.items():
                _card(name, values, records)
        else:
            for inner in value.values():
                _document(inner, records, depth + 1, timestamp)


def _card(name: str, values: dict[str, Any], records: Records) -> None:
    card = card_of(name)
    if card is None:
        return
    records.record(card)
    for key, value in values.items():
        if not isinstance(value, dict | list):
            records.add(card, key, "" if value is None else str(value))


def _broken(text: str, start: int, records: Records, decoder: JSONDecoder, place: Place) -> int:
    """Take the whole cards of a document that breaks off; where the next may begin."""
    at = start
    following = re.compile(r"\n(?=[\[{])").search(text, start + 1)
    end = following.end() if following else len(text)
    records.begin()
    while (match := _CARD.search(text, at, end)) is not None:
        try:
            values, at = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            break
        _card(match[1], values, records)
    records.lose(faults.CUT, f"character {place.character + at}")
    return end


_FORM = Form(
    _read_part, None, begins=lambda line: line.startswith(("{", "[")), no_mark=b' \t"}],',
    is_whole=True,
)  # fmt: skip

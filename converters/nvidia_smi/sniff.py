"""Recognition of the outputs of nvidia-smi and dcgmi by the first bytes of a file."""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache

from chopper_interop.converters.nvidia_smi import headers
from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.dcgmi_fields import HEADER as DCGMI_HEADER
from chopper_interop.converters.sampling.ambiguous_headers import (
    AMD_SMI,
    CODECARBON,
    XPU_SMI,
    is_of_nvidia,
)
from chopper_interop.converters.sampling.timestamps import (
    parse_labelled_timestamp,
    split_leading_timestamp,
)


class Output(Enum):
    """Kinds of output of nvidia-smi."""

    CSV = "--query-gpu as CSV, or a script's CSV of the same values"
    DMON = "dmon"
    LOG = "-q"
    XML = "-q -x"
    SUMMARY = "the table without options, several times"
    PROCESSES = "pmon, --query-compute-apps, --query-accounted-apps"
    STATIC = "-L, topo, nvlink, c2c, the table without options once, --query-supported-clocks"


_SAMPLES = (Output.CSV, Output.DMON, Output.LOG, Output.XML, Output.SUMMARY)
_LINES = 40
"""Messages of scripts and warnings in front of the output are no more."""
_DCGMI_NAME = re.compile(r"[A-Z][A-Z0-9#]{2,14}")
_DCGMI_OTHERS = re.compile(
    r"\s*(?:\d+ (?:GPUs?|field groups) found\.|Successfully (?:retrieved|ran|obtained)\b.*\b(?:statistics|diagnostic|health)"
    r"|\+[-=]+\+(?:[-=]+\+)?\s*\n\| (?:GROUPS |Diagnostic |GPU ID: \d+, Device|Successfully|Execution Stats|NVLink))"
)
_QUERY = re.compile(
    r"(?:clocks|clocks_throttle_reasons|clocks_event_reasons|utilization|temperature|power|memory"
    r"|pci|pcie|ecc|enforced|fan|encoder|fabric|module|driver|vbios|compute|display|persistence"
    r"|accounting|mig|gom|inforom|retired_pages)[._][a-z_.]+(?:\s\[[^\]]*\])?"
)
"""Names as only ``--query-gpu`` has them."""
_STATIC = (
    re.compile(r"GPU \d+: .*\(UUID: (?:GPU|MIG)-"),
    re.compile(r"\s*\+-+\+\s*$"),
    re.compile(r"\|\s*NVIDIA-SMI \d"),
    re.compile(r"\s*GPU0\s+(?:GPU1\s|CPU Affinity|NIC|mlx)"),
)
_OF_GPUS = ("power_draw", "gpu_")
"""Beginnings of names that nothing but a GPU's value has, even if it is the only one."""
_COLUMNS = 1024
"""Columns of a header at most. Chosen: nvidia-smi knows some 200, each of which is compared with the whole table."""
_PEOPLE = re.compile(r"\| *NVIDIA-SMI \d")
_UUID = _STATIC[0]


def is_samples(head: bytes) -> bool:
    """True if a file that begins so holds samples of GPUs by nvidia-smi."""
    return output_of(head) in _SAMPLES


def is_processes(head: bytes) -> bool:
    """True if a file that begins so is a list of processes by nvidia-smi."""
    return output_of(head) is Output.PROCESSES


def is_static(head: bytes) -> bool:
    """True if a file that begins so is what nvidia-smi prints once."""
    return output_of(head) is Output.STATIC


def is_dcgmi_table(head: bytes) -> bool:
    """True if a file that begins so is the table of ``dcgmi dmon``."""
    for written in [n for n in _text(head).split("\n")[:_LINES] if n.strip()]:
        line = split_leading_timestamp(written.strip())[1]
        if DCGMI_HEADER.match(line):
            names = line.lstrip("# ").split()[1:]
            return bool(names) and all(_DCGMI_NAME.fullmatch(name) for name in names)
        if line[:1] in ("{", "[", "<") or "," in line:
            return False
    return False


def is_other_of_dcgmi(head: bytes) -> bool:
    """True if a file that begins so is what dcgmi prints once."""
    return _DCGMI_OTHERS.match(_text(head)) is not None


def _text(head: bytes) -> str:
    return head.decode("utf-8", "replace").lstrip("\ufeff")


@lru_cache(maxsize=1)  # several formats ask about the same file, one after the other
def output_of(head: bytes) -> Output | None:
    """Identify the output of nvidia-smi by a file's first bytes; None if it is none.

    Parameters
    ----------
    head
        First bytes of the file, unpacked. May end anywhere.
    """
    text = _text(head)
    if _is_log(text, headers.XML):
        return Output.XML
    if _is_log(text, headers.BANNER):
        return Output.LOG
    if len(headers.TABLE_TITLE.findall(text)) > 1:
        return Output.SUMMARY
    lines = [line for line in text.split("\n")[:_LINES] if line.strip()]
    for number, line in enumerate(lines):
        output = _of_line(line.strip(), lines[number + 1 :])
        if output:
            return output
        if number and not _is_message(line):
            break
    return _output_by_lines(lines)


def _output_by_lines(lines: list[str]) -> Output | None:
    """Output of ``dmon`` whose first heading is lost."""
    for line in lines:
        plain = split_leading_timestamp(line.strip())[1]
        if headers.DMON_HEADER.match(plain):
            return Output.DMON
        if headers.PMON_HEADER.match(plain):
            return Output.PROCESSES
    return None


def _is_log(text: str, mark: re.Pattern[str]) -> bool:
    match = mark.search(text[:4096])
    return (
        match is not None
        and text[: match.start()].count("\n") < _LINES
        and (mark is headers.BANNER or text.lstrip()[:1] == "<")
    )


def _is_message(line: str) -> bool:
    """True if a line may precede the output: it is neither a row nor of another form."""
    is_row = re.match(r"\s*[\d\[{<\"]", line) and not parse_labelled_timestamp(line)
    return not is_row and "," not in line


def _of_line(line: str, behind: list[str]) -> Output | None:
    if headers.is_row_without_header(line):
        return Output.CSV
    line = split_leading_timestamp(line)[1]
    if headers.DMON_HEADER.match(line):
        return Output.DMON
    if headers.PMON_HEADER.match(line):
        return Output.PROCESSES
    if _UUID.match(line) or _STATIC[3].match(line):
        return Output.STATIC
    if _STATIC[1].match(line) or _STATIC[2].match(line):
        return Output.STATIC if any(_PEOPLE.search(n) for n in [line, *behind[:3]]) else None
    return _of_csv(line)


def _of_csv(line: str) -> Output | None:
    may_be = re.match(r"[A-Za-z]", line) and line.count(",") < _COLUMNS
    names = headers.names_of(line) if may_be else []
    keys = [key for key, _ in names]
    if not headers.is_header(names) or CODECARBON.match(line) or XPU_SMI.match(line):
        return None
    if headers.is_apps(keys):
        return Output.PROCESSES
    if headers.is_static(keys):
        return Output.STATIC
    if AMD_SMI.match(line) and not is_of_nvidia(headers.cells_of(line)):
        return None
    values = [key for key in keys if tables.meaning(key)]
    asked = any(_is_query(cell) for cell in headers.cells_of(line))
    stamped = bool(set(keys) & tables.STAMP)
    names_gpus = bool(set(keys) & (tables.INDEX | tables.UUID | tables.PCI))
    of_gpus = names_gpus or len(values) > 1 or any(key.startswith(_OF_GPUS) for key in values)
    return Output.CSV if values and (asked or (stamped and of_gpus)) else None


def _is_query(cell: str) -> bool:
    return "." in cell and _QUERY.fullmatch(cell) is not None

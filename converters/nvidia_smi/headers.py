"""Headers and lines by which nvidia-smi's output is recognised.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence

from chopper_interop.converters.nvidia_smi import lanes as tables

DMON_HEADER = re.compile(r"#\s*(?:Date\s*,?\s+)?(?:Time\s*,?\s+)?gpu\b(?!.*\bpid\b)", re.IGNORECASE)
PMON_HEADER = re.compile(r"#\s*(?:Date\s+)?(?:Time\s+)?gpu\b.*\bpid\b", re.IGNORECASE)
BANNER = re.compile(r"(?<!=)=+NVSMI LOG=+")
TABLE_TITLE = re.compile(r"^\| *NVIDIA-SMI \d[^\n]*$", re.MULTILINE)
XML = re.compile(r"<nvidia_smi_log\b")
APPS = frozenset({
    "process_name", "used_gpu_memory", "used_memory", "gpu_utilization", "mem_utilization",
    "max_memory_usage", "gpu_bus_id", "gpu_uuid", "gpu_name", "vgpu_instance",
})  # fmt: skip
"""Columns in addition to ``pid`` of ``--query-compute-apps`` and ``--query-accounted-apps``."""
STATIC = (
    frozenset({"memory", "graphics"}),
    frozenset({"retired_pages_address"}),
    frozenset({"retired_pages_timestamp"}),
    frozenset({"remapped_rows_correctable"}),
    frozenset({"remapped_rows_uncorrectable"}),
)
"""Columns of which ``--query-supported-clocks`` and the like have all of one set."""
LOCAL_STAMP = re.compile(r"\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}")
_UNIT_CELL = re.compile(r"[-+]?\d+(?:\.\d+)? (?:W|MHz|%|MiB)")
_QUOTE_OR_RETURN = re.compile('["\\r]')
_LABEL = re.compile(r"\s*[A-Za-z_][\w ]*:")


def names_of(line: str) -> list[tuple[str, str]]:
    """Keys and units of a line, if it is a header."""
    return [tables.key_of(cell) for cell in cells_of(line)]


def is_header(names: Sequence[tuple[str, str]]) -> bool:
    """True if these are names of columns of which at least one is known."""
    keys = [key for key, _ in names]
    if not all(re.match(r"[a-zA-Z~/\\]", key) for key in keys if key):
        return False
    return (
        is_apps(keys) or is_static(keys) or any(tables.is_own(k) or tables.meaning(k) for k in keys)
    )


def is_apps(keys: Sequence[str]) -> bool:
    """True if these are columns of a query about processes."""
    return "pid" in keys and bool(APPS & set(keys))


def is_static(keys: Sequence[str]) -> bool:
    """True if these are columns of a query about constant properties."""
    return any(known <= set(keys) for known in STATIC)


def is_row_without_header(line: str) -> bool:
    """True if a line can only be a row of ``--format=csv,noheader``."""
    cells = cells_of(line)
    if _LABEL.match(line) or any(c.count("[") != c.count("]") for c in cells):
        return False  # a list of values in amd-smi's human-readable output
    stamped = bool(cells) and LOCAL_STAMP.fullmatch(cells[0]) is not None and len(cells) > 1
    return stamped or sum(_UNIT_CELL.fullmatch(c) is not None for c in cells) > 1


def cells_of(line: str) -> list[str]:
    """Cells of one line, without the space in front."""
    if line and _QUOTE_OR_RETURN.search(line) is None:  # two fifths of what csv's reader takes
        return [cell.strip() for cell in line.split(",")]
    try:
        cells = next(csv.reader([line], skipinitialspace=True), [])
    except csv.Error:
        cells = line.split(",")
    return [cell.strip() for cell in cells]

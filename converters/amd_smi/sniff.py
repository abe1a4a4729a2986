"""Recognition of the outputs of amd-smi, rocm-smi and the recorder by the start of a file.

Every command of amd-smi prints one of three forms, CSV, JSON or human-readable text, and may print messages
before it: the line ``'CTRL' + 'C' to stop watching output:`` of a watch, warnings, messages of the
library loader.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import re
from enum import Enum

from chopper_interop.converters.amd_smi import lanes, layout, recorder_lanes, rocm_smi_lanes
from chopper_interop.converters.sampling.ambiguous_headers import is_of_nvidia
from chopper_interop.converters.sampling.text import without_tabs
from chopper_interop.converters.sampling.timestamps import (
    has_time_of_day,
    parse_labelled_timestamp,
)


class Output(Enum):
    """Kinds of amd-smi's output."""

    SAMPLES = "metric or monitor as CSV or JSON"
    STATIC = "static, list, topology, xgmi, process, partition, firmware, in any form"
    TEXT = "metric or monitor in human-readable form"
    MESSAGES = "errors, or messages alone"


class RocmSmiForm(Enum):
    """Forms of rocm-smi's output."""

    JSON = "json"
    CSV = "csv"
    TEXT = "text"


_WATCHING = "'CTRL' + 'C' to stop watching output:"
_MESSAGE = re.compile(
    r"'CTRL' \+ 'C'|WARNING|AMDSMI Tool: |\S{0,256}?libamd_smi\S{0,256}[: ]|Unable to find libamd_smi"
)
_MAX_MESSAGES = 50
"""Messages in front of the output that are skipped. Chosen: several for each of 8 GPUs."""

_SECTIONS = frozenset({
    "usage", "power", "clock", "temperature", "pcie", "ecc", "ecc_block", "ecc_blocks", "fan",
    "voltage_curve", "overdrive", "mem_overdrive", "perf_level", "xgmi_err", "voltage", "energy",
    "mem_usage", "throttle", "gpu_board", "base_board",
})  # fmt: skip
"""Sections of ``metric``."""
_STATIC = frozenset({
    "asic", "bus", "vbios", "ifwi", "limit", "driver", "board", "ras", "soc_pstate", "xgmi_plpd",
    "process_isolation", "numa", "vram", "cache_info", "bdf", "gpu_bdf", "uuid", "gpu_uuid",
    "links", "link_metrics", "link_status", "link_port_status", "process_list", "process_info",
    "fw_list", "fw_id", "fw_version", "retired", "pending", "un_res", "pid", "market_name",
    "vendor_id", "vendor_name", "accelerator_type", "accelerator_profile_index",
    "memory_partition_caps", "current_compute_partition",
})  # fmt: skip
"""Keys of GPUs, and columns, in output that is not sampled."""
_STATIC_TEXT = frozenset({"clock", "partition", "memory_partition", "fw", "firmware", "ucode"})
"""Sections of the human-readable form in addition to `_STATIC`."""
_BDF = layout.PCI_ADDRESS
RECORDING = re.compile(rb'\s*\{\s*"chopper_recording":')
"""Beginning of the description of a recording."""
_ENVELOPES = frozenset({
    "xgmi_metric", "current_partition", "memory_partition", "partition_profiles",
    "partition_resources", "topology",
})  # fmt: skip
"""Keys around lists of GPUs in output that is not sampled."""
JSON_WORDS = tuple(f'"{key}"'.encode() for key in ("gpu", "error", *sorted(_ENVELOPES)))
"""Keys of which amd-smi's output as JSON has one: `Converter.json_words`."""
ROCM_SMI_JSON_WORDS = (b'"card', b'"system"')
"""Keys of which rocm-smi's output as JSON has one: `Converter.json_words`."""
_BLOCK = re.compile(
    r"(?:TIMESTAMP: -?\d+\s+)?GPU: \d+\s+(?:TIMESTAMP: -?\d+\s+)?([A-Z][A-Z0-9_ ]*):"
)
"""Start of the human-readable form with a block for each GPU, up to the first section."""
_OTHER_BLOCK = re.compile(r"(?:TIMESTAMP: -?\d+\s+)?(?:CPU|CORE|NIC|SWITCH): \d+\s+[A-Z]")
_FIRST_GPU = re.compile(r"^(?:TIMESTAMP: -?\d+\s+)?GPU: \d+\s*$", re.MULTILINE)
_TABLE = re.compile(
    r"(?:TIMESTAMP +)?GPU +(?:XCP +)?(?:POWER|GPU_T|MEM_T|GFX|MEM|ENC|DEC|VRAM|PVIOL|SI)"
)
"""Start of ``monitor`` in human-readable form."""
_TITLE = re.compile(
    r"\+-+\+\s*\| AMD-SMI "
    r"|(?:CURRENT_PARTITION|ACCELERATOR_PARTITION_\w+|MEMORY_PARTITION):\s*\n"
    rf"|(?:ACCESS|WEIGHT|HOPS|LINK TYPE|NUMA BW|CACHE COHERENCY|ATOMICS|DMA|BI-DIRECTIONAL|LINK "
    rf"METRIC|XGMI LINK STATUS|XGMI LINK METRIC)(?: TABLE)?:\s*\n.*(?:{_BDF}|bdf)"
)
"""Start of other output in human-readable form."""
_FIRST_KEY = re.compile(r'\{\s*"(\w+)"\s*:')
_GPU_DATA = re.compile(rf'"{layout.GPU_DATA}"\s*:\s*')
_TOKEN = re.compile(r'"((?:[^"\\]|\\.)*)"(\s*:)?|[{}\[\]]')


ROCM_SMI_CSV = re.compile(r"(?:(?:timestamp|time|date|datetime),\s*)?device,", re.IGNORECASE)
ROCM_SMI_SYSTEM = re.compile(r"name, ?value\s*$")
ROCM_SMI_JSON = re.compile(r'^[ \t]*[\[{](?=\s*(?:[\[{"}\]]|\Z))', re.MULTILINE)
ROCM_SMI_TITLE = re.compile(r"(?<!=)=+ *ROCm System Management Interface *=+")
ROCM_SMI_CARD = re.compile(r"(GPU\[\d+\])(?: (XCP\[\d+\]))?\s*: ?(.*)$")
_ROCM_SMI_LINES = 60
"""Lines in which a card must come. Chosen: above the title and the messages that were seen before it."""
_ROCM_SMI_MESSAGE = re.compile(r"WARNING|ERROR|\[?INFO|cat: |python|\s*$")
_ROCM_SMI_CARDS = re.compile(r'"(?:card\d+|system)"\s*:\s*\{([^{}]*)')
_ROCM_SMI_CSV_ROW = re.compile(r"^(?:[^,\n]*,)?[^\S\n]*(?:card\d+|system),", re.MULTILINE)
_CONCISE_HEADS = ("Temp", "SCLK", "MCLK", "PwrCap")
"""Columns of rocm-smi's concise table, in their order."""


def is_samples(head: bytes) -> bool:
    """True if a file that begins so is rows of ``metric`` or ``monitor`` as CSV or JSON."""
    return output_of(head) is Output.SAMPLES


def is_text(head: bytes) -> bool:
    """True if a file that begins so is ``metric`` or ``monitor`` in human-readable form."""
    return output_of(head) is Output.TEXT


def is_static(head: bytes) -> bool:
    """True if a file that begins so is output of amd-smi that describes GPUs."""
    return output_of(head) is Output.STATIC


def is_without_values(head: bytes) -> bool:
    """True if a file that begins so is output of amd-smi without values."""
    return output_of(head) is Output.MESSAGES


def has_time_in_front(text: str) -> bool:
    """True if a text of amd-smi's begins with the time that a loop prints in front of each output."""
    text = text.lstrip("\ufeff").lstrip()
    body, _ = _without_messages(text)
    return any(_is_time_of_script(line) for line in text[: len(text) - len(body)].split("\n"))


def is_rocm_smi(head: bytes) -> bool:
    """True if a file that begins so is output of rocm-smi."""
    return rocm_smi_form(head) is not None


def is_recorder(head: bytes) -> bool:
    """True if a file that begins so is the recorder's."""
    return recorder_lanes.is_recorder(recorder_lanes.names_of(head.partition(b"\n")[0]))


def output_of(head: bytes) -> Output | None:
    """Return the kind of amd-smi output that a file is; None if it is none.

    Parameters
    ----------
    head
        First bytes of the file, unpacked. May end anywhere.
    """
    text = head.decode("utf-8", "replace").lstrip("\ufeff")
    body, watched = _without_messages(text)
    if not body:
        return Output.MESSAGES if watched else None
    if body[0] in "[{":
        return _kind_of_json(body)
    if layout.CSV_HEADER.match(body):
        return _kind_of_csv(body)
    return _kind_of_text(without_tabs(body))


def _kind_of_text(body: str) -> Output | None:
    if _OTHER_BLOCK.match(body):  # processors and cores may come before the GPUs
        gpu = _FIRST_GPU.search(body)
        body = body[gpu.start() :] if gpu else body
    block = _BLOCK.match(body)
    if block:
        section = block[1].lower()
        if section in _SECTIONS:
            return Output.TEXT
        return Output.STATIC if section in _STATIC | _STATIC_TEXT else None
    if _TABLE.match(body):
        return Output.TEXT
    return Output.STATIC if _TITLE.match(body) else None


def _without_messages(text: str) -> tuple[str, bool]:
    """Return the text after the messages, and the times of a script; True if the line of a watch was among them."""
    text, watched = text.lstrip(), False
    for _ in range(_MAX_MESSAGES):
        if not _MESSAGE.match(text) and not _is_time_of_script(text.partition("\n")[0]):
            break
        watched |= text.startswith(_WATCHING)
        text = text.partition("\n")[2].lstrip()
    return text, watched


def _is_time_of_script(line: str) -> bool:
    """True for the time that a loop printed in front of an output, read or not; amd-smi's own is part of it."""
    line = line.strip()
    is_time = parse_labelled_timestamp(line) is not None or has_time_of_day(line)
    return is_time and not line.startswith("TIMESTAMP")


def _kind_of_csv(body: str) -> Output | None:
    line, _, rest = body.partition("\n")
    names = layout.names_of(line.strip())
    if names == ("error", "code"):
        header = next((r for r in rest.split("\n") if r.startswith(("gpu,", "timestamp,"))), None)
        return _kind_of_csv(header) if header else Output.MESSAGES
    if is_of_nvidia(names) or names.count("gpu") > 1:  # a script put all GPUs into one row
        return None
    if _STATIC & set(names):
        return Output.STATIC
    known = any(lanes.meaning(key) for key in layout.keys_of(names))
    return Output.SAMPLES if known else None


def _kind_of_json(body: str) -> Output | None:
    """Decide by the first key of the outermost object, and by the keys of the first GPU's."""
    first = _FIRST_KEY.match(body)
    name = first.group(1) if first else ""
    if name in _ENVELOPES:
        return Output.STATIC
    if name == "error":
        return Output.MESSAGES if '"code"' in body else None
    if first and name != "gpu":
        envelope = _GPU_DATA.search(body)
        if name not in layout.DOCUMENT_PARTS or not envelope:
            return None
        body = body[envelope.end() :]
    return _kind_of_gpu(_keys_of_first_object(body), body)


def _kind_of_gpu(keys: set[str], body: str) -> Output | None:
    if "gpu" not in keys:
        return None
    sampled = bool(keys & _SECTIONS) or any(
        lanes.meaning("monitor.mem" if key == "mem" else key) for key in keys
    )
    static_keys = keys & _STATIC
    is_monitor = sampled and static_keys <= {"process_list"}  # monitor -q
    if (static_keys and not is_monitor) or '"frequency_levels"' in body:
        return Output.STATIC
    return Output.SAMPLES if sampled else None


def _keys_of_first_object(body: str) -> set[str]:
    """Return the keys of the first object that only lists contain, as far as the text goes."""
    depth = 0
    keys: set[str] = set()
    for token in _TOKEN.finditer(body):
        if token.group() in ("{", "["):
            depth += 1 if depth or token.group() == "{" else 0
        elif token.group() in ("}", "]"):
            depth -= 1
            if depth <= 0:
                break
        elif token.group(2) and depth == 1:
            keys.add(token.group(1))
    return keys


def rocm_smi_form(head: bytes) -> RocmSmiForm | None:
    """Identify the form of rocm-smi's output by a file's first bytes; None if it is none.

    Parameters
    ----------
    head
        First bytes of the file, unpacked. May end anywhere.
    """
    text = without_tabs(head.decode("utf-8", "replace").lstrip("\ufeff"))
    lines = text.split("\n")
    for number, raw in enumerate(lines[:_ROCM_SMI_LINES]):
        line = raw.rstrip("\r \0")
        if not line or _ROCM_SMI_MESSAGE.match(line):
            continue
        form = _form_of_line(line, "\n".join(lines[number:]))
        if form is not None or not _is_time_of_script(line):
            return form
    return None


def _is_concise_header(line: str) -> bool:
    words = iter(re.findall(r"\w+", line))
    return line.startswith(("GPU ", "Device ")) and all(head in words for head in _CONCISE_HEADS)


def _form_of_line(line: str, rest: str) -> RocmSmiForm | None:
    if ROCM_SMI_TITLE.match(line) or _is_concise_header(line):
        return RocmSmiForm.TEXT
    if ROCM_SMI_CARD.match(line):
        return RocmSmiForm.TEXT if rocm_smi_lanes.MARKS.search(rest) else None
    if re.fullmatch(r"[=\s]+", line) or line.startswith("==="):
        return RocmSmiForm.TEXT if ROCM_SMI_TITLE.search(rest) else None
    if ROCM_SMI_JSON.match(rest):
        cards = _ROCM_SMI_CARDS.search(rest)
        return RocmSmiForm.JSON if cards and rocm_smi_lanes.MARKS.search(cards[1]) else None
    if ROCM_SMI_CSV.match(line):
        marked = rocm_smi_lanes.MARKS.search(line)
        return RocmSmiForm.CSV if marked and _ROCM_SMI_CSV_ROW.search(rest) else None
    system = ROCM_SMI_SYSTEM.match(line)
    return RocmSmiForm.CSV if system and re.search(r'"?Driver version"?,', rest) else None

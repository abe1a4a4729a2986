"""What amd-smi prints once in the form for people: blocks, tables, matrices of links, the box."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chopper_interop.converters import amd_smi_csv, amd_smi_yaml
from chopper_interop.converters.telemetry_numbers import whole_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.issues import IssueLog

Leaves = dict[str, Any]
"""Values by path."""
NO_GPU = -1
BRACKET = re.compile(r"^\s*[\[{]", re.MULTILINE)
BDF = r"[0-9a-fA-F]{4,}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F]"
BOX = re.compile(r"\| AMD-SMI ")

_TITLE = re.compile(r"([A-Z][A-Z_ ]*):\s*$")
_HEAD = re.compile(r"GPU(?:_ID)? +[A-Z_]+(?: +\S+)*\s*$")
_ROW = re.compile(r"\d+(?: {2,}|$)")
_MATRIX_ROW = re.compile(rf"({BDF}) +(\S.*)$")
_MATRIX_HEAD = re.compile(rf"\s+{BDF}(?: +{BDF})*\s*$")
_LINK_ROW = re.compile(rf"GPU(\d+) +({BDF}) *(.*)$")
_TRAFFIC = re.compile(r"\s+(Read|Write) +(.*)$")
_AMOUNT = re.compile(r"N/A|\d+ [KMG]?B")
_RATES = re.compile(r"(\d+ \S+|N/A) +(\d+ \S+|N/A) +(\S+)")
_BOX_NAME = re.compile(rf"\| +({BDF}) +(\S.*?) +\|")
_BOX_IDS = re.compile(r"\| +(\d+) +(\d+|N/A) +(\d+|N/A) +(\S+) +\|")
_BOX_HEAD = re.compile(r"AMD-SMI (\S+) +amdgpu version: (\S+) +ROCm version: (\S+)")


@dataclass(frozen=True)
class Entry:
    """What one place says of a GPU.

    Parameters
    ----------
    gpu
        amd-smi's index; -1 for what is said of all.
    leaves
        Values by path in lower case, as ``limit.max_power``.
    stamp
        Epoch seconds beside it; -1 if none.
    kind
        The list of a document, or the title of a table, in which it stands.
    """

    gpu: int
    leaves: Leaves
    stamp: int = -1
    kind: str = ""


def index_of(told: Any) -> int:
    """A GPU's index; `NO_GPU` if it is none."""
    if isinstance(told, bool):
        return NO_GPU
    return whole_number(str(told), amd_smi_csv.LARGEST["gpu"])


def form_of(text: str, csv_header: re.Pattern[str]) -> str:
    """``json``, ``csv`` or ``text``, by what begins first."""
    for line in text.split("\n"):
        stripped = line.strip()
        if stripped[:1] in ("[", "{") and stripped:
            return "json"
        if csv_header.match(stripped) or stripped == "error,code":
            return "csv"
        if stripped.startswith(("GPU", "|", "+-")):
            return "text"
    return "text"


def read(text: str, issues: IssueLog) -> tuple[list[Entry], list[str]]:
    """Entries of a text, and where it says something of what is no GPU."""
    if BOX.search(text):
        return list(_box(text)), []
    entries = list(_tables(text))
    others = []
    blocks_from = next(
        (m.start() for m in re.finditer(r"^(?:GPU|CPU|NIC|TIMESTAMP): *\d", text, re.MULTILINE)),
        len(text),
    )
    for block in amd_smi_yaml.read(text[blocks_from:], issues):
        gpu = index_of(block.number) if block.kind == "GPU" else NO_GPU
        if gpu == NO_GPU:
            others.append(f"line {block.line}: {block.kind} {block.number}")
            continue
        largest = amd_smi_csv.LARGEST["timestamp"]
        stamp = whole_number(block.stamp, largest)
        entries.append(Entry(gpu, dict(_leaves(block.tree, "")), stamp))
    return entries, others


def _leaves(tree: dict[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, inner in tree.items():
        if isinstance(inner, dict):
            yield from _leaves(inner, f"{path}{name}.".lower())
        elif not isinstance(inner, dict):
            yield f"{path}{name}".lower(), inner


def _tables(text: str) -> Iterator[Entry]:
    """Rows of tables below a title, and of matrices whose rows and columns are addresses."""
    title, heads, places = "", [""], [""]
    link: tuple[int, Leaves] | None = None
    for line in text.split("\n"):
        plain = line.rstrip("\r \0")
        traffic = _TRAFFIC.match(plain)
        if traffic and link:
            link[1].update(_traffic(traffic[1].lower(), traffic[2]))
            continue
        if link:
            yield Entry(link[0], link[1], kind=title)
            link = None
        if _TITLE.match(plain):
            title, heads, places = plain.strip(" :").lower().replace(" ", "_"), [], []
        elif _HEAD.match(plain):
            heads = plain.lower().split()
        elif heads and heads[0] in ("gpu", "gpu_id") and _ROW.match(plain):
            cells = re.split(r" {2,}", plain.strip())
            yield Entry(
                index_of(cells[0]), dict(zip(heads[1:], cells[1:], strict=False)), -1, title
            )
        elif found := _LINK_ROW.match(plain):
            link = index_of(found[1]), {"bdf": found[2], **_rates(found[3])}
        elif (found := _MATRIX_ROW.match(plain)) and not _MATRIX_HEAD.match(plain):
            places.append(found[1])
            yield Entry(len(places) - 1, {"bdf": found[1]}, kind=title)
    if link:
        yield Entry(link[0], link[1], kind=title)


def _traffic(way: str, cells: str) -> Leaves:
    """Amounts of a row of links, in the order of the GPUs."""
    return {
        f"link_metrics.links.{n}.{part}": value
        for n, amount in enumerate(_AMOUNT.findall(cells))
        for part, value in (("gpu", n), (way, amount))
    }


def _rates(cells: str) -> Leaves:
    found = _RATES.match(cells)
    if not found:
        return {}
    names = ("bit_rate", "max_bandwidth", "link_type")
    return {f"link_metrics.{name}": v for name, v in zip(names, found.groups(), strict=True)}


def _box(text: str) -> Iterator[Entry]:
    """Rows of the box that ``amd-smi`` alone prints since 7.0: two lines a GPU."""
    head = _BOX_HEAD.search(text)
    if head:
        told = {"tool.version": head[1], "driver.version": head[2], "rocm_version": head[3]}
        yield Entry(NO_GPU, told, kind="box")
    name: re.Match[str] | None = None
    for line in text.split("\n"):
        name = _BOX_NAME.match(line) or name
        ids = _BOX_IDS.match(line)
        if name and ids:
            compute, _, memory = ids[4].partition("/")
            leaves = {"bdf": name[1], "asic.market_name": name[2], "hip_id": ids[2]}
            leaves |= {"partition.compute_partition": compute, "partition.memory_partition": memory}
            yield Entry(index_of(ids[1]), leaves, kind="box")
            name = None

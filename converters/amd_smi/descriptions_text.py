"""Human-readable descriptions of amd-smi: blocks, tables, matrices of links, the box."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from chopper_interop.converters.amd_smi import blocks
from chopper_interop.converters.amd_smi.layout import LARGEST, PCI_ADDRESS
from chopper_interop.converters.sampling.text import whole_number
from chopper_interop.issues import IssueLog

Leaves = dict[str, Any]
"""Values by path."""
NO_GPU = -1
BOX = re.compile(r"\| AMD-SMI ")

_TITLE = re.compile(r"([A-Z][A-Z_ ]*):\s*$")
_HEAD = re.compile(r"GPU(?:_ID)? +[A-Z_]+(?: +\S+)*\s*$")
_ROW = re.compile(r"\d+(?: {2,}|$)")
_MATRIX_ROW = re.compile(rf"({PCI_ADDRESS}) +(\S.*)$")
_MATRIX_HEAD = re.compile(rf"\s+{PCI_ADDRESS}(?: +{PCI_ADDRESS})*\s*$")
_LINK_ROW = re.compile(rf"GPU(\d+) +({PCI_ADDRESS}) *(.*)$")
_TRAFFIC = re.compile(r"\s+(Read|Write) +(.*)$")
_AMOUNT = re.compile(r"N/A|\d{1,20} [KMG]?B")
_RATES = re.compile(r"(\d+ \S+|N/A) +(\d+ \S+|N/A) +(\S+)")
_BOX_NAME = re.compile(rf"\| +({PCI_ADDRESS}) +(\S.*?) +\|")
_BOX_IDS = re.compile(r"\| +(\d+) +(\d+|N/A) +(\d+|N/A) +(\S+) +\|")
_BOX_HEAD = re.compile(r"AMD-SMI (\S+) +amdgpu version: (\S+) +ROCm version: (\S+)")


@dataclass(frozen=True)
class Entry:
    """Values of a GPU from one object, row or block.

    Parameters
    ----------
    gpu
        amd-smi's index; -1 for values of all GPUs.
    leaves
        Values by path in lower case, as ``limit.max_power``.
    stamp
        Seconds since 1970; -1 if it has none.
    kind
        Name of the list, or title of the table, that contains it.
    """

    gpu: int
    leaves: Leaves
    stamp: int = -1
    kind: str = ""


def index_of(value: Any) -> int:
    """Parse a GPU's index; `NO_GPU` if it is none."""
    if isinstance(value, bool):
        return NO_GPU
    return whole_number(str(value), LARGEST["gpu"])


def form_of(text: str, csv_header: re.Pattern[str]) -> str:
    """Return ``json``, ``csv`` or ``text``, by the form that begins first."""
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
    """Read the entries of a text, and the locations of blocks of other processors."""
    if BOX.search(text):
        return list(_box(text)), []
    entries = list(_tables(text))
    others = []
    blocks_from = next(
        (m.start() for m in re.finditer(r"^(?:GPU|CPU|NIC|TIMESTAMP): *\d", text, re.MULTILINE)),
        len(text),
    )
    for block in blocks.read(text[blocks_from:], issues):
        gpu = index_of(block.number) if block.kind == "GPU" else NO_GPU
        if gpu == NO_GPU:
            others.append(f"line {block.line}: {block.kind} {block.number}")
            continue
        largest = LARGEST["timestamp"]
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
    """Yield rows of tables below a title, and of matrices whose rows and columns are addresses."""
    title, heads, addresses = "", [""], [""]
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
            title, heads, addresses = plain.strip(" :").lower().replace(" ", "_"), [], []
        elif _HEAD.match(plain):
            heads = plain.lower().split()
        elif heads and heads[0] in ("gpu", "gpu_id") and _ROW.match(plain):
            cells = re.split(r" {2,}", plain.strip())
            yield Entry(
                index_of(cells[0]), dict(zip(heads[1:], cells[1:], strict=False)), -1, title
            )
        elif match := _LINK_ROW.match(plain):
            link = index_of(match[1]), {"bdf": match[2], **_rates(match[3])}
        elif (match := _MATRIX_ROW.match(plain)) and not _MATRIX_HEAD.match(plain):
            addresses.append(match[1])
            yield Entry(len(addresses) - 1, {"bdf": match[1]}, kind=title)
    if link:
        yield Entry(link[0], link[1], kind=title)


def _traffic(way: str, cells: str) -> Leaves:
    """Return the amounts of a row of links, in the order of the GPUs."""
    return {
        f"link_metrics.links.{n}.{part}": value
        for n, amount in enumerate(_AMOUNT.findall(cells))
        for part, value in (("gpu", n), (way, amount))
    }


def _rates(cells: str) -> Leaves:
    match = _RATES.match(cells)
    if not match:
        return {}
    names = ("bit_rate", "max_bandwidth", "link_type")
    return {f"link_metrics.{name}": v for name, v in zip(names, match.groups(), strict=True)}


def _box(text: str) -> Iterator[Entry]:
    """Yield rows of the box that ``amd-smi`` without a command prints since 7.0: two lines a GPU."""
    head = _BOX_HEAD.search(text)
    if head:
        versions = {"tool.version": head[1], "driver.version": head[2], "rocm_version": head[3]}
        yield Entry(NO_GPU, versions, kind="box")
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

"""Format of CharLLM-PPT's telemetry: a folder of ``{metric}_{rank}.csv`` without headers.

This module recognises files; the reader is imported when files are read.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_LINE = re.compile(
    rb"\s*(\d{10}(?:\.\d*)?)[ \t]*,[ \t]*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|nan|None)"
    rb"[ \t]*\r?(?:\n|$)"
)
_LOOK_AT = 20


def sniff(head: bytes) -> bool:
    """True if a file begins with rows of an epoch time and a number, without a header."""
    at = 3 if head.startswith(b"\xef\xbb\xbf") else 0
    if not _LINE.match(head, at):
        return False
    lines = [line for line in head[at:].split(b"\n")[:_LOOK_AT] if line.strip()]
    return sum(line.count(b",") == 1 for line in lines) * 2 > len(lines)


def group(paths: list[Path]) -> list[list[Path]]:
    """Files of one folder are one source."""
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in paths:
        folders[path.parent].append(path)
    return list(folders.values())


def read(paths: list[Path]) -> Trace:
    """Read the files of one folder.

    Parameters
    ----------
    paths
        The files.

    Returns
    -------
    Trace
        Without nodes: a series for each metric of each rank, and its samples in epoch
        nanoseconds. `device` is the number of the rank, for which GPU it is the names do not say.

    Raises
    ------
    ReadError
        A file cannot be opened.
    """
    from chopper_interop.converters.zeus import charllm_samples

    return charllm_samples.read(paths, CHARLLM.name)


CHARLLM = Converter(
    name="charllm",
    description="telemetry of CharLLM-PPT: folders of {metric}_{rank}.csv by its fork of Zeus",
    versions="dad5f278 (2025), NVIDIA and AMD",
    suffixes=(".csv",),
    sniff=sniff,
    group=group,
    read=read,
    carries="power, temperatures, clocks, utilization, PCIe and NVLink counters (unwrapped) by "
    "rank; processors, memory and InfiniBand of its node",
)

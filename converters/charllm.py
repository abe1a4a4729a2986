"""CharLLM-PPT's telemetry: a folder of ``{metric}_{rank}.csv`` without headers.

A row is a time (epoch seconds, decimal) and a value; -1 stands for an error. Which metric it is
and whose, only the name says (`charllm_tables`), so that files of a folder are one source, and a
file of the same form under another name is recognised and not taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from chopper_interop.build import TraceBuilder
from chopper_interop.converters import charllm_tables as tables
from chopper_interop.converters.charllm_file import File, read_file
from chopper_interop.converters.charllm_series import SOURCE, add
from chopper_interop.files import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import Device, Meta, Rank, Source

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_LINE = re.compile(
    rb"\s*(\d{10}(?:\.\d*)?)[ \t]*,[ \t]*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|nan|None)"
    rb"[ \t]*\r?(?:\n|$)"
)
_LOOK_AT = 20


def sniff(head: bytes) -> bool:
    """Whether a file begins with rows of an epoch time and a number, without a header."""
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
    log = IssueLog()
    files: list[File] = []
    sources = []
    for path in paths:
        issues = IssueLog(str(path))
        what = tables.named(inputs.plain_name(path))
        file, events = read_file(path, what, issues)
        files += [file] if file else []
        about = Source(str(path), CHARLLM.name, "zeus", size=path.stat().st_size, events=events)
        sources.append(about)
        log.extend(issues)
    amd = _is_amd([file.what for file in files])
    builder = TraceBuilder(_meta(paths, files, tuple(sources)))
    for file in files:
        issues = IssueLog(str(file.path))
        add(builder, file, issues, amd=amd)
        log.extend(issues)
    return builder.finish().with_meta(issues=tuple(log))


def _is_amd(found: list[tables.Named]) -> bool:
    keys = {what.key for what in found if what.gpu}
    return bool(keys & set(tables.AMD)) and not keys & tables.NVIDIA_ALONE and len(keys) > 1


def _meta(paths: list[Path], files: list[File], sources: tuple[Source, ...]) -> Meta:
    gpus = sorted({file.what.rank for file in files if file.what.gpu})
    ranks = sorted({file.what.rank for file in files})
    return Meta(
        job=paths[0].resolve().parent.name or "job",
        ranks=tuple(Rank(rank, known_by="name") for rank in ranks),
        devices=tuple(Device("", rank, "", SOURCE) for rank in gpus),
        sources=sources,
    )


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

"""Samples of CharLLM-PPT: a folder of ``{metric}_{rank}.csv`` without headers.

A row is a time (epoch seconds, decimal) and a value; -1 stands for an error. Which metric it is
and whose, only the name says (`charllm_metrics`), so that files of a folder are one source, and a
file of the same form under another name is recognised and not taken.
"""

from __future__ import annotations

from pathlib import Path

from chopper_interop.build import TraceBuilder
from chopper_interop.converters.sampling.rows import source_of_file
from chopper_interop.converters.zeus import charllm_metrics as tables
from chopper_interop.converters.zeus.charllm_file import File, read_file
from chopper_interop.converters.zeus.charllm_series import SOURCE, add
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import Device, Meta, Rank, Source
from chopper_interop.trace import Trace


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
        named = tables.named(inputs.plain_name(path))
        file, events = read_file(path, named, issues)
        files += [file] if file else []
        sources.append(source_of_file(path, "charllm", "zeus", events))
        log.extend(issues)
    amd = _is_amd([file.named for file in files])
    builder = TraceBuilder(_meta(paths, files, tuple(sources)))
    for file in files:
        issues = IssueLog(str(file.path))
        add(builder, file, issues, amd=amd)
        log.extend(issues)
    return builder.finish().with_meta(issues=tuple(log))


def _is_amd(columns: list[tables.Named]) -> bool:
    keys = {named.key for named in columns if named.gpu}
    return bool(keys & set(tables.AMD)) and not keys & tables.NVIDIA_ALONE and len(keys) > 1


def _meta(paths: list[Path], files: list[File], sources: tuple[Source, ...]) -> Meta:
    gpus = sorted({file.named.rank for file in files if file.named.gpu})
    ranks = sorted({file.named.rank for file in files})
    return Meta(
        job=paths[0].resolve().parent.name or "job",
        ranks=tuple(Rank(rank, known_by="name") for rank in ranks),
        devices=tuple(Device("", rank, "", SOURCE) for rank in gpus),
        sources=sources,
    )

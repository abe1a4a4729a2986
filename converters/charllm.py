"""CharLLM-PPT's telemetry: a folder of ``{metric}_{rank}.csv`` without headers.

A row is a time (epoch seconds, decimal) and a value; -1 stands for an error. Which metric it is
and whose, only the name says (`charllm_tables`), so that files of a folder are one source, and a
file of the same form under another name is recognised and not taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from chopper_interop import arrow, inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import charllm_tables as tables
from chopper_interop.converters.charllm_tables import How
from chopper_interop.converters.telemetry_numbers import SECOND, nanoseconds
from chopper_interop.converters.telemetry_text import lines_of
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import Device, Meta, Rank, Source

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

SOURCE = "charllm"
READING_NS = 25_000_000
"""Half of the period: the time is taken once and all metrics are read behind it."""
EARLIEST_NS = 1_000_000_000 * SECOND
_WRAP = 1 << 32
_LARGEST = 1e19
"""Beyond what any counter holds."""

SAMPLED = Fault(
    "row-as-samples", Severity.INFO, "Rows became samples of counter lanes.", events=True
)
SUMMED = Fault(
    "row-summed",
    Severity.INFO,
    "Rows of one moment that are parts of one value (modes of a processor) were added up.",
    events=True,
)
PART_MISSING = Fault(
    "sum-without-all-parts",
    Severity.LOSS,
    "Rows of moments that lack some of the parts which are to be added up were left out.",
    events=True,
)
UNKNOWN = Fault(
    "value-not-available",
    Severity.INFO,
    "Values of -1 or N/A, which stand for an error of the reading, were left out.",
    events=True,
)
REPEATED = Fault(
    "value-unchanged",
    Severity.INFO,
    "Rows that repeat a value which does not change were left out.",
    events=True,
)
CUT = Fault(
    "row-cut-short",
    Severity.LOSS,
    "Rows that are not a time and a number were left out.",
    events=True,
)
CELL_CUT = Fault(
    "row-perhaps-cut",
    Severity.LOSS,
    "The file ends within a row, whose value may lack digits: it was left out.",
    events=True,
)
OTHER_NAME = Fault(
    "name-unknown",
    Severity.LOSS,
    "Files of two columns of numbers, of which only the name could tell what they are, and none "
    "that CharLLM-PPT gives ({metric}_{rank}.csv, such as gpu_power_0.csv): they were left out. "
    "Rename them if they are its.",
    events=True,
)
WRAPPED = Fault(
    "counter-wrapped",
    Severity.INFO,
    "Counters of 32 bits that began anew at 0 were carried on; one that was reset looks alike.",
)
MEM_TOTAL = Fault(
    "memory-used-is-total",
    Severity.INFO,
    "system_memory_used holds MemTotal, the size of the memory, and was named so.",
)
AMD_FILES = Fault(
    "metrics-of-amd",
    Severity.INFO,
    "The metrics of NVIDIA alone are missing: memory utilization was taken as how full it is and "
    "the temperature as that of the edge, which is what CharLLM-PPT reads on AMD.",
)
SEVERAL_GPUS = Fault(
    "gpus-in-one-file",
    Severity.INFO,
    "Files with several rows for each moment, which are those of a rank's GPUs one after the "
    "other: their lanes end in the number.",
)
EMPTY = Fault("no-rows", Severity.LOSS, "The file holds no rows.")

_LINE = re.compile(
    rb"\s*(\d{10}(?:\.\d*)?)[ \t]*,[ \t]*([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|N/A|nan|None)"
    rb"[ \t]*\r?(?:\n|$)"
)
_TIME = r"(?P<whole>\d{10})(?:\.(?P<fraction>\d{0,9}))?"
_ABSENT = frozenset({"-1", "-1.0", "n/a", "nan", "none", ""})
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


@dataclass(frozen=True)
class _File:
    """Rows of one file that hold a time and a value, in its order."""

    path: Path
    what: tables.Named
    time: Array
    value: Array


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
    files: list[_File] = []
    sources = []
    for path in paths:
        issues = IssueLog(str(path))
        what = tables.named(inputs.plain_name(path))
        file, events = _read_file(path, what, issues)
        files += [file] if file else []
        about = Source(str(path), CHARLLM.name, "zeus", size=path.stat().st_size, events=events)
        sources.append(about)
        log.extend(issues)
    amd = _is_amd([file.what for file in files])
    builder = TraceBuilder(_meta(paths, files, tuple(sources)))
    for file in files:
        issues = IssueLog(str(file.path))
        _add(builder, file, issues, amd=amd)
        log.extend(issues)
    return builder.finish().with_meta(issues=tuple(log))


def _read_file(path: Path, what: tables.Named | None, issues: IssueLog) -> tuple[_File | None, int]:
    """What a file holds, and how many rows it has."""
    text = lines_of(inputs.read(path, issues)).lstrip("\ufeff")
    lines = [line for line in text.split("\n") if line.strip(" \t\0")]
    if what is None:
        issues.add(OTHER_NAME, len(lines), path.name)
        return None, len(lines)
    issues.add(EMPTY, int(not lines))
    cells = [line.split(",") for line in lines]
    last = [] if text.endswith("\n") or not lines else [len(lines) - 1]
    pairs = [(c[0].strip(), c[1].strip()) for c in cells[: len(lines) - len(last)] if len(c) == 2]  # noqa: PLR2004
    issues.add(CELL_CUT, len(last), path.name)
    time = _times([t for t, _ in pairs])
    value, absent = _values([v for _, v in pairs])
    timed = time >= 0
    issues.add(UNKNOWN, np.count_nonzero(timed & absent), path.name)
    good = timed & ~absent & np.isfinite(value)
    wrong = len(lines) - len(last) - np.count_nonzero(good) - np.count_nonzero(timed & absent)
    issues.add(CUT, wrong, path.name)
    return _File(path, what, time[good], value[good]), len(lines)


def _times(texts: Sequence[str]) -> Array:
    """Epoch nanoseconds of decimal seconds, exactly; -1 where there is none of our days."""
    if not texts:
        return np.zeros(0, np.int64)
    found = pc.extract_regex(arrow.texts(list(texts)), f"^{_TIME}$")
    plain = np.asarray(pc.is_valid(found))
    whole = pc.struct_field(found, "whole").fill_null("0").cast("int64")
    fraction = pc.utf8_rpad(pc.struct_field(found, "fraction").fill_null("0"), 9, "0")
    time = np.asarray(whole) * SECOND + np.asarray(fraction.cast("int64"))
    time[~plain] = -1
    for row in np.flatnonzero(~plain).tolist():
        ns = nanoseconds(texts[row])
        time[row] = -1 if ns is None else ns
    time[time < EARLIEST_NS] = -1
    return time


def _values(texts: Sequence[str]) -> tuple[Array, Array]:
    """Values as numbers, NaN where they are none, and which say that there is none."""
    try:
        value = np.array(texts, np.str_).astype(np.float64) if texts else np.zeros(0)
    except ValueError:
        value = np.array([_number(text) for text in texts])
    absent = (value == -1) | np.array([t.lower() in _ABSENT for t in texts], bool)
    value[np.abs(value) > _LARGEST] = np.nan
    return value, absent


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return np.nan


def _is_amd(found: list[tables.Named]) -> bool:
    keys = {what.key for what in found if what.gpu}
    return bool(keys & set(tables.AMD)) and not keys & tables.NVIDIA_ALONE and len(keys) > 1


def _add(builder: TraceBuilder, file: _File, issues: IssueLog, *, amd: bool) -> None:
    """Make the series of a file, and say what became of its rows."""
    what, metric = file.what, file.what.metric
    if amd and what.gpu and what.key in tables.AMD:
        metric = tables.AMD[what.key]
        issues.add(AMD_FILES, 1, what.key)
    issues.add(MEM_TOTAL, int(what.key == "memory_used"))
    order = np.argsort(file.time, kind="stable")
    time, value = file.time[order], file.value[order]
    if metric.how is How.SUM:
        time, value = _summed(time, value, issues)
    places = _places(time) if what.gpu else np.zeros(len(time), np.int64)
    several = int(places.max(initial=0)) + 1
    issues.add(SEVERAL_GPUS, int(several > 1), f"{several} in {file.path.name}")
    for place in range(several):
        mine = places == place
        suffix = f" GPU {place}" if several > 1 else ""
        _series(builder, what, metric, suffix, (time[mine], value[mine]), issues)


def _summed(time: Array, value: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Moments and the sums of their parts; one that lacks parts which others have is left out."""
    if not len(time):
        return time, value
    moment, first, count = np.unique(time, return_index=True, return_counts=True)
    whole = count == count.max()
    issues.add(PART_MISSING, count[~whole].sum())
    issues.add(SUMMED, (count[whole] - 1).sum())
    return moment[whole], np.add.reduceat(value, first)[whole]


def _places(time: Array) -> Array:
    """The how manieth row of its moment each is, if all moments have as many; else all 0."""
    _, first, count = np.unique(time, return_index=True, return_counts=True)
    if not len(count) or count.min() != count.max():
        return np.zeros(len(time), np.int64)
    return np.arange(len(time)) - np.repeat(first, count)


def _series(
    builder: TraceBuilder,
    what: tables.Named,
    metric: tables.Metric,
    suffix: str,
    points: tuple[Array, Array],
    issues: IssueLog,
) -> None:
    time, value = points
    if not len(time):
        return
    if metric.how is How.WRAPPING:
        value, wraps = unwrapped(value)
        issues.add(WRAPPED, wraps, f"{what.key}_{what.rank}")
    if metric.how is How.STEADY:
        changes = np.concatenate([[True], value[1:] != value[:-1]])
        issues.add(REPEATED, np.count_nonzero(~changes))
        time, value = time[changes], value[changes]
    issues.add(SAMPLED, len(time))
    series = builder.series(
        what.rank,
        metric.lane.format(id=what.id) + suffix,
        metric.unit,
        SOURCE,
        device=what.rank if what.gpu else -1,
        uncertainty_ns=READING_NS,
    )
    builder.samples(series, time, value * metric.factor)


def unwrapped(value: Array) -> tuple[Array, int]:
    """A counter of 32 bits carried on beyond its wraps, and how many there were.

    Between two values modulo 2**32 lies their difference modulo 2**32; exact up to 2**53. What
    does not fit into 32 bits is no such counter and stays as it is.
    """
    if not len(value) or value.max() >= _WRAP or value.min() < 0:
        return value, 0
    wraps = np.concatenate([[0], np.cumsum(np.diff(value) < 0)])
    return value + wraps * float(_WRAP), int(wraps[-1])


def _meta(paths: list[Path], files: list[_File], sources: tuple[Source, ...]) -> Meta:
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

"""amd-smi's telemetry: ``amd-smi metric`` and ``amd-smi monitor``, CSV and JSON, 5.7.1 to 7.x.

One row is one GPU at one tick. Rows become samples of one lane for each value (`amd_smi_tables`);
their times are whole seconds, which `amd_smi_time` spreads. What amd-smi prints once, and its
form for people, are recognised and not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import inputs
from chopper_interop.build import TraceBuilder
from chopper_interop.converters import (
    amd_smi_csv,
    amd_smi_json,
    amd_smi_lanes,
    amd_smi_tables,
    amd_smi_time,
    amd_smi_values,
)
from chopper_interop.converters import amd_smi_faults as faults
from chopper_interop.converters.amd_smi_cells import rows_where
from chopper_interop.converters.amd_smi_sniff import Output, output_of
from chopper_interop.errors import UsageError
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter
from chopper_interop.schemas.meta import Device, Meta, Source

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from chopper_interop.converters.amd_smi_cells import Rows
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]

SOURCE = "amd-smi"
MTIME = "mtime"

READING_NS = 10_000_000
"""A row's values are read this long around its stamp: 6 ms a GPU on eight MI355X."""
READING_VIOLATIONS_NS = 110_000_000
"""The same with violations, for which the library waits 100 ms (103.6 to 105.9 ms measured)."""
ONCE_NS = 1_000_000_000
"""How far the time of a single output may be off that was given from outside."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so holds rows of ``metric`` or ``monitor``."""
    return output_of(head) is Output.SAMPLES


def read(paths: list[Path], *, at_ns: int | None = None, at: str | None = None) -> Trace:
    """Read one file of telemetry.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When a file without times was written, epoch nanoseconds. Of several outputs in it, the
        last was. Files with times do not need it and do not heed it.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples. Rows without a
        time give no samples, and are counted, unless one of the options says the time.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        `at` is anything else, or both options are given.
    """
    (path,) = paths
    if at not in (None, MTIME) or (at and at_ns is not None):
        raise UsageError(f"-O at={at}: say at={MTIME}, or at_ns=<epoch nanoseconds> instead")
    if at_ns is not None and not 0 <= at_ns <= amd_smi_csv.LATEST_S * amd_smi_time.SECOND:
        raise UsageError(f"-O at_ns={at_ns}: that is no time in nanoseconds since 1970")
    issues = IssueLog(str(path))
    text = _decoded(inputs.read(path, issues))
    rows = _rows(text, issues)
    issues.add(faults.EMPTY, int(not rows.events))
    timed, time, uncertainty_ns = _timed(rows, path, at_ns, at, issues)
    builder = TraceBuilder(_meta(path, rows))
    issues.add(faults.SAMPLED, len(time))
    lanes = amd_smi_lanes.Lanes(
        builder,
        amd_smi_lanes.groups_of(timed.gpu, timed.xcp, time),
        SOURCE,
        uncertainty_ns,
        issues,
    )
    lanes.add(_readings(timed, issues))
    issues.add(faults.ENERGY, lanes.samples["energy"])
    return builder.finish().with_meta(issues=tuple(issues))


def _decoded(data: Array) -> str:
    """Text in UTF-8, or else in Latin-1, in which Windows writes degrees."""
    raw = data.tobytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def _rows(text: str, issues: IssueLog) -> Rows:
    """Rows of the file, in whichever form begins first."""
    objects, header = (form.search(text) for form in (amd_smi_json.BEGIN, amd_smi_csv.HEADER))
    if objects and not (header and header.start() < objects.start()):
        return amd_smi_json.read(text, issues)
    return amd_smi_csv.read(text, issues)


def _timed(
    rows: Rows, path: Path, at_ns: int | None, at: str | None, issues: IssueLog
) -> tuple[Rows, Array, int]:
    """Rows that have a time, when that is in epoch nanoseconds, and how far it may be off."""
    told = rows.stamp >= 0
    tick = amd_smi_time.ticks_of(rows.gpu, rows.xcp)
    if told.any() or not told.size or (at_ns is None and at is None):
        issues.add(faults.NO_TIME, np.count_nonzero(~told), f"{len(told)} rows of {path.name}")
        timed = rows_where(rows, told)
        tick = np.unique(tick[told], return_inverse=True)[1]
        places = _places(timed)
        time, half = amd_smi_time.placed(timed.stamp, tick, places)
        rows_of_tick = np.bincount(tick)
        issues.add(faults.TICK_CUT, np.count_nonzero(rows_of_tick < len(np.unique(places))))
        issues.add(faults.SPREAD, len(time), f"± {half / 1e9:.3f} s")
        return timed, time, half + _reading_ns(timed)
    last = tick == tick[-1]
    issues.add(faults.EARLIER_RUN, np.count_nonzero(~last))
    if at_ns is None:
        at_ns = path.stat().st_mtime_ns
        issues.add(faults.ASSUMED_MTIME, np.count_nonzero(last), f"{at_ns}")
    else:
        issues.add(faults.ASSUMED_TIME, np.count_nonzero(last), f"{at_ns}")
    return rows_where(rows, last), np.full(np.count_nonzero(last), at_ns, np.int64), ONCE_NS


def _places(rows: Rows) -> Array:
    """Place of each row's GPU and partition within a tick: in the order of first appearance."""
    places: dict[tuple[int, int], int] = {}
    keys = zip(rows.gpu.tolist(), rows.xcp.tolist(), strict=True)
    return np.array([places.setdefault(key, len(places)) for key in keys], np.int64)


def _reading_ns(rows: Rows) -> int:
    waits = any(amd_smi_values.has_violations(c.distinct, c.key) for c in rows.columns)
    return READING_VIOLATIONS_NS if waits else READING_NS


def _readings(rows: Rows, issues: IssueLog) -> list[amd_smi_values.Reading]:
    count = len(rows.gpu)
    found = []
    for column in rows.columns:
        name = amd_smi_tables.meaning(column.key) or amd_smi_tables.unknown(column.key)
        found += amd_smi_values.readings(column, name, count, issues)
    return amd_smi_lanes.ordered(found)


def _meta(path: Path, rows: Rows) -> Meta:
    gpus = [int(gpu) for gpu in np.unique(rows.gpu)]
    return Meta(
        job=path.name.split(".")[0],
        devices=tuple(Device("", gpu, "", SOURCE, gpu) for gpu in gpus),
        sources=(
            Source(
                str(path),
                AMD_SMI.name,
                "amd-smi",
                size=path.stat().st_size,
                events=rows.events,
            ),
        ),
    )


AMD_SMI = Converter(
    name="amd-smi",
    description="telemetry of AMD GPUs: amd-smi metric and monitor, CSV or JSON",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".csv", ".json"),
    sniff=sniff,
    read=read,
    carries="power, clocks of every XCD, temperatures, activity of engines, memory, energy, PCIe, "
    "ECC, throttling as shares of time; every other number under its own name",
)

AMD_SMI_STATIC = Converter(
    name="amd-smi-static",
    description="what amd-smi prints once (static, list, topology, xgmi, process, partition)",
    sniff=lambda head: output_of(head) is Output.STATIC,
    not_read_because="it describes the machine and holds no samples; record with "
    "'amd-smi metric -w 1 --csv'",
)

AMD_SMI_TEXT = Converter(
    name="amd-smi-text",
    description="amd-smi output for people",
    sniff=lambda head: output_of(head) is Output.TEXT,
    not_read_because="it is laid out for reading and changes with each version; record with --csv "
    "or --json",
)

AMD_SMI_NOTHING = Converter(
    name="amd-smi-nothing",
    description="amd-smi output without values",
    sniff=lambda head: output_of(head) is Output.NOTHING,
    not_read_because="it holds an error, or nothing but amd-smi's first line",
)

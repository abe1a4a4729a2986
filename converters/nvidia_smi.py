"""nvidia-smi's telemetry: ``--query-gpu`` as CSV, ``dmon``, and ``-q`` as text or XML.

One row is one GPU at one time. Rows become samples of one lane for each value, which is named as
for any other tool (`nvidia_smi_tables`). Times are those of a wall clock without its zone
(`telemetry_stamps`). What holds no samples of GPUs is recognised and not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.build import TraceBuilder
from chopper_interop.converters import (
    nvidia_smi_csv,
    nvidia_smi_dmon,
    nvidia_smi_log,
    nvidia_smi_tables,
)
from chopper_interop.converters import nvidia_smi_faults as own_faults
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.nvidia_smi_gpus import with_gpus
from chopper_interop.converters.nvidia_smi_sniff import Output, output_of
from chopper_interop.converters.telemetry_emit import emit, meta_of
from chopper_interop.converters.telemetry_given import Given
from chopper_interop.converters.telemetry_owners import owners_of
from chopper_interop.converters.telemetry_place import clock_of, placed
from chopper_interop.converters.telemetry_text import lines_of
from chopper_interop.converters.telemetry_zone import zone
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.files import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.converters.telemetry_table import Table
    from chopper_interop.trace import Trace

SOURCE = "nvidia-smi"
SAMPLES = (Output.CSV, Output.DMON, Output.LOG, Output.XML)


def sniff(head: bytes) -> bool:
    """Whether a file that begins so holds samples of GPUs."""
    return output_of(head) in SAMPLES


def read(  # noqa: PLR0913 - options of the format
    paths: list[Path],
    *,
    tz: str | None = None,
    columns: str | None = None,
    date: str | None = None,
    at_ns: int | None = None,
    period_ms: float | None = None,
    at: str | None = None,
) -> Trace:
    """Read one file of nvidia-smi.

    Parameters
    ----------
    paths
        The file, alone in a list.
    tz
        Zone of the machine that wrote it, ``Europe/Berlin`` or ``+02:00``: times are then real
        times. Without it they are those of a wall clock, unless the file tells the zone.
    columns
        What stood behind ``--query-gpu=``, for CSV without a header. For ``dmon`` without one,
        its names, which begin with ``gpu``: ``"gpu pwr gtemp sm mem"``; say ``--from nvidia-smi``
        then, for nothing in such a file tells what it is.
    date
        Day of the first row, ``2024-05-01``, for ``dmon -o T``.
    at_ns
        When the last rows of a file without times were taken, epoch nanoseconds.
    period_ms
        Time between rows of a file without times, milliseconds.
    at
        ``"mtime"`` to take the time at which the file was last changed for that of the last rows.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, and its samples.

    Raises
    ------
    ReadError
        It cannot be opened, or has no header and `columns` are not given.
    UsageError
        An option makes no sense.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    zone(tz)
    given = Given(at_ns, at, period_ms)
    if date is not None and not nvidia_smi_dmon.next_day(date, 0):
        raise UsageError(f"-O date={date}: that is no day; say it as 2024-05-01")
    text = lines_of(inputs.read(path, issues))
    table = _table(path, text, columns, date, issues)
    issues.add(faults.EMPTY, int(not table.events))
    table, unknown = with_gpus(table, tz)
    owners = owners_of(table.gpu, SOURCE)
    timed, times = placed(table, unknown, owners, tz, given=given, path=path)
    builder = TraceBuilder(meta_of(path, table, owners, NVIDIA_SMI.name, SOURCE, clock_of(times)))
    issues.add(faults.SAMPLED, len(timed.row))
    emit(builder, table, owners, timed, SOURCE, nvidia_smi_tables.meaning)
    return builder.finish().with_meta(issues=tuple(issues))


def _table(path: Path, text: str, columns: str | None, date: str | None, issues: IssueLog) -> Table:
    found = output_of(text[: inputs.HEAD].encode("utf-8", "replace"))
    if found is Output.DMON or nvidia_smi_dmon.HEADER.match(f"# {columns}"):
        return nvidia_smi_dmon.read(text, date, issues, columns or "")
    if found is Output.LOG:
        return nvidia_smi_log.read_text(text, issues)
    if found is Output.XML:
        return nvidia_smi_log.read_xml(text, issues)
    table = nvidia_smi_csv.read(text, columns, issues)
    if not columns and table.events and not table.stamp and not table.columns:
        headless = [i for i in issues if i.code == own_faults.NO_HEADER.code]
        if headless and headless[0].count == table.events:
            raise ReadError(
                "it has no header, so that nobody can tell what its columns are",
                path=path,
                hint="say -O columns=<what stood behind --query-gpu=>",
            )
    return table


NVIDIA_SMI = Converter(
    name="nvidia-smi",
    description="telemetry of NVIDIA GPUs: nvidia-smi --query-gpu, dmon, -q",
    versions="CSV with and without header and units, once or -l/-lms; dmon, also -o DT and CSV; "
    "-q and -q -x of drivers 290 to 580; CSV of scripts with ISO 8601 or epoch stamps",
    suffixes=(".csv", ".txt", ".log", ".xml"),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, utilization, memory, PCIe, ECC, throttle reasons (masks "
    "bit by bit); of CSV every other number under its own name; index, PCI address and UUID",
)

NVIDIA_SMI_PROCESSES = Converter(
    name="nvidia-smi-processes",
    description="nvidia-smi's lists of processes (pmon, --query-compute-apps)",
    sniff=lambda head: output_of(head) is Output.PROCESSES,
    not_read_because="it is about processes and not about GPUs; record with --query-gpu=timestamp,"
    "index,power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)

NVIDIA_SMI_STATIC = Converter(
    name="nvidia-smi-static",
    description="what nvidia-smi prints once (its table, -L, topo, nvlink, c2c, supported clocks)",
    sniff=lambda head: output_of(head) is Output.STATIC,
    not_read_because="it holds no samples in time; record with --query-gpu=timestamp,index,"
    "power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)

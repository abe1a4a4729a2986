"""amd-smi's telemetry: ``amd-smi metric`` and ``amd-smi monitor`` of 5.7.1 to 7.x, all forms.

One row is one GPU at one tick. Rows become samples of one lane for each value (`amd_smi_tables`);
their times are whole seconds, which `telemetry_ticks` spreads. What amd-smi prints once describes
the GPUs (`amd_smi_static`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters import (
    amd_smi_counted,
    amd_smi_csv,
    amd_smi_json,
    amd_smi_static,
    amd_smi_tables,
    amd_smi_text,
    telemetry_rows,
)
from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.amd_smi_sniff import Output, output_of
from chopper_interop.converters.amd_smi_stamps import by_stamps, meta_of
from chopper_interop.converters.telemetry_given import Given
from chopper_interop.converters.telemetry_text import decoded
from chopper_interop.files import inputs
from chopper_interop.issues import IssueLog
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from chopper_interop.converters.telemetry_cells import Rows
    from chopper_interop.trace import Trace

SOURCE = "amd-smi"
LANES = (*amd_smi_tables.LANES, *amd_smi_counted.LANES)
"""What the columns mean, those of processes (``monitor -q``) included."""


def sniff(head: bytes) -> bool:
    """Whether a file that begins so holds rows of ``metric`` or ``monitor`` as CSV or JSON."""
    return output_of(head) is Output.SAMPLES


def sniff_text(head: bytes) -> bool:
    """Whether a file that begins so holds them in the form for people."""
    return output_of(head) is Output.TEXT


def read(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
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
    period_ms
        How far several outputs without times are apart; without it only the last is taken.

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
        `at` is anything else, or options contradict each other.
    """
    (path,) = paths
    return _read(path, _rows, AMD_SMI.name, Given(at_ns, at, period_ms))


def read_text(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of telemetry in the form for people; options as those of ``amd-smi``.

    Parameters
    ----------
    paths
        The file, alone in a list.
    at_ns
        When a file without times was written, epoch nanoseconds. Of several outputs in it, the
        last was.
    at
        ``"mtime"`` to take the time at which the file was last changed for that.
    period_ms
        How far several outputs without times are apart; without it only the last is taken.
    """
    (path,) = paths
    given = Given(at_ns, at, period_ms)
    return _read(path, amd_smi_text.read, AMD_SMI_TEXT.name, given)


def _read(
    path: Path, rows_of: Callable[[str, IssueLog], Rows], converter: str, given: Given
) -> Trace:
    issues = IssueLog(str(path))
    rows = rows_of(decoded(inputs.read(path, issues)), issues)
    issues.add(faults.EMPTY, int(not rows.events))
    timed = by_stamps(rows, path, given, issues)
    meta = meta_of(path, rows, converter, SOURCE)
    return telemetry_rows.trace_of(timed, meta, SOURCE, issues, LANES)


def _rows(text: str, issues: IssueLog) -> Rows:
    """Rows of the file, in whichever form begins first."""
    objects, header = (form.search(text) for form in (amd_smi_json.BEGIN, amd_smi_csv.HEADER))
    if objects and not (header and header.start() < objects.start()):
        return amd_smi_json.read(text, issues)
    return amd_smi_csv.read(text, issues)


CARRIES = (
    "power, clocks of every XCD, temperatures, activity of engines, memory, energy, PCIe, "
    "ECC, throttling as shares of time, memory of processes (monitor -q); every other number under "
    "its own name"
)

AMD_SMI = Converter(
    name="amd-smi",
    description="telemetry of AMD GPUs: amd-smi metric and monitor, CSV or JSON",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".csv", ".json"),
    sniff=sniff,
    read=read,
    carries=CARRIES,
)

AMD_SMI_TEXT = Converter(
    name="amd-smi-text",
    description="telemetry of AMD GPUs: amd-smi metric and monitor in the form for people",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".txt",),
    sniff=sniff_text,
    read=read_text,
    carries="the same as amd-smi",
)

AMD_SMI_STATIC = Converter(
    name="amd-smi-static",
    description="what amd-smi prints once: static, list, topology, xgmi, process, partition",
    versions="5.7.1 to 7.x; CSV, JSON and the form for people",
    sniff=lambda head: output_of(head) is Output.STATIC,
    read=amd_smi_static.read,
    carries="GPUs with all their names; power cap, clock levels, compute units, memory, versions, "
    "partitions as facts; traffic of xGMI and memory of processes where a time is told",
)

AMD_SMI_NOTHING = Converter(
    name="amd-smi-nothing",
    description="amd-smi output without values",
    sniff=lambda head: output_of(head) is Output.NOTHING,
    not_read_because="it holds an error, or nothing but amd-smi's first line",
)

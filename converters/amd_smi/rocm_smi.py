"""Format of rocm-smi: JSON, CSV and the human-readable form, once or out of a loop.

This module recognises files; the reader is imported when a file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.amd_smi.rocm_smi_sniff import form_of
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace


def sniff(head: bytes) -> bool:
    """Recognise rocm-smi's output by the start of a file."""
    return form_of(head) is not None


def read(
    paths: list[Path],
    *,
    at_ns: int | None = None,
    at: str | None = None,
    period_ms: float | None = None,
) -> Trace:
    """Read one file of rocm-smi.

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
        How far the outputs of a loop without times are apart; without it only the last is taken.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each card, and its samples; names and facts
        of the cards.

    Raises
    ------
    ReadError
        It cannot be opened or unpacked.
    UsageError
        Options are no times or contradict each other.
    """
    from chopper_interop.converters.amd_smi import rocm_smi_samples
    from chopper_interop.converters.sampling.time_options import TimeOptions

    (path,) = paths
    return rocm_smi_samples.read(path, TimeOptions(at_ns, at, period_ms), ROCM_SMI.name)


ROCM_SMI = Converter(
    name="rocm-smi",
    description="telemetry of AMD GPUs: rocm-smi, CSV, JSON or human-readable form",
    versions="2.x to 7.x, once or out of a loop",
    suffixes=(".csv", ".json", ".txt"),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, activity, memory, energy, fans; names, addresses and "
    "limits of the cards",
)

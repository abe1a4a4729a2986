"""Format of the recorder: a CSV of AMD's ``gpu_metrics`` with three clocks in every row.

This module recognises files; the reader is imported when a file is read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.amd_smi.recorder_lanes import is_recorder, names_of
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace


def sniff(head: bytes) -> bool:
    """Recognise a recorder's file by its start."""
    return is_recorder(names_of(head.partition(b"\n")[0]))


def read(paths: list[Path]) -> Trace:
    """Read one file of the recorder.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes: one series for each value of each GPU, its samples in nanoseconds since 1970,
        and in ``meta.offsets`` how the node's clocks relate.

    Raises
    ------
    ReadError
        It cannot be opened, or has not the columns of a recorder.
    """
    from chopper_interop.converters.amd_smi import recorder_samples

    (path,) = paths
    return recorder_samples.read(path, RECORDER.name)


RECORDER = Converter(
    name="recorder",
    description="telemetry of AMD GPUs by gpu_metrics, with three clocks a row",
    versions="gpu_metrics 1.3 to 1.8",
    suffixes=(".csv",),
    sniff=sniff,
    read=read,
    carries="power, clocks, temperatures, activity, energy, throttling as shares of time, at the "
    "driver's own times; how the node's clocks relate",
)

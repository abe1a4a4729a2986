"""Host execution traces of PyTorch's ``ExecutionTraceObserver``: the program, without times.

Each operator and annotation of a process, with its inputs and outputs down to the bytes of the
tensors, in the order in which they were called. With a profile of the same process
`chopper_interop.joining.host_et` joins the two; alone it is a trace whose ``ts`` counts the nodes.

Only the converter itself stands here, so that asking for a file's format loads nothing heavy.
Format: PyTorch's ``execution_trace_observer.cpp`` is the reference.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

_HEAD = re.compile(
    rb'\s*\{(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*?\s*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"\s*,'
    rb'(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*\s*"nodes"\s*:\s*\['
)
"""Beginning of a file: plain members, among them a schema's version, then the list of nodes."""


def sniff(head: bytes) -> bool:
    """True if a file that begins so is a host execution trace."""
    return _HEAD.match(head) is not None


def read(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one host execution trace.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank of the file, in place of the one that it states.

    Returns
    -------
    Trace
        Of one rank, on the clock `ORDER`, with the flow of data as edges.

    Raises
    ------
    ReadError
        The file cannot be read at all. All other losses are counted in ``meta.issues``.
    """
    from chopper_interop.converters.pytorch_et import reader

    return reader.read_trace(paths, rank)


PYTORCH_ET = Converter(
    name="pytorch-et",
    description="PyTorch host execution trace (ExecutionTraceObserver)",
    versions="schemas 1.0.1, 1.0.2-chakra.0.0.4, 1.0.3, 1.1.0, 1.1.1 (torch 1.11 to 2.9)",
    sniff=sniff,
    read=read,
    carries="joined to the operators of a profile of the same process: who made the data that each reads, "
    "shapes, types, schemas, communication, process groups; alone: the program in order, without "
    "times",
)

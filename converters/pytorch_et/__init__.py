"""Host execution traces of PyTorch's ``ExecutionTraceObserver``: the program, without times.

Each operator and annotation of a process, with its inputs and outputs down to the bytes of the
tensors, in the order in which they were called. With a profile of the same process
`chopper_interop.joining.host_et` joins the two; alone it is a trace whose ``ts`` counts the nodes.

Format: PyTorch's ``execution_trace_observer.cpp`` is the reference.
"""

from __future__ import annotations

import re

from chopper_interop.registry import Converter

_HEAD = re.compile(
    rb'\s*\{(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*?\s*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"\s*,'
    rb'(?:\s*"\w+"\s*:\s*(?:"[^"\n]*"|-?\d+)\s*,)*\s*"nodes"\s*:\s*\['
)
"""Beginning of a file: plain members, among them a schema's version, then the list of nodes."""


PYTORCH_ET = Converter(
    name="pytorch-et",
    description="PyTorch host execution trace (ExecutionTraceObserver)",
    versions="schemas 1.0.1, 1.0.2-chakra.0.0.4, 1.0.3, 1.1.0, 1.1.1 (torch 1.11 to 2.9)",
    sniff=_HEAD.match,
    json=True,
    read="chopper_interop.converters.pytorch_et.reader:read",
    carries="joined to the operators of a profile of the same process: who made the data that each reads, "
    "shapes, types, schemas, communication, process groups; alone: the program in order, without "
    "times",
)

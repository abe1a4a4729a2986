"""PyTorch profiler traces: Kineto's JSON, in all versions since 2020, of any vendor's GPUs.

Format: libkineto's ``output_json.cpp`` is the reference.
"""

from __future__ import annotations

import re

from chopper_interop.converters.rocm.sniff import is_v1_json
from chopper_interop.registry import Converter

_TOP_LEVEL_KEYS = (
    b'"traceEvents"',
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"baseTimeNanoseconds"',
)
"""Keys of the top-level object, one of which stands near the beginning of a trace."""
_EVENT_LIST = re.compile(rb'\[\s*(?:\{\s*\}\s*,\s*)?\{[^{}]*"ph"\s*:\s*"')
"""Beginning of a trace that is a bare list; rocmProfileData's begins with an empty event."""


def sniff(head: bytes) -> bool:
    """True if a file that begins so is a trace of events as Kineto or Chrome write it."""
    start = head.lstrip()
    if start[:1] == b"[":
        return _EVENT_LIST.match(start) is not None
    if start[:1] != b"{" or is_v1_json(start):
        return False
    return any(key in head for key in _TOP_LEVEL_KEYS)


KINETO = Converter(
    name="kineto",
    description="PyTorch profiler trace (Kineto JSON)",
    versions="schema 1: 2020 legacy lists, torch 1.8.1 to 2.9, CUPTI, roctracer, rocprofiler-sdk; "
    "Chrome traces of JAX, TensorFlow, torch_npu",
    suffixes=(".json", ".json.gz"),
    sniff=sniff,
    json=True,
    read="chopper_interop.converters.kineto.reader:read",
    write="chopper_interop.converters.kineto.writer:write",
    carries="operators, annotations, Python stacks, runtime and driver calls, kernels, copies, "
    "fills, waits, memory and other counters, collectives with sizes and groups, launches, "
    "forward to backward; written: the same, counters of kernels as arguments, other edges counted",
)

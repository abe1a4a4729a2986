"""PyTorch profiler traces: Kineto's JSON, in all versions since 2020, of any vendor's GPUs.

Format: libkineto's ``output_json.cpp`` is the reference. Chrome traces of other programs are a
format of their own, which the same reader reads.
"""

from __future__ import annotations

import re

from chopper_interop.converters.kineto.stated_rank import stated_rank
from chopper_interop.registry import Converter

_TOP_LEVEL_KEYS = (
    b'"traceEvents"',
    b'"schemaVersion"',
    b'"deviceProperties"',
    b'"baseTimeNanoseconds"',
)
"""Keys of the top-level object, one of which stands near the beginning of a trace."""
_EVENT_LIST = re.compile(rb'\[\s*(?:\{\s*\}\s*,\s*)?\{(?:[^{}]|\{[^{}]*\})*"ph"\s*:\s*"')
"""Beginning of a trace that is a bare list; rocmProfileData's begins with an empty event, py-spy's with
the arguments of one."""

_HEADER = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds)"\s*:'
)
"""Keys of Kineto's header (`schemaVersion` in all versions), which no other tool writes."""
_PYTORCH = re.compile(
    rb'"cat"\s*:\s*"(?:cpu_op|Operator|user_annotation|python_function|(?:cuda|mtia|xpu)_runtime'
    rb'|gpu_(?:memcpy|memset|user_annotation)|ac2g|async_(?:npu|cpu_to_gpu|gpu)|fwdbwd|Trace)"'
    rb'|"(?:CPU|CUDA) functions"|"name"\s*:\s*"aten::|Ascend Hardware'
)
"""Events of PyTorch's profiler where a file begins without its header;
of 2020 the processes ``CPU functions`` and ``CUDA functions``; of torch_npu the hardware's process."""


_UNITRACE = re.compile(
    rb'"cat"\s*:\s*"(?:gpu_op|Flow_[A-Z0-9]+_)|"name"\s*:\s*"(?:ze|cl)[A-Z]\w*"\s*,\s*"cat"\s*:\s*"cpu_op"'
)
"""Events of Intel's unitrace, which has a category of PyTorch's: calls of Level Zero and OpenCL, and what they launch."""


def sniff(head: bytes) -> bool:
    """True if a file that begins so is a trace of PyTorch's profiler."""
    return _is_event_trace(head) and _is_of_pytorch(head)


def is_chrome_trace(head: bytes) -> bool:
    """True if a file that begins so is a Chrome trace that PyTorch did not write."""
    return _is_event_trace(head) and not _is_of_pytorch(head)


def _is_of_pytorch(head: bytes) -> bool:
    if _HEADER.search(head) is not None:
        return True
    return _PYTORCH.search(head) is not None and _UNITRACE.search(head) is None


def _is_event_trace(head: bytes) -> bool:
    start = head.lstrip()
    if start[:1] == b"[":
        return _EVENT_LIST.match(start) is not None
    return start[:1] == b"{" and any(key in head for key in _TOP_LEVEL_KEYS)


_OF_GPUS = (
    *(b'"kernel"', b'"gpu_mem', b'"Kernel"', b'"Memcpy"', b'"Memset"', b'"mtia_ccp_events"'),
    b"Ascend Hardware",
)
"""Categories of GPU work of all versions, which come after those of the host, and torch_npu's process."""

KINETO = Converter(
    name="kineto",
    description="PyTorch profiler trace (Kineto JSON)",
    versions="schema 1: 2020 legacy lists, torch 1.8.1 to 2.9, CUPTI, roctracer, rocprofiler-sdk; "
    "torch_npu",
    suffixes=(".json", ".json.gz"),
    sniff=sniff,
    memory_ratio=1.0,
    arguments_ratio=0.25,
    steps_ratio=0.1,
    json=True,
    rank_of=stated_rank,
    words_of_work=_OF_GPUS,
    read="chopper_interop.converters.kineto.reader:read",
    read_together="chopper_interop.converters.kineto.reader:read_together",
    write="chopper_interop.converters.kineto.writer:write",
    carries="operators, annotations, Python stacks, runtime and driver calls, kernels, copies, "
    "fills, waits, memory and other counters, collectives with sizes and groups, launches, "
    "forward to backward; written: the same, counters of kernels as arguments, other edges counted",
)

CHROME_TRACE = Converter(
    name="chrome-trace",
    description="Chrome trace events (JSON) that PyTorch did not write",
    versions="complete, begin and end, instant, counter and metadata events of any program: JAX, "
    "TensorFlow, rocmProfileData, viztracer, Perfetto's JSON",
    suffixes=(),
    sniff=is_chrome_trace,
    memory_ratio=1.0,
    arguments_ratio=0.25,
    steps_ratio=0.1,
    json=True,
    read="chopper_interop.converters.kineto.reader:read_chrome_trace",
    carries="spans on their threads, kinds by the names of processes and by PyTorch's categories, "
    "else as other; counters as series; arrows and asynchronous events are counted",
)

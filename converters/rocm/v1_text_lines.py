"""Lines of the raw text files of rocprof v1 and roctracer, by kind of file.

Formats: ``bin/tblextr.py`` of ROCm/rocprofiler, ``src/tracer_tool`` of ROCm/roctracer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SPAN = r"^(?P<BeginNs>\d{1,18}):(?P<EndNs>\d{1,18}) "
_CALL = (
    _SPAN + r"(?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?P<Name>%s[^\s(:]*)(?P<args>\(.*?)"
    r"(?:\s+kernel=(?P<kernel>.*?))?(?: :(?P<Index>\d{0,18}))?\s*$"
)


@dataclass(frozen=True)
class LineFormat:
    """Lines of one kind of file.

    Parameters
    ----------
    section
        Section of the tables (`tables`) to which its rows belong.
    pattern
        A line, its groups named as columns.
    """

    section: str
    pattern: str


LINE_FORMATS = (
    LineFormat("HIP", _CALL % "(?:hip|__hip|hcc|roc)"),
    LineFormat("HSA", _CALL % "hsa_"),
    LineFormat(
        "COPY", _SPAN + r"(?P<Name>async-copy):(?P<Index>\d{1,18})(?::(?P<pid>\d{1,10}))?\s*$"
    ),
    LineFormat(
        "OPS",
        _SPAN + r"(?P<dev>\d{1,9}):(?P<queue>\d{1,18}) (?P<Name>.*?):(?P<Index>\d{1,18})"
        r"(?::(?P<pid>\d{1,10}))?\s*$",
    ),
    LineFormat(
        "rocTX",
        r"^(?P<BeginNs>\d{1,18}) (?P<pid>\d{1,10}):(?P<tid>\d{1,10}) (?P<cid>\d{1,4}):"
        r'(?P<rid>\d{1,18}):"(?P<Name>.*)"\s*$',
    ),
)
"""Kinds of lines; the first that fits is taken."""
_MAX_BLANK_LINES = 20
_MAX_LINE = 32 * 1024
"""Blank lines and bytes of a line that are looked at. Chosen: lines of kernels hold demangled names of
several KiB, and a larger look makes it slow to reject a binary file."""


def line_format(head: bytes) -> LineFormat | None:
    """Return the kind of lines of a file by its first line; None if it is none of them."""
    lines = head.split(b"\n", _MAX_BLANK_LINES)
    first = next((line for line in lines if line.strip()), b"")[:_MAX_LINE]
    text = first.decode("utf-8", "replace").rstrip("\r")
    return next((kind for kind in LINE_FORMATS if re.match(kind.pattern, text)), None)

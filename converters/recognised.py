"""Files that lie beside profiles and are known for what they are, but hold no times."""

from __future__ import annotations

import re

from chopper_interop.registry import Converter

_HOST_ET = re.compile(
    rb'\s*\{[^\[\]]*"schema"\s*:\s*"\d+\.\d+\.\d+[^"]*"[^\[\]]*"nodes"\s*:\s*\[', re.DOTALL
)


def _host_et(head: bytes) -> bool:
    return _HOST_ET.match(head) is not None


PYTORCH_ET = Converter(
    name="pytorch-et",
    description="PyTorch host execution trace",
    versions="schema 1.0.1 to 1.1.1",
    sniff=_host_et,
    not_read_because="it has no times; operators and shapes are taken from the profiler's trace",
)

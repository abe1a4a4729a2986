"""chopper-interop: profiles of a GPU training job as one annotated execution-trace graph.

import chopper_interop as ci

trace = ci.read("RUN/")                      # Kineto, rocprofv3, amd-smi … of one job
ci.write(trace, "job.pftrace")               # for Perfetto's UI
ci.write(trace, "et/")                       # Chakra ETs for a simulator
ci.analyze(trace, "temporal").to_pandas()
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 # pip refuses it; a folder in PYTHONPATH does not
    raise ImportError(
        f"chopper-interop needs Python 3.10 or newer, and this is 3.{sys.version_info[1]}"
    )

TYPE_CHECKING = (
    False  # as typing's: until the commands handle an interrupt, as little as possible is imported
)

if TYPE_CHECKING:
    from typing import Any

    from chopper_interop.errors import ChopperError
    from chopper_interop.joining.concatenation import concat
    from chopper_interop.pipeline import analyze, convert, read, write
    from chopper_interop.registry import formats
    from chopper_interop.registry import working_analyses as analyses
    from chopper_interop.result import Result
    from chopper_interop.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "ChopperError", "Result", "Trace", "analyses", "analyze", "concat", "convert", "formats", "read",
    "write",
]  # fmt: skip


_HOMES = {
    "ChopperError": "errors",
    "Result": "result", "Trace": "trace", "analyze": "pipeline", "concat": "joining.concatenation",
    "convert": "pipeline", "formats": "registry", "read": "pipeline", "write": "pipeline",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load what is heavy when it is first used, so that commands start quickly."""
    from importlib import import_module

    if name == "analyses":  # the package of that name lists what there is when it is called
        return import_module("chopper_interop.analyses")
    if name in _HOMES:
        return getattr(import_module(f"chopper_interop.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, for people who look around."""
    return sorted(__all__)

"""The unit of work: reading one source, in any process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chopper_interop import defects, registry
from chopper_interop.edges import communication
from chopper_interop.errors import UsageError
from chopper_interop.io import inputs

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.sources import SourceFiles
    from chopper_interop.trace import Trace

_MAX_RANK = 1 << 20
"""Highest rank accepted: ten times the largest training job known; beyond it is a mistyped number."""


@dataclass(frozen=True)
class SourceTask:
    """A source to read, in a form that can be sent to another process.

    Parameters
    ----------
    converter
        Name of the format.
    paths
        Its files, which the worker can open under these names.
    options
        Options that the format's reader takes.
    names
        Pattern of names that the user calls communication; see `communication.user_pattern`.
    max_unpacked
        Gigabytes that a compressed file may have when unpacked; None for a multiple of its size.
    bounds
        Bytes that files of an archive may have when unpacked.
    """

    converter: str
    paths: tuple[Path, ...]
    options: dict[str, Any] = field(default_factory=dict)
    names: str | None = None
    max_unpacked: float | None = None
    bounds: dict[Path, int] = field(default_factory=dict)

    @classmethod
    def of(cls, source: SourceFiles, options: dict[str, Any], names: str | None) -> SourceTask:
        """Make the task of a source; raise `UsageError` for a value that its reader cannot take."""
        chosen = registry.chosen_options(source.converter.reader, options)
        _refuse_rank(chosen.get("rank"))
        stated = inputs.stated_max_unpacked()
        bounds = inputs.unpacked_bounds(source.paths)
        return cls(source.converter.name, source.paths, chosen, names, stated, bounds)


def read(task: SourceTask) -> Trace:
    """Read a source.

    Raises
    ------
    ChopperError
        It cannot be read; the message names its first file.
    """
    function = registry.converter(task.converter).reader
    first = task.paths[0]
    inputs.set_unpacked_bounds(task.bounds)
    with inputs.unpacking_at_most(task.max_unpacked):
        with defects.as_errors(f"reading {task.converter}", first):
            trace = function(list(task.paths), **task.options)
            trace = communication.recognise(trace, task.names)
        recorded = trace.meta.sources
        if len(task.paths) == 1 and len(recorded) == 1:  # a trace read back names files long gone
            recorded = (replace(recorded[0], sha256=inputs.sha256(first)),)
    return trace.with_meta(sources=recorded)


def _refuse_rank(rank: Any) -> None:
    """Raise `UsageError` for a number that cannot be a rank, whatever reader it is for."""
    if isinstance(rank, int) and not 0 <= rank <= _MAX_RANK:
        raise UsageError(f"option rank={rank}: a rank is a number from 0 to {_MAX_RANK}")

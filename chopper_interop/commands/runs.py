"""What ``--against`` names: one other job, or several runs, each read when it is its turn."""

from __future__ import annotations

import glob
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import pipeline, registry, sources
from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.runs.run import Run
from chopper_interop.sources import Inventory

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Found:
    """A run, and what there is to read of it.

    Parameters
    ----------
    name, path
        What to call it, and where it lies.
    inventory
        Its files.
    error
        Why there are none.
    """

    name: str
    path: str
    inventory: Inventory = field(default_factory=Inventory)
    error: ChopperError | None = None

    def run(self, options: dict[str, Any], on_loss: str) -> Run:
        """The run; options are of readers, those of other formats are left out."""
        return Run(self.name, partial(self._read, options, on_loss), self.path)

    def _read(self, options: dict[str, Any], on_loss: str) -> Trace:
        if self.error is not None:
            raise self.error
        readers = [source.converter.reader for source in self.inventory.sources]
        unknown = registry.unknown_options(readers, options)
        reading = {n: v for n, v in options.items() if n not in unknown}
        trace = pipeline.read_inventory(self.inventory, self.name, reading)
        pipeline.refuse_losses(trace.meta.issues, on_loss)
        return trace


def paths_of(texts: Iterable[str], asked: Iterable[Path]) -> list[Path]:
    """Paths and patterns of paths (``'results/*'``), each once.

    Parameters
    ----------
    texts
        What was given.
    asked
        What is asked about: patterns leave it out.

    Raises
    ------
    UsageError
        There is no such file or folder, and nothing fits it as a pattern: it is mistyped, which a
        row of a run that could not be read would hide.
    """
    itself = {path.resolve() for path in asked}
    found: dict[Path, None] = {}
    for text in texts:
        is_there = Path(text).exists()
        matched = [] if is_there else sorted(map(Path, glob.glob(text)))  # noqa: PTH207
        if not is_there and not matched:
            raise UsageError("there is no such file or folder to compare with", path=text)
        others = [path for path in matched if path.resolve() not in itself]
        found |= dict.fromkeys(others if matched else [Path(text)])
    return list(found)


def find(path: Path, format_name: str | None) -> Found:
    """What there is of a run; a path that does not exist raises, files of no use do not."""
    name = pipeline.job_name(path)
    try:
        return Found(name, str(path), sources.find([path], format_name))
    except ChopperError as error:
        if not path.exists():
            raise
        return Found(name, str(path), Inventory(skipped=[(path, error.message)]), error)

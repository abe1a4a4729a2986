"""Jobs named by ``--against``: one other job or several runs, each read only when it is needed."""

from __future__ import annotations

import glob
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import job_reading, pipeline, registry, sources
from chopper_interop.errors import AmbiguousRunError, ChopperError, UsageError
from chopper_interop.io import outputs
from chopper_interop.run import Run
from chopper_interop.sources import Inventory

if TYPE_CHECKING:
    from chopper_interop.sharing.stage import Sharing
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class RunFiles:
    """The files of a run, not yet read.

    Parameters
    ----------
    name, path
        Name of the run, and its file or folder.
    inventory
        Its files.
    error
        Reason why there are none.
    """

    name: str
    path: str
    inventory: Inventory = field(default_factory=Inventory)
    error: ChopperError | None = None

    def run(
        self, options: dict[str, Any], on_loss: str, sharing: Sharing, number: str | None = None
    ) -> Run:
        """Make the run, not yet read.

        Parameters
        ----------
        options
            Options of readers; those of other formats are ignored.
        on_loss
            What to do if part of the input is lost.
        sharing
            Which names the trace keeps.
        number
            Which of the runs or windows to read, where the files hold several (``--run``).
        """
        read = partial(self._read, options, on_loss, sharing, number)
        return Run(sharing.run_name(self.name), read, sharing.run_name(self.path))

    def read_compared(self, options: dict[str, Any], sharing: Sharing, number: str | None) -> Trace:
        """Read a job that another is compared with; parameters as of `run`."""
        name, chosen = sharing.run_name(self.name), reader_options(self.inventory, options)
        try:
            reading = job_reading.Reading(name, chosen, run=number, sharing=sharing)
            return job_reading.read_inventory(self.inventory, reading)
        except AmbiguousRunError as error:
            error.hint = (error.hint or "").replace("--run", "--against-run")
            raise

    def _read(
        self, options: dict[str, Any], on_loss: str, sharing: Sharing, number: str | None
    ) -> Trace:
        try:
            if self.error is not None:
                raise self.error
            trace = self.read_compared(options, sharing, number)
        except ChopperError as error:
            raise sharing.reason(error) from error
        pipeline.refuse_losses(trace.meta.issues, on_loss)
        return trace


def reader_options(inventory: Inventory, options: dict[str, Any]) -> dict[str, Any]:
    """Select the options that a reader of these files takes."""
    readers = [source.converter.reader for source in inventory.sources]
    unknown = registry.unknown_reading_options(readers, options)
    return {name: value for name, value in options.items() if name not in unknown}


def expand_paths(texts: Iterable[str], analysed: Iterable[Path]) -> list[Path]:
    """Expand paths and patterns of paths (``'results/*'``), each path once.

    Parameters
    ----------
    texts
        Arguments of ``--against``.
    analysed
        Paths of the job to analyse; patterns leave them out.

    Raises
    ------
    UsageError
        A text is no path and matches nothing as a pattern. It is most likely mistyped, which a
        row of a run that could not be read would hide.
    """
    analysed_files = {outputs.real(path) for path in analysed}
    paths: dict[Path, None] = {}
    for text in texts:
        exists = Path(text).exists()
        matches = [] if exists else sorted(map(Path, glob.glob(text)))  # noqa: PTH207
        if not exists and not matches:
            raise UsageError("there is no such file or folder to compare with", path=text)
        others = [path for path in matches if outputs.real(path) not in analysed_files]
        paths |= dict.fromkeys(others if matches else [Path(text)])
    return list(paths)


def find_run(path: Path, format_name: str | None) -> RunFiles:
    """Find the files of a run; a missing path raises, files that no reader takes do not."""
    name = pipeline.job_name(path)
    try:
        return RunFiles(name, str(path), sources.find([path], format_name))
    except ChopperError as error:
        if not path.exists():
            raise
        return RunFiles(name, str(path), Inventory(skipped=[(path, error.message)]), error)

"""Refusals: outputs that would replace inputs, losses and inputs of several runs where they are not accepted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.errors import AmbiguousRunError, LossError, UsageError
from chopper_interop.io import outputs
from chopper_interop.issues import Issue, Severity
from chopper_interop.joining import job, telemetry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.sources import SourceFiles
    from chopper_interop.write_targets import PathArg, WriteTarget

_OTHER_TELEMETRY = "telemetry is of another run", "leave it out, or state --clock-offset"
_OTHER_RANKS = (
    "ranks are of another run, or their clocks differ",
    "--run 1 takes those of the first alone; --clock-offset states by how much a clock differs",
)
_OTHER_RUN = (
    (telemetry.TELEMETRY_APART, *_OTHER_TELEMETRY),
    (telemetry.CONTRADICTS, *_OTHER_TELEMETRY),
    (job.RANKS_APART, *_OTHER_RANKS),
)
"""Faults by which the inputs are no single run, though outputs can be made of them; what they mean, what to do."""


def refuse_overwriting(read_: Iterable[Path], written: Iterable[PathArg]) -> None:
    """Raise `UsageError` if a file to be written is one that is read."""
    files = {outputs.real(path) for path in read_ if path.is_file()}
    for path in map(Path, written):
        if outputs.real(path) in files:
            raise UsageError("it would be overwritten by what is made of it", path=path)


def refuse_targets(targets: Iterable[WriteTarget], read_: Iterable[SourceFiles]) -> None:
    """Raise an error for outputs that cannot or must not be written, before anything is read.

    Raises
    ------
    UsageError
        An output is an input, or a folder with inputs of the format of which it would be replaced.
    WriteError
        An output cannot be written where it is to be.
    """
    read_ = list(read_)
    places_of_all = (place for target in targets for place in target.places)
    refuse_overwriting((path for s in read_ for path in s.recorded), places_of_all)
    places = [Path(target.path).absolute() for target in targets]
    if len(set(places)) < len(places):
        raise UsageError("it is named twice as an output", path=max(places, key=places.count))
    for target in targets:
        place = Path(target.path).absolute()
        same_format = [s for s in read_ if s.converter.name == target.converter.name]
        if any(place in outputs.real(path).parents for s in same_format for path in s.recorded):
            raise UsageError("it would be overwritten by what is made of it", path=target.path)
        outputs.require_writable(place)


def refuse_losses(issues: Iterable[Issue], on_loss: str) -> None:
    """Raise `LossError` if `on_loss` is "error" and something was lost."""
    losses = loss_summary(issues)
    if on_loss == "error" and losses:
        raise LossError(losses, hint="--on-loss warn writes all the same")


def refuse_other_runs(issues: Iterable[Issue], on_loss: str) -> None:
    """Raise `AmbiguousRunError` if telemetry or ranks are of another run, unless `on_loss` is "ignore"."""
    by_code = {issue.code: issue for issue in issues}
    present = [row for row in _OTHER_RUN if row[0].code in by_code]
    if not present or on_loss == "ignore":
        return
    _, meaning, remedy = present[-1]  # telemetry is apart from ranks that are apart
    of_it = [by_code[fault.code] for fault, text, _ in present if text == meaning]
    summary = "; ".join(f"{issue.count} {issue.code}, {issue.example}" for issue in of_it)
    hint = f"{remedy}; --on-loss ignore accepts it"
    raise AmbiguousRunError(f"{meaning}: {summary}", hint=hint)


def loss_summary(issues: Iterable[Issue]) -> str:
    """Summarise losses in one line; empty if nothing was lost."""
    counts: Counter[str] = Counter()
    for issue in issues:
        if issue.severity is not Severity.INFO:
            counts[issue.code] += issue.count
    summary = "; ".join(f"{count} {code}" for code, count in counts.items())
    return f"something was lost: {summary}" if summary else ""

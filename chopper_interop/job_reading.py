"""One job out of an inventory: fragments joined on one clock, with edges and annotations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import registry
from chopper_interop.annotate import stages
from chopper_interop.arrays import spill
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.edges import communication, inference
from chopper_interop.errors import UnknownFormatError, UsageError
from chopper_interop.gpus import devices
from chopper_interop.io import memory
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import chosen_ranks, job
from chopper_interop.reading import every
from chopper_interop.schemas.meta import Meta
from chopper_interop.sharing.stage import Sharing

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.errors import ChopperError
    from chopper_interop.gpus.devices import DeviceRule
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

UNREADABLE = Fault.loss(
    "file-unreadable",
    "Files and folders that are empty or damaged, or can't be opened, were skipped; what they hold is unknown.",
)
OUTPUTS_LEFT_OUT = Fault.info(
    "outputs-left-out",
    "Files that a conversion wrote were not read together with profiles; named "
    "one by one, or as the folder that was written, they are read.",
)


@dataclass(frozen=True)
class Reading:
    """How the sources of an inventory are read as one job.

    Parameters
    ----------
    name
        Name of the job.
    options
        Options of readers.
    map_device, clock_offset, run
        As of `pipeline.read`.
    sharing
        What the trace keeps of where the input was recorded.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    map_device: Sequence[str] = ()
    clock_offset: Sequence[str] = ()
    run: int | str | None = None
    sharing: Sharing = field(default_factory=Sharing)


@memory.sufficing("reading the job")
def read_inventory(inventory: Inventory, reading: Reading) -> Trace:
    """Read the sources of an inventory as one job.

    Raises
    ------
    UsageError
        The name is none for files, or no reader has one of the options.
    UnknownFormatError
        The inventory has no sources.
    """
    device_rules = [devices.parse_device_rule(text) for text in reading.map_device]
    offset_rules = [clock_rules.parse_clock_rule(text) for text in reading.clock_offset]
    name = reading.name
    if Path(name).name != name or name in (".", ".."):
        raise UsageError(f"{name!r} can't be the name of a job: files are named after it")
    if not inventory.sources:
        skipped = "; ".join(f"{path.name}: {why}" for path, why in inventory.skipped[:3])
        raise UnknownFormatError(f"there is nothing to read here ({skipped or 'no files'})")
    readers = [source.converter.reader for source in inventory.sources]
    for option in registry.unknown_reading_options(readers, reading.options):
        raise UsageError(f"no reader of these sources takes an option {option!r}")
    with spill.when(every.exceeds_memory(inventory.sources)):
        return _read_job(inventory, reading, device_rules, offset_rules)


def _read_job(
    inventory: Inventory,
    reading: Reading,
    device_rules: Sequence[DeviceRule],
    offset_rules: Sequence[ClockRule],
) -> Trace:
    names = communication.user_pattern(reading.options.get("comm"))
    fragments, failures = every.read_all(inventory.sources, reading.options, names)
    trace = job.assemble(fragments, reading.name, device_rules, offset_rules, reading.run)
    del fragments  # of which the trace has copies
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    trace = _chosen_ranks(trace, inventory, issues)
    communication.note_names(trace, issues)
    trace = inference.infer_edges(trace, issues)
    trace = stages.annotate(trace.with_meta(issues=tuple(issues)))
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    reasons = dict(inventory.skipped)
    for path in inventory.unreadable:
        issues.extend(_unreadable(path, reasons.get(path, "")))
    for error in failures:
        issues.extend(_unreadable(error.path, str(error)))
    issues.add(OUTPUTS_LEFT_OUT, len(inventory.outputs), ", ".join(map(str, inventory.outputs[:1])))
    trace = reading.sharing.apply(trace.with_meta(issues=tuple(issues)), inventory.given)
    files = (str(path) for source in inventory.sources for path in source.recorded)
    return _printable(replace(trace, files=tuple(files)))


def _chosen_ranks(trace: Trace, inventory: Inventory, issues: IssueLog) -> Trace:
    """Leave out ranks that were not asked for and that only reading could tell."""
    if inventory.ranks is None:
        return trace
    left_out = set(trace.ranks) - set(inventory.ranks)
    issues.add(chosen_ranks.RANKS_LEFT_OUT, len(left_out) + inventory.other_ranks)
    return chosen_ranks.of_ranks(trace, inventory.ranks)


def empty_trace(name: str, error: ChopperError) -> Trace:
    """Trace without nodes for a job that could not be read, with the reason as an issue."""
    issues = IssueLog("job")
    issues.add(UNREADABLE, 1, str(error))
    return _printable(TraceBuilder(Meta(job=name)).finish().with_meta(issues=tuple(issues)))


def _unreadable(path: str | os.PathLike[str] | None, reason: str) -> IssueLog:
    """A row of the issues for a file that was not read."""
    issues = IssueLog(str(path))
    issues.add(UNREADABLE, 1, reason)
    return issues


def _printable(trace: Trace) -> Trace:
    """Escape bytes in paths and names that are no UTF-8, so that every format can hold them."""
    meta = trace.meta
    return trace.with_meta(
        job=_escaped(meta.job),
        sources=tuple(replace(s, path=_escaped(s.path)) for s in meta.sources),
        device_matches=tuple(replace(m, source=_escaped(m.source)) for m in meta.device_matches),
        clocks=tuple(replace(c, of=_escaped(c.of), reason=_escaped(c.reason)) for c in meta.clocks),
        issues=tuple(
            replace(i, source=_escaped(i.source), example=_escaped(i.example)) for i in meta.issues
        ),
    )


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

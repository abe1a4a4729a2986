"""Reading and writing: the whole way from files to a job's trace and on to files."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from os import PathLike, cpu_count, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import annotate, progress, registry, sources
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.edges import dependencies
from chopper_interop.errors import LossError, UnknownFormatError, UsageError
from chopper_interop.files import inputs
from chopper_interop.gpus import devices
from chopper_interop.issues import Fault, Issue, IssueLog, Severity
from chopper_interop.joining import job
from chopper_interop.joining.fragment import Fragment
from chopper_interop.runs import run as runs
from chopper_interop.runs.run import Run
from chopper_interop.schemas.meta import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chopper_interop.errors import ChopperError
    from chopper_interop.registry import Converter
    from chopper_interop.sources import Inventory, SourceFiles
    from chopper_interop.trace import Trace

PathArg = str | PathLike[str]
_TASK = "reading"
_LOSS_HANDLING = ("ignore", "warn", "error")
UNREADABLE = Fault(
    "file-unreadable",
    Severity.LOSS,
    "Files that are empty or damaged were skipped; nobody can tell what they held.",
)
OUTPUTS_LEFT_OUT = Fault(
    "outputs-left-out",
    Severity.INFO,
    "Files that a conversion wrote were not read beside profiles; given by their own names, or as "
    "the folder that was written, they are.",
)
_MOST_RANK = 1 << 20


def read(
    *paths: PathArg,
    from_format: str | None = None,
    name: str | None = None,
    map_device: Sequence[str] = (),
    clock_offset: Sequence[str] = (),
    **options: Any,
) -> Trace:
    """Read everything that is given as one job.

    Parameters
    ----------
    *paths
        Files and folders. What lies in folders and is of no known format is skipped.
    from_format
        Name of the format of all of them, instead of looking.
    name
        What to call the job; by default after the first path.
    map_device
        Which GPU of a source is which device or rank of the trace, where sources do not tell:
        ``[SOURCE:]NUMBER[-LAST]=DEVICE`` or ``…=rankR``, the source a format or a pattern of files.
    clock_offset
        What is added to the times of a source, or of a rank, to get those of the trace, over what
        is found: ``[SOURCE:]SECONDS``, or with a unit ``ms``, ``us``, ``ns``; the source a format,
        a pattern of files or ``rankN``. Without one it is all telemetry.
    **options
        Options of readers (see ``formats()``); each goes to the readers that take it.

    Returns
    -------
    Trace
        Sources, and what was lost or assumed, are in its `meta`.

    Raises
    ------
    ChopperError
        Of a class that says what kind of fault; nothing is half read in silence.
    """
    given = [Path(p) for p in paths]
    if not given:
        raise UsageError("nothing was given to read")
    inventory = sources.find(given, from_format)
    return read_inventory(inventory, name or job_name(given[0]), options, map_device, clock_offset)


def read_inventory(
    inventory: Inventory,
    name: str,
    options: dict[str, Any],
    map_device: Sequence[str] = (),
    clock_offset: Sequence[str] = (),
) -> Trace:
    """Read the sources that were found, as one job."""
    rules = [devices.rule(text) for text in map_device]
    of_clocks = [clock_rules.rule(text) for text in clock_offset]
    if Path(name).name != name or name in (".", ".."):
        raise UsageError(f"{name!r} can't be the name of a job: files are named after it")
    if not inventory.sources:
        skipped = "; ".join(f"{path.name}: {why}" for path, why in inventory.skipped[:3])
        raise UnknownFormatError(f"there is nothing to read here ({skipped or 'no files'})")
    readers = [source.converter.reader for source in inventory.sources]
    for option in registry.unknown_options(readers, options):
        raise UsageError(f"no reader of these sources takes an option {option!r}")
    progress.start(_TASK, sum(source.size for source in inventory.sources), "bytes")
    fragments = _read_all(inventory.sources, options)
    trace = job.assemble(fragments, name, rules, of_clocks)
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    trace = dependencies.complete(trace, issues)
    trace = annotate.annotate(trace.with_meta(issues=tuple(issues)))
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    for path in inventory.unreadable:
        issues.add(UNREADABLE, 1, str(path))
    issues.add(OUTPUTS_LEFT_OUT, len(inventory.outputs), ", ".join(map(str, inventory.outputs[:1])))
    return _printable(trace.with_meta(issues=tuple(issues)))


def write(
    trace: Trace, path: PathArg, *, to_format: str | None = None, **options: Any
) -> tuple[Issue, ...]:
    """Write a trace.

    Parameters
    ----------
    trace
        Any trace.
    path
        File or folder to write; its ending chooses the format.
    to_format
        Name of the format, over the ending.
    **options
        Options of the writer (see ``formats()``).

    Returns
    -------
    tuple of Issue
        What was lost or changed by writing it in this format.
    """
    converter = writer(path, to_format)
    function = converter.writer
    refuse_sources([Path(s.path) for s in trace.meta.sources], [path])
    for option in registry.unknown_options([function], options):
        raise UsageError(f"writing {converter.name} takes no option {option!r}")
    issues = function(trace, Path(path), **registry.chosen_options(function, options))
    return tuple(issues or ())


def convert(
    inputs_: PathArg | Sequence[PathArg],
    outputs: PathArg | Sequence[PathArg],
    *,
    on_loss: str = "warn",
) -> Trace:
    """Read once, write as often as there are outputs.

    Parameters
    ----------
    inputs_
        Files and folders of one job.
    outputs
        Files and folders to write.
    on_loss
        "error" to raise `LossError` if something was lost: before anything is written, or, if a
        format has no place for it, behind.
    """
    targets = [outputs] if isinstance(outputs, str | PathLike) else list(outputs)
    given = [inputs_] if isinstance(inputs_, str | PathLike) else list(inputs_)
    if on_loss not in _LOSS_HANDLING:
        raise UsageError(f"on_loss={on_loss}: there are {', '.join(_LOSS_HANDLING)}")
    for target in targets:
        writer(target, None)
    refuse_sources([Path(path) for path in given], targets)
    trace = read(*given)
    refuse_losses(trace.meta.issues, on_loss)
    issues = [issue for target in targets for issue in write(trace, target)]
    refuse_losses(issues, on_loss)
    return trace


def analyze(trace: Trace, analysis: str, **options: Any) -> Any:
    """Ask a question of a trace.

    Parameters
    ----------
    trace
        Any trace.
    analysis
        Name of the analysis (see ``analyses()``).
    **options
        Its options. Where it compares several runs, `against` may have paths of files and folders,
        each of which is a run; one that does not exist is refused before anything is read.
    """
    function = registry.analysis(analysis)
    for option in registry.unknown_options([function], options):
        raise UsageError(f"analysis {analysis} takes no option {option!r}")
    if registry.takes_runs(function) and "against" in options:
        options["against"] = _runs(options["against"])
    return function(trace, **registry.chosen_options(function, options))


def nothing_of(name: str, error: ChopperError) -> Trace:
    """The trace of a job of which nothing could be read, which says why."""
    issues = IssueLog("job")
    issues.add(UNREADABLE, 1, str(error))
    return _printable(TraceBuilder(Meta(job=name)).finish().with_meta(issues=tuple(issues)))


def _runs(given: Any) -> tuple[Run, ...]:
    """Runs of traces and of paths, which are read when it is their turn."""
    several = [given] if isinstance(given, str | PathLike) or given is None else given
    if not isinstance(several, list | tuple):
        return runs.of(given)
    for one in several:
        if isinstance(one, str | PathLike) and not Path(one).exists():
            raise UsageError("there is no such file or folder to compare with", path=one)
    return tuple(
        run
        for one in several
        for run in (
            (Run(job_name(Path(one)), partial(read, one), fspath(one)),)
            if isinstance(one, str | PathLike)
            else runs.of(one)
        )
    )


def writer(path: PathArg, to_format: str | None) -> Converter:
    """The converter that writes to this path."""
    if to_format is None:
        folder = "/" if Path(path).is_dir() else ""
        return registry.writer_for(fspath(path) + folder)
    found = registry.converter(to_format)
    _ = found.writer  # refused before anything is read
    return found


def refuse_sources(given: Iterable[Path], written: Iterable[PathArg]) -> None:
    """Raise `UsageError` if something to be written is a file that is read."""
    files = {path.resolve() for path in given if path.is_file()}
    for path in map(Path, written):
        if path.resolve() in files:
            raise UsageError("it would be overwritten by what is made of it", path=path)


def refuse_losses(issues: Iterable[Issue], on_loss: str) -> None:
    """Raise `LossError` if `on_loss` is "error" and something was lost."""
    told = lost(issues)
    if on_loss == "error" and told:
        raise LossError(told, hint="--on-loss warn writes all the same")


def lost(issues: Iterable[Issue]) -> str:
    """What was lost, in a line; nothing if nothing was."""
    counts: Counter[str] = Counter()
    for issue in issues:
        if issue.severity is not Severity.INFO:
            counts[issue.code] += issue.count
    told = "; ".join(f"{count} {code}" for code, count in counts.items())
    return f"something was lost: {told}" if told else ""


def _printable(trace: Trace) -> Trace:
    """The trace with paths that can be written: bytes of names that are no UTF-8 spelled out."""
    meta = trace.meta
    return trace.with_meta(
        job=_spelled(meta.job),
        sources=tuple(replace(s, path=_spelled(s.path)) for s in meta.sources),
        device_matches=tuple(replace(m, source=_spelled(m.source)) for m in meta.device_matches),
        clocks=tuple(replace(c, of=_spelled(c.of), reason=_spelled(c.reason)) for c in meta.clocks),
        issues=tuple(
            replace(i, source=_spelled(i.source), example=_spelled(i.example)) for i in meta.issues
        ),
    )


def _spelled(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _read_all(found: Iterable[SourceFiles], options: dict[str, Any]) -> list[Fragment]:
    """Traces of all sources: threads, as the loops over events run without Python's lock."""
    with ThreadPoolExecutor(max_workers=cpu_count()) as pool:
        futures = [pool.submit(copy_context().run, _read_one, s, options) for s in found]
        return [future.result() for future in futures]


def _read_one(source: SourceFiles, options: dict[str, Any]) -> Fragment:
    function = source.converter.reader
    chosen = registry.chosen_options(function, options)
    _refuse_rank(chosen.get("rank"))
    trace = function(list(source.paths), **chosen)
    about = trace.meta.sources
    if len(source.paths) == 1 and len(about) == 1:  # a trace read back tells of files long gone
        about = (replace(about[0], sha256=inputs.sha256(source.paths[0])),)
    progress.advance(_TASK, source.size)
    return Fragment(source, trace.with_meta(sources=about))


def _refuse_rank(rank: Any) -> None:
    """Raise `UsageError` for a number that cannot be a rank, whatever reader it is for."""
    if isinstance(rank, int) and not 0 <= rank <= _MOST_RANK:
        raise UsageError(f"option rank={rank}: a rank is a number from 0 to {_MOST_RANK}")


def job_name(path: Path) -> str:
    """What to call the job of a file or folder: its name without endings."""
    return inputs.plain_name(path.resolve()) or "job"

"""The way from files to a job's trace and on to files, which the library and all commands go.

::

    paths ─ sources.find ─▶ Inventory ─ converters ─▶ fragments ─ joining.job ─▶ one trace on one clock
          ─ edges.inference ─▶ edges ─ annotate ─▶ annotations ─ sharing ─▶ what others may see
          ─ converters ─▶ outputs
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from os import PathLike, fspath, stat
from os.path import commonpath, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import (
    job_reading,
    left_out_arguments,
    number_ranges,
    plugins,
    registry,
    sources,
)
from chopper_interop import run as runs
from chopper_interop.arrays import spill
from chopper_interop.errors import AmbiguousRunError, LossError, SchemaError, UsageError
from chopper_interop.io import inputs, memory, outputs, remote
from chopper_interop.issues import Issue, Severity
from chopper_interop.job_reading import Reading
from chopper_interop.reading.workers import Workers, reading_by
from chopper_interop.result import Result
from chopper_interop.run import Run
from chopper_interop.sharing.stage import Sharing
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.registry import Converter
    from chopper_interop.sources import Inventory, SourceFiles

Ranks = str | Iterable[int] | None
PathArg = str | PathLike[str]
_LOSS_HANDLING = ("ignore", "warn", "error")
_OTHER_TELEMETRY = "telemetry is of another run", "leave it out, or state --clock-offset"
_OTHER_RANKS = (
    "ranks are of another run, or their clocks differ",
    "--run 1 takes those of the first alone; --clock-offset states by how much a clock differs",
)


@dataclass(frozen=True)
class WriteTarget:
    """An output: its path and the converter that writes it."""

    path: PathArg
    converter: Converter
    url: str = ""
    """Where it is put when it is written, if that is no local path."""

    @property
    def shown(self) -> str:
        """Path or URL, as the user gave it."""
        return self.url or fspath(self.path)

    @property
    def places(self) -> list[PathArg]:
        """Local files that it replaces, or of which it replaces what they are copies of."""
        return [self.path, remote.copy_of(self.url)] if self.url else [self.path]


def write_target(path: PathArg, to_format: str | None = None) -> WriteTarget:
    """Resolve the converter that writes a path, by its ending or by the name of the format."""
    if inputs.is_url(path):
        url = fspath(path)
        converter = registry.writer_for(url) if to_format is None else registry.converter(to_format)
        _ = converter.writer  # raises before anything is read
        return WriteTarget(remote.workplace(url), converter, url)
    sources.to_path(path)
    if to_format is None:
        folder = "/" if Path(path).is_dir() else ""
        return WriteTarget(path, registry.writer_for(fspath(path) + folder))
    converter = registry.converter(to_format)
    _ = converter.writer  # raises before anything is read
    return WriteTarget(path, converter)


def read(  # noqa: PLR0913 # options
    *paths: PathArg,
    from_format: str | None = None,
    name: str | None = None,
    map_device: Sequence[str] = (),
    clock_offset: Sequence[str] = (),
    run: int | str | None = None,
    ranks: Ranks = None,
    steps: Ranks = None,
    max_unpacked: float | None = None,
    max_memory: float | None = None,
    workers: Workers = None,
    keep_environment: bool = False,
    anonymise: bool | str = False,
    **options: Any,
) -> Trace:
    """Read files and folders as one job.

    Parameters
    ----------
    *paths
        Files and folders. Files in folders that are of no known format are skipped.
    from_format
        Name of the format of all files, instead of recognising each.
    name
        Name of the job; by default that of the file or folder, or of the folder that several are in.
    map_device
        Which GPU of a source is which device or rank of the trace, where the sources do not say:
        ``[SOURCE:]NUMBER[-LAST]=DEVICE`` or ``…=rankR``, SOURCE a format or a pattern of files.
    clock_offset
        Time to add to a source's or a rank's times to get the trace's; overrides the alignment:
        ``[SOURCE:]SECONDS``, or with a unit ``ms``, ``us``, ``ns``; SOURCE a format, a pattern of
        files or ``rankN``. Without SOURCE it applies to all telemetry.
    run
        Which run or window is read, if there are several: its number, from 1 on, in the list that
        the error without it holds; or "all" for windows of one run that follow each other.
    ranks
        The only ranks to read, as numbers or as ``"0,4-7"``; None for all. Files that state another are left
        unread. The others are not known to the trace: collectives meet without them.
    steps
        The only training steps to read, as numbers or as ``"10-12"``; None for all: what hosts do in them, and the
        work of GPUs that is launched there, by their column `iteration`. A large Kineto file is read twice, and what
        is of other steps never kept.
    max_unpacked
        Gigabytes that a compressed file may have when unpacked; by default 200 times its size.
    max_memory
        Gigabytes of memory that reading may need, by the estimate from the sizes of the files; by default
        what is available to the process. Columns of a job that needs more lie in files under ``TMPDIR``.
    workers
        Who reads the files, each of which is read by one worker: a number of processes of this machine; the
        address of a dask scheduler (``"tcp://node:8786"``) whose workers can open the files by the same
        names; an executor of `concurrent.futures` or of the same shape; by default threads. The trace is
        the same.
    keep_environment
        Keep command lines, environment variables, and names of users, hosts and folders that the
        files hold. Without it they are left out, and no output can have them.
    anonymise
        Replace names of the program (functions, modules, ranges, kernels of its own, files, hosts,
        process groups) by aliases: True with a random key, or with this key, by which equal names
        have equal aliases in several traces. Times, shapes and names of libraries stay.
    **options
        Options of readers (see ``formats()``); each goes to the readers that take it. For all
        formats, ``comm`` is a regular expression for names of kernels that are communication.

    Returns
    -------
    Trace
        Its `meta` lists the sources and what was lost or assumed.

    Raises
    ------
    ChopperError
        Of a subclass for each kind of fault; nothing is half read in silence.

    Examples
    --------
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> issues = ci.write(tiny_trace(), "tiny.parquet")
    >>> trace = ci.read("tiny.parquet")
    >>> trace.meta.job, trace.ranks, trace.nodes.num_rows
    ('tiny', [0], 5)
    """
    files = [sources.to_path(p) for p in paths]
    if not files:
        raise UsageError("there is nothing to read: name files or folders")
    sharing = Sharing.chosen(keep_environment=keep_environment, anonymise=anonymise)
    name = name or sharing.job_name(job_name(*files))
    with (
        inputs.unpacking_at_most(max_unpacked),
        memory.at_most(max_memory),
        reading_by(workers),
    ):
        inventory = sources.find(files, from_format, rank_numbers(ranks))
        reading = Reading(
            name, options, map_device, clock_offset, run, sharing, steps=step_numbers(steps)
        )
        return job_reading.read_inventory(inventory, reading)


def rank_numbers(ranks: Ranks) -> list[int] | None:
    """Return the numbers of ranks that are given as such or as text, ascending; None for all ranks."""
    return _numbers("ranks", ranks)


def step_numbers(steps: Ranks) -> tuple[int, ...] | None:
    """Return the numbers of training steps as `rank_numbers` does those of ranks."""
    numbers = _numbers("steps", steps)
    return None if numbers is None else tuple(numbers)


def _numbers(option: str, given: Ranks) -> list[int] | None:
    if given is None:
        return None
    numbers = number_ranges.parse(option, given) if isinstance(given, str) else sorted({*given})
    if not numbers:
        raise UsageError(f"{option}: there are none to read")
    return numbers


def write(
    trace: Trace, path: PathArg, *, to_format: str | None = None, **options: Any
) -> tuple[Issue, ...]:
    """Write a trace to one output.

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

    Raises
    ------
    UsageError
        No format has this ending or name, its writer lacks an option, or the output is an input.

    Examples
    --------
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> ci.write(tiny_trace(), "tiny.parquet")  # holds everything: nothing is lost
    ()
    """
    _require_trace(trace)
    target = write_target(path, to_format)
    function = target.converter.writer
    local = Path(target.path)
    files = list(input_files(trace))
    refuse_overwriting(files, target.places)
    for option in registry.unknown_options([function], options):
        hint = registry.similar_option(option, [function])
        raise UsageError(f"writing {target.converter.name} takes no option {option!r}", hint=hint)
    is_spilled = spill.holds(trace.array("ts"))
    converter = target.converter
    package = registry.brought_by(registry.CONVERTERS, converter.name)
    with (
        plugins.placed(converter, local, package) if package else nullcontext(local) as place,
        outputs.as_named(place, target.shown),
        outputs.sparing(files),
        spill.when(is_spilled),
        spill.scratch(memory.available_bytes()),
        plugins.unchanged(trace, converter.name, package) if package else nullcontext(),
        registry.as_errors("writing", converter.name, local),
    ):
        issues = function(trace, place, **registry.chosen_options(function, options))
        if package:
            plugins.require_issues(issues, converter, package)
    if target.url:
        remote.put(local, target.url)
    return tuple(issues or ())


def _require_trace(value: object) -> None:
    """Raise `UsageError` for what is no trace, such as the path of one."""
    from chopper_interop.trace import Trace

    if not isinstance(value, Trace):
        hint = "chopper_interop.read makes one of files and folders"
        raise UsageError(f"a Trace is needed, and this is a {type(value).__name__}", hint=hint)


def write_all(
    trace: Trace, targets: Iterable[WriteTarget], options: dict[str, Any]
) -> tuple[Issue, ...]:
    """Write a trace to each target with the options that its writer takes.

    Returns
    -------
    tuple of Issue
        What was lost or changed by writing, of all targets.
    """
    issues: list[Issue] = []
    for target in targets:
        takes = registry.options(target.converter.writer)
        chosen = {
            name: value
            for name, value in options.items()
            if name in takes and not registry.is_of_reading(name, value)
        }
        issues += write(trace, target.shown, to_format=target.converter.name, **chosen)
    return tuple(issues)


@dataclass(frozen=True)
class Conversion:
    """A conversion whose inputs were found and whose options were checked, before anything is read.

    Parameters
    ----------
    inventory
        Sources to read.
    targets
        Outputs to write.
    reading
        How the sources are read.
    writing
        Options of writers.
    on_loss
        "error" to raise `LossError` if something was lost, "warn" and "ignore" to go on.
    """

    inventory: Inventory
    targets: tuple[WriteTarget, ...]
    reading: Reading
    writing: dict[str, Any] = field(default_factory=dict)
    on_loss: str = "warn"

    def run(self, *, keeps_arguments: bool = True) -> tuple[Trace, tuple[Issue, ...]]:
        """Read once and write every target.

        Parameters
        ----------
        keeps_arguments
            False to free the arguments of nodes before writing if no target has them.

        Returns
        -------
        trace, issues
            The trace, and what was lost or assumed in reading and writing. Losses in writing are
            for the caller to refuse, after showing them.

        Raises
        ------
        LossError
            Something was lost in reading and `on_loss` is "error"; nothing was written.
        """
        trace = job_reading.read_inventory(self.inventory, self.reading)
        refuse_losses(trace.meta.issues, self.on_loss)
        if not (keeps_arguments or any(t.converter.has_arguments for t in self.targets)):
            trace = trace.without_arguments()
            memory.give_back(trace.nodes.nbytes)  # before the outputs take memory in other sizes
        with job_reading.amounts_stated(
            "writing the outputs", self.inventory.sources, self.reading
        ):
            written = write_all(trace, self.targets, self.writing)
        return trace, (*trace.meta.issues, *written)


def plan_conversion(  # noqa: PLR0913 # options
    inputs_: Sequence[PathArg],
    targets: Iterable[WriteTarget],
    *,
    from_format: str | None = None,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    map_device: Sequence[str] = (),
    clock_offset: Sequence[str] = (),
    run: int | str | None = None,
    ranks: Ranks = None,
    steps: Ranks = None,
    on_loss: str = "warn",
    keep_environment: bool = False,
    anonymise: bool | str = False,
) -> Conversion:
    """Find the inputs of a conversion and check its options; parameters as of `convert`.

    Raises
    ------
    UsageError
        An option that no reader and no writer takes, an unknown `on_loss`, or an output that is
        an input.
    """
    if on_loss not in _LOSS_HANDLING:
        raise UsageError(f"on_loss={on_loss}: there are {', '.join(_LOSS_HANDLING)}")
    options = options or {}
    targets = tuple(targets)
    paths = [sources.to_path(path) for path in inputs_]
    inventory = sources.find(paths, from_format, rank_numbers(ranks))
    readers = [source.converter.reader for source in inventory.sources]
    writers = [target.converter.writer for target in targets]
    for option in registry.unknown_reading_options([*readers, *writers], options):
        hint = registry.similar_option(option, [*readers, *writers], registry.READING_OPTIONS)
        text = f"-O {option}: neither the inputs nor the outputs have such an option"
        raise UsageError(text, hint=hint)
    not_read = registry.unknown_reading_options(readers, options)
    refuse_targets(targets, inventory.sources)
    sharing = Sharing.chosen(keep_environment=keep_environment, anonymise=anonymise)
    name = name or sharing.job_name(job_name(*paths))
    chosen = {n: value for n, value in options.items() if n not in not_read}
    reading = Reading(
        name, chosen, map_device, clock_offset, run, sharing, steps=step_numbers(steps)
    )
    return Conversion(inventory, targets, reading, options, on_loss)


def convert(  # noqa: PLR0913 # options
    inputs_: PathArg | Sequence[PathArg],
    outputs: PathArg | Sequence[PathArg],
    *,
    from_format: str | None = None,
    to_format: str | None = None,
    name: str | None = None,
    map_device: Sequence[str] = (),
    clock_offset: Sequence[str] = (),
    run: int | str | None = None,
    ranks: Ranks = None,
    steps: Ranks = None,
    on_loss: str = "warn",
    max_unpacked: float | None = None,
    max_memory: float | None = None,
    workers: Workers = None,
    keep_environment: bool = False,
    anonymise: bool | str = False,
    **options: Any,
) -> Trace:
    """Read files and folders once as one job and write every output.

    Parameters
    ----------
    inputs_
        Files and folders of one job.
    outputs
        Files and folders to write.
    to_format
        Name of the format of all outputs, over their endings.
    on_loss
        "error" to raise `LossError` if something was lost: before anything is written, or, if a
        format has no place for it, afterwards.
    from_format, name, map_device, clock_offset, run, ranks, steps, max_unpacked, max_memory, workers
        As of `read`.
    keep_environment, anonymise
        As of `read`.
    **options
        Options of readers and writers; each goes to those that take it.

    Raises
    ------
    AmbiguousRunError
        Telemetry is of another run than the trace, unless `on_loss` is "ignore". The outputs are written.

    Examples
    --------
    >>> from pathlib import Path
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> issues = ci.write(tiny_trace(), "tiny.parquet")
    >>> trace = ci.convert("tiny.parquet", ["tiny.pftrace", "et/"])
    >>> sorted(path.name for path in Path("et").iterdir())
    ['tiny.0.et', 'tiny.comm_groups.json']
    """
    paths = [outputs] if isinstance(outputs, str | PathLike) else list(outputs)
    files = [inputs_] if isinstance(inputs_, str | PathLike) else list(inputs_)
    with (
        inputs.unpacking_at_most(max_unpacked),
        memory.at_most(max_memory),
        reading_by(workers),
    ):
        conversion = plan_conversion(
            files,
            [write_target(path, to_format) for path in paths],
            from_format=from_format,
            name=name,
            options=options,
            map_device=map_device,
            clock_offset=clock_offset,
            run=run,
            ranks=ranks,
            steps=steps,
            on_loss=on_loss,
            keep_environment=keep_environment,
            anonymise=anonymise,
        )
        trace, issues = conversion.run()
    refuse_losses(issues, on_loss)
    refuse_other_runs(issues, on_loss)
    return trace


def analyze(trace: Trace, analysis: str, **options: Any) -> Result:
    """Run an analysis on a trace.

    Parameters
    ----------
    trace
        Any trace.
    analysis
        Name of the analysis (see ``analyses()``).
    **options
        Its options: of the types that it declares, or as text, as on the command line. Where it
        takes a list as text (``by="rank,stream"``), a list does as well (``by=["rank", "stream"]``,
        ``ranks=range(4)``). Where it compares several runs, `against` may hold paths of files and
        folders, each of which is a run; a path that does not exist is refused before anything is
        read.

    Returns
    -------
    Result
        Its rows, summary and notes.

    Raises
    ------
    ChopperError
        There is no such analysis or option, or the trace lacks what the analysis needs.

    Examples
    --------
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> result = ci.analyze(tiny_trace(), "temporal")
    >>> result.to_pandas()[["rank", "busy_ns", "idle_ns"]]
       rank  busy_ns  idle_ns
    0     0     7500      500
    >>> result.summary["busy_ns"]
    7500
    """
    _require_trace(trace)
    if not isinstance(analysis, str):
        raise UsageError(f"the name of one analysis is needed, not a {type(analysis).__name__}")
    function = registry.analysis(analysis)
    for option in registry.unknown_options([function], options):
        hint = registry.similar_option(option, [function])
        raise UsageError(f"analysis {analysis} takes no option {option!r}", hint=hint)
    if registry.takes_runs(function) and "against" in options:
        options["against"] = _runs(options["against"])
    with spill.when(spill.holds(trace.array("ts"))), spill.scratch(memory.available_bytes()):
        return _analyzed(trace, analysis, function, options)


def _analyzed(
    trace: Trace, analysis: str, function: Callable[..., Any], options: dict[str, Any]
) -> Result:
    """Call an analysis, and add the notes that all analyses have."""
    package = registry.brought_by(registry.ANALYSES, analysis)
    with (
        plugins.unchanged(trace, analysis, package) if package else nullcontext(),
        registry.as_errors("analysis", analysis, group=registry.ANALYSES),
    ):
        chosen = registry.chosen_options(function, options)
        result = function(trace, **chosen)
    if not isinstance(result, Result):
        subject = f"analysis {analysis}" + (f", of {package}," if package else "")
        raise SchemaError(f"{subject} returns a {type(result).__name__}, not a Result")
    if package:
        plugins.require_annotations(result, trace)
        result = replace(result, analysis=analysis)  # which names a file
    result = _with_unknown_keys(result, str(chosen.get("by", "")))
    if any(issue.code == left_out_arguments.LEFT_OUT.code for issue in trace.meta.issues):
        result = _without_arguments(result, analysis, chosen)
    is_whole = "steps" in registry.options(function) and not chosen.get("steps")
    if not is_whole or chosen.get("compat"):
        return result
    return _with_warm_up(trace, result, chosen.get("ranks", ""))


def _with_unknown_keys(result: Result, by: str) -> Result:
    """Say which keys none of the rows has: a table would be silent of them."""
    asked = [name for name in map(str.strip, by.split(",")) if name in result.rows.column_names]
    unknown = [name for name in asked if result.rows[name].null_count == result.rows.num_rows > 0]
    note = {"by": f"no {' and no '.join(unknown)} is known"} if unknown else {}
    return replace(result, notes={**result.notes, **note})


def _without_arguments(result: Result, analysis: str, options: dict[str, Any]) -> Result:
    """Say that arguments were left out of the trace, in the result of an analysis that looks at some."""
    from chopper_interop.analyses.methods import needs

    if analysis not in needs.ARGUMENTS and not options.get("compat"):
        return result
    note = "left out in reading (-O args=none): what types, shapes and grids of operations say is unknown or less exact"
    return replace(result, notes={**result.notes, "arguments": note})


def _with_warm_up(trace: Trace, result: Result, ranks: str) -> Result:
    """Say which steps are a warm-up where all count, unless the analysis says so itself."""
    from chopper_interop.analyses.methods.activity import warm_up

    return replace(result, notes={**warm_up.included(trace, ranks), **result.notes})


def _runs(against: Any) -> tuple[Run, ...]:
    """Make runs of traces and of paths; a path is read when the analysis comes to it."""
    items = [against] if isinstance(against, str | PathLike) or against is None else against
    if not isinstance(items, list | tuple):
        return runs.as_runs(against)
    for item in items:
        if isinstance(item, str | PathLike) and not Path(item).exists():
            raise UsageError("there is no such file or folder to compare with", path=item)
    return tuple(run for item in items for run in _runs_of_item(item))


def _runs_of_item(item: Any) -> tuple[Run, ...]:
    if isinstance(item, str | PathLike):
        return (Run(job_name(Path(item)), partial(read, item), fspath(item)),)
    return runs.as_runs(item)


def input_files(trace: Trace) -> Iterator[Path]:
    """Yield the files that a trace was read from, and those that its sources name."""
    return map(Path, dict.fromkeys((*trace.files, *(s.path for s in trace.meta.sources))))


def job_name(*paths: Path) -> str:
    """Name the job of a file or folder: its name without endings; of several, the folder that they are in."""
    absolute = [outputs.real(path) for path in paths]
    common = (
        absolute[0] if len(set(absolute)) == 1 else Path(commonpath(p.parent for p in absolute))
    )
    return outputs.file_name(inputs.plain_name(common))


def refuse_overwriting(read_: Iterable[Path], written: Iterable[PathArg]) -> None:
    """Raise `UsageError` if a file to be written is one that is read."""
    there = {path: number for path in map(Path, written) if (number := _identity(path))}
    numbers = set(there.values())
    # only of those with the number of an output, as paths without links take ten times as long
    same = (path for path in read_ if _identity(path) in numbers) if numbers else ()
    files = {outputs.real(path) for path in same if isfile(path)}  # noqa: PTH113
    for path in there:
        if outputs.real(path) in files:
            raise UsageError("it would be overwritten by what is made of it", path=path)


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file or folder; None if there is none, also where a path cannot be one."""
    try:
        state = stat(path)  # noqa: PTH116 # of texts, in half of the time
    except (OSError, ValueError):
        return None
    return state.st_dev, state.st_ino


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
    places = [outputs.real(Path(target.path)) for target in targets]  # also of a link to a folder
    if len(set(places)) < len(places):
        raise UsageError("it is named twice as an output", path=max(places, key=places.count))
    for target, place in zip(targets, places, strict=True):
        same_format = [s for s in read_ if s.converter.name == target.converter.name]
        if any(place in outputs.real(path).parents for s in same_format for path in s.recorded):
            raise UsageError("it would be overwritten by what is made of it", path=target.path)
        outputs.require_writable(Path(target.path).absolute())


def refuse_losses(issues: Iterable[Issue], on_loss: str) -> None:
    """Raise `LossError` if `on_loss` is "error" and something was lost."""
    losses = loss_summary(issues)
    if on_loss == "error" and losses:
        raise LossError(losses, hint="--on-loss warn writes all the same")


def refuse_other_runs(
    issues: Iterable[Issue], on_loss: str, *, done: str = "outputs were written"
) -> None:
    """Raise `AmbiguousRunError` if telemetry or ranks are of another run, unless `on_loss` is "ignore".

    Parameters
    ----------
    issues
        What was met while reading.
    on_loss
        As of `convert`.
    done
        What there is nevertheless.
    """
    by_code = {issue.code: issue for issue in issues if issue.severity is Severity.ERROR}
    if not by_code or on_loss == "ignore":
        return
    from chopper_interop.joining import job, telemetry

    other_run = (
        (telemetry.CONTRADICTS, *_OTHER_TELEMETRY, "with a mixture of its values"),
        (telemetry.TELEMETRY_APART, *_OTHER_TELEMETRY, "without its values for any operation"),
        (job.RANKS_APART, *_OTHER_RANKS, "with all ranks at the times that they recorded"),
    )
    present = [row for row in other_run if row[0].code in by_code]
    if not present:
        return
    _, meaning, remedy, _ = present[-1]  # telemetry is apart from ranks that are apart
    of_it = [(by_code[fault.code], how) for fault, text, _, how in present if text == meaning]
    summary = "; ".join(f"{issue.count} {issue.code}, {issue.example}" for issue, _ in of_it)
    how = " and ".join(how for _, how in of_it)
    hint = f"{remedy}; --on-loss ignore accepts it"
    raise AmbiguousRunError(f"{meaning}: {summary}; {done} {how}", hint=hint)


def loss_summary(issues: Iterable[Issue]) -> str:
    """Summarise losses in one line; empty if nothing was lost."""
    counts: Counter[str] = Counter()
    for issue in issues:
        if issue.severity is not Severity.INFO:
            counts[issue.code] += issue.count
    summary = "; ".join(f"{count} {code}" for code, count in counts.items())
    return f"something was lost: {summary}" if summary else ""

"""One job out of an inventory: sources read in the memory there is, joined on one clock, with edges and annotations.

What is read is held at once, with the columns that are made of it: a multiple of the unpacked files. Where that is
more than there is, sources are read a few at a time, and what was read of them is kept in files (`arrays.spill`). The
multiple is `Converter.memory_ratio`. It was measured as the peak of ``chopper-convert`` less the 215 MB of
a process that reads next to nothing, over the bytes of the unpacked files:

===================================================  =======  =============
input, and what was written                          MB       ratio
===================================================  =======  =============
Kineto, misc/rank0 40 times: Perfetto; four          1,043    0.9; 0.9; 1.5
analyses; critical path
Kineto, misc/rank0 8 times: Perfetto                 208      1.0
Kineto, mi300x/resnet_act_checkpoint 12 times:       203      1.1
Perfetto
rocprofv3 JSON, v3_json_mi350x: Perfetto             38       1.1
Perfetto, made of ddp_resnet_4rank_amd: Parquet      90       7.7
ET, made of misc/rank0 9 times: Parquet              238      3.1
amd-smi CSV of a day, 8 GPUs at 10 Hz: Perfetto      408      5.1
rocm-smi CSV of a day, 8 GPUs at 10 Hz: Perfetto     226      4.0
===================================================  =======  =============

A Kineto file takes less than its size, as of its text only arguments stay; one that is damaged so that what follows
decides what is lost takes its size more.

Without arguments (``-O args=none``) it takes `Converter.arguments_ratio` less: 0.3 of that Kineto file for Perfetto and for
Parquet.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import chosen_steps, left_out_arguments, number_ranges, progress, registry
from chopper_interop.annotate import stages
from chopper_interop.arrays import spill
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.edges import communication, inference
from chopper_interop.errors import (
    ChopperError,
    ReadError,
    TooLittleMemoryError,
    UnknownFormatError,
    UsageError,
)
from chopper_interop.gpus import devices
from chopper_interop.io import archives, background, memory
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import chosen_ranks, one_source
from chopper_interop.joining.fragment import Fragment
from chopper_interop.reading import workers
from chopper_interop.reading.workers import FAILURES, Batch, Failure, Outcome, Pool, SourceTask
from chopper_interop.schemas.meta import Meta
from chopper_interop.sharing import texts
from chopper_interop.sharing.stage import Sharing
from chopper_interop.sources import Inventory, SourceFiles, stated_rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import os

    from chopper_interop.clocks.rules import ClockRule
    from chopper_interop.gpus.devices import DeviceRule

TASK = "reading"
_MANY_NODES = 1 << 17
"""Nodes from which on a thread more is worth it (chosen: of fewer, calls take longer than what they do without Python's lock)."""
_ATTEMPTS = 3
"""Attempts at a source whose reading ends its worker (chosen: dask's number of them)."""
_SMALLER = "profile fewer steps, or without record_shapes and with_stack"
"""Remedy where the file of one rank is too large, and of a format that is read as a whole."""
_NO_ARGUMENTS = {"args": "none"}
UNREADABLE = Fault.loss(
    "file-unreadable",
    "Files and folders that are empty or damaged, that can't be opened or that their reader fails on, were skipped; what they "
    "hold is unknown.",
)
CONVERTER_FAILS = Fault.loss(
    "converter-fails",
    "Converters failed when they looked at files, which others may have read: what they alone recognise was "
    "skipped. Remove the package that brings such a converter.",
)
OUTPUTS_LEFT_OUT = Fault.info(
    "outputs-left-out",
    "Files that a conversion wrote were not read together with profiles; named "
    "one by one, or as the folder that was written, they are read.",
)


@dataclass(frozen=True)
class Reading:
    """Choices by which the sources of an inventory are read as one job.

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
    only
        None for a trace that outputs are made of. Of one that is analysed and not kept, the annotations of
        `stages.OF_NODES` that are looked at; it has no digests of files, and texts of arguments as recorded.
    steps
        The only training steps to read, ascending; None for all.
    arguments
        False if nobody looks at arguments of nodes once it has edges and annotations.
    """

    name: str
    options: dict[str, Any] = field(default_factory=dict)
    map_device: Sequence[str] = ()
    clock_offset: Sequence[str] = ()
    run: int | str | None = None
    sharing: Sharing = field(default_factory=Sharing)
    only: Collection[str] | None = None
    steps: tuple[int, ...] | None = None
    arguments: bool = True


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
        hint = registry.reading_values(option) or None
        raise UsageError(f"no reader of these sources takes an option {option!r}", hint=hint)
    sources = inventory.sources
    is_larger = exceeds_memory(sources, reading)
    stated = amounts_stated("reading the job", sources, reading)
    with spill.when(is_larger), stated:
        return _read_job(inventory, reading, device_rules, offset_rules)


def _read_job(
    inventory: Inventory,
    reading: Reading,
    device_rules: Sequence[DeviceRule],
    offset_rules: Sequence[ClockRule],
) -> Trace:
    names = communication.user_pattern(reading.options.get("comm"))
    is_kept = reading.only is None
    # other sources are joined by what all of the profiles have
    early = reading.steps if _read_steps(inventory.sources) else None
    fragments, failures = read_all(
        inventory.sources,
        reading.options,
        names,
        digests=is_kept,
        steps=early,
        # in memory they take room until the job is joined, and to look for those that it needs takes longer
        arguments=reading.arguments or not spill.is_on(),
    )
    with spill.scratch(memory.available_bytes()):
        return _joined(inventory, reading, (device_rules, offset_rules), fragments, failures)


def _joined(
    inventory: Inventory,
    reading: Reading,
    rules: tuple[Sequence[DeviceRule], Sequence[ClockRule]],
    fragments: list[Fragment],
    failures: list[Failure],
) -> Trace:
    """Join what was read of all sources, with edges and annotations."""
    is_kept = reading.only is None
    if any(rules) or reading.run is not None or not one_source.is_whole(fragments):
        from chopper_interop.joining import job

        trace = job.assemble(fragments, reading.name, *rules, reading.run)
    else:
        trace = one_source.job_of_one(fragments[0], reading.name)
    fragments.clear()  # the trace has copies
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    trace = _chosen_ranks(trace, inventory, issues)
    if reading.steps is not None:
        trace = chosen_steps.of_job(trace, reading.steps, issues)
    communication.note_names(trace, issues)
    only = stages.OF_NODES if reading.only is None else reading.only
    trace = _with_edges_and_annotations(trace, issues, only)
    memory.give_back(trace.nodes.nbytes)
    issues = IssueLog("job")
    issues.extend(trace.meta.issues)
    reasons = dict(inventory.skipped)
    for path in inventory.unreadable:
        issues.extend(_unreadable(path, reasons.get(path, "")))
    for error in failures:
        issues.extend(_unreadable(error.path, str(error)))
    for (converter, why), count in inventory.failures.items():
        issues.add(CONVERTER_FAILS, count, f"{converter}: {why}")
    issues.add(OUTPUTS_LEFT_OUT, len(inventory.outputs), ", ".join(map(str, inventory.outputs[:1])))
    trace = trace.with_meta(issues=tuple(issues))
    if not registry.keeps_arguments(reading.options):
        trace = left_out_arguments.of_job(trace)
    elif not reading.arguments:
        trace = trace.without_arguments()
    trace = reading.sharing.apply(trace, inventory.given, of_arguments=is_kept)
    memory.give_back(trace.nodes.nbytes)
    files = (str(path) for source in inventory.sources for path in source.recorded)
    return _printable(replace(trace, files=tuple(files)))


def _with_edges_and_annotations(trace: Trace, issues: IssueLog, only: Collection[str]) -> Trace:
    """Return the trace with edges that follow from it, with annotations, and with all issues.

    Neither needs the other: annotations follow from edges that the sources have. Of a large trace that is in memory they are
    made at the same time.
    """
    infer = partial(inference.infer_edges, trace, issues)
    annotate = partial(stages.annotate, trace, only)
    if spill.is_on() or trace.nodes.num_rows < _MANY_NODES:
        with_edges, annotated = infer(), annotate()
    else:
        with_edges, annotated = background.both(infer, annotate)
    of_all = tuple(issues)
    if annotated.meta.issues != trace.meta.issues:
        of_all = stages.merged(of_all, annotated.meta.issues)
    return replace(annotated, edges=with_edges.edges).with_meta(issues=of_all)


def read_all(
    sources: Sequence[SourceFiles],
    options: dict[str, Any],
    names: str | None,
    *,
    digests: bool = True,
    steps: tuple[int, ...] | None = None,
    arguments: bool = True,
) -> tuple[list[Fragment], list[Failure]]:
    """Read all sources by the workers that were chosen.

    Parameters
    ----------
    sources
        The sources.
    options
        Options of readers; each goes to those that take it.
    names
        Pattern of names that the user calls communication.
    digests
        True if traces have the digests of their files.
    steps
        The only training steps to read; None for all.
    arguments
        False to keep only arguments that joining, edges and annotations look for.

    Returns
    -------
    fragments, failures
        In the order of the sources; why files of a folder could not be read. The error of a file that was
        given by name is raised.
    """
    sizes = list(map(_bytes, sources))
    progress.start(TASK, sum(sizes), "bytes")
    tasks = [
        SourceTask.for_source(
            source, options, names, digest=digests, steps=steps, arguments=arguments
        )
        for source in sources
    ]
    fragments: list[Fragment] = []
    failures: list[Failure] = []
    batches = workers.batches(tasks)
    bounds = list(pairwise(accumulate(map(len, batches), initial=0)))
    with workers.opened() as pool:
        futures = [
            _first_attempt(pool, batch, sum(sizes[first:behind]))
            for batch, (first, behind) in zip(batches, bounds, strict=True)
        ]
        for batch, (first, behind), future in zip(batches, bounds, futures, strict=True):
            outcomes = _outcomes(pool, batch, future)
            for source, outcome in zip(sources[first:behind], outcomes, strict=True):
                result = _fragment(source, outcome)
                if isinstance(result, Fragment):
                    fragments.append(result)
                else:
                    failures.append(result)
    if not fragments:
        raise failures[0]
    return fragments, failures


def _first_attempt(pool: Pool, batch: Batch, size: int) -> Future[list[Outcome]]:
    future = _submitted(pool, batch)
    context = copy_context()  # the reporter of progress is set in it
    future.add_done_callback(lambda _: context.run(progress.advance, TASK, size))
    return future


def _bytes(source: SourceFiles) -> int:
    """Bytes of a source on disk; 0 if it has gone away, of which its reader says."""
    try:
        return source.size
    except ReadError:
        return 0


def _submitted(pool: Pool, batch: Batch) -> Future[list[Outcome]]:
    try:
        return pool.submit(batch)
    except pool.deaths as error:  # of a pool that is broken as a whole
        failed: Future[list[Outcome]] = Future()
        failed.set_exception(error)
        return failed


def _fragment(source: SourceFiles, outcome: Trace | Failure) -> Fragment | Failure:
    """A source with its trace, or why a file of a folder could not be read."""
    if isinstance(outcome, FAILURES):
        try:
            with archives.names_shown():
                raise outcome
        except FAILURES as error:
            if source.named:
                raise
            if error.details:
                error.hint = f"{error.hint}, given the file alone"
            return error
    if source.recorded != source.paths:
        meta = texts.change_meta(outcome.meta, lambda _, text: archives.shown_text(text))
        outcome = outcome.with_meta(**vars(meta))
    return Fragment(source, outcome)


def _outcomes(
    pool: Pool, batch: Batch, future: Future[list[Outcome]], attempt: int = 1
) -> list[Trace | Failure]:
    """The trace of each source of a batch, or why it cannot be read.

    A source whose worker dies is read again, a few times; those of a batch each alone, as any may be the reason.
    """
    try:
        with archives.names_shown():
            outcomes = future.result()
    except pool.deaths as error:
        if len(batch) > 1:
            alone = [((task,), _submitted(pool, (task,))) for task in batch]
            return [outcome for pair in alone for outcome in _outcomes(pool, *pair)]
        if attempt < _ATTEMPTS:
            return _outcomes(pool, batch, _submitted(pool, batch), attempt + 1)
        died = ReadError(
            f"each process that read it ended before it was done, {attempt} times",
            path=batch[0].paths[0],
            hint="too little memory is the most frequent reason",
        )
        died.__cause__ = error
        return [died]
    return workers.split(outcomes)


def _read_steps(sources: Sequence[SourceFiles]) -> bool:
    """Return True if all sources leave out other training steps than are asked for as they are read."""
    return all(source.converter.steps_ratio for source in sources)


def needed_bytes(sources: Sequence[SourceFiles], reading: Reading) -> list[float]:
    """Estimate the memory that each source takes to be read and joined; at least, if some training steps are asked for."""
    some_steps = reading.steps is not None and _read_steps(sources)
    keeps_arguments = registry.keeps_arguments(reading.options)
    needed = []
    for source in sources:
        of_format = source.converter
        ratio = of_format.memory_ratio - (0 if keeps_arguments else of_format.arguments_ratio)
        needed.append((of_format.steps_ratio if some_steps else ratio) * source.expected_bytes)
    return needed


def exceeds_memory(sources: Sequence[SourceFiles], reading: Reading) -> bool:
    """Return True if the sources together need more memory than is available, though not each alone.

    Raises
    ------
    TooLittleMemoryError
        One of them alone needs more than is available.
    """
    needed = needed_bytes(sources, reading)
    available = memory.available_bytes()
    if sum(needed) <= available:
        return False
    largest = max(range(len(needed)), key=needed.__getitem__)
    if needed[largest] <= available:
        return True
    several = len(sources) > 1
    files = f"the largest of these {len(sources)} sources" if several else "it"
    tenths = _tenths(needed[largest])
    remedies = [
        *_reading_fewer(sources, needed, available),
        *_within_a_rank([sources[largest]], reading),
        f"--max-memory {tenths} tries it all the same",
    ]
    raise TooLittleMemoryError(
        f"reading {files} takes about {tenths:,.1f} GB of memory, and {memory.described(available)}",
        path=sources[largest].paths[0],
        hint="; ".join(remedies if len(remedies) > 1 else [_SMALLER, *remedies]),
    )


@contextmanager
def amounts_stated(
    subject: str, sources: Sequence[SourceFiles], reading: Reading
) -> Iterator[None]:
    """Have the error of a block for which memory does not suffice say how much the sources need, and what bounds it.

    Parameters
    ----------
    subject
        What the block does, such as "reading the job".
    sources
        What is read, or was read for it.
    reading
        How it is read.

    Raises
    ------
    TooLittleMemoryError
        Memory does not suffice.
    """
    available = memory.available_bytes()
    try:
        with memory.sufficing(subject):
            yield
    except TooLittleMemoryError as error:
        raise with_amounts(error, sources, reading, available) from error


def with_amounts(
    error: TooLittleMemoryError,
    sources: Sequence[SourceFiles],
    reading: Reading,
    available: int,
) -> TooLittleMemoryError:
    """Return an error that says how much the sources need, of so much memory that was available, and what bounds it."""
    needed = needed_bytes(sources, reading)
    one, all_ = _tenths(max(needed)), _tenths(sum(needed))
    remedies = []
    if len(sources) > 1:
        known = [rank for rank in map(stated_rank, sources) if rank is not None]
        if not (spill.is_on() or spill.in_use() or one == all_):
            remedies.append(f"--max-memory {one} keeps ranks in files")
        fewer = f"--ranks {min(known)} reads one rank" if known else "give one file"
        remedies.append(f"{fewer} alone, which takes about {one:,.1f} GB")
    return TooLittleMemoryError(
        f"{error.message}: the job takes about {all_:,.1f} GB, by the size of its files, and "
        f"{memory.described(available)}",
        path=error.path,
        hint="; ".join([*remedies, *_within_a_rank(sources, reading)] or [_SMALLER]),
    )


def _within_a_rank(sources: Sequence[SourceFiles], reading: Reading) -> list[str]:
    """Options that bound what sources take besides their number, of those that these have and that are not given."""
    remedies = []
    if _read_steps(sources):
        some = "some training steps" if reading.steps is None else "fewer training steps"
        remedies.append(f"chopper-convert --steps FIRST-LAST and read(steps=…) read {some}")
    without = replace(reading, options={**reading.options, **_NO_ARGUMENTS})
    needed, less = (max(needed_bytes(sources, r)) for r in (reading, without))
    if less < needed:
        of_each = " a rank" if len(sources) > 1 else ""
        remedies.append(f"-O args=none takes about {_tenths(less):,.1f} GB{of_each}")
    return remedies


def _tenths(size: float) -> float:
    """Bytes as gigabytes, rounded up to tenths."""
    return math.ceil(size / 1e8) / 10


def _reading_fewer(
    sources: Sequence[SourceFiles], needed: Sequence[float], available: int
) -> list[str]:
    """Remedy for sources of which some are too large, whose ranks can be read without them; none if none is known."""
    ranks: dict[bool, set[int | None]] = {True: set(), False: set()}
    for source, size in zip(sources, needed, strict=True):
        ranks[size <= available].add(stated_rank(source))
    fitting = sorted(rank for rank in ranks[True] - ranks[False] if rank is not None)
    if not fitting or None in ranks[False]:
        return []
    listed = number_ranges.describe(fitting)
    return [f"chopper-convert --ranks {listed} and read(ranks={listed!r}) leave it out"]


def _chosen_ranks(trace: Trace, inventory: Inventory, issues: IssueLog) -> Trace:
    """Leave out ranks that were not asked for and that only reading could tell."""
    if inventory.ranks is None:
        return trace
    left_out = set(trace.ranks) - set(inventory.ranks)
    issues.add(chosen_ranks.RANKS_LEFT_OUT, len(left_out) + inventory.other_ranks)
    return chosen_ranks.select(trace, inventory.ranks)


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
        sources=tuple(_with_escaped(s, "path") for s in meta.sources),
        device_matches=tuple(_with_escaped(m, "source") for m in meta.device_matches),
        clocks=tuple(_with_escaped(c, "of", "reason") for c in meta.clocks),
        issues=tuple(_with_escaped(i, "source", "example") for i in meta.issues),
    )


def _with_escaped(of_meta: Any, *names: str) -> Any:
    """Return part of the metadata with texts escaped; itself, as most are, if none of them changes."""
    if all(getattr(of_meta, name).isascii() for name in names):
        return of_meta
    return replace(of_meta, **{name: _escaped(getattr(of_meta, name)) for name in names})


def _escaped(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()

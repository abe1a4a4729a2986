"""Checks of what plug-ins return, as work with other files and formats depends on it.

Functions of this package are called without. `package` is the name and version of the one that brings a plug-in.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop import registry
from chopper_interop.combined import Combined
from chopper_interop.errors import (
    ChangedTraceError,
    ChopperError,
    SchemaError,
    described,
    raise_interrupt,
    similar,
)
from chopper_interop.io import outputs
from chopper_interop.issues import Issue, IssueLog
from chopper_interop.schemas import hub

if TYPE_CHECKING:
    from chopper_interop.registry import Converter
    from chopper_interop.result import Result
    from chopper_interop.trace import Trace


def require_trace(made: Any, converter: str, package: str, kind: type[Trace | Combined]) -> None:
    """Raise `SchemaError` for what a reader returned if compiled loops would go beyond its arrays."""
    from chopper_interop import invariants

    reader = f"the reader of {converter}, of {package}"
    if type(made) is not kind:  # of another class, no other process may know it
        raise SchemaError(f"{reader}, returns a {type(made).__name__}, not a {kind.__name__}")
    try:
        invariants.check(made.trace if isinstance(made, Combined) else made)
    except SchemaError as error:
        raise SchemaError(f"{reader}: {error}") from error


def groups(converter: Converter, files: list[Path], package: str) -> list[list[Path]]:
    """Group files into sources by a converter's `group`; each alone if it has none.

    Raises
    ------
    ChopperError
        It fails or it returns something else, or the reader does not load.
    """
    _ = converter.reader
    if converter.group is None:
        return [[path] for path in files]
    with registry.as_errors("grouping files of", converter.name, files[0]):
        made = [list(group) for group in converter.group(list(files))]
    first = [group[0] for group in made if group]
    is_sound = all(isinstance(path, Path) for group in made for path in group)
    if not is_sound or len(set(first)) < len(made):
        raise SchemaError(
            f"the group of {converter.name}, of {package}, does not return lists of paths, each list with another first one",
            path=files[0],
        )
    return made


def stated_rank(
    converter: Converter, path: Path, head: bytes, failures: dict[str, str]
) -> int | None:
    """Rank that a file states by a converter's `rank_of`; None, as of one that must be read for that, if this fails.

    Parameters
    ----------
    converter, path, head
        Format of the file, the file, and its first bytes.
    failures
        Gets the name of a converter that fails, with the reason.
    """
    try:
        rank = converter.rank_of(path, head) if converter.rank_of else None
        number = None if rank is None else operator.index(rank)
    except BaseException as error:  # noqa: BLE001 # of a plug-in
        raise_interrupt(error)
        failures[converter.name] = described(error)
        return None
    if number is None or 0 <= number <= hub.MAX_RANK:
        return number
    failures[converter.name] = f"its rank_of returns {number}, which is no rank"
    return None


@contextmanager
def placed(converter: Converter, path: Path, package: str) -> Iterator[Path]:
    """Yield where a writer is to write; what it makes there gets to the path when all went well.

    One that opens its path itself would leave half of a file there, and nothing of what was there before. A folder that
    was there is filled in place, as nobody else knows which of its files are old.
    """
    is_folder = path.is_dir() or (converter.folder and not path.exists())
    if outputs.is_written_into(path):
        yield path
        return
    with outputs.removed_after_failure(path) if is_folder else outputs.staged(path) as place:
        try:
            yield place
        except ChopperError as error:
            _name_place(error, place, path)
            raise
        stem = path.name.split(".")[0]
        if not any(file.name.startswith(stem) for file in place.parent.iterdir()):
            writer = f"the writer of {converter.name}, of {package},"
            raise SchemaError(f"{writer} wrote nothing", path=path)


def _name_place(error: ChopperError, place: Path, path: Path) -> None:
    """Have an error name the path that the user gave, not the one that a writer got for it."""
    if error.path is not None:
        error.path = os.fspath(error.path).replace(str(place), str(path))
    error.message = error.message.replace(str(place), str(path))
    error.args = (error.message,)


@contextmanager
def unchanged(trace: Trace, name: str, package: str) -> Iterator[None]:
    """Raise `ChangedTraceError` if a plug-in changes a trace in place: results and outputs of others would be wrong."""
    before = _state(trace)
    try:
        yield
    finally:
        if _state(trace) != before:
            raise ChangedTraceError(
                f"{name}, of {package}, changes the trace that it is given",
                hint="it is to work on copies of its arrays; without it, the others are right",
            )


def _state(trace: Trace) -> tuple[Any, ...]:
    """State of a trace, for comparison: which tables it has, and sums of their memory."""
    from isal import isal_zlib  # ten times as fast as Python's

    tables = [getattr(trace, name) for name in hub.TABLES]
    memory = {
        (buffer.address, buffer.size): buffer
        for table in tables
        for column in table.columns
        for chunk in column.chunks
        for buffer in chunk.buffers()
        if buffer is not None
    }
    sums = {place: isal_zlib.crc32(buffer) for place, buffer in memory.items()}
    return (*map(id, tables), id(trace.meta), id(trace.text), sums)


def require_issues(issues: Any, converter: Converter, package: str) -> None:
    """Raise `SchemaError` if what a writer returned are no issues."""
    is_log = issues is None or isinstance(issues, IssueLog | tuple | list)
    if not is_log or not all(isinstance(issue, Issue) for issue in issues or ()):
        writer = f"the writer of {converter.name}, of {package},"
        raise SchemaError(f"{writer} returns a {type(issues).__name__}, not an IssueLog")


def require_annotations(result: Result, trace: Trace) -> None:
    """Raise `SchemaError` for a result that annotates other nodes than the trace has, or by what is no annotation."""
    unknown = sorted(set(result.annotations) - set(hub.ANNOTATION_TYPES))
    if unknown:
        raise SchemaError(
            f"it annotates nodes by {unknown[0]!r}", hint=similar(unknown[0], hub.ANNOTATION_TYPES)
        )
    trace.with_columns(**result.annotations)

"""Find the sources of a job: recognise each file's format and group files that belong together."""

from __future__ import annotations

import errno
import os
import re
import stat
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import number_ranges, plugins, registry
from chopper_interop.errors import (
    PluginError,
    ReadError,
    SchemaError,
    UnknownFormatError,
    UsageError,
)
from chopper_interop.io import archives, inputs, outputs, remote, sqlite_files, sqlite_schema

if TYPE_CHECKING:
    from chopper_interop.registry import Converter


_OUTER = "it is a link to a folder that this one is in"
_LABEL = re.compile(rb"\s{0,99}(?:\d{1,7}: |\[[^\]\s]{1,200}\]|[A-Za-z][\w.-]{0,99}: )")
"""How a file of a known format may begin if a launcher put labels in front of its lines."""
_SAVE = "save what comes out of it to a file first"


@dataclass(frozen=True)
class SourceFiles:
    """Files that are read together, by one converter; `named` if the user gave one of them by name."""

    converter: Converter
    paths: tuple[Path, ...]
    named: bool = True

    @cached_property
    def first(self) -> Path:
        """First file as users see it: within an archive, if it was unpacked."""
        return archives.shown(self.paths[0])

    @property
    def label(self) -> str:
        """Human-readable name: its first file and the number of others."""
        more = f" (+{len(self.paths) - 1})" if len(self.paths) > 1 else ""
        return f"{self.first}{more}"

    @cached_property
    def recorded(self) -> tuple[Path, ...]:
        """The files that the user has: archives instead of what was unpacked of them."""
        return tuple(dict.fromkeys(archives.origin(path) for path in self.paths))

    @cached_property
    def expected_bytes(self) -> int:
        """Bytes of its files when they are unpacked, as far as that is known."""
        return sum(map(inputs.expected_bytes, self.paths))

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(inputs.size(path) for path in self.paths)


@dataclass
class Inventory:
    """Files found for a job.

    Parameters
    ----------
    sources
        Sources to read.
    skipped
        Files that are not read, each with the reason.
    unreadable
        Skipped files and folders whose content is unknown: empty, damaged, or impossible to open.
    outputs
        Skipped outputs of an earlier conversion: the first file of each.
    marked
        Files with the mark of a conversion's output.
    given
        Files and folders that the user gave.
    ranks
        The only ranks to read, ascending; None for all. Sources that state another are among the skipped.
    failures
        Converters that failed when they looked at files: name and reason → number of files.
    other_ranks
        Number of sources that were skipped because they state another rank.
    archives
        Holds archives unpacked as long as there is this inventory.
    """

    sources: list[SourceFiles] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)
    marked: set[Path] = field(default_factory=set)
    given: list[Path] = field(default_factory=list)
    ranks: list[int] | None = None
    failures: Counter[tuple[str, str]] = field(default_factory=Counter)
    other_ranks: int = 0
    archives: archives.Archives = field(default_factory=archives.Archives, repr=False)

    def __post_init__(self) -> None:
        weakref.finalize(self, self.archives.close)


def to_path(text: str | os.PathLike[str]) -> Path:
    """Return a path of the user's, of a URL that of a copy; raise `UsageError` for what can't be one.

    An empty text would be the current folder.
    """
    if not isinstance(text, str | os.PathLike):
        hint = (
            "give each path as an argument: read(*paths)" if isinstance(text, list | tuple) else ""
        )
        raise UsageError(f"a path is needed, and this is a {type(text).__name__}", hint=hint)
    if inputs.is_url(text):
        return remote.fetched(os.fspath(text))
    if not os.fspath(text):
        raise UsageError("a path is empty", hint="write . for the current folder")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(str(error.strerror), path=text) from error
    path = Path(text)
    if not path.is_absolute():
        try:
            Path.cwd()
        except OSError as error:
            raise UsageError("the current folder is not there any more", path=text) from error
    return path


def find(
    paths: Iterable[Path], format_name: str | None = None, ranks: list[int] | None = None
) -> Inventory:
    """Find the sources among files and folders.

    A file given by name must be of a known format; a file in a folder may be anything, and is
    skipped with the reason if its format is unknown.

    Parameters
    ----------
    paths
        Files and folders; folders are searched recursively.
    format_name
        Format of all files, instead of recognising each.
    ranks
        The only ranks to read, ascending; None for all.

    Raises
    ------
    ReadError
        A path does not exist.
    UnknownFormatError
        A file given by name is of no known format, or no file is.
    """
    paths = sorted(paths, key=lambda path: (_is_folder(path), path))  # files by name come first
    inventory = Inventory(given=paths, ranks=ranks)
    by_format: dict[str, list[Path]] = {}
    named_paths = set()
    for path, named in _files(paths, inventory):
        if named:
            named_paths.add(path)
        for file, converter in _recognise(
            path, named=named, format_name=format_name, inventory=inventory
        ):
            by_format.setdefault(converter.name, []).append(file)
    inventory.sources = _without_parts([*_grouped(by_format, named_paths, inventory)])
    used = {path for source in inventory.sources for path in source.paths}
    used.update(path for path, _ in inventory.skipped if _is_companion(path, used))
    inventory.skipped = [(path, why) for path, why in inventory.skipped if path not in used]
    inventory.unreadable = [path for path in inventory.unreadable if path not in used]
    unpacked = inventory.archives.folders
    folders = [path for path in paths if path not in named_paths]
    folders += [folder for folder, path in unpacked.items() if path in named_paths]
    in_output_folders = (path for folder in folders for path in _output_files(folder, inventory))
    _skip_outputs(inventory, named_paths.union(in_output_folders))
    _skip_other_ranks(inventory)
    inventory.skipped = sorted((archives.shown(path), why) for path, why in inventory.skipped)
    inventory.unreadable = sorted(map(archives.shown, inventory.unreadable))
    inventory.outputs = [archives.shown(path) for path in inventory.outputs]
    return inventory


def _is_companion(path: Path, used: set[Path]) -> bool:
    """True for what SQLite keeps next to one of these files, a database: it is read with that, or holds no data."""
    return any(
        path.name.endswith(end) and path.with_name(path.name.removesuffix(end)) in used
        for end in sqlite_files.COMPANIONS
    )


def _grouped(
    by_format: dict[str, list[Path]], named_paths: set[Path], inventory: Inventory
) -> Iterator[SourceFiles]:
    """Yield the sources that the files of each format are grouped into."""
    for name, files in sorted(by_format.items()):
        files.sort(key=archives.shown)  # so that the order of arguments does not matter
        converter = registry.converter(name)
        for group in _groups(converter, files, named_paths, inventory):
            yield SourceFiles(converter, tuple(group), named=not named_paths.isdisjoint(group))


def _groups(
    converter: Converter, files: list[Path], named_paths: set[Path], inventory: Inventory
) -> list[list[Path]]:
    """Group the files of a format; those that a plug-in fails to group, or leaves out, are skipped unless the user named one."""
    package = registry.brought_by(registry.CONVERTERS, converter.name)
    if not package:
        with registry.as_errors("grouping files of", converter.name, files[0]):
            return converter.group(files) if converter.group else [[path] for path in files]
    reason = f"the converter {converter.name!r} leaves it out when it groups files"
    try:
        with archives.names_shown():
            groups = plugins.groups(converter, files, package)
    except (PluginError, SchemaError, UnknownFormatError) as error:
        if not named_paths.isdisjoint(files):
            raise
        groups, reason = [], str(error)
    left_out = sorted(set(files).difference(*groups))
    inventory.skipped += [(path, reason) for path in left_out]
    inventory.unreadable += left_out
    return groups


def _files(paths: Iterable[Path], inventory: Inventory) -> Iterator[tuple[Path, bool]]:
    """Yield each file once, with True if it was given by name."""
    seen = set()
    real = cache(_real)  # of folders, which thousands of files are in
    for path in paths:
        mode = _mode(path)
        named = not stat.S_ISDIR(mode)
        if named and not stat.S_ISREG(mode):
            raise ReadError("it is a pipe or a device, no file", path=path, hint=_SAVE)
        if named:
            outputs.require_finished(path.parent)
        for file in [path] if named else _files_below(path, inventory):
            # as texts, which take a third of the time that paths take
            text = os.fspath(file)
            folder, name = os.path.split(text)
            identity = _real(text) if os.path.islink(text) else os.path.join(real(folder), name)  # noqa: PTH114, PTH118
            if identity not in seen:
                seen.add(identity)
                yield file, named


def _real(path: str) -> str:
    """`outputs.real` as texts."""
    try:
        return os.path.realpath(path)
    except OSError:  # a link that goes away
        return os.path.abspath(path)  # noqa: PTH100


def _is_folder(path: Path) -> bool:
    """True for a folder; False, too, where that can't be seen, which `_mode` says."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _mode(path: Path) -> int:
    """Return the type and permissions of a file; raise `ReadError` if it can't be reached."""
    try:
        return path.stat().st_mode
    except FileNotFoundError as error:
        if str(path) == "-":
            raise ReadError("standard input is not read", path=path, hint=_SAVE) from error
        raise ReadError("there is no such file or folder", path=path) from error
    except OSError as error:
        raise ReadError(f"cannot be opened: {error.strerror}", path=path) from error


def _files_below(folder: Path, inventory: Inventory) -> list[Path]:
    """List regular files in a folder, recursively and through links; hidden ones are left out.

    What can't be opened, and what is no file, is noted in the inventory.
    """
    files: list[Path] = []
    seen: set[str] = set()
    above = set(outputs.real(folder).parents)

    def note(error: OSError) -> None:
        path = Path(error.filename)
        if path == folder:
            raise ReadError(f"cannot be opened: {error.strerror}", path=path) from error
        inventory.skipped.append((path, f"cannot be opened: {error.strerror}"))
        inventory.unreadable.append(path)

    for parent, folders, names in os.walk(folder, followlinks=True, onerror=note):
        seen.add(_real(parent))
        if outputs.is_unfinished(Path(parent)):
            if Path(parent) == folder:
                outputs.require_finished(folder)
            note(OSError(0, "its writing was interrupted", parent))
            folders[:] = []
            continue
        inner = {n: _real(f"{parent}/{n}") for n in sorted(folders) if n[0] != "."}
        outer = [Path(parent, name) for name, real in inner.items() if Path(real) in above]
        inventory.skipped += [(path, _OUTER) for path in outer]
        folders[:] = [
            n for n, real in inner.items() if real not in seen and Path(real) not in above
        ]
        above_names = Path(parent)
        regular = _regular_names(parent)
        for name in sorted(names):  # as texts, so that little is left to sort of paths
            if name.startswith("."):
                continue
            path = above_names / name
            try:
                is_regular = name in regular or stat.S_ISREG(path.stat().st_mode)
            except OSError as error:  # a broken link, or a folder whose files can't be reached
                note(OSError(error.errno, error.strerror, str(path)))
                continue
            if is_regular:
                files.append(path)
            else:
                inventory.skipped.append((path, "it is a pipe or a device, no file"))
    return sorted(files)


def _regular_names(folder: str) -> set[str]:
    """Names of the regular files in a folder that its list shows as such, without asking for each; others may be too."""
    if not os.access(folder, os.X_OK):  # its files can't be reached
        return set()
    try:
        with os.scandir(folder) as entries:
            return {entry.name for entry in entries if entry.is_file(follow_symlinks=False)}
    except OSError:  # what has changed meanwhile, asking for each tells
        return set()


def _recognise(
    path: Path, *, named: bool, format_name: str | None, inventory: Inventory
) -> list[tuple[Path, Converter]]:
    """Return a file, or those in it if it is an archive, with the converters that read them.

    Why there is none is noted in the inventory; for a file that was given by name it is raised.
    """
    reason = ""
    try:
        head = inputs.head(path)
    except ReadError as error:
        if named and format_name is None:
            raise
        head, reason = b"", error.message
    if outputs.has_mark(head):
        inventory.marked.add(path)
    is_archive = archives.is_archive(head)
    front = archives.without_content(head) if is_archive else head
    may_be_any = bool(head) and (format_name is None or is_archive)
    failures: dict[str, str] = {}
    candidates = registry.sniffed(front, path, failures) if may_be_any else []
    inventory.failures.update(failures.items())
    # of a log in an archive the logs of its tasks, of which none is taken apart again
    is_log = not is_archive and archives.depth(path) <= 1 and _is_labelled_log(head, candidates)
    if format_name is not None and not is_archive and not is_log:
        return [(path, _reader(format_name))]
    if is_log:
        candidates = []
    if len(candidates) == 1 and candidates[0].read is not None:
        return [(path, candidates[0])]
    if is_log or (is_archive and not candidates and not archives.depth(path)):
        return _recognise_members(
            path, head, named=named, format_name=format_name, inventory=inventory
        )
    reason = reason or _skip_reason(candidates, head, path) + "".join(
        f"; the converter {name!r} fails when it looks at it: {why}"
        for name, why in failures.items()
    )
    if named:
        hint = (
            None if candidates or not head.strip() else "name its format with --from if you know it"
        )
        raise UnknownFormatError(reason, path=path, hint=hint)
    inventory.skipped.append((path, reason))
    if not head.strip():
        inventory.unreadable.append(path)
    return []


def _recognise_members(
    path: Path, head: bytes, *, named: bool, format_name: str | None, inventory: Inventory
) -> list[tuple[Path, Converter]]:
    """Unpack an archive, and recognise its files as those of a folder."""
    try:
        unpacked = inventory.archives.unpack(path, head, _is_known)
    except ReadError as error:
        if named:
            raise
        inventory.skipped.append((path, error.message))
        inventory.unreadable.append(path)
        return []
    inventory.skipped += [(path / name, why) for name, why in unpacked.left_out]
    inventory.unreadable += [path / name for name in unpacked.unreadable]
    files = _files_below(unpacked.folder, inventory)
    return [
        pair
        for file in files
        for pair in _recognise(file, named=False, format_name=format_name, inventory=inventory)
    ]


def _is_labelled_log(head: bytes, candidates: list[Converter]) -> bool:
    """True if lines have a label in front, as ``srun -l`` writes, and are a profile without it."""
    if candidates and not _LABEL.match(head):
        return False
    from chopper_interop.io import task_logs

    first = task_logs.first_task(head)
    unlabelled = registry.sniffed(first) if first.strip() else []
    return bool(unlabelled) and (not candidates or candidates == unlabelled)


def _is_known(path: Path) -> bool:
    """True if a file, of which only the beginning may be there, is or belongs to a profile."""
    ending_is_known = inputs.has_known_ending(path) or path.name.endswith(sqlite_files.COMPANIONS)
    return ending_is_known or bool(registry.sniffed(inputs.head(path)))


def _reader(name: str) -> Converter:
    converter = registry.converter(name)
    _ = converter.reader  # raises where there is none
    return converter


def _skip_reason(candidates: list[Converter], head: bytes, path: Path) -> str:
    if not head.strip():
        return "it is empty"
    if not candidates and archives.is_archive(head):
        return "it is an archive in an archive, which is not unpacked"
    if not candidates and inputs.is_compressed(head):
        return "it is compressed more than once; unpack it once"
    if not candidates:
        database = sqlite_schema.describe(path, head)
        return f"no format that is known here{': ' if database else ''}{database}"
    if len(candidates) > 1:
        return f"it could be {' or '.join(c.name for c in candidates)}"
    return f"{candidates[0].description}: {candidates[0].not_read_because}"


def _skip_other_ranks(inventory: Inventory) -> None:
    """Skip sources that state another rank than those to read; others are known when they were read."""
    if inventory.ranks is None:
        return
    failures: Counter[tuple[str, str]] = inventory.failures
    stated = {source.paths: stated_rank(source, failures) for source in inventory.sources}
    for files, rank in stated.items():
        if rank is not None and rank not in inventory.ranks:
            inventory.skipped.append((files[0], f"rank {rank} is not among those to read"))
            inventory.other_ranks += 1
    inventory.sources = [
        s for s in inventory.sources if stated[s.paths] in {None, *inventory.ranks}
    ]
    if not inventory.sources:
        present = number_ranges.describe(sorted({r for r in stated.values() if r is not None}))
        hint = f"they have {present}" if present else None
        wanted = number_ranges.describe(inventory.ranks)
        raise UsageError(f"ranks={wanted}: the files have no such rank", hint=hint)


def stated_rank(
    source: SourceFiles, failures: Counter[tuple[str, str]] | None = None
) -> int | None:
    """The rank that a source states near its beginning; None if it must be read for that.

    A plug-in that fails at it is counted among the failures of an inventory.
    """
    converter, path = source.converter, source.paths[0]
    if converter.rank_of is None or len(source.paths) > 1:
        return None
    head = inputs.head(path)
    if not registry.brought_by(registry.CONVERTERS, converter.name):
        with registry.as_errors("reading", converter.name, path):
            return converter.rank_of(path, head)
    failed: dict[str, str] = {}
    rank = plugins.stated_rank(converter, path, head, failed)
    if failures is not None:
        failures.update(failed.items())
    return rank


def _without_parts(sources: list[SourceFiles]) -> list[SourceFiles]:
    """Drop sources all of whose files belong to another source as further files."""
    further: dict[Path, set[int]] = {}
    for k, source in enumerate(sources):
        for path in source.paths[1:]:
            further.setdefault(path, set()).add(k)
    return [
        source
        for k, source in enumerate(sources)
        if not set.intersection(*(further.get(path, set()) - {k} for path in source.paths))
    ]


def _is_derived(source: SourceFiles, inventory: Inventory) -> bool:
    return source.converter.derived or source.paths[0] in inventory.marked


def _output_files(folder: Path, inventory: Inventory) -> set[Path]:
    """Files of a folder that is an output: all sources in it were written in one format."""
    inside = [s for s in inventory.sources if folder in s.paths[0].parents]
    one_format = len({s.converter.name for s in inside}) == 1
    if not one_format or not all(_is_derived(s, inventory) for s in inside):
        return set()
    return {path for source in inside for path in source.paths if path.parent == folder}


def _skip_outputs(inventory: Inventory, requested: set[Path]) -> None:
    """Skip files that a conversion wrote if there are profiles too: they are outputs of an earlier run.

    Files in `requested` are read: they were given by name, or as the folder that was written.
    """
    derived = [
        s for s in inventory.sources if _is_derived(s, inventory) and not requested & set(s.paths)
    ]
    if len(derived) < len(inventory.sources):
        dropped = {s.paths for s in derived}
        inventory.sources = [s for s in inventory.sources if s.paths not in dropped]
        inventory.skipped += [
            (s.paths[0], f"{s.converter.name}: made from profiles such as those next to it")
            for s in derived
        ]
        inventory.outputs += [s.paths[0] for s in derived]

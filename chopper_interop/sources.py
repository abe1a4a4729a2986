"""Finding the sources of a job: which files there are, what each is, which belong together."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import registry
from chopper_interop.errors import ReadError, UnknownFormatError
from chopper_interop.files import inputs, outputs, sqlite_look

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chopper_interop.registry import Converter


@dataclass(frozen=True)
class SourceFiles:
    """Files that are read together, by one converter."""

    converter: Converter
    paths: tuple[Path, ...]

    @property
    def label(self) -> str:
        """What people call it: its first file."""
        more = f" (+{len(self.paths) - 1})" if len(self.paths) > 1 else ""
        return f"{self.paths[0]}{more}"

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(path.stat().st_size for path in self.paths)


@dataclass
class Inventory:
    """What was found.

    Parameters
    ----------
    sources
        What will be read.
    skipped
        Files that will not, each with the reason.
    unreadable
        Those of them of which nobody can tell what they hold: empty or damaged.
    outputs
        Those of what was skipped that an earlier conversion wrote: the first file of each.
    marked
        Files that say that we wrote them.
    """

    sources: list[SourceFiles] = field(default_factory=list)
    skipped: list[tuple[Path, str]] = field(default_factory=list)
    unreadable: list[Path] = field(default_factory=list)
    outputs: list[Path] = field(default_factory=list)
    marked: set[Path] = field(default_factory=set)


def find(given: Iterable[Path], format_name: str | None = None) -> Inventory:
    """Sources among files and folders.

    A file that is given by name must be of a known format; what lies in a folder may be anything,
    and is skipped with the reason.

    Parameters
    ----------
    given
        Files and folders; folders are searched all the way down.
    format_name
        Take all files as of this format instead of looking at them.

    Raises
    ------
    ReadError
        A path does not exist.
    UnknownFormatError
        A file given by name is of no known format, or nothing is.
    """
    given = list(given)
    inventory = Inventory()
    claimed: dict[str, list[Path]] = {}
    by_name = set()
    for path, named in _files(given):
        if named:
            by_name.add(path)
        found = _recognised(path, named=named, format_name=format_name, inventory=inventory)
        if found is not None:
            claimed.setdefault(found.name, []).append(path)
    for name, paths in sorted(claimed.items()):
        converter = registry.converter(name)
        groups = converter.group(paths) if converter.group else [[path] for path in paths]
        inventory.sources += [SourceFiles(converter, tuple(group)) for group in groups]
    inventory.sources = _without_parts(inventory.sources)
    taken = {path for source in inventory.sources for path in source.paths}
    inventory.skipped = [(path, why) for path, why in inventory.skipped if path not in taken]
    inventory.unreadable = [path for path in inventory.unreadable if path not in taken]
    outputs_given = (path for folder in given for path in _one_output(folder, inventory))
    _leave_outputs_out(inventory, by_name.union(outputs_given))
    return inventory


def _files(given: Iterable[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file once, and whether it was given by name."""
    seen = set()
    for path in given:
        if not path.exists():
            raise ReadError("there is no such file or folder", path=path)
        named = not path.is_dir()
        if named and not stat.S_ISREG(path.stat().st_mode):
            hint = "save what comes out of it to a file first"
            raise ReadError("it is a pipe or a device, no file", path=path, hint=hint)
        for file in [path] if named else _below(path):
            identity = file.resolve()
            if identity not in seen:
                seen.add(identity)
                yield file, named


def _below(folder: Path) -> list[Path]:
    """Files in a folder and the folders in it, also those that links lead to; no hidden ones."""
    found = []
    seen: set[str] = set()
    for where, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(where))
        folders[:] = [
            name
            for name in sorted(folders)
            if not name.startswith(".") and os.path.realpath(Path(where, name)) not in seen
        ]
        found += [Path(where, name) for name in names if not name.startswith(".")]
    return sorted(path for path in found if path.is_file())


def _recognised(
    path: Path, *, named: bool, format_name: str | None, inventory: Inventory
) -> Converter | None:
    if format_name is not None:
        return _reader(format_name)
    reason = ""
    try:
        head = inputs.head(path)
    except ReadError as error:
        if named:
            raise
        head, reason = b"", error.message
    if outputs.has_mark(head):
        inventory.marked.add(path)
    found = registry.sniffed(head, path) if head else []
    if len(found) == 1 and found[0].read is not None:
        return found[0]
    reason = reason or _why_not(found, head, path)
    if named:
        hint = None if found or not head.strip() else "name its format with --from if you know it"
        raise UnknownFormatError(reason, path=path, hint=hint)
    inventory.skipped.append((path, reason))
    if not head.strip():
        inventory.unreadable.append(path)
    return None


def _reader(name: str) -> Converter:
    found = registry.converter(name)
    _ = found.reader  # refused where there is none
    return found


def _why_not(found: list[Converter], head: bytes, path: Path) -> str:
    if not head.strip():
        return "it is empty"
    if not found:
        about = sqlite_look.described(path, head)
        return f"no format that is known here{': ' if about else ''}{about}"
    if len(found) > 1:
        return f"it could be {' or '.join(c.name for c in found)}"
    return f"{found[0].description}: {found[0].not_read_because}"


def _without_parts(sources: list[SourceFiles]) -> list[SourceFiles]:
    """Sources without those that another takes along."""
    taken = [set(source.paths[1:]) for source in sources]
    return [source for source in sources if not any(set(source.paths) <= more for more in taken)]


def _is_derived(source: SourceFiles, inventory: Inventory) -> bool:
    return source.converter.derived or source.paths[0] in inventory.marked


def _one_output(folder: Path, inventory: Inventory) -> set[Path]:
    """Files of a folder that is an output itself: all sources in it were written in one format."""
    here = [s for s in inventory.sources if folder in s.paths[0].parents]
    is_one = len({s.converter.name for s in here}) == 1
    if not is_one or not all(_is_derived(s, inventory) for s in here):
        return set()
    return {path for source in here for path in source.paths if path.parent == folder}


def _leave_outputs_out(inventory: Inventory, by_name: set[Path]) -> None:
    """Beside profiles, files that a conversion wrote are outputs of an earlier run.

    Not so those that were given by name, or as the folder that was written.
    """
    derived = [
        s for s in inventory.sources if _is_derived(s, inventory) and not by_name & set(s.paths)
    ]
    if len(derived) < len(inventory.sources):
        inventory.sources = [s for s in inventory.sources if s not in derived]
        inventory.skipped += [
            (s.paths[0], f"{s.converter.name}: made from profiles such as those beside it")
            for s in derived
        ]
        inventory.outputs += [s.paths[0] for s in derived]

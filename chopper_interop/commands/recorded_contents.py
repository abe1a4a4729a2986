"""Analyses that a folder of recordings supports, by a look at the beginnings of its files.

Each source is looked at alone, as beginnings cannot be matched with each other. Files that are cut so are searched for
work of GPUs where their format has it far from the beginning, and for communication; of databases work is assumed.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import pipeline, sources
from chopper_interop.analyses.methods import needs
from chopper_interop.analyses.methods.needs import Content
from chopper_interop.errors import ChopperError
from chopper_interop.grouping import by_key
from chopper_interop.io import inputs
from chopper_interop.io.sqlite_files import MAGIC
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import ASSUMED

if TYPE_CHECKING:
    from chopper_interop.registry import Converter
    from chopper_interop.sources import SourceFiles

_BEGINNING_BYTES = 1 << 20
"""Bytes of a file that are read. Chosen: thousands of events, in a few hundredths of a second."""
_SEARCHED_BYTES = 1 << 28
"""Bytes of a file that are searched. Chosen: a second at most; what is sought is assumed to come later."""
_OF_COMMUNICATION = (b"nccl",)
"""Texts in the names of communication, of RCCL too."""
_DESCRIPTION = "recording"
"""Format of what the recorder says of its GPUs."""
_ALIKE = 4
"""Sources of one format in one folder that are looked at. Chosen: those of other ranks hold the same."""


def look_at(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the formats in a folder, and of the analyses that have an answer from it.

    Raises
    ------
    ChopperError
        There is nothing in it, or a file cannot be opened.
    OSError
        The same, or there is no room for the beginnings.
    """
    found = sources.find([folder]).sources
    descriptions = [path for s in found if s.converter.name == _DESCRIPTION for path in s.paths]
    alike = by_key(found, lambda source: (source.converter.name, source.paths[0].parent))
    held: set[Content] = set()
    for several in alike.values():
        ranks = set()
        for source in several[:_ALIKE]:
            of_source, rank = _look_at_source(source, descriptions)
            held |= of_source
            ranks |= {rank or source.first} if Content.WORK in of_source else set()
        held |= {Content.RANKS} if len(ranks) > 1 else set()
    return sorted({name for name, _ in alike}), needs.supported(held)


def _look_at_source(
    source: SourceFiles, descriptions: list[Path]
) -> tuple[set[Content], tuple[int, ...]]:
    """Return what a source holds, with what the recorder says of its GPUs, and its ranks if it states them."""
    held: set[Content] = set()
    ranks: tuple[int, ...] = ()
    with tempfile.TemporaryDirectory(prefix="chopper-") as beginnings:
        to = Path(beginnings)
        cut = [path for path in source.paths if not _copy_beginning(path, to)]
        for path in descriptions:
            _copy_beginning(path, to)
        with suppress(ChopperError):  # of a description alone, or of a beginning without an event
            trace = pipeline.read(beginnings)
            held = needs.held(trace)
            ranks = tuple(rank.rank for rank in trace.meta.ranks if rank.known_by != ASSUMED)
    for path in cut:
        held |= _search(path, source.converter, {Content.WORK, Content.COMMUNICATION} - held)
    return held, ranks


def _copy_beginning(path: Path, to: Path) -> bool:
    """Copy the beginning of a file, unpacked, to the same path in a folder; True if that is all of it."""
    copy = to.joinpath(*path.absolute().parts[1:])
    copy.parent.mkdir(parents=True, exist_ok=True)
    if inputs.expected_bytes(path) <= _BEGINNING_BYTES:
        shutil.copyfile(path, copy)
        return True
    if not inputs.head(path).startswith(MAGIC):  # a part of a database is none
        with copy.open("wb") as file:
            for block in inputs.blocks(path, IssueLog()):
                file.write(block[: _BEGINNING_BYTES - file.tell()].tobytes())
                if file.tell() >= _BEGINNING_BYTES:
                    break
    return False


def _search(path: Path, converter: Converter, wanted: set[Content]) -> set[Content]:
    """Return which of the wanted contents a file has, or may have where not all of it is searched."""
    if inputs.head(path).startswith(MAGIC):
        return wanted & {Content.WORK}
    words = {Content.WORK: converter.words_of_work, Content.COMMUNICATION: _OF_COMMUNICATION}
    found: set[Content] = set()
    searched = 0
    for block in inputs.blocks(path, IssueLog()) if wanted else ():
        text = block.tobytes()
        found |= {c for c in wanted - found if any(word in text for word in words[c])}
        searched += len(text)
        if found == wanted:
            break
        if searched > _SEARCHED_BYTES:
            return found | ({Content.WORK} & wanted if converter.words_of_work else set())
    return found

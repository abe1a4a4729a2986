"""Analyses that a folder of recordings supports, by a look at the beginnings of its files.

Each source is looked at alone, as beginnings need not be of the same time. Files that are cut so are searched for
work of GPUs where their format has it far from the beginning, and for communication; of databases work is assumed.
Telemetry says something of ranks if all the beginnings together relate its GPUs to them.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import pipeline, sources
from chopper_interop.analyses.methods import needs
from chopper_interop.analyses.methods.needs import Content
from chopper_interop.errors import ChopperError
from chopper_interop.gpus import devices
from chopper_interop.grouping import by_key
from chopper_interop.io import inputs
from chopper_interop.io.sqlite_files import MAGIC
from chopper_interop.issues import IssueLog
from chopper_interop.schemas.meta import ASSUMED

if TYPE_CHECKING:
    from chopper_interop.registry import Converter
    from chopper_interop.sources import SourceFiles
    from chopper_interop.trace import Trace

_BEGINNING_BYTES = 1 << 20
"""Bytes of a file that are read. Chosen: thousands of events, in a few hundredths of a second."""
_MATCHED_BYTES = 1 << 22
"""The same where GPUs are to be matched with ranks: work of GPUs, which names its own, may be behind all operators.
Chosen: a tenth of a second a file."""
_SEARCHED_BYTES = 1 << 28
"""Bytes of a file that are searched. Chosen: a second at most; what is sought is assumed to come later."""
_FAR = {Content.WORK, Content.COMMUNICATION}
"""Contents that files may have far from their beginnings."""
_OF_COMMUNICATION = (b"nccl",)
"""Texts in the names of communication, of RCCL too."""
_DESCRIPTION = "recording"
"""Format of what the recorder says of its GPUs."""
_PATIENCE_S = 10.0
"""Time of a processor after which no further source is looked at. Chosen: twice what eight profiles of 1 GB take."""
_ALIKE = 4
"""Sources of one format in one folder that are looked at. Chosen: those of other ranks hold the same."""


def look_at(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the formats in a folder, and of the analyses that have an answer from it.

    Raises
    ------
    ChopperError
        There is nothing in it, or a file cannot be opened.
    OSError
        The same, or there is no room for the beginnings, or they are not read in time.
    """
    until_s = time.process_time() + _PATIENCE_S
    profiles = sources.find([folder]).sources
    descriptions = [path for s in profiles if s.converter.name == _DESCRIPTION for path in s.paths]
    alike = by_key(profiles, lambda source: (source.converter.name, source.paths[0].parent))
    looked_at = [_look_at_group(several, descriptions, until_s) for several in alike.values()]
    held = {content for group in looked_at for content in group.contents}
    of_work = [group for group in looked_at if Content.WORK in group.contents]
    of_telemetry = [group for group in looked_at if group not in of_work]
    if of_work and not _are_matched(of_work, of_telemetry, alike.values(), descriptions):
        held -= needs.OF_RANKS - {c for group in of_work for c in group.contents}
    return sorted({name for name, _ in alike}), needs.supported(held)


@dataclass
class _Held:
    """Contents of sources of one format in one folder."""

    contents: set[Content] = field(default_factory=set)
    ranks: set[int | Path] = field(default_factory=set)
    """Ranks with operations, or the files of those that do not state theirs."""
    gpus: list[int] = field(default_factory=list)
    """Numbers of GPUs in the samples of each source."""


def _look_at_group(several: list[SourceFiles], descriptions: list[Path], until_s: float) -> _Held:
    group = _Held()
    for source in several[:_ALIKE]:
        if time.process_time() > until_s:
            raise TimeoutError(
                f"a look at its files takes more than {_PATIENCE_S:g} s of a processor"
            )
        contents, trace = _look_at_source(source, descriptions, group.contents)
        group.contents |= contents
        stated: list[int] = []
        if trace is not None:
            group.gpus.append(sum(number >= 0 for number in devices.device_numbers(trace)))
            stated = [rank.rank for rank in trace.meta.ranks if rank.known_by != ASSUMED]
        if Content.WORK in contents:
            group.ranks.update(stated or [source.first])
    if len(group.ranks) > 1:
        group.contents.add(Content.RANKS)
    for source in several[_ALIKE:] if group.ranks else ():
        rank = sources.stated_rank(source)
        group.ranks.add(source.first if rank is None else rank)
    return group


def _look_at_source(
    source: SourceFiles, descriptions: list[Path], of_others: set[Content]
) -> tuple[set[Content], Trace | None]:
    """Return what a source holds, with what the recorder says of its GPUs, and the trace of its beginning.

    Of what a file that is cut holds behind its beginning, what others of its kind were found to hold is not searched again.
    """
    held: set[Content] = set()
    cut, trace = _read_beginnings(source.paths, descriptions)
    if trace is not None:
        held = needs.held(trace)
    if cut:
        held |= _FAR & of_others
    for path in cut:
        held |= _search(path, source.converter, _FAR - held)
    return held, trace


def _read_beginnings(
    paths: Iterable[Path], descriptions: Iterable[Path], limit: int = _BEGINNING_BYTES
) -> tuple[list[Path], Trace | None]:
    """Return which files were cut, and the trace of the beginnings; None if there is nothing in them."""
    with tempfile.TemporaryDirectory(prefix="chopper-") as beginnings:
        cut = [path for path in paths if not _copy_beginning(path, Path(beginnings), limit)]
        for path in descriptions:
            _copy_beginning(path, Path(beginnings), limit)
        with suppress(ChopperError):  # of a description alone, or of a beginning without an event
            return cut, pipeline.read(beginnings)
    return cut, None


def _are_matched(
    of_work: list[_Held],
    of_telemetry: list[_Held],
    alike: Iterable[list[SourceFiles]],
    descriptions: list[Path],
) -> bool:
    """Return True if GPUs of telemetry are matched with ranks, as the beginnings show or their number suggests.

    A beginning without work of GPUs does not name its own: then as many GPUs as ranks are matched in their order.
    """
    paths = [path for several in alike for source in several[:_ALIKE] for path in source.paths]
    _, trace = _read_beginnings(paths, descriptions, _MATCHED_BYTES)
    if trace is not None and any(match.rank >= 0 for match in trace.meta.device_matches):
        return True
    if trace is not None and all(rank.device >= 0 for rank in trace.meta.ranks):
        return False
    counts = {n for group in of_telemetry for n in (*group.gpus, sum(group.gpus))}
    return bool(counts & {len(group.ranks) for group in of_work})


def _copy_beginning(path: Path, to: Path, limit: int) -> bool:
    """Copy the beginning of a file, unpacked, to the same path in a folder; True if that is all of it."""
    own = path.parent.resolve() / path.name  # without "..", which may lead out of the folder
    copy = to.joinpath(*own.parts[1:])
    copy.parent.mkdir(parents=True, exist_ok=True)
    if inputs.expected_bytes(path) <= limit:
        shutil.copyfile(path, copy)
        return True
    if not inputs.head(path).startswith(MAGIC):  # a part of a database is none
        with copy.open("wb") as file:
            for block in inputs.blocks(path, IssueLog()):
                file.write(block[: limit - file.tell()].tobytes())
                if file.tell() >= limit:
                    break
    return False


def _search(path: Path, converter: Converter, wanted: set[Content]) -> set[Content]:
    """Return which of the wanted contents a file has, or may have where not all of it is searched."""
    if inputs.head(path).startswith(MAGIC):
        return wanted & {Content.WORK}
    words = {Content.WORK: converter.words_of_work, Content.COMMUNICATION: _OF_COMMUNICATION}
    present: set[Content] = set()
    searched = 0
    for block in inputs.blocks(path, IssueLog()) if wanted else ():
        text = block.tobytes()
        present |= {c for c in wanted - present if any(word in text for word in words[c])}
        searched += len(text)
        if present == wanted:
            break
        if searched > _SEARCHED_BYTES:
            return present | ({Content.WORK} & wanted if converter.words_of_work else set())
    return present

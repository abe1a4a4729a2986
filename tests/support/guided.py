"""Fuzzing guided by coverage: inputs that reach new branches of the readers are kept and damaged further.

``make fuzz`` runs it in an environment of its own, for all families of readers or some::

    NUMBA_DISABLE_JIT=1 python tests/support/guided.py FOLDER SECONDS [FAMILY …]
    NUMBA_BOUNDSCHECK=1 python tests/support/guided.py FOLDER SECONDS [FAMILY …]

SECONDS are those of a processor, for each family. Loops that are compiled have no coverage. With ``NUMBA_DISABLE_JIT=1`` they run as Python, slower, and an index
beyond an array is an error that is seen. With ``NUMBA_BOUNDSCHECK=1`` they are compiled so that such an index is an
error too, and the modules without loops guide: many times as fast where loops take most of the time. Both ways share
the corpus. Differences between Python and compiled loops (numbers that do not fit
their array) are found too; `tests/support/guided.py --confirm FOLDER` says which of the kept inputs fail as they are.
FOLDER keeps the corpus (``FAMILY/``), from one run to the next, what failed (``failed/``), and how many inputs were
tried in all runs, and how many of them came to a reader, a line for each family and way (``counts.txt``);
``guided.py --keep FOLDER tests/corpus`` takes over some of it for the tests.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import sqlite3
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import atheris
from uncounted import AS_PYTHON, uncounted

with atheris.instrument_imports(include=["chopper_interop"], exclude=uncounted()):
    from chopper_interop import registry, sources
    from chopper_interop.converters.pytorch_et import nodes_decode
    from chopper_interop.io import inputs, json_events

    for _name, _converter in registry.formats().items():
        if _converter.read:
            registry.converter(_name).reader  # imports it  # noqa: B018

import mutations
import numpy as np
from seeds import Seed, seeds

import chopper_interop
from chopper_interop.errors import ChopperError

if TYPE_CHECKING:
    from collections.abc import Callable

_LARGEST_KEPT, _KEPT = 1 << 11, 20
"""Bytes of an input that tests keep, and inputs of a family, at most (chosen: the corpus stays small)."""
_GROWTH = 2
"""Times as large as its own seed that an input may be (chosen: time goes into changes, not into length; a table may
stand there twice). With three times the family's largest seed, inputs of the corpora became two to four times as long."""
_UNPACKED = 1e-3
"""Gigabytes that an input may have when unpacked (chosen: seven times the largest seed; the corpus had bombs of 80 MB, which
took two fifths of rocpd's time)."""
_COUNTED = 1000
"""Executions after which their number is written (chosen: a kill loses few)."""
_DATABASE = b"SQLite format 3"
_PAGE = 512
"""Bytes of a page of databases that are damaged, the fewest that SQLite has: a fifth of the size, so that more changes meet
what is read."""
_RECOGNISED = 4
"""One in so many inputs is recognised by what it holds; others are read as their seed's format. Chosen: all formats look at
it to recognise it, an eighth to a quarter of the time of a text, a third of that of a database. What lies next to others is of another
format, so that these are always recognised."""
_MEMORY = Path("/dev/shm")  # noqa: S108 # a folder of one's own is made in it
"""Files in memory, where there are some: writing to a disk takes as long as reading a small input."""


def _as_compiled() -> None:
    """Let loops that run as Python see arrays and numbers as compiled ones do: fields are attributes, sums are wide."""
    json_events.EVENT = np.dtype((np.record, json_events.EVENT))
    nodes_decode.NODE = np.dtype((np.record, nodes_decode.NODE))
    nodes_decode.TENSOR = np.dtype((np.record, nodes_decode.TENSOR))
    find_tensors = nodes_decode._find_tensors
    nodes_decode._find_tensors = lambda buffer, nodes, table: find_tensors(
        buffer, nodes.view(nodes_decode.NODE), table
    )
    json_events.TEXT_ID = np.int64(json_events.TEXT_ID)
    json_events.HAS_TS = np.uint8(json_events.HAS_TS)
    json_events.HAS_DUR = np.uint8(json_events.HAS_DUR)


if AS_PYTHON:
    _as_compiled()


def families() -> list[str]:
    """All packages of converters that have a seed."""
    return sorted({mutations.family_of(seed) for seed in seeds()})


def read(seed: Seed, data: bytes, folder: Path, *, is_known: bool) -> bool:
    """Recognise a damaged input, unless its format is known, and read it, alone; its events must balance.

    Returns
    -------
    bool
        Whether a reader was called: it was not refused before.

    Raises
    ------
    Exception
        Anything but a `ChopperError` of one line.
    """
    path = folder / seed.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    reached = False
    try:
        inventory = sources.find(
            [folder if seed.others else path], seed.format if is_known else None
        )
        for source in inventory.sources:
            chosen = registry.chosen_options(source.converter.reader, dict(seed.options))
            reached = True
            trace = source.converter.reader(list(source.paths), **chosen)
            mutations.require_balance(trace)
    except ChopperError as refused:
        if "\n" in str(refused):
            raise AssertionError(str(refused)) from refused
    return reached


class Target:
    """Run one input; the first byte chooses the seed that it is a change of.

    Parameters
    ----------
    family
        Package of converters.
    folder
        Where ``failed`` and ``counts.txt`` are: inputs that fail, one for each place in the sources, and
        how many were tried.
    until
        Time at which it ends, in seconds of `time.process_time`: of a processor, however busy the machine is.
    """

    def __init__(self, family: str, folder: Path, until: float) -> None:
        self.seeds = mutations.seeds_of(family)
        self.sound = [dense(seed.data) for seed in self.seeds]
        self._largest = [_GROWTH * len(data) for data in self.sound]
        self.family, self.until = family, until
        self.failed, self._counts = folder / "failed", folder / "counts.txt"
        self.failed.mkdir(parents=True, exist_ok=True)
        self.count = self.reached = 0
        self._written = {"": 0, "-read": 0}
        self._since = time.process_time()
        memory = _MEMORY if os.access(_MEMORY, os.W_OK) else None
        self._place = tempfile.TemporaryDirectory(prefix="chopper-fuzz-", dir=memory)
        tempfile.tempdir = self._place.name  # also of copies that readers make
        self._folders = [Path(self._place.name, str(number)) for number in range(len(self.seeds))]
        for seed, place in zip(self.seeds, self._folders, strict=True):
            for name, data in seed.others.items():
                (place / name).parent.mkdir(parents=True, exist_ok=True)
                (place / name).write_bytes(data)

    def __call__(self, data: bytes) -> None:
        """Try one input."""
        if not data:
            return
        self.count += 1
        which = data[0] % len(self.seeds)
        try:
            seed = self.seeds[which]
            is_known = not seed.others and self.count % _RECOGNISED > 0
            self.reached += read(seed, data[1:], self._folders[which], is_known=is_known)
        except Exception as error:  # noqa: BLE001 # whatever comes out is a finding
            self._keep(data, error)
        if self.count % _COUNTED == 0:
            self.write_count()
        if time.process_time() > self.until:
            self.write_count()
            each = (time.process_time() - self._since) / self.count
            sys.stdout.write(f"{self.family}: {self.count} executions, {each * 1e3:.1f} ms each\n")
            sys.stdout.flush()
            self._place.cleanup()
            os._exit(0)  # libFuzzer has no other way to end by time without its own report

    def changed(self, data: bytes, largest: int, number: int) -> bytes:
        """Damage an input as a person or a program would, or as libFuzzer does."""
        if data:
            largest = min(largest, 1 + self._largest[data[0] % len(self.seeds)])
        chance = random.Random(number)  # noqa: S311
        if not data or chance.random() < 1 / 2:
            return bytes(atheris.Mutate(data, largest))
        changes: tuple[Callable[[random.Random, bytes], bytes], ...] = mutations.CHANGES
        body = data[1:]
        return data[:1] + (chance.choice(changes)(chance, body) if body else body)[: largest - 1]

    def write_count(self) -> None:
        """Add what was tried, and what of it came to a reader, since the last time to the counts of all runs."""
        way = "python" if AS_PYTHON else "compiled"
        counts = read_counts(self._counts)
        for kind, count in {"": self.count, "-read": self.reached}.items():
            key = (self.family, way + kind)
            counts[key] = counts.get(key, 0) + count - self._written[kind]
            self._written[kind] = count
        lines = [f"{family} {way} {count}\n" for (family, way), count in sorted(counts.items())]
        self._counts.write_text("".join(lines))

    def _keep(self, data: bytes, error: Exception) -> None:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        name = f"{self.family}-{type(error).__name__}-{Path(frame.filename).stem}-{frame.lineno}"
        if not (self.failed / name).exists():
            (self.failed / name).write_bytes(data)
            sys.stdout.write(f"{name}: {str(error)[:200]}\n")
            sys.stdout.flush()


def read_counts(path: Path) -> dict[tuple[str, str], int]:
    """Read how many inputs were tried, by family and way; nothing if there is no such file."""
    lines = path.read_text().splitlines() if path.exists() else []
    return {(family, way): int(count) for family, way, count in map(str.split, lines)}


def confirm(folder: Path) -> None:
    """Say which of the kept inputs fail in reading with compiled loops, too."""
    for path in sorted((folder / "failed").iterdir()):
        data, own = path.read_bytes(), mutations.seeds_of(path.name.split("-")[0])
        made = mutations.Mutant(own[data[0] % len(own)], data[1:], path.name, -1)
        with tempfile.TemporaryDirectory() as place:
            try:
                sys.stdout.write(f"{path.name}: {mutations.outcome(made, Path(place))}\n")
            except AssertionError as error:
                sys.stdout.write(f"confirmed: {error}\n")


def keep(folder: Path, corpus: Path) -> None:
    """Keep of the corpus the shortest input of each outcome: what is refused, or which issues there are."""
    for family in families():
        outcomes: dict[str, Path] = {}
        for path in sorted((folder / family).iterdir(), key=lambda path: path.stat().st_size):
            if 1 < path.stat().st_size <= _LARGEST_KEPT:
                outcomes.setdefault(outcome(family, path.read_bytes()), path)
        for number, path in enumerate(list(outcomes.values())[:_KEPT]):
            (corpus / f"{family}-{number}").write_bytes(path.read_bytes())


def outcome(family: str, data: bytes) -> str:
    """Class and kind of what becomes of an input."""
    own = mutations.seeds_of(family)
    seed = own[data[0] % len(own)]
    with tempfile.TemporaryDirectory() as place:
        path = mutations.written(mutations.Mutant(seed, data[1:], "", -1), Path(place))
        try:
            trace = chopper_interop.read(path, **seed.options)
        except ChopperError as error:
            return f"{type(error).__name__} {error.message[:30]}"
    return " ".join(sorted({issue.code for issue in trace.meta.issues}))


def dense(data: bytes) -> bytes:
    """Return a database with the smallest pages; what is none stays as it is."""
    if not data.startswith(_DATABASE):
        return data
    with tempfile.TemporaryDirectory() as place:
        path = Path(place, "dense.db")
        path.write_bytes(data)
        with contextlib.closing(sqlite3.connect(path)) as base:
            base.execute(f"pragma page_size = {_PAGE}")
            base.execute("vacuum")
        return path.read_bytes()


def fuzz(family: str, folder: Path, seconds: float) -> None:
    """Fuzz one family for some time; this ends the process."""
    corpus = folder / family
    corpus.mkdir(parents=True, exist_ok=True)
    target = Target(family, folder, time.process_time() + seconds)
    for number, data in enumerate(target.sound):
        (corpus / f"seed{number}").write_bytes(bytes([number]) + data)
    largest = 1 + _GROWTH * max(map(len, target.sound))
    inputs.opened_by_name = contextlib.nullcontext  # no thread for a pipe that nobody puts there
    warnings.simplefilter("ignore")  # numpy's at overflows, which compiled loops do not have
    options = {
        "max_len": largest,
        "verbosity": 0,
        "len_control": 0,
        "artifact_prefix": f"{folder}/",
    }
    arguments = [sys.argv[0], *(f"-{name}={value}" for name, value in options.items()), str(corpus)]
    atheris.Setup(arguments, target, custom_mutator=target.changed)
    gc.freeze()  # what was imported is not gone through again with each collection
    with inputs.unpacking_at_most(_UNPACKED):
        atheris.Fuzz()


def main(folder: Path, seconds: float, chosen: list[str]) -> None:
    """Fuzz families one after the other, each in a child: libFuzzer ends the process."""
    for family in chosen or families():
        child = os.fork()
        if not child:
            fuzz(family, folder, seconds)
        if status := os.waitpid(child, 0)[1]:
            sys.stdout.write(f"{family}: ended by status {status}; see the lines before\n")


if __name__ == "__main__":
    if sys.argv[1] == "--confirm":
        confirm(Path(sys.argv[2]))
    elif sys.argv[1] == "--keep":
        keep(Path(sys.argv[2]), Path(sys.argv[3]))
    else:
        main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3:])

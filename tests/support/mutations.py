"""Sound inputs, damaged at random, and what must hold of whatever is read of them.

``python tests/support/mutations.py 100000`` tries so many and says what came out.
"""

from __future__ import annotations

import gzip
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from seeds import Seed, seeds

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.errors import ChopperError

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

Change = Callable[[random.Random, bytes], bytes]

CELLS = (
    b"", b"0", b"-1", b"nan", b"NaN", b"inf", b"-Infinity", b"null", b"None", b"N/A", b"1e999",
    b"9223372036854775808", b"-9223372036854775809", b"18446744073709551615", b"9" * 40, b"0x7f",
    b"1.5", b"1,5", b'"', b"'", b"\\", b"{}", b"[]", b"true", b"\xff\xfe", b"\x00", b"\xc3\xa9",
)  # fmt: skip
"""Texts that replace others."""


def truncated(chance: random.Random, data: bytes) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def flipped(chance: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 8))):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made)


def doubled(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    return b"".join(lines[: at + 1] + lines[at : at + chance.choice((1, 1, 5))] + lines[at + 1 :])


def without_a_line(chance: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def shuffled(chance: random.Random, data: bytes) -> bytes:
    """Lines in another order; brackets around them stay, for what stands behind is no part."""
    lines = data.splitlines(keepends=True)
    brackets = data[:1] in (b"[", b"{")
    keep = 1 if brackets else chance.choice((0, 1, 1, 1))
    rest, last = (lines[keep:-1], lines[-1:]) if brackets else (lines[keep:], [])
    chance.shuffle(rest)
    return b"".join([*lines[:keep], *rest, *last])


def inserted(chance: random.Random, data: bytes) -> bytes:
    at = chance.randrange(len(data) + 1)
    return data[:at] + chance.choice(CELLS) + data[at:]


def other_cell(chance: random.Random, data: bytes) -> bytes:
    """Replace the text between two marks."""
    marks = [i for i, byte in enumerate(data) if byte in b",:\n\t []"]
    if len(marks) < 2:
        return data
    at = chance.randrange(len(marks) - 1)
    return data[: marks[at] + 1] + chance.choice(CELLS) + data[marks[at + 1] :]


def encoded(chance: random.Random, data: bytes) -> bytes:
    text = data.decode("utf-8", "replace")
    how = chance.choice(("utf-16", "utf-16-be", "utf-8-sig", "latin-1", "crlf", "gzip", "cut gzip"))
    if how == "crlf":
        return data.replace(b"\n", b"\r\n")
    if how.endswith("gzip"):
        packed = gzip.compress(data, mtime=0)
        return packed[: chance.randrange(20, len(packed))] if how.startswith("cut") else packed
    mark = "\ufeff" if how == "utf-16-be" else ""
    return (mark + text).encode(how, "replace")


def twice(_chance: random.Random, data: bytes) -> bytes:
    return data + data


BINARY: tuple[Change, ...] = (truncated, flipped, flipped, inserted, twice)
CHANGES: tuple[Change, ...] = (
    *BINARY, doubled, without_a_line, shuffled, other_cell, other_cell, other_cell, encoded,
)  # fmt: skip


PART = 1000
"""So many are tried by one process at a time."""
COUNTED_OTHERWISE = {"bytes-after-end", "et-text-after-end"}
"""Issues of all that stands behind an end that came too early: no record there is counted alone."""


@dataclass(frozen=True)
class Mutant:
    """A damaged input.

    Parameters
    ----------
    seed
        What it was.
    data
        What it is.
    how
        What was done to it.
    intact
        How many of its records stand in it as they were; -1 if that cannot be said.
    """

    seed: Seed
    data: bytes
    how: str
    intact: int


def mutant(seed: Seed, number: int) -> Mutant:
    """One damaged input; the same for the same number."""
    chance = random.Random(f"{seed.format} {seed.name} {number}")  # noqa: S311
    data, applied = seed.data, []
    changes = CHANGES if seed.records else BINARY
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        change = chance.choice(changes)
        data = change(chance, data) if data else data
        applied.append(change.__name__)
    return Mutant(seed, data, ", ".join(applied), _intact(seed, data))


def _intact(seed: Seed, data: bytes) -> int:
    """Records that stand in it as lines of their own, each as often as in the seed at most."""
    if not seed.records:
        return -1
    for magic, codec in ((b"\xff\xfe", "utf-16"), (b"\xfe\xff", "utf-16")):
        if data.startswith(magic):
            data = data.decode(codec, "replace").encode()
    lines = {line.strip(b"\r").rstrip(b",") for line in data.split(b"\n")}
    return sum(record.rstrip(b",") in lines for record in seed.records)


def outcome(made: Mutant, folder: Path) -> str:
    """Outcome of reading it: "read", or the class of the error that refuses it.

    Raises
    ------
    AssertionError
        Something else than a `ChopperError` came out, or the count of its events is wrong.
    """
    try:
        trace = ci.read(written(made, folder), **made.seed.options)
    except ChopperError as refused:
        if "\n" in str(refused):
            raise AssertionError(f"{made.how}: several lines: {refused}") from refused
        return type(refused).__name__
    except Exception as error:
        raise AssertionError(f"{made.how}: {type(error).__name__}: {error}") from error
    require_balance(trace, made.how)
    codes = {issue.code for issue in trace.meta.issues}
    if made.intact >= 0 and not made.seed.others and not codes & COUNTED_OTHERWISE:
        events = sum(source.events for source in trace.meta.sources)
        assert events >= made.intact, f"{made.how}: {made.intact} records intact, {events} events"
    return "read"


def written(made: Mutant, folder: Path) -> Path:
    """Write a damaged input and what lies next to it; what is to be read."""
    for name, data in {**made.seed.others, made.seed.name: made.data}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder if made.seed.others else folder / made.seed.name


def require_balance(trace: Trace, how: str = "") -> None:
    """Raise `AssertionError` unless each event is a node or is counted."""
    for source in trace.meta.sources:
        issues = [i for i in trace.meta.issues if i.events and i.source == source.path]
        counted = sum(issue.count for issue in issues)
        assert source.events == source.nodes + counted, f"{how}: {source}: {issues}"


def family_of(seed: Seed) -> str:
    """Package of converters that reads a seed."""
    return str(registry.converter(seed.format).read).split(".")[2]


def seeds_of(family: str) -> list[Seed]:
    """Seeds that a package of converters reads."""
    return [seed for seed in seeds() if family_of(seed) == family]


def tried(numbers: range, failed: Path) -> Counter[str]:
    """Outcomes of so many, spread over all seeds; those that fail are kept and named."""
    every = seeds()
    outcomes: Counter[str] = Counter()
    for number in numbers:
        seed = every[number % len(every)]
        made = mutant(seed, number // len(every))
        with tempfile.TemporaryDirectory() as folder:
            try:
                outcomes[outcome(made, Path(folder))] += 1
            except AssertionError as error:
                outcomes["failed"] += 1
                (failed / f"{number}_{seed.name.replace('/', '_')}").write_bytes(made.data)
                message = str(error)[:600]
                sys.stdout.write(f"{seed.format} {seed.name} #{number // len(every)}: {message}\n")
                sys.stdout.flush()
    return outcomes


def main(count: int) -> None:
    """Try so many on all cores and say what came out."""
    failed = Path(tempfile.mkdtemp(prefix="mutants-"))
    parts = [range(i, min(i + PART, count)) for i in range(0, count, PART)]
    outcomes: Counter[str] = Counter()
    with ProcessPoolExecutor() as pool:
        for result in pool.map(tried, parts, [failed] * len(parts)):
            outcomes += result
    sys.stdout.write(f"{count} of {len(seeds())} seeds: {dict(outcomes)}; failed: see {failed}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]))

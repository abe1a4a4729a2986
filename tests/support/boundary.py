"""Files in whose cells numbers stand that no column can hold, and what readers owe to them."""

import random
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import chopper_interop as ci
from chopper_interop.errors import ChopperError
from chopper_interop.testing import check_trace

_POWERS = (31, 32, 62, 63, 64)
NUMBERS = sorted({sign * 2**p + d for p in _POWERS for sign in (1, -1) for d in (-1, 0, 1)})
"""Numbers at the ends of what integers of 32 and 64 bits hold."""
CELLS = [
    *(str(number) for number in (*NUMBERS, 10**30, -(10**30))),
    *("9e999999999", "1e308", "-1e308", "9" * 5000, "-1", "0", "nan", "inf", "-inf"),
    *("", "x", "N/A", '"', '""', '"a""b"', "\0", "\N{SUPERSCRIPT TWO}", "Agent 99999999999"),
    *(f'"Agent {number}"' for number in (2**31, 2**63 - 1, 2**64 - 1)),
]
"""Texts that are put into cells of CSV."""
VALUES = [
    *(str(number) for number in (*NUMBERS, 10**30, -(10**30))),
    *("9e999999999", "1e308", "9" * 5000, "NaN", "Infinity", "null", "[]", "{}", '"N/A"', '"x"'),
    *('""', '"18446744073709551615"', '"\\u0000"', '"\\u00b2"', f'"{"9" * 5000}"'),
]
"""Texts that are put into the place of values of JSON."""

_CELL = re.compile(r'"[^"\n]*"|(?<=[,\n])[^,"\n]*(?=[,\n])|[^,"\n]+')
_VALUE = re.compile(r'(?<=[:\[,])\s*(?:-?\d[\d.eE+-]*|"(?:[^"\\]|\\.)*"(?!\s*:))')


def garbled_csv(text: str, cases: int, seed: int) -> Iterator[str]:
    """A CSV text again and again, each time with other values in one to three of its cells."""
    header, _, body = text.partition("\n")
    for body_now in _garbled(f"\n{body}", _CELL, CELLS, cases, seed):
        yield header + body_now


def garbled_json(text: str, cases: int, seed: int) -> Iterator[str]:
    """The same with values of JSON."""
    return _garbled(text, _VALUE, VALUES, cases, seed)


def _garbled(
    text: str, place: re.Pattern[str], values: list[str], cases: int, seed: int
) -> Iterator[str]:
    chance = random.Random(seed)  # noqa: S311
    places = [match.span() for match in place.finditer(text)]
    for _ in range(cases):
        now = text
        for start, stop in sorted(chance.sample(places, chance.choice([1, 1, 2, 3])), reverse=True):
            now = now[:start] + chance.choice(values) + now[stop:]
        yield now


def assert_held(path: Path, text: str, **options: object) -> ci.Trace | None:
    """A file is read to a whole trace, or refused in one line; nothing else may come of it."""
    path.write_text(text, encoding="utf-8")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trace = ci.read(path, **options)
        check_trace(trace)
    except ChopperError as error:
        return None if "\n" not in str(error) else pytest.fail(f"several lines: {error}")
    except Exception as error:
        raise AssertionError(f"{error!r} of {text!r}") from error
    return trace

"""Numbers and ranges of numbers, as options name ranks and steps: ``0,4-7``."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence

from chopper_interop.errors import OptionError

_MAX_LENGTH = 1_000_000
"""Longest range of an option. Chosen: far beyond any job, and small enough to be listed at once."""
_NUMBERS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")


def parse(option: str, text: str) -> list[int]:
    """Parse numbers and ranges of numbers.

    Parameters
    ----------
    option
        Name of the option, for messages.
    text
        Its value.

    Returns
    -------
    list of int
        Each number once, ascending.

    Raises
    ------
    OptionError
        It is written otherwise, or a range goes backwards or is too long.
    """
    if not _NUMBERS.fullmatch(text):
        words = ("each",) if option == "steps" and text != "each" else ()
        near = difflib.get_close_matches(text, words, 1)
        hint = f"did you mean {near[0]!r}?" if near else None
        raise OptionError(f"{option}={text}: write numbers and ranges, as 0,4-7", hint=hint)
    numbers: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        length = int(last or first) - int(first)
        if length < 0:
            hint = f"write {last}-{first}"
            raise OptionError(f"{option}={text}: {part} goes backwards", hint=hint)
        if length > _MAX_LENGTH:
            raise OptionError(f"{option}={text}: that is too many")
        numbers.update(range(int(first), int(last or first) + 1))
    return sorted(numbers)


def describe(numbers: Iterable[int]) -> str:
    """Write ascending numbers as an option does; "none" of none.

    Examples
    --------
    >>> describe([0, 1, 2, 3, 6])
    '0-3,6'
    >>> describe([])
    'none'
    """
    return ",".join(texts(numbers)) or "none"


def texts(numbers: Iterable[int]) -> list[str]:
    """Each run of ascending numbers as text: ``0-3``, ``6``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(a) if a == b else f"{a}-{b}" for a, b in runs]


def named(noun: str, numbers: Sequence[int]) -> str:
    """Name what has these ascending numbers.

    Examples
    --------
    >>> named("step", [4]), named("rank", [0, 1, 2, 5])
    ('step 4', 'ranks 0-2,5')
    """
    return f"{noun}{'s' * (len(numbers) > 1)} {describe(numbers)}"

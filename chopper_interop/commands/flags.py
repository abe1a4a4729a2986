"""Values that are given to options which take none, such as a file to ``--json``."""

from __future__ import annotations

import argparse
import itertools
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from chopper_interop.errors import ChopperError, ReadError, UnknownFormatError

if TYPE_CHECKING:
    from collections.abc import Sequence

_REMEDIES = {
    "--json": "; to write that file: --json > {value}",
    "--schema": "; to write that file: --schema > {value}",
    "--anonymise": "; a key is given by --anonymise-key {value}",
}
_EXPLICIT = re.compile(r"argument (?:-\w/)?(--[\w-]+): ignored explicit argument '(.*)'")
"""Message of argparse for ``--json=FILE``."""
_QUOTED = re.compile(r"'(.*?)'")


class Parser(argparse.ArgumentParser):
    """Parser whose errors say how to get what the value of an option without one was meant for."""

    def error(self, message: str) -> NoReturn:
        """Print the usage and an error, and exit."""
        match = _EXPLICIT.fullmatch(message)
        super().error(_remedy(*match.groups()) if match else message)


def add_remedy(
    parser: argparse.ArgumentParser, arguments: Sequence[str], error: BaseException
) -> None:
    """Have an error about a text that names no input say so if the text is behind an option without value."""
    if not isinstance(error, UnknownFormatError | ReadError):
        return
    flags = {text for a in parser._actions if a.nargs == 0 for text in a.option_strings}  # noqa: SLF001 # argparse has no public list
    for flag, value in itertools.pairwise(arguments):
        if flag in flags and _is_about(error, value):
            error.hint = "; ".join(filter(None, (_remedy(flag, value), error.hint)))
            return


def _is_about(error: ChopperError, value: str) -> bool:
    """True if an error is that a text is neither an input nor an analysis."""
    if isinstance(error, ReadError) and Path(value).exists():
        return False
    names = [str(error.path), *_QUOTED.findall(error.message)]
    return value in names or str(Path(value)) in names


def _remedy(flag: str, value: str) -> str:
    return f"{flag} takes no value" + _REMEDIES.get(flag, "").format(value=shlex.quote(value))

"""Errors of the command line: one line each, with the option or argument that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import itertools
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from chopper_interop.errors import ChopperError, ReadError, UnknownFormatError, one_line

_REMEDIES = {
    "--json": "; to write that file: --json > {value}",
    "--schema": "; to write that file: --schema > {value}",
    "--anonymise": "; a key is given by --anonymise-key {value}",
}
_EXPLICIT = re.compile(r"argument (?:-\w/)?(--[\w-]+): ignored explicit argument '(.*)'")
"""Message of argparse for ``--json=FILE``."""
_QUOTED = re.compile(r"'(.*?)'")


_UNKNOWN = re.compile(r"unrecognized arguments: (--[\w-]+).*", re.DOTALL)
"""Message of argparse for unknown options."""
_ALIKE = 0.7
"""Similarity by difflib from which an option is suggested (chosen: one wrong letter of five is above it)."""


class Parser(argparse.ArgumentParser):
    """Parser whose errors are one line that suggests the right option or form."""

    def error(self, message: str) -> NoReturn:
        """Print an error and exit with status 2."""
        if match := _EXPLICIT.fullmatch(message):
            message = _remedy(*match.groups())
        elif match := _UNKNOWN.fullmatch(message):
            options = [o for o in self._option_string_actions if o.startswith("--")]
            near = difflib.get_close_matches(match[1], options, 1, _ALIKE)
            message += f" (did you mean {near[0]}?)" if near else ""
        self.exit(2, f"{self.prog}: error: {one_line(message)}; --help lists the options\n")


def add_remedy(
    parser: argparse.ArgumentParser, arguments: Sequence[str], error: BaseException
) -> None:
    """Add a hint to an error about an input if the input follows an option that takes no value."""
    if not isinstance(error, UnknownFormatError | ReadError):
        return
    flags = {text for a in parser._actions if a.nargs == 0 for text in a.option_strings}  # noqa: SLF001 # argparse has no public list
    for flag, value in itertools.pairwise(arguments):
        if flag in flags and _is_about(flag, error, value):
            error.hint = "; ".join(filter(None, (_remedy(flag, value), error.hint)))
            return


def _is_about(flag: str, error: ChopperError, value: str) -> bool:
    """True if an error says that no input or analysis has this name, or that a file (an older output?) has no known format."""
    may_be_output = flag in _REMEDIES and isinstance(error, UnknownFormatError)
    is_input = value == "-" or _may_be_there(value)
    if is_input and not may_be_output:
        return False
    names = [str(error.path), *_QUOTED.findall(error.message)]
    return value in names or str(Path(value)) in names


def _may_be_there(path: str) -> bool:
    """True for a file or folder, and where that can't be seen."""
    try:
        os.stat(path)  # noqa: PTH116 # a text that need be no path
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _remedy(flag: str, value: str) -> str:
    return f"{flag} takes no value" + _REMEDIES.get(flag, "").format(value=shlex.quote(value))

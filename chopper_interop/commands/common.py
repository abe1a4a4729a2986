"""What the commands have in common: how they begin and end, and options that several take."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from chopper_interop import __version__
from chopper_interop.errors import ChopperError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

INTERRUPTED = 130
"""Exit status after Ctrl-C, as of shells."""

OPTION_HELP = "an option of a reader or writer; may be given several times"


def leave(status: int) -> NoReturn:
    """End at once: to take LLVM and Arrow down politely costs a fifth of a second."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError, ValueError):  # nobody listens, or it is closed
            stream.flush()
    os._exit(status)


def guarded(
    command: Callable[[argparse.Namespace], int],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
) -> int:
    """Run a command; a fault is one line on stderr and an exit status, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names are of any alphabet, terminals are not
            stream.reconfigure(errors="backslashreplace")
    given = parser.parse_intermixed_args(arguments)  # paths may stand among options
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return command(given)
    except ChopperError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_status
    except BrokenPipeError:
        sys.stderr.close()
        return INTERRUPTED
    except KeyboardInterrupt:
        print(f"{parser.prog}: interrupted, nothing half-written is left", file=sys.stderr)
        return INTERRUPTED


def _interrupt(_signal: int, _frame: Any) -> NoReturn:
    raise KeyboardInterrupt


def output(text: str, to_format: str | None) -> tuple[str, str | None]:
    """Path and format of an output, which may be told as FORMAT:PATH."""
    from chopper_interop import registry

    name, colon, path = text.partition(":")
    if not colon or not path or not re.fullmatch(r"[\w-]{2,}", name):  # or it is a drive
        return text, to_format
    if name not in registry.formats():
        raise UsageError(
            f"-o {text}: there is no format {name!r}",
            hint=f"--formats lists them; ./{text} is a path",
        )
    return path, name


def options(given: list[str]) -> dict[str, str]:
    """Options that were given as ``name=value``."""
    options = {}
    for option in given:
        name, equals, value = option.partition("=")
        if not equals:
            raise UsageError(f"-O {option}: write it as name=value")
        options[name.replace("-", "_")] = value
    return options


def options_for(function: Any, options: dict[str, str]) -> dict[str, str]:
    """Those of the options that a function takes."""
    from chopper_interop import registry

    return {n: v for n, v in options.items() if n in registry.options(function)}


def parser(name: str, text: str, more: str = "") -> argparse.ArgumentParser:
    """What all commands understand."""
    parser = argparse.ArgumentParser(
        prog=name,
        description=text,
        epilog=more,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"chopper-interop {__version__}")
    parser.add_argument(
        "-q",
        "--quiet",
        action="store_true",
        help="say nothing but errors and, in one line, what was lost",
    )
    return parser


def add_reading(parser: argparse.ArgumentParser) -> None:
    """What all that read understand."""
    parser.add_argument(
        "--map-device",
        action="append",
        default=[],
        metavar="[SOURCE:]N[-M]=DEVICE|rankR",
        help="what a source's GPU N is, where sources do not tell: a device of the trace, or that "
        "of a rank; SOURCE is a format or a pattern of files; repeatable",
    )
    parser.add_argument(
        "--clock-offset",
        action="append",
        default=[],
        metavar="[SOURCE:]SECONDS|...ns|...ms",
        help="what is added to a source's times to get those of the trace, over what is found; "
        "SOURCE is a format, a pattern of files or rankN, without it all telemetry; write "
        "--clock-offset=-500ms if it begins with a minus; repeatable",
    )
    parser.add_argument(
        "--on-loss",
        choices=("ignore", "warn", "error"),
        default="warn",
        help="what to do if something of the input is lost (default: warn)",
    )

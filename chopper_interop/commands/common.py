"""Shared parts of the commands: start and end of a process, and options of several commands."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from chopper_interop import __version__
from chopper_interop.commands import completion, flags, interrupts
from chopper_interop.commands.interrupts import INTERRUPTED
from chopper_interop.errors import (
    READ_FEWER,
    READ_LESS,
    ChopperError,
    InternalError,
    ReadError,
    TooLargeError,
    TooLittleMemoryError,
    UsageError,
    WriteError,
    is_beyond_columns,
    is_short_of_memory,
    one_line,
    raise_interrupt,
    text_of,
)

if TYPE_CHECKING:
    from chopper_interop.pipeline import WriteTarget
    from chopper_interop.sharing.stage import Sharing

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Errors of writing to a stream whose disk takes no more; those of files name the file."""
_UNREACHABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP, errno.ENAMETOOLONG, errno.ESTALE)
"""Errors of looking at a path that are no defect; before Python 3.12 ``Path.exists`` raises some of them."""


def exit_now(status: int) -> NoReturn:
    """End the process; of all finalizers only those of temporary files run.

    Those of LLVM and Arrow take a fifth of a second.
    """
    interrupts.end()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # the reader is gone, or it is closed
            stream.flush()
    for name in ("archives", "temporary"):
        if module := sys.modules.get(f"chopper_interop.io.{name}"):
            module.remove_all()
    os._exit(status)


def run_command(
    command: Callable[[argparse.Namespace], int],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
) -> int:
    """Run a command and return its exit status; an error is one line on stderr, never a traceback."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names are Unicode, terminals may not be
            stream.reconfigure(errors="backslashreplace")
    try:
        interrupts.handle()
        return _run_or_show_error(command, parser, arguments)
    except BrokenPipeError:
        sys.stderr.close()
        return INTERRUPTED
    except KeyboardInterrupt as error:
        by = "" if interrupts.has_come() else f" by {_raised_at(error)}, without a signal"
        interrupts.end()
        text = f"interrupted{by}; each output is complete, or as it was before"
        print(f"{parser.prog}: {one_line(text)}", file=sys.stderr)
        return INTERRUPTED


def _raised_at(error: BaseException) -> str:
    """Name the place that raised an error: a plug-in that interrupts the command by itself cannot be known otherwise."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"line {frame.lineno} of {frame.filename}"


def _run_or_show_error(
    command: Callable[[argparse.Namespace], int],
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
) -> int:
    debug = False
    try:
        if shell := completion.shell_of(arguments):
            print(completion.script(parser, shell))
            return 0
        args = parser.parse_intermixed_args(arguments)  # paths may stand among options
        debug = args.debug
        _refuse_empty(parser, args)
        return _run(command, args)
    except (BrokenPipeError, KeyboardInterrupt, SystemExit):  # SystemExit: of argparse
        raise
    except BaseException as error:  # noqa: BLE001 # the last resort: a defect is one line as well
        raise_interrupt(error)
        flags.add_remedy(parser, sys.argv[1:] if arguments is None else arguments, error)
        return show_error(parser.prog, error, debug=debug)


def show_error(
    program: str, error: BaseException, *, subject: str = "", debug: bool = False
) -> int:
    """Print one line on an error, with the version if it is a defect; return its exit status.

    Parameters
    ----------
    program
        Name of the command.
    error
        What was raised.
    subject
        What it is about, if the error does not say it.
    debug
        Print the traceback before.
    """
    if debug:
        details = error.details if isinstance(error, ChopperError) else ""
        if details:
            print(details, file=sys.stderr)
        traceback.print_exception(error, chain=not details)
    shown = _as_shown(error)
    version = f" {__version__}" if isinstance(shown, InternalError) else ""
    text = one_line(f"{subject}: {shown}" if subject else str(shown))
    print(f"{program}{version}: error: {text}", file=sys.stderr)
    return shown.exit_status


def _run(command: Callable[[argparse.Namespace], int], args: argparse.Namespace) -> int:
    """Run a command within its limits; what it printed has left the process then, or that fails."""
    with _limits(args):
        status = command(args)
    sys.stdout.flush()
    return status


def _refuse_empty(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Raise `UsageError` for an option whose value is empty, as that of a variable of a script that is not set.

    Taken for no value it would write nothing, or read more than was meant.
    """
    for action in parser._actions:  # noqa: SLF001 # argparse has no public list of them
        value = getattr(args, action.dest, None) if action.option_strings else None
        values = value if isinstance(value, list) else [value]
        if "" in values or [] in values:  # argparse makes [] of "--"
            raise UsageError(f"{action.option_strings[-1]}: its value is empty")


def _open_closed_streams() -> None:
    """Have what is printed to a stream that was closed before the start go nowhere."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 # until the end
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123 # same


_UNMAPPED = "failed to map segment"
"""The dynamic linker's words for a library that has no room in memory; those of LLVM's wrapper hide them."""


def _as_shown(error: BaseException) -> ChopperError:
    if isinstance(error, ChopperError):
        return error
    if isinstance(error, OSError) and error.errno in _FULL and error.filename is None:
        return WriteError(f"the standard output cannot be written: {error.strerror}")
    if isinstance(error, OSError) and error.errno in _UNREACHABLE and error.filename is not None:
        return ReadError(f"cannot be opened: {error.strerror}", path=error.filename)
    if is_short_of_memory(error) or any(
        _UNMAPPED in text_of(e) for e in (error, error.__context__) if e
    ):
        return TooLittleMemoryError("there is too little memory", hint=READ_LESS)
    if is_beyond_columns(error):
        return TooLargeError("there is more text than a column can hold", hint=READ_FEWER)
    return InternalError(error, "the command")


@contextlib.contextmanager
def _limits(args: argparse.Namespace) -> Iterator[None]:
    """Set how large compressed files may be when unpacked, what memory reading may take, and who reads."""
    names = ("max_unpacked", "max_memory", "jobs", "scheduler")
    unpacked, gigabytes, jobs, scheduler = (getattr(args, name, None) for name in names)
    if (unpacked, gigabytes, jobs, scheduler) == (None,) * 4:
        yield  # help and errors of usage need not import numpy
        return
    from chopper_interop.io import inputs, memory
    from chopper_interop.reading.workers import reading_by

    workers = scheduler if jobs is None else jobs
    with inputs.unpacking_at_most(unpacked), memory.at_most(gigabytes), reading_by(workers):
        yield


def parse_output(text: str, to_format: str | None) -> WriteTarget:
    """Resolve the argument of ``-o``, PATH or FORMAT:PATH, to a path and the converter for it."""
    from chopper_interop import pipeline, registry
    from chopper_interop.io import inputs

    name, colon, path = text.partition(":")
    # a single letter is a drive
    if (
        not colon
        or inputs.is_url(text)
        or (not path and name not in registry.formats())
        or not re.fullmatch(r"[\w-]{2,}", name)
    ):
        return pipeline.write_target(text, to_format)
    if name not in registry.formats():
        raise UsageError(
            f"-o {text}: there is no format {name!r}",
            hint=f"chopper-convert --formats lists them; write ./{text} if it is a path",
        )
    return pipeline.write_target(path, name)


def parse_options(texts: list[str]) -> dict[str, str]:
    """Parse arguments of ``-O``, each written ``name=value``; hyphens in names become underscores."""
    options: dict[str, str] = {}
    for option in texts:
        name, equals, value = option.partition("=")
        if not equals:
            raise UsageError(f"-O {option}: write it as name=value")
        name = name.replace("-", "_")
        if options.setdefault(name, value) != value:
            raise UsageError(f"-O {option}: {name} was {options[name]} before (give each once)")
    return options


def sharing(args: argparse.Namespace) -> Sharing:
    """Return what outputs keep of the place where the sources were recorded."""
    from chopper_interop.sharing.stage import Sharing

    return Sharing.chosen(keep_environment=args.keep_environment, anonymise=anonymise(args))


def anonymise(args: argparse.Namespace) -> bool | str:
    """Return the key of ``--anonymise-key``, else if ``--anonymise`` was given."""
    key: str | None = args.anonymise_key
    return bool(args.anonymise) if key is None else key


def base_parser(name: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """Make a parser with the options of all commands."""
    parser = flags.Parser(
        prog=name,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"chopper-interop {__version__}")
    parser.add_argument(
        "-q", "--quiet", action="store_true", help="print only errors and one line on what was lost"
    )
    parser.add_argument("--debug", action="store_true", help="show where an internal error is")
    completion.add_option(parser)
    return parser


def add_conversion_options(parser: argparse.ArgumentParser, *, output: str, option: str) -> None:
    """Add the options of commands that read profiles and write traces.

    Parameters
    ----------
    parser
        The parser.
    output, option
        Help texts of ``-o`` and ``-O``.
    """
    parser.add_argument(
        "-o", "--output", action="append", default=[], metavar="[FORMAT:]PATH", help=output
    )
    parser.add_argument("--from", dest="from_format", help="format of all sources")
    parser.add_argument("--to", help="format of all outputs, whatever their endings")
    parser.add_argument(
        "-O", dest="option", action="append", default=[], metavar="NAME=VALUE", help=option
    )
    parser.add_argument(
        "--map-device",
        action="append",
        default=[],
        metavar="[SOURCE:]N[-M]=DEVICE|rankR",
        help="map GPU N of a source, where the sources do not identify it, to a device of the trace or "
        "to the GPU of a rank; SOURCE is a format or a pattern of files; repeatable",
    )
    parser.add_argument(
        "--clock-offset",
        action="append",
        default=[],
        metavar="[SOURCE:]SECONDS|...ns|...ms",
        help="time to add to a source's times to get the trace's, instead of the detected offset; "
        "SOURCE is a format, a pattern of files or rankN (default: all telemetry); write "
        "--clock-offset=-500ms if it begins with a minus; repeatable",
    )
    add_unpacking_option(parser)
    _add_machine_options(parser)
    parser.add_argument(
        "--run",
        metavar="N|all",
        help="which run or window to read where the sources hold several, by its number in the list "
        "that is printed without it; all joins windows of one run that follow each other",
    )
    parser.add_argument(
        "--keep-environment",
        action="store_true",
        help="keep command lines, environment variables, and names of users, hosts and folders that "
        "the sources hold; without it they are left out of everything that is written",
    )
    parser.add_argument(
        "--anonymise",
        action="store_true",
        help="replace names of the program (functions, modules, ranges, own kernels, files, hosts, "
        "process groups) by aliases; times, shapes and names of libraries stay",
    )
    parser.add_argument(
        "--anonymise-key",
        metavar="KEY",
        help="anonymise with this key, by which equal names have equal aliases in several outputs; "
        "keep it secret (default: a random key, which nobody knows)",
    )
    parser.add_argument(
        "--on-loss",
        choices=("ignore", "warn", "error"),
        default="warn",
        help="what to do if part of the input is lost (default: warn)",
    )


def add_selection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that read some ranks or training steps alone."""
    parser.add_argument(
        "--ranks",
        help="read only these ranks: 0,4-7; files that state another rank are left unread",
    )
    parser.add_argument(
        "--steps",
        help="read only these training steps: 10-12; what is of others is not kept",
    )


def _gigabytes(text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of gigabytes (write 4 or 0.5)"
        ) from error


def _add_machine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what of machines reading may use; results do not depend on them."""
    parser.add_argument(
        "--max-memory",
        type=_gigabytes,
        metavar="GB",
        help="memory that reading may need, as estimated from the sizes of the files (default: what is "
        "available); of a job that needs more, ranks are kept in files under TMPDIR",
    )
    workers = parser.add_mutually_exclusive_group()
    workers.add_argument(
        "--jobs", type=int, metavar="N", help="read ranks in N processes (default: in threads)"
    )
    workers.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="read ranks by the workers of a dask scheduler (tcp://HOST:8786) that can open the same files",
    )


def add_unpacking_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read files, which may be compressed."""
    parser.add_argument(
        "--max-unpacked",
        type=_gigabytes,
        metavar="GB",
        help="size that a compressed file may have when unpacked (default: 200 times its own)",
    )

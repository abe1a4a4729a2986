"""The commands: ``chopper-convert``, ``chopper-analyze``, ``chopper-view``, ``chopper-check``, ``chopper-record``.

Nothing heavy is imported before the arguments are parsed, so that help appears at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from chopper_interop.commands import analyze, check, common, convert, record, view
from chopper_interop.commands.interrupts import INTERRUPTED

__all__ = [
    "INTERRUPTED", "PARSERS", "analyze_main", "check_main", "convert_main", "record_main", "view_main",
]  # fmt: skip

PARSERS = {
    "chopper-analyze": analyze.build_parser,
    "chopper-check": check.build_parser,
    "chopper-convert": convert.build_parser,
    "chopper-record": record.build_parser,
    "chopper-view": view.build_parser,
}
"""Functions that make the parser of each command."""


def convert_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-convert`` and return its exit status."""
    return common.run_command(convert.run, convert.build_parser(), arguments)


def analyze_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-analyze`` and return its exit status."""
    return common.run_command(analyze.run, analyze.build_parser(), arguments)


def check_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-check`` and return its exit status."""
    return common.run_command(check.run, check.build_parser(), arguments)


def record_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-record`` and return the exit status of the program that it runs."""
    texts = list(sys.argv[1:] if arguments is None else arguments)
    own, command = record.split_arguments(texts)
    parser = record.build_parser()
    parser.set_defaults(command=command)
    return common.run_command(record.run, parser, own)


def view_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-view`` and return its exit status."""
    return common.run_command(view.run, view.build_parser(), arguments)

"""The commands: ``chopper-convert``, ``chopper-analyze``, ``chopper-view``, ``chopper-check``, ``chopper-record``.

Nothing heavy is imported before the arguments are parsed, so that help appears at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.commands import analyze, common, record, view
from chopper_interop.commands.interrupts import INTERRUPTED
from chopper_interop.errors import UsageError, one_line
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    import argparse

_MAX_TOLERANCE = 100
"""Percent of a rank's span; more would find nothing."""

__all__ = [
    "INTERRUPTED", "analyze_main", "check_main", "convert_main", "record_main", "view_main",
]  # fmt: skip


def convert_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-convert`` and return its exit status."""
    return common.run_command(_convert, _convert_parser(), arguments)


def analyze_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-analyze`` and return its exit status."""
    return common.run_command(analyze.run, analyze.build_parser(), arguments)


def check_main(arguments: Sequence[str] | None = None) -> int:
    """Run ``chopper-check`` and return its exit status."""
    return common.run_command(_check, _check_parser(), arguments)


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


def _convert(args: argparse.Namespace) -> int:
    from chopper_interop import pipeline
    from chopper_interop.commands import console

    if args.formats:
        console.show_formats()
        return 0
    if args.demo:
        return _demo(args, common.parse_options(args.option))
    if not args.source or not args.output:
        raise UsageError("name the input and, with -o, at least one output", hint="see --help")
    conversion = pipeline.plan_conversion(
        args.source,
        [common.parse_output(text, args.to) for text in args.output],
        from_format=args.from_format,
        name=args.job,
        options=common.parse_options(args.option),
        map_device=args.map_device,
        clock_offset=args.clock_offset,
        run=args.run,
        ranks=args.ranks,
        on_loss=args.on_loss,
        keep_environment=args.keep_environment,
        anonymise=common.anonymise(args),
    )
    console.show_inventory(conversion.inventory, quiet=args.quiet)
    console.announce_compilation()
    with console.show_progress(quiet=args.quiet):
        trace, issues = conversion.run(keeps_arguments=False)
    log = IssueLog()
    log.extend(issues)
    console.show_reading(trace, log, on_loss=args.on_loss, quiet=args.quiet)
    if not args.quiet:
        console.show_written(trace, conversion.targets)
    pipeline.refuse_losses(log, args.on_loss)
    pipeline.refuse_other_runs(log, args.on_loss)
    return 0


def _demo(args: argparse.Namespace, options: dict[str, str]) -> int:
    from chopper_interop import registry
    from chopper_interop.commands import console
    from chopper_interop.demo import make_demo

    if args.source or args.output:
        raise UsageError("--demo writes a sample job and takes no input or output")
    for option in registry.unknown_options([make_demo], options):
        hint = registry.similar_option(option, [make_demo])
        raise UsageError(f"-O {option}: --demo has no such option", hint=hint)
    console.announce_compilation()
    folder = make_demo(Path(args.demo), **registry.chosen_options(make_demo, options))
    if not args.quiet:
        shown = one_line(str(folder))
        print(
            f"Wrote a sample job to {shown}. Next:\n"
            f"  chopper-convert {shown} -o {shown}/job.pftrace -o {shown}/et/",
            file=sys.stderr,
        )
    return 0


def _check(args: argparse.Namespace) -> int:
    from chopper_interop import sources
    from chopper_interop.commands import console
    from chopper_interop.converters.chakra import check
    from chopper_interop.io import outputs

    if not 0 <= args.tolerance <= _MAX_TOLERANCE:
        raise UsageError(f"--tolerance {args.tolerance:g}: give 0 to {_MAX_TOLERANCE} percent")
    sources.to_path(args.prefix)  # refuses what can't be a name
    sources.to_path(f"{args.prefix}.0.et")
    jobs = check.jobs_at(args.prefix)
    outputs.require_finished(jobs[0].parent)
    passes = True
    for prefix in jobs:
        findings = check.check(prefix, args.tolerance / 100)
        console.show_findings(findings, None if len(jobs) == 1 else prefix, quiet=args.quiet)
        passes = passes and findings.passes
    return 0 if passes else 1


def _convert_parser() -> argparse.ArgumentParser:
    parser = common.base_parser(
        "chopper-convert",
        "Join the profiles of a GPU training job and write them for other tools.",
        "examples:\n"
        "  chopper-convert RUN/ -o job.pftrace            for ui.perfetto.dev\n"
        "  chopper-convert RUN/ -o et/ -O mode=gpu        Chakra ETs for a simulator\n"
        "  chopper-convert rank*.json.gz -o job.parquet   tables for your own analyses\n"
        "  chopper-convert --demo sample/                 a sample job to try it on\n",
    )
    parser.add_argument("source", nargs="*", help="files and folders of one job")
    common.add_conversion_options(
        parser,
        output="file or folder to write; the folder around it is made if it is missing, not two of them; "
        "repeatable",
        option="an option of a reader or writer; repeatable",
    )
    common.add_ranks_option(parser)
    parser.add_argument(
        "--job", help="name of the job (default: name of the source, or of the folder of several)"
    )
    parser.add_argument("--formats", action="store_true", help="list formats and their options")
    parser.add_argument("--demo", metavar="DIR", help="write a sample job's files into DIR")
    return parser


def _check_parser() -> argparse.ArgumentParser:
    parser = common.base_parser(
        "chopper-check",
        "Check that a simulator can run these Chakra ETs to the end (exit status 0 if so).",
        "examples:\n"
        "  chopper-check et/         checks each job in the folder\n"
        "  chopper-check et/job      checks et/job.0.et, et/job.1.et, …\n",
    )
    parser.add_argument(
        "prefix", help="folder of ETs, or path of one job's without the ending .RANK.et"
    )
    common.add_unpacking_option(parser)
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.5,
        metavar="PERCENT",
        help="how far a rank's end may be from its measured one (default: 0.5)",
    )
    return parser


PARSERS = {
    "chopper-analyze": analyze.build_parser,
    "chopper-check": _check_parser,
    "chopper-convert": _convert_parser,
    "chopper-record": record.build_parser,
    "chopper-view": view.build_parser,
}
"""Functions that make the parser of each command."""

"""``chopper-convert``: profiles of one job joined and written for other tools; or the sample job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.commands import common
from chopper_interop.errors import UsageError, one_line
from chopper_interop.issues import IssueLog

if TYPE_CHECKING:
    import argparse


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``chopper-convert``."""
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
    common.add_selection_options(parser)
    parser.add_argument(
        "--job", help="name of the job (default: name of the source, or of the folder of several)"
    )
    parser.add_argument("--formats", action="store_true", help="list formats and their options")
    parser.add_argument("--demo", metavar="DIR", help="write a sample job's files into DIR")
    return parser


def run(args: argparse.Namespace) -> int:
    """Run ``chopper-convert`` and return its exit status."""
    from chopper_interop import pipeline
    from chopper_interop.commands import console
    from chopper_interop.io import memory

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
        steps=args.steps,
        on_loss=args.on_loss,
        keep_environment=args.keep_environment,
        anonymise=common.anonymise(args),
    )
    console.show_inventory(conversion.inventory, quiet=args.quiet)
    console.announce_compilation()
    memory.share_between_threads()
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

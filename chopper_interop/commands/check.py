"""``chopper-check``: whether a simulator can run ETs to the end, in the measured time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.commands import common
from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    import argparse

_MAX_TOLERANCE = 100
"""Percent of a rank's span; more would find nothing."""


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of ``chopper-check``."""
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


def run(args: argparse.Namespace) -> int:
    """Run ``chopper-check`` and return its exit status."""
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

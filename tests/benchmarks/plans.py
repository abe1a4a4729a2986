"""Errors of predictions of jobs with another plan, against the same jobs simulated so.

Number of answers, median and largest error in percent of the time before or after, whichever is longer, predicted later than
simulated with a plus. Usage:
``python tests/benchmarks/plans.py [--seeds N] [--first N]``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from predictions import plan_error_percent
from programs import plans

from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from programs.program import Program

    Plan = tuple[Program, Program, str]


def listed(seed: int) -> dict[str, Plan]:
    """Jobs as recorded and as asked, and the change, by name."""
    plan_by_name = {}
    for recorded, asked in plans.BUCKETS_MB:
        before, after = (plans.bucketed(seed, n * plans.MB) for n in (recorded, asked))
        plan_by_name[f"buckets {recorded} -> {asked} MB"] = before, after, f"buckets={asked}MB"
    for recorded, asked in plans.PIPELINES:
        before, after = (plans.pipelined(seed, *shape) for shape in (recorded, asked))
        change = f"stages={asked[0]} microbatches={asked[1]}"
        plan_by_name[f"stages, microbatches {recorded} -> {asked}"] = before, after, change
    for edit in plans.EDITS:
        (before, _), (after, change) = plans.edited(seed), plans.edited(seed, edit)
        plan_by_name[f"operations {edit}"] = before, after, change
    for recorded, asked in plans.REPLICAS:
        for how, alike in (("", False), (", alike", True)):
            (before, _), (after, _) = (
                plans.edited(seed, ranks=n, alike=alike) for n in (recorded, asked)
            )
            plan_by_name[f"ranks {recorded} -> {asked}{how}"] = before, after, f"ranks={asked}"
    return plan_by_name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    options = parser.parse_args()
    errors: dict[str, list[float]] = {}
    for seed in range(options.first, options.first + options.seeds):
        for name, plan in listed(seed).items():
            of_plan = errors.setdefault(name, [])
            with tempfile.TemporaryDirectory() as folder:
                try:
                    of_plan.append(plan_error_percent(*plan, Path(folder)))
                except UsageError as error:
                    print(f"seed {seed}, {name}: {error}")
    for name, of_plan in errors.items():
        largest = max(of_plan, key=abs, default=float("nan"))
        median = statistics.median(map(abs, of_plan)) if of_plan else float("nan")
        print(f"{name:42} {len(of_plan)} {median:.2f} {largest:+.2f}")


if __name__ == "__main__":
    main()

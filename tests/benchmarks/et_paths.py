"""Critical paths of jobs whose ETs were read back, by class, compared with those of the jobs themselves.

With ``--again`` also the largest difference of how an ET that was read and written again reacts, from the first one
(compute x 1, 0.1, 2; `converters.chakra.run`), in percent of the measured time. Per job and mode the time of each class on the path in percent of the job's path, and half the sum of their
differences: 0 where all time is of the class that the job has, 100 where none is. Random jobs are of three threads and
four streams (`mixed_jobs`). Usage:
``python tests/benchmarks/et_paths.py [--first SEED] [--seeds N] [--family NAME …] [--mode gpu full] [--again] [JOB …]``.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import predictions
from et_reactions import read_ets
from kineto_files import BASE, write
from mixed_jobs import mixed_job
from programs import families
from programs.program import Change
from programs.simulation import simulate

import chopper_interop as ci
from chopper_interop.analyses.methods.timing.paths import CLASS_GROUPS

MIXED = "mixed"


def shares(trace: ci.Trace) -> dict[str, float]:
    """Time on the critical path by group of classes, in nanoseconds."""
    summary = ci.analyze(trace, "critical_path").summary
    return {
        group: sum(summary[f"{name}_ns"] for name in classes)
        for group, classes in CLASS_GROUPS.items()
    }


def compared(trace: ci.Trace, mode: str, folder: Path) -> tuple[float, str]:
    """Difference of the path of an ET of a mode from that of the job, and both as text."""
    ci.write(trace, folder / mode / "job.et", mode=mode)
    job, again = shares(trace), shares(ci.read(folder / mode))
    length = sum(job.values())
    off = 50 * sum(abs(again[group] - job[group]) for group in job) / length
    cells = [
        f"{group} {100 * job[group] / length:.1f} -> {100 * again[group] / length:.1f}"
        for group in job
    ]
    return off, "  ".join(cells)


def written_again(folder: Path, mode: str) -> float:
    """Largest difference of the reactions of ETs that are read and written again, in percent of their span."""
    ci.write(ci.read(folder / mode), folder / "again" / "job.et", mode=mode)
    ends = []
    for name in (mode, "again"):
        ets = read_ets(folder / name / "job")
        changes = [Change("compute", factor) for factor in (1, 0.1, 2)]
        ends.append([ets.makespan_ns(ets.changed(change)) for change in changes])
    first, again = ends
    return 100 * max(abs(b - a) for a, b in zip(first, again, strict=True)) / first[0]


def job_of(family: str, seed: int, folder: Path) -> ci.Trace:
    """A random job of a family."""
    folder.mkdir()
    if family == MIXED:
        return ci.read(write(folder / "rank0.json", mixed_job(seed), baseTimeNanoseconds=BASE))
    return predictions.read(simulate(families.FAMILIES[family](seed)), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", nargs="*", type=Path, help="recordings instead of random jobs")
    parser.add_argument("--family", nargs="*", default=[MIXED])
    parser.add_argument("--first", type=int, default=30000)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--mode", nargs="*", default=["gpu", "full"])
    parser.add_argument("--again", action="store_true")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    offs: dict[str, list[float]] = {}
    cases = [(family, seed) for family in options.family for seed in seeds]
    for case, seed in [(path, -1) for path in options.job] or cases:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            trace = ci.read(case) if seed < 0 else job_of(case, seed, folder / "in")
            label = case.name if seed < 0 else f"{case} {seed}"
            for mode in options.mode:
                off, cells = compared(trace, mode, folder)
                offs.setdefault(mode, []).append(off)
                if options.again:
                    cells += f"  again {written_again(folder, mode):.2f}"
                print(f"{label} {mode:4} {off:5.1f}  {cells}", flush=True)
    for mode, values in offs.items():
        print(f"{mode}: median {statistics.median(values):.1f}, largest {max(values):.1f}")


if __name__ == "__main__":
    main()

"""Errors of predictions of changes, on random programs whose changed times are simulated.

A table by family of programs and change: of how many programs, median and largest error, in percent of
the time without the change, predicted later than simulated with a plus. Usage:
``python tests/benchmarks/changes.py [--seeds N] [--first N] [--family NAME …] [--programs] [--astra-sim PATH] [--network]``.
With the path of ASTRA-sim (an analytical network), the ETs of each program are run there as well, with
durations scaled: replayed, and with ``--network`` also with simulated communication.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import astra_sim
import predictions
import scaled_ets
from programs import families
from programs.program import NO_CHANGE
from programs.simulation import job_ns, simulate

import chopper_interop as ci

Errors = dict[str, float]


def simulated_errors(
    binary: Path, trace: ci.Trace, job_before_ns: int, cases: list[predictions.Case], work: Path,
    *, replay: bool,
) -> Errors:  # fmt: skip
    """Errors of ASTRA-sim for the unchanged program and for all changes; infinite if it never ends."""
    prefix = work / "et" / "job"
    prefix.parent.mkdir(parents=True)
    ci.write(trace, prefix.with_suffix(".et"))
    errors = {}
    listed = [("unchanged", NO_CHANGE, job_before_ns, job_before_ns)]
    listed += [(c.name, c.change, c.job_after_ns, c.before_ns) for c in cases]
    for name, change, true_ns, before_ns in listed:
        scaled = work / "scaled" / "job"
        scaled_ets.write(prefix, scaled, change, replay=replay)
        faster = 1 / change.factor if change.of == "communication" else 1.0
        bandwidth = families.LINK_BYTES_PER_US / 1000 * (1.0 if replay else faster)
        ran = astra_sim.run(binary, scaled, work / "run", replay=replay, bandwidth_gbps=bandwidth)
        complete = len(ran.finished_ns) == len(trace.ranks) and len(ran.ended_ns) == _nodes(scaled)
        end_ns = max(ran.ended_ns.values(), default=0) if complete else float("inf")
        errors[name] = 100 * (end_ns - true_ns) / before_ns
    return errors


def _nodes(prefix: Path) -> int:
    import schedule

    return sum(len(schedule.messages(p)[1]) for p in prefix.parent.glob(f"{prefix.name}.*.et"))


def table(title: str, errors: dict[str, dict[str, list[float]]]) -> None:
    """Print errors of families by change."""
    changes = list(dict.fromkeys(name for of in errors.values() for name in of))
    print(f"\n{title}: programs, median |error|, largest error in % of the time before")
    print(f"{'':12}" + "".join(f"{name:>21}" for name in changes))
    for family, of in errors.items():
        cells = [_cell(of.get(change, [])) for change in changes]
        print(f"{family:12}" + "".join(f"{cell:>21}" for cell in cells))


def _cell(found: list[float]) -> str:
    if not found:
        return "-"
    return f"{len(found)} {statistics.median(map(abs, found)):.2f} {max(found, key=abs):+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--family", nargs="*", default=list(families.FAMILIES))
    parser.add_argument("--programs", action="store_true", help="print errors of each program")
    parser.add_argument("--astra-sim", type=Path)
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args()
    ways: dict[str, dict[str, dict[str, list[float]]]] = defaultdict(
        lambda: {family: defaultdict(list) for family in options.family}
    )
    for family in options.family:
        for seed in range(options.first, options.first + options.seeds):
            program = families.FAMILIES[family](seed)
            with tempfile.TemporaryDirectory() as folder:
                found = all_errors(program, Path(folder), options)
            for way, errors in found.items():
                if options.programs:
                    listed = "  ".join(f"{name} {error:+.2f}" for name, error in errors.items())
                    print(f"{way:10} {program.name:28} {listed}", flush=True)
                for name, error in errors.items():
                    ways[way][family][name].append(error)
    for way, of in ways.items():
        table(way, of)


def all_errors(program, work: Path, options: argparse.Namespace) -> dict[str, Errors]:
    """Errors of a program's changes in each way of prediction."""
    run = simulate(program)
    cases = predictions.cases_of(run)
    trace = predictions.read(run, work / "kineto")
    gains = predictions.gains_ns(trace, cases)
    found = {"what_if": {c.name: c.error_percent(g) for c, g in zip(cases, gains, strict=True)}}
    if options.astra_sim:
        whole_ns = job_ns(run, run)
        for way in ("replay", "network") if options.network else ("replay",):
            found[way] = simulated_errors(
                options.astra_sim, trace, whole_ns, cases, work / way, replay=way == "replay"
            )
    return found


if __name__ == "__main__":
    main()

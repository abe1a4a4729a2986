"""Errors of predictions of changes, on random programs whose changed times are simulated.

A table by family of programs and change: of how many programs, median and largest error, in percent of
the time without the change, predicted later than simulated with a plus. Usage::

    python tests/benchmarks/changes.py [--seeds N] [--first N] [--family NAME …]
        [--changes usual|wide] [--programs] [--ets MODE …] [--astra-sim PATH] [--mode MODE …]
        [--streams HOW] [--network]

With ``--ets`` ETs of these modes are also run by `converters.chakra.run` with durations scaled; a second
table has how far they are from `what_if`. With the path of ASTRA-sim (an analytical network) those of
``--mode`` run there as well, with their communication simulated if ``--network`` is given, on networks of 25
and 50 GB/s too, else replayed: then ranks do not wait for each other, so that only the unchanged program can
be right. Where they are further than 2 % of the step from `what_if` is listed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import astra_sim
import predictions
import scaled_ets
from programs import families
from programs.program import NO_CHANGE
from programs.simulation import job_ns, simulate

import chopper_interop as ci
from chopper_interop.arrays.gather import is_any
from chopper_interop.converters.chakra import check
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.converters.chakra.checks import findings, jobs
from chopper_interop.schemas.kinds import GPU_WORK

if TYPE_CHECKING:
    from collections.abc import Callable

    from programs.program import Change

Errors = dict[str, float]
_LESS = ", less what_if"
"""Suffix of a way whose errors are those of another, less the errors of `what_if`."""
_NETWORKS_GBS = (50, 25)
_FAR_PERCENT = 2.0
"""From where on what a simulator does is another result than `what_if`: the goal of ETs."""


def et_errors(
    run: Callable[[Path, Change], float], trace: ci.Trace, job_before_ns: int,
    cases: list[predictions.Case], work: Path, *, mode: str, streams: str, replay: bool = True,
) -> Errors:  # fmt: skip
    """Errors of ETs for the unchanged program and for all changes; `run` gives their end."""
    prefix = work / "et" / "job"
    prefix.parent.mkdir(parents=True)
    ci.write(trace, prefix.with_suffix(".et"), mode=mode, streams=streams)
    errors = {}
    # an ET of mode gpu is of the time from the first GPU work to the last
    outside_ns = job_before_ns - gpu_span_ns(trace) if mode == "gpu" else 0
    listed = [("unchanged", NO_CHANGE, job_before_ns, job_before_ns)]
    # without operations of its own an ET does not say which host work takes another time
    reacts = [c for c in cases if mode == "full" or c.change.of != "host"]
    listed += [(c.name, c.change, c.job_after_ns, c.before_ns) for c in reacts]
    for name, change, true_ns, before_ns in listed:
        scaled = work / "scaled" / "job"
        scaled_ets.write(prefix, scaled, change, replay=replay)
        errors[name] = 100 * (run(scaled, change) + outside_ns - true_ns) / before_ns
    return errors


def gpu_span_ns(trace: ci.Trace) -> int:
    """Time from the first start of GPU work to its last end."""
    work = is_any(trace.array("kind"), GPU_WORK)
    ts = trace.array("ts")[work]
    return int((ts + trace.array("dur")[work]).max() - ts.min())


def own_end_ns(prefix: Path, _: Change) -> float:
    """End of ETs by `converters.chakra.run`; infinite if a node never ends."""
    findings_of_ets = findings.Findings()
    ets = [et for _, et in check.read_files(prefix, findings_of_ets)]
    job = jobs.job_of(ets, check.read_groups(prefix, len(ets), findings_of_ets))
    end_ns = simulator.run(job, len(ets)).end_ns
    return float("inf") if (end_ns < 0).any() else float(end_ns.max())


def simulated_end_ns(binary: Path, work: Path, *, replay: bool) -> Callable[[Path, Change], float]:
    """Ends of ETs in ASTRA-sim; infinite if it does not run all nodes."""

    def end_ns(prefix: Path, change: Change) -> float:
        faster = 1 / change.factor if change.of == "communication" else 1.0
        bandwidth = families.LINK_BYTES_PER_US / 1000 * (1.0 if replay else faster)
        ran = astra_sim.run(binary, prefix, work / "run", replay=replay, bandwidth_gbps=bandwidth)
        ranks = len(list(prefix.parent.glob(f"{prefix.name}.*.et")))
        complete = len(ran.finished_ns) == ranks and len(ran.ended_ns) == _nodes(prefix)
        return float(max(ran.ended_ns.values(), default=0)) if complete else float("inf")

    return end_ns


def _nodes(prefix: Path) -> int:
    import schedule

    return sum(len(schedule.messages(p)[1]) for p in prefix.parent.glob(f"{prefix.name}.*.et"))


def list_far(errors: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    """Print how many changes are within the goal, and the others."""
    listed = [
        (family, seed, change, error)
        for family, of in errors.items()
        for change, by_seed in of.items()
        for seed, error in by_seed
    ]
    far = [entry for entry in listed if not abs(entry[-1]) <= _FAR_PERCENT]
    print(f"{len(listed) - len(far)} of {len(listed)} within {_FAR_PERCENT} %")
    for family, seed, change, error in far:
        print(f"  {family} {seed} {change} {error:+.2f}")


def table(title: str, errors: dict[str, dict[str, list[tuple[int, float]]]]) -> None:
    """Print errors of families by change."""
    changes = list(dict.fromkeys(name for of in errors.values() for name in of))
    print(f"\n{title}: programs, median |error|, largest error in % of the time before")
    print(f"{'':12}" + "".join(f"{name:>21}" for name in changes))
    for family, of in errors.items():
        cells = [_cell(of.get(change, [])) for change in changes]
        print(f"{family:12}" + "".join(f"{cell:>21}" for cell in cells))


def _cell(by_seed: list[tuple[int, float]]) -> str:
    errors = [error for _, error in by_seed]
    if not errors:
        return "-"
    return f"{len(errors)} {statistics.median(map(abs, errors)):.2f} {max(errors, key=abs):+.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    parser.add_argument("--family", nargs="*", default=list(families.FAMILIES))
    parser.add_argument("--changes", choices=predictions.SETS, default="usual")
    parser.add_argument("--programs", action="store_true", help="print errors of each program")
    parser.add_argument("--ets", nargs="*", default=[], help="modes of ETs to run by their rules")
    parser.add_argument("--astra-sim", type=Path)
    parser.add_argument("--mode", nargs="*", default=["full"], help="modes of ETs in ASTRA-sim")
    parser.add_argument("--streams", default="auto", help="as the ET writer takes it")
    parser.add_argument("--network", action="store_true")
    options = parser.parse_args()
    ways: dict[str, dict[str, dict[str, list[tuple[int, float]]]]] = defaultdict(
        lambda: {family: defaultdict(list) for family in options.family}
    )
    for family in options.family:
        for seed in range(options.first, options.first + options.seeds):
            program = families.FAMILIES[family](seed)
            with tempfile.TemporaryDirectory() as folder:
                errors_by_way = all_errors(program, Path(folder), options)
            for way, errors in errors_by_way.items():
                if options.programs:
                    listed = "  ".join(f"{name} {error:+.2f}" for name, error in errors.items())
                    print(f"{way:10} {program.name:28} {listed}", flush=True)
                for name, error in errors.items():
                    ways[way][family][name].append((seed, error))
    for way, of in ways.items():
        table(way, of)
        if way.endswith(_LESS):
            list_far(of)


def all_errors(program, work: Path, options: argparse.Namespace) -> dict[str, Errors]:
    """Errors of a program's changes in each way of prediction."""
    run = simulate(program)
    cases = predictions.cases_of(run, predictions.SETS[options.changes])
    if options.network:
        link_gbs = families.LINK_BYTES_PER_US // 1000
        cases += predictions.network_cases(run, link_gbs, _NETWORKS_GBS)
    trace = predictions.read(run, work / "kineto")
    gains = predictions.gains_ns(trace, cases)
    errors_by_way = {
        "what_if": {c.name: c.error_percent(g) for c, g in zip(cases, gains, strict=True)}
    }
    whole_ns = job_ns(run, run)
    for mode in options.ets:
        way = f"ETs, mode {mode}"
        errors_by_way[way] = et_errors(
            own_end_ns, trace, whole_ns, cases, work / mode, mode=mode, streams=options.streams
        )
        errors_by_way[way + _LESS] = _less(errors_by_way[way], errors_by_way["what_if"])
    replay = not options.network
    for mode in options.mode if options.astra_sim else ():
        way = f"{'replay' if replay else 'network'}, mode {mode}"
        end_ns = simulated_end_ns(options.astra_sim, work / way, replay=replay)
        errors_by_way[way] = et_errors(
            end_ns, trace, whole_ns, cases, work / way,
            mode=mode, streams=options.streams, replay=replay,
        )  # fmt: skip
        errors_by_way[way + _LESS] = _less(errors_by_way[way], errors_by_way["what_if"])
    return errors_by_way


def _less(errors: Errors, others: Errors) -> Errors:
    """By how much more than predicted times change; what the unchanged program is off is in its own column."""
    before = errors["unchanged"]
    return {name: errors[name] - before - other for name, other in others.items() if name in errors}


if __name__ == "__main__":
    main()

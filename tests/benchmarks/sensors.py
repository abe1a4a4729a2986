"""Errors of `dvfs` and of the idle power of `power` where clocks and power are seen through sensors.

The jobs are those of `tests/support/sensor_jobs`, which share no code with the package. For each cell (kind of
job, rate, sensor, counters) a line states in how many jobs the 95 % interval holds the length of a step at the
highest clock, the mean error and its range, and the mean half-width, in percent of that length. `range` counts jobs whose
answer is a range without an estimate, `none` those without an answer, and `wide` is the half-width divided by that of an analysis
to which the sensor is given, or another one (`--given-sensor`). With ``--power`` a line
states for how many GPUs the idle power is within two standard errors, its mean and range, the mean error, and how
often the result says that idle power was not seen. ``--answers`` keeps the answers in a file and asks only for those
that it lacks, so that a long table is made in parts (``--seconds``). Usage:
``python tests/benchmarks/sensors.py [--cells PATTERN …] [--programs N] [--first SEED] [--processes N]
[--known-sensor | --given-sensor SENSOR] [--answers FILE [--seconds N]] [--power [--idle W]]``
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import asdict
from itertools import islice, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from sensor_jobs.cells import Cell, matching, truth_of, write_job
from sensor_jobs.sensors import POWER
from sensor_judge import Answer, judge

import chopper_interop as ci

DEFAULT = ("*/1kHz/*", "*/*/instant", "*/*/all", "*/*/all/counters")
BUBBLES_NS = {"never idle": 50_000, "idle 15 ms a step": 15_000_000}
POWER_KINDS = ("mixed", "constant", "groups")
POWER_RATES = ("1kHz", "10Hz", "1Hz")


def line(cell: Cell, answers: list[Answer | None]) -> str:
    """Return the line of the table of a cell."""
    answered = [a for a in answers if a]
    if not answered:
        return f"{cell.name:32} {'no answer':>9}"
    errors, halves = [a.error for a in answered if a.error is not None], [a.half for a in answered]
    signed = "".join(
        f" {f(errors):+7.2f}" if errors else " " * 8 for f in (statistics.mean, min, max)
    )
    known = [a.half / a.half_known for a in answered if a.half_known]
    return (
        f"{cell.name:32} {sum(a.inside for a in answered):4} of {len(answered):2}"
        f"{signed} {statistics.mean(halves):7.2f} {statistics.mean(a.loss for a in answered):6.1f}"
        f" {len(answered) - len(errors):5} {len(answers) - len(answered):5}"
        + (f" {statistics.mean(known):6.2f}" if known else "")
    )


class Answers:
    """Answers by cell and seed, kept in a file of JSON lines if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._answers: dict[tuple[str, int], Answer | None] = {}
        if path and path.exists():
            for one in map(json.loads, path.read_text().splitlines()):
                answer = Answer(**one["answer"]) if one["answer"] else None
                self._answers[one["cell"], one["seed"]] = answer

    def add(self, seed: int, answers: list[tuple[Cell, Answer | None]]) -> None:
        """Add the answers of one job."""
        self._answers |= {(cell.name, seed): answer for cell, answer in answers}
        if self._path:
            with self._path.open("a") as file:
                for cell, answer in answers:
                    kept = asdict(answer) if answer else None
                    file.write(json.dumps({"cell": cell.name, "seed": seed, "answer": kept}) + "\n")

    def missing(self, cells: list[Cell], seed: int) -> list[Cell]:
        """Return the cells without an answer for this seed."""
        return [cell for cell in cells if (cell.name, seed) not in self._answers]

    def of(self, cell: Cell, seeds: range) -> list[Answer | None]:
        """Return the answers of a cell."""
        return [self._answers[cell.name, s] for s in seeds if (cell.name, s) in self._answers]


def ask(options: argparse.Namespace, cells: list[Cell], answers: Answers) -> None:
    """Generate and analyse the jobs of all answers that are missing, as far as the time allows."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.kind, cell.vendor].append(cell)
    seeds = range(options.first, options.first + options.programs)
    jobs = [(key, seed, answers.missing(of, seed)) for seed in seeds for key, of in groups.items()]
    begin, waiting = time.monotonic(), iter([job for job in jobs if job[2]])
    with ProcessPoolExecutor(options.processes) as pool:
        running: dict[Future[list[tuple[Cell, Answer | None]]], int] = {}
        while True:
            in_time = time.monotonic() - begin < options.seconds
            for key, seed, of in islice(waiting, (options.processes - len(running)) * in_time):
                sensor = {"known": options.known_sensor, "given": options.given_sensor}
                future = pool.submit(judge, *key, seed, of, **sensor)
                running[future] = seed
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                answers.add(running.pop(future), future.result())


def dvfs_table(options: argparse.Namespace) -> None:
    """Print the table of `dvfs`."""
    cells, answers = matching(options.cells), Answers(options.answers)
    seeds = range(options.first, options.first + options.programs)
    ask(options, cells, answers)
    print(
        "% of the ideal step".rjust(32),
        "  inside    mean     min     max    half   loss range  none  wide",
    )
    of_cells = {cell: of for cell in cells if (of := answers.of(cell, seeds))}
    for cell, of in of_cells.items():
        print(line(cell, of))
    good = sum(a is not None and a.inside for of in of_cells.values() for a in of)
    every = [sum(a is not None and a.inside for a in of) / len(of) for of in of_cells.values()]
    print(f"inside: {good} of {sum(map(len, of_cells.values()))}; cells of 90 % and more: ", end="")
    print(f"{sum(share >= 0.9 for share in every)} of {len(every)}")


def judge_power(seed: int, cell: Cell, sensor: str, **changes: float) -> list[dict[str, Any]]:
    """Return the rows of `power` for a job with these changes of the program, with its notes."""
    truth = truth_of(cell.kind, cell.vendor, seed, **changes)
    with tempfile.TemporaryDirectory() as folder:
        write_job(truth.run, cell, Path(folder), sensor)
        result = ci.analyze(ci.read(folder), "power")
    more = {"true_w": truth.run.program.idle_watts, "notes": result.notes}
    return [row | more for row in result.rows.to_pylist()]


def power_table(options: argparse.Namespace) -> None:
    """Print the table of idle power: of how many GPUs it is within two standard errors."""
    seeds = range(options.first, options.first + options.programs)
    print(f"{'idle power, W':44} {'inside':>9}    mean     min     max   error  none  stated")
    with ProcessPoolExecutor(options.processes) as pool:
        for bubble, kind, rate, sensor in product(BUBBLES_NS, POWER_KINDS, POWER_RATES, POWER):
            cell = Cell(kind, rate, "instant")
            changes = {"bubble_ns": BUBBLES_NS[bubble], "idle_watts": options.idle}
            futures = [pool.submit(judge_power, s, cell, sensor, **changes) for s in seeds]
            rows = [row for future in futures for row in future.result()]
            print(power_line(f"{bubble}/{kind}/{rate}/{sensor}", rows), flush=True)


def power_line(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the line of the table of idle power."""
    answered = [r for r in rows if r["idle_w"] is not None]
    if not answered:
        return f"{name:44} no answer"
    inside = sum(abs(r["idle_w"] - r["true_w"]) <= 2 * r["idle_error_w"] for r in answered)
    idle = [r["idle_w"] for r in answered]
    error = statistics.mean(r["idle_error_w"] for r in answered)
    return (
        f"{name:44} {inside:3} of {len(answered):2} {statistics.mean(idle):7.1f} {min(idle):7.1f} {max(idle):7.1f}"
        f" {error:7.1f} {len(rows) - len(answered):5} {sum(map(_states_idle, answered)):7}"
    )


def _states_idle(row: dict[str, Any]) -> bool:
    """Whether the result says that idle power is a typical value, or was not seen."""
    return "idle" in (row["as_expected"] or "") or any("idle" in name for name in row["notes"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--cells", nargs="*", default=DEFAULT, metavar="PATTERN", help="kind/rate/sensor[/counters]"
    )
    parser.add_argument("--programs", type=int, default=40, metavar="N")
    parser.add_argument("--first", type=int, default=0, metavar="SEED")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), metavar="N")
    parser.add_argument(
        "--known-sensor", action="store_true", help="compare with an analysis that is given it"
    )
    parser.add_argument(
        "--given-sensor", default="", metavar="SENSOR", help="compare with one that is given this"
    )
    parser.add_argument("--answers", type=Path, metavar="FILE", help="file that keeps the answers")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, metavar="N", help="begin no job after this time"
    )
    parser.add_argument("--power", action="store_true", help="idle power instead")
    parser.add_argument("--idle", type=float, default=130.0, metavar="W", help="true idle power")
    options = parser.parse_args()
    (power_table if options.power else dvfs_table)(options)


if __name__ == "__main__":
    main()

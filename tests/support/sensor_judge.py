"""Answers of `dvfs` for the jobs of `sensor_jobs`, compared with their truth."""

import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sensor_jobs.cells import Cell, Truth, truth_of, write_job
from sensor_jobs.sensors import SENSORS, Sensor

import chopper_interop as ci
from chopper_interop.errors import ChopperError

ROUNDING = 1e-4  # of a step: hosts and traces have limited resolution


def sensor_options(sensor: Sensor) -> dict[str, str]:
    """Return the options by which `dvfs` is given the sensor of the clock."""
    shows = f"mean:{_ms(sensor.mean_ns)}" if sensor.mean_ns else "instant"
    hold = f",hold:{_ms(sensor.hold_ns)}" if sensor.hold_ns else ""
    return {"sensor": f"{shows}{hold},lag:{_ms(sensor.lag_ns)}"}


def _ms(ns: int) -> str:
    return f"{ns / 1e6:g}ms"


@dataclass(frozen=True)
class Answer:
    """Answer of `dvfs` for a job, in percent of the true length of a step at the highest clock.

    The error is None where the answer is a range without an estimate.
    """

    seed: int
    loss: float
    error: float | None
    half: float
    inside: bool
    half_known: float | None = None


def answer_for(trace: ci.Trace, seed: int, truth: Truth, **options: Any) -> Answer | None:
    """Analyse a trace of the job of which this is the truth."""
    try:
        rows = ci.analyze(trace, "dvfs", by="job", **options).rows.to_pylist()
    except ChopperError as error:
        logging.getLogger(__name__).warning("no answer for seed %d: %s", seed, error)
        return None
    row = next((r for r in rows if r["ceiling"] == "peak"), None)
    if row is None or row["ideal_low_ns"] is None:
        return None
    true_ns, measured_ns = truth.ideal_ns, truth.measured_ns
    if abs(row["measured_ns"] / measured_ns - 1) > 0.001:
        raise AssertionError(
            f"steps are not those of the job: {row['measured_ns']} for {measured_ns} ns"
        )
    low, high = row["ideal_low_ns"], row["ideal_high_ns"]
    error = None if row["ideal_ns"] is None else 100 * (row["ideal_ns"] / true_ns - 1)
    return Answer(
        seed, 100 * (measured_ns / true_ns - 1), error,
        50 * (high - low) / true_ns, low <= true_ns * (1 + ROUNDING) and true_ns * (1 - ROUNDING) <= high,
    )  # fmt: skip


def judge(
    kind: str, vendor: str, seed: int, cells: list[Cell], *, known: bool, given: str = ""
) -> list[tuple[Cell, Answer | None]]:
    """Analyse one program under several cells, and again with the sensor known, or this one given."""
    truth = truth_of(kind, vendor, seed)
    answers = []
    for cell in cells:
        with tempfile.TemporaryDirectory() as folder:
            write_job(truth.run, cell, Path(folder))
            trace = ci.read(folder)
        answer = answer_for(trace, seed, truth)
        if (known or given) and answer:
            options = {"sensor": given} if given else sensor_options(SENSORS[cell.sensor])
            second = answer_for(trace, seed, truth, **options)
            answer = replace(answer, half_known=second.half if second else None)
        answers.append((cell, answer))
    return answers

"""Errors of the predicted time at the highest clock: the sample job's truth, over seeds and rates.

``python tests/benchmarks/clocks.py --seeds 20`` prints a table in Markdown. No kernel of the job follows the
formulas that are fitted, and no kernel ran at one clock. Seeds change noise alone: the job and where its
clocks move are the same, so that errors differ less from seed to seed than they would between jobs.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

import chopper_interop as ci
from chopper_interop.arrays import arrow
from chopper_interop.demo import make_demo
from chopper_interop.schemas.kinds import Kind

RATES = {"1 kHz": 1000, "100 Hz": 100, "10 Hz": 10, "amd-smi's 1 s": 0}
HEAD = (
    "| samples of the clock | step, mean error (max) | signed | 95 % interval ± | inside "
    "| errors / claimed, mean and spread | kernels, mean error |"
)
TWO_SIDED = 1.96


def run(folder: Path, **job: object) -> tuple[float, float, bool, float]:
    """Error of the step (NaN of a range alone), half its interval, True if that holds the truth, mean error of kernels."""
    truth = json.loads((make_demo(folder, **job) / "truth.json").read_text())
    trace = ci.read(folder)
    result = ci.analyze(trace, "dvfs")
    true, summary = truth["mean_ideal_step_ns"], result.summary
    low, high = summary["ideal_step_low_ns"], summary["ideal_step_high_ns"]
    error = (summary["ideal_step_ns"] or np.nan) / true - 1
    return error, (high - low) / 2 / true, low <= true <= high, kernels(truth, trace, result)


def kernels(truth: dict, trace: ci.Trace, result: object) -> float:
    """Mean error of the times of single kernels at the highest clock."""
    table = truth["kernels"]
    pairs = zip(table["rank"], table["correlation"], strict=True)
    true = dict(zip(pairs, table["ideal_dur_ns"], strict=True))
    node = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    keys = zip(
        trace.array("rank")[node].tolist(), trace.array("correlation")[node].tolist(), strict=True
    )
    right = np.array([true[pair] for pair in keys])
    ideal = arrow.to_numpy(result.annotations["ideal_ns"])[node]
    return float(np.mean(np.abs(ideal / right - 1)))


def errors(error: np.ndarray, half: np.ndarray, inside: np.ndarray) -> str:
    """Return the columns of the step; without errors where answers are ranges alone."""
    known = ~np.isnan(error)
    width = f"{np.mean(half):.2%} | {int(inside.sum())} of {len(inside)}"
    if not known.any():
        return f"range | | {width} | "
    some, z = error[known], TWO_SIDED * error[known] / half[known]
    size = f"{np.mean(np.abs(some)):.2%} ({np.max(np.abs(some)):.2%}) | {np.mean(some):+.2%}"
    return f"{size} | {width} | {np.mean(z):+.2f} ± {np.std(z):.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    seeds = parser.parse_args().seeds
    print(HEAD)
    print("|---|---|---|---|---|---|---|")
    for counters in (1, 0):
        for rate, hz in RATES.items():
            with tempfile.TemporaryDirectory() as folder:
                jobs = [
                    run(Path(folder) / str(s), seed=s, recorder_hz=hz, counter_steps=counters)
                    for s in range(seeds)
                ]
            error, half, inside, each = (np.array(column) for column in zip(*jobs, strict=True))
            name = rate if counters else f"{rate}, without counters"
            print(
                f"| {name} | {errors(error, half, inside)} | {np.mean(each):.2%} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

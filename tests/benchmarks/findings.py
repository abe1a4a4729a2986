"""How often known defects of random programs are found, and by how much their savings are off.

Each program is simulated with its defect and without; the difference of their steps is the truth.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from programs import kineto, simulation
from programs.defects import DEFECTS, EXACT

import chopper_interop as ci


def rows_of(code: str, seed: int, *, has: bool) -> tuple[dict[str, int], int, float]:
    """Savings by code, the step as analysed and as simulated, all in nanoseconds."""
    run = simulation.simulate(DEFECTS[code](seed, has=has))
    with tempfile.TemporaryDirectory() as folder:
        kineto.write(run, Path(folder) / "job")
        result = ci.analyze(ci.read(Path(folder) / "job"), "findings")
    saves = {row["code"]: row["saves_ns"] for row in reversed(result.rows.to_pylist())}
    return saves, result.summary["step_ns"], simulation.period_ns(run)


def main() -> None:
    """Print a row for each defect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=500, help="first seed")
    parser.add_argument("--seeds", type=int, default=20, help="number of seeds")
    parser.add_argument("codes", nargs="*", default=list(DEFECTS))
    args = parser.parse_args()
    print(
        f"{'code':22}{'detected':>9}{'false':>7}{'saves % of step':>17}{'error median':>14}{'max':>7}"
    )
    for code in args.codes:
        detected, false_alarms, shares, errors = 0, 0, [], []
        for seed in range(args.first, args.first + args.seeds):
            saves, step_ns, period_ns = rows_of(code, seed, has=True)
            others, _, plain_ns = rows_of(code, seed, has=False)
            detected += code in saves
            false_alarms += code in others
            if code in saves:
                shares.append(100 * saves[code] / step_ns)
                errors.append(100 * abs(saves[code] - (period_ns - plain_ns)) / step_ns)
        shown = f"{np.median(errors):14.1f}{max(errors):7.1f}" if code in EXACT else ""
        print(f"{code:22}{detected:9}{false_alarms:7}{np.median(shares):17.1f}{shown}", flush=True)


if __name__ == "__main__":
    main()

"""Small random ETs in ASTRA-sim and in `chopper-check`: when they end, and whether they run to the end.

Differences by seed, and how many there are of how many runs. A replay must end at the same nanosecond; with communication
simulated, all nodes run and the exit status is 0 exactly if `chopper-check` says so. Usage:
``python tests/benchmarks/ends.py BINARY … [--seeds N] [--first N]``.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import astra_sim
import numpy as np
import random_ets

from chopper_interop.converters.chakra import check
from chopper_interop.converters.chakra import run as simulator
from chopper_interop.converters.chakra.checks import findings, jobs


def own(prefix: Path) -> tuple[bool, int]:
    """Whether `chopper-check` says that all runs to the end, and the end of a replay."""
    log = findings.Findings()
    ets = [et for _, et in check.read_files(prefix, log)]
    job = jobs.job_of(ets, check.read_groups(prefix, len(ets), log))
    replay = simulator.run(job._replace(role=np.zeros_like(job.role)), len(ets))
    return check.check(prefix).runs, int(replay.end_ns.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("binary", type=Path, nargs="+")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    options = parser.parse_args()
    differ = stopped = 0
    for seed in range(options.first, options.first + options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            prefix = Path(folder) / "job"
            nodes = random_ets.write(prefix, random_ets.drawn(seed))
            runs, end_ns = own(prefix)
            for binary in options.binary:
                replay = astra_sim.run(binary, prefix, Path(folder) / "run")
                if (max(replay.ended_ns.values()), len(replay.ended_ns)) != (end_ns, nodes):
                    differ += 1
                    print(f"{seed} {binary.name}: replay ends otherwise than at {end_ns} ns")
                ran = astra_sim.run(
                    binary, prefix, Path(folder) / "run", replay=False,
                    bandwidth_gbps=random_ets.BYTES_PER_US / 1000,
                )  # fmt: skip
                ran_all = ran.status == 0 and len(ran.ended_ns) == nodes
                stopped += not ran_all
                if ran_all != runs:
                    differ += 1
                    print(f"{seed} {binary.name}: exit {ran.status}, chopper-check: {runs}")
    print(f"{differ} differences, {stopped} of {options.seeds * len(options.binary)} stop")


if __name__ == "__main__":
    main()

"""Waits of streams that are inferred from calls and times, against what they waited for.

Random programs by family and profiler: how many waits there are that others do not imply, how many of
them are found, how many edges are inferred, and how many of those no wait implies. Then recordings with
CUPTI's sync events, which are removed and inferred. Usage:
``python tests/benchmarks/waits.py [--seeds N] [--first N] [--family NAME …] [--recording FILE …]``.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import predictions
import recorded_waits
import stream_waits
from programs import families
from programs.simulation import simulate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=0, help="first seed (default: 0)")
    several = ("streams", "forks", "ddp", "threads", "fsdp", "pipeline")
    parser.add_argument("--family", nargs="*", default=list(several))
    parser.add_argument("--recording", nargs="*", type=Path, default=[])
    options = parser.parse_args()
    print(f"{'':26}{'waits':>8}{'found':>8}{'%':>7}{'edges':>8}{'wrong':>8}{'%':>7}")
    for family in options.family:
        for profiler, result in of_family(family, options).items():
            show(f"{family} ({profiler})", result)
    for path in options.recording:
        for records in (True, False):
            name = f"{path.name[:14]} {'' if records else 'no '}records"
            show(name, of_recording(path, records=records))


def of_family(family: str, options: argparse.Namespace) -> dict[str, stream_waits.Comparison]:
    """Programs whose waits are not recorded, by what else is."""
    results: dict[str, stream_waits.Comparison] = defaultdict(stream_waits.Comparison)
    for seed in range(options.first, options.first + options.seeds):
        program = families.FAMILIES[family](seed)
        if program.waits_recorded:
            continue
        run = simulate(program)
        with tempfile.TemporaryDirectory() as folder:
            trace = predictions.read(run, Path(folder))
        stream_waits.compare(run, trace, results[program.vendor])
    return results


def of_recording(path: Path, *, records: bool) -> stream_waits.Comparison:
    """A recording without its sync events, and without records of events if wanted."""
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    with tempfile.TemporaryDirectory() as folder:
        return recorded_waits.compare(document, Path(folder), records=records)


def show(name: str, r: stream_waits.Comparison) -> None:
    recovered, wrong = 100 * r.recovered / max(r.needed, 1), 100 * r.wrong / max(r.inferred, 1)
    print(
        f"{name:26}{r.needed:8}{r.recovered:8}{recovered:7.1f}{r.inferred:8}{r.wrong:8}{wrong:7.1f}"
    )


if __name__ == "__main__":
    main()

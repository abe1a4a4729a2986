"""Kineto to Perfetto against a JSON library that only parses the same file.

Both run as whole processes, by turns, so that a busy machine slows both; figures are medians, and
what counts is their ratio. Usage: ``python tests/benchmarks/convert.py [FILE] [ROUNDS]``; without a
file it takes the 4-rank trace of ../shared/data, or makes one of that size.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stages import timed

REAL = Path(__file__).resolve().parents[3] / "shared/data/pytorch/ddp_resnet_4rank_amd"
PARSE = "import gzip, json, sys; f = sys.argv[1]; json.load((gzip.open if f.endswith('gz') else open)(f))"
CONVERT = "from chopper_interop.start import convert; convert()"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""With modules compiled once, as they are after an installation."""


def process(code: str, *arguments: str) -> tuple[float, float]:
    """Wall seconds and peak MiB of a Python process."""
    start = time.perf_counter()
    pid = subprocess.Popen([sys.executable, "-c", code, *arguments], env=ENVIRONMENT).pid
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"it failed: {code}")
    return time.perf_counter() - start, usage.ru_maxrss / 1024


def stages(path: Path, out: Path) -> dict[str, float]:
    """Seconds of each stage of the second conversion within one process."""
    from chopper_interop import pipeline
    from chopper_interop.annotate import stages as annotate_stages
    from chopper_interop.io import inputs, json_events
    from chopper_interop.joining import job

    spent = dict.fromkeys(("unpack", "scan", "join, annotate", "write"), 0.0)

    pipeline.write(pipeline.read(path), out)
    timed(spent, "unpack", inputs, "read")
    timed(spent, "scan", json_events, "scan")
    timed(spent, "join, annotate", job, "assemble")
    timed(spent, "join, annotate", annotate_stages, "annotate")
    start = time.perf_counter()
    trace = pipeline.read(path)
    read = time.perf_counter() - start
    timed(spent, "write", pipeline, "write")
    pipeline.write(trace, out)
    measured = spent["unpack"] + spent["scan"] + spent["join, annotate"]
    result = {
        "unpack": spent["unpack"],
        "scan": spent["scan"],
        "nodes, edges, collectives": read - measured,
        "join, annotate": spent["join, annotate"],
        "write Perfetto": spent["write"],
    }
    return result | {"events": trace.meta.sources[0].events, "bytes": int(trace.text.starts[-1])}


def sample(folder: Path) -> Path:
    """A trace of about the size of the real one: one rank of a longer job."""
    from chopper_interop.demo import make_demo

    made = make_demo(folder / "job", ranks=1, layers=16, steps=34, recorder_hz=0, counter_steps=0)
    return next((made / "kineto").glob("*.json.gz"))


def main() -> None:
    """Print the ratios, the rates and the share of each stage."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        real = REAL / "merged_all_events.json.gz"
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else real if real.exists() else sample(folder)
        rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
        out = folder / "job.pftrace"
        process(CONVERT, "-q", str(path), "-o", str(out))  # compile, fill the file cache
        parse, convert = [], []
        for _ in range(rounds):
            parse.append(process(PARSE, str(path)))
            convert.append(process(CONVERT, "-q", str(path), "-o", str(out)))
        seconds, memory = (
            [statistics.median(column) for column in zip(*runs, strict=True)]
            for runs in (parse, convert)
        )
        (parse_s, parse_mib), (convert_s, convert_mib) = seconds, memory
        print(f"{path.name}, median of {rounds}:")
        print(f"  json.load        {parse_s:6.2f} s  {parse_mib:7.0f} MiB")
        print(f"  chopper-convert  {convert_s:6.2f} s  {convert_mib:7.0f} MiB")
        print(f"  ratio            {convert_s / parse_s:6.2f}    {convert_mib / parse_mib:7.2f}")
        result = stages(path, out)
        events, size = result.pop("events"), result.pop("bytes")
        total = sum(result.values())
        print(
            f"  warm, in one process: {size / 1e6 / total:.0f} MB/s, {events / total:,.0f} events/s"
        )
        for stage, spent in result.items():
            print(f"    {stage:26} {spent:5.2f} s  {100 * spent / total:3.0f} %")


if __name__ == "__main__":
    main()

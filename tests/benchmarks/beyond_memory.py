"""What a job of several large ranks takes that is converted or analysed with too little memory to hold it.

Usage: ``python tests/benchmarks/beyond_memory.py TRACE [RANKS …] [--max-memory GB] [--output NAME | --analyses NAMES]``.
TRACE is a Kineto file of one rank, not compressed. Ranks are copies of it whose rank, process, device and some
durations differ, compressed, so that many fit on the disk. Rows are processes of their own: seconds of processors,
the peak of memory that is the process's own (a sample five times a second, of its children too), of all that is
resident, and of files for columns, all without names, below TMPDIR. Wall time says little on a busy machine.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from isal import igzip

_PIECE = 1 << 24
_DEVICES = 8
_EVERY_S = 0.2
_RANK = re.compile(rb'"rank": \d+, "world_size": \d+')
_PID = re.compile(rb'"cat": "cuda_runtime",[^{}]*?"pid": (\d+)')


def make_ranks(trace: Path, folder: Path, ranks: int) -> None:
    """Write a compressed copy of a trace for each rank."""
    with trace.open("rb") as stream:
        head = stream.read(_PIECE)
    found = _PID.search(head)
    pid = int(found.group(1)) if found else 0
    folder.mkdir()
    for rank in range(ranks):
        changes = {
            b'"pid": %d,' % pid: b'"pid": %d,' % (pid + rank),
            b'"tid": %d,' % pid: b'"tid": %d,' % (pid + rank),
            b'"pid": 0,': b'"pid": %d,' % (rank % _DEVICES),
            b'"device": 0,': b'"device": %d,' % (rank % _DEVICES),
            b'"dur": 7,': b'"dur": %d,' % (7 - rank % 5),
        }
        stated = b'"rank": %d, "world_size": %d' % (rank, ranks)
        with igzip.open(folder / f"rank{rank:02d}.json.gz", "wb", compresslevel=1) as sink:
            for number, piece in enumerate(_pieces(trace)):
                text = piece if number else _RANK.sub(stated, piece, count=1)
                for old, new in changes.items():
                    text = text.replace(old, new)
                sink.write(text)


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield a file in pieces that end with a line."""
    rest = b""
    with path.open("rb") as stream:
        while piece := stream.read(_PIECE):
            whole, line, rest = (rest + piece).rpartition(b"\n")
            yield whole + line
    yield rest


def _family(pid: int) -> Iterator[int]:
    """Yield a process and those that it started."""
    yield pid
    for tasks in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in tasks.read_text().split():
            yield from _family(int(child))


def _used(pid: int) -> tuple[int, int, int]:
    """KiB of own memory and of all that is resident, and bytes of files without names."""
    own = resident = files = 0
    for one in _family(pid):
        for line in Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()[1:]:
            name, value = line.split()[:2]
            own += int(value) if name == "Anonymous:" else 0
            resident += int(value) if name == "Pss:" else 0
        for line in Path(f"/proc/{one}/maps").read_text().splitlines():
            if line.endswith("(deleted)"):
                start, stop = line.split(maxsplit=1)[0].split("-")
                files += int(stop, 16) - int(start, 16)
    return own, resident, files


class Used(NamedTuple):
    """Seconds of processors and by the clock, peaks of own and of resident memory in MiB, and GB of files without names."""

    cpu_s: float
    wall_s: float
    own_mib: float
    resident_mib: float
    files_gb: float


def measured(command: list[str]) -> Used:
    """Run a command and return what it used."""
    start, peaks = time.perf_counter(), (0, 0, 0)
    process = subprocess.Popen(command)
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            break
        try:
            peaks = tuple(map(max, peaks, _used(process.pid)))
        except (OSError, ValueError):  # it ended as it was looked at
            continue
        time.sleep(_EVERY_S)
    process.returncode = os.waitstatus_to_exitcode(status)
    if status:
        sys.exit(f"{' '.join(command)}: it failed")
    own, resident, files = peaks
    seconds = usage.ru_utime + usage.ru_stime
    return Used(seconds, time.perf_counter() - start, own / 1024, resident / 1024, files / 1e9)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("ranks", nargs="*", type=int, default=[4, 8, 16])
    parser.add_argument("--max-memory", type=float, default=4.0)
    parser.add_argument("--output", default="a.pftrace")
    parser.add_argument("--analyses", nargs="+")
    chosen = parser.parse_args()
    programs = Path(sys.executable).parent
    print(
        f"{'ranks':>5} {'CPU s':>8} {'wall s':>8} {'own MiB':>8} {'resident MiB':>12} {'files GB':>9}"
    )
    with tempfile.TemporaryDirectory() as name:
        for ranks in chosen.ranks:
            job, out = Path(name) / f"job{ranks}", Path(name) / f"out{ranks}"
            make_ranks(chosen.trace, job, ranks)
            out.mkdir()
            if chosen.analyses:
                command = [
                    f"{programs / 'chopper-analyze'}",
                    f"{job}",
                    *chosen.analyses,
                    "--csv",
                    f"{out}",
                ]
            else:
                command = [
                    f"{programs / 'chopper-convert'}",
                    f"{job}",
                    "-o",
                    f"{out / chosen.output}",
                ]
            limit = ["-q", "--max-memory", f"{chosen.max_memory:g}"]
            used = measured([*command, *limit])
            print(
                f"{ranks:5} {used.cpu_s:8.1f} {used.wall_s:8.1f} {used.own_mib:8.0f} "
                f"{used.resident_mib:12.0f} {used.files_gb:9.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()

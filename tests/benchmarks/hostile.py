"""Cost of hostile files: status, CPU seconds and memory of `chopper-convert` for each; the table of SECURITY.md.

``python tests/benchmarks/hostile.py [--scale SCALE] [NAME …]`` makes each file, converts it, and prints a row.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))

from hostile_files import FILES

ADDRESS_SPACE = 12 * 10**9
"""Bytes that the process may have: a part of the machine."""
LIMIT_S = 240
"""CPU seconds that a conversion may take: those of a busy machine are the same, unlike times that pass."""


def limited() -> None:
    """Take a part of the memory and of the processor, in the child."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))


def measured(path: Path) -> tuple[int, float, float, str]:
    """Status, CPU seconds, gigabytes and messages of a conversion."""
    command = [sys.executable, "-c", "from chopper_interop.start import convert; convert()", "-q"]
    with tempfile.TemporaryFile() as printed:
        child = subprocess.Popen(
            [*command, str(path), "-o", str(path.parent / "out.pftrace")],
            stdout=printed, stderr=printed, preexec_fn=limited,  # noqa: PLW1509 # no threads here
        )  # fmt: skip
        _, status, used = os.wait4(child.pid, 0)
        printed.seek(0)
        text = printed.read().decode(errors="replace")
    seconds = used.ru_utime + used.ru_stime
    return os.waitstatus_to_exitcode(status), seconds, used.ru_maxrss * 1024 / 1e9, text


def row(name: str, scale: float) -> str:
    """The row of one file."""
    file, make = FILES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file)
        make(path, scale)
        size = sum(f.stat().st_size for f in [path, *path.rglob("*")] if f.is_file())
        status, seconds, memory, message = measured(path)
    line = message.strip().replace(folder, "").replace("|", "/")
    count = f"{line.count(chr(10)) + 1} LINES: " if "\n" in line else ""
    cells = (f"{size / 1e6:.1f} MB", str(status), f"{seconds:.1f} s", f"{memory:.2f} GB")
    return f"| {name} | {' | '.join(cells)} | {count}{line[:150]} |"


def main() -> None:
    """Try those whose name contains one of these texts, or all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1)
    parser.add_argument("name", nargs="*")
    args = parser.parse_args()
    print("| attack | file | status | CPU time | memory | says |\n|---|---|---|---|---|---|")
    for name in FILES:
        if not args.name or any(part in name for part in args.name):
            print(row(name, args.scale), flush=True)


if __name__ == "__main__":
    main()

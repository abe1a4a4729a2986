"""CPU of the first conversion of a sample job on a machine, against the second, and what it compiles.

Usage: ``python tests/benchmarks/cold_start.py [PATH]``; without a path it makes the sample job. Run
with the Python of an installed wheel it shows what machine code that came along saves.
"""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

CONVERT = "from chopper_interop.start import convert; convert()"
COUNT = """
import sys, time
from numba.core import event
from chopper_interop import cli

class Compilations(event.Listener):
    # what a function takes by itself: numba's own functions in it count, those of this package do not
    def __init__(self):
        self.open = []
    def on_start(self, _):
        self.open.append([time.process_time(), 0.0])
    def on_end(self, ended):
        start, inner = self.open.pop()
        whole = time.process_time() - start
        function = ended.data["dispatcher"].py_func
        own = function.__module__.startswith("chopper_interop")
        if self.open:
            self.open[-1][1] += whole if own else inner
        if own:
            print("compiled", f"{function.__module__}.{function.__qualname__}", whole - inner)

event.register("numba:compile", Compilations())
sys.exit(cli.convert_main(sys.argv[1:]))
"""


def cpu_s(code: str, *arguments: str, cache: Path) -> tuple[float, str]:
    """CPU seconds of a Python process with a cache folder of its own, and its output."""
    environment = os.environ | {"XDG_CACHE_HOME": str(cache), "CHOPPER_COMPILERS": "0"}
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", code, "-q", *arguments],
        env=environment, check=True, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    after = os.times()
    spent = after.children_user + after.children_system
    return spent - before.children_user - before.children_system, done.stdout


def main() -> None:
    """Print CPU of both conversions, the number of compilations, and the dearest functions."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = sys.argv[1] if len(sys.argv) > 1 else str(folder / "job")
        if len(sys.argv) < 2:
            cpu_s(CONVERT, "--demo", path, cache=folder / "demo")
        arguments = (path, "-o", str(folder / "job.pftrace"))
        cold, output = cpu_s(COUNT, *arguments, cache=folder / "cache")
        warm, _ = cpu_s(CONVERT, *arguments, cache=folder / "cache")
    spent: dict[str, list[float]] = defaultdict(list)
    for line in output.splitlines():
        _, function, seconds = line.split()
        spent[function].append(float(seconds))
    count = sum(map(len, spent.values()))
    print(f"first {cold:.1f} s of CPU, second {warm:.1f} s; {count} compilations")
    dearest = sorted(spent.items(), key=lambda entry: -sum(entry[1]))[:10]
    for function, seconds in dearest:
        print(f"  {sum(seconds):5.2f} s  {len(seconds)} x  {function}")


if __name__ == "__main__":
    main()

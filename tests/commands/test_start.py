"""Start of the commands: no module that only compiling needs, and a stack that is not taken piece by piece."""

import resource
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from kineto_files import kernel, span, write

from chopper_interop import cli, start
from chopper_interop.arrays import loaded_code
from chopper_interop.commands import common

CONVERT = """
import os, sys
from chopper_interop import start
leave = os._exit
def shown(status):
    later = ("numba", "rich", "chopper_interop.arrays.claims", "chopper_interop.commands.compilers")
    print(*(m for m in later if m in sys.modules))
    sys.stdout.flush()
    leave(status)
os._exit = shown
start.convert()
"""


def test_a_small_conversion_imports_nothing_that_only_compiling_needs(tmp_path: Path) -> None:
    """Half of what numba imports is for compiling; the environments of its own functions imported it."""
    version = ".".join(metadata.version("numba").split(".")[:2])
    if version not in loaded_code.TRIED:
        pytest.skip(
            f"tests/arrays/test_compiled.py has to pass with numba {version} before it is in TRIED"
        )
    events = [span("cpu_op", "aten::mm", 1, 9), kernel("k", 4, 5, 0)]
    path = write(tmp_path / "x.json", events)
    command = [sys.executable, "-c", CONVERT, "-q", str(path), "-o", str(tmp_path / "x.pftrace")]
    for _ in range(2):  # the first may compile
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        if not done.stdout.split():
            return
    assert done.stdout.split() == []


def call(depth: int) -> int:
    """Memory that a hundred calls at a depth take from the system again, in pages."""
    if depth:
        return call(depth - 1)
    nothing()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        nothing()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def nothing() -> None:
    """Have a larger frame than `call`, so that it ends behind the border at some depth."""


nothing.__code__ = nothing.__code__.replace(co_stacksize=100)


def test_calls_of_a_command_take_no_memory_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python gave a piece of its stack back, and took it again, at each call at its border."""
    taken = []
    monkeypatch.setattr(cli, "check_main", lambda: taken.extend(map(call, range(400))))
    monkeypatch.setattr(common, "exit_now", lambda _: None)
    start._run("check_main")
    assert len(taken) == 400
    assert max(taken) < 100

"""Loops that a second process compiles: the list of them, and claims that keep two processes from compiling one loop."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import loops
import pytest

from chopper_interop.arrays import ahead, claims, code_files

LOOPS = """
import sys
import numpy as np
from chopper_interop.arrays import compiled
from chopper_interop.arrays.compiled import jit
counts = []
compiled.FEW = 0
compiled.announce_compilation(counts.append)
@jit
def step(x):
    return x + 1
@jit
def sums(x):
    total = 0
    for k in range(len(x)):
        total += step(x[k])
    return total
"""
NAME = f"loop-{16**24 - 1:x}.nbc"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a process whose cache folder is the test's; what still runs at the end is ended."""
    started = []

    def start(code: str, **variables: str) -> subprocess.Popen[str]:
        environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", code],
                env=environment | variables,
                text=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of code of those processes, in this one."""
    made = tmp_path / "chopper-interop" / "compiled"
    made.mkdir(parents=True, mode=0o700)
    made.parent.chmod(0o700)
    monkeypatch.setattr(code_files, "code_folder", lambda: made)
    monkeypatch.setattr(claims, "_in_vain", set())
    claims._file.cache_clear()
    yield made
    claims._file.cache_clear()


def test_every_loop_of_the_list_can_be_compiled_for_its_types() -> None:
    from chopper_interop.arrays import numba_code

    numba = pytest.importorskip("numba")
    for call in ahead.listed():
        arguments = [ahead.sample(kind) for kind in call.types]
        assert [json.loads(json.dumps(ahead.described(a))) for a in arguments] == call.types
        assert code_files.text_of(arguments) == numba_code.text_of(map(numba.typeof, arguments))
        loop = ahead.loop_of(call)
        assert len(arguments) == loop.py_func.__code__.co_argcount, "run `make loops`"


@pytest.mark.slow
def test_a_summary_calls_what_is_listed(demo: Path, tmp_path: Path) -> None:
    """The list is of another job, which calls some more; a change of few loops need not make it again."""
    command = ("analyze", "-q", str(demo))
    called = loops.calls(tmp_path, (command,)).keys()
    missing = called - set(ahead.PATH.read_text(encoding="utf-8").splitlines())
    assert len(missing) <= len(called) / 10, "run `make loops`"


HOLD = f"""
import sys
from chopper_interop.arrays import claims
print(claims.take({NAME!r}), flush=True)
sys.stdin.read()
"""


@pytest.mark.usefixtures("folder")
def test_a_claim_ends_with_its_process_however_that_ends(start) -> None:
    holder = start(HOLD)
    assert holder.stdout.readline() == "True\n"
    assert not claims.take(NAME, wait_s=0)
    assert claims.take(f"other-{1:024x}.nbc", wait_s=0)
    holder.kill()
    assert claims.take(NAME, wait_s=60)


@pytest.mark.usefixtures("folder")
def test_who_waits_for_a_process_that_hangs_goes_on(start) -> None:
    holder = start(HOLD)
    assert holder.stdout.readline() == "True\n"
    holder.send_signal(signal.SIGSTOP)
    assert not claims.take(NAME, wait_s=0.05)
    before = time.monotonic()
    assert not claims.take(NAME)  # it hangs with all its claims
    assert time.monotonic() - before < claims.WAIT_S / 2


@pytest.mark.usefixtures("folder")
def test_without_a_folder_nothing_is_claimed_and_nothing_waits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(code_files, "code_folder", lambda: None)
    assert not claims.are_possible()
    assert claims.take(NAME)
    claims.release(NAME)
    claims.release_all()


@pytest.mark.slow
def test_two_processes_at_once_compile_each_loop_once(start, folder: Path) -> None:
    code = LOOPS + "sys.stdin.readline()\nprint(sums(np.arange(3)), len(counts))"
    both = [start(code) for _ in range(2)]
    for process in both:  # both are at the line by the time the second reads it
        process.stdin.write("\n")
    printed = [process.communicate()[0].split() for process in both]
    assert [total for total, _ in printed] == ["6", "6"]
    assert sum(int(count) for _, count in printed) == 2
    assert len(list(folder.glob("*.nbc"))) == 2


AHEAD = """
from pathlib import Path
from chopper_interop.arrays import ahead
ahead.PATH = Path("{path}")
ahead.compile_listed(["other"])
"""


def test_listed_loops_are_compiled_but_those_that_are_not_as_listed(
    start, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "made.py").write_text(LOOPS)
    array = [["<i8", 1, "C", True]]
    path = tmp_path / "list.jsonl"
    lines = [
        ["made", "sums", array], ["made", "gone", array], ["gone", "sums", array],
        ["made", "sums", []], ["made", "sums", ["<i8"]],
    ]  # fmt: skip
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert start(AHEAD.format(path=path)).wait() == 0
    files = sorted(path.name.split("-")[0] for path in folder.glob("*.nbc"))
    assert files == ["step", "sums"]
    code = "from made import *\nprint(sums(np.arange(3)), len(counts), 'numba' in sys.modules)"
    assert start(code).communicate()[0] == "6 0 False\n"


@pytest.mark.usefixtures("folder")
def test_a_process_that_dies_while_it_compiles_leaves_the_loop_to_others(start) -> None:
    dies = LOOPS + (
        "import os, signal\n"
        "compiled.announce_compilation(lambda count: os.kill(os.getpid(), signal.SIGKILL))\n"
        "sums(np.arange(3))"
    )
    assert start(dies).wait() == -signal.SIGKILL
    code = LOOPS + "print(sums(np.arange(3)), len(counts))"
    assert start(code).communicate()[0] == "6 2\n"


COMMAND = """
import os
from chopper_interop.commands import compilers
compilers.start()
print(*(process.pid for process in compilers._started), flush=True)
input()
os._exit(0)
"""


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="asks Linux for processes")
def test_processes_end_with_the_command(start) -> None:
    command = start(COMMAND, CHOPPER_COMPILERS="2")
    others = [Path("/proc", pid) for pid in command.stdout.readline().split()]
    assert len(others) == 2
    assert all(path.exists() for path in others)
    command.kill()
    command.wait()
    deadline = time.monotonic() + 60
    while any(map(_runs, others)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(_runs, others))


def _runs(process: Path) -> bool:
    try:
        return "Z" not in (process / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


@pytest.mark.usefixtures("folder")
def test_none_is_started_where_there_is_nothing_to_spare(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from chopper_interop.commands import compilers
    from chopper_interop.io import memory

    monkeypatch.setattr(os, "getloadavg", lambda: (0.5, 0.5, 0.5))
    monkeypatch.setattr(memory, "available_bytes", lambda: 1 << 40)
    monkeypatch.setattr(compilers, "_processors", lambda: 4)
    for stated, count in (("3", 3), ("off", 0), ("", 2)):
        monkeypatch.setenv(compilers.VARIABLE, stated)
        assert compilers._count() == count

    def unknown() -> int:
        raise FileNotFoundError("/proc/meminfo")

    for target, name, value in (
        (sys, "executable", None),
        (memory, "available_bytes", unknown),
        (compilers, "_processors", lambda: 1),
        (os, "getloadavg", lambda: (4.0, 1.0, 1.0)),
        (memory, "available_bytes", lambda: 1 << 30),
        (claims, "are_possible", lambda: False),
        (code_files, "cache_folder", lambda: None),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(target, name, value)
            compilers.start()
            assert not compilers._started

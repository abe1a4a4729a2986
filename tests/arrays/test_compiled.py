"""Machine code is kept on disk by content: what a loop is compiled from, wherever it lies."""

import ast
import atexit
import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
from slow import slow_from

from chopper_interop.arrays import code_files, loaded_code

MODULES = {
    "callee.py": """
        from chopper_interop.arrays.compiled import jit
        @jit
        def step(x):
            return x + {added}
    """,
    "caller.py": """
        from chopper_interop.arrays.compiled import jit
        from callee import step
        @jit
        def twice(x):
            return step(step(x))
        print(twice({start}))
    """,
}


FORKS = """
import json, os, runpy, sys
import numba, numpy
# bytecode of a file that changes within a second, and keeps its size, would be taken for current
sys.dont_write_bytecode = True
if "compiling" in sys.argv:  # loads what only compiling needs, which would take most of each child's time
    numba.njit(lambda x: x)(1)
for line in sys.stdin:
    script, home, output = json.loads(line)
    child = os.fork()
    if not child:
        os.environ.update(HOME=home, XDG_CACHE_HOME=home)
        os.dup2(os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
        sys.path.insert(0, os.path.dirname(script))
        try:
            runpy.run_path(script, run_name="__main__")
            sys.stdout.flush()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Forks itself for each script: importing numba takes longer than what the scripts do."""


@cache
def forks(state: str) -> subprocess.Popen[str]:
    """A process that forks, and either has compiled ("compiling") or has only imported numba ("imported")."""
    process = subprocess.Popen(
        [sys.executable, "-c", FORKS, state],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def run_script(script: Path, home: Path, state: str = "compiling") -> tuple[str, int]:
    """Run a script in a process with a cache folder of its own; what it prints, and the code files then."""
    output = home / "output.txt"
    process = forks(state)
    print(json.dumps([str(script), str(home), str(output)]), file=process.stdin, flush=True)
    assert process.stdout.readline() == "0\n"
    return output.read_text().strip(), len(list(home.rglob("*.nbc")))


def python(code: str, home: Path, state: str = "compiling", **variables: str) -> tuple[str, int]:
    """Run code likewise; with variables, which numba reads when it is imported, in a process from the start."""
    script = home / "script.py"
    script.write_text(code)
    if not variables:
        return run_script(script, home, state)
    environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home)} | variables
    command = [sys.executable, str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip(), len(list(home.rglob("*.nbc")))


@pytest.fixture
def call(tmp_path: Path):
    """Run the caller in a process of its own; what it prints, and the files of code there are then."""
    home = tmp_path / "home"
    home.mkdir()

    def run(folder: str, added: int, start: str = "1", above: str = "") -> tuple[str, int]:
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, text in MODULES.items():
            lines = [line[8:] for line in text.format(added=added, start=start).splitlines()]
            (tmp_path / folder / name).write_text(above + "\n".join(lines))
        return run_script(tmp_path / folder / "caller.py", home)

    return run


def test_code_is_found_again_wherever_the_file_lies(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 1) == ("3", 2)
    assert call("there", 1, above="# moved\n\n") == ("3", 2)


@pytest.mark.parametrize("how", ["folder", "inner folder", "folder above", "link", "inner link"])
def test_code_that_others_could_have_put_there_is_not_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Machine code is unpickled: whoever can write it can run anything as this user."""
    base, temporary = tmp_path / "cache", tmp_path / "tmp"
    own = base / "chopper-interop"
    (own / "compiled").mkdir(parents=True)
    temporary.mkdir()
    places = {"folder": own, "inner folder": own / "compiled", "folder above": base, "link": own}
    place = places.get(how, own / "compiled")
    (own / "compiled" / "planted.nbc").touch()
    if how.endswith("link"):
        place.rename(tmp_path / "elsewhere")
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    code_files.cache_folder.cache_clear()
    code_files.code_folder.cache_clear()
    try:
        folder = code_files.code_folder()
        assert folder is None or not list(folder.iterdir())
        made = temporary / f"chopper-interop-{os.getuid()}"
        assert not made.exists() or made.stat().st_mode & 0o077 == 0
    finally:
        code_files.cache_folder.cache_clear()
        code_files.code_folder.cache_clear()


def test_code_that_no_run_used_for_long_goes_when_other_code_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that only loads code looks at none of the other files, of which there may be thousands."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code_files.cache_folder.cache_clear()
    code_files.code_folder.cache_clear()
    try:
        folder = code_files.code_folder()
        assert folder is not None
        old, recent = folder / "old.nbc", folder / "recent.nbc"
        for path, days in ((old, 31), (recent, 29)):
            path.touch()
            os.utime(path, (time.time() - days * 86_400,) * 2)
        loop = code_files.Compilable(lambda x: x, counts_references=False)
        assert not list(code_files.stored(loop, "int64", ("cpu",)))
        assert old.exists()
        code_files.save(loop, "int64", ("cpu",), b"code")
        assert list(code_files.stored(loop, "int64", ("cpu",))) == [b"code"]
        assert recent.exists()
        assert not old.exists()
    finally:
        code_files.cache_folder.cache_clear()
        code_files.code_folder.cache_clear()


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="no folder that nobody can write")
@pytest.mark.parametrize("has_temporary", [True, False])
def test_a_home_that_cannot_be_written_needs_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_temporary: bool
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/home")  # where not even root makes a folder
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path) if has_temporary else "/proc/tmp")
    code_files.cache_folder.cache_clear()
    try:
        expected = tmp_path / f"chopper-interop-{os.getuid()}" if has_temporary else None
        assert code_files.cache_folder() == expected
    finally:
        code_files.cache_folder.cache_clear()


def test_machine_code_needs_no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can be written, as in some containers, reading failed with status 70."""

    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/home")
    monkeypatch.setattr(tempfile, "gettempdir", none)
    code_files.cache_folder.cache_clear()
    try:
        assert code_files.cache_folder() is None
    finally:
        code_files.cache_folder.cache_clear()


def test_a_conversion_needs_no_home(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2}]}'
    )
    code = "from chopper_interop import start; start.convert()"
    command = [sys.executable, "-c", code, "-q", "x.json", "-o", "x.pftrace"]
    names = {"HOME", "XDG_CACHE_HOME"}
    for home in ({}, {"HOME": "/proc/home"}):
        environment = {k: v for k, v in os.environ.items() if k not in names} | home
        subprocess.run(command, cwd=tmp_path, env=environment, check=True)
        (tmp_path / "x.pftrace").unlink()


SMALL = """
import sys
from pathlib import Path
from chopper_interop import cli
Path("x.json").write_text(
    '{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2, "args": {"stream": 7, "device": 0}}]}'
)
cli.convert_main(["-q", "x.json", "-o", "x.pftrace"])
print("numba" in sys.modules)
"""


def test_a_small_conversion_needs_no_numba(tmp_path: Path) -> None:
    """Importing numba takes a fifth of it."""
    cache = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    for expected in (("True", "False"), ("False",)):  # the first time loops may be compiled
        done = subprocess.run(
            [sys.executable, "-c", SMALL], cwd=tmp_path, env=os.environ | {"XDG_CACHE_HOME": cache},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() in expected
        if done.stdout.strip() == "False":
            break


KINDS = """
import sys
from typing import NamedTuple
import numpy as np
from chopper_interop.arrays.compiled import jit
class Pair(NamedTuple):
    first: np.ndarray
    second: int
@jit
def second(x):
    return x[1]
@jit
def plus(x):
    return x + 1
@jit
def same(x):
    return x
table = np.zeros(3, [("a", "<i8"), ("b", "u1")])
fixed = np.arange(6).reshape(2, 3)
read_only = np.arange(3)
read_only.setflags(write=False)
pairs = (Pair(np.arange(3), 2), (1, 2.5), (np.arange(2), (3, True)), ((1, 2), (3, 4)))
print(*map(second, pairs))
print(plus(1), plus(2.5), plus(np.float32(1)), plus(np.uint8(3)), plus(-(2**63) + 1))
print(*map(plus, (fixed, fixed.T, fixed[:, ::2], read_only)))
print(same(True), same(None), same(table), same(table["a"]), same(np.bool_(False)))
print("numba" in sys.modules)
"""


def test_arguments_of_every_kind_are_those_of_kept_code(tmp_path: Path) -> None:
    """Names of files are of types of arguments, for which numba has objects and Python has values."""
    first, count = python("import numba\n" + KINDS, tmp_path)
    process = [sys.executable, str(tmp_path / "script.py")]
    (tmp_path / "script.py").write_text(KINDS)
    environment = os.environ | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}
    again = subprocess.run(process, env=environment, capture_output=True, text=True, check=True)
    assert again.stdout.strip() == first.removesuffix("True") + "False"
    assert len(list(tmp_path.rglob("*.nbc"))) == count


LOADED = """
import sys
import numpy as np
from chopper_interop.arrays.compiled import jit
@jit
def ordered(x):
    if not len(x):
        raise ValueError("empty")
    return np.sort(x)[::-1].copy()
@jit
def highest(x):
    return ordered(x)[0]
x = np.array([3, 1, 2])
print(ordered(x), "numba.np.linalg" in sys.modules{more})
try:
    ordered(x[:0])
except ValueError as error:
    print(error)
"""


def test_code_that_is_loaded_needs_nothing_that_compiles(tmp_path: Path) -> None:
    one, both = (LOADED.format(more=more) for more in ("", ", highest(x)"))
    assert python(one, tmp_path, "imported") == ("[3 2 1] True\nempty", 1)
    assert python(one, tmp_path, "imported") == ("[3 2 1] False\nempty", 1)
    # compiled with the loaded code of what it calls, and then loaded as well
    assert python(both, tmp_path)[1] == 2
    assert python(both, tmp_path, "imported") == ("[3 2 1] False 3\nempty", 2)


ODD = """
import sys
from typing import NamedTuple
import numpy as np
from chopper_interop.arrays.compiled import jit
class Sub(np.ndarray):
    pass
def same(x, by=1):
    return x
def outcome(*arguments, **named):
    try:
        result = jit(same)(*arguments, **named)
    except Exception as error:
        return type(error).__name__
    return f"{type(result).__name__} {getattr(result, 'dtype', '')} {result!r}"
bytes_ = np.arange(17, dtype=np.uint8)
fields = {"names": ["a", "b"], "formats": ["<i4", "<i8"], "offsets": [8, 0]}
values = (
    1, -(2**63), 2**63, 2**64, True, np.bool_(True), np.int8(-1), np.uint64(2**63), 1.5, np.float32(1.5),
    np.timedelta64(5, "ns"), None, np.array(3), np.zeros((0, 2)), np.zeros((0, 2)).T, np.arange(6)[::2],
    bytes_[1:].view("<i8"), np.arange(3).astype(">i8"), np.array([1, "a"], object), np.array(["ab"]),
    np.zeros(2, "<f2"), np.zeros(2, "M8[ns]"), np.arange(3).view(Sub), np.zeros(1, fields),
    (), (1, (2.5, None)), (1, 2**63),
)
for value in values:
    print(outcome(value, 1))
for arguments, named in (((1,), {}), ((), {}), ((1, 2, 3), {}), ((1,), {"by": 2}), ((1, 2), {"by": 2}), ((1, 2), {"x": 1}), ((), {"x": 1, "by": 2})):
    print(outcome(*arguments, **named))
"""


def test_odd_arguments_give_what_they_give_with_numba(tmp_path: Path) -> None:
    dispatched = python("import numba\n" + ODD, tmp_path)[0].split("\n")
    assert dispatched[2:4] == ["int  9223372036854775808", "TypingError"]
    assert python(ODD, tmp_path, PYTHONHASHSEED="0")[0].split("\n") == dispatched


KEPT = """
import sys
import threading
from unittest import mock
import llvmlite.binding
import numpy as np
from chopper_interop.arrays import loaded_code
from chopper_interop.arrays.compiled import jit
@jit
def rest(x, y):
    if y == 0:
        raise ZeroDivisionError("nothing left")
    return x % y
@jit
def doubled(x):
    return 2 * x
"""
THREADS = """
barrier = threading.Barrier(8)
def run():
    barrier.wait()
    results.append((rest(7, 4), doubled(np.arange(3)).tolist()))
results = []
threads = [threading.Thread(target=run) for _ in range(8)]
sys.setswitchinterval(1e-6)
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(results == 8 * [(3, [0, 2, 4])])
"""
BROKEN = """
def none_is_kept():
    loaded_code._linker.cache_clear()
    loaded_code.function.cache_clear()
    return loaded_code.function(rest, "int64,int64") is None
def broken(*_):
    raise failure
print(not none_is_kept())
failure = AttributeError("renamed")
for target, name, value in (
    (loaded_code, "TRIED", set()),
    (loaded_code, "_EXTENSIONS", ("numba._renamed", *loaded_code._EXTENSIONS[1:])),
    (loaded_code, "_EXTENSIONS", loaded_code._EXTENSIONS[::-1]),
    *((llvmlite.binding, name, broken) for name in (
        "create_mcjit_compiler", "add_symbol", "address_of_symbol", "get_host_cpu_features")),
    (loaded_code.importlib.util, "find_spec", lambda name: None),
    (loaded_code.Linker, "function", broken),
    (llvmlite.binding.ObjectFileRef, "from_data", broken),
    (llvmlite.binding.ExecutionEngine, "get_function_address", lambda *_: 0),
    (llvmlite.binding.ExecutionEngine, "get_global_value_address", lambda *_: 0),
):
    for failure in (AttributeError("x"), OSError("x"), RuntimeError("x"), ImportError("x")):
        with mock.patch.object(target, name, value):
            if not none_is_kept():
                print(name, failure)
with mock.patch.object(llvmlite.binding, "create_mcjit_compiler", broken):
    none_is_kept()
print(loaded_code._linker() is None, "numba" in sys.modules, rest(7, 4), "numba" in sys.modules)
"""
FREED = """
array = doubled(np.arange(1000))
try:
    rest(1, 0)
except ZeroDivisionError as error:
    print(error)
print("numba" in sys.modules, len(doubled.dispatcher(array)))
del array
"""


SPUN = """
import os, signal, threading
from chopper_interop.arrays.compiled import jit
@jit
def spun(count, rest):
    x = 0
    for i in range(count):
        x = (x * 31 + i) % 1_000_003
    out = np.empty(3, np.int64)
    out[0] = x % rest
    return out
"""
INTERRUPTED = """
if is_second:
    spun(1, 7)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    for _ in range(100):
        spun(20_000_000, 7)  # tenths of a second
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) is signal.default_int_handler, "numba" in sys.modules)
"""
BY_NUMBA = """
import traceback
spun(1, 7)
threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    for _ in range(100):
        spun(20_000_000, 7)
except KeyboardInterrupt as error:
    names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    print("interrupted", [name for name in names if "unpickle" in name], "numba" in sys.modules)
    print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
STOPPED = """
def stop(*_):
    raise TimeoutError
signal.signal(signal.SIGALRM, stop)
signal.setitimer(signal.ITIMER_REAL, 0.05)
try:
    spun(60_000_000, 7)
except TimeoutError:
    print("stopped", signal.getsignal(signal.SIGALRM) is stop)
"""
LOOKED_FOR = """
from chopper_interop.arrays import code_files, compiled
from chopper_interop.arrays.compiled import jit_in_place
def stop(*_):
    raise TimeoutError
def signalled(name, linked):
    def call(*arguments):
        signal.raise_signal(signal.SIGALRM)
        return linked(*arguments)
    return mock.patch.object(*name, call)
signal.signal(signal.SIGALRM, stop)
for owner, name in (compiled.mmap, "mmap"), (code_files, "stored"), (loaded_code.Linker, "function"):
    with signalled((owner, name), getattr(owner, name)):
        try:
            spun(1, 7)
            print(name, "goes on")
        except TimeoutError:
            pass
    loaded_code.function.cache_clear()
from chopper_interop.arrays import numba_code
for owner, name in (code_files, "save"), (numba_code, "_result_of"):
    @jit_in_place
    def added(x, y):
        return x + y
    with signalled((owner, name), getattr(owner, name)):
        try:
            added.dispatcher(1, 7)
            print(name, "goes on with numba")
        except TimeoutError:
            pass
"""
FIRST_ELSEWHERE = """
import time
is_second = False
other = threading.Thread(target=spun, args=(300_000_000, 7))  # seconds
other.start()
time.sleep(0.3)
"""
CROWDED = """
import os, resource
print(rest(7, 4))
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE"),) * 2)
try:
    doubled(np.arange(3))
except MemoryError:
    print("too little")
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with code of two loops."""
    home = tmp_path_factory.mktemp("kept")
    assert python(KEPT + "print(rest(7, 4), doubled(np.arange(3)))", home) == ("3 [0 2 4]", 2)
    return home


def test_what_another_numba_or_llvm_may_not_have_leaves_loops_to_numba(kept: Path) -> None:
    assert python(KEPT + BROKEN, kept, PYTHONHASHSEED="0")[0] == "True\nTrue False 3 True"


def test_threads_may_call_a_loop_for_the_first_time_at_once(kept: Path) -> None:
    code = KEPT + THREADS + "print('numba' in sys.modules)"
    assert python(code, kept, PYTHONHASHSEED="0")[0] == "True\nFalse"


@pytest.mark.parametrize("is_second", [False, True])
def test_an_interrupt_while_a_loop_runs_comes_behind_it(tmp_path: Path, *, is_second: bool) -> None:
    """Machine code ended the process by a segmentation fault where what it calls raised."""
    python(KEPT + SPUN + "spun(1, 7)", tmp_path)
    code = KEPT + SPUN + f"is_second = {is_second}" + INTERRUPTED
    assert python(code, tmp_path, PYTHONHASHSEED="0")[0] == "interrupted True False"


def test_an_interrupt_while_numba_calls_a_loop_comes_behind_it(tmp_path: Path) -> None:
    """numba's code goes on without the type of the array that it returns, and may end the process."""
    assert python(KEPT + SPUN + BY_NUMBA, tmp_path)[0] == "interrupted [] True\nTrue"


def test_all_handlers_are_set_again_though_one_raises_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[tuple[int, str]] = []

    def set_handler(number: int, handler: str) -> None:
        calls.append((number, handler))
        if len(calls) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(loaded_code, "_signal", SimpleNamespace(signal=set_handler))
    with pytest.raises(KeyboardInterrupt):
        loaded_code._restore({15: "ends", 2: "interrupts"})
    assert calls == [(15, "ends"), (15, "ends"), (2, "interrupts")]


def test_all_signals_that_came_while_a_loop_ran_are_handled_though_one_raises() -> None:
    """A program's own handler, such as one that notes that it is to be stopped, was not called behind Ctrl-C."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    of_interrupts = signal.signal(signal.SIGINT, signal.default_int_handler)

    def loop() -> None:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)

    try:
        with pytest.raises(KeyboardInterrupt):
            loaded_code.uninterrupted(loop)
        assert came == [signal.SIGTERM]
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGINT, of_interrupts)


def test_another_signal_while_a_loop_runs_for_the_first_time_comes_behind_it(
    tmp_path: Path,
) -> None:
    """Handlers of one's own, which may raise, ended the process likewise."""
    python(KEPT + SPUN + "spun(1, 7)", tmp_path)
    assert python(KEPT + SPUN + STOPPED, tmp_path, PYTHONHASHSEED="0")[0] == "stopped True"


def test_a_signal_while_code_is_looked_for_is_not_suppressed(tmp_path: Path) -> None:
    """What its handler raised passed for a fault of a file: the loop ran on, by numba."""
    code = KEPT + SPUN + LOOKED_FOR
    python(KEPT + SPUN + "spun(1, 7)", tmp_path)
    assert python(code, tmp_path, PYTHONHASHSEED="0")[0] == ""


def test_an_interrupt_while_another_thread_runs_a_loop_for_the_first_time(tmp_path: Path) -> None:
    python(KEPT + SPUN + "spun(1, 7)", tmp_path)
    code = KEPT + SPUN + FIRST_ELSEWHERE + INTERRUPTED
    assert python(code, tmp_path, PYTHONHASHSEED="0")[0] == "interrupted True False"


@pytest.mark.skipif(sys.platform != "linux", reason="limits of addresses")
def test_without_memory_for_machine_code_there_is_an_error(kept: Path) -> None:
    """LLVM, asked for it, would end the process."""
    assert python(KEPT + CROWDED, kept, PYTHONHASHSEED="0")[0] == "3\ntoo little"


def test_arrays_made_before_numba_is_imported_are_freed_after(kept: Path) -> None:
    """Python's debugging allocator ends a process that frees what it did not allocate."""
    printed = python(KEPT + FREED, kept, PYTHONMALLOC="debug")[0]
    assert printed == "nothing left\nFalse 1000"


@pytest.mark.parametrize(
    "settings",
    slow_from(["NUMBA_X=1", ".numba_config.yaml", "import numba", "NUMBA_NUM_THREADS=1"], 2),
)
def test_settings_of_numba_leave_loops_to_numba(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    monkeypatch.chdir(tmp_path)
    variables = {"PYTHONHASHSEED": "0"}
    if "=" in settings:
        variables |= [settings.split("=")]
    elif settings.startswith("."):
        (tmp_path / settings).touch()
    first = settings if settings.startswith("import") else ""
    code = f"{first}\n{KEPT}print(loaded_code._linker() is None)"
    changes_code = settings != "NUMBA_NUM_THREADS=1"
    assert python(code, kept, **variables)[0] == str(changes_code)


@pytest.mark.parametrize("damage", ["cut", "empty", "other content"])
def test_code_that_is_not_whole_is_compiled_again(tmp_path: Path, damage: str) -> None:
    """Machine code of which bytes are others would end the process."""
    code = "from chopper_interop.arrays.compiled import jit\n@jit\ndef f(x):\n    return x + 1\nprint(f(1))"
    assert python(code, tmp_path) == ("2", 1)
    (path,) = tmp_path.rglob("*.nbc")
    whole = path.read_bytes()
    half = len(whole) // 2
    damaged = {"cut": whole[:half], "empty": b"", "other content": whole[:half].ljust(len(whole))}
    path.write_bytes(damaged[damage])
    assert python(code, tmp_path) == ("2", 1)
    assert len(path.read_bytes()) > half
    if damage == "other content":
        assert path.read_bytes()[half:] != damaged[damage][half:]


def test_a_change_of_what_is_called_compiles_the_caller_again(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 2) == ("5", 4)
    assert call("here", 1) == ("3", 4), "the former code is still there"


def test_other_types_are_compiled_by_themselves(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 1, start="1.5") == ("3.5", 4)


def test_a_function_is_compiled_once_for_all_constants_that_are_given_to_it(tmp_path: Path) -> None:
    code = """
from chopper_interop.arrays.compiled import jit
@jit
def added(x, y):
    return x + y
@jit
def sums(x):
    return added(x, 1) + added(x, y=2) + added(3, x) + added(4, 5)
print(sums(10), len(added.inner_dispatcher.overloads))
"""
    assert python(code, tmp_path) == ("45 1", 2)


BOTH = """
from chopper_interop.arrays.compiled import jit
@jit
def step(x):
    return x + 1
@jit
def twice(x):
    return step(step(x))
"""


def test_what_takes_arguments_of_python_is_compiled_when_python_calls(tmp_path: Path) -> None:
    """Code that Python calls serves other loops, too; code for other loops alone is compiled sooner."""
    for home, calls, printed, files in (
        ("first", "twice(1), step(1)", "3 2", 3),
        ("first", "step(1), twice(1)", "2 3", 3),
        ("other", "step(1), twice(1)", "2 3", 2),
    ):
        (tmp_path / home).mkdir(exist_ok=True)
        assert python(BOTH + f"print({calls})", tmp_path / home) == (printed, files)


NAMED = """
from typing import NamedTuple
from chopper_interop.arrays.compiled import jit
class Pair(NamedTuple):
    first: int
    {field}: int
@jit
def same(pair):
    return pair
print(same(Pair(1, 2)).{field})
"""


def test_named_tuples_of_other_fields_are_other_types(tmp_path: Path) -> None:
    assert python(NAMED.format(field="second"), tmp_path) == ("2", 1)
    assert python(NAMED.format(field="other"), tmp_path) == ("2", 2)


IN_PLACE = """
import sys
import numpy as np
from chopper_interop.arrays.compiled import {decorator} as compiled
@compiled
def raised(values, by):
    for i in range(len(values)):
        values[i] += by
@compiled
def raise_both(values, by):
    raised(values[:2], by)
    raised(values[2:], 2 * by)
values = np.arange(4)
before = sys.getrefcount(values)
for _ in range(3):
    raise_both(values, 10)
print(values.tolist(), sys.getrefcount(values) - before)
"""


def test_what_makes_no_array_works_in_those_of_the_caller(tmp_path: Path) -> None:
    in_place, counting = (IN_PLACE.format(decorator=name) for name in ("jit_in_place", "jit"))
    assert python(in_place, tmp_path) == ("[30, 31, 62, 63] 0", 2)
    assert python(in_place, tmp_path) == ("[30, 31, 62, 63] 0", 2)
    assert python(counting, tmp_path) == ("[30, 31, 62, 63] 0", 4), "machine code of its own"


def test_loops_run_as_python_where_numba_is_switched_off(tmp_path: Path) -> None:
    code = """
from chopper_interop.io.wire import varint_size
print(varint_size(300))
"""
    assert python(code, tmp_path, NUMBA_DISABLE_JIT="1") == ("2", 0)


SHIPPED = """
from pathlib import Path
from llvmlite.binding.targets import FeatureMap
from chopper_interop.arrays import code_files, loaded_code
code_files.archive_path = lambda: Path({archive!r})
{change}
from chopper_interop.arrays.compiled import jit
@jit
def added(x, y):
    return x + y
@jit
def sums(x):
    return added(x, 1) + added(x, 2)
print(sums(10))
"""
needs_baseline = pytest.mark.skipif(
    code_files.baseline() is None, reason="no machine code is shipped for this kind of machine"
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An archive with the loop that Python calls."""
    home = tmp_path_factory.mktemp("shipped")
    compiler = {"NUMBA_CPU_NAME": code_files.baseline().name, "NUMBA_CPU_FEATURES": ""}
    assert python(SHIPPED.format(archive="", change=""), home, **compiler) == ("23", 2)
    path = home / "code.zip"
    with zipfile.ZipFile(path, "w") as target:
        for entry in home.rglob("sums-*.nbc"):
            target.write(entry, entry.name)
    return path


@needs_baseline
def test_what_came_with_the_package_is_not_compiled(archive: Path, tmp_path: Path) -> None:
    assert python(SHIPPED.format(archive=str(archive), change=""), tmp_path) == ("23", 0)


@needs_baseline
@pytest.mark.parametrize(
    "change",
    [
        "code_files.llvm.get_host_cpu_features = lambda: FeatureMap(sse2=True)",
        "code_files._VERSIONS = ('0.1',)",
        "code_files.shipped = lambda name: b''",
        "code_files.archive_path = lambda: Path('/dev/null')",
        "code_files.archive_path = lambda: Path('/nowhere')",
    ],
    ids=["processor", "numba", "empty code", "no archive", "none there"],
)
def test_what_does_not_fit_is_compiled(archive: Path, tmp_path: Path, change: str) -> None:
    if "features" in change and not code_files.baseline().features:
        pytest.skip("every processor of this kind has the features")
    assert python(SHIPPED.format(archive=str(archive), change=change), tmp_path) == ("23", 2)


def test_compilation_is_announced_if_there_is_more_than_a_little(tmp_path: Path) -> None:
    code = """
from chopper_interop.arrays import compiled
from chopper_interop.arrays.compiled import jit
compiled.FEW = 2
compiled.announce_compilation(lambda count: print("compiling", count))
def plus(k):
    def added(x):
        return x + k
    return jit(added)
for k in range(4):
    print(plus(k)(1))
"""
    assert python(code, tmp_path)[0].split("\n") == [
        "1", "compiling 2", "2", "compiling 3", "3", "compiling 4", "4"
    ]  # fmt: skip
    assert python(code, tmp_path)[0].split() == ["1", "2", "3", "4"]


def test_no_loop_has_a_comprehension() -> None:
    """Their bytecode differs between releases of one Python, and with it the names of machine code."""
    root = Path(__file__).resolve().parents[2]
    found = []
    comprehensions = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    for folder in ("chopper_interop", "schemas", "converters", "analyses"):
        for path in (root / folder).rglob("*.py"):
            text = path.read_text("utf-8")
            for function in ast.walk(ast.parse(text)) if "jit" in text else ():
                decorators = getattr(function, "decorator_list", ())
                if any("jit" in ast.unparse(decorator) for decorator in decorators):
                    inner = [n.lineno for n in ast.walk(function) if isinstance(n, comprehensions)]
                    found += [f"{path.relative_to(root)}:{line}" for line in inner]
    assert found == []

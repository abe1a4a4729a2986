"""Arrays of a job that is larger than memory lie in files, and have the values that they have in memory."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

import numpy as np
import pytest

from chopper_interop import registry
from chopper_interop.arrays import spill
from chopper_interop.arrays.compiled import jit
from chopper_interop.errors import WriteError

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="other systems keep arrays in memory"
)
_MANY = 1 << 18
"""Values of eight bytes that are a large array."""


@pytest.fixture
def job_in_files() -> Iterator[None]:
    """A job lies in files, as far as anybody asks."""
    with spill.when(True):
        column = spill.empty(_MANY, np.int64)
    yield
    del column


def _is_in_file(values: np.ndarray) -> bool:
    """Ask the system whether an array's last value is a page of a file without a name."""
    at = values.__array_interface__["data"][0] + values.nbytes - 1
    spans = [line.split(maxsplit=1)[0].split("-") for line in _files()]
    return any(int(start, 16) <= at < int(stop, 16) for start, stop in spans)


@jit
def _squares(count: int) -> np.ndarray:
    values = np.empty(count, np.int64)
    for at in range(count):
        values[at] = at * at
    return values


@pytest.mark.usefixtures("job_in_files")
def test_only_large_arrays_of_a_block_lie_in_files() -> None:
    before = np.arange(_MANY)
    with spill.scratch(0):
        large, small = before * 3, np.arange(10)
        of_loop = _squares(_MANY)
        with spill.scratch(0):
            inner = np.ones(_MANY)
        after_inner = before + 1
    after = before * 2
    assert [_is_in_file(values) for values in (large, of_loop, inner, after_inner)] == [True] * 4
    assert not any(map(_is_in_file, (before, small, after)))
    assert (large == 3 * np.arange(_MANY)).all()
    assert (of_loop == np.arange(_MANY) ** 2).all()
    assert inner.sum() == _MANY


@pytest.mark.usefixtures("job_in_files")
def test_objects_of_python_stay_in_memory_which_a_forked_process_does_not_share() -> None:
    with spill.scratch(0):
        text = bytes(8 * _MANY)
        numbers = dict.fromkeys(range(_MANY))
        before = len(_files())
        numbers |= dict.fromkeys(range(_MANY, 4 * _MANY))
        text += text
        assert len(_files()) == before
    assert len(numbers) == 4 * _MANY


def _files() -> list[str]:
    """Mapped files without a name."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "chopper-" in line and line.endswith("(deleted)")]


def test_arrays_of_a_job_in_memory_lie_there() -> None:
    assert not spill.in_use()
    with spill.scratch(0):
        assert not _is_in_file(np.arange(_MANY))


@pytest.mark.usefixtures("job_in_files")
def test_zeros_are_zeros_in_memory_that_was_used_before() -> None:
    with spill.scratch(0):
        kept = [np.full(_MANY, at) for at in range(1, 5)]
        addresses = {values.__array_interface__["data"][0] for values in kept}
        del kept[:2]
        zeros = np.zeros(_MANY, np.int64)
        assert zeros.__array_interface__["data"][0] in addresses
        assert not zeros.any()
        assert [values.mean() for values in kept] == [3, 4]


@pytest.mark.usefixtures("job_in_files")
def test_values_stay_where_an_array_grows_and_shrinks() -> None:
    with spill.scratch(0):
        values = np.arange(10)
        for count in (_MANY, 3 * _MANY, 2 * _MANY, 100, _MANY):
            kept = min(count, len(values))
            expected = values[:kept].copy()
            values.resize(count, refcheck=False)
            assert (values[:kept] == expected).all()
            assert not values[kept:].any()
        drawn = np.fromiter((at * 7 for at in range(_MANY)), np.int64)
    assert (drawn == np.arange(_MANY) * 7).all()


@pytest.mark.usefixtures("job_in_files")
def test_pages_that_are_unmapped_while_threads_compute_keep_their_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spill, "_RESIDENT_BYTES", -(1 << 40))  # at each look
    monkeypatch.setattr(spill, "_LOOK_S", 1e-3)

    def total(seed: int) -> int:
        random, sum_ = np.random.default_rng(seed), 0
        others: list[np.ndarray] = []
        for _ in range(8):
            count = int(random.integers(_MANY // 4, 2 * _MANY))
            values = np.arange(count) + seed
            sum_ += int(values.sum() + _squares(1 << 17)[-1]) - count * seed
            assert values[-1] == count - 1 + seed
            sum_ -= count * (count - 1) // 2 + (2**17 - 1) ** 2
            # columns, and memory that lies where files were: to unmap that would set it to zero
            with spill.when(True):
                others += [spill.full(count, seed, np.int64), spill.zeros_to_read(count, np.int64)]
            others[-1] += seed
            del others[:-6:2]
            assert all((other == seed).all() for other in others)
        return sum_

    with spill.scratch(0), ThreadPoolExecutor(4) as pool:
        contexts = [copy_context() for _ in range(8)]
        sums = list(pool.map(lambda context, seed: context.run(total, seed), contexts, range(8)))
    assert sums == [0] * 8


@pytest.mark.usefixtures("job_in_files")
def test_an_array_without_room_on_disk_is_an_error_that_names_the_folder() -> None:
    with (
        pytest.raises(WriteError, match=r"no room for 1,000,000\.0 GB.*TMPDIR"),
        spill.scratch(0),
    ):
        np.empty(10**15, np.int8)
    assert not _is_in_file(np.arange(_MANY))  # as after any block


@pytest.mark.usefixtures("job_in_files")
def test_so_it_is_where_a_writer_or_an_analysis_makes_the_array() -> None:
    with (
        pytest.raises(WriteError, match=r"no room for 1,000,000\.0 GB"),
        spill.scratch(0),
        registry.as_errors("writing", "perfetto"),
    ):
        np.empty(10**15, np.int8)


@pytest.mark.parametrize(
    ("size", "text"),
    [(40_000, "40.0 kB"), (262_144, "0.3 MB"), (50_000_000, "50.0 MB"), (10**9, "1.0 GB")],
)
def test_small_arrays_are_not_of_no_size(size: int, text: str) -> None:
    """It said 0.0 GB."""
    assert f"no room for {text} of a job" in str(spill.no_room(size, "No space left on device"))


_RESIDENT = """
import resource
import numpy as np
from chopper_interop.arrays import spill
from chopper_interop.arrays.compiled import jit_in_place

@jit_in_place
def reversed_sum(values):
    sum_ = 0
    for at in range(len(values) - 1, -1, -1):
        sum_ += values[at]
    return sum_

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) >> 10 for line in status if line.startswith("VmHWM"))

spill._RESIDENT_BYTES, spill._LOOK_S = 1 << 24, 1e-3
count, total = {mib} << 17, 0
np.sort(np.arange(9)[::-1]), reversed_sum(np.arange(9))
with spill.when(True):
    column = spill.empty(count, np.int64)
with spill.scratch(0):
    np.bincount(np.arange(1 << 20) % 7)
for at in range(0, count, 1 << 20):
    column[at : at + (1 << 20)] = 1
    spill.release()
before = peak()
with spill.scratch(0):
    {call}
print(peak() - before, total)
"""
_MIB = 512
"""Size of an array there."""
_TRIES = 4


@pytest.mark.parametrize(
    ("call", "total"),
    [
        ("total = np.bincount(column)[1]", _MIB << 17),  # numpy keeps Python's lock
        ("np.add.at(np.zeros(3, int), column, 1)", 0),  # so it does
        ("total = np.sort(column)[-1]", 1),
        ("total = np.zeros(count, np.int64)[-1]", 0),
        ("total = reversed_sum(column)", _MIB << 17),
    ],
)
def test_one_long_call_has_few_pages_of_files_at_a_time(call: str, total: int) -> None:
    """They were unmapped between calls: a job whose arrays have gigabytes seemed to take these.

    16 MiB are allowed. The thread that unmaps them waits for a processor on a busy machine, so that some runs have more.
    """
    program = [sys.executable, "-c", _RESIDENT.format(mib=_MIB, call=call)]
    more_mib = []
    while len(more_mib) < _TRIES and not any(mib < _MIB // 2 for mib in more_mib):
        done = subprocess.run(program, check=True, capture_output=True, text=True)
        mib, result = map(int, done.stdout.split())
        assert result == total
        more_mib.append(mib)
    assert min(more_mib) < _MIB // 2


_AT_EXIT = """
import numpy as np
from chopper_interop.arrays import spill
with spill.when(True):
    column = spill.empty(1 << 18, np.int64)
with spill.scratch(0):
    values = [np.arange(1 << 18) for _ in range(5)]
    {end}
"""


@pytest.mark.parametrize("end", ["", "raise SystemExit", "import os; os.kill(os.getpid(), 2)"])
def test_a_process_ends_as_others_do(end: str) -> None:
    program = [sys.executable, "-c", _AT_EXIT.format(end=end)]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    is_interrupted = "kill" in end
    assert (done.returncode, "KeyboardInterrupt" in done.stderr) == (
        (-2, True) if is_interrupted else (0, False)
    )


def _in_forked_process(function: Callable[[], object]) -> None:
    process = os.fork()
    if process == 0:
        function()
        os._exit(0)
    assert os.waitpid(process, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.usefixtures("job_in_files")
def test_a_forked_process_leaves_values_of_its_parent_as_they_are() -> None:
    kept = []

    def overwrite() -> None:
        with spill.scratch(0):
            kept.clear()
            assert not any(_is_in_file(np.full(_MANY, 9)) for _ in range(4))

    with spill.scratch(0):
        kept += [np.full(_MANY, 7) for _ in range(4)]
        _in_forked_process(overwrite)
    _in_forked_process(overwrite)
    assert all((values == 7).all() for values in kept)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_small_arrays_of_a_forked_process_lie_in_files_of_its_own() -> None:
    few = 1 << 13
    with spill.when(True):
        first = spill.full(few, 1, np.int64)
        was_written, writes = os.pipe()
        process = os.fork()
        if process == 0:
            os.read(was_written, 1)
            spill.full(few, 9, np.int64)
            os._exit(0)
        second = spill.full(few, 7, np.int64)
        os.write(writes, b" ")
        assert os.waitpid(process, 0)[1] == 0
    for end in (was_written, writes):
        os.close(end)
    assert (set(first.tolist()), set(second.tolist())) == ({1}, {7})


_IN_LONG_FOLDER = """
import sys
import numpy as np
from chopper_interop.arrays import spill
from chopper_interop.errors import WriteError
try:
    with spill.when(True):
        column = spill.empty(1 << 18, np.int64)
    with spill.scratch(0):
        np.ones(1 << 18)
except WriteError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize("length", [4_080, 4_081, 4_086, 4_087])
def test_a_folder_whose_name_leaves_no_room_for_those_of_files_is_one_line(
    tmp_path: Path, length: int
) -> None:
    """The longest names of folders, which are longer than what the tests' folder may have: they are made step by step."""
    rest = length - len(str(tmp_path))
    parts = [*["d" * 200] * ((rest - 2) // 201), ""]
    parts[-1] = "e" * (rest - 201 * (len(parts) - 1) - 1)
    here = os.open(tmp_path, os.O_DIRECTORY)
    for part in parts:
        os.mkdir(part, dir_fd=here)  # of a path that is too long for one call
        here = os.open(part, os.O_DIRECTORY, dir_fd=here)
    folder = "/".join([str(tmp_path), *parts])
    assert len(folder) == length
    done = subprocess.run(
        [sys.executable, "-c", _IN_LONG_FOLDER],
        env={**os.environ, "TMPDIR": folder},
        check=False,
        capture_output=True,
        text=True,
    )
    if length in {4_080, 4_087}:  # of longer names Python takes another folder by itself
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert done.returncode == 1
    assert done.stderr == (
        f"TMPDIR: names of files in it would have {length + 15:,} bytes, of which the system takes 4,095 "
        "(name another folder for files of a job that is larger than memory)\n"
    )


def test_files_are_made_in_the_temporary_folder_of_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that was refused for lack of room names another folder, and goes on."""
    with spill.when(True):
        before = spill.full(_MANY, 1, np.int64)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with spill.when(True):
        column = spill.full(8 * _MANY, 2, np.int64)  # none of a file that small ones share
    with spill.scratch(0):
        squares = np.square(np.arange(_MANY))
    assert sum(f"{tmp_path}/chopper-" in line for line in _files()) >= 2
    assert (before.sum(), column.sum(), squares[9]) == (_MANY, 16 * _MANY, 81)


_MODULES = """
import sys
from pathlib import Path
import numpy as np
{first}
from chopper_interop.arrays import spill
with spill.when(True):
    column = spill.empty(1 << 18, np.int64)
with spill.scratch(0):
    values = np.arange(1 << 18)
    grown = np.resize(values * 2, 1 << 19)
assert (grown[: 1 << 18] == 2 * np.arange(1 << 18)).all()
assert "chopper-" in Path("/proc/self/maps").read_text()
print("chopper_interop.arrays.file_functions" in sys.modules, "numba" in sys.modules)
"""


def test_the_allocator_is_compiled_once_for_all_processes(tmp_path: Path) -> None:
    """Each took 1.3 s to compile it. A damaged file is made again; numba may be there before."""

    def modules(first: str = "") -> list[str]:
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        command = [sys.executable, "-c", _MODULES.format(first=first)]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.split()

    assert modules() == ["True", "True"]
    assert modules() == ["False", "False"]
    assert modules("import numba") == ["False", "True"]
    (kept,) = tmp_path.rglob("file_functions-*.nbc")
    content = kept.read_bytes()
    kept.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert modules() == ["True", "True"]
    assert kept.read_bytes() != content[:-1] + bytes([content[-1] ^ 1])
    assert modules() == ["False", "False"]

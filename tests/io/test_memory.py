"""Files are read at the same time as far as there is room, and each in the end."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from chopper_interop.errors import TooLittleMemoryError, UsageError
from chopper_interop.io import memory


def test_no_more_than_fits_at_the_same_time() -> None:
    room, lock = memory.Room(10), threading.Lock()
    held, highest = 0, 0

    def read(size: int) -> int:
        nonlocal held, highest
        with room.taken(size):
            with lock:
                held += size
                highest = max(highest, held)
            time.sleep(0.002)
            with lock:
                held -= size
        return size

    sizes = [4, 3, 5, 2, 0, 6, 1, 10] * 4
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(read, sizes)) == sizes
    assert 5 <= highest <= 10


def test_what_is_larger_than_all_room_is_read_alone() -> None:
    room = memory.Room(10)
    with room.taken(100):
        waiting = threading.Thread(target=lambda: room.taken(1).__enter__())
        waiting.start()
        waiting.join(0.02)
        assert waiting.is_alive()
    waiting.join(5)
    assert not waiting.is_alive()


def test_the_machine_has_memory() -> None:
    assert 1 << 26 < memory.physical_bytes() < 1 << 50


@pytest.mark.parametrize(
    "text",
    [None, "", "MemTotal: 5 kB", "MemAvailable: 4 kB", "MemTotal: 5 kB\nMemAvailable:", "no colon",
     "MemTotal: 5 kB\nMemAvailable: many", *(f"MemTotal: 5 kB\nMemAvailable: {kb} kB" for kb in (0, 6))],
)  # fmt: skip
def test_what_the_machine_has_available_is_what_psutil_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    import psutil

    if text is not None:  # as no Linux writes it
        (tmp_path / "meminfo").write_text(text)
        monkeypatch.setattr(memory, "_MACHINE", tmp_path / "meminfo")
    said = psutil.virtual_memory().available
    assert memory._available_of_machine() == pytest.approx(said, rel=0.1)


GROUPS = {  # files of control groups → bytes that they leave
    "version 2, in a group of its own": (
        "0::/job/step",
        {
            "job/memory.max": "1000",
            "job/memory.current": "600",
            "job/memory.stat": "inactive_file 100",
        }
        | {
            "job/step/memory.max": "max",
            "job/step/memory.current": "5",
            "job/step/memory.stat": "",
        },
        500,
    ),
    "version 2, the folder of a container": (
        "0::/",
        {"memory.max": "1000", "memory.current": "600", "memory.stat": "anon 7\ninactive_file 0"},
        400,
    ),
    "version 1": (
        "9:name=systemd:/\n4:cpu,memory:/box",
        {"memory/box/memory.limit_in_bytes": "800", "memory/box/memory.usage_in_bytes": "300"}
        | {"memory/box/memory.stat": "cache 9\ntotal_inactive_file 50"},
        550,
    ),
    "no limit": ("0::/", {"memory.max": "max", "memory.current": "1", "memory.stat": ""}, None),
}


@pytest.mark.parametrize(("lines", "files", "left"), GROUPS.values(), ids=GROUPS)
def test_the_limit_of_a_container_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, files: dict[str, str], left
) -> None:
    for name, text in files.items():
        (tmp_path / "control" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "control" / name).write_text(text + "\n")
    (tmp_path / "groups").write_text(lines + "\n")
    monkeypatch.setattr(memory, "_GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_CONTROL", tmp_path / "control")
    if left is None:
        assert memory.available_bytes() > 1 << 24
    else:
        assert memory.available_bytes() == left


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are tried on Linux")
def test_the_limit_of_the_process_counts() -> None:
    import resource

    import psutil

    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (taken + (100 << 20), before[1]))
    try:
        assert memory.available_bytes() <= 101 << 20
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_what_the_user_says_counts_alone() -> None:
    with memory.at_most(0.5):
        assert memory.available_bytes() == 500_000_000
    with pytest.raises(UsageError, match="max-memory=-1"), memory.at_most(-1):
        pass


@pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOMEM, "no memory")])
def test_too_little_memory_is_one_error(error: Exception) -> None:
    with pytest.raises(TooLittleMemoryError, match="reading a"), memory.sufficing("reading a"):
        raise error


def test_other_errors_of_the_system_are_left() -> None:
    with pytest.raises(FileNotFoundError), memory.sufficing("reading a"):
        raise FileNotFoundError


_LINKS_BEFORE_AND_AFTER = """
import sys
import numpy as np
from chopper_interop.arrays import gather, interning
from chopper_interop.io import memory

def code_kb():
    with open("/proc/self/smaps") as lines:
        sizes, is_code = 0, False
        for line in lines:
            if "-" in line.split()[0]:
                is_code = "libllvmlite" in line and "r-xp" in line
            elif is_code and line.startswith("Rss:"):
                sizes += int(line.split()[1])
    return sizes

groups = np.arange(100_000) % 7
first = gather.group_rows(groups, 7)[1].tolist()
before = code_kb()
memory.give_back(1 << 30)
after = code_kb()
assert gather.group_rows(groups, 7)[1].tolist() == first
sums = gather.group_sums(groups, np.ones(len(groups), np.int64), 7)  # is linked now
assert sums.tolist() == np.bincount(groups).tolist()
print(before, after)
"""


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="of Linux")
def test_the_code_of_llvm_is_given_back_and_called_again() -> None:
    """Loading it maps tens of megabytes, which a large job would keep to its end."""
    words = [sys.executable, "-c", _LINKS_BEFORE_AND_AFTER]
    ended = subprocess.run(words, capture_output=True, text=True, check=True)
    before, after = map(int, ended.stdout.split())
    assert before > 10_000
    assert after < before / 10

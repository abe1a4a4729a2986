"""Disks that take no more, and files and folders that change or are no ordinary ones, end in one line."""

from __future__ import annotations

import errno
import os
import resource
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from slow import slow_from

import chopper_interop as ci
from chopper_interop import job_reading, sources
from chopper_interop.errors import ReadError, WriteError
from chopper_interop.io import inputs, outputs
from chopper_interop.testing.samples import tiny_trace

if TYPE_CHECKING:
    from collections.abc import Callable

OUTPUTS = ("a.pftrace", "et/", "a.pftrace.gz", "a.json", "a.graphml", "a.parquet", "a.et")
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)


def state(folder: Path) -> dict[str, bytes]:
    """All files of a folder, hidden ones too."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def in_a_child(act: Callable[[], int]) -> int:
    """Return what a function returns in a process of its own, whose limits may change."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = act()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("name", slow_from(OUTPUTS, 2))
def test_a_disk_that_takes_so_many_bytes_keeps_what_it_had(tmp_path: Path, name: str) -> None:
    """Each file may have so many bytes and no more, as on a disk that is full then."""
    target = f"{tmp_path}/{name}"
    ci.write(tiny_trace(), target)
    before = state(tmp_path)
    largest = max(len(data) for data in before.values())

    def write(limit: int) -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        try:
            ci.write(tiny_trace(), target)
        except WriteError as error:
            return 1 if "too large" in str(error) else 2
        return 0

    for limit in {0, 1, largest // 2, largest - 1}:
        assert in_a_child(lambda limit=limit: write(limit)) == 1
        assert state(tmp_path) == before, limit


@pytest.mark.parametrize("number", slow_from(FULL, 1))
@pytest.mark.parametrize("name", ["a.pftrace", "a.json.gz", "a.graphml"])
def test_a_full_disk_at_each_write(tmp_path: Path, monkeypatch, name: str, number: int) -> None:
    ci.write(tiny_trace(), f"{tmp_path}/{name}")
    before, opened = state(tmp_path), outputs._opened
    done = 0

    def failing(*arguments: Any, **options: Any) -> Any:
        stream = opened(*arguments, **options)
        write = stream.write

        class Stream:
            def write(self, data: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise OSError(number, os.strerror(number))
                return write(data)

            def __getattr__(self, attribute: str) -> Any:
                return getattr(stream, attribute)

        return Stream()

    monkeypatch.setattr(outputs, "_opened", failing)
    while True:
        left = step = done + 1
        try:
            ci.write(tiny_trace(), f"{tmp_path}/{name}")
        except WriteError as error:
            assert os.strerror(number) in str(error)  # noqa: PT017
        else:
            break
        assert state(tmp_path) == before
        done = step
    assert done > 0


@pytest.mark.parametrize("number", slow_from(FULL, 1))
@pytest.mark.parametrize("name", OUTPUTS)
def test_a_disk_that_says_late_that_it_is_full(
    tmp_path: Path, monkeypatch, name: str, number: int
) -> None:
    """Network file systems and quotas accept writes, and refuse them when they are synchronized."""
    ci.write(tiny_trace(), f"{tmp_path}/{name}")
    before = state(tmp_path)

    def full(_descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match=os.strerror(number)):
        ci.write(tiny_trace(), f"{tmp_path}/{name}")
    assert state(tmp_path) == before


def test_contents_are_on_the_disk_before_they_get_their_names(tmp_path: Path, monkeypatch) -> None:
    synced, renamed = [], []
    fsync, replace = os.fsync, Path.replace

    def noted(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def after(path: Path, target: Path) -> Path:
        renamed.append(path.stat().st_ino in synced)
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", noted)
    monkeypatch.setattr(Path, "replace", after)
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    assert renamed == [True]
    assert tmp_path.stat().st_ino in synced
    ci.write(tiny_trace(), f"{tmp_path}/et/")
    assert {path.stat().st_ino for path in (tmp_path / "et").iterdir()} <= set(synced)


def test_two_writers_of_one_file(tmp_path: Path) -> None:
    path = tmp_path / "a.pftrace"
    with outputs.file(path) as first:
        first.write(b"first")
        with outputs.file(path) as second:
            second.write(b"second")
        assert path.read_bytes() == b"second"
    assert state(tmp_path) == {"a.pftrace": b"first"}


def test_a_file_that_grows_while_it_is_read_is_read_to_its_first_end(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"x" * 100_000)
    before = Path.open

    class Growing:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def fileno(self) -> int:
            return self.file.fileno()

        def readinto(self, view: Any) -> int:
            with before(path, "ab") as more:
                more.write(b"y" * 1000)
            return self.file.readinto(view[:7000])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", lambda p, *a, **k: Growing(before(p, *a, **k)))
        data = inputs.read(path)
    assert bytes(data) == b"x" * 100_000


def test_a_file_that_is_replaced_while_it_is_read_is_one_of_both(
    tmp_path: Path,
) -> None:
    """A name that gets another content between recognition and reading: what was opened is read whole."""
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    inventory = sources.find([tmp_path / "a.pftrace"])
    (tmp_path / "b").write_bytes(b"no trace at all")
    (tmp_path / "b").replace(tmp_path / "a.pftrace")
    with pytest.raises(ReadError) as refused:
        job_reading.read_inventory(inventory, job_reading.Reading("job"))
    assert "\n" not in str(refused.value)


def test_sockets_and_devices_are_no_files(tmp_path: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ci.write(tiny_trace(), "a.pftrace")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        (tmp_path / "null").symlink_to("/dev/zero")
        inventory = sources.find([tmp_path])
        assert {path.name for path, _ in inventory.skipped} == {"socket", "null"}
        for name in ("socket", "null"):
            status, _, output = run("convert", name, "-o", "b.json")
            assert (status, output.count("\n")) == (4, 1)


@pytest.mark.slow
def test_a_folder_of_many_files(tmp_path: Path, run) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    ci.write(tiny_trace(), folder / "a.pftrace")
    for number in range(2000):
        (folder / f"{number}.txt").write_bytes(b"nothing of interest")
    status, _, output = run("convert", "-q", folder, "-o", tmp_path / "b.json")
    assert status == 0, output


@pytest.mark.slow
def test_a_folder_of_20000_files(tmp_path: Path, run) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    ci.write(tiny_trace(), folder / "a.pftrace")
    for number in range(20_000):
        (folder / f"{number}.txt").write_bytes(b"nothing of interest")
    assert run("convert", "-q", folder, "-o", tmp_path / "b.json")[0] == 0


@pytest.mark.parametrize(
    "name",
    slow_from(
        [b"\x1b[31mred.pftrace", b"'\" $(id)`id`.pftrace", b"new\nline.pftrace",
         b"\xff\xfe\x80.pftrace", b"-o.pftrace", b"a:b.pftrace", b"..pftrace.pftrace",
         b"\xed\xa0\x80.pftrace"],
        2,
    ),
)  # fmt: skip
def test_names_of_any_bytes(tmp_path: Path, run, name: bytes) -> None:
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    path = os.fsdecode(bytes(tmp_path) + b"/" + name)
    Path(path).unlink(missing_ok=True)
    status, _, output = run("convert", tmp_path / "a.parquet", "-o", f"perfetto:{path}")
    assert status == 0, output
    for out in ("b.json", "b.graphml", "b.parquet", "b.pftrace", "et/"):
        status, _, output = run("convert", "-q", path, "-o", f"{tmp_path}/{out}")
        assert (status, output) == (0, ""), out
    status, _, output = run("convert", path, "-o", f"{tmp_path}/c.json", "-O", "none=1")
    assert (status, output.count("\n")) == (2, 1)
    assert "\x1b" not in output


def test_a_name_within_a_file_leads_to_no_other_folder(tmp_path: Path, run) -> None:
    """The name of a job, of a rank and of a table decide names of files."""
    for job in ("../out", "a/b", "..", "", "a\0b"):
        trace = tiny_trace()
        trace = trace.with_meta(job=job)
        folder = tmp_path / "in"
        folder.mkdir(exist_ok=True)
        ci.write(trace, folder / "a.parquet")
        ci.write(trace, f"{folder}/et/")
        before = {path.name for path in tmp_path.iterdir()}
        assert before == {"in"}
        status, _, output = run("convert", "-q", folder / "a.parquet", "-o", f"{folder}/out/")
        assert status == 0, output
        assert {path.name for path in tmp_path.iterdir()} == {"in"}

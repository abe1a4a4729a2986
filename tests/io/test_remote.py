"""Inputs and outputs on URLs, by the file systems that fsspec itself has."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import fsspec
import pytest
from kineto_files import kernel, write

from chopper_interop import pipeline
from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[fsspec.AbstractFileSystem]:
    """A file system in memory that holds a job of two ranks."""
    system = fsspec.filesystem("memory")
    for rank in range(2):
        path = tmp_path / f"rank{rank}.json"
        write(path, [kernel(f"k{rank}", t, 1, t) for t in range(5)])
        system.pipe(f"/bucket/run/{path.name}", path.read_bytes())
    yield system
    system.rm("/bucket", recursive=True)


def test_a_folder_is_read_and_outputs_are_put_in_their_place(
    store: fsspec.AbstractFileSystem, tmp_path: Path, run: Run
) -> None:
    urls = [f"memory://bucket/out/{name}" for name in ("a.pftrace", "a.parquet", "et/")]
    outputs = [text for url in urls for text in ("-o", url)]
    status, _, error = run("convert", "memory://bucket/run", *outputs)
    assert status == 0
    assert urls[0] in error
    for rank in range(2):
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / f"rank{rank}.json").rename(tmp_path / "run" / f"rank{rank}.json")
    local = [
        text for name in ("a.pftrace", "a.parquet", "et/") for text in ("-o", f"{tmp_path}/{name}")
    ]
    assert run("convert", "-q", tmp_path / "run", *local)[0] == 0
    assert store.cat("/bucket/out/a.pftrace") == (tmp_path / "a.pftrace").read_bytes()
    there = {path.removeprefix("/bucket/out/") for path in store.find("/bucket/out/et")}
    assert there == {f"et/{path.name}" for path in (tmp_path / "et").iterdir()}
    again = pipeline.read("memory://bucket/out/a.parquet")
    assert again.nodes.equals(pipeline.read(tmp_path / "a.parquet").nodes)
    assert pipeline.read("memory://bucket/run").meta.job == "run"


@pytest.mark.usefixtures("store")
def test_a_file_of_an_archive_and_a_local_url(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.write(tmp_path / "rank0.json", "rank0.json")
    packed = pipeline.read(f"zip://rank0.json::file://{tmp_path}/a.zip")
    plain = pipeline.read(f"file://{tmp_path}/rank0.json")
    assert packed.nodes.equals(plain.nodes)
    pipeline.write(plain, f"file://{tmp_path}/a.pftrace")
    assert (tmp_path / "a.pftrace").stat().st_size > 0


def test_what_cannot_be_read_or_written_is_one_line(
    store: fsspec.AbstractFileSystem, run: Run, tmp_path: Path
) -> None:
    for url, text in {
        "memory://bucket/none.json": "there is no such file",
        "nothing://a/b.json": "nothing",
        "memory://": "it names no file",
    }.items():
        status, _, error = run("convert", "-q", url, "-o", tmp_path / "a.pftrace")
        assert (status != 0, error.count("\n")) == (True, 1)
        assert text in error
    target = "memory://bucket/out/a.parquet"
    assert run("convert", "-q", "memory://bucket/run", "-o", target)[0] == 0
    files = store.find("/bucket")
    status, _, error = run("convert", "-q", "memory://bucket/run", "-o", target)
    assert status != 0
    assert "folder with files already" in error
    status, _, error = run(
        "convert",
        "-q",
        "memory://bucket/run/rank0.json",
        "-o",
        "kineto:memory://bucket/run/rank0.json",
    )
    assert status != 0
    assert "overwritten" in error
    assert store.find("/bucket") == files


def test_without_fsspec_urls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def fails(name: str, *arguments: object, **options: object) -> object:
        if name.startswith("fsspec"):
            raise ImportError(name)
        return load(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", fails)
    with pytest.raises(UsageError, match=r"fsspec.*chopper-interop\[remote\]"):
        pipeline.read("s3://bucket/a.json")


@pytest.mark.parametrize(
    "url", ["file://", "reference://x", "jupyter://x", "dir://x", "nosuch://x"]
)
def test_urls_that_name_nothing_are_one_line(tmp_path: Path, run: Run, url: str) -> None:
    """`file://` was the current folder; protocols that lack an argument were internal errors."""
    for arguments in ((url, "-o", tmp_path / "x.pftrace"), (tmp_path, "-o", f"perfetto:{url}")):
        status, _, error = run("convert", *arguments)
        assert status == UsageError.exit_status
        assert len(error.splitlines()) == 1
        assert url in error


def started(*arguments: object, **variables: object) -> subprocess.CompletedProcess[str]:
    code = "from chopper_interop import start; start.convert()"
    environment = os.environ | {name: str(value) for name, value in variables.items()}
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_copies_are_gone_when_the_command_ends(tmp_path: Path) -> None:
    """A command ends without finalizers, and the copies stayed in TMPDIR."""
    job, temporary = tmp_path / "a.zip", tmp_path / "tmp"
    temporary.mkdir()
    write(tmp_path / "rank0.json", [kernel("k", 1, 1, 1)])
    with zipfile.ZipFile(job, "w") as archive:
        archive.write(tmp_path / "rank0.json", "in/rank0.json")
    arguments = (f"zip://in::{job}", "-q", "-o", tmp_path / "x.pftrace")
    done = started(*arguments, TMPDIR=temporary)
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == []
    left = temporary / ".chopper-of-a-killed.part"  # by whatever process
    left.mkdir()
    os.utime(left, (0, 0))
    assert started(*arguments, TMPDIR=temporary).returncode == 0
    assert list(temporary.iterdir()) == []

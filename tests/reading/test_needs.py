"""Inputs that do not fit into memory are refused before they are read, in one line, with a status of its own."""

from __future__ import annotations

import gzip
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
from kineto_files import call, kernel, span, write

from chopper_interop import errors, job_reading, registry
from chopper_interop.arrays import spill
from chopper_interop.io import inputs

if TYPE_CHECKING:
    from pathlib import Path

_ONE_RANK = "--ranks 4 reads one rank alone, which takes about"
_SOME_STEPS = "chopper-convert --steps FIRST-LAST and read(steps=…) read some training steps"


def test_too_little_memory_is_said_before_reading(tmp_path: Path, run) -> None:
    for rank, kernels in ((7, 500), (2, 3), (3, 3)):
        info = {"distributedInfo": {"rank": rank}}
        write(tmp_path / f"{rank}.json", [kernel("k", t, 1, t) for t in range(kernels)], **info)
    output = tmp_path / "a.pftrace"
    status, _, text = run("convert", "-q", tmp_path, "--max-memory", "0.00004", "-o", output)
    assert (status, text.count("\n")) == (10, 1)
    assert "3 sources" in text
    assert (
        "--ranks 2-3 and read(ranks='2-3') leave it out" in text
    )  # and not ranks that the job has not
    assert "--max-memory 0.1" in text  # what it says suffices
    assert "and max-memory allows 40.0 kB" in text
    assert not output.exists()
    assert run("convert", "-q", tmp_path, "--max-memory", "0.1", "-o", output)[0] == 0


def test_a_file_in_a_folder_that_does_not_fit_is_no_loss(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the folder would be a job that lacks a rank for want of memory."""
    from chopper_interop.io import json_events

    for rank in range(2):
        info = {"distributedInfo": {"rank": rank + 4}}
        write(tmp_path / f"rank{rank}.json", [kernel(f"k{rank}", 1, 1, 1)], **info)
    scan, scan_short = json_events.scan, json_events.scan_short

    def fails(text, *arguments, **options):
        if b"k1" in bytes(text.bytes):
            raise MemoryError
        return scan(text, *arguments, **options)

    def fails_together(texts):
        if any(b"k1" in text for text, _ in texts):
            raise MemoryError
        return scan_short(texts)

    monkeypatch.setattr(json_events, "scan", fails)
    monkeypatch.setattr(json_events, "scan_short", fails_together)
    status, _, text = run("convert", "-q", tmp_path, "-o", tmp_path / "a.pftrace")
    assert status == errors.TooLittleMemoryError.exit_status
    assert "rank1.json" in text
    assert "the job takes about 0.1 GB, by the size of its files, and " in text
    assert "--ranks 4 reads one rank alone, which takes about 0.1 GB" in text
    assert not (tmp_path / "a.pftrace").exists()


@pytest.mark.parametrize("sizes", [(5,), (5, 5)])
def test_memory_that_does_not_suffice_for_writing_is_said_with_the_amounts(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...]
) -> None:
    from chopper_interop import pipeline

    def fails(*_arguments, **_options):
        raise MemoryError

    for rank, kernels in enumerate(sizes):
        write(tmp_path / f"rank{rank}.json", [kernel("k", t, 1, t) for t in range(kernels)])
    monkeypatch.setattr(pipeline, "write_all", fails)
    status, _, text = run("convert", "-q", tmp_path, "-o", tmp_path / "a.pftrace")
    assert (status, text.count("\n")) == (10, 1)
    assert "writing the outputs takes more memory than there is: the job takes about 0.1 GB" in text
    assert ("--ranks 0 reads one rank alone" in text) == (len(sizes) > 1)
    assert _SOME_STEPS in text
    assert "-O args=none takes about 0.1 GB" in text


@pytest.mark.parametrize(
    ("needed", "in_files", "ratio", "options", "steps", "hint"),
    [
        (
            (3e9, 1e9),
            False,
            0,
            {},
            None,
            f"--max-memory 3.0 keeps ranks in files; {_ONE_RANK} 3.0 GB; {_SOME_STEPS}",
        ),
        ((1e9, 3e9), True, 0, {}, None, f"{_ONE_RANK} 3.0 GB; {_SOME_STEPS}"),
        ((1e9, 0), False, 0, {}, None, f"{_ONE_RANK} 1.0 GB; {_SOME_STEPS}"),
        (
            (1e9, 0),
            False,
            0.3,
            {},
            None,
            f"{_ONE_RANK} 1.0 GB; {_SOME_STEPS}; -O args=none takes about 0.7 GB a rank",
        ),
        ((1e9, 0), False, 0.3, {"args": "none"}, None, f"{_ONE_RANK} 0.7 GB; {_SOME_STEPS}"),
        ((1e9,), False, 0.3, {}, None, f"{_SOME_STEPS}; -O args=none takes about 0.7 GB"),
        ((1e9,), False, 0.3, {"args": "none"}, None, _SOME_STEPS),
        ((1e9,), False, 0.3, {}, (4,), _SOME_STEPS.replace("some", "fewer")),
    ],
)
def test_files_are_a_remedy_unless_ranks_lie_in_them_or_one_is_all(
    monkeypatch: pytest.MonkeyPatch,
    needed: tuple[float, float],
    ratio: float,
    options: dict[str, str],
    steps: tuple[int, ...] | None,
    hint: str,
    *,
    in_files: bool,
) -> None:
    monkeypatch.setattr(spill, "_mapped", {})
    converter = registry.Converter(
        "a", "a", memory_ratio=1.0, arguments_ratio=ratio, steps_ratio=0.1
    )
    reading = job_reading.Reading("a", options, steps=steps)
    sources = [SimpleNamespace(converter=converter, expected_bytes=size) for size in needed]
    monkeypatch.setattr(job_reading, "stated_rank", lambda source: 4 + (source is not sources[0]))
    with (
        pytest.raises(errors.TooLittleMemoryError) as raised,
        spill.when(in_files),
        job_reading.amounts_stated("reading", sources, reading),
    ):
        raise MemoryError
    assert raised.value.hint == hint


@pytest.mark.parametrize("size", [10, 100_000])
def test_gzip_states_how_large_it_is(tmp_path: Path, size: int) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(range(97)) * (size // 97 + 1)))
    unpacked = len(inputs.read(path))
    assert inputs.expected_bytes(path) in {unpacked, 10 * path.stat().st_size}


def test_the_end_of_a_gzip_file_that_is_cut_is_no_size(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(100))[:-4] + b"\xff\xff\xff\xff")
    assert inputs.expected_bytes(tmp_path / "a.gz") < 1000


def test_an_analysis_that_lacks_memory_says_the_amounts(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_trace: object) -> None:
        raise MemoryError

    path = write(tmp_path / "rank0.json", [kernel("k", 1, 1, 1)])
    monkeypatch.setattr(registry, "analysis", lambda _: fails)
    status, _, text = run("analyze", "-q", path, "kernels")
    assert status == 10
    assert "analysis kernels takes more memory than there is: the job takes about 0.1 GB" in text
    assert _SOME_STEPS in text


_KILOBYTES = (200_000, 350_000, 500_000, 600_000, 700_000, 800_000, 1_000_000, 2_000_000)
"""Addresses that a process may have: from fewer than its libraries take to enough."""


@pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are tried on Linux")
@pytest.mark.parametrize(
    "more", [(), ("-O", "args=none"), ("--steps", "1")], ids=["all", "no arguments", "steps"]
)
def test_under_any_limit_a_command_converts_or_says_what_bounds_memory(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    """A line and status 10, or all of the output; nothing in between, and no file that is half written."""
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 1000),
        *(call("cudaLaunchKernel", t, 0.2, t + 1) for t in range(100_000)),
        *(kernel(f"k{t % 100}", t, 0.5, t + 1, note="x" * 100) for t in range(100_000)),
    ]
    path = write(tmp_path / "rank0.json", events)
    outcomes = {}
    for limit in _KILOBYTES:
        folder = tmp_path / str(limit)
        folder.mkdir()
        arguments = ["-q", str(path), "-o", str(folder / "a.pftrace"), *more]
        code = (
            f"import sys; from chopper_interop import cli; sys.exit(cli.convert_main({arguments}))"
        )
        command = ["sh", "-c", f'ulimit -v {limit} && exec "$0" -c "$1"', sys.executable, code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        outcomes[limit] = done.returncode
        assert done.returncode in (0, 10), done.stderr
        assert done.stderr.count("\n") == (done.returncode == 10)
        assert [file.name for file in folder.iterdir()] == ["a.pftrace"] * (done.returncode == 0)
        if done.returncode and not more:
            assert "-O args=none" in done.stderr
            assert "--steps" in done.stderr
    assert set(outcomes.values()) == {0, 10}
    assert outcomes[_KILOBYTES[-1]] == 0

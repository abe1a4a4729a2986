"""``chopper-analyze --html`` and ``--figures``."""

import sys
from collections.abc import Callable
from pathlib import Path

import gpu_work
import pytest

import chopper_interop as ci
from chopper_interop.schemas.kinds import Kind

pytest.importorskip("altair", reason="the extra report is not installed")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def job(tmp_path: Path) -> Path:
    work = [gpu_work.Work(Kind.KERNEL, 10 * i, 5, name=f"k{i % 2}") for i in range(8)]
    ci.write(gpu_work.trace(work), tmp_path / "job.parquet")
    return tmp_path / "job.parquet"


def test_a_report(run: Run, job: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    status, _, err = run("analyze", job, "temporal", "--html", page)
    assert status == 0, err
    text = page.read_text("utf-8")
    assert text.startswith("<!doctype html>")
    assert str(page) in err
    assert "needs telemetry of GPUs" in err
    assert "Power over time" in text
    assert "Power over time" not in err, "the page lists them, a line names two"


@pytest.mark.slow
def test_pictures_replace_those_of_an_earlier_report(run: Run, job: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    for _ in range(2):
        status, _, err = run("analyze", job, "temporal", "--figures", folder)
        assert status == 0, err
    names = {path.name for path in folder.iterdir()}
    assert {"idle-time-by-cause.svg", "idle-time-by-cause.png"} <= names
    assert all(path.read_bytes()[:4] in (b"<svg", b"\x89PNG") for path in folder.iterdir())


@pytest.mark.parametrize("missing", ["altair", "vl_convert"])
def test_without_the_extra_one_line_names_it(
    run: Run, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    status, out, err = run("analyze", job, "temporal", "--html", tmp_path / "report.html")
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert "pip install 'chopper-interop[report]'" in err


UNWRITABLE = {
    "a report": ("--html", "folder", "it is a folder, and one file is written"),
    "a report in a file": ("--html", "file/report.html", "Not a directory"),
    "pictures": ("--figures", "file", "Not a directory"),
    "tables": ("--csv", "file", "Not a directory"),
    "a trace": ("-o", "file/x.pftrace", "Not a directory"),
}


@pytest.mark.parametrize("what", UNWRITABLE)
def test_outputs_that_cannot_be_written_are_seen_before_anything_is_read(
    run: Run, job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """They were seen after all analyses, half a minute later."""
    from chopper_interop import job_reading

    option, name, text = UNWRITABLE[what]
    monkeypatch.setattr(job_reading, "read_inventory", None)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    status, out, err = run("analyze", job, "temporal", option, tmp_path / name)
    assert (status, out, err.count("\n")) == (6, "", 1)
    assert text in err
    assert not list(tmp_path.glob("**/.chopper-*"))


def test_a_report_never_replaces_an_input(run: Run, job: Path) -> None:
    file = next(job.rglob("*.parquet"))
    status, _, err = run("analyze", job, "temporal", "--html", file)
    assert status == 2, err
    assert file.read_bytes()[:4] == b"PAR1"


def test_a_missing_folder_is_found_before_reading(run: Run, job: Path, tmp_path: Path) -> None:
    status, _, err = run(
        "analyze", job, "temporal", "--html", tmp_path / "no" / "no" / "report.html"
    )
    assert status == 6
    assert "there is no such folder" in err

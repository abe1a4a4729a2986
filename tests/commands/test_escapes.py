"""Names of files and within files reach the terminal escaped: they could control it, or be taken for markup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kineto_files import BASE, kernel, span, write

if TYPE_CHECKING:
    from pathlib import Path

EVIL = "\x1b[31mred\x1b]0;title\x07 [/bold][red]x[/] \n\r\u202e\x85\u2028"
"""Colour, title of the window, markup of rich, breaks of lines, text from right to left."""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = tmp_path / "job\x1b[1m[b]"
    folder.mkdir()
    info: Any = {"distributedInfo": {"rank": 0, "world_size": 1}}
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 100),
        span("cpu_op", EVIL, 1, 9),
        kernel(EVIL, 10, 50, 0),
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": EVIL}},
        {"ph": "C", "name": EVIL, "pid": 1, "ts": 5, "args": {EVIL: 3}},
    ]
    write(folder / "rank0\x1b[31m[x]\u202e.json", events, baseTimeNanoseconds=BASE, **info)
    (folder / "unknown\x1b[7m[bold].txt").write_text("nonsense")
    return folder


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        (
            "convert",
            ["-o", "perfetto:OUT[/\x1b[2m.pftrace", "-o", "chakra:OUT\x1b[2m[bold]/"],
        ),
        ("convert", ["--on-loss", "error", "-o", "perfetto:OUT"]),
        ("analyze", []),
        ("analyze", ["all", "--definitions"]),
        ("analyze", ["temporal", "--by", "kernel", "--html", "OUT\x1b[2m.html"]),
        ("analyze", ["temporal", "--by", EVIL]),
        ("analyze", ["compare", "--against", EVIL]),
    ],
)
def test_terminals_get_no_control_characters(
    job: Path, tmp_path: Path, run: Any, command: str, arguments: list[str]
) -> None:
    texts = [text.replace("OUT", f"{tmp_path}/out") for text in arguments]
    status, stdout, stderr = run(command, job, *texts)
    assert status != 70, stderr
    for line in (stdout + stderr).split("\n"):
        assert line.isprintable(), repr(line)


def test_names_of_ets_are_escaped(job: Path, tmp_path: Path, run: Any) -> None:
    prefix = tmp_path / "et\x1b[1m[b]"
    assert run("convert", "-q", job, "-o", f"chakra:{prefix}/")[0] == 0
    status, stdout, stderr = run("check", prefix)
    assert status == 0
    assert (stdout + stderr).replace("\n", "").isprintable()

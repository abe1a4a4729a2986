"""Files made to exhaust a reader end in a trace or in one line, soon; `tests/benchmarks/hostile.py` has them large."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hostile_files import FILES

import chopper_interop as ci
from chopper_interop.errors import ReadError, UsageError
from chopper_interop.io import inputs
from chopper_interop.testing.samples import tiny_trace

SCALE = 0.01
"""Of the full size: JSON is 10,000 deep, numbers have a million digits, texts 10 MB, bombs 40 MB."""
MAX_CPU_S = 10
"""Processor time, compilation included; the attacks would take minutes, or have no end."""


@pytest.mark.parametrize("name", FILES)
def test_hostile(tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 23)
    file, make = FILES[name]
    make(tmp_path / file, SCALE)
    begin = time.process_time()
    status, _, output = run("convert", "-q", tmp_path / file, "-o", tmp_path / "out.pftrace")
    assert time.process_time() - begin < MAX_CPU_S
    assert output.count("\n") <= 1, output
    assert (tmp_path / "out.pftrace").exists() == (status == 0)
    if name in REFUSED:
        assert (status, REFUSED[name] in output) == (4, True), output
    else:
        assert status in (0, 3, 4), output


REFUSED = {
    **dict.fromkeys(
        ["gzip bomb", "xz bomb", "bzip2 bomb", "zstd bomb", "bomb of compressed packets"],
        "--max-unpacked",
    ),
    "SQLite: default text": "many times the file",
    "Parquet: equal rows": "--max-unpacked",
}
"""Files of which nothing is read, and a part of what is said."""


def test_the_page_on_security_names_tests_that_exist() -> None:
    """Each fault of its table has one."""
    root = Path(__file__).parents[2]
    page = (root / "SECURITY.md").read_text("utf-8")
    table = page[page.index("| fault |") :].split("\n\n")[0].splitlines()[2:]
    tests = "".join(path.read_text("utf-8") for path in (root / "tests").rglob("test_*.py"))
    for row in table:
        names = re.findall(r"`(test_\w+)`", row)
        assert names, row
        assert [name for name in names if f"def {name}(" not in tests] == []
    for file in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (root / file).exists(), file


def test_what_is_sound_next_to_bombs_is_read(tmp_path: Path, run, monkeypatch) -> None:
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 20)
    FILES["eight bombs next to a trace"][1](tmp_path / "in", 0.001)
    status, _, output = run("convert", "-q", tmp_path / "in", "-o", tmp_path / "out.pftrace")
    assert status == 0
    assert "8 file-unreadable" in output


def test_the_library_sets_the_limit_for_one_reading(tmp_path: Path, monkeypatch) -> None:
    ci.write(tiny_trace(), tmp_path / "a.json.gz")
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 10)
    monkeypatch.setattr(inputs, "_MAX_RATIO", 1)
    with pytest.raises(ReadError, match="--max-unpacked"):
        ci.read(tmp_path / "a.json.gz")
    assert ci.read(tmp_path / "a.json.gz", max_unpacked=0.001).nodes.num_rows == 5
    trace = ci.convert(tmp_path / "a.json.gz", tmp_path / "b.pftrace", max_unpacked=0.001)
    assert trace.nodes.num_rows == 5
    with pytest.raises(ReadError, match="--max-unpacked"):
        ci.read(tmp_path / "a.json.gz")
    with pytest.raises(UsageError, match="gigabytes above 0"):
        ci.read(tmp_path / "a.json.gz", max_unpacked=-1)

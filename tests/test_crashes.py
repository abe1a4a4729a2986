"""Damaged inputs that once ended with a traceback: each is read or refused in one line, by every command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from kineto_files import BASE, call, kernel, write
from shared_data import SHARED, each

if TYPE_CHECKING:
    from pathlib import Path

OUTPUTS = ("a.pftrace", "a.graphml", "a.json", "a.parquet")
ZEUS = "start_time,window_name,elapsed_time,gpu0_energy\n1,a,{},5\n2,b,1.5,7\n"


def surrogate_key(folder: Path) -> Path:
    """Telemetry with a key that UTF-8 cannot express."""
    row = {"timestamp": 1_700_000_000, "gpu": 0, "power": {"socket_power": 5, "\ud800": 7}}
    path = folder / "metric.json"
    path.write_text(json.dumps([row]))
    return path


def duplicate_names(folder: Path) -> Path:
    """An event without a name and one whose name is empty."""
    nameless = call("x", 1, 2, 1)
    del nameless["name"]
    events = [nameless, call("", 4, 2, 2), kernel("", 8, 5, 2), kernel("k", 14, 5, 1)]
    return write(folder / "rank0.json", events, baseTimeNanoseconds=BASE)


def infinite_window(folder: Path) -> Path:
    path = folder / "energy.csv"
    path.write_text(ZEUS.format("1e308"))
    return path


def outlast_any_clock(folder: Path) -> Path:
    path = folder / "energy.csv"
    path.write_text(ZEUS.format("18446744073709551616"))
    return path


MADE = (surrogate_key, duplicate_names, infinite_window, outlast_any_clock)


def is_handled(path: Path, folder: Path, run) -> None:
    for output in OUTPUTS:
        status, _, text = run("convert", "-q", path, "-o", folder / output)
        assert status in (0, 4), text
        assert text.count("\n") <= 1, text
        status, _, text = run("convert", "-q", folder / output, "-o", folder / f"again-{output}")
        assert status in (0, 2, 3, 4), text
    assert run("analyze", "--json", path, "temporal", "telemetry", "kernels")[0] in (0, 4)


@pytest.mark.parametrize("make", MADE)
def test_the_smallest_case(make, tmp_path: Path, run) -> None:
    is_handled(make(tmp_path), tmp_path, run)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", each(p.name for p in sorted((SHARED / "crashes").glob("*"))), ids=str
)
def test_a_case_that_was_recorded(name: str, tmp_path: Path, run) -> None:
    is_handled(SHARED / "crashes" / name, tmp_path, run)

"""The way of the data through the modules stays short."""

from pathlib import Path

from structure_report import ways

ROOT = Path(__file__).parents[1]
AT_MOST = 81
"""Modules that one Kineto file enters on its way to Perfetto. Chosen: 137 before formats had packages."""


def test_a_kineto_file_enters_few_modules(demo: Path) -> None:
    trace = next(demo.rglob("*.pt.trace.json*"))
    imported, entered, sniffing = ways(ROOT, trace)
    assert len(entered) <= AT_MOST
    assert not [name for name in imported if "reader" in name or ".read." in name]
    assert len(sniffing) < len(entered) / 5, sniffing

"""The way of the data through the modules stays short."""

import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

from structure_report import ways

import chopper_interop

ROOT = Path(__file__).parents[1]
AT_MOST = 80
"""Modules that one Kineto file enters on its way to Perfetto. Chosen: 137 before formats had packages."""


def test_a_kineto_file_enters_few_modules(demo: Path) -> None:
    trace = next(demo.rglob("*.pt.trace.json*"))
    folder = Path(chopper_interop.__file__).parents[1]  # of a checkout, or of what is installed
    imported, entered, sniffing = ways(folder, trace)
    assert len(entered) <= AT_MOST
    assert not [name for name in imported if "reader" in name or ".read." in name]
    assert len(sniffing) < len(entered) / 5, sniffing


def test_one_file_does_not_import_what_joins_several(demo: Path, tmp_path: Path) -> None:
    """What a small conversion takes is a good part imports."""
    trace = next(demo.rglob("*.pt.trace.json*"))
    code = (
        "import sys; from chopper_interop import cli; cli.convert_main(sys.argv[1:]); "
        "print(*(name for name in sys.modules if name.startswith('chopper_interop')))"
    )
    command = [sys.executable, "-c", code, "-q", trace, "-o", tmp_path / "job.pftrace"]
    ran = subprocess.run(command, check=True, capture_output=True, text=True)
    names = [name.removeprefix("chopper_interop.") for name in ran.stdout.split()]
    assert "joining.one_source" in names
    rarely = ("joining.job", "clocks.ranks", "annotate.telemetry.annotations", "annotate.counters")
    assert [name for name in names if name.startswith(rarely)] == []


def test_a_code_of_issues_is_of_one_severity_and_counts_one_thing() -> None:
    """Issues of one code and source add up: an error under a remark's code was counted as a remark."""
    kinds = defaultdict(set)
    for folder in ("converters", "analyses", "chopper_interop"):
        for path in (ROOT / folder).rglob("*.py"):
            for kind, code in re.findall(r'Fault\.(\w+)\(\s*"([\w-]+)"', path.read_text()):
                kinds[code].add(kind)
    assert len(kinds) > 300
    assert {code: kind for code, kind in kinds.items() if len(kind) > 1} == {}

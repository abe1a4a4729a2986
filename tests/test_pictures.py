"""Scripts that take pictures, where they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parent / "support"


@pytest.mark.parametrize("script", ["report_pictures.py", "perfetto_pictures.py", "picture.py"])
def test_without_chromium_a_line_says_so(script: str, tmp_path: Path) -> None:
    out = tmp_path / "pictures"
    done = subprocess.run(
        [sys.executable, str(SUPPORT / script), str(out)],
        env={**os.environ, "CHROMIUM": str(tmp_path / "absent")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "pictures need Chromium: install it, or name it by CHROMIUM=…\n"
    assert not out.exists()

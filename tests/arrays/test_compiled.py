"""Machine code is kept on disk by content: what a loop is compiled from, wherever it lies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULES = {
    "callee.py": """
        from chopper_interop.arrays.compiled import jit
        @jit
        def step(x):
            return x + {added}
    """,
    "caller.py": """
        from chopper_interop.arrays.compiled import jit
        from callee import step
        @jit
        def twice(x):
            return step(step(x))
        print(twice({start}))
    """,
}


@pytest.fixture
def call(tmp_path: Path):
    """Run the caller in a process of its own; what it prints, and the files of code there are then."""
    home = tmp_path / "home"
    home.mkdir()

    def run(folder: str, added: int, start: str = "1", above: str = "") -> tuple[str, int]:
        (tmp_path / folder).mkdir(exist_ok=True)
        for name, text in MODULES.items():
            lines = [line[8:] for line in text.format(added=added, start=start).splitlines()]
            (tmp_path / folder / name).write_text(above + "\n".join(lines))
        environment = os.environ | {"HOME": str(home), "XDG_CACHE_HOME": str(home)}
        command = [sys.executable, str(tmp_path / folder / "caller.py")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        return done.stdout.strip(), len(list(home.rglob("*.nbc")))

    return run


def test_code_is_found_again_wherever_the_file_lies(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 1) == ("3", 2)
    assert call("there", 1, above="# moved\n\n") == ("3", 2)


def test_a_change_of_what_is_called_compiles_the_caller_again(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 2) == ("5", 4)
    assert call("here", 1) == ("3", 4), "the former code is still there"


def test_other_types_are_compiled_by_themselves(call) -> None:
    assert call("here", 1) == ("3", 2)
    assert call("here", 1, start="1.5") == ("3.5", 4)

"""Fixtures of all tests."""

import contextlib
import gc
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import settings
from shared_data import NOT_HERE, real

_ROOT = Path(__file__).resolve().parents[1]
_IS_SDIST = not (_ROOT / "chopper_interop/schemas").exists()
if _IS_SDIST:
    # its folder has no links, so the installed package counts, also where `python -m pytest` puts this folder first
    sys.path[:] = [folder for folder in sys.path if Path(folder).resolve() != _ROOT]
    if importlib.util.find_spec("chopper_interop") is None:
        pytest.exit("tests of an sdist are for the installed package: pip install .", returncode=4)

# no deadline: the first call compiles; and a change must never fail by the luck of the draw
settings.register_profile("chopper", deadline=None, max_examples=8, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=500)
settings.load_profile("chopper")


os.environ["CHOPPER_COMPILERS"] = "0"  # tests run on all processors
_ALLOCATIONS = 20_000
"""Objects made between two collections of garbage. Chosen: at Python's 700, collections took 7 % of the suite's time."""
gc.set_threshold(_ALLOCATIONS)

# a disk that loses its power would lose nothing but tests' files, and waiting for it takes a hundredth of their time
os.fsync = lambda _: None


def pytest_sessionstart(session: pytest.Session) -> None:
    """Leave the folder of an sdist, which processes of tests that run ``python -c`` would import from.

    Of several processes those that run tests leave it: they are started in the folder of the one that starts them.
    """
    runs_tests = not session.config.getoption("numprocesses", None)  # workers have none
    if _IS_SDIST and runs_tests:
        empty = tempfile.TemporaryDirectory()
        session.config.add_cleanup(empty.cleanup)
        session.config.add_cleanup(partial(os.chdir, _ROOT))
        os.chdir(empty.name)


def pytest_report_header() -> str:
    """State which copy is tested: that of a checkout, or an installed one."""
    spec = importlib.util.find_spec("chopper_interop")
    return f"chopper-interop: {spec.origin if spec else 'not installed'}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems() -> None:
    """Draw no constants of the package's modules, but in `make thorough`.

    They are those of the modules imported so far, so that cases depended on the tests before, and are parsed for seconds.
    """
    if settings.get_current_profile_name() != "chopper":
        return
    # not of its interface: another version draws them, and takes longer
    with contextlib.suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture import providers

        none, _ = providers._local_constants, providers._get_local_constants
        providers._get_local_constants = lambda: none


def pytest_collection_finish() -> None:
    """Leave tests and modules, which live to the end, out of what is searched for garbage."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many tests were skipped for want of real inputs."""
    skipped = sum(NOT_HERE in r.longrepr[2] for r in terminalreporter.stats.get("skipped", ()))
    if skipped:
        more = "tests were skipped; some of these run once for each file"
        terminalreporter.write_line(f"{NOT_HERE}: {skipped} {more}", yellow=True)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of real inputs next to the project, which a plain clone does not have."""
    return real()


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small sample job: 2 ranks, 2 layers, 2 steps."""
    from chopper_interop.demo import make_demo

    folder = tmp_path_factory.mktemp("demo") / "job"
    return make_demo(folder, ranks=2, layers=2, steps=2, recorder_hz=200, straggler=1)


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    """Run a command in this process; its exit status, stdout and stderr."""
    from chopper_interop import cli
    from chopper_interop.commands import console

    # what has to be compiled depends on the tests that ran before, and on the machine
    monkeypatch.setattr(console, "announce_compilation", lambda: None)

    def command(name: str, *arguments: object) -> tuple[int, str, str]:
        status = getattr(cli, f"{name}_main")([str(a) for a in arguments])
        output = capsys.readouterr()
        return status, output.out, output.err

    return command

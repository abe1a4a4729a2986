"""Shells complete arguments, and man pages describe them, as the parsers have them."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from slow import slow_from

from chopper_interop import cli
from chopper_interop.commands.completion import SHELLS

BASH = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMPREPLY=()
_shtab_${1//-/_} "$1" "${COMP_WORDS[COMP_CWORD]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""
FISH = 'source $argv[1]; complete -C "$argv[2..]"'


def completed(script: Path, shell: str, *words: str) -> set[str]:
    """Return the words that a shell offers for the last of these."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    code = [BASH, "bash"] if shell == "bash" else [FISH]
    call = [shell, "-c", *code, str(script), *words]
    done = subprocess.run(call, capture_output=True, text=True, cwd=script.parent, check=True)
    assert done.stderr == ""
    return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}


def options(prog: str) -> set[str]:
    actions = cli.PARSERS[prog]()._actions
    return {text for action in actions for text in action.option_strings if text[:2] == "--"}


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def script(tmp_path: Path, shell: str, capsys: pytest.CaptureFixture[str]):
    def written(prog: str) -> Path:
        command = getattr(cli, f"{prog.removeprefix('chopper-')}_main")
        assert command(["--print-completion", shell]) == 0
        path = tmp_path / f"{prog}.{shell}"
        path.write_text(capsys.readouterr().out)
        return path

    return written


@pytest.mark.parametrize("prog", cli.PARSERS)
def test_all_options_are_completed(script, shell: str, prog: str) -> None:
    path = script(prog)
    if shell == "zsh":
        stated = set(re.findall(r"--[a-z][a-z-]+", path.read_text()))
        assert options(prog) <= stated
    else:
        assert completed(path, shell, prog, "--") == options(prog)
    if shutil.which(shell):
        subprocess.run([shell, "-n", path], check=True)


def test_values_are_completed(script, shell: str) -> None:
    if shell == "zsh":
        text = script("chopper-analyze").read_text()
        assert "compadd -- breakdown" in text
        assert '"*:files and folders of one job' in text
        return
    path = script("chopper-analyze")
    (path.parent / "temp.json").touch()
    ask = ("chopper-analyze", "RUN")
    assert completed(path, shell, *ask, "temp") == {"temp.json", "temporal"}
    assert completed(path, shell, *ask, "--on-loss", "w") == {"warn"}
    assert completed(path, shell, *ask, "--to", "chak") == {"chakra"}
    assert completed(path, shell, *ask, "--from", "rocprofv3-c") == {"rocprofv3-csv"}


def typed(shell: str, script: Path, line: str, home: Path) -> str:
    """Return what an interactive shell adds to a line at the tab key."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    start, load = INTERACTIVE[shell]
    settings = {"TERM": "dumb", "HOME": str(home), "PS1": "> ", "PATH": os.environ["PATH"]}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a job.json").touch()
        pid, terminal = pty.fork()
        if not pid:
            os.chdir(folder)
            os.execvpe(start[0], start, settings)  # noqa: S606 # a shell
        try:
            os.write(terminal, f"{load.format(script=script)}; echo rea''dy\n".encode())
            shown(terminal, "ready\r\n")
            os.write(terminal, f"{line}\t".encode())
            return shown(terminal, line).rpartition(line)[2].strip("\a")
        finally:
            os.close(terminal)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def shown(terminal: int, text: str) -> str:
    """Read a terminal until it has shown a text and is then silent for a while."""
    completions = ""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        silent = not select.select([terminal], [], [], 0.5 if text in completions else 10)[0]
        if silent:
            break
        completions += os.read(terminal, 1 << 16).decode(errors="replace")
    return completions


INTERACTIVE = {
    "bash": (["bash", "--norc", "--noprofile", "-i"], "source {script}"),
    "zsh": (["zsh", "-f", "-i"], 'autoload -U compinit; compinit -u -D; eval "$(<{script})"'),
}
"""How to start an interactive shell, and to load a script in it; fish draws lines in pieces."""


@pytest.mark.parametrize(
    ("line", "added"),
    slow_from(
        [
            ("chopper-record --torch h", "ost "),
            ("chopper-record -o x --torch -- cat -n a", "\\ job.json "),
            ("chopper-record -o x -- cat a", "\\ job.json "),
            ("chopper-record -o x -- ech", "o "),
        ],
        2,
    ),
)
@pytest.mark.parametrize("shell", INTERACTIVE, indirect=True)
def test_programs_after_the_options_are_completed(
    script, shell: str, tmp_path: Path, line: str, added: str
) -> None:
    assert typed(shell, script("chopper-record"), line, tmp_path) == added


@pytest.mark.parametrize("prog", cli.PARSERS)
def test_man_pages_are_those_of_the_parsers(tmp_path: Path, prog: str) -> None:
    man_pages = pytest.importorskip("man_pages", reason="argparse-manpage is not installed")
    man_pages.write(tmp_path)
    path = tmp_path / f"{prog}.1"
    if shutil.which("man") is None:
        pytest.skip("there is no man")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", path],
        capture_output=True, text=True, check=True, env={"MANWIDTH": "120", "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.stderr == ""
    page = done.stdout
    parser = cli.PARSERS[prog]()
    (about,) = re.findall(r"\nNAME\n(.+?)\n\nSYNOPSIS", page, re.DOTALL)
    assert "." not in about, "apropos lists one sentence"
    sections = [line for line in page.splitlines() if re.match("[A-Z]", line)][1:]
    assert sections == ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES", "SEE ALSO"]
    assert options(prog) - {"--help"} <= set(re.findall(r"--[a-z][a-z-]+", page))
    for line in parser.epilog.splitlines()[1:]:
        assert line.strip() in page
    words = " ".join(page.replace("\u2010\n", "-").split())
    assert " ".join(parser.description.split())[:40] in words

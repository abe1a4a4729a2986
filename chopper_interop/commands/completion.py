"""Completion of the commands' arguments in bash, zsh and fish: scripts made of the parsers, when asked for.

They are static: completing starts no Python. They have the formats and analyses, also of plug-ins, that are installed
when they are made. For each command, where the shell looks for them::

    chopper-convert --print-completion bash > ~/.local/share/bash-completion/completions/chopper-convert
    chopper-convert --print-completion zsh > FOLDER_OF_FPATH/_chopper-convert
    chopper-convert --print-completion fish > ~/.config/fish/completions/chopper-convert.fish
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

SHELLS = ("bash", "zsh", "fish")
_FOLDERS = ("csv", "figures", "demo")
_FILES = ("source", "output", "against", "html", "prefix")
"""Destinations of arguments that are folders, and of those that are files or folders."""
_WITH_PROGRAM = ("chopper-record",)
"""Commands that run a program, which stands after ``--``."""
_CORRECTED: dict[str, dict[str, str]] = {
    "bash": {"complete -o bashdefault": "complete -o bashdefault -o default"},
    "zsh": {'"(*)::': '"*:', "_defaults_added=0": "_defaults_added=1"},
    "fish": {},
}
"""Differences from shtab's scripts: bash completes files where they offer nothing, as after an option of the program
that is recorded; in zsh they complete the first of several arguments only."""


def shell_of(arguments: Sequence[str] | None) -> str | None:
    """Return the shell whose script is asked for; None if none is. Parsing the others changes their parser."""
    only = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    add_option(only)
    try:
        return only.parse_known_args(arguments)[0].print_completion
    except argparse.ArgumentError:  # the command's parser says what is wrong
        return None


def add_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that prints the script."""
    parser.add_argument(
        "--print-completion",
        metavar="SHELL",
        choices=SHELLS,
        help=f"print what completes arguments in {', '.join(SHELLS[:-1])} or {SHELLS[-1]}, and exit",
    )


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """Return the script by which a shell completes the arguments of a command."""
    import shtab

    if parser.prog in _WITH_PROGRAM:
        parser.add_argument("program", nargs="*", help="program to run, after --")
    for action in parser._actions:  # noqa: SLF001 # argparse has no public list of them
        _describe(action, shtab.FILE, shtab.DIRECTORY)
    text: str = shtab.complete(parser, shell)
    for before, after in _CORRECTED[shell].items():
        text = text.replace(before, after)
    return text


def _describe(action: Any, file: dict[str, Any], folder: dict[str, Any]) -> None:
    """Say of an argument what completes it."""
    from chopper_interop import registry

    formats = registry.formats()
    if action.dest == "from_format":
        action.choices = sorted(name for name, item in formats.items() if item.read)
    elif action.dest == "to":
        action.choices = sorted(name for name, item in formats.items() if item.write)
    elif action.dest == "analysis":
        action.complete = _files_or([*registry.working_analyses(), "all"])
    elif action.dest == "program":
        action.complete = _PROGRAM
    elif action.dest in _FOLDERS:
        action.complete = folder
    elif action.dest in _FILES:
        action.complete = file


_NAME = "_chopper_program_or_file"
_PROGRAM: dict[str, Any] = {
    "bash": _NAME,
    "zsh": _NAME,
    "fish": "(test (commandline -opc)[-1] = -- && __fish_complete_command; __fish_complete_path (commandline -ct))",
    "preamble": {
        "bash": f'{_NAME}() {{ [ "${{COMP_WORDS[COMP_CWORD-1]}}" != -- ] || compgen -c -- "$1"; compgen -f -- "$1"; }}',
        "zsh": f"{_NAME}() {{ [[ $words[CURRENT-1] != -- ]] || _command_names -e; _files }}",
    },
}
"""Completion of a program after ``--``, and of the files that it is given."""


def _files_or(names: Iterable[str]) -> dict[str, Any]:
    """Completion of a file, a folder or one of these names."""
    words = " ".join(names)
    function = "_chopper_files_or_names"
    bash = f'{function}() {{ compgen -W "{words}" -- "$1"; compgen -f -- "$1"; }}'
    zsh = f"{function}() {{ compadd -- {words}; _files }}"
    fish = f"(string split ' ' '{words}'; __fish_complete_path (commandline -ct))"
    return {
        "bash": function,
        "zsh": function,
        "fish": fish,
        "preamble": {"bash": bash, "zsh": zsh},
    }

"""The table of CharLLM-PPT's rows names what there is, with options that it takes."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from chopper_interop import registry
from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.commands.analyze import build_parser

PAGE = Path(__file__).parents[2] / "docs/accuracy/charllm.md"
ROWS = 19


def rows() -> dict[int, str]:
    """Text of each numbered row."""
    text = PAGE.read_text(encoding="utf-8")
    matches = re.findall(r"^\| (\d+) \|(.*)\|$", text, re.MULTILINE)
    return {int(number): line for number, line in matches}


def commands() -> list[str]:
    return re.findall(r"`(chopper-analyze [^`]+)`", "\n".join(rows().values()))


def test_every_row_is_there() -> None:
    assert sorted(rows()) == list(range(1, ROWS + 1))
    assert all(line.split("|")[1].strip() for line in rows().values())


@pytest.mark.parametrize("command", sorted(set(commands())))
def test_commands_have_valid_options(command: str) -> None:
    _, run, name, *arguments = shlex.split(command)
    build_parser().parse_args([run, name, *arguments])
    if name.startswith("--"):  # the summary, whose options are the command's
        return
    takes = registry.options(registry.analysis(name))
    matches = list(pairwise(arguments))
    options = [text.split("=")[0] for flag, text in matches if flag == "-O"]
    options += [text[2:] for text in arguments if text.startswith("--")]
    assert set(options) <= takes.keys()
    by = dict(matches).get("--by", "")
    own = {"run", "gpu", "node", "iteration"}
    assert set(by.split(",")) <= {*grouping.GRAINS, *own, ""}


def test_formats_are_read() -> None:
    named = re.findall(r"`([a-z-]+)`", rows()[1])
    assert len(named) > 5
    assert all(registry.converter(name).read for name in named)

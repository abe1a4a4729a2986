"""Contents of the pages of the docs: tables, commands, code and links."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import container
import pages
import pytest
from read_once import read_once

import chopper_interop as ci
from chopper_interop import registry

ROOT = pages.ROOT
README = ROOT / "README.md"
_BY_NAME = {str(page.relative_to(ROOT)): page for page in pages.PAGES}
_TEXTS = {name: page.read_text("utf-8") for name, page in _BY_NAME.items()}
_RUN = ("chopper-analyze", "chopper-convert", "chopper-check")
_NOT_RUN = {"chopper-record", "chopper-view"}
"""They need GPUs, or open a browser; their own tests run them."""
_QUICK = {"README.md", *(f"docs/how-to/{page}.md" for page in ("convert", "share", "what-if"))}
_WRITE = {"-o", "--csv", "--html", "--figures"}


def _cases() -> Iterator[object]:
    """Yield pages and commands; those that draw charts take 20 s, and `tests/commands/test_report.py` draws one.

    Commands of which a page shows the output are slow but those of the README: `make outputs` runs them in CI.
    Pages that show more of the same are slow too.
    """
    for name, text in _TEXTS.items():
        shown: dict[bool, list[tuple[str, ...]]] = {False: [], True: []}
        for block in pages.blocks(text):
            shown[block.output is not None and name != "README.md"] += block.commands
        for with_output, commands in shown.items():
            draws = any({"--html", "--figures"} & set(words) for words in commands)
            marks = [] if name in _QUICK and not with_output and not draws else [pytest.mark.slow]
            which = " with output" if with_output else ""
            if commands:
                yield pytest.param(commands, marks=marks, id=f"{name}{which}")


@pytest.fixture(scope="module")
def folder(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with the jobs that pages name: the small sample job, as tables, which are read quickly."""
    made = tmp_path_factory.mktemp("docs")
    ci.write(read_once(demo), made / "job.parquet")
    pages.lay_out(made, made / "job.parquet")
    with pages.jobs_read_once():
        yield made


@pytest.mark.parametrize("mark", pages.MARKS)
def test_each_table_is_in_one_page(mark: str) -> None:
    assert sum(mark in text for text in _TEXTS.values()) == 1


@pytest.mark.slow
def test_the_command_for_a_container_runs_and_leaves_nothing(tmp_path: Path) -> None:
    install, command = container.run_lines(container.PAGE.read_text("utf-8"))
    assert install.startswith("pip install")
    scripts = Path(sys.executable).parent
    environment = os.environ | {"PATH": f"{scripts}:{os.environ['PATH']}"}
    subprocess.run(["sh", "-c", command], cwd=tmp_path, env=environment, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [n for n, t in _TEXTS.items() if pages.END in t])
def test_tables_are_those_of_the_code(name: str) -> None:
    assert _TEXTS[name] == pages.with_tables(_TEXTS[name]), (
        "run 'make tables' and commit the result"
    )


@pytest.mark.parametrize("commands", list(_cases()))
def test_commands_run(
    commands: list[tuple[str, ...]], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    for words in commands:
        if words[0] in _RUN:
            status, out, err = pages.run(words)
            assert status == 0, (words, err)
            assert out or _WRITE & set(words), words
        elif words[0] == "make":
            assert f"\n{words[1]}:" in (ROOT / "Makefile").read_text()
        elif words[:2] == ("pip", "install"):
            assert re.fullmatch(r"chopper-interop\[(amdsmi|nvml|report|viewer)\]", words[2])
        else:
            assert words[0] in _NOT_RUN, words


@pytest.mark.parametrize("name", [n for n, text in _TEXTS.items() if pages.python(text)])
def test_python_runs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    names: dict[str, object] = {"__name__": "page"}
    for code in pages.python(_TEXTS[name]):
        exec(compile(code, name, "exec", dont_inherit=True), names)  # noqa: S102 # the docs' own


@pytest.mark.parametrize("name", _BY_NAME)
def test_links_lead_to_files(name: str) -> None:
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[\w-]+)?\)", _TEXTS[name])
    assert [link for link in links if not (_BY_NAME[name].parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len(README.read_bytes()) < 8192
    sections = README.read_text("utf-8").split("\n## ")
    assert max(len(section.splitlines()) for section in sections) <= 110
    assert len(pages.blocks(sections[2])) == 5


@pytest.mark.parametrize(
    ("shown", "printed", "differ"),
    [
        ("a  1,000 ms", "a 1,000.4 ms", False),
        ("a 1.00 ms", "a 1.01 ms", True),
        ("a 1 ms", "b 1 ms", True),
        ("a 1 ms", "a 1 ms\nb", True),
    ],
)
def test_differences_of_outputs(shown: str, printed: str, differ: bool) -> None:  # noqa: FBT001
    assert bool(pages.differences(shown, printed)) == differ


@pytest.mark.parametrize("name", sorted(registry.converters()))
def test_every_format_is_described(name: str) -> None:
    converter = registry.converters()[name]
    assert isinstance(converter, registry.Converter), converter
    assert converter.name == name
    assert converter.description
    if converter.read or converter.write:
        assert converter.carries
        assert converter.versions

"""Parts of the docs that the program makes: tables of what it says of itself, and commands with their output.

``python tests/support/pages.py tables`` writes the tables, ``outputs RUN`` what the commands print for the
sample job RUN, and ``outputs --check RUN`` says where that differs from what the pages show.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from importlib.metadata import entry_points
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import cli, job_reading, registry
from chopper_interop.analyses.methods.findings import catalogue
from chopper_interop.schemas import hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.job_reading import Reading
    from chopper_interop.sources import Inventory
    from chopper_interop.trace import Trace

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "README.md", ROOT / "analyses/README.md", *sorted(ROOT.glob("docs/**/*.md")))
PACKAGE = "chopper_interop."
_TOOLS = ("hta", "tracelens", "chopper", "charllm")
WIDTH = "88"
"""Characters of the terminal for which outputs are shown."""

END = "<!-- end of what `make tables` makes -->\n"


def formats() -> str:
    """All formats that come with the package, as a table in Markdown."""
    rows = ["| format | is | versions | what is taken over |", "|---|---|---|---|"]
    declared = entry_points(group=registry.CONVERTERS)
    built_in = {entry.name for entry in declared if entry.value.startswith(PACKAGE)}
    seen = set()
    for name, converter in registry.converters().items():
        if not isinstance(converter, registry.Converter) or name not in built_in:
            continue
        if id(converter) not in seen:
            rows.append(_row(name, converter))
        seen.add(id(converter))
    return "\n".join(rows) + "\n"


def _row(name: str, converter: registry.Converter) -> str:
    ways = [way for way, there in (("read", converter.read), ("written", converter.write)) if there]
    taken = converter.carries if ways else f"left out: {converter.not_read_because}"
    cells = (
        f"`{name}` ({', '.join(ways) or 'recognised'})",
        converter.description,
        converter.versions,
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, taken)) + " |"


def analyses() -> str:
    """All analyses that come with the package, as a table in Markdown."""
    rows = ["| analysis | answers | `--by` if not given | `--compat` |", "|---|---|---|---|"]
    for name, analysis in registry.working_analyses().items():
        if analysis.__module__.startswith(PACKAGE):
            first = (inspect.getdoc(analysis) or "").partition("\n")[0]
            by = registry.options(analysis).get("by")
            shown = f"`{by.default}`" if by else ""
            tools = ", ".join(f"`{tool}`" for tool in _compat(analysis))
            rows.append(f"| `{name}` | {first} | {shown} | {tools} |")
    return "\n".join(rows) + "\n"


def _compat(analysis: object) -> list[str]:
    """Tools whose definitions an analysis takes, by its docstring."""
    text = (inspect.getdoc(analysis) or "").partition("\ncompat\n")[2]
    paragraph = re.split(r"\n\S", text, maxsplit=1)[0]
    return [tool for tool in _TOOLS if re.search(rf"\b{tool}\b", paragraph)]


def findings() -> str:
    """All codes of findings, as a table in Markdown."""
    rows = ["| code | found by | saving: the job if | what to do |", "|---|---|---|---|"]
    rows += [
        f"| `{code}` | {' | '.join(entry[:3])} |" for code, entry in catalogue.CATALOGUE.items()
    ]
    return "\n".join(rows) + "\n"


def tables() -> str:
    """The tables of a trace with their columns, as tables in Markdown."""
    parts = [
        f"### {name}\n\n" + "\n".join(("| column | type | unit | is |", "|---|---|---|---|", *rows))
        for name, rows in ((name, map(_column, columns)) for name, columns in _hub())
    ]
    return "\n\n".join(parts) + "\n\n"


def _hub() -> Iterator[tuple[str, tuple[hub.Column, ...]]]:
    for name, columns in hub.TABLES.items():
        yield f"`{name}`", columns
    yield "annotations of `nodes`", hub.ANNOTATIONS


def _column(column: hub.Column) -> str:
    kind = "text" if column.type == hub.NAME else str(column.type)
    return f"| `{column.name}` | {kind} | {column.unit} | {column.meaning} |"


_MAKERS = {
    "converters": formats, "analyses": analyses, "findings": findings, "schemas": tables,
}  # fmt: skip
MARKS = {
    f"<!-- made by `make tables` from what the {who} say of themselves -->\n": maker
    for who, maker in _MAKERS.items()
}
"""By the line that begins a table, what makes it."""


def with_tables(text: str) -> str:
    """A page with its tables as they are now."""
    for begin, maker in MARKS.items():
        before, mark, rest = text.partition(begin)
        if mark:
            _, end, after = rest.partition(END)
            if not end:
                raise ValueError("a table has no end")
            text = before + begin + maker() + END + after
    return text


@dataclass(frozen=True)
class Block:
    """Commands that a page shows, and the output that it shows of the last of them.

    Parameters
    ----------
    commands
        Each as a list of words.
    output
        None if the page shows none.
    span
        Where the output is in the text of the page.
    """

    commands: tuple[tuple[str, ...], ...]
    output: str | None
    span: tuple[int, int]


_BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:\n?^```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)


def blocks(text: str) -> list[Block]:
    """Blocks of commands (``sh``), each with the block of output (``text``) right after it."""
    return [
        Block(tuple(_words(match[1])), match[2], match.span(2)) for match in _BLOCK.finditer(text)
    ]


def _words(text: str) -> Iterator[tuple[str, ...]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = tuple(shlex.split(line, comments=True))
        if words:
            yield words


def python(text: str) -> list[str]:
    """Python code that a page shows."""
    return re.findall(r"^```python\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL)


def lay_out(folder: Path, job: Path) -> None:
    """Give a folder the names by which pages speak of jobs; all are the same job."""
    for name in ("demo/profiles", "RUN", "NEW", "YESTERDAY", "RUNS/a", "RUNS/b"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).symlink_to(job.resolve(), target_is_directory=True)


def run(words: tuple[str, ...]) -> tuple[int, str, str]:
    """Run a command of the package in this process; its status, stdout and stderr."""
    main = getattr(cli, f"{words[0].removeprefix('chopper-')}_main")
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(list(words[1:]))
        except SystemExit as ended:
            status = ended.code
    return status, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def jobs_read_once() -> Iterator[None]:
    """Have commands of a block share the trace of a job, and what analyses derive of it: no command changes it."""
    read, traces = job_reading.read_inventory, {}

    def read_once(inventory: Inventory, reading: Reading) -> Trace:
        paths = [path for source in inventory.sources for path in source.paths]
        key = repr(([(path, path.stat().st_mtime_ns) for path in paths], reading))
        if key not in traces:
            traces[key] = read(inventory, reading)
        return traces[key]

    job_reading.read_inventory = read_once
    try:
        yield
    finally:
        job_reading.read_inventory = read


def differences(shown: str, printed: str) -> list[str]:
    """Lines that differ in their words, or in a number by more than a thousandth."""
    pairs = zip_longest(shown.splitlines(), printed.splitlines(), fillvalue="")
    return [f"- {one}\n+ {other}" for one, other in pairs if not _is_same(one, other)]


_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")


def _is_same(one: str, other: str) -> bool:
    if _NUMBER.sub("0", one).split() != _NUMBER.sub("0", other).split():
        return False
    values = [[float(n.replace(",", "")) for n in _NUMBER.findall(line)] for line in (one, other)]
    return all(abs(a - b) <= max(abs(a), abs(b)) / 1000 for a, b in zip(*values, strict=True))


def with_outputs(text: str) -> str:
    """A page with the outputs that its commands have now, in the current folder."""
    for block in reversed(blocks(text)):
        printed = [_printed(words) for words in block.commands if block.output is not None]
        if printed:
            text = text[: block.span[0]] + printed[-1] + text[block.span[1] :]
    return text


def _printed(words: tuple[str, ...]) -> str:
    status, out, err = run(words)
    if status:
        raise SystemExit(f"{shlex.join(words)}: status {status}\n{err}")
    return "\n".join(line.rstrip() for line in out.splitlines()) + "\n"


def _write_outputs(job: Path, *, check: bool) -> int:
    """Run the commands whose output pages show; the number of lines that differ, if these are checked."""
    os.environ["COLUMNS"] = WIDTH
    wrong = 0
    with tempfile.TemporaryDirectory() as folder, jobs_read_once():
        lay_out(Path(folder), job)
        os.chdir(folder)
        for page in PAGES:
            text = page.read_text("utf-8")
            made = with_outputs(text)
            if check:
                changed_lines = differences(text, made)
                wrong += len(changed_lines)
                print(
                    *(f"{page.relative_to(ROOT)}: {line}" for line in changed_lines),
                    sep="\n",
                    end="",
                )
            else:
                page.write_text(made, "utf-8")
        os.chdir(ROOT)
    return wrong


def main(what: str, *arguments: str) -> int:
    """Write or check what the pages show."""
    if what == "outputs":
        *flags, job = arguments
        return min(_write_outputs(Path(job), check="--check" in flags), 1)
    for page in PAGES:
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

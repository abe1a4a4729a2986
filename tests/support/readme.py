"""Tables of formats, analyses and findings, made of what these say of themselves.

``python tests/support/readme.py README.md analyses/README.md`` writes them there.
"""

import inspect
import sys
from pathlib import Path

from chopper_interop import registry
from chopper_interop.analyses.methods.findings import catalogue

BEGIN = "<!-- made by `make formats` from what the converters say of themselves -->\n"
END = "<!-- end of what `make formats` makes -->\n"
BEGIN_ANALYSES = "<!-- made by `make formats` from what the analyses say of themselves -->\n"
BEGIN_FINDINGS = "<!-- made by `make formats` from what the findings say of themselves -->\n"
PACKAGE = "chopper_interop."


def table() -> str:
    """All formats that come with the package, as a table in Markdown."""
    rows = ["| format | is | versions | what is taken over |", "|---|---|---|---|"]
    seen = set()
    for name, converter in registry.converters().items():
        if not isinstance(converter, registry.Converter) or not _is_builtin(converter):
            continue
        if id(converter) not in seen:
            rows.append(_row(name, converter))
        seen.add(id(converter))
    return "\n".join(rows) + "\n"


def _is_builtin(converter: registry.Converter) -> bool:
    functions = (
        converter.sniff,
        converter.read and converter.reader,
        converter.write and converter.writer,
    )
    return all(f.__module__.startswith(PACKAGE) for f in functions if f is not None)


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
    rows = ["| analysis | answers |", "|---|---|"]
    for name, analysis in registry.working_analyses().items():
        if analysis.__module__.startswith(PACKAGE):
            first = (inspect.getdoc(analysis) or "").partition("\n")[0]
            rows.append(f"| `{name}` | {first} |")
    return "\n".join(rows) + "\n"


def findings() -> str:
    """All codes of findings, as a table in Markdown."""
    rows = ["| code | found by | saving: the job if | what to do |", "|---|---|---|---|"]
    rows += [f"| `{code}` | {' | '.join(entry)} |" for code, entry in catalogue.CATALOGUE.items()]
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    """A README with the tables between their marks."""
    marks = {BEGIN: table, BEGIN_ANALYSES: analyses, BEGIN_FINDINGS: findings}
    there = {begin: made for begin, made in marks.items() if begin in readme}
    if not there:
        raise ValueError("the README has no marks for its tables")
    for begin, made in there.items():
        before, _, rest = readme.partition(begin)
        _, mark, after = rest.partition(END)
        if not mark:
            raise ValueError("a table of the README has no end")
        readme = before + begin + made() + END + after
    return readme


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text()))

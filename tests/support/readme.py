"""The README's tables of formats and analyses, made of what these say of themselves.

``python tests/support/readme.py README.md`` writes it there.
"""

import inspect
import sys
from pathlib import Path

from chopper_interop import registry

BEGIN = "<!-- made by `make formats` from what the converters say of themselves -->\n"
END = "<!-- end of what `make formats` makes -->\n"
BEGIN_ANALYSES = "<!-- made by `make formats` from what the analyses say of themselves -->\n"
OURS = "chopper_interop."


def table() -> str:
    """All formats that come with the package, as a table in Markdown."""
    rows = ["| format | is | versions | what is taken over |", "|---|---|---|---|"]
    seen = set()
    for name, found in registry.converters().items():
        if not isinstance(found, registry.Converter) or not _is_ours(found):
            continue
        if id(found) not in seen:
            rows.append(_row(name, found))
        seen.add(id(found))
    return "\n".join(rows) + "\n"


def _is_ours(found: registry.Converter) -> bool:
    functions = (found.sniff, found.read and found.reader, found.write and found.writer)
    return all(f.__module__.startswith(OURS) for f in functions if f is not None)


def _row(name: str, found: registry.Converter) -> str:
    ways = [way for way, there in (("read", found.read), ("written", found.write)) if there]
    taken = found.carries if ways else f"left out: {found.not_read_because}"
    cells = (f"`{name}` ({', '.join(ways) or 'recognised'})", found.description, found.versions)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, taken)) + " |"


def analyses() -> str:
    """All analyses that come with the package, as a table in Markdown."""
    rows = ["| analysis | tells |", "|---|---|"]
    for name, found in registry.working_analyses().items():
        if found.__module__.startswith(OURS):
            first = (inspect.getdoc(found) or "").partition("\n")[0]
            rows.append(f"| `{name}` | {first} |")
    return "\n".join(rows) + "\n"


def with_table(readme: str) -> str:
    """A README with the tables between their marks."""
    for begin, made in ((BEGIN, table()), (BEGIN_ANALYSES, analyses())):
        before, _, rest = readme.partition(begin)
        _, mark, after = rest.partition(END)
        if not mark:
            raise ValueError("the README has no marks for its tables")
        readme = before + begin + made + END + after
    return readme


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_table(path.read_text()))

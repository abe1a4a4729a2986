"""Report the structure of a checkout: ``python tests/support/structure_report.py [ROOT]``.

Prints modules, code lines, sizes of folders, modules with one importer, import cycles, imports that
point up the layers of `.importlinter`, functions of a cyclomatic complexity above 10, pairs of functions that
are alike, names that nothing reads, modules that a conversion and a look at a file load, and how often words that
say little are identifiers.
"""

from __future__ import annotations

import ast
import configparser
import io
import re
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

import likeness
import networkx as nx

PACKAGE = "chopper_interop"
FOLDERS = {"schemas": f"{PACKAGE}.schemas", "converters": f"{PACKAGE}.converters",
           "analyses": f"{PACKAGE}.analyses", PACKAGE: PACKAGE}  # fmt: skip
WORDS = ("told", "untold", "tells", "found", "mine", "ours", "theirs", "most", "least", "nothing",
         "beside", "anew", "gift", "vouches", "stretches", "moments", "meets", "said")  # fmt: skip
SPEAKING = frozenset({"at_most", "at_least", "at_least_s", "check_at_least", "unpacking_at_most", "most_common",
                      "most_often_last", "_most_used_device", "NOT_FOUND"})  # fmt: skip
"""Identifiers with one of `WORDS` that state what they hold all the same."""
SHORT = 80
"""A module with one importer and fewer code lines than this is a candidate for folding."""
SHOWN_PAIRS = 12
"""Pairs of functions that are named."""


def modules(root: Path) -> dict[str, Path]:
    """Path of each module of the package, by dotted name."""
    paths = {}
    for folder, package in FOLDERS.items():
        for path in (root / folder).rglob("*.py"):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if folder == PACKAGE and (root / folder / parts[0]).is_symlink():
                continue
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            paths[".".join((package, *parts))] = path
    return paths


def code_lines(path: Path) -> int:
    """Lines with code: no blank ones, comments or docstrings."""
    text = path.read_text(encoding="utf-8")
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    strings = {
        line
        for node in ast.walk(ast.parse(text))
        for statement in (node.body if isinstance(node, documented) else [])
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    }
    ignored = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
               tokenize.ENDMARKER}  # fmt: skip
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in ignored:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - strings)


def imports(paths: dict[str, Path]) -> nx.DiGraph:
    """Imports between modules, anywhere in them, those for types alone included."""
    graph = nx.DiGraph()
    graph.add_nodes_from(paths)
    for name, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    graph.add_edges_from((name, m) for m in (full, node.module) if m in paths)
                    if full in paths and (name, node.module) in graph.edges:
                        graph.remove_edge(name, node.module)
            elif isinstance(node, ast.Import):
                graph.add_edges_from((name, a.name) for a in node.names if a.name in paths)
    graph.remove_edges_from(list(nx.selfloop_edges(graph)))
    return graph


def arrows_up(root: Path, graph: nx.DiGraph) -> list[str]:
    """Imports from a lower layer of `.importlinter` into a higher one."""
    config = configparser.ConfigParser()
    config.read(root / ".importlinter")
    text = config["importlinter:contract:layers"]["layers"]
    rows = [
        [m.strip() for m in re.split(r"[|:]", line)] for line in text.split("\n") if line.strip()
    ]
    rank = {module: number for number, row in enumerate(rows) for module in row}

    def layer(module: str) -> int:
        homes = [m for m in rank if module == m or module.startswith(f"{m}.")]
        return rank[max(homes, key=len)] if homes else -1

    return [f"{a} → {b}" for a, b in graph.edges if 0 <= layer(b) < layer(a)]


_ENTERED = """
import sys, tempfile, threading
from pathlib import Path
import chopper_interop as ci
from chopper_interop import sources

def entered(action):
    names = set()
    def profile(frame, event, _):
        name = frame.f_globals.get("__name__", "")
        if event == "call" and name.startswith("chopper_interop."):
            names.add(name)
    threading.setprofile(profile); sys.setprofile(profile)
    action()
    sys.setprofile(None); threading.setprofile(None)
    return names

path = sys.argv[1]
sources.find([Path(path)])
print(*sorted(m for m in sys.modules if m.startswith("chopper_interop.")))
with tempfile.TemporaryDirectory() as folder:
    convert = lambda: ci.convert(path, folder + "/t.pftrace")
    convert()  # imports and compiles
    print(*sorted(entered(convert)))
print(*sorted(entered(lambda: sources.find([Path(path)]))))
"""


_CALLING = {"chopper_interop.arrays.compiled", "chopper_interop.arrays.loaded_code"}
"""Modules that call loops, as numba's dispatcher does: no way of the data."""


def ways(root: Path, trace: Path) -> list[list[str]]:
    """Modules imported by sniffing a Kineto file, entered by converting it, entered by sniffing it."""
    ran = subprocess.run([sys.executable, "-c", _ENTERED, str(trace)], cwd=root, check=True, text=True,
                         capture_output=True, env={"PYTHONPATH": str(root), "HOME": str(Path.home())})  # fmt: skip
    lines = ran.stdout.strip().split("\n")[-3:]
    return [[name for name in line.split() if name not in _CALLING] for line in lines]


def word_counts(root: Path) -> tuple[Counter[str], Counter[str]]:
    """Occurrences of `WORDS` as identifiers or parts of them, and in prose.

    Identifiers are names in Python's code, but for names of tests, which are sentences, and those that
    are `SPEAKING`. Prose is all the rest: comments, docstrings, messages, sentences of tests, Markdown.
    """
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=root, check=True, text=True,
                            capture_output=True).stdout.split()  # fmt: skip
    total: Counter[str] = Counter()
    in_names: Counter[str] = Counter()
    for name in listed:
        path = root / name
        if not path.is_file() or path.is_symlink() or name.startswith("tests/support/structure_"):
            continue
        text = path.read_text(encoding="utf-8")
        total.update(re.findall(r"[a-z]+", text.lower()))
        if name.endswith(".py"):
            for token in tokenize.generate_tokens(io.StringIO(text).readline):
                is_sentence = token.string.startswith("test_") or token.string in SPEAKING
                if token.type == tokenize.NAME and not is_sentence:
                    in_names.update(re.findall(r"[a-z]+", token.string.lower()))
    identifiers = Counter({word: in_names[word] for word in WORDS})
    return identifiers, Counter({word: total[word] - in_names[word] for word in WORDS})


def main(root: Path) -> None:
    """Print the report."""
    paths = modules(root)
    lines = {name: code_lines(path) for name, path in paths.items()}
    graph = imports(paths)
    print(f"modules {len(paths)}, code lines {sum(lines.values()):,}")
    folders: dict[str, list[int]] = defaultdict(list)
    for name in paths:
        folders[
            ".".join(name.split(".")[1:3])
            if name.count(".") > 2
            else name.split(".")[1]
            if "." in name
            else name
        ].append(lines[name])
    print("folders: " + ", ".join(f"{f} {len(n)}/{sum(n):,}" for f, n in sorted(folders.items())))
    single = [m for m in paths if graph.in_degree(m) == 1]
    short = [m for m in single if lines[m] < SHORT]
    print(f"modules with one importer {len(single)}, of them below {SHORT} code lines {len(short)}")
    for module in sorted(short):
        (importer,) = graph.predecessors(module)
        names = (name.removeprefix(f"{PACKAGE}.") for name in (module, importer))
        print(f"   {next(names)} ({lines[module]}) ← {next(names)} ({lines[importer]})")
    cycles = [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]
    print(f"cycles {len(cycles)}: {cycles}")
    up = arrows_up(root, graph)
    print(f"imports that point up {len(up)}: {up}")
    ran = subprocess.run([sys.executable, "-m", "ruff", "check", "--isolated", "--select", "C901", "--output-format",
                          "concise", *FOLDERS], cwd=root, text=True, capture_output=True, check=False)  # fmt: skip
    print(f"functions with complexity above 10: {ran.stdout.count('C901')}")
    pairs = likeness.alike(likeness.shapes(paths))
    print(f"pairs of functions that are alike {len(pairs)}, the first {SHOWN_PAIRS}:")
    for share, one, other in pairs[:SHOWN_PAIRS]:
        print(f"   {share:.0%} of {one.place} ({one.lines}) and {other.place} ({other.lines})")
    texts = [
        p.read_text("utf-8") for p in (root / "pyproject.toml", *(root / "docs").rglob("*.md"))
    ]
    print(f"names that no code reads: {' '.join(likeness.unread(paths, texts))}")
    for where, counts in zip(("identifiers", "prose"), word_counts(root), strict=True):
        print(f"words in {where}: " + ", ".join(f"{word} {n}" for word, n in counts.items()))
    with tempfile.TemporaryDirectory() as folder:
        make = f"from chopper_interop.demo import make_demo; make_demo({folder + '/job'!r}, ranks=1, layers=1, steps=1)"
        subprocess.run(
            [sys.executable, "-c", make], cwd=root, check=True, env={"PYTHONPATH": str(root)}
        )
        trace = next(Path(folder).rglob("*.pt.trace.json*"))
        names = ("imported by sniffing", "entered by converting to Perfetto", "entered by sniffing")
        for what, used in zip(names, ways(root, trace), strict=True):
            print(f"modules {what} one Kineto file: {len(used)}")
            print("   " + " ".join(m.removeprefix(f"{PACKAGE}.") for m in used))


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve())

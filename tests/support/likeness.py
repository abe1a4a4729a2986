"""Functions that are alike, and names that nothing reads, as `structure_report` reports them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from itertools import combinations
from pathlib import Path
from typing import NamedTuple

RUN = 4
"""Tokens of the runs that are compared."""
MIN_TOKENS = 40
"""Shorter functions have no shape of their own."""
COMMON = 12
"""A run that so many functions have says nothing of two of them."""
ALIKE = 0.4
"""Share of their runs from which on two functions are worth a look: what one of them says is half of the other."""


class Shape(NamedTuple):
    """Shape of a function: runs of its tokens, whatever it calls its own variables, and whatever its constants are."""

    place: str
    lines: int
    runs: frozenset[tuple[str, ...]]


def shapes(paths: dict[str, Path]) -> list[Shape]:
    """Shape of each function that is long enough to have one."""
    made = []
    for module, path in paths.items():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef):
                text = _plain_text(node)
                tokens = _tokens(node, text)
                runs = frozenset(zip(*(tokens[k:] for k in range(RUN)), strict=False))
                if len(tokens) >= MIN_TOKENS:
                    made.append(Shape(f"{module}.{node.name}", text.count("\n") + 1, runs))
    return made


def _plain_text(function: ast.FunctionDef) -> str:
    """Statements of a function, without its docstring and comments."""
    return "\n".join(
        ast.unparse(statement)
        for statement in function.body
        if not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
    )


def _tokens(function: ast.FunctionDef, text: str) -> list[str]:
    """Tokens of its statements: ``v`` for its own variables, ``0`` for constants."""
    own = {n.arg for n in ast.walk(function) if isinstance(n, ast.arg)}
    own |= {n.id for n in ast.walk(function)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}  # fmt: skip
    return [
        "0" if t.type in (tokenize.NUMBER, tokenize.STRING) else "v" if t.string in own else t.string
        for t in tokenize.generate_tokens(io.StringIO(text).readline)
        if t.string.strip()
    ]  # fmt: skip


def alike(functions: list[Shape]) -> list[tuple[float, Shape, Shape]]:
    """Share of runs that two functions have in common, and the two, those with most such lines first."""
    owners: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for number, shape in enumerate(functions):
        for run in shape.runs:
            owners[run].append(number)
    common = Counter(
        pair for of in owners.values() if len(of) <= COMMON for pair in combinations(of, 2)
    )
    pairs = []
    for a, b in common:
        one, other = functions[a], functions[b]
        share = len(one.runs & other.runs) / len(one.runs | other.runs)
        if share > ALIKE:
            pairs.append((share, one, other))
    return sorted(pairs, key=lambda pair: -pair[0] * min(pair[1].lines, pair[2].lines))


def unread(paths: dict[str, Path], texts: list[str]) -> list[str]:
    """Functions, classes, constants and fields that no code reads and no text names, such as those of entry points."""
    trees = {module: ast.parse(path.read_text("utf-8")) for module, path in paths.items()}
    used = {word for text in texts for word in re.findall(r"\w+", text)}
    defined = []
    for module, tree in trees.items():
        documents = {id(n.body[0].value) for n in ast.walk(tree)
                     if isinstance(n, ast.Module | ast.ClassDef | ast.FunctionDef)
                     and n.body and isinstance(n.body[0], ast.Expr)}  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.add(node.id)
            elif isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.keyword):
                used.add(node.arg or "")
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if id(node) not in documents:
                    used.update(re.findall(r"\w+", node.value))
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                defined.append((module, node.name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                defined.append((module, node.target.id))
    return [f"{module}.{name}" for module, name in defined
            if name not in used and not name.startswith("__")]  # fmt: skip

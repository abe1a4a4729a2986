"""Report code without its reason: ``python tests/support/reasons_report.py [ROOT]``.

Lists numeric constants of modules that neither a comment nor a text below explains, compiled loops
without a comment, docstrings that begin like a question, functions called `of`, names in single backticks
that the project does not have, and names that several classes have. Ends with status 1 if it lists any
but the last. A text or a comment explains all constants of the lines without a gap that it ends or
begins. Units, limits of integers and negative codes are plain.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDERS = ("schemas", "converters", "analyses", "chopper_interop")
_QUESTIONS = re.compile(
    r"(What|Which|How|Whether|When|Where|Who|Whose|Why|(By|For) (what|which|how)|From when)\b"
)
_PLAIN = {1000**k for k in range(1, 5)} | {1024**k for k in range(1, 4)} | {1e-2, 1e-3, 1e-6, 1e-9}
_LIMITS = {limit for bits in (31, 32, 63, 64) for limit in (2**bits, 2**bits - 1)}


@dataclass(frozen=True)
class Module:
    """A module's name, lines, and the nodes of its tree that have fields."""

    name: str
    lines: list[str]
    body: list[ast.stmt]
    nodes: list[ast.AST]


def modules_in(root: Path) -> Iterator[Module]:
    """Yield each module, those behind links once."""
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            if not any((root / part).is_symlink() for part in path.relative_to(root).parents):
                text = path.read_text(encoding="utf-8")
                tree = ast.parse(text)
                nodes = [node for node in ast.walk(tree) if node._fields]
                yield Module(str(path.relative_to(root)), text.split("\n"), tree.body, nodes)


def _values(node: ast.expr | None) -> list[Any]:
    """Numbers that an expression of literals consists of; none of another expression."""
    if isinstance(node, ast.Tuple):
        parts = [_values(one) for one in node.elts]
        return [value for part in parts for value in part] if all(parts) else []
    literal = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop)
    if node is None or not all(isinstance(one, literal) for one in ast.walk(node)):
        return []
    value = eval(ast.unparse(node), {"__builtins__": {}})  # noqa: S307 # of literals
    return [value] if type(value) in {int, float} else []


def _constant(statement: ast.stmt) -> list[Any]:
    """Numbers of a constant; none of another statement."""
    known = isinstance(statement, (ast.Assign, ast.AnnAssign))
    return _values(statement.value) if known else []  # type: ignore[attr-defined]


def _is_text(statement: ast.AST | None) -> TypeGuard[ast.Expr]:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _runs(lines: list[str], body: list[ast.stmt]) -> Iterator[tuple[list[ast.stmt], bool]]:
    """Constants on lines without a gap, and whether a comment above or a text below explains them."""
    run: list[ast.stmt] = []
    for statement in [*body, None]:
        joins = run and statement is not None and statement.lineno - 1 == run[-1].end_lineno
        is_constant = statement is not None and bool(_constant(statement))
        if run and not (joins and is_constant):
            begins_with_comment = lines[run[0].lineno - 2].lstrip().startswith("#")
            yield run, begins_with_comment or bool(joins and _is_text(statement))
            run = []
        if is_constant and statement is not None:
            run.append(statement)


def unexplained_constants(module: Module) -> tuple[int, list[int]]:
    """Number of numeric constants, and lines of those without a reason."""
    count, missing = 0, []
    for run, is_explained in _runs(module.lines, module.body):
        count += len(run)
        for constant in run:
            plain = all(v in _PLAIN | _LIMITS or v in {-1, -2, -999} for v in _constant(constant))
            if not is_explained and not plain and "#" not in module.lines[constant.lineno - 1]:
                missing.append(constant.lineno)
    return count, missing


def unexplained_loops(module: Module) -> tuple[int, list[int]]:
    """Number of compiled functions with loops, and lines of those without comment and docstring."""
    count, missing = 0, []
    for node in module.nodes:
        if not isinstance(node, ast.FunctionDef):
            continue
        compiled = any(re.search(r"\bjit", ast.unparse(one)) for one in node.decorator_list)
        if compiled and any(isinstance(one, (ast.For, ast.While)) for one in ast.walk(node)):
            count += 1
            first = node.decorator_list[0].lineno
            text = "".join(module.lines[first - 1 : node.end_lineno])
            above = module.lines[first - 2].lstrip().startswith("#")
            if not above and "#" not in text and not ast.get_docstring(node):
                missing.append(node.lineno)
    return count, missing


def _asks(node: ast.AST) -> bool:
    """True for a docstring that begins like a question in place of a verb or the thing; of constants, for What."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return _QUESTIONS.match(ast.get_docstring(node) or "") is not None
    return _is_text(node) and re.match(r"What\b", str(node.value.value)) is not None


def names_in(module: Module) -> Iterator[str]:
    """Names in the code of a module, and words of its texts without backticks, such as columns."""
    for node in module.nodes:
        for field in ("id", "attr", "arg", "name", "asname"):
            yield from (getattr(node, field, None) or "").split(".")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "`" not in node.value:
            yield from re.findall(r"\w+", node.value)


def mentioned(module: Module) -> Iterator[tuple[int, str]]:
    """Line and name of what texts of a module have in single backticks."""
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "`" in node.value:
            for match in re.finditer(r"(?<!`)`([\w.]+)`(?!`)", node.value):
                yield node.lineno + node.value.count("\n", 0, match.start()), match[1]


def unknown_names(modules: list[Module]) -> list[str]:
    """Names in single backticks that the project does not have."""
    known = {part for module in modules for part in Path(module.name).with_suffix("").parts}
    known.update(name for module in modules for name in names_in(module))
    return [
        f"{module.name}:{line}: `{name}`"
        for module in modules
        for line, name in mentioned(module)
        if not known.issuperset(part for part in name.split(".") if part)
    ]


def main(root: Path) -> int:
    """Print the report."""
    loops, constants, classes = 0, 0, Counter[str]()
    rows: dict[str, list[str]] = {name: [] for name in ("constants", "loops", "questions", "of")}
    gc.disable()  # trees have millions of nodes and stay to the end: searching them for garbage takes seconds
    modules = list(modules_in(root))
    for module in modules:
        for key, check in (("constants", unexplained_constants), ("loops", unexplained_loops)):
            count, missing = check(module)
            constants, loops = (
                constants + count * (key == "constants"),
                loops + count * (key == "loops"),
            )
            rows[key] += [
                f"{module.name}:{line}: {module.lines[line - 1].strip()}" for line in missing
            ]
        for node in module.nodes:
            if _asks(node):
                rows["questions"].append(f"{module.name}:{getattr(node, 'lineno', 1)}")
            if isinstance(node, ast.ClassDef):
                classes[node.name] += 1
        rows["of"] += [
            f"{module.name}: of" for one in module.body if getattr(one, "name", "") == "of"
        ]
    print(f"numeric constants {constants}, without a reason {len(rows['constants'])}")
    print(f"compiled loops {loops}, without a comment {len(rows['loops'])}")
    print(
        f"docstrings that begin like a question {len(rows['questions'])}, functions called of {len(rows['of'])}"
    )
    print(
        "classes of one name: " + ", ".join(f"{k} {n}" for k, n in classes.most_common() if n > 2)
    )
    rows["unknown names"] = unknown_names(modules)
    print(f"names in backticks that do not exist {len(rows['unknown names'])}")
    print(*(f"   {row}" for listed in rows.values() for row in listed), sep="\n")
    return int(any(rows.values()))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2]).resolve()))

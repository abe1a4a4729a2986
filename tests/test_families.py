"""No family of converters knows another: what several need is a family of its own."""

import ast
from pathlib import Path

import pytest

CONVERTERS = Path(__file__).parents[1] / "converters"
PACKAGE = "chopper_interop.converters"
FAMILIES = (
    "amd_smi",
    "astra_sim",
    "chakra",
    "charllm",
    "dcgmi",
    "graphml",
    "kineto",
    "nvidia_smi",
    "parquet",
    "perfetto",
    "pytorch_et",
    "rocm_smi",
    "rocpd",
    "rpd",
    "zeus",
)
"""Families by how the names of their modules begin."""
SHARED = ("rocprof", "telemetry")
"""What several families have in common; rocprof's own formats are one family with it."""
EXCEPT = {
    ("rpd", "rocpd_parts"),
    ("astra_sim", "chakra_files"),
    ("astra_sim", "chakra_read"),
}
"""A family, and what it takes from another nevertheless: the cells of SQLite databases, and the ETs
that a log of a simulation is of."""


def family_of(module: str) -> str:
    """The family with the longest name that a module's begins with."""
    known = [f for f in (*FAMILIES, *SHARED) if module == f or module.startswith(f"{f}_")]
    assert known, f"{module} is of no family: name it in {Path(__file__).name}"
    return max(known, key=len)


def imported(path: Path) -> set[str]:
    """Converters' modules that a module imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{PACKAGE}."):
            found.add(str(node.module).removeprefix(f"{PACKAGE}.").split(".")[0])
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
            found |= {n.split(".")[2] for n in names if n.startswith(f"{PACKAGE}.")}
    return found


MODULES = sorted(p for p in CONVERTERS.glob("*.py") if p.stem != "__init__")


@pytest.mark.parametrize("path", MODULES, ids=[p.stem for p in MODULES])
def test_a_module_imports_its_own_family_or_a_shared_one(path: Path) -> None:
    own = family_of(path.stem)
    foreign = {m for m in imported(path) if family_of(m) not in (own, *SHARED)}
    others = {m for m in foreign if (own, m) not in EXCEPT}
    assert not others, f"{path.stem} imports {sorted(others)}"

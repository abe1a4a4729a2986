"""Modules whose branches fuzzing does not count."""

from __future__ import annotations

import os
import re
from pathlib import Path

AS_PYTHON = os.environ.get("NUMBA_DISABLE_JIT") == "1"
"""True if compiled loops run as Python."""
_PACKAGE = Path(__file__).parents[2] / "chopper_interop"
_LOOPS = re.compile(r"\bjit(_in_place)?\b")


def uncounted() -> list[str]:
    """Schemas; and modules with loops, if numba compiles them: it can't do so of bytecode that counts branches."""
    walk = os.walk(_PACKAGE, followlinks=True)  # a checkout has links to some folders
    paths = [Path(folder, name) for folder, _, names in walk for name in names]
    with_loops = [p for p in paths if p.suffix == ".py" and _LOOPS.search(p.read_text())]
    modules = [".".join(p.relative_to(_PACKAGE.parent).with_suffix("").parts) for p in with_loops]
    return ["chopper_interop.schemas", *([] if AS_PYTHON else modules)]

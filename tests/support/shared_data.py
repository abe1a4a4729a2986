"""Real inputs (../shared/data), which lie next to the project; a plain clone has none.

A test that needs them appears there as skipped, and the end of a run counts these.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
NOT_HERE = "real inputs (../shared/data) are not here"


def real(name: str = "") -> Path:
    """Return the path of a real input; skip the test if it is not there."""
    if not (SHARED / name).exists():
        pytest.skip(f"{NOT_HERE}: {name}")
    return SHARED / name


def each(inputs: Iterable[Any]) -> list[Any]:
    """Return values for `parametrize`; if there are none, one for which the test is skipped."""
    return list(inputs) or [
        pytest.param(Path(), marks=pytest.mark.skip(reason=NOT_HERE), id="none")
    ]

"""Values that only ``make thorough`` tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def slow_from(values: Sequence[Any], first: int) -> list[Any]:
    """Return values for `parametrize`, marked as slow from the position `first` on."""
    return [*values[:first], *map(_slow, values[first:])]


def slow_but_each(values: Sequence[Any], step: int) -> list[Any]:
    """Return values for `parametrize`, marked as slow but for each ``step``-th, the first one included."""
    return [_slow(value) if i % step else value for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)

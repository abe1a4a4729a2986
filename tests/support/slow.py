"""Values that only ``make thorough`` tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def slow_from(values: Sequence[Any], first: int) -> list[Any]:
    """Return values for `parametrize`, marked as slow from the position `first` on."""
    return [*values[:first], *map(_slow, values[first:])]


def slow_but_each(values: Sequence[Any], step: int) -> list[Any]:
    """Return values for `parametrize`, marked as slow but for each ``step``-th, the first one included."""
    return [_slow(value) if i % step else value for i, value in enumerate(values)]


def slow_again(values: Sequence[Any], key: Callable[[Any], object]) -> list[Any]:
    """Return values for `parametrize`, marked as slow but for the first one with each key."""
    firsts = {key(value): i for i, value in reversed([*enumerate(values)])}
    return [value if firsts[key(value)] == i else _slow(value) for i, value in enumerate(values)]


def _slow(value: Any) -> Any:
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)

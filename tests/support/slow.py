"""Values that only ``make thorough`` tries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence


def slow_from(values: Sequence[Any], first: int) -> list[Any]:
    """Return values for `parametrize`, marked as slow from the position `first` on."""
    return [
        *values[:first],
        *(
            pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.slow)
            for value in values[first:]
        ),
    ]

"""Which rule gives the work of which operator, and how rules rank when operators nest."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from chopper_interop.work import attention, elements, matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.work.calls import Call
    from chopper_interop.work.sizes import Work

MOVES, ELEMENTS, MATRIX = 1, 2, 3
"""Ranks: an operator whose work one of the same or a higher rank within it does has none itself."""

_MOVES = re.compile(
    r"aten::(fill_|zero_|(_foreach_)?copy_|_foreach_zero_|cat|_cat|stack|index_select|embedding"
    r"|gather|normal_|uniform_|bernoulli_|random_|exponential_|embedding_dense_backward)$"
)

_SHAPES_ALONE = (
    matrix.product,
    matrix.outer,
    matrix.linear,
    elements.mapped,
    elements.functions,
    elements.copied,
    elements.filled,
    elements.joined,
    elements.normalised,
    elements.gradient,
    elements.updated,
)
"""Rules that go by shapes and types, or by values only where integers meet scalars."""


@cache
def _table() -> tuple[tuple[re.Pattern[str], int, Callable[[Call], Work]], ...]:
    rows = [
        *((names, MATRIX, rule) for names, rule in matrix.RULES),
        *((names, MATRIX, rule) for names, rule in attention.RULES),
        *((names, ELEMENTS, rule) for names, rule in elements.RULES),
    ]
    return tuple((re.compile(names), rank, rule) for names, rank, rule in rows)


@lru_cache(1 << 16)
def rule(name: str) -> tuple[int, Callable[[Call], Work]] | None:
    """Rank and rule of an operator, None if there is no rule."""
    if "::" not in name:
        return None
    for names, rank, found in _table():
        if names.fullmatch(name):
            return (MOVES if _MOVES.match(name) else rank), found
    return None


def by_values(name: str) -> bool:
    """Whether the rule of an operator goes by values of its arguments as well."""
    found = rule(name)
    return found is not None and getattr(found[1], "func", found[1]) not in _SHAPES_ALONE

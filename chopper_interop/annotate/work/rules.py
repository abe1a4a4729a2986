"""Rules for the work of operators, and their priority when operators nest."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from chopper_interop.annotate.work import attention, elements, matrix

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.annotate.work.calls import Call, Work

MOVES, ELEMENTS, MATRIX = 1, 2, 3
"""Priorities: an operator has no work itself if one of the same or a higher priority is within it."""

_MOVES = re.compile(
    r"aten::(fill_|zero_|(_foreach_)?copy_|_foreach_zero_|cat|_cat|stack|index_select|embedding"
    r"|gather|normal_|uniform_|bernoulli_|random_|exponential_|embedding_dense_backward)$"
)

_SHAPES_ALONE = (
    matrix.product,
    matrix.outer_product,
    matrix.linear,
    elements.elementwise,
    elements.real_function,
    elements.copy,
    elements.fill,
    elements.concatenate,
    elements.normalization,
    elements.gradient,
    elements.optimizer_step,
)
"""Rules that need shapes and types only, or values only where integers and scalars are mixed."""


@cache
def _table() -> tuple[tuple[re.Pattern[str], int, Callable[[Call], Work]], ...]:
    rows = [
        *((names, MATRIX, rule) for names, rule in matrix.RULES),
        *((names, MATRIX, rule) for names, rule in attention.RULES),
        *((names, ELEMENTS, rule) for names, rule in elements.RULES),
    ]
    return tuple((re.compile(names), priority, rule) for names, priority, rule in rows)


@lru_cache(1 << 16)
def find_rule(name: str) -> tuple[int, Callable[[Call], Work]] | None:
    """Priority and rule of an operator; None if there is no rule."""
    if "::" not in name:
        return None
    for names, priority, rule in _table():
        if names.fullmatch(name):
            return (MOVES if _MOVES.match(name) else priority), rule
    return None


def needs_values(name: str) -> bool:
    """True if the rule of an operator needs values of its arguments as well."""
    rule = find_rule(name)
    return rule is not None and getattr(rule[1], "func", rule[1]) not in _SHAPES_ALONE

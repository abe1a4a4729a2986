"""Stems of names: what names have in common that differ in template arguments or in a number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array

if TYPE_CHECKING:
    import pyarrow as pa


_KERNEL_RULES = (
    (r"\(anonymous namespace\)", "anonymous"),
    (r"^void ", ""),
    (r"(?s) *[<(\[].*$", ""),  # arguments of a template, parameters, [clone .kd]
    (r"_(MT|tilesize|tile)\d+x\d+.*$", ""),  # Tensile, cuDNN, cuBLAS: tiles and what follows
    (r"(\.kd|_\d+|_0d[0-9de]*)+$", ""),  # AMD's descriptors, Triton's numbers
)
"""Patterns and what replaces them, one after the other."""
STEM_DEFINITION = (
    "kernels are distinguished by name without arguments of templates, parameters, tile sizes and "
    "trailing numbers"
)
"""Text by which a result describes the stems of its kernels."""
_NUMBER_AT_END = re.compile(r"(.*?)(?<!\d)(\d+)$", re.DOTALL)
_MAX_DIGITS = 9
"""Digits that surely fit an int32; steps are never numbered so far."""
NO_NUMBER = -2
"""Stands for the number of a name without one; no step has it."""


def kernel_stems(names: pa.Array) -> pa.Array:
    """Names of kernels without what differs between instances of one template or generator.

    Returns
    -------
    pyarrow.Array
        Never an empty text: a name of which nothing would be left stays. Null stays null.
    """
    import pyarrow.compute as pc

    stems = names
    for pattern, text in _KERNEL_RULES:
        stems = pc.replace_substring_regex(stems, pattern=pattern, replacement=text)
    return pc.if_else(pc.equal(pc.utf8_length(stems), 0), names, stems)


def split_numbers(names: Iterable[str]) -> tuple[list[str], Array]:
    """Split the numbers off names that end with one, as names of training steps do.

    Returns
    -------
    stems, numbers
        ``ProfilerStep#`` and 12 for ``ProfilerStep#12``; of longer numbers the last nine digits.
        A name without a number is its own stem, with `NO_NUMBER`.
    """
    matches = [(name, _NUMBER_AT_END.match(name)) for name in names]
    numbers = [int(match[2][-_MAX_DIGITS:]) if match else NO_NUMBER for _, match in matches]
    stems = [match[1] if match else name for name, match in matches]
    return stems, np.array(numbers, np.int64)

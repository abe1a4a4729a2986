"""Names that end with a number, as those of training steps do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.types import Array

_NUMBERED = re.compile(r"(.*?)(\d+)$", re.DOTALL)
NO_NUMBER = -2
"""Of names without a number; the number of no step."""


def split(names: Iterable[str]) -> tuple[list[str], Array]:
    """Names without the number that they end with, and that number, of long ones the last nine digits."""
    told = [(name, _NUMBERED.match(name)) for name in names]
    number = [int(found[2][-9:]) if found else NO_NUMBER for _, found in told]
    return [found[1] if found else name for name, found in told], np.array(number, np.int64)

"""Traces of inputs that no test changes, read once in each process.

Many tests ask different questions of the same trace of the sample job or of a real file, and reading it takes longer
than the question. A trace is immutable, so that tests can share it; files that a test writes are read with `ci.read`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import chopper_interop as ci

if TYPE_CHECKING:
    from pathlib import Path


@lru_cache(maxsize=12)
def read_once(*paths: Path, **options: Any) -> ci.Trace:
    """Return the trace of inputs that stay as they are, from memory if it was read shortly before."""
    return ci.read(*paths, **options)

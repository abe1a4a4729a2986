"""The type of numpy arrays in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""A numpy array; what it holds is said where it is used."""

"""The type of numpy arrays in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""A numpy array; its contents are stated where it is used."""

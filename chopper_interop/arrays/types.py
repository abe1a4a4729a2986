"""The types of numpy arrays in signatures."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""A numpy array; its contents are stated where it is used."""
Bytes: TypeAlias = npt.NDArray[np.uint8]
"""Bytes of a file or of a text."""

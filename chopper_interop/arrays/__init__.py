"""Columns: to Arrow and back, operations on them, compiled loops over them; no formats."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
"""A numpy array; its contents are stated where it is used."""
Bytes: TypeAlias = npt.NDArray[np.uint8]
"""Bytes of a file or of a text."""

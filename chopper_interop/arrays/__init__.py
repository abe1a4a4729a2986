"""Columns: to Arrow and back, operations on them, compiled loops over them; no formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

# as texts, so that formats, which import modules of this package, load without numpy
Array: TypeAlias = "npt.NDArray[Any]"
"""A numpy array; its contents are stated where it is used."""
Bytes: TypeAlias = "npt.NDArray[np.uint8]"
"""Bytes of a file or of a text."""

"""Slices that stand for no event of the input: a name, a time, and some arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.perfetto.write import events_encode as encode

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array


@dataclass(frozen=True)
class NamedSlices:
    """Slices in order of start that do not overlap.

    Parameters
    ----------
    ts, dur
        Start since the trace's origin and duration, ns.
    code, names
        Number of each slice's name among the names.
    arguments
        Of each slice, a JSON object; none has any if None.
    """

    ts: Array
    dur: Array
    code: Array
    names: list[str]
    arguments: list[bytes] | None = None

    def encoded_arguments(self) -> encode.Arguments:
        """Return the arguments as the encoder takes them."""
        raws = self.arguments or [b""] * len(self.ts)
        length = np.array([len(raw) for raw in raws], np.int32)
        buffer = np.frombuffer(bytearray(b"".join(raws) or b" "), np.uint8)
        return encode.Arguments(buffer, np.cumsum(length, dtype=np.int64) - length, length)

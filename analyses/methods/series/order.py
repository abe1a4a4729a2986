"""Display order of rows of series: the most informative quantities of a GPU first."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate.telemetry.quantity_series import (
    GFXCLK,
    POWER,
    THROTTLE,
    SeriesPattern,
)
from chopper_interop.arrays import arrow

if TYPE_CHECKING:
    import pyarrow as pa


CONVENTION = (
    "power, clock, temperature, utilization and memory, throttling, the rest, what is of one die of "
    "several; of one quantity the best known first; at the end what is not covered"
)
_DIE = re.compile(r".*\b(?:XCP|XCD|AID|HBM stack|VR|MCA) ?\d+.*")
_NAMED = (
    *(told for told in POWER.patterns if not told.is_counter),
    *GFXCLK.patterns,
    SeriesPattern(r"temperature (?:hotspot|GPU|edge|memory)", {}),
    SeriesPattern(r"GFX activity|(?:GPU|SM) (?:activity|utilization)", {}),
    SeriesPattern(
        r"memory (?:activity|utilization|used|free|allocated|reserved|clock)|VRAM .*", {}
    ),
    *THROTTLE.patterns,
)


def ordered(table: pa.Table) -> pa.Table:
    """Rows with `name`, `covered_ns` and `is_best` in the order of `CONVENTION`."""
    names = arrow.single_chunk(table["name"]).dictionary_encode()
    texts = names.dictionary.to_pylist()
    code = names.indices.to_numpy(zero_copy_only=False)
    alphabet = np.argsort(np.argsort(np.array(texts, np.str_), kind="stable"))
    place = np.array([_place(text) for text in texts], np.int64)
    uncovered = arrow.to_numpy(table["covered_ns"]) == 0
    others = ~table["is_best"].to_numpy()
    return arrow.take(table, np.lexsort((others, alphabet[code], place[code], uncovered)))


def _place(name: str) -> int:
    """Position of a name's kind of quantity in the display order, from 0."""
    if _DIE.fullmatch(name):
        return len(_NAMED) + 1
    return next((n for n, kind in enumerate(_NAMED) if kind.match(name)), len(_NAMED))

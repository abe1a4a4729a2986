"""Jobs whose ranks run programs of several families, so that ranks differ in what is recorded of them."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import msgspec
import numpy as np
from programs import families, kineto
from programs.simulation import simulate

if TYPE_CHECKING:
    from pathlib import Path

_MOST = 3


def write(folder: Path, seed: int) -> Path:
    """Write the files of a job of one to three programs, each with ranks of its own; returns their folder."""
    random = np.random.default_rng(seed)
    chosen = random.choice(list(families.FAMILIES), random.integers(1, _MOST, endpoint=True))
    job = folder / "job"
    job.mkdir()
    rank = 0
    for number, family in enumerate(chosen):
        of_program = folder / str(number)
        for path in kineto.write(simulate(families.FAMILIES[family](seed + number)), of_program):
            document = msgspec.json.decode(gzip.decompress(path.read_bytes()))
            document["distributedInfo"] = {"rank": rank, "world_size": 32}
            (job / f"rank{rank}.json").write_bytes(msgspec.json.encode(document))
            rank += 1
    return job

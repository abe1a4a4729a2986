"""Fragments: the traces of single sources, of which a job is assembled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.schemas.meta import ASSUMED

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.schemas.meta import Rank
    from chopper_interop.sources import SourceFiles
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Fragment:
    """The trace of one source."""

    files: SourceFiles
    trace: Trace

    @property
    def path(self) -> Path:
        """First file of the source."""
        return self.files.paths[0]

    @property
    def has_counters(self) -> bool:
        """True if it is a counter pass."""
        return bool(self.trace.counters.num_rows)

    def rank_of(self, number: int) -> Rank:
        """Description of one of its ranks."""
        return next(rank for rank in self.trace.meta.ranks if rank.rank == number)

    @property
    def ranks_are_assumed(self) -> bool:
        """True if the source states the number of none of its ranks."""
        return all(r.known_by == ASSUMED for r in self.trace.meta.ranks)

    @property
    def window_ns(self) -> tuple[int, int]:
        """First start and last end of its nodes, on its clock."""
        origin = self.trace.meta.origin_ns
        ts = self.trace.array("ts")
        return int(ts.min()) + origin, int((ts + self.trace.array("dur")).max()) + origin

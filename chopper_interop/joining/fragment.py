"""Fragments: the traces of single sources, of which a job is assembled."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.schemas.meta import ASSUMED, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.sources import SourceFiles

_STEP = re.compile(r"ProfilerStep\s*#(\d+)")
"""Ranges by which PyTorch's profiler marks training steps."""


@dataclass(frozen=True, eq=False)
class Fragment:
    """The trace of one source."""

    files: SourceFiles
    trace: Trace

    @property
    def path(self) -> Path:
        """First file of the source, as users see it."""
        return self.files.first

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

    @cached_property
    def stated_ranks(self) -> frozenset[int]:
        """Numbers of the ranks that the source states."""
        return frozenset(r.rank for r in self.trace.meta.ranks if r.known_by != ASSUMED)

    @cached_property
    def hosts(self) -> frozenset[str]:
        """Hosts of its ranks."""
        return frozenset(r.host for r in self.trace.meta.ranks)

    @cached_property
    def processes(self) -> frozenset[tuple[str, int]]:
        """Host and id of each process that the source states."""
        return frozenset((r.host, r.pid) for r in self.trace.meta.ranks if r.pid >= 0)

    @cached_property
    def steps(self) -> frozenset[int]:
        """Numbers of the training steps that PyTorch's profiler marked."""
        matches = (_STEP.match(name) for name in self.trace.names())
        return frozenset(int(match[1]) for match in matches if match)

    @cached_property
    def window_ns(self) -> tuple[int, int]:
        """First start and last end of its nodes, on its clock."""
        origin = self.trace.meta.origin_ns
        ts = self.trace.array("ts")
        return int(ts.min()) + origin, int((ts + self.trace.array("dur")).max()) + origin

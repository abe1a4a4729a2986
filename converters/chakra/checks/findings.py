"""Findings about ETs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chopper_interop.arrays.types import Array
    from chopper_interop.converters.chakra.decode import EtFile


_SHOWN = 3
"""Nodes named as examples of a fault."""
_SHOWN_RANKS = 8
"""Ranks whose shares are listed."""


@dataclass(frozen=True)
class Finding:
    """A kind of fault in one rank's file, or between ranks.

    Parameters
    ----------
    where
        The file, or "all ranks".
    what
        The fault and its consequence.
    count
        Number of nodes that have it.
    example
        The first of them.
    stops
        True if the simulation does not run to the end because of it.
    """

    where: str
    what: str
    count: int = 1
    example: str = ""
    stops: bool = True

    def __str__(self) -> str:
        times = [f"{self.count:,} times"] if self.count > 1 else []
        example = [f"for example {self.example}"] if self.example else []
        details = ", ".join(times + example)
        return f"{self.where}: {self.what}" + (f" ({details})" if details else "")


@dataclass
class Findings:
    """All findings, and the outcome of a run by the simulator's rules.

    Parameters
    ----------
    entries
        The findings.
    nodes, ranks
        Numbers of what was checked.
    makespan_us
        Length of the run; None if it does not end.
    span_ns
        Rank → its measured span, where the file states it.
    unexplained
        Rank → share of its critical path that nothing recorded explains, where the file states it.
    """

    entries: list[Finding] = field(default_factory=list)
    nodes: int = 0
    ranks: int = 0
    makespan_us: int | None = None
    span_ns: dict[int, int] = field(default_factory=dict)
    unexplained: dict[int, float] = field(default_factory=dict)

    @property
    def runs(self) -> bool:
        """True if a simulator will run all nodes of all ranks."""
        return not any(f.stops for f in self.entries)

    @property
    def verdict(self) -> str:
        """Human-readable summary in one line."""
        size = f"{self.nodes:,} nodes of {self.ranks} rank{'s' if self.ranks != 1 else ''}"
        if not self.runs:
            return f"{size}: a simulator will NOT run them to the end"
        text = f"{size}: they run to the end; by their durations in {self.makespan_us:,} µs"
        if self.span_ns:
            text += f", measured {(max(self.span_ns.values()) + 500) // 1000:,} µs"
        if self.unexplained:
            text += f"; unexplained: {shares_text(self.unexplained)}"
        return text

    def add(
        self, where: str, what: str, count: int = 1, example: str = "", *, stops: bool = True
    ) -> None:
        """Add a finding; see `Finding` for the parameters."""
        self.entries.append(Finding(where, what, count, example, stops))

    def add_nodes(
        self, where: str, et: EtFile, rows: Array, what: str, *, stops: bool = True
    ) -> None:
        """Add a finding about these nodes, if there are any."""
        if len(rows):
            self.add(where, what, len(rows), examples(et, rows), stops=stops)


def shares_text(shares: dict[int, float]) -> str:
    """Shares of the paths of ranks, the largest first."""
    by_share = sorted(shares.items(), key=lambda item: -item[1])
    texts = [f"rank {rank}: {share:.1%} of its path" for rank, share in by_share[:_SHOWN_RANKS]]
    return ", ".join(texts) + (", …" if len(by_share) > _SHOWN_RANKS else "")


def examples(et: EtFile, rows: Array) -> str:
    """Ids and names of the first nodes."""
    return ", ".join(f"node {et.id[r]} {et.name(r)[:40]!r}" for r in rows[:_SHOWN].tolist())

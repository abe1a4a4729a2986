"""Findings about ETs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile


_SHOWN = 3
"""Nodes named as examples of a fault."""
_SHOWN_RANKS = 3
"""Ranks whose shares are listed: those that one looks at first."""
_SHOWN_SHARE = 0.0005
"""Smallest share that is listed; less is 0.0% in text."""


@dataclass(frozen=True)
class Finding:
    """A kind of fault in one rank's file, or between ranks.

    Parameters
    ----------
    where
        The file, or "all ranks".
    text
        The fault and its consequence.
    count
        Number of nodes that have it.
    example
        The first of them.
    stops
        True if the simulation does not run to the end because of it.
    deviates
        True if it is that a rank does not take its measured time.
    """

    where: str
    text: str
    count: int = 1
    example: str = ""
    stops: bool = True
    deviates: bool = False

    @property
    def label(self) -> str:
        """Word that stands in front of it."""
        return "stops" if self.stops else "time" if self.deviates else "note"

    def __str__(self) -> str:
        times = [f"{self.count:,} times"] if self.count > 1 else []
        example = [f"for example {self.example}"] if self.example else []
        details = ", ".join(times + example)
        return f"{self.where}: {self.text}" + (f" ({details})" if details else "")


@dataclass
class Findings:
    """All findings, and the outcome of a run by the simulator's rules.

    Parameters
    ----------
    entries
        The findings.
    nodes, ranks, streams
        Numbers of what was checked; of ranks and streams, each with an NPU, all together are `ranks`.
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
    streams: int = 0
    makespan_us: int | None = None
    span_ns: dict[int, int] = field(default_factory=dict)
    unexplained: dict[int, float] = field(default_factory=dict)

    @property
    def by_text(self) -> list[Finding]:
        """The findings, those of one text in several files or ranks as one."""
        together: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.entries:
            together.setdefault((finding.label, finding.text), []).append(finding)
        return [_as_one(findings) for findings in together.values()]

    @property
    def runs(self) -> bool:
        """True if a simulator will run all nodes of all ranks."""
        return not any(f.stops for f in self.entries)

    @property
    def passes(self) -> bool:
        """True if it will, and each rank takes its measured time."""
        return self.runs and not any(f.deviates for f in self.entries)

    @property
    def verdict(self) -> str:
        """Human-readable summary: a line each on the end, the time and what is unexplained of it."""
        size = f"{self.nodes:,} nodes of {_counted(self.ranks - self.streams, 'rank')}"
        if self.streams:
            size += f" and {_counted(self.streams, 'stream')}, for {self.ranks} NPUs"
        if not self.runs:
            return f"{size}: a simulator will NOT run them to the end"
        lines = [
            f"{size}: they run to the end"
            + ("" if self.passes else ", but not in the measured time"),
            f"by their durations in {self.makespan_us:,} µs",
        ]
        if self.span_ns:
            lines[1] += f", measured {(max(self.span_ns.values()) + 500) // 1000:,} µs"
        if self.unexplained:
            lines.append(f"unexplained of critical paths: {shares_text(self.unexplained)}")
        return "\n".join(lines)

    def add(
        self, where: str, text: str, count: int = 1, example: str = "", *, stops: bool = True
    ) -> None:
        """Add a finding; see `Finding` for the parameters."""
        self.entries.append(Finding(where, text, count, example, stops))

    def add_deviation(self, where: str, text: str) -> None:
        """Add the finding that a rank does not take its measured time."""
        self.entries.append(Finding(where, text, stops=False, deviates=True))

    def add_nodes(
        self, where: str, et: EtFile, rows: Array, text: str, *, stops: bool = True
    ) -> None:
        """Add a finding about these nodes, if there are any."""
        if len(rows):
            self.add(where, text, len(rows), examples(et, rows), stops=stops)


def _as_one(findings: list[Finding]) -> Finding:
    """Make one finding of those of one text."""
    first, *others = findings
    if not others:
        return first
    where = f"{first.where} and {_counted(len(others), 'other')}"
    return replace(first, where=where, count=sum(finding.count for finding in findings))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' if number != 1 else ''}"


def shares_text(shares: dict[int, float]) -> str:
    """Shares of the paths of ranks, the largest first."""
    by_share = sorted(shares.items(), key=lambda item: -item[1])
    listed = [item for item in by_share if item[1] >= _SHOWN_SHARE][:_SHOWN_RANKS]
    texts = [f"{share:.1%} of rank {rank}" for rank, share in listed]
    rest = len(shares) - len(listed)
    if not listed:
        return f"less than {_SHOWN_SHARE:.2%} of every rank"
    if rest:
        texts.append(f"less of {rest} other{'s' if rest > 1 else ''}")
    return ", ".join(texts)


def examples(et: EtFile, rows: Array) -> str:
    """Ids and names of the first nodes."""
    return ", ".join(f"node {et.id[r]} {et.name(r)[:40]!r}" for r in rows[:_SHOWN].tolist())

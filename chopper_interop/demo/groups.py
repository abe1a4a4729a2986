"""Process groups of the sample job."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessGroup:
    """A process group.

    Parameters
    ----------
    name, description
        As PyTorch names it.
    ranks
        Global ranks of its members, in order.
    """

    name: str
    description: str
    ranks: tuple[int, ...]

    @property
    def stride(self) -> int:
        """Distance from one of its ranks to the next."""
        return self.ranks[1] - self.ranks[0] if len(self.ranks) > 1 else 1


def world(ranks: int) -> ProcessGroup:
    """Return the default group of a job."""
    return ProcessGroup("0", "default_pg", tuple(range(ranks)))

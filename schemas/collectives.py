"""Amount that each kind of collective moves, as nccl-tests counts it."""

from __future__ import annotations

from chopper_interop.schemas.kinds import Collective

BUS_FACTORS: dict[str, tuple[int, bool]] = {
    Collective.ALL_REDUCE: (2, True), Collective.ALL_GATHER: (1, True),
    Collective.REDUCE_SCATTER: (1, True), Collective.ALL_TO_ALL: (1, True),
    Collective.GATHER: (1, True), Collective.SCATTER: (1, True), Collective.BROADCAST: (1, False),
    Collective.REDUCE: (1, False), Collective.SEND_RECV: (1, False), Collective.SEND: (1, False),
    Collective.RECV: (1, False),
}  # fmt: skip
"""Factor of bus over algorithmic bandwidth; if true, times (n - 1) / n for n ranks of the group.

nccl-tests, doc/PERFORMANCE.md and ``*GetBw`` of src/ (2.13). A barrier moves nothing."""


def bus_factor(kind: str, ranks: int) -> float:
    """Bytes over the bus per byte of a collective's size, in a group of so many ranks."""
    times, shared = BUS_FACTORS[kind]
    return times * (ranks - 1) / ranks if shared else float(times)

"""Ends of small ETs by the rules of a simulator, as ASTRA-sim has them (`tests/benchmarks/ends.py`)."""

from pathlib import Path

import pytest
import random_ets
from random_ets import Node

from chopper_interop.converters.chakra import check

HOST, MESSAGE = Node("host", 3, (0,)), 3
BEGIN, LONGER = Node("host", 1), Node("host", 9, (0,))


def message(end: str, src: int, dst: int) -> Node:
    return Node(end, MESSAGE, (0,), (src, dst, 1))


TIES = {
    "a send, then the host": (0, [message("send", 0, 1), HOST], message("recv", 0, 1), True),
    "the host, then a send": (0, [HOST, message("send", 0, 1)], message("recv", 0, 1), False),
    "a receive of a lower rank, then the host": (
        1, [message("recv", 0, 1), HOST], message("send", 0, 1), True,
    ),
    "the host, then a receive of a lower rank": (
        1, [HOST, message("recv", 0, 1)], message("send", 0, 1), True,
    ),
    "a receive of a higher rank, then the host": (
        0, [message("recv", 1, 0), HOST], message("send", 1, 0), False,
    ),
    "the host, then a receive of a higher rank": (
        0, [HOST, message("recv", 1, 0)], message("send", 1, 0), False,
    ),
}  # fmt: skip
"""Rank, its nodes that end at the same moment, the other end of the message, and whether ASTRA-sim runs them: it aborts
where a rank with host nodes ends with a message. Seen in both of its analytical networks."""


@pytest.mark.parametrize("name", TIES)
def test_of_two_ends_at_one_moment_the_last_counts(name: str, tmp_path: Path) -> None:
    rank, nodes, other, runs = TIES[name]
    ranks = [[BEGIN, *nodes], [BEGIN, other, LONGER]]
    random_ets.write(tmp_path / "job", ranks if rank == 0 else ranks[::-1])
    log = check.check(tmp_path / "job")
    assert log.runs == runs, log

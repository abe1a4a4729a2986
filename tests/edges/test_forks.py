"""Waits between two joins of the stream from which others fork off, by the order of calls alone."""

from __future__ import annotations

import numpy as np
import pytest

from chopper_interop.edges.wait_streams import Sequence, forks_of

NONE = "-"


def sequence(calls: str) -> Sequence:
    """Launches as letters of their streams, of communication in capitals, waits as full stops; a bar begins a thread."""
    thread = np.cumsum([c == "|" for c in calls])[[c != "|" for c in calls]]
    made = calls.replace("|", "")
    is_wait = np.array([c == "." for c in made])
    none = np.full(len(made), -1, np.int64)
    unmarked = np.zeros(len(made), bool)
    return Sequence(
        node=np.arange(len(made)), ts=10 * np.arange(len(made)), thread=thread,
        queue=np.array([-1 if c == "." else ord(c.lower()) - ord("a") for c in made]), slot=none,
        communicates=np.array([c.isupper() for c in made]),
        wait=np.where(is_wait, np.cumsum(is_wait) - 1, -1), run=none, served=unmarked,
        for_communication=unmarked, event=none, behind_record=unmarked, first_for_event=none,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("calls", "joined_by"),
    [
        ("a.b.c..a", "aa--"),
        ("a.b.c..a.b.c..a", "aa--aa--"),  # each step has forks
        ("a.b.c..a.c.b.d...a", "aa--aaa---"),
        ("a.b.c.a", "---"),  # fewer waits than streams
        ("a.b.a", "--"),  # of one stream the order says nothing
        ("c.b..a", "---"),  # what the first wait is behind is not of the stream that waits later
        ("a.bX.c..a", "aa--"),  # streams of communication are not joined so
        ("a.b.c..A", "----"),
        ("a.b.c|..a", "----"),  # another thread's
    ],
)
def test_waits_before_a_join_of_all_streams_are_forks(calls: str, joined_by: str) -> None:
    found = forks_of(sequence(calls), calls.count("."))
    assert "".join(NONE if q < 0 else chr(ord("a") + q) for q in found.joined_by) == joined_by


def test_the_join_before_bounds_forks() -> None:
    found = forks_of(sequence("a.b.c..a.b.c..a"), 8)
    assert found.since.tolist() == [0, 0, 0, 0, 70, 70, 0, 0]

"""Tables of pairs of queues, against dictionaries."""

from __future__ import annotations

import numpy as np

from chopper_interop.edges.pair_table import empty_table, entry_of, with_pair

QUEUES = 40


def test_a_table_keeps_the_latest_slot_of_each_pair_and_lists_the_pairs_of_a_queue() -> None:
    random = np.random.default_rng(7600)
    table, expected = empty_table(QUEUES), {}
    for time_ns in range(2_000):  # of 1,600 pairs, so that the table grows and pairs come again
        queue, other, slot = (int(random.integers(0, n)) for n in (QUEUES, QUEUES, 1_000))
        table = with_pair(table, queue, other, slot, time_ns)
        latest = max(slot, expected.get((queue, other), (0, 0))[0])
        expected[queue, other] = latest, time_ns
    assert table.used[0] == len(expected) > 1_000
    for queue in range(QUEUES):
        listed, entry = [], table.head[queue]
        while entry >= 0:
            listed.append(int(table.other[entry]))
            entry = table.following[entry]
        assert sorted(listed) == sorted(o for q, o in expected if q == queue)
        for other in range(QUEUES):
            entry = entry_of(table, queue, other)
            known = (table.slot[entry], table.time_ns[entry]) if entry >= 0 else None
            assert known == expected.get((queue, other))

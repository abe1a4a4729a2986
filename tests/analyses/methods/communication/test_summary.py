"""How often ranks came last in each step, against a count in Python's own sets and sums."""

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from read_once import read_once

from chopper_interop.analyses.methods.communication import summary
from chopper_interop.analyses.methods.communication.times import (
    CommunicationTimes,
    communication_times,
)


def _counted(times: CommunicationTimes, members: set[int]) -> list[dict[str, Any]]:
    instances, rank = times.instances, times.rank.tolist()
    used = {int(times.instance[m]) for m in members} - {-1}
    in_used = [m for m, instance in enumerate(times.instance.tolist()) if instance in used]
    rows = []
    for one in sorted({rank[m] for m in members} | {rank[m] for m in in_used}):
        own = [m for m in members if rank[m] == one]
        took_part = {int(times.instance[m]) for m in in_used if rank[m] == one}
        last = [i for i in used if rank[instances.last[i]] == one]
        late = [i for i in last if instances.late_by[i] > 0]
        waits = [int(times.wait[m]) for m in own if times.wait[m] >= 0]
        rows.append({
            "rank": one,
            "collectives": len(took_part),
            "times_last": len(late),
            "times_last_certain": sum(
                int(instances.late_by[i] > max(instances.uncertainty[i], 0)) for i in last
            ),
            "caused_wait_ns": sum(
                int(times.wait[m])
                for m in members
                if times.waited_for[m] >= 0 and rank[times.waited_for[m]] == one != rank[m]
            ),
            "wait_ns": sum(waits) if waits else None,
            "duration_ns": sum(int(times.dur[m]) for m in own),
            "late_share": len(late) / len(took_part) if took_part else None,
        })  # fmt: skip
    return rows


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_ranks_of_each_step(demo: Path, data: st.DataObject) -> None:
    times = communication_times(read_once(demo))
    member = st.integers(0, len(times.row) - 1)
    steps = data.draw(st.dictionaries(st.integers(0, 9), st.sets(member, min_size=1), max_size=4))
    pairs = [(m, step) for step, members in steps.items() for m in members]
    again = [pair for pair in pairs if data.draw(st.booleans())]  # a pair counts once
    position, step = np.array(pairs + again, np.int64).reshape(-1, 2).T
    by_step = summary.summarize_ranks_by_step(times, position, step)
    assert by_step == {step: _counted(times, steps[step]) for step in sorted(steps)}
    for members in steps.values():
        mask = np.isin(np.arange(len(times.row)), list(members))
        assert summary.summarize_ranks(times, mask) == _counted(times, members)

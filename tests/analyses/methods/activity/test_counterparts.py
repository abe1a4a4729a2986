"""Counterparts in other steps and on other ranks, and medians of them."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_once import read_once
from shared_data import real
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.arrays import arrow
from chopper_interop.demo import make_demo
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.testing import samples

if TYPE_CHECKING:
    from pathlib import Path

members = st.tuples(st.integers(-50, 50), st.integers(-1, 4), st.integers(0, 3), st.booleans())


@given(st.lists(members, max_size=120), st.booleans(), st.booleans(), st.booleans())
def test_medians_are_those_of_plain_loops(rows, some, others, between) -> None:
    values, group, label = (np.array([r[k] for r in rows], np.int64) for k in range(3))
    counts = np.array([r[3] for r in rows], bool)
    median, members_counted = counterparts.group_medians(
        values,
        group,
        counts=counts if some else None,
        apart=label if others else None,
        between=between,
    )
    for i in range(len(rows)):
        of_group = [
            int(values[k])
            for k in range(len(rows))
            if group[k] == group[i] >= 0
            and (counts[k] or not some)
            and (label[k] != label[i] or not others)
        ]
        assert members_counted[i] == len(of_group)
        expected = int(values[i])
        if of_group:
            low, high = statistics.median_low(of_group), statistics.median_high(of_group)
            expected = (low + high) // 2 if between else low
        assert median[i] == expected


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job") / "demo"
    return make_demo(folder, ranks=3, layers=2, steps=3, telemetry=False, counter_steps=0)


@pytest.mark.parametrize(("across", "size"), [("iterations", 3), ("ranks", 3), ("both", 9)])
def test_every_operation_of_equal_steps_has_its_counterparts(job: Path, across, size) -> None:
    trace = ci.read(job / "kineto")
    group = counterparts.counterpart_groups(trace, across=across)
    step = arrow.to_numpy(trace.nodes["iteration"], -1)
    assert ((group >= 0) == (step >= 0)).all()
    assert (np.bincount(group[group >= 0]) == size).all()
    where = step * 100 + trace.array("rank")
    names = trace.names()
    for number in range(0, int(group.max()) + 1, 7):
        rows = np.flatnonzero(group == number)
        assert len(set(where[rows].tolist())) == size
        assert len({names[n].rstrip("0123456789") for n in trace.array("name")[rows]}) == 1


@pytest.mark.parametrize("name", slow_from(["torchrec_4rank_v100", "ddp_resnet_4rank_amd"], 1))
def test_on_real_files_nearly_all_gpu_work_has_counterparts(name: str) -> None:
    path = real(f"pytorch/{name}")
    trace = read_once(path)
    step = arrow.to_numpy(trace.nodes["iteration"], -1)
    work = np.isin(trace.array("kind"), [int(k) for k in GPU_WORK]) & (step >= 0)
    for across, size in (("iterations", 3), ("ranks", 4), ("both", 12)):
        group = counterparts.counterpart_groups(trace, across=across)
        share = (np.bincount(group[group >= 0])[group[work]] == size).mean()
        assert share > 0.98, (across, share)


def test_without_steps_there_are_none() -> None:
    trace = samples.empty_trace()
    assert counterparts.counterpart_groups(trace).tolist() == []
    with pytest.raises(UsageError, match="across=steps"):
        counterparts.counterpart_groups(trace, across="steps")


def test_the_number_of_a_step_is_no_part_of_a_name(job: Path) -> None:
    trace = ci.read(job / "kineto")
    group = counterparts.counterpart_groups(trace, across="both")
    names, name = trace.names(), trace.array("name")
    ranges = [i for i in range(len(name)) if names[name[i]].startswith("ProfilerStep#")]
    ranges = [i for i in ranges if trace.array("kind")[i] != Kind.GPU_ANNOTATION]
    assert len(ranges) == 9
    assert len(set(group[ranges].tolist())) == 1

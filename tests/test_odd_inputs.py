"""Odd input: what can be saved is saved and what was lost is counted, or one line says why not."""

from pathlib import Path

import pytest
from issue_counts import counts
from seeds import Odd, Refused, odd, written
from shared_data import real

import chopper_interop as ci
from chopper_interop.issues import Severity


@pytest.mark.parametrize("case", odd(), ids=lambda case: case.name)
def test_outcome(case: Odd, tmp_path: Path) -> None:
    path = written(case.files, tmp_path, real)
    if isinstance(case.outcome, Refused):
        with pytest.raises(case.outcome.error, match=case.outcome.message) as raised:
            ci.read(path, **case.options)
        assert "\n" not in str(raised.value)
        return
    trace = ci.read(path, **case.options)
    actual = counts(trace)
    lost = {i.code: i.count for i in trace.meta.issues if i.severity is not Severity.INFO}
    assert trace.nodes.num_rows == case.outcome.nodes
    assert trace.samples.num_rows == case.outcome.samples
    assert actual == {**actual, **case.outcome.issues}
    assert lost.keys() <= case.outcome.issues.keys(), lost


def test_every_name_is_there_once() -> None:
    names = [case.name for case in odd()]
    assert len(set(names)) == len(names)

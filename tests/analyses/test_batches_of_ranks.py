"""Analyses of some ranks at a time have the results of the whole trace: rows, summary, notes and annotations."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

import gpu_work
import pytest
from hypothesis import given
from hypothesis import strategies as st

import chopper_interop as ci
from chopper_interop import pipeline, rank_batches, training_steps
from chopper_interop.analyses.methods.activity.grouping import GRAINS
from chopper_interop.arrays import spill
from chopper_interop.errors import ChopperError
from chopper_interop.testing import strategies

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace

OWN_GRAINS: dict[str, tuple[str, ...]] = {
    "temporal": GRAINS,
    "overlap": (*GRAINS, "instance", "operation_instance"),
    "kernels": GRAINS,
    "idle": (*GRAINS, "device", "blame", "blame,device,phase"),
    "launch": GRAINS,
}
"""Analyses that measure batches, with what their rows may be of."""
STEPS = ("", "each", "0", "0-1")


def _result(trace: Trace, name: str, options: dict[str, str]) -> Any:
    """What an analysis says of a trace, of which nothing is known yet; or its error."""
    try:
        result = ci.analyze(replace(trace), name, **options)
    except ChopperError as error:
        return str(error)
    columns = {name: (str(c.type), c.to_pylist()) for name, c in result.annotations.items()}
    return result.to_dict(), list(map(str, result.rows.schema)), columns


def _assert_equal(
    trace: Trace, name: str, options: dict[str, str], *, in_files: bool = False
) -> None:
    """Of a rank at a time there is what there is of all at once, which the repr shows to the last bit."""
    at_once = _result(trace, name, options)
    with pytest.MonkeyPatch.context() as patch, spill.when(in_files):
        patch.setattr(rank_batches, "MAX_NODES", 1)
        patch.setattr(training_steps, "_AT_ONCE", 1)
        patch.setattr(spill, "_MIN_BYTES", 8)
        assert len(rank_batches.spans(trace)) == len(trace.ranks)
        by_rank = _result(trace, name, options)
    assert repr(by_rank) == repr(at_once), (name, options)


@st.composite
def _options(draw: Any, trace: Trace, name: str) -> dict[str, str]:
    by = st.lists(st.sampled_from(GRAINS), min_size=1, max_size=3, unique=True).map(",".join)
    own = st.sampled_from(OWN_GRAINS[name])
    chosen = st.lists(st.sampled_from(trace.ranks or [0]), max_size=2, unique=True)
    ranks = ",".join(map(str, draw(chosen)))
    return {"by": draw(own | by), "steps": draw(st.sampled_from(STEPS)), "ranks": ranks}


@pytest.mark.parametrize("name", OWN_GRAINS)
@given(data=st.data())
def test_random_work(data: st.DataObject, name: str) -> None:
    trace = gpu_work.trace(data.draw(gpu_work.WORKS))
    _assert_equal(trace, name, data.draw(_options(trace, name)), in_files=data.draw(st.booleans()))


@pytest.mark.parametrize("name", OWN_GRAINS)
@given(data=st.data())
def test_random_jobs(data: st.DataObject, name: str) -> None:
    """They have hosts, launches, collectives, and edges between any nodes, of other ranks too."""
    trace = data.draw(strategies.traces(max_ranks=4))
    _assert_equal(trace, name, data.draw(_options(trace, name)), in_files=data.draw(st.booleans()))


@pytest.fixture(scope="module")
def job(demo: Path) -> Trace:
    """The sample job."""
    return pipeline.read(demo)


@pytest.mark.parametrize(
    ("name", "by"), [(name, by) for name, grains in OWN_GRAINS.items() for by in grains]
)
def test_the_sample_job(job: Trace, name: str, by: str) -> None:
    some = ",".join(map(str, job.ranks[1:3]))
    for steps, ranks in product(("", "each"), ("", some)):
        _assert_equal(job, name, {"by": by, "steps": steps, "ranks": ranks})


@pytest.mark.parametrize(("name", "compat"), [("overlap", "chopper"), ("launch", "chopper")])
def test_definitions_of_others(job: Trace, name: str, compat: str) -> None:
    _assert_equal(job, name, {"compat": compat, "steps": "each"})

"""Options that several analyses take mean the same to all, and are described by ``--list``."""

import gpu_work
import pytest

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind


@pytest.mark.parametrize("name", ["throttling", "excursions", "imbalance"])
def test_all_telemetry_has_no_steps(name: str) -> None:
    with pytest.raises(UsageError, match="has no steps"):
        ci.analyze(TraceBuilder().finish(), name, window="all", steps="each")


@pytest.mark.parametrize("option", ["steps", "ranks"])
@pytest.mark.parametrize("numbers", ["12-10", "0,7-4"])
def test_ranges_go_up(option: str, numbers: str) -> None:
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 9, iteration=0)])
    with pytest.raises(UsageError, match=f"{option}={numbers}: .* goes backwards"):
        ci.analyze(trace, "temporal", **{option: numbers})


def test_excursions_of_nodes_are_joined_with_nothing() -> None:
    with pytest.raises(UsageError, match="node cannot be joined"):
        ci.analyze(TraceBuilder().finish(), "excursions", by="rank,node")


def test_every_option_of_every_analysis_is_described() -> None:
    undocumented = [
        f"{name} {option}"
        for name, function in registry.analyses().items()
        for option, text in registry.option_texts(function).items()
        if not text
    ]
    assert undocumented == []

"""Options that several analyses take mean the same to all, and are described by ``--list``."""

import gpu_work
import numpy as np
import pytest

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import MissingDataError, SchemaError, UsageError
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.meta import ORDER


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


@pytest.mark.parametrize("name", ["critical_path", "replay", "what_if"])
def test_the_order_of_operations_is_no_time(name: str) -> None:
    """7,191 operations of a host execution trace had a critical path of 14.4 µs, as many as its nodes."""
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 1000)]).with_meta(clock=ORDER)
    with pytest.raises(MissingDataError, match="no times") as raised:
        ci.analyze(trace, name)
    assert "profile" in raised.value.hint


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


_BY = [n for n, f in registry.working_analyses().items() if "by" in registry.options(f)]


_NUMBERS = [
    (name, option, value)
    for name, function in registry.working_analyses().items()
    for option, parameter in registry.options(function).items()
    for value in {"int": (-1,), "float": (-1.0, np.nan)}.get(parameter.annotation, ())
    if name != "dvfs"  # asks for a clock first: see test_dvfs
]


@pytest.mark.parametrize(("name", "option", "value"), _NUMBERS)
def test_a_number_that_makes_no_sense_is_refused(name: str, option: str, value: float) -> None:
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 9, iteration=0)])
    with pytest.raises(UsageError, match=option):
        ci.analyze(trace, name, **{option: value})


@pytest.mark.parametrize("name", _BY)
def test_a_list_is_what_its_names_are_as_text(name: str) -> None:
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 9, iteration=0)])
    default = registry.options(registry.analysis(name))["by"].default
    names = default.split(",")
    outcomes = [
        _outcome(trace, name, by) for by in (default, names, tuple(names), iter(names), None)
    ]
    assert outcomes == [outcomes[0]] * len(outcomes)


def _outcome(trace: ci.Trace, name: str, by: object) -> object:
    try:
        return ci.analyze(trace, name, by=by).to_dict()
    except ci.ChopperError as error:
        return str(error)


def test_numbers_may_be_numbers() -> None:
    works = [gpu_work.Work(Kind.KERNEL, 10 * k, 9, iteration=k) for k in range(3)]
    trace = gpu_work.trace(works)
    for steps in ("0-1", [0, 1], range(2), np.arange(2), {0, 1}):
        rows = ci.analyze(trace, "temporal", steps=steps, by=["rank", "iteration"]).rows
        assert rows["iteration"].to_pylist() == [0, 1]
    assert ci.analyze(trace, "temporal", steps=np.int64(2), ranks=0).rows.num_rows == 1


@pytest.mark.parametrize("by", [{"rank": 1}, 1.5, ["rank", None], b"rank", object()])
def test_what_is_no_list_of_names_is_refused(by: object) -> None:
    trace = gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 9)])
    with pytest.raises(UsageError, match="must be a text, or a list of texts or numbers"):
        ci.analyze(trace, "temporal", by=by)


def test_an_analysis_that_gives_no_result_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "analysis", lambda _: lambda trace: [trace])
    with pytest.raises(SchemaError, match="analysis own_analysis returns a list, not a Result"):
        ci.analyze(TraceBuilder().finish(), "own_analysis")

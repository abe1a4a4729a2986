"""Examples in docstrings of the public API: they run, and give what they show."""

import doctest
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import chopper_interop as ci
from chopper_interop import build, graph, pipeline, registry, result, tables, trace
from chopper_interop.joining import concatenation
from chopper_interop.testing import acceptance, check_converter

MODULES = (pipeline, trace, tables, graph, build, registry, acceptance, result, concatenation)
PUBLIC = (
    *(ci.read, ci.write, ci.convert, ci.analyze, ci.concat, ci.formats, ci.Result),
    *(trace.Trace.graph, trace.Trace.endpoints, trace.Trace.to_pandas, trace.Trace.to_networkx),
    *(trace.Trace.steps, trace.Trace.between),
    *(tables.TraceTables.array, tables.TraceTables.values, tables.TraceTables.integers),
    *(tables.TraceTables.with_columns, build.TraceBuilder, check_converter),
    *(graph.Graph.successors, graph.Graph.predecessors, graph.Graph.subgraph, graph.Graph.counts),
)


def examples_of(module: ModuleType) -> list[doctest.DocTest]:
    return [test for test in doctest.DocTestFinder().find(module, globs={}) if test.examples]


EXAMPLES = {test.name: test for module in MODULES for test in examples_of(module)}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_give_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    outcome = runner.run(EXAMPLES[name], out=report.append)
    assert not outcome.failed, "".join(report)


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__qualname__)
def test_the_public_api_has_examples(function: Callable[..., object]) -> None:
    assert f"{function.__module__}.{function.__qualname__}" in EXAMPLES

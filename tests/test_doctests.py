"""Examples in docstrings: they run, and give what they show; the public API has some."""

import doctest
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import chopper_interop as ci
from chopper_interop import build, graph, tables, trace
from chopper_interop.testing import check_converter

PUBLIC = (
    *(ci.read, ci.write, ci.convert, ci.analyze, ci.concat, ci.formats, ci.Result),
    *(trace.Trace.graph, trace.Trace.endpoints, trace.Trace.to_pandas, trace.Trace.to_networkx),
    *(trace.Trace.steps, trace.Trace.between),
    *(tables.TraceTables.array, tables.TraceTables.values, tables.TraceTables.integers),
    *(tables.TraceTables.with_columns, build.TraceBuilder, check_converter),
    *(graph.Graph.successors, graph.Graph.predecessors, graph.Graph.subgraph, graph.Graph.counts),
)


PUBLIC_NAMES = {f"{function.__module__}.{function.__qualname__}" for function in PUBLIC}


def modules_with_examples() -> Iterator[str]:
    home = Path(ci.__file__).parent
    for folder, _, files in os.walk(home, followlinks=True):
        for path in (Path(folder) / name for name in files if name.endswith(".py")):
            if ">>> " in path.read_text("utf-8"):
                parts = path.relative_to(home.parent).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


EXAMPLES = {
    test.name: test
    for module in sorted(modules_with_examples())
    for test in doctest.DocTestFinder().find(import_module(module))
    if test.examples
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_give_what_they_show(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # examples write files
    if name in PUBLIC_NAMES:
        EXAMPLES[name].globs.clear()  # they import what they use, as programs of users do
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    outcome = runner.run(EXAMPLES[name], out=report.append)
    assert not outcome.failed, "".join(report)


@pytest.mark.parametrize("name", sorted(PUBLIC_NAMES))
def test_the_public_api_has_examples(name: str) -> None:
    assert name in EXAMPLES

"""Every chart: its analysis takes its options, its name is its own, and the docs know it."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from chopper_interop import plots, registry
from chopper_interop.errors import UsageError
from chopper_interop.report import tables
from chopper_interop.result import Result

pytest.importorskip("altair", reason="the extra report is not installed")
DOCS = (Path(__file__).parents[2] / "chopper_interop/plots/README.md").read_text()


@pytest.mark.parametrize("plot", plots.PLOTS, ids=lambda plot: plot.name)
def test_the_analysis_of_a_chart_takes_its_options(plot: plots.Plot) -> None:
    assert plot.needs
    if plot.analysis:
        function = registry.analysis(plot.analysis)
        assert set(plot.options) <= set(registry.options(function))


def test_names_of_charts_are_names_of_files_and_differ() -> None:
    names = [plot.name for plot in plots.PLOTS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9-]+", name) for name in names)


def test_charts_that_the_docs_name_exist() -> None:
    titles = {plot.title for plot in plots.PLOTS} | {view.title for view in tables.VIEWS}
    cells = [line.split("|")[2] for line in DOCS.splitlines() if line.startswith("| ")]
    named = {text.strip() for cell in cells for text in re.split(r"[;:,(]", cell)}
    others = {"chart of the report", "the report", "the report itself", "each chart is a file of `--figures`",
              "the peaks of the GPU with the kernels below them", "which names them",
              "a table that is sorted and filtered)"}  # fmt: skip
    assert named - others <= titles
    assert {plot.title for plot in plots.PLOTS if plot.section == "GPUs over time"} - named <= {
        "Causes of throttling"
    }


def test_public_functions_are_those_of_the_catalogue() -> None:
    names: dict[str, object] = {}
    exec("from chopper_interop.plots import *", names)  # noqa: S102 # as notebooks do
    assert len(names.keys() - {"__builtins__", "PLOTS", "Plot", "over_time", "timeline_of"}) == len(
        {id(plot.function) for plot in plots.PLOTS}
    )
    assert names["power_over_time"].__name__ == "power_over_time"
    assert {"idle_causes", "power_over_time", "over_time", "timeline_of"} <= names.keys() & {
        *dir(plots)
    }
    with pytest.raises(AttributeError, match="no attribute 'no_chart'"):
        plots.no_chart  # noqa: B018


def test_a_chart_of_something_else_says_what_it_draws() -> None:
    """Each of them was a KeyError of pandas."""
    table = pa.table({"rank": [0], "idle_ns": [1]})
    with pytest.raises(UsageError, match=r'draws analyze\(trace, "idle", by=.rank.\), not Result'):
        plots.idle_causes(Result("temporal", table))
    with pytest.raises(
        UsageError, match=r'"temporal", by=\'rank,iteration\', steps=\'each\'\): .*iter'
    ):
        plots.step_times(Result("temporal", table))
    with pytest.raises(UsageError, match="draws a trace"):
        plots.power_over_time(Result("temporal", table))

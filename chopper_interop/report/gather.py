"""Results that a report needs: each analysis with each set of options is run once."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop import pipeline, registry
from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.errors import (
    ChopperError,
    InternalError,
    MissingDataError,
    UsageError,
    raise_interrupt,
)
from chopper_interop.plots import library
from chopper_interop.plots.catalogue import PLOTS, Plot
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart
    from chopper_interop.run import Runs

_ANNOTATING = (("critical_path", {"by": "piece"}), ("overlap", {"by": "instance"}))
"""Analyses, with their options, whose columns charts of the trace draw."""


@dataclass
class JobResults:
    """A job with the results of its analyses.

    Parameters
    ----------
    trace
        The job.
    against, runs
        The job that it is compared with, and runs to compare it with, if any.
    common
        Options that all analyses get that take them, such as `ranks`.
    results
        Results that are known, by name of the analysis and its options.
    """

    trace: Trace
    against: Trace | None = None
    runs: Runs = ()
    common: dict[str, Any] = field(default_factory=dict)
    results: dict[tuple[Any, ...], Result | ChopperError] = field(default_factory=dict)

    def result(self, analysis: str, **options: Any) -> Result:
        """Result of an analysis.

        Raises
        ------
        ChopperError
            It cannot be made of this job.
        """
        key = (analysis, *sorted(options.items()))
        if key not in self.results:
            try:
                self.results[key] = self._run(analysis, options)
            except ChopperError as error:
                self.results[key] = error
        result = self.results[key]
        if isinstance(result, ChopperError):
            raise result
        return result

    def _run(self, analysis: str, options: dict[str, Any]) -> Result:
        function = registry.analysis(analysis)
        takes = registry.options(function)
        chosen = options | {n: v for n, v in self.common.items() if n in takes}
        if "steps" in takes and not chosen.get("steps") and analysis not in warm_up.STEPWISE:
            # as in the summary
            chosen["steps"] = warm_up.later_steps(self.trace, chosen.get("ranks", ""))
        if "against" in takes:
            chosen["against"] = self.runs if registry.takes_runs(function) else self.against
            if not chosen["against"]:
                raise MissingDataError("there is no other run")
        return pipeline.analyze(self.trace, analysis, **chosen)


@dataclass
class Charts:
    """Charts of a job.

    Parameters
    ----------
    drawn
        Plots with their charts, or sentences in place of charts, in order.
    missing
        Titles of plots that have no data, by what to record for them.
    failed
        Errors of plots that could not be drawn, by title.
    """

    drawn: list[tuple[Plot, Chart]] = field(default_factory=list)
    missing: dict[str, list[str]] = field(default_factory=dict)
    failed: dict[str, ChopperError] = field(default_factory=dict)


def charts_of(job: JobResults, *, for_page: bool = False) -> Charts:
    """Draw every chart that the job has data for; one that fails does not stop the others.

    `for_page` leaves out those that a page has something better for.
    """
    annotated = annotated_trace(job)
    charts = Charts()
    for plot in PLOTS:
        if for_page and not plot.on_page:
            continue
        try:
            with library.unchecked():
                chart = _chart(plot, job, annotated)
        except (MissingDataError, UsageError):  # no steps, no clock, no other run
            chart = None
        except ChopperError as error:
            charts.failed[plot.title] = error
            continue
        except Exception as error:  # noqa: BLE001 # a defect of one chart is reported with its name
            raise_interrupt(error)
            charts.failed[plot.title] = InternalError(error, "the chart")
            continue
        if chart is None:
            charts.missing.setdefault(plot.needs, []).append(plot.title)
        else:
            charts.drawn.append((plot, chart))
    return charts


def annotated_trace(job: JobResults) -> Trace:
    """The trace with the columns that charts draw."""
    trace = job.trace
    for analysis, options in _ANNOTATING:
        with contextlib.suppress(MissingDataError):
            trace = job.result(analysis, **options).annotate(trace)
    return trace


def _chart(plot: Plot, job: JobResults, trace: Trace) -> Chart:
    if not plot.analysis:
        return plot.function(trace)
    result = job.result(plot.analysis, **plot.options)
    return plot.function(result, trace) if plot.takes_trace else plot.function(result)

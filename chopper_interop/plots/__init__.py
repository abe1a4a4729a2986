"""Charts of results and traces, for notebooks and for the report: each function returns an Altair chart.

Most take the `Result` of one analysis, as their docstrings say; some take a trace, or a result and a
trace. They return None where there is nothing to draw, and a sentence where that says all. `PLOTS` lists
them as the report does.

import chopper_interop as ci
from chopper_interop import plots

plots.idle_causes(ci.analyze(trace, "idle"))
plots.core_clock_over_time(trace)
plots.step_timeline(ci.analyze(trace, "critical_path", by="piece"), trace).save("step.svg")
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from chopper_interop.errors import UsageError
from chopper_interop.plots import catalogue
from chopper_interop.plots.catalogue import PLOTS, Plot
from chopper_interop.plots.gpus import over_time
from chopper_interop.plots.timeline import timeline_of


def _checked(name: str, plot: Plot) -> Callable[..., Any]:
    """Return the function of a chart, which says what it draws if it is given something else."""

    @functools.wraps(getattr(plot.function, "func", plot.function))
    def draw(*args: Any, **options: Any) -> Any:
        if args and not plot.takes(args[0]):
            raise UsageError(f"this chart draws {plot.call}, not {args[0]!r}")
        try:
            return plot.function(*args, **options)
        except KeyError as error:  # columns that other options have
            raise UsageError(f"this chart draws {plot.call}: there is no {error}") from error

    draw.__name__ = name
    return draw


_BY_FUNCTION = {id(plot.function): plot for plot in PLOTS}
_MODULES = [item for item in vars(catalogue).values() if isinstance(item, ModuleType)]
_CHARTS: dict[str, Callable[..., Any]] = {
    name: _checked(name, _BY_FUNCTION[id(value)])
    for m in _MODULES
    for name, value in vars(m).items()
    if id(value) in _BY_FUNCTION
}
__all__ = ["PLOTS", "Plot", "over_time", "timeline_of"]
__all__ += [*sorted(_CHARTS)]  # noqa: PLE0604 # names alone


def __getattr__(name: str) -> Callable[..., Any]:
    """Return the function of a chart of `PLOTS` by its name."""
    if name in _CHARTS:
        return _CHARTS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)

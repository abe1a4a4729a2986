"""Plan and run several analyses at once: which run, with which options, and which are skipped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chopper_interop import pipeline, registry
from chopper_interop.analyses.methods.activity import windows
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import (
    ChangedTraceError,
    ChopperError,
    MissingDataError,
    NoSuchDefinitionsError,
    OptionError,
    UsageError,
)
from chopper_interop.gpus import user_gpus
from chopper_interop.schemas import results
from chopper_interop.schemas.meta import Meta

if TYPE_CHECKING:
    from chopper_interop.result import Result
    from chopper_interop.run import Runs
    from chopper_interop.trace import Trace

ALL, DEFAULT = "all", "summary"
"""Word that names all analyses, and the analysis that is run where none is named."""
AGAINST, COMPAT = "against", "compat"
"""Options that decide if an analysis can run at all: a second job, and another tool's definitions."""

_SELECTING = {"steps", "ranks"}
"""Options that choose what is analysed, and nothing else."""


@dataclass
class AnalysisPlan:
    """Analyses to run, with their options.

    Parameters
    ----------
    options
        Options of each analysis, by its name.
    skipped
        Reason for each analysis that is skipped, where all were requested.
    named
        True if the analyses were requested by name.
    ignored
        Common options that an analysis does not take, by its name.
    """

    options: dict[str, dict[str, Any]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    named: bool = False
    ignored: dict[str, list[str]] = field(default_factory=dict)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The analyses to run."""
        return [registry.analysis(name) for name in self.options]

    @property
    def looks_at(self) -> frozenset[str] | None:
        """Annotations that the results depend on, of those derived of nodes; None if these may be any."""
        needed = [results.LOOKED_AT.get(name) for name in self.options]
        chosen = {option for options in self.options.values() for option in options}
        if None in needed or chosen - _SELECTING:
            return None
        return frozenset().union(*filter(None, needed))

    @property
    def looks_at_arguments(self) -> bool:
        """True if the results may depend on arguments of nodes beyond what columns and edges are made of."""
        return self.looks_at is None or not results.LOOK_AT_ARGUMENTS.isdisjoint(self.options)

    @property
    def compares_two(self) -> bool:
        """True if one of them compares two jobs."""
        return any(
            AGAINST in registry.options(f) and not registry.takes_runs(f) for f in self.functions
        )

    @property
    def compares_runs(self) -> bool:
        """True if one of them compares several runs."""
        return any(registry.takes_runs(f) for f in self.functions)

    @property
    def compares_only_runs(self) -> bool:
        """True if all of them compare runs, any of which may be unreadable."""
        return bool(self.options) and all(registry.takes_runs(f) for f in self.functions)


@dataclass
class Outcome:
    """Results and failures of the analyses of a plan.

    Parameters
    ----------
    results
        Results of the analyses that succeeded, in order.
    failed
        Errors of the others, by name.
    skipped
        Reason for each analysis that lacks the requested `compat`, or data, where all were requested.
    """

    results: list[Result] = field(default_factory=list)
    failed: dict[str, ChopperError] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def annotate(self, trace: Trace) -> Trace:
        """Return the trace with the columns that the results have for its nodes."""
        for result in self.results:
            trace = result.annotate(trace)
        return trace


def plan_analyses(
    names: list[str], options: dict[str, Any], common: dict[str, Any], *, against: bool
) -> AnalysisPlan:
    """Select the analyses to run and the options of each.

    Parameters
    ----------
    names
        Requested analyses; all if empty.
    options
        Options by name, each for the analyses that take it.
    common
        Options that at least one of the analyses must take; they override `options`.
    against
        True if there is a second job.

    Raises
    ------
    UsageError
        No analysis takes one of `common`; or there is a second job and no analysis compares; or an
        analysis that compares was requested without a second job.
    """
    plan = AnalysisPlan(named=bool(names))
    for name, function in _functions(names).items():
        takes = registry.options(function)
        if not names and COMPAT in common and COMPAT not in takes:
            plan.skipped[name] = "it takes no --compat"
        elif not against and AGAINST in takes:
            if names:
                compared = "several runs" if registry.takes_runs(function) else "two jobs"
                raise UsageError(
                    f"{name} compares {compared}", hint="name the other with --against"
                )
            plan.skipped[name] = "it compares with another job: name one with --against"
        else:
            plan.options[name] = {n: v for n, v in (options | common).items() if n in takes}
            plan.ignored[name] = [option for option in common if option not in takes]
    required = [*common, *([AGAINST] if against else [])]
    for option in registry.unknown_options(plan.functions, required):
        searched = f"not an option of {' or '.join(names) if names else 'any analysis'}"
        raise UsageError(f"--{option}: {searched}", hint=_having(option))
    return plan


def _having(option: str) -> str | None:
    """Hint for an option that the analyses which were named lack: those that have it; None if none has."""
    functions = registry.working_analyses()
    having = [name for name, f in functions.items() if option in registry.options(f)]
    return f"name all, or some that have it: {', '.join(having)}" if having else None


def check_options(plan: AnalysisPlan) -> None:
    """Raise `OptionError` for values of options that no input makes right, before anything is read.

    Each analysis is asked about an empty trace. An error counts if all analyses that were given
    options raise one: of many, some lack a value that others have.
    """
    empty_trace = TraceBuilder(Meta()).finish()
    errors = []
    for name, options in plan.options.items():
        function = registry.analysis(name)
        second: Any = () if registry.takes_runs(function) else empty_trace
        other = {AGAINST: second} if AGAINST in registry.options(function) else {}
        user_gpus.read_gpus(str(options.get("gpus", "")))
        try:
            windows.check_steps_and_ranks(*(options.get(n, "") for n in ("steps", "ranks")))
            given = {n: v for n, v in options.items() if n not in ("steps", "ranks")}
            if given:
                pipeline.analyze(empty_trace, name, **given, **other)
        except OptionError as error:
            errors.append(error)
        except ChopperError:
            continue  # of what an empty trace lacks
    if errors and len(errors) == sum(bool(options) for options in plan.options.values()):
        raise errors[0]


def run_analyses(
    trace: Trace, plan: AnalysisPlan, against: Trace | None = None, runs: Runs | None = None
) -> Outcome:
    """Run the analyses of a plan; one that fails does not stop the others.

    Parameters
    ----------
    trace
        The job to analyse.
    plan
        The analyses and their options.
    against
        The other job, for analyses that compare two.
    runs
        The other jobs, for analyses that compare several runs.
    """
    outcome = Outcome()
    for name, options in plan.options.items():
        function = registry.analysis(name)
        other = runs if registry.takes_runs(function) else against
        second = {AGAINST: other} if AGAINST in registry.options(function) else {}
        try:
            result = pipeline.analyze(trace, name, **options, **second)
        except ChangedTraceError:
            raise
        except ChopperError as error:
            outcome.failed[name] = error
        else:
            reason = f"ignored: {name} has no such option"
            ignored = {f"--{option}": reason for option in plan.ignored[name]}
            outcome.results.append(replace(result, notes={**result.notes, **ignored}))
    if outcome.results and not plan.named:
        failed = outcome.failed.items()
        not_possible = (NoSuchDefinitionsError, MissingDataError)
        undefined = [name for name, error in failed if isinstance(error, not_possible)]
        outcome.skipped = {name: str(outcome.failed.pop(name)) for name in undefined}
    return outcome


def _functions(names: list[str]) -> dict[str, Callable[..., Any]]:
    if names:
        return {name: registry.analysis(name) for name in names}
    return registry.working_analyses()

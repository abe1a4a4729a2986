"""Asking several analyses at once: which take which options, which cannot answer, and why."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chopper_interop import pipeline, registry
from chopper_interop.errors import ChopperError, NoSuchDefinitionsError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.result import Result
    from chopper_interop.runs.run import Runs
    from chopper_interop.trace import Trace

AGAINST, COMPAT = "against", "compat"
"""Options that decide whether an analysis can be asked at all: a second job, and whose definitions."""


@dataclass
class Question:
    """Which analyses are asked, with what options.

    Parameters
    ----------
    asked
        Options by name of the analysis.
    left_out
        Analyses that are not asked though all are, each with the reason.
    named
        Whether they were asked for by name.
    untaken
        Options in common that it does not take, by name of the analysis.
    """

    asked: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    named: bool = False
    untaken: dict[str, list[str]] = field(default_factory=dict)

    @property
    def functions(self) -> list[Callable[..., Any]]:
        """The analyses that are asked."""
        return [registry.analysis(name) for name in self.asked]

    @property
    def of_two(self) -> bool:
        """Whether one of them compares two jobs."""
        return any(
            AGAINST in registry.options(f) and not registry.takes_runs(f) for f in self.functions
        )

    @property
    def of_runs(self) -> bool:
        """Whether one of them compares several runs."""
        return any(registry.takes_runs(f) for f in self.functions)

    @property
    def of_runs_alone(self) -> bool:
        """Whether all of them compare runs, of which any may be unreadable."""
        return bool(self.asked) and all(registry.takes_runs(f) for f in self.functions)


@dataclass
class Answers:
    """What they said.

    Parameters
    ----------
    results
        Of those that answered, in order.
    failed
        Of the others, by name.
    left_out
        Those that have no such `compat`, where all were asked, each with the reason.
    """

    results: list[Result] = field(default_factory=list)
    failed: dict[str, ChopperError] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def annotated(self, trace: Trace) -> Trace:
        """The trace that was asked, with all that they know of its nodes."""
        for result in self.results:
            trace = result.annotate(trace)
        return trace


def question(
    names: list[str], options: dict[str, Any], common: dict[str, Any], *, against: bool
) -> Question:
    """Who is to be asked what.

    Parameters
    ----------
    names
        Analyses; none for all that there are.
    options
        Options by name, each for those that take it.
    common
        Options of which one of the analyses must take each, over `options`.
    against
        Whether there is a second job.

    Raises
    ------
    UsageError
        None takes one of `common`, or there is a second job and none that compares, or one that
        compares was asked for without.
    """
    plan = Question(named=bool(names))
    for name, function in _functions(names).items():
        takes = registry.options(function)
        if not names and COMPAT in common and COMPAT not in takes:
            plan.left_out[name] = "it has the definitions of no other tool"
        elif not against and AGAINST in takes:
            if names:
                what = "several runs" if registry.takes_runs(function) else "two jobs"
                raise UsageError(f"{name} compares {what}", hint="say the other with --against")
            plan.left_out[name] = "it compares with another job, which --against names"
        else:
            plan.asked[name] = {n: v for n, v in (options | common).items() if n in takes}
            plan.untaken[name] = [option for option in common if option not in takes]
    asked = plan.functions
    wanted = [*common, *([AGAINST] if against else [])]
    for option in registry.unknown_options(asked, wanted):
        raise UsageError(f"--{option}: {', '.join(names) or 'no analysis'}: none takes it")
    return plan


def ask(
    trace: Trace, plan: Question, against: Trace | None = None, runs: Runs | None = None
) -> Answers:
    """Ask them all; one that cannot answer does not hinder the others.

    Parameters
    ----------
    trace
        The job that is asked about.
    plan
        Who is asked what.
    against
        The other job, for those that compare two.
    runs
        The other jobs, for those that compare several runs.
    """
    answers = Answers()
    for name, options in plan.asked.items():
        function = registry.analysis(name)
        other = runs if registry.takes_runs(function) else against
        second = {AGAINST: other} if AGAINST in registry.options(function) else {}
        try:
            result = pipeline.analyze(trace, name, **options, **second)
        except ChopperError as error:
            answers.failed[name] = error
        else:
            said = f"{name} takes no such option: figures are as without it"
            untaken = {f"--{option}": said for option in plan.untaken[name]}
            answers.results.append(replace(result, notes={**result.notes, **untaken}))
    if answers.results and not plan.named:
        failed = answers.failed.items()
        lacking = [name for name, error in failed if isinstance(error, NoSuchDefinitionsError)]
        answers.left_out = {name: answers.failed.pop(name).message for name in lacking}
    return answers


def _functions(names: list[str]) -> dict[str, Callable[..., Any]]:
    if names:
        return {name: registry.analysis(name) for name in names}
    return registry.working_analyses()

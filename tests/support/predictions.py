"""Predictions of what changes would do, against programs of which it is known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from programs import kineto
from programs.program import Change
from programs.simulation import job_ns, simulate, span_ns

import chopper_interop as ci

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from programs.program import Program
    from programs.simulation import Run

_CLOCKS_NS = 5_000
"""By how much the recorded time of a job may differ from the simulated one, for clocks that differ."""
_HOST = "kind in ['cpu_op', 'annotation', 'runtime']"


@dataclass(frozen=True)
class Case:
    """A change of a program's recorded steps.

    Parameters
    ----------
    before_ns, after_ns
        Their time as simulated, without and with the change.
    job_after_ns
        Time of all that is recorded, with the change.
    what_if
        The same change as the analysis takes it.
    """

    name: str
    change: Change
    what_if: str
    before_ns: int
    after_ns: int
    job_after_ns: int

    def error_percent(self, gain_ns: int) -> float:
        """By how much a predicted gain is too small, in percent of the time without the change."""
        return 100 * (self.before_ns - self.after_ns - gain_ns) / self.before_ns


@dataclass(frozen=True)
class Factors:
    """By what each kind of change multiplies times."""

    compute: tuple[float, ...]
    kernel: tuple[float, ...]
    rank: tuple[float, ...]
    communication: tuple[float, ...]
    host: tuple[float, ...]


SETS = {
    "usual": Factors((0.5, 1.25), (0.5,), (0.8,), (0.5, 2.0), (0.5,)),
    "wide": Factors((0.1, 0.5, 2.0), (0.1, 2.0), (1.5,), (0.5, 2.0), (0.5, 2.0)),
}
"""Changes by the name of the set. Wide ones move what binds: a host that was ahead of its GPU no longer is."""


def changes_of(run: Run, factors: Factors = SETS["usual"]) -> Iterator[tuple[str, Change, str]]:
    """Changes to try on a program: their names, themselves, and as the analysis takes them."""
    kernel = "kind == 'kernel'"
    for factor in factors.compute:
        yield _scaled(f"compute x {factor}", Change("compute", factor), kernel)
    name = longest_kernel(run)
    for factor in factors.kernel:
        change = Change("kernel", factor, name=name)
        yield _scaled(f"one kernel x {factor}", change, f"{kernel} and name == '{name}'")
    if len(run.program.threads) > 1:
        for factor in factors.rank:
            change = Change("rank", factor, rank=1)
            yield _scaled(f"one rank x {factor}", change, f"{kernel} and rank == 1")
    if any(s.facts.keys() & {"message", "flag"} for s in run.recorded()):
        for factor in factors.communication:
            change = Change("communication", factor)
            yield _scaled(f"communication x {factor}", change, "kind == 'comm'")
    for factor in factors.host:
        yield _scaled(f"host x {factor}", Change("host", factor), _HOST)


def _scaled(name: str, change: Change, query: str) -> tuple[str, Change, str]:
    return name, change, f"scale={change.factor} where {query}"


def longest_kernel(run: Run) -> str:
    """The kernel on which most time is spent."""
    spent: dict[str, int] = {}
    for s in run.recorded():
        if s.category == "kernel" and not s.facts.keys() & {"message", "flag"}:
            spent[s.name] = spent.get(s.name, 0) + s.end_ns - s.start_ns
    return max(spent, key=lambda name: spent[name])


def cases_of(run: Run, factors: Factors = SETS["usual"]) -> list[Case]:
    """All changes of a program, simulated."""
    return [_case(run, *listed) for listed in changes_of(run, factors)]


def network_cases(run: Run, link_gbs: int, networks_gbs: Iterable[int]) -> list[Case]:
    """The program with its links replaced by those of other networks."""
    if not any("message" in s.facts for s in run.recorded()):
        return []
    return [
        _case(run, f"{gbs} GB/s", Change("communication", link_gbs / gbs), f"bandwidth={gbs}GB/s")
        for gbs in networks_gbs
    ]


def _case(run: Run, name: str, change: Change, text: str) -> Case:
    changed = simulate(run.program, change, run)
    after_ns, job_after_ns = span_ns(run, changed), job_ns(run, changed)
    return Case(name, change, text, span_ns(run, run), after_ns, job_after_ns)


def read(run: Run, folder: Path) -> ci.Trace:
    """The trace of the files that the profiler writes of a run."""
    kineto.write(run, folder)
    return ci.read(folder)


def gains_ns(trace: ci.Trace, cases: list[Case]) -> list[int]:
    """The time that the analysis predicts to be gained, for each case."""
    text = "; ".join(case.what_if for case in cases)
    rows = ci.analyze(trace, "what_if", change=text).rows.to_pylist()
    by_change = {row["change"]: row for row in rows}
    measured_ns = by_change["as measured"]["before_ns"]
    assert abs(measured_ns - cases[0].before_ns) < _CLOCKS_NS
    return [by_change[case.what_if]["gain_ns"] for case in cases]


def errors_percent(
    program: Program, folder: Path, factors: Factors = SETS["usual"]
) -> dict[str, float]:
    """Errors of the analysis for all changes of a program, in percent of its time."""
    run = simulate(program)
    cases = cases_of(run, factors)
    gains = gains_ns(read(run, folder), cases)
    return {c.name: c.error_percent(gain) for c, gain in zip(cases, gains, strict=True)}


def plan_error_percent(before: Program, after: Program, change: str, folder: Path) -> float:
    """By how much a job with another plan is predicted too long, in percent of the longer of both times."""
    one, other = simulate(before), simulate(after)
    result = ci.analyze(read(one, folder), "what_if", change=change)
    before_ns, after_ns = span_ns(one, one), span_ns(other, other)
    predicted_ns = before_ns - result.summary["changes"][-1]["gain_ns"]
    return 100 * (predicted_ns - after_ns) / max(before_ns, after_ns)

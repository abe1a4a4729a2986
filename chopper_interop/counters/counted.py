"""What hardware counters tell of the dispatches: work, traffic, utilisation, clock.

The formulas are a table (`schemas.derived`). What they need of the GPU is taken from what sources
tell of it, else from its name (`schemas.gpus`), which is said. What cannot be is left unknown and
counted: nothing is cut to what would be possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import stated
from chopper_interop.columns import arrow, gather
from chopper_interop.counters import clock as counted_clock
from chopper_interop.counters.align import DURATION
from chopper_interop.gpus import rated
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas import hub
from chopper_interop.schemas.derived import BUSY_CYCLES, FLOPS, METRICS, ONLY_ON, canonical

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.columns.types import Array
    from chopper_interop.gpus.rated import Rated
    from chopper_interop.schemas.derived import Formula, Metric
    from chopper_interop.trace import Trace

ASSUMED = Fault(
    "hardware-assumed",
    Severity.INFO,
    "Numbers of a GPU's dies, units or waves that no source tells were taken from its name.",
)
UNKNOWN = Fault(
    "hardware-unknown",
    Severity.LOSS,
    "Nothing tells how many dies the GPU of counted dispatches has: what is derived from their "
    "cycles is not known.",
)
SOME_TYPES = Fault(
    "flops-of-some-types",
    Severity.INFO,
    "Operations of some types alone were counted: floating-point operations of other types are "
    "not in the sum.",
)
IMPOSSIBLE = Fault(
    "metric-impossible",
    Severity.LOSS,
    "Counters and metrics that are more than they can be, or less than nothing, were left out.",
)
COMPARED = Fault(
    "flops-compared",
    Severity.INFO,
    "Kernels whose floating-point operations are known from shapes and from counters.",
)

CLOCK = "gfxclk_counted_mhz"
_COLUMNS = (*(m.name for m in METRICS if m.name in hub.ANNOTATION_TYPES), CLOCK)
TOLERANCE = 1.01
"""Counters of one dispatch do not begin and end at the same cycle."""
_MOST = 1e18
"""No counter of a dispatch counts so far."""
_FACTS = {
    "xccs": "xccs", "cus": "cus", "simds_per_cu": "simds_per_cu", "waves_per_cu": "waves_per_simd",
    "max_mhz": "boost_mhz",
}  # fmt: skip
"""Operands that are facts of a GPU → fields of `Rated`."""


def columns(trace: Trace, issues: IssueLog) -> dict[str, pa.Array]:
    """Annotation columns that the counters of a trace tell; none that all ranks have.

    Parameters
    ----------
    trace
        Any trace.
    issues
        Where it is told what was assumed, and what cannot be.
    """
    wanted = stated.lacking(trace, _COLUMNS) if trace.counters.num_rows else []
    if not wanted:
        return {}
    log = IssueLog("job")
    counted = _Counted.of(trace, log)
    values = counted.metrics(log)
    values[CLOCK] = counted.clock(log)
    if "flops" in trace.nodes.column_names:
        _compare(trace, counted.node, values["flops_counted"], log)
    issues.extend(log)
    return {name: c for name in wanted if (c := _column(trace, counted.node, values[name]))}


def metrics(trace: Trace, *names: str) -> tuple[Array, dict[str, Array]]:
    """What counters tell of each dispatch that was counted.

    Parameters
    ----------
    trace
        Any trace.
    *names
        Names of `schemas.derived.METRICS`.

    Returns
    -------
    node, values
        Their nodes, and of each name a number for each, not a number where unknown.
    """
    issues = IssueLog("job")  # what is to say of them, `columns` has said
    counted = _Counted.of(trace, issues)
    known = counted.metrics(issues)
    return counted.node, {name: known[name] for name in names}


def own_cycles(trace: Trace) -> tuple[Array, Array]:
    """Core clocks on each die of the dispatches that were counted, without those of the profiler.

    Returns
    -------
    node, cycles
        Not a number where they cannot be told (see `counters.clock`).
    """
    issues = IssueLog("job")
    counted = _Counted.of(trace, issues)
    return counted.node, counted.clock(issues) * counted.duration_ns / 1e3


def raw(trace: Trace, counter: str) -> Array:
    """A counter as tools sum it over a GPU, for each node; not a number where it was not counted."""
    values = np.full(trace.nodes.num_rows, np.nan)
    if not trace.counters.num_rows:
        return values
    names = arrow.flat(trace.counters["name"])
    wanted = [
        n for n, text in enumerate(names.dictionary.to_pylist()) if canonical(text) == counter
    ]
    rows = np.isin(arrow.numbers(names, -1), wanted)
    values[trace.array("node", "counters")[rows]] = trace.array("value", "counters")[rows]
    return values


def in_own_run(trace: Trace) -> Array:
    """Nodes whose cycles were counted in the run that the trace is of, not in another one."""
    owner = trace.array("node", "counters")
    if not len(owner):
        return owner
    names = arrow.flat(trace.counters["name"])
    times = [n for n, text in enumerate(names.dictionary.to_pylist()) if text == DURATION]
    return np.setdiff1d(owner, owner[np.isin(arrow.numbers(names, -1), times)])


def totals(trace: Trace) -> dict[str, float]:
    """Sum of each counter over all dispatches, as tools name the counters."""
    names = arrow.flat(trace.counters["name"])
    texts = names.dictionary.to_pylist()
    sums = np.bincount(
        arrow.numbers(names, -1), trace.array("value", "counters"), minlength=len(texts)
    )
    return dict(zip(texts, map(float, sums), strict=True))


def _column(trace: Trace, node: Array, values: Array) -> pa.Array | None:
    """Values of nodes as a column; None if there is not one."""
    if np.isnan(values).all():
        return None
    column = np.full(trace.nodes.num_rows, np.nan)
    column[node] = values
    return arrow.array(column, mask=np.isnan(column))


@dataclass(frozen=True)
class _Counted:
    """Dispatches that were counted.

    Parameters
    ----------
    node
        Their nodes.
    operands
        Counters and facts of their GPU by name; not a number where unknown.
    arch
        Architecture of each, a number of `archs`.
    duration_ns
        Duration of each in the run in which its cycles were counted.
    device
        GPU of each, a number.
    """

    node: Array
    operands: dict[str, Array]
    arch: Array
    archs: list[str]
    duration_ns: Array
    device: Array

    @classmethod
    def of(cls, trace: Trace, issues: IssueLog) -> _Counted:
        """The dispatches of a trace, and what is known of their GPUs."""
        owner = trace.array("node", "counters")
        first, place = gather.distinct(owner)
        node = owner[first]
        operands: dict[str, Array] = {}
        names = arrow.flat(trace.counters["name"])
        code, value = arrow.numbers(names, -1), trace.array("value", "counters")
        possible = (value >= 0) & (value <= _MOST)
        for number, text in enumerate(names.dictionary.to_pylist()):
            rows = np.flatnonzero(code == number)
            if rows.size and canonical(text) in _NEEDED:
                values = operands.setdefault(canonical(text), np.full(len(node), np.nan))
                values[place[rows]] = np.where(possible[rows], value[rows], np.nan)
                wrong = rows[~possible[rows]]
                example = f"{text} of {value[wrong[0]]:.6g}" if wrong.size else ""
                issues.add(IMPOSSIBLE, wrong.size, example)
        own = trace.array("dur")[node].astype(np.float64)
        told = operands.pop(DURATION, np.full(len(node), np.nan))
        which, gpus = _devices(trace, node, issues)
        for fact in _FACTS:
            operands[fact] = np.array([*(g.facts[fact] for g in gpus), np.nan])[which]
        cycles = operands.get(BUSY_CYCLES)
        if cycles is not None:
            lost = np.flatnonzero(~np.isnan(cycles) & np.isnan(operands["xccs"]))
            issues.add(UNKNOWN, lost.size, gpus[which[lost[0]]].told if lost.size else "")
        return cls(
            node=node,
            operands=operands,
            arch=which,
            archs=[g.arch for g in gpus],
            duration_ns=np.where(np.isnan(told), own, told),
            device=which,
        )

    def metrics(self, issues: IssueLog) -> dict[str, Array]:
        """Every metric of the table, not a number where unknown."""
        known = dict(self.operands)
        for metric in METRICS:
            known[metric.name] = self._checked(metric, self._metric(metric, known), issues)
        self._note_types(known, issues)
        return known

    def _metric(self, metric: Metric, known: dict[str, Array]) -> Array:
        found = np.full(len(self.node), np.nan)
        for formula in metric.formulas:
            fits = (np.isnan(found) | metric.largest) & self._holds(formula)
            if fits.any():
                value = np.where(fits, _value(formula, known, len(found)), np.nan)
                found = np.fmax(found, value) if metric.largest else np.where(fits, value, found)
        return found

    def _holds(self, formula: Formula) -> Array:
        """For which dispatches the architecture is one of a formula's."""
        if not formula.archs:
            return np.ones(len(self.node), bool)
        holds: Array = np.array([a.startswith(formula.archs) for a in self.archs])[self.arch]
        return holds

    def _checked(self, metric: Metric, values: Array, issues: IssueLog) -> Array:
        most = metric.most * TOLERANCE if metric.most else np.inf
        wrong = np.flatnonzero((values < 0) | (values > most))
        example = f"{metric.name} of {values[wrong[0]]:,.6g} {metric.unit}" if wrong.size else ""
        issues.add(IMPOSSIBLE, wrong.size, example)
        values[wrong] = np.nan
        return values

    def _note_types(self, known: dict[str, Array], issues: IssueLog) -> None:
        """Leave out sums of nothing that are not of all types, and tell of the others."""
        flops, lacking = known["flops_counted"], np.zeros(len(self.node), bool)
        missing = []
        for name in FLOPS:
            can = np.array([a.startswith(ONLY_ON.get(name, "")) for a in self.archs])[self.arch]
            lacks = can & np.isnan(known.get(name, np.full(len(flops), np.nan)))
            missing += [name] if (lacks & (flops > 0)).any() else []
            lacking |= lacks
        for name in ("flops_counted", "intensity"):
            known[name] = np.where(lacking & (flops == 0), np.nan, known[name])
        told = f"without {', '.join(missing)}"
        issues.add(SOME_TYPES, np.count_nonzero(lacking & (flops > 0)), told[:300])

    def clock(self, issues: IssueLog) -> Array:
        """Mean clock of each dispatch in MHz; not a number where it cannot be told."""
        cycles = self.operands.get(BUSY_CYCLES)
        if cycles is None:
            return np.full(len(self.node), np.nan)
        most = self.operands["max_mhz"]
        found = np.full(len(self.node), np.nan)
        for device in np.unique(self.device).tolist():
            rows = np.flatnonzero(self.device == device)
            of_one = cycles[rows] / self.operands["xccs"][rows]
            found[rows] = counted_clock.mhz(of_one, self.duration_ns[rows], most[rows], issues)
        return found


def _value(formula: Formula, known: dict[str, Array], count: int) -> Array:
    """A formula over all dispatches; not a number where an operand is unknown."""
    total, some = np.zeros(count), np.zeros(count, bool)
    for factor, names in formula.terms:
        product = np.full(count, factor)
        for name in names:
            product = product * known.get(name, np.nan)
        there = ~np.isnan(product)
        total = total + (np.where(there, product, 0.0) if formula.partial else product)
        some |= there
    for name in formula.over:
        divisor = known.get(name, np.full(count, np.nan))
        total = total / np.where(divisor > 0, divisor, np.nan)
    result: Array = np.where(some, total, np.nan)
    return result


def _operands() -> frozenset[str]:
    formulas = [formula for metric in METRICS for formula in metric.formulas]
    names = {name for f in formulas for _, term in f.terms for name in term}
    return frozenset({*names, DURATION, BUSY_CYCLES} - {m.name for m in METRICS})


_NEEDED = _operands()


@dataclass(frozen=True)
class _Gpu:
    """A GPU of the trace: what formulas need of it, and how it is called."""

    facts: dict[str, float]
    arch: str
    told: str


def _devices(trace: Trace, node: Array, issues: IssueLog) -> tuple[Array, list[_Gpu]]:
    """GPU of each node, a number, and what is known of the GPUs."""
    found, which = rated.of_nodes(trace, node)
    return which, [_gpu(device, one, issues) for (_, device), one in found.items()]


def _gpu(device: int, one: Rated, issues: IssueLog) -> _Gpu:
    """What formulas need of a GPU; what was taken from its name is told."""
    known = {fact: getattr(one, name) for fact, name in _FACTS.items()}
    facts = {fact: np.nan if value is None else float(value) for fact, value in known.items()}
    facts["waves_per_cu"] *= facts["simds_per_cu"]
    named = [f for f in ("cus", "max_mhz", "simds_per_cu", "xccs") if _is_of_name(one, _FACTS[f])]
    values = ", ".join(f"{fact} {facts[fact]:g}" for fact in named)
    issues.add(ASSUMED, len(named), f"device {device}, {one.name or one.arch!r}: {values}")
    return _Gpu(facts, one.arch, f"device {device} {one.name!r} {one.arch}".strip())


def _is_of_name(one: Rated, fact: str) -> bool:
    return fact in one.told and not one.told[fact].startswith((rated.DEVICE, rated.TELEMETRY))


def _compare(trace: Trace, node: Array, counted: Array, issues: IssueLog) -> None:
    """Tell how what was counted relates to what shapes ask for."""
    column = trace.nodes["flops"]
    asked = np.where(arrow.known(column), arrow.numbers(column), 0)[node].astype(np.float64)
    both = np.flatnonzero((asked > 0) & (counted > 0))
    if not both.size:
        return
    low, middle, high = np.percentile(counted[both] / asked[both], (5, 50, 95))
    alike = np.count_nonzero(counted[both] == asked[both])
    told = f"counted / asked: median {middle:.4g}, 5 % below {low:.4g}, 5 % above {high:.4g}"
    issues.add(COMPARED, both.size, f"{told}; {alike} are equal")

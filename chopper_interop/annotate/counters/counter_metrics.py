"""Metrics of dispatches derived from hardware counters: work, traffic, utilization, clock.

The formulas are a table (`schemas.derived`). The facts of the GPU that they need come from sources
that state them, else from its name (`schemas.gpus`), which is logged. Impossible values are left
unknown and counted; none is clipped to what would be possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.annotate import provenance
from chopper_interop.annotate.counters.clock import mean_clocks_mhz
from chopper_interop.annotate.counters.join_passes import DURATION
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.gpus import ratings as gpus_ratings
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.derived import (
    BUSY_CYCLES,
    FLOPS,
    METRICS,
    ONLY_ON,
    Formula,
    Metric,
    canonical,
)
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pyarrow as pa

    from chopper_interop.gpus.ratings import GpuRating

ASSUMED = Fault.info(
    "hardware-assumed",
    "Numbers of a GPU's dies, units or waves that no source states were taken from its name.",
)
UNKNOWN = Fault.loss(
    "hardware-unknown",
    "The number of dies of the GPU of counted dispatches is not known: neither "
    "are metrics derived from their cycles.",
)
SOME_TYPES = Fault.info(
    "flops-of-some-types",
    "Only operations of some types were counted: floating-point operations of "
    "other types are not in the sum.",
)
IMPOSSIBLE = Fault.loss(
    "metric-impossible",
    "Counters and metrics that are more than they can be, or less than nothing, were left out.",
)
COMPARED = Fault.info(
    "flops-compared",
    "Kernels whose floating-point operations are known from shapes and from counters.",
)

CLOCK = "gfxclk_counted_mhz"
_COLUMNS = (*(m.name for m in METRICS if m.name in hub.ANNOTATION_TYPES), CLOCK)
TOLERANCE = 1.01
"""Chosen: counters of one dispatch do not begin and end at the same cycle, so that a ratio may exceed
its bound by this factor."""
_MAX_COUNT = 1e18
"""Chosen: no counter of a dispatch counts so far; larger values are errors of the recording."""
_FACTS = {
    "xccs": "xccs", "cus": "cus", "simds_per_cu": "simds_per_cu", "waves_per_cu": "waves_per_simd",
    "max_mhz": "boost_mhz",
}  # fmt: skip
"""Operands that are facts of a GPU → fields of `GpuRating`."""


def columns(trace: Trace, issues: IssueLog) -> dict[str, pa.Array]:
    """Derive annotation columns from the counters of a trace; none in which all ranks have values.

    Parameters
    ----------
    trace
        A trace with counters.
    issues
        Log of what was assumed, and of impossible values.
    """
    requested = provenance.incomplete_columns(trace, _COLUMNS)
    if not requested:
        return {}
    log = IssueLog("job")
    counted = _CountedDispatches.read(trace, log)
    values = counted.metrics(log)
    values[CLOCK] = counted.clock(log)
    if trace.has("flops"):
        _compare_flops(trace, counted.node, values["flops_counted"], log)
    issues.extend(log)
    return {name: c for name in requested if (c := _column(trace, counted.node, values[name]))}


def dispatch_metrics(trace: Trace, *names: str) -> tuple[Array, dict[str, Array]]:
    """Derive metrics of each dispatch that was counted.

    Parameters
    ----------
    *names
        Names of `schemas.derived.METRICS`.

    Returns
    -------
    node, values
        Rows of the dispatches, and for each name a value for each of them, NaN where unknown; units
        as in `schemas.derived.METRICS`.
    """
    issues = IssueLog("job")  # dropped: `columns` logs the same issues
    counted = _CountedDispatches.read(trace, issues)
    known = counted.metrics(issues)
    return counted.node, {name: known[name] for name in names}


def own_cycles(trace: Trace) -> tuple[Array, Array]:
    """Core clock cycles of counted dispatches on each die, without those of the profiler.

    Returns
    -------
    node, cycles
        Rows of the dispatches, and their cycles; NaN where unknown (see `counters.clock`).
    """
    issues = IssueLog("job")
    counted = _CountedDispatches.read(trace, issues)
    return counted.node, counted.clock(issues) * counted.duration_ns / 1e3


def counter_values(trace: Trace, counter: str) -> Array:
    """Values of a counter as tools sum it over a GPU, for each node; NaN where it was not counted."""
    values = np.full(trace.nodes.num_rows, np.nan)
    if not trace.counters.num_rows:
        return values
    names = arrow.single_chunk(trace.counters["name"])
    codes = [n for n, text in enumerate(names.dictionary.to_pylist()) if canonical(text) == counter]
    rows = np.isin(arrow.to_numpy(names, -1), codes)
    values[trace.array("node", "counters")[rows]] = trace.array("value", "counters")[rows]
    return values


def counted_in_timing_run(trace: Trace) -> Array:
    """Nodes whose counters were recorded in the timing run itself, not in a separate pass."""
    owner = trace.array("node", "counters")
    if not len(owner):
        return owner
    names = arrow.single_chunk(trace.counters["name"])
    codes = [n for n, text in enumerate(names.dictionary.to_pylist()) if text == DURATION]
    return np.setdiff1d(owner, owner[np.isin(arrow.to_numpy(names, -1), codes)])


def _column(trace: Trace, node: Array, values: Array) -> pa.Array | None:
    """Values of nodes as a column; None if all are unknown."""
    if np.isnan(values).all():
        return None
    column = np.full(trace.nodes.num_rows, np.nan)
    column[node] = values
    return arrow.nan_to_null(column)


@dataclass(frozen=True)
class _CountedDispatches:
    """Dispatches that were counted.

    Parameters
    ----------
    node
        Their nodes.
    operands
        Counters and facts of their GPU by name; NaN where unknown.
    arch
        Architecture of each, an index of `archs`.
    archs
        Names of architectures.
    duration_ns
        Duration of each in the run in which its cycles were counted.
    device
        Number of the GPU of each.
    """

    node: Array
    operands: dict[str, Array]
    arch: Array
    archs: list[str]
    duration_ns: Array
    device: Array

    @classmethod
    def read(cls, trace: Trace, issues: IssueLog) -> _CountedDispatches:
        """Read the counted dispatches of a trace, and the facts of their GPUs."""
        owner = trace.array("node", "counters")
        first, index = gather.distinct(owner)
        node = owner[first]
        operands: dict[str, Array] = {}
        names = arrow.single_chunk(trace.counters["name"])
        code, value = arrow.to_numpy(names, -1), trace.array("value", "counters")
        possible = (value >= 0) & (value <= _MAX_COUNT)
        for number, text in enumerate(names.dictionary.to_pylist()):
            rows = np.flatnonzero(code == number)
            if rows.size and canonical(text) in _NEEDED:
                values = operands.setdefault(canonical(text), np.full(len(node), np.nan))
                values[index[rows]] = np.where(possible[rows], value[rows], np.nan)
                wrong = rows[~possible[rows]]
                example = f"{text} of {value[wrong[0]]:.6g}" if wrong.size else ""
                issues.add(IMPOSSIBLE, wrong.size, example)
        duration = trace.array("dur")[node].astype(np.float64)
        in_pass = operands.pop(DURATION, np.full(len(node), np.nan))
        device, gpus = _gpus_of_nodes(trace, node, issues)
        for fact in _FACTS:
            operands[fact] = np.array([*(g.facts[fact] for g in gpus), np.nan])[device]
        cycles = operands.get(BUSY_CYCLES)
        if cycles is not None:
            lost = np.flatnonzero(~np.isnan(cycles) & np.isnan(operands["xccs"]))
            issues.add(UNKNOWN, lost.size, gpus[device[lost[0]]].label if lost.size else "")
        return cls(
            node=node,
            operands=operands,
            arch=device,
            archs=[g.arch for g in gpus],
            duration_ns=np.where(np.isnan(in_pass), duration, in_pass),
            device=device,
        )

    def metrics(self, issues: IssueLog) -> dict[str, Array]:
        """Derive every metric of the table; NaN where unknown."""
        known = dict(self.operands)
        for metric in METRICS:
            values = self._metric(metric, known)
            self._remove_impossible(metric, values, issues)
            known[metric.name] = values
        self._check_types(known, issues)
        return known

    def _metric(self, metric: Metric, known: dict[str, Array]) -> Array:
        """Value of the first formula that applies, or the largest of all if the metric says so."""
        result = np.full(len(self.node), np.nan)
        for formula in metric.formulas:
            fits = (np.isnan(result) | metric.takes_max) & self._holds(formula)
            if fits.any():
                value = np.where(fits, _evaluate(formula, known, len(result)), np.nan)
                result = (
                    np.fmax(result, value) if metric.takes_max else np.where(fits, value, result)
                )
        return result

    def _holds(self, formula: Formula) -> Array:
        """Mark dispatches whose architecture is one of a formula's."""
        if not formula.archs:
            return np.ones(len(self.node), bool)
        return np.array([a.startswith(formula.archs) for a in self.archs])[self.arch]

    def _remove_impossible(self, metric: Metric, values: Array, issues: IssueLog) -> None:
        """Set values outside of a metric's bounds to NaN, in place."""
        upper = metric.max_value * TOLERANCE if metric.max_value else np.inf
        wrong = np.flatnonzero((values < 0) | (values > upper))
        example = f"{metric.name} of {values[wrong[0]]:,.6g} {metric.unit}" if wrong.size else ""
        issues.add(IMPOSSIBLE, wrong.size, example)
        values[wrong] = np.nan

    def _check_types(self, known: dict[str, Array], issues: IssueLog) -> None:
        """Set sums of zero to unknown where not all types were counted; note other partial sums."""
        flops, incomplete = known["flops_counted"], np.zeros(len(self.node), bool)
        missing = []
        for name in FLOPS:
            exists = np.array([a.startswith(ONLY_ON.get(name, "")) for a in self.archs])[self.arch]
            uncounted = exists & np.isnan(known.get(name, np.full(len(flops), np.nan)))
            missing += [name] if (uncounted & (flops > 0)).any() else []
            incomplete |= uncounted
        for name in ("flops_counted", "intensity"):
            known[name] = np.where(incomplete & (flops == 0), np.nan, known[name])
        text = f"without {', '.join(missing)}"
        issues.add(SOME_TYPES, np.count_nonzero(incomplete & (flops > 0)), text[:300])

    def clock(self, issues: IssueLog) -> Array:
        """Mean clock of each dispatch in MHz; NaN where it is not known."""
        cycles = self.operands.get(BUSY_CYCLES)
        if cycles is None:
            return np.full(len(self.node), np.nan)
        max_mhz = self.operands["max_mhz"]
        result = np.full(len(self.node), np.nan)
        for device in np.unique(self.device).tolist():
            rows = np.flatnonzero(self.device == device)
            on_die = cycles[rows] / self.operands["xccs"][rows]
            result[rows] = mean_clocks_mhz(on_die, self.duration_ns[rows], max_mhz[rows], issues)
        return result


def _evaluate(formula: Formula, known: dict[str, Array], count: int) -> Array:
    """Value of a formula for all dispatches; NaN where an operand is unknown."""
    total, has_term = np.zeros(count), np.zeros(count, bool)
    for factor, names in formula.terms:
        product = np.full(count, factor)
        for name in names:
            product = product * known.get(name, np.nan)
        is_known = ~np.isnan(product)
        total = total + (np.where(is_known, product, 0.0) if formula.allows_missing else product)
        has_term |= is_known
    for name in formula.divisors:
        divisor = known.get(name, np.full(count, np.nan))
        total = total / np.where(divisor > 0, divisor, np.nan)
    return np.where(has_term, total, np.nan)


def _operands() -> frozenset[str]:
    formulas = [formula for metric in METRICS for formula in metric.formulas]
    names = {name for f in formulas for _, term in f.terms for name in term}
    return frozenset({*names, DURATION, BUSY_CYCLES} - {m.name for m in METRICS})


_NEEDED = _operands()


@dataclass(frozen=True)
class _CountedGpu:
    """A GPU of the trace: the facts that formulas need, its architecture, and a label."""

    facts: dict[str, float]
    arch: str
    label: str


def _gpus_of_nodes(trace: Trace, node: Array, issues: IssueLog) -> tuple[Array, list[_CountedGpu]]:
    """Index of the GPU of each node, and the GPUs."""
    ratings, index = gpus_ratings.rate_gpus_of_nodes(trace, node)
    return index, [_gpu(device, rating, issues) for (_, device), rating in ratings.items()]


def _gpu(device: int, rating: GpuRating, issues: IssueLog) -> _CountedGpu:
    """Facts of a GPU that formulas need; those that were taken from its name are noted."""
    known = {fact: getattr(rating, name) for fact, name in _FACTS.items()}
    facts = {fact: np.nan if value is None else float(value) for fact, value in known.items()}
    facts["waves_per_cu"] *= facts["simds_per_cu"]
    countable = ("cus", "max_mhz", "simds_per_cu", "xccs")
    by_name = [f for f in countable if _is_by_name(rating, _FACTS[f])]
    values = ", ".join(f"{fact} {facts[fact]:g}" for fact in by_name)
    issues.add(ASSUMED, len(by_name), f"device {device}, {rating.name or rating.arch!r}: {values}")
    names = (f"device {device}", rating.name and repr(rating.name), rating.arch)
    return _CountedGpu(facts, rating.arch, " ".join(filter(None, names)))


def _is_by_name(rating: GpuRating, fact: str) -> bool:
    sources = rating.sources
    return fact in sources and not sources[fact].startswith(
        (gpus_ratings.DEVICE, gpus_ratings.TELEMETRY)
    )


def _compare_flops(trace: Trace, node: Array, counted: Array, issues: IssueLog) -> None:
    """Note how counted operations relate to those that shapes of operands require."""
    required = trace.integers("flops", node, unknown=0).astype(np.float64)
    rows = np.flatnonzero((required > 0) & (counted > 0))
    if not rows.size:
        return
    low, median, high = np.percentile(counted[rows] / required[rows], (5, 50, 95))
    equal = np.count_nonzero(counted[rows] == required[rows])
    text = f"counted / required: median {median:.4g}, 5 % below {low:.4g}, 5 % above {high:.4g}"
    issues.add(COMPARED, rows.size, f"{text}; {equal} are equal")

"""Estimate the length of training steps at other clocks, and so the cost of clocks below the peak."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.analyses.methods.dvfs import ideal, intervals, notes, sensitivity
from chopper_interop.analyses.methods.dvfs import target_clocks as targets
from chopper_interop.analyses.methods.dvfs.cases import Case
from chopper_interop.analyses.methods.dvfs.sources import combination
from chopper_interop.analyses.methods.dvfs.sources.combination import SOURCES, Estimate
from chopper_interop.analyses.methods.dvfs.sources.kernel_classes import CLASSES
from chopper_interop.analyses.methods.dvfs.sources.laws import MISSING
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.result import Result
from chopper_interop.timing.model import timing_of
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.activity.step_times import Spans
    from chopper_interop.analyses.methods.dvfs.ideal import Durations, Lengths
    from chopper_interop.analyses.methods.dvfs.sensitivity import Sensitivities

__all__ = ["dvfs"]

PEAK, ACHIEVABLE, ASKED = targets.PEAK, targets.ACHIEVABLE, targets.ASKED
_STEP_GRAINS, _REPEATS = ("iteration", "job"), "repeats"
_CONVENTIONS = {
    "model": "t(f) = t_ref (beta f_ref / f + 1 - beta) between the clock that a kernel ran at and "
    "another. Where enough repeats of it ran at enough clocks, a convex piecewise linear law "
    "a + b / f fitted to them",
    "first step": "is used for the laws like all others: a warm-up is better left out of the "
    "recording",
    "step": "the graph of all ranks is re-timed with the kernels' durations at the other clock: "
    "collectives end when their last member does, and slack absorbs changes off the critical path",
    "sensor": "the mean clock of a window, late: what is not given or known of window and lag is estimated "
    "by the times of repeats. What they leave open widens the interval (sensor_origin: given, known, "
    "estimated, unknown; sensor_lag_ns contains half of a hold that samples do not show)",
    "communication": "transfers, copies and fills keep their durations (communication: with "
    "an error of 0.05 of its sensitivity)",
    "interval": "95 %, as if errors were normally distributed: errors of single kernels along the path "
    "of each step, and those that kernels have in common (their clocks, the form of the law, another "
    "run), each with all kernels re-timed",
    "range": "where nothing shows how far kernels follow the clock, ideal_low and ideal_high are what is "
    "possible, from none of their time to all of it, and no time of a step within is an estimate: ideal and loss "
    "are null. Those of kernels and classes are what is expected of their class",
    "sum of kernels": "for comparison only: durations of all kernels of a rank and step, mean over these",
    "peak": "the highest clock of each GPU, as reported for it or its product, where it is what tools read: kernels "
    "that draw much current run below it even then, as is known of H100 and H200",
    "floor": "no kernel gets shorter than its busy cycles at that clock, nor than its bytes "
    "at the memory's peak bandwidth, where counters are known",
    "achievable": "the clock at which the maker measured the achievable rate of the matrix cores, for "
    "the element type of most matrix work; kernels that ran faster keep their durations",
}


def dvfs(  # noqa: PLR0913 # options of a command
    trace: Trace,
    *,
    by: str = "iteration",
    steps: str = "",
    ranks: str = "",
    clock: str = "",
    memory_clock: str = "",
    cap_w: float = 0.0,
    on_ranks: str = "",
    gpus: str = "",
    sensor: str = "",
) -> Result:
    """Estimate the length of steps at the highest clock and at others, with its uncertainty.

    Parameters
    ----------
    trace
        A trace with telemetry of clocks, or with counters from which clocks follow.
    by
        ``"iteration"``: one row a step. ``"job"``: their mean. ``"repeats"``: one row for the
        kernels of one name, grid and shapes on GPUs of one product, with their sensitivity. Else
        names out of `grouping.GRAINS` (``"class"``, ``"operation,phase"``): sums over kernels.
    steps
        Training steps, ``10`` or ``10-12``; all of them if empty or ``each``. A trace without
        training steps counts as one step.
    ranks
        Ranks to include, as ``0,4-7``; all if empty. All ranks are re-timed in any case.
    clock
        Another clock to evaluate, as tools read it: ``"1900"`` (MHz, or ``"1.9GHz"``) for all kernels, ``"0.9x"``
        relative to the clock of each, ``"max1900"`` for kernels that ran faster.
    memory_clock
        The same for the memory. It changes kernels whose bytes take 70 % of their time or more.
    cap_w
        A power limit of each GPU to evaluate instead. Clocks are those at which the fitted power
        model (see the analysis power) stays at the limit as it did in the run. The run's limit is
        that of telemetry or, with a wider interval, the one at which the GPUs seem to have been
        held. Kernels that take longer then draw power for longer. Results far below the run's
        limit are uncertain.
    on_ranks
        Ranks whose clock changes (``"0,4-7"``); all if empty.
    gpus
        File that describes further GPUs (TOML, [[gpu]] tables).
    sensor
        What samples of the clock show: ``"instant"``, or ``"mean:100ms"`` for a mean over that time;
        with ``",hold:50ms"`` if it is updated so often, and ``",lag:30ms"`` if it is late. What is not
        given is estimated.

    Returns
    -------
    Result
        By step: `ceiling` (``"peak"``, ``"achievable"``, ``"asked"``), `measured_ns`, `ideal_ns`
        with `ideal_low_ns` and `ideal_high_ns`, `loss_ns` = measured - ideal, `loss_share` of
        measured; null but for the bounds where nothing shows how far kernels follow the clock. The
        summary has means over steps under these names for the peak, and the same under
        ``"achievable"`` and ``"asked"``. Nodes are annotated with `ideal_ns` and its bounds, `beta`,
        `beta_error`, `beta_ref_mhz`, and the sources with the most weight for them: `ideal_source`,
        `beta_source`.

    Raises
    ------
    UsageError
        An option cannot be understood, a clock is far from all that a GPU has, or no clock meets
        `cap_w`.
    MissingDataError
        The trace has kernels, and no clock of anything.

    Notes
    -----
    Model: Hsu and Feng (SC 2005); piecewise laws: Ascend (ASPLOS 2025). Chopper takes the
    overhead of the clock as the remainder of a product. Here the measured clock is used, and
    `breakdown` has the remainder as a separate term.
    """
    question = targets.Question(clock, memory_clock, cap_w, on_ranks)
    question.check()
    known = sensitivity.kernel_sensitivities(trace, gpus, sensor)
    if not memory_clock:
        notes.check_has_clocks(known)
    questions = targets.target_clocks(known, question, gpus)
    highest = questions[PEAK].mhz
    cases = {name: Case(known, target, highest) for name, target in questions.items()}
    peak = cases[PEAK]
    beta = _Beta(*known.beta(peak.each, peak.mhz))
    lengths = _StepLengths(known, cases, steps, ranks)
    selected = _select_repeats(known, lengths, ranks)
    table = _table(known, cases, lengths, by, _SelectedRepeats(selected, beta))
    texts = targets.descriptions(questions) | notes.unknown_notes(known, cases)
    texts |= notes.sensor_notes(known) | lengths.open_notes()
    texts["window"] = windows.describe(steps, "each training step, else of everything")
    summary = _summary(known, cases, lengths, selected)
    annotations = _annotations(trace, known, peak, beta)
    return Result("dvfs", table, summary, _CONVENTIONS, annotations, texts)


class _Beta(NamedTuple):
    """Sensitivities at the measured clocks: combined, by each source, and the sources' weights."""

    combined: Estimate
    each: list[Estimate]
    weight: Array


class _StepLengths:
    """Lengths of training steps, measured and at other clocks."""

    def __init__(
        self, known: Sensitivities, cases: dict[str, Case], steps: str, ranks: str
    ) -> None:
        timing = timing_of(known.repeats.trace)
        self.spans: Spans = ideal.windows_of(timing, steps, ranks)
        retiming = ideal.Retiming(timing, self.spans)
        self.measured = retiming.measured()
        self.sensor = notes.sensor_columns(known.sensors)
        self._is_of_core = {name: case.is_of_core for name, case in cases.items()}
        self.lengths: dict[str, Lengths] = {
            name: retiming.lengths(case.durations, case.limits)
            for name, case in cases.items()
            if case.is_known
        }

    def is_open(self, name: str, lengths: Lengths) -> Array:
        """Mark lengths of which is known only what is possible; bytes show what follows the memory's clock."""
        return lengths.is_open() & self._is_of_core.get(name, True)

    def interval(self, name: str, lengths: Lengths) -> tuple[Array, Array]:
        """Return both ends of the 95 % interval; all that is possible where no more is known."""
        low, high = lengths.interval()
        is_open = self.is_open(name, lengths)
        return (
            np.where(is_open, np.minimum(low, lengths.min_ns), low),
            np.where(is_open, np.maximum(high, lengths.max_ns), high),
        )

    def open_notes(self) -> dict[str, str]:
        """Say at which clocks no time within the range is an estimate."""
        is_known = bool(len(self.measured))
        every = self.lengths.items() if is_known else ()
        return notes.open_notes([n for n, one in every if self.is_open(n, one.mean())[0]])

    def rows(self, *, as_mean: bool) -> pa.Table:
        """Return a row for each ceiling and step, or for the mean over steps if `as_mean`."""
        parts = [
            self._part(name, lengths, as_mean=as_mean) for name, lengths in self.lengths.items()
        ]
        return pa.concat_tables(parts) if parts else self._part("", None, as_mean=as_mean)

    def _part(self, name: str, lengths: Lengths | None, *, as_mean: bool) -> pa.Table:
        measured = self.measured
        step = self.spans.iteration
        if lengths is None:
            measured, step = measured[:0], step[:0]
            lengths = ideal.Lengths.none()
        elif as_mean:
            lengths, measured = lengths.mean(), measured.mean(keepdims=True)
        low, high = self.interval(name, lengths)
        is_open = self.is_open(name, lengths)
        loss = measured - lengths.ns
        columns = {"ceiling": pa.array([name] * len(measured), pa.string())}
        columns |= {
            name: pa.array([value] * len(measured), pa.string() if "origin" in name else pa.int64())
            for name, value in self.sensor.items()
        }
        if not as_mean:
            columns["iteration"] = arrow.array(step, mask=step == windows.NO_STEP)
        columns |= _time_columns(measured, lengths.ns, (low, high), is_open)
        columns["loss_share"] = arrow.array(loss / np.maximum(measured, 1), mask=is_open)
        return pa.table(columns)


class _SelectedRepeats(NamedTuple):
    """Mask of the selected kernels, with their sensitivities."""

    selected: Array
    beta: _Beta


def _select_repeats(known: Sensitivities, lengths: _StepLengths, ranks: str) -> Array:
    """Mark the repeats in the requested ranks and steps."""
    r = known.repeats
    selected = np.isin(r.trace.array("rank")[r.node], windows.chosen_ranks(r.trace, ranks))
    iterations = lengths.spans.iteration
    if len(iterations) and (iterations != windows.NO_STEP).all():
        selected &= np.isin(r.trace.values("iteration")[r.node], iterations)
    return selected


def _table(
    known: Sensitivities,
    cases: dict[str, Case],
    lengths: _StepLengths,
    by: str,
    rows: _SelectedRepeats,
) -> pa.Table:
    if by in _STEP_GRAINS:
        return lengths.rows(as_mean=by == "job")
    known_cases = {name: case for name, case in cases.items() if case.is_known}
    if by == _REPEATS:
        parts = [_repeat_rows(known, name, case, rows) for name, case in known_cases.items()]
        empty = _repeat_rows(known, "", cases[PEAK], rows).slice(0, 0)
    else:
        grouping.parse_grains(by)
        parts = [
            _group_rows(known, name, case, by, rows.selected) for name, case in known_cases.items()
        ]
        empty = _group_rows(known, "", cases[PEAK], by, rows.selected).slice(0, 0)
    return pa.concat_tables(parts) if parts else empty


def _group_rows(known: Sensitivities, name: str, case: Case, by: str, selected: Array) -> pa.Table:
    """Sum times over the kernels of each group."""
    r, durations = known.repeats, case.durations
    node, key, dur = r.node[selected], r.key[selected], r.dur[selected]
    mhz = r.clocks.read_mhz[selected]
    groups = grouping.group_nodes(r.trace, node, by)
    n = len(groups)
    changed_ns = dur * np.exp(durations.log[node])
    interval = _sum_intervals(case, _KernelTimes(node, key, changed_ns), groups.code, n)
    columns = {"ceiling": pa.array([name] * n, pa.string())}
    columns |= dict(zip(groups.keys.column_names, groups.keys.columns, strict=True))
    columns["kernels"] = arrow.array(np.bincount(groups.code, minlength=n).astype(np.int64))
    measured, new = (np.bincount(groups.code, values, n) for values in (dur, changed_ns))
    clocked = np.where(np.isnan(mhz), 0.0, dur)
    mhz_ns = np.bincount(groups.code, np.nan_to_num(mhz) * clocked, n)
    mean = mhz_ns / np.maximum(np.bincount(groups.code, clocked, n), 1.0)
    columns["mean_mhz"] = arrow.array(mean, mask=mean <= 0)
    table = pa.table(columns | _time_columns(measured, new, interval))
    return arrow.take(table, np.lexsort((new - measured,))) if "kernel" in by else table


class _KernelTimes(NamedTuple):
    """Kernels: their nodes, the key that repeats share, and their durations after the change (ns)."""

    node: Array
    key: Array
    changed_ns: Array


def _sum_errors(durations: Durations, work: _KernelTimes, code: Array, n: int) -> Array:
    """Return the standard errors of groups' sums of times.

    Errors that all kernels share add up within a group, then in quadrature. So do statistical errors that are alike;
    what each kernel has of its own adds up over its repeats, in quadrature over kernels.
    """
    common = sum(
        np.bincount(code, part[work.node] * work.changed_ns, n) ** 2
        for part in (durations.clock, durations.form)
    )
    first, pair = gather.distinct(code, work.key)
    errors = np.bincount(pair, work.changed_ns * durations.statistical[work.node], len(first))
    variance = combination.variances_of_sums(
        errors, (code[first], work.key[first], n), durations.direction, durations.settled
    )
    by_sensor = np.abs(np.bincount(code, durations.sensor[work.node] * work.changed_ns, n))
    return np.sqrt(common + variance) + by_sensor / intervals.TWO_SIDED


def _sum_intervals(case: Case, work: _KernelTimes, code: Array, n: int) -> tuple[Array, Array]:
    """Return the confidence intervals of groups' sums of times."""
    ns, error = np.bincount(code, work.changed_ns, n), _sum_errors(case.durations, work, code, n)
    log = case.durations.log[work.node]
    min_ns, max_ns = (
        np.bincount(code, work.changed_ns * np.exp(limit[work.node] - log), n)
        for limit in case.limits
    )
    shift = np.expm1(case.durations.shift[work.node])
    shift_ns = np.bincount(code, work.changed_ns * shift, n)
    return intervals.confidence_interval(ns, error, min_ns, max_ns, shift_ns)


def _time_columns(
    measured: Array, new: Array, interval: tuple[Array, Array], is_open: Array | None = None
) -> dict[str, Any]:
    """Return columns of times, without estimates where `is_open`."""
    times = {
        "measured_ns": measured, "ideal_ns": new, "ideal_low_ns": interval[0],
        "ideal_high_ns": interval[1], "loss_ns": measured - new,
    }  # fmt: skip
    no_estimate = {"ideal_ns": is_open, "loss_ns": is_open}
    return {
        key: arrow.array(np.rint(ns).astype(np.int64), mask=no_estimate.get(key))
        for key, ns in times.items()
    }


def _repeat_rows(known: Sensitivities, name: str, case: Case, rows: _SelectedRepeats) -> pa.Table:
    """Return a row for each kernel's sensitivity, combined and by each source."""
    r, durations, selected = known.repeats, case.durations, rows.selected
    n = len(r.count)
    key, dur, node = r.key[selected], r.dur[selected], r.node[selected]
    first = np.full(n, -1)
    first[key[::-1]] = node[::-1]  # the first node of each key is written last
    changed_ns = dur * np.exp(durations.log[node])
    measured, new = (np.bincount(key, values, n) for values in (dur, changed_ns))
    interval = _sum_intervals(case, _KernelTimes(node, key, changed_ns), key, n)
    names = r.trace.names()
    beta = rows.beta.combined
    columns: dict[str, Any] = {
        "ceiling": pa.array([name] * n, pa.string()),
        "kernel": pa.array([names[i] for i in r.trace.array("name")[first].tolist()], pa.string()),
        "sensitivity_class": pa.array([CLASSES[i] for i in known.classes.tolist()], pa.string()),
        "kernels": arrow.array(np.bincount(key, minlength=n).astype(np.int64)),
        "mean_mhz": arrow.nan_to_null(known.mean_read_mhz),
        "beta": arrow.nan_to_null(beta.value),
        "beta_low": arrow.nan_to_null(np.clip(beta.value - intervals.TWO_SIDED * beta.error, 0, 1)),
        "beta_high": arrow.nan_to_null(
            np.clip(beta.value + intervals.TWO_SIDED * beta.error, 0, 1)
        ),
        "beta_source": _main_sources(rows.beta.weight),
        "ideal_source": _main_sources(case.weight),
    }
    for source, estimate in zip(SOURCES, rows.beta.each, strict=True):
        columns[f"beta_{source}"] = arrow.nan_to_null(estimate.value)
        columns[f"beta_{source}_error"] = arrow.nan_to_null(estimate.error)
    columns["no_regression"] = _missing_for_law(known)
    floors = np.bincount(key, np.minimum(known.floors(case.mhz), r.dur)[selected], n)
    columns["floor_ns"] = arrow.array(np.rint(floors).astype(np.int64), mask=floors <= 0)
    order = np.lexsort((new - measured,))  # the greatest loss first
    return arrow.take(
        pa.table(columns | _time_columns(measured, new, interval)), order[first[order] >= 0]
    )


def _main_sources(weight: Array) -> pa.Array:
    """Return the source with the highest weight for each kernel, null if there is none."""
    best, has_source = weight.argmax(axis=0).tolist(), (weight.sum(axis=0) > 0).tolist()
    names = [SOURCES[i] if known else None for i, known in zip(best, has_source, strict=True)]
    return pa.array(names, pa.string())


def _missing_for_law(known: Sensitivities) -> pa.Array:
    """Return what is missing for a law of each kernel, null where there is one."""
    missing = [MISSING[i] or None for i in known.regression.why_not.tolist()]
    return pa.array(missing, pa.string())


def _summary(
    known: Sensitivities, cases: dict[str, Case], lengths: _StepLengths, selected: Array
) -> dict[str, Any]:
    """Return means over steps for the peak, and under their names for the other clocks."""
    r, trace = known.repeats, known.repeats.trace
    ranks = len(np.unique(trace.array("rank")[r.node[selected]]))
    sums = _KernelSums(r.dur, r.node, selected, max(ranks * len(lengths.spans), 1))
    summary: dict[str, Any] = {"steps": len(lengths.spans), "kernels": int(selected.sum())}
    summary |= lengths.sensor
    target_figures = {
        name: sums.means(lengths, name, cases.get(name))
        for name in (PEAK, ACHIEVABLE, ASKED)
        if name in cases or name != ASKED
    }
    summary |= target_figures.pop(PEAK)
    return summary | target_figures


class _KernelSums(NamedTuple):
    """Sums of kernels' durations, as means over ranks and steps."""

    dur: Array
    node: Array
    selected: Array
    units: int

    def means(self, lengths: _StepLengths, name: str, case: Case | None) -> dict[str, Any]:
        """Return the figures of one target for the summary."""
        step_names = ("ideal_step_ns", "ideal_step_low_ns", "ideal_step_high_ns", "loss_share")
        summary: dict[str, Any] = {"measured_step_ns": None, **dict.fromkeys(step_names)}
        summary["sum_of_kernels_ns"] = round(float(self.dur[self.selected].sum()) / self.units)
        summary["sum_of_kernels_ideal_ns"] = summary["kernels_unknown"] = None
        if len(lengths.measured):
            summary["measured_step_ns"] = round(float(lengths.measured.mean()))
        if case is None or name not in lengths.lengths or not len(lengths.measured):
            return summary
        mean = lengths.lengths[name].mean()
        low, high = lengths.interval(name, mean)
        step, measured = float(mean.ns[0]), float(lengths.measured.mean())
        summary["ideal_step_low_ns"], summary["ideal_step_high_ns"] = round(low[0]), round(high[0])
        summary["kernels_unknown"] = case.unknown
        if lengths.is_open(name, mean)[0]:
            return summary
        summary["ideal_step_ns"] = round(step)
        summary["loss_share"] = 1 - step / measured if measured else None
        new = self.dur * np.exp(case.durations.log[self.node])
        summary["sum_of_kernels_ideal_ns"] = round(float(new[self.selected].sum()) / self.units)
        return summary


def _annotations(trace: Trace, known: Sensitivities, case: Case, beta: _Beta) -> dict[str, Any]:
    """Return columns of nodes for the highest clock."""
    r = known.repeats
    durations = case.durations
    is_known = durations.key[r.node] >= 0
    rows, k = r.node[is_known], r.key[is_known]
    if not rows.size:
        return {}
    dur = r.dur[is_known] * np.exp(durations.log[rows])
    min_ns, max_ns = (r.dur[is_known] * np.exp(limit[rows]) for limit in case.limits)
    error_ns, shift_ns = dur * durations.error[rows], dur * np.expm1(durations.shift[rows])
    low, high = intervals.confidence_interval(dur, error_ns, min_ns, max_ns, shift_ns)
    columns = {
        "ideal_ns": np.rint(dur).astype(np.int64),
        "ideal_low_ns": np.rint(low).astype(np.int64),
        "ideal_high_ns": np.rint(high).astype(np.int64),
        "beta": beta.combined.value[k],
        "beta_error": beta.combined.error[k],
        "beta_ref_mhz": known.mean_read_mhz[k],
    }
    annotations = {name: _node_column(trace, rows, values) for name, values in columns.items()}
    for column, sources in (("ideal_source", case.weight), ("beta_source", beta.weight)):
        of_node = np.full(trace.nodes.num_rows, -1, np.int32)
        of_node[rows] = np.where(sources.sum(axis=0) > 0, sources.argmax(axis=0), -1)[k]
        unknown = of_node < 0
        annotations[column] = arrow.dictionary(np.maximum(of_node, 0), SOURCES, mask=unknown)
    return annotations


def _node_column(trace: Trace, rows: Array, values: Array) -> Any:
    column = np.zeros(trace.nodes.num_rows, values.dtype)
    unknown = np.ones(trace.nodes.num_rows, bool)
    column[rows], unknown[rows] = values, np.isnan(values)
    return arrow.array(column, mask=unknown)

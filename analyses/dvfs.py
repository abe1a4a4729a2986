"""What clocks below the highest cost: how long training steps would have taken at others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from chopper_interop.activity import grouping, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.dvfs import ideal, intervals, limits, sensitivity
from chopper_interop.dvfs import target_clocks as targets
from chopper_interop.dvfs.sensitivity_laws import LACKING
from chopper_interop.dvfs.sensitivity_sources import CLASSES
from chopper_interop.dvfs.sensitivity_together import SOURCES
from chopper_interop.result import Result
from chopper_interop.timing.model import timing_of

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.dvfs.ideal import Durations, Lengths
    from chopper_interop.dvfs.sensitivity import Sensitivities
    from chopper_interop.dvfs.sensitivity_sources import Told
    from chopper_interop.dvfs.target_clocks import Target
    from chopper_interop.timing.spans import Spans
    from chopper_interop.trace import Trace

__all__ = ["dvfs"]

PEAK, ACHIEVABLE, ASKED = targets.PEAK, targets.ACHIEVABLE, targets.ASKED
_STEPS, _REPEATS = ("iteration", "job"), "repeats"
_CONVENTIONS = {
    "model": "t(f) = t_ref (beta f_ref / f + 1 - beta) between the clock that a kernel ran at and "
    "another, or where enough repeats of it ran at enough clocks, a convex piecewise linear law "
    "a + b / f fitted to them",
    "first step": "counts for the laws as all others do: a warm-up is better left out of the "
    "recording",
    "step": "the graph of all ranks timed anew with the kernels' durations at the other clock: "
    "collectives end when their last member does, and slack absorbs what does not matter",
    "communication": "transfers, copies and fills take as long as they did (communication: within "
    "an error of 0.05 of its sensitivity)",
    "interval": "95 %: errors of single kernels along the path of each step, and those that kernels "
    "have in common (their clocks, the form of the law, another run), each with all kernels timed "
    "anew; as if normally distributed",
    "sum of kernels": "is for comparison alone: durations of all kernels of a rank and step, mean over these",
    "peak": "the highest clock of each GPU, as it or its product tells",
    "floor": "no kernel is taken to be shorter than its busy cycles at that clock, nor than its bytes "
    "at the memory's peak bandwidth, as far as counters tell these",
    "achievable": "the clock at which the maker measured what can be had of the matrix cores in the "
    "type that most matrix work is in; kernels that ran faster stay",
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
) -> Result:
    """How long steps would have taken at the highest clock, and at others, with the error of that.

    Parameters
    ----------
    trace
        Any trace with telemetry of clocks, or counters that tell them.
    by
        ``"iteration"`` rows of steps, ``"job"`` of their mean; ``"repeats"`` rows of kernels of one
        name, grid and shapes on GPUs of one product, with what is known of their sensitivity; else
        names out of `grouping.GRAINS` (``"class"``, ``"operation,phase"``): sums over their kernels.
    steps
        ``each``, ``10`` or ``10-12``: these training steps, each by itself; else all of them,
        each too, or without training steps all of the trace.
    ranks
        These ranks, as ``0,4-7``; else all. All are timed anew.
    clock
        Another clock to ask about: ``"1900"`` (MHz, or ``"1.9GHz"``, of all kernels), ``"0.9x"`` (of each one's own),
        ``"max1900"`` (of those that ran faster).
    memory_clock
        The same of the memory: of kernels whose bytes take 70 % of their time or more.
    cap_w
        A limit of the power of each GPU to ask about instead: clocks at which the fitted power
        model (see the analysis power) is held at it as it was in the run, at the limit that telemetry tells
        or, with a wider interval, that the GPUs seem to have been held at. Kernels
        that take longer then draw power for longer. What is far below the run's limit is known
        little of.
    on_ranks
        Ranks whose clock changes so (``"0,4-7"``); of all by default.
    gpus
        File of your own GPUs (TOML, [[gpu]] tables).

    Returns
    -------
    Result
        By step: `ceiling` (``"peak"``, ``"achievable"``, ``"asked"``), `measured_ns`, `ideal_ns`
        with `ideal_low_ns` and `ideal_high_ns`, `loss_ns` = measured - ideal, `loss_share` of
        measured. The summary has means over steps under these names for the peak, and the same
        under ``"achievable"`` and ``"asked"``. Nodes are annotated with `ideal_ns` and its bounds,
        `beta`, `beta_error`, `beta_ref_mhz`, and what tells them most:
        `ideal_source`, `beta_source`.

    Raises
    ------
    UsageError
        An option cannot be understood, a clock is far from all that a GPU has, or no clock is held
        at `cap_w`.

    Notes
    -----
    Model: Hsu and Feng (SC 2005); laws that bend: Ascend (ASPLOS 2025). Where Chopper takes the
    overhead of the clock as what is left of a product, here the measured clock enters, and
    `breakdown` has what is left as a term of its own.
    """
    known = sensitivity.of(trace, gpus)
    asked = targets.of(known, targets.Question(clock, memory_clock, cap_w, on_ranks), gpus)
    cases = {name: _Case(known, target) for name, target in asked.items()}
    peak = cases[PEAK]
    beta = _Beta(*known.beta(peak.each, peak.mhz))
    lengths = _Steps(trace, cases, steps, ranks)
    chosen = _chosen(known, lengths, ranks)
    told = _table(known, cases, lengths, by, _Rows(chosen, beta))
    notes = targets.described(asked) | _lacking(known, cases)
    notes["window"] = windows.described(steps, "each training step, else of everything")
    summary = _summary(known, cases, lengths, chosen)
    found = _annotations(trace, known, peak, beta)
    return Result("dvfs", told, summary, _CONVENTIONS, found, notes)


class _Beta(NamedTuple):
    """Sensitivities at the clocks that kernels ran at: by all sources, by each, and its weight."""

    together: Told
    each: list[Told]
    weight: Array


class _Case:
    """What is known of kernels at some clocks.

    Parameters
    ----------
    known
        Sensitivities of the trace.
    target
        The clocks.
    """

    def __init__(self, known: Sensitivities, target: Target) -> None:
        self.mhz, self.clocks, change = target.mhz, target.clocks, target.is_change
        ratio, self.each, self.weight = known.ratio(target.mhz, is_change=change)
        slope = known.chords(ratio, target.mhz, is_change=change)
        error = target.error_share * slope
        ratio = ratio._replace(clock=np.hypot(ratio.clock, error))
        told = ideal.measured(known)
        if target.core:
            told = ideal.durations(known, ratio, target.mhz, is_change=change)
        if target.memory is not None:
            told = told.with_memory(
                known, target.memory, known.longer(target.mhz, is_change=change)
            )
        if target.ranks is not None:
            told = told.only(np.isin(known.repeats.trace.array("rank"), target.ranks))
        self.durations = told
        self.limits = limits.of(known, target, told)

    @property
    def unknown(self) -> int:
        """Kernels that stay, as a clock of theirs is not known."""
        return int(np.count_nonzero(self.durations.unknown))

    @property
    def is_known(self) -> bool:
        """Whether anything is known of any kernel."""
        return bool((self.durations.key >= 0).any())


def _lacking(known: Sensitivities, cases: dict[str, _Case]) -> dict[str, str]:
    """What kernels' clocks, and so how much longer they took, is not known of."""
    found = {}
    total = len(known.repeats.node)
    for name, case in cases.items():
        if case.unknown:
            found[f"unknown: {name}"] = (
                f"of {case.unknown:,} of {total:,} kernels {case.clocks} is not known, that "
                "they ran at or that is asked about: they take as long as they did"
            )
    found |= _above(known, cases[PEAK].mhz)
    if ACHIEVABLE not in cases:
        found[f"clock: {ACHIEVABLE}"] = (
            "not known: the maker states none for these GPUs, or in which type kernels compute is "
            "not known"
        )
    else:
        found |= _faster(known, cases[ACHIEVABLE].mhz)
    missing = int(np.isnan(known.repeats.clocks.mhz).sum())
    if missing and missing < total:
        found["clocks that are not known"] = (
            f"of {missing:,} of {total:,} kernels: they are taken to have run at the mean clock of "
            "their repeats, or as fast as another run says"
        )
    if not total:
        found["no rows"] = "the trace has no kernels"
    elif not any(case.is_known for case in cases.values()):
        found["no rows"] = _no_clock(known, missing=missing == total)
    return found


def _above(known: Sensitivities, highest: Array) -> dict[str, str]:
    """What ran faster than its GPU is said to get: at that clock it would take longer."""
    share = known.repeats.clocks.mhz / highest - 1
    above = share > 0
    if not above.any():
        return {}
    told = (
        f"{np.count_nonzero(above):,} of {len(above):,} kernels ran faster, by up to "
        f"{share[above].max():.1%}, as samples or counters tell: they would take longer at it, and "
        "the loss is less by that, or below 0; a file of your own can tell a higher one (gpus=)"
    )
    return {"above the highest clock": told}


def _faster(known: Sensitivities, achievable: Array) -> dict[str, str]:
    """What ran faster than makers measured, so that its loss of 0 says nothing."""
    stay, total = int(np.count_nonzero(known.mhz >= achievable)), len(achievable)
    if not stay:
        return {}
    which = f"all {total:,}" if stay == total else f"{stay:,} of {total:,}"
    return {
        "above the achievable clock": f"{which} kernels ran at it or above: they stay as they were"
    }


def _no_clock(known: Sensitivities, *, missing: bool) -> str:
    """Which clock it is that is not known."""
    if not missing:
        return (
            "clocks that kernels ran at are known, but not those that are asked about: say in a file "
            "of your own what the highest of these GPUs is (gpus=), or ask about another (clock=)"
        )
    names = known.repeats.trace.series["name"].to_pylist()
    if any(name.endswith(("sclk", "gfx clock", "SM clock")) for name in names):
        return (
            "no clock of a kernel is known: those that were sampled are of GPUs on which no rank is "
            "known to compute, or of another time; --map-device can tell, as rpd:0=rank0"
        )
    return "no clock is known: neither telemetry nor counters tell one"


class _Steps:
    """Lengths of training steps, measured and at other clocks."""

    def __init__(self, trace: Trace, cases: dict[str, _Case], steps: str, ranks: str) -> None:
        timing = timing_of(trace)
        self.spans: Spans = ideal.windows_of(timing, steps, ranks)
        retiming = ideal.Retiming(timing, self.spans)
        self.measured = retiming.measured()
        self.lengths: dict[str, Lengths] = {
            name: retiming.lengths(case.durations, case.limits)
            for name, case in cases.items()
            if case.is_known
        }

    def rows(self, *, whole: bool) -> pa.Table:
        """A row for each ceiling and step, or for their mean."""
        parts = [self._part(name, lengths, whole=whole) for name, lengths in self.lengths.items()]
        return pa.concat_tables(parts) if parts else self._part("", None, whole=whole)

    def _part(self, name: str, lengths: Lengths | None, *, whole: bool) -> pa.Table:
        measured = self.measured
        step = self.spans.iteration
        if lengths is None:
            measured, step = measured[:0], step[:0]
            lengths = ideal.Lengths.none()
        elif whole:
            lengths, measured = lengths.mean(), measured.mean(keepdims=True)
        low, high = lengths.interval()
        loss = measured - lengths.ns
        columns = {"ceiling": pa.array([name] * len(measured), pa.string())}
        if not whole:
            columns["iteration"] = arrow.array(step, mask=step == windows.WHOLE)
        times = {"measured_ns": measured, "ideal_ns": lengths.ns, "ideal_low_ns": low}
        times |= {"ideal_high_ns": high, "loss_ns": loss}
        columns |= {key: arrow.array(np.rint(ns).astype(np.int64)) for key, ns in times.items()}
        columns["loss_share"] = arrow.array(loss / np.maximum(measured, 1))
        return pa.table(columns)


class _Rows(NamedTuple):
    """Kernels that count, of the repeats, and how sensitive each is."""

    which: Array
    beta: _Beta


def _chosen(known: Sensitivities, lengths: _Steps, ranks: str) -> Array:
    """Repeats of the ranks and steps that were asked about."""
    r = known.repeats
    found = np.isin(r.trace.array("rank")[r.node], windows.chosen_ranks(r.trace, ranks))
    each = lengths.spans.iteration
    if len(each) and (each != windows.WHOLE).all():
        found &= np.isin(r.trace.annotated("iteration")[r.node], each)
    return found


def _table(
    known: Sensitivities,
    cases: dict[str, _Case],
    lengths: _Steps,
    by: str,
    rows: _Rows,
) -> pa.Table:
    if by in _STEPS:
        return lengths.rows(whole=by == "job")
    some = {name: case for name, case in cases.items() if case.is_known}
    if by == _REPEATS:
        parts = [_repeats_of(known, name, case, rows) for name, case in some.items()]
        empty = _repeats_of(known, "", cases[PEAK], rows).slice(0, 0)
    else:
        grouping.grains(by)
        parts = [_groups(known, name, case, by, rows.which) for name, case in some.items()]
        empty = _groups(known, "", cases[PEAK], by, rows.which).slice(0, 0)
    return pa.concat_tables(parts) if parts else empty


def _groups(known: Sensitivities, name: str, case: _Case, by: str, which: Array) -> pa.Table:
    """Sums over the kernels of each group."""
    r, told = known.repeats, case.durations
    node, key, dur, mhz = r.node[which], r.key[which], r.dur[which], r.clocks.mhz[which]
    groups = grouping.of(r.trace, node, by)
    n = len(groups)
    then = dur * np.exp(told.log[node])
    ends = _ends(case, _Work(node, key, then), groups.code, n)
    columns = {"ceiling": pa.array([name] * n, pa.string())}
    columns |= dict(zip(groups.keys.column_names, groups.keys.columns, strict=True))
    columns["kernels"] = arrow.array(np.bincount(groups.code, minlength=n).astype(np.int64))
    measured, new = (np.bincount(groups.code, values, n) for values in (dur, then))
    clocked = np.where(np.isnan(mhz), 0.0, dur)
    mhz_ns = np.bincount(groups.code, np.nan_to_num(mhz) * clocked, n)
    mean = mhz_ns / np.maximum(np.bincount(groups.code, clocked, n), 1.0)
    columns["mean_mhz"] = arrow.array(mean, mask=mean <= 0)
    table = pa.table(columns | _times(measured, new, ends))
    return arrow.take(table, np.lexsort((new - measured,))) if "kernel" in by else table


class _Work(NamedTuple):
    """Kernels, which of them are repeats of each other, and how long each would take."""

    node: Array
    key: Array
    then: Array


def _errors(told: Durations, work: _Work, code: Array, n: int) -> Array:
    """Errors of the sums of groups' times: what repeats share, and what all kernels share."""
    common = sum(
        np.bincount(code, part[work.node] * work.then, n) ** 2 for part in (told.clock, told.form)
    )
    own, pair = gather.distinct(code, work.key)
    each = np.bincount(pair, work.then * told.statistical[work.node], len(own)) ** 2
    return np.sqrt(common + np.bincount(code[own], each, n))


def _ends(case: _Case, work: _Work, code: Array, n: int) -> tuple[Array, Array]:
    """Intervals of the sums of groups' times."""
    ns, error = np.bincount(code, work.then, n), _errors(case.durations, work, code, n)
    log = case.durations.log[work.node]
    least, most = (
        np.bincount(code, work.then * np.exp(limit[work.node] - log), n) for limit in case.limits
    )
    return intervals.around(ns, error, least, most)


def _times(measured: Array, new: Array, ends: tuple[Array, Array]) -> dict[str, Any]:
    times = {
        "measured_ns": measured, "ideal_ns": new, "ideal_low_ns": ends[0],
        "ideal_high_ns": ends[1], "loss_ns": measured - new,
    }  # fmt: skip
    return {key: arrow.array(np.rint(ns).astype(np.int64)) for key, ns in times.items()}


def _repeats_of(known: Sensitivities, name: str, case: _Case, rows: _Rows) -> pa.Table:
    """What is known of each kernel's sensitivity, by all sources and by each."""
    r, told, which = known.repeats, case.durations, rows.which
    n = len(r.count)
    key, dur, node = r.key[which], r.dur[which], r.node[which]
    first = np.full(n, -1)
    first[key[::-1]] = node[::-1]
    then = dur * np.exp(told.log[node])
    measured, new = (np.bincount(key, values, n) for values in (dur, then))
    ends = _ends(case, _Work(node, key, then), key, n)
    names = r.trace.names()
    beta = rows.beta.together
    columns: dict[str, Any] = {
        "ceiling": pa.array([name] * n, pa.string()),
        "kernel": pa.array([names[i] for i in r.trace.array("name")[first].tolist()], pa.string()),
        "sensitivity_class": pa.array([CLASSES[i] for i in known.classes.tolist()], pa.string()),
        "kernels": arrow.array(np.bincount(key, minlength=n).astype(np.int64)),
        "mean_mhz": _known(1000.0 / known.x),
        "beta": _known(beta.value),
        "beta_low": _known(np.clip(beta.value - intervals.TWO_SIDED * beta.error, 0, 1)),
        "beta_high": _known(np.clip(beta.value + intervals.TWO_SIDED * beta.error, 0, 1)),
        "beta_source": _sources(rows.beta.weight),
        "ideal_source": _sources(case.weight),
    }
    for source, one in zip(SOURCES, rows.beta.each, strict=True):
        columns[f"beta_{source}"] = _known(one.value)
        columns[f"beta_{source}_error"] = _known(one.error)
    columns["no_regression"] = _why_not(known)
    floors = np.bincount(key, np.minimum(known.floors(case.mhz), r.dur)[which], n)
    columns["floor_ns"] = arrow.array(np.rint(floors).astype(np.int64), mask=floors <= 0)
    order = np.lexsort((new - measured,))  # the greatest loss first
    return arrow.take(pa.table(columns | _times(measured, new, ends)), order[first[order] >= 0])


def _known(values: Array) -> Any:
    return arrow.array(values, mask=np.isnan(values))


def _sources(weight: Array) -> pa.Array:
    """The source with the most weight for each kernel; null if none tells."""
    best, some = weight.argmax(axis=0).tolist(), (weight.sum(axis=0) > 0).tolist()
    found = [SOURCES[i] if known else None for i, known in zip(best, some, strict=True)]
    return pa.array(found, pa.string())


def _why_not(known: Sensitivities) -> pa.Array:
    """What is lacking for a law; null of those that have one."""
    lacking = [LACKING[i] or None for i in known.regression.why_not.tolist()]
    return pa.array(lacking, pa.string())


def _summary(
    known: Sensitivities, cases: dict[str, _Case], lengths: _Steps, chosen: Array
) -> dict[str, Any]:
    """Means over steps: of the peak, and under their names of the other clocks."""
    r, trace = known.repeats, known.repeats.trace
    ranks = len(np.unique(trace.array("rank")[r.node[chosen]]))
    sums = _Sums(r.dur, r.node, chosen, max(ranks * len(lengths.spans), 1))
    found: dict[str, Any] = {"steps": len(lengths.spans), "kernels": int(chosen.sum())}
    told = {
        name: sums.means(lengths, name, cases.get(name))
        for name in (PEAK, ACHIEVABLE, ASKED)
        if name in cases or name != ASKED
    }
    found |= told.pop(PEAK)
    return found | told


class _Sums(NamedTuple):
    """Durations of kernels summed: of a rank and step, in the mean."""

    dur: Array
    node: Array
    counts: Array
    of: int

    def means(self, lengths: _Steps, name: str, case: _Case | None) -> dict[str, Any]:
        """What the summary says of one target."""
        none = ("ideal_step_ns", "ideal_step_low_ns", "ideal_step_high_ns", "loss_share")
        found: dict[str, Any] = {"measured_step_ns": None, **dict.fromkeys(none)}
        found["sum_of_kernels_ns"] = round(float(self.dur[self.counts].sum()) / self.of)
        found["sum_of_kernels_ideal_ns"] = found["kernels_unknown"] = None
        if len(lengths.measured):
            found["measured_step_ns"] = round(float(lengths.measured.mean()))
        if case is None or name not in lengths.lengths or not len(lengths.measured):
            return found
        mean = lengths.lengths[name].mean()
        low, high = mean.interval()
        step, measured = float(mean.ns[0]), float(lengths.measured.mean())
        found["ideal_step_ns"] = round(step)
        found["ideal_step_low_ns"], found["ideal_step_high_ns"] = round(low[0]), round(high[0])
        found["loss_share"] = 1 - step / measured if measured else None
        new = self.dur * np.exp(case.durations.log[self.node])
        found["sum_of_kernels_ideal_ns"] = round(float(new[self.counts].sum()) / self.of)
        found["kernels_unknown"] = case.unknown
        return found


def _annotations(trace: Trace, known: Sensitivities, case: _Case, beta: _Beta) -> dict[str, Any]:
    """What is known of each kernel at the highest clock."""
    r = known.repeats
    told = case.durations
    some = told.key[r.node] >= 0
    rows, k = r.node[some], r.key[some]
    if not rows.size:
        return {}
    dur = r.dur[some] * np.exp(told.log[rows])
    least, most = (r.dur[some] * np.exp(limit[rows]) for limit in case.limits)
    low, high = intervals.around(dur, dur * told.error[rows], least, most)
    columns = {
        "ideal_ns": np.rint(dur).astype(np.int64),
        "ideal_low_ns": np.rint(low).astype(np.int64),
        "ideal_high_ns": np.rint(high).astype(np.int64),
        "beta": beta.together.value[k],
        "beta_error": beta.together.error[k],
        "beta_ref_mhz": 1000.0 / known.x[k],
    }
    found = {name: _column(trace, rows, values) for name, values in columns.items()}
    for column, sources in (("ideal_source", case.weight), ("beta_source", beta.weight)):
        of_node = np.full(trace.nodes.num_rows, -1, np.int32)
        of_node[rows] = np.where(sources.sum(axis=0) > 0, sources.argmax(axis=0), -1)[k]
        unknown = of_node < 0
        found[column] = arrow.dictionary(np.maximum(of_node, 0), SOURCES, mask=unknown)
    return found


def _column(trace: Trace, rows: Array, values: Array) -> Any:
    column = np.zeros(trace.nodes.num_rows, values.dtype)
    unknown = np.ones(trace.nodes.num_rows, bool)
    column[rows], unknown[rows] = values, np.isnan(values)
    return arrow.array(column, mask=unknown)

"""Relation of telemetry's clock to that of the trace that it is joined to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chopper_interop.annotate.telemetry.energy import energy_drawn
from chopper_interop.annotate.telemetry.quantity_series import WITHIN_WINDOWS
from chopper_interop.annotate.telemetry.samples import window_samples
from chopper_interop.arrays import arrow, intervals
from chopper_interop.arrays.gather import is_any
from chopper_interop.clocks import estimate as clock_estimate
from chopper_interop.clocks import relations, time_zones, unstated_bases
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.joining import source_clocks
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, ClockFit, Meta
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.joining.source_clocks import SourceClocks

CLOCK_ESTIMATED = Fault.info(
    "clock-estimated",
    "Samples on a clock that no source relates to the trace's were aligned by when GPUs were busy "
    "and drew power. This is an estimate; a known offset can be stated with --clock-offset.",
)
CLOCK_UNRELATED = Fault.loss(
    "clock-unrelated",
    "Samples on a clock that no source relates to the trace's, and whose values do not determine the "
    "relation, were left out. State it with --clock-offset.",
)
ZONE_ASSUMED = Fault.info(
    "zone-assumed",
    "Times without a zone were assumed to be those of the only zone in which they and the trace "
    "overlap or agree on when GPUs were busy; state another with -O tz=….",
)
ZONE_UNKNOWN = Fault.loss(
    "zone-unknown", "Samples with times of an unknown zone were left out: state it with -O tz=…"
)
BASE_ASSUMED = Fault.info(
    "time-base-assumed",
    "The trace's times count from a base that its files do not state: that with which alone they overlap "
    "with the samples was assumed. State the offset of the samples with --clock-offset if it is another.",
)

_IN_NO_ZONE = "in no zone do they overlap with the trace, as those of another run"


@dataclass(frozen=True)
class _Context:
    """Trace that telemetry is joined to, and what is known to join it; see `fit_telemetry`."""

    trace: Trace
    clocks: SourceClocks
    issues: IssueLog
    get_owned: Callable[[], Trace]


def fit_telemetry(
    fragment: Fragment,
    trace: Trace,
    clocks: SourceClocks,
    issues: IssueLog,
    get_owned: Callable[[], Trace],
) -> ClockFit | None:
    """Relate the times of telemetry to those of the trace; None if the relation is unknown.

    Parameters
    ----------
    fragment
        The telemetry.
    trace
        The trace that it is joined to.
    clocks
        Relations of the clocks of all sources.
    issues
        Gets what was assumed, and what could not be joined.
    get_owned
        Returns the telemetry with its series under the ranks whose GPUs they are of.
    """
    context = _Context(trace, clocks, issues, get_owned)
    meta, path = fragment.trace.meta, str(fragment.path)
    clock = context.trace.meta.clock
    rule = clock_rules.rule_of_source(
        context.clocks.rules, fragment.files.converter.name, path, joined=True
    )
    if rule is not None:
        source_clocks.refuse_before_1970(meta.origin_ns, rule)
        return source_clocks.user_fit(path, meta.clock, rule)
    uncertainty = int(max(fragment.trace.array("uncertainty_ns", "series"), default=0))
    if clock == REALTIME and unstated_bases.is_unstated(
        time_window(trace), time_window(fragment.trace)
    ):
        return _fit_of_base(fragment, context, uncertainty)
    if meta.clock == clock:
        return ClockFit(path, clock, _stated_method(meta, uncertainty), uncertainty_ns=uncertainty)
    if meta.clock == LOCALTIME and clock == REALTIME:
        return _fit_of_zone(fragment, context, uncertainty)
    return _fit_by_sources(fragment, context)


def _fit_of_base(fragment: Fragment, context: _Context, uncertainty: int) -> ClockFit | None:
    """Fit for a trace that counts from what its files do not state: the only base with which both overlap."""
    meta, path = fragment.trace.meta, str(fragment.path)
    of_trace, of_samples = time_window(context.trace), time_window(fragment.trace)
    is_real = meta.clock == REALTIME
    bases = unstated_bases.candidate_bases(of_trace, of_samples, meta.offsets) if is_real else []
    if len(bases) == 1:
        (base,) = bases
        context.issues.add(BASE_ASSUMED, fragment.trace.samples.num_rows, base.meaning)
        return ClockFit(
            path,
            meta.clock,
            relations.UNSTATED_BASE,
            -base.ns,
            uncertainty_ns=uncertainty,
            reason=f"assumed: the trace counts from {base.meaning}",
        )
    seconds = of_trace[0] / 1e9
    unrelated = (
        f"the trace begins {seconds:,.0f} s after a boot, or another base (baseTimeNanoseconds) that its files do "
        "not state; "
    )
    return _estimated_or_lost(fragment, context, unrelated)


def _stated_method(meta: Meta, uncertainty: int) -> str:
    """Method by which telemetry on the trace's clock states its times."""
    if uncertainty >= relations.WHOLE_SECONDS_NS:
        return relations.WHOLE_SECONDS
    return relations.THREE_CLOCKS if meta.offsets else relations.STATED


def _fit_by_sources(fragment: Fragment, context: _Context) -> ClockFit | None:
    """Fit that the source itself or another of its host states, else an estimate."""
    meta, path = fragment.trace.meta, str(fragment.path)
    clock = context.trace.meta.clock
    stated = next((o for o in meta.offsets if o.clock == clock), None)
    if stated is not None:
        return ClockFit(
            path,
            meta.clock,
            relations.THREE_CLOCKS,
            -stated.offset_ns,
            uncertainty_ns=stated.uncertainty_ns,
        )
    relation = context.clocks.relation(fragment) if clock == REALTIME else None
    if relation is not None:
        return source_clocks.related_fit(path, relation)
    return _estimated_or_lost(fragment, context)


def _estimated_or_lost(
    fragment: Fragment, context: _Context, unrelated: str = ""
) -> ClockFit | None:
    """Fit by values; else None, and samples are noted as lost, with what relates no clocks and why no values do."""
    fit = _estimated(fragment, context)
    if isinstance(fit, str):
        reason = unrelated + fit + _energy_text(fragment.trace)
        _note_lost(CLOCK_UNRELATED, fragment.trace, context, reason)
        return None
    offset, uncertainty = map(relations.duration_text, (fit.offset_ns, fit.uncertainty_ns))
    context.issues.add(
        CLOCK_ESTIMATED, fragment.trace.samples.num_rows, f"{offset} ± {uncertainty}"
    )
    return fit


def _estimated(fragment: Fragment, context: _Context) -> ClockFit | str:
    """Fit by values that show when GPUs were busy; a reason as text if they do not."""
    if context.trace.meta.clock in source_clocks.NOT_CLOCKS or not context.trace.nodes.num_rows:
        return "the trace has no clock to relate it to"
    owned = context.get_owned()
    reason = "it has no activity and no power of a GPU of the trace"
    for name in _BUSY_SIGNS:
        signals = _signals(owned, context.trace, name)
        if not signals:
            continue
        estimate = clock_estimate.estimate_offset(signals, time_window(context.trace))
        if not isinstance(estimate, str):
            correlation = f"correlation {estimate.correlation:.2f}{estimate.assumed}"
            return ClockFit(
                str(fragment.path),
                fragment.trace.meta.clock,
                relations.BUSY_AND_POWER,
                estimate.offset_ns,
                uncertainty_ns=estimate.uncertainty_ns,
                pairs=estimate.samples,
                reason=f"estimated by {name}, {correlation}",
            )
        reason = estimate
    return reason


_NEAR_NS = 10**9
"""Wall clocks of one host differ by less; zones by a quarter of an hour at least."""
_BUSY_SIGNS = ("GFX activity", "socket power")
"""Series that show when a GPU is busy, the one that follows it faster first."""


def _signals(telemetry: Trace, trace: Trace, name: str) -> list[clock_estimate.Signal]:
    """Samples of a name of each rank's GPU, with the times when it was busy."""
    owner, ts, value = (telemetry.array(c, "samples") for c in ("series", "ts", "value"))
    signals = []
    ranks_with_signal = set()
    devices = set(telemetry.array("device", "series").tolist()) - {-1}
    single = len(trace.ranks) == 1 == len(devices)  # then the GPU is that of the rank
    for row, series in enumerate(telemetry.series.to_pylist()):
        rank = trace.ranks[0] if single and series["rank"] < 0 else series["rank"]
        if series["name"] != name or rank not in trace.rank_rows or rank in ranks_with_signal:
            continue
        ranks_with_signal.add(rank)
        of_series = owner == row
        at = ts[of_series] + telemetry.meta.origin_ns
        signals.append(clock_estimate.Signal(_busy_times(trace, rank), at, value[of_series]))
    return signals


def _busy_times(trace: Trace, rank: int) -> intervals.Intervals:
    """Intervals in which a rank's GPU was busy, on the trace's clock."""
    rows = trace.rank_rows[rank]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    start = trace.array("ts")[rows][work] + trace.meta.origin_ns
    return intervals.union(start, start + trace.array("dur")[rows][work])


def shift_telemetry(telemetry: Trace, fit: ClockFit, clock: str) -> Trace:
    """Shift telemetry to the clock of the trace, and add the fit's uncertainty to its series'.

    Within a clock, and between zones, a fit is exact: it states the uncertainty of the samples
    themselves, which is not counted twice.
    """
    telemetry = relations.shift_trace(telemetry, fit.offset_ns, clock)
    if fit.clock == clock or fit.method == relations.WALL_CLOCK_ZONE or not fit.uncertainty_ns:
        return telemetry
    uncertainty = telemetry.array("uncertainty_ns", "series") + fit.uncertainty_ns
    series = arrow.replace_column(telemetry.series, "uncertainty_ns", uncertainty)
    return replace(telemetry, series=series)


def _fit_of_zone(fragment: Fragment, context: _Context, uncertainty: int) -> ClockFit | None:
    """Fit for times without a zone: of the only zone in which they and the trace overlap or agree."""
    telemetry, path = fragment.trace, str(fragment.path)
    zones = time_zones.candidate_zones(time_window(telemetry), time_window(context.trace))
    likely = zones if len(zones) == 1 else _zones_by_values(zones, fragment, context)
    if len(likely) != 1:
        _note_lost(ZONE_UNKNOWN, telemetry, context, "" if zones else _IN_NO_ZONE)
        return None
    zone = time_zones.zone_text(likely[0])
    context.issues.add(ZONE_ASSUMED, telemetry.samples.num_rows, zone)
    ahead = likely[0] * time_zones.MINUTE_NS
    reason = f"assumed {zone}" + (", by when GPUs were busy" if len(zones) > 1 else "")
    return ClockFit(
        path,
        LOCALTIME,
        relations.WALL_CLOCK_ZONE,
        -ahead,
        uncertainty_ns=uncertainty,
        reason=reason,
    )


def _zones_by_values(zones: list[int], fragment: Fragment, context: _Context) -> list[int]:
    """Zones that agree with when GPUs were busy; none if that cannot be estimated."""
    by_values = _estimated(fragment, context) if zones else ""
    if isinstance(by_values, str):
        return []
    tolerance = 3 * by_values.uncertainty_ns + _NEAR_NS
    return [z for z in zones if abs(by_values.offset_ns + z * time_zones.MINUTE_NS) <= tolerance]


def _note_lost(fault: Fault, telemetry: Trace, context: _Context, reason: str = "") -> None:
    path = telemetry.meta.sources[0].path
    context.issues.add(fault, telemetry.samples.num_rows, f"{path}: {reason}" if reason else path)


def _energy_text(telemetry: Trace) -> str:
    """Energy measured in windows of each GPU: it is known whatever the clock."""
    owner, ts, value = (telemetry.array(c, "samples") for c in ("series", "ts", "value"))
    measured = []
    for row, series in enumerate(telemetry.series.to_pylist()):
        of_series = owner == row
        if series["name"] == WITHIN_WINDOWS and of_series.any():
            power = window_samples(ts[of_series], value[of_series], series["uncertainty_ns"])
            (joules,), _ = energy_drawn([power], power.ts[:1], power.ts[-1:])
            measured.append(f"{joules:,.1f} J of GPU {series['device']}")
    return f"; its windows measured {', '.join(measured)}" if measured else ""


def time_window(trace: Trace) -> tuple[int, int]:
    """First and last time of a trace's nodes, or of its samples if it has no nodes."""
    table = "nodes" if trace.nodes.num_rows else "samples"
    ts = trace.array("ts", table)
    end = ts + trace.array("dur") if table == "nodes" else ts
    return int(ts.min()) + trace.meta.origin_ns, int(end.max()) + trace.meta.origin_ns

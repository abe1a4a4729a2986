"""How the times of telemetry become those of the trace that it is joined to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chopper_interop.clocks import estimate as clock_estimate
from chopper_interop.clocks import localtime, relations
from chopper_interop.clocks import rules as clock_rules
from chopper_interop.columns import arrow, intervals
from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.joining import source_clocks
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import LOCALTIME, REALTIME, ClockFit, Meta
from chopper_interop.telemetry.energy import drawn
from chopper_interop.telemetry.names import WITHIN_WINDOWS
from chopper_interop.telemetry.samples import windowed

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.joining.source_clocks import Clocks
    from chopper_interop.trace import Trace

CLOCK_ESTIMATED = Fault(
    "clock-estimated",
    Severity.INFO,
    "Samples on a clock of which no source tells the relation to the trace's were placed by when "
    "GPUs were busy and drew power. This is an estimate; --clock-offset tells better.",
)
CLOCK_UNRELATED = Fault(
    "clock-unrelated",
    Severity.LOSS,
    "Samples on a clock of which no source tells the relation to the trace's, and whose values do "
    "not tell it, were left out. --clock-offset can tell it.",
)
ZONE_ASSUMED = Fault(
    "zone-assumed",
    Severity.INFO,
    "Times without a zone were taken as those of the only zone in which they and the trace "
    "overlap or agree on when GPUs were busy; -O tz=… tells another.",
)
ZONE_UNKNOWN = Fault(
    "zone-unknown",
    Severity.LOSS,
    "Samples with times of a zone that is not known were left out: say it with -O tz=…",
)


@dataclass(frozen=True)
class _Around:
    """What telemetry is joined to; see `fit`."""

    trace: Trace
    about: Clocks
    issues: IssueLog
    owned: Callable[[], Trace]


def fit(
    fragment: Fragment,
    trace: Trace,
    about: Clocks,
    issues: IssueLog,
    owned: Callable[[], Trace],
) -> ClockFit | None:
    """How the times of telemetry become those of the trace; None if that is not known.

    Parameters
    ----------
    fragment
        The telemetry.
    trace
        What it is joined to.
    about
        What is known of the clocks of all sources.
    issues
        Where it is noted what was assumed, and what could not be joined.
    owned
        Gives the telemetry with its series under the ranks whose GPUs they are of.
    """
    around = _Around(trace, about, issues, owned)
    meta, path = fragment.trace.meta, str(fragment.files.paths[0])
    clock = around.trace.meta.clock
    said = clock_rules.of_source(
        around.about.rules, fragment.files.converter.name, path, joined=True
    )
    if said is not None:
        source_clocks.refuse_before_1970(meta.origin_ns, said)
        return source_clocks.user_fit(path, meta.clock, said)
    off = int(max(fragment.trace.array("uncertainty_ns", "series"), default=0))
    if meta.clock == clock:
        return ClockFit(path, clock, _method(meta, off), uncertainty_ns=off)
    if meta.clock == LOCALTIME and clock == REALTIME:
        return _of_zone(fragment, around, off)
    return _told_by_sources(fragment, around)


def _method(meta: Meta, off: int) -> str:
    """What telemetry on the trace's clock knows its times by."""
    if off >= relations.WHOLE_SECONDS_NS:
        return relations.WHOLE_SECONDS
    return relations.THREE_CLOCKS if meta.offsets else relations.STATED


def _told_by_sources(fragment: Fragment, around: _Around) -> ClockFit | None:
    """What the source itself, or another of its node, tells of its clock and the trace's."""
    meta, path = fragment.trace.meta, str(fragment.files.paths[0])
    clock = around.trace.meta.clock
    own = next((o for o in meta.offsets if o.clock == clock), None)
    if own is not None:
        uncertainty = own.uncertainty_ns
        return ClockFit(
            path, meta.clock, relations.THREE_CLOCKS, -own.offset_ns, uncertainty_ns=uncertainty
        )
    relation = around.about.relation(fragment) if clock == REALTIME else None
    if relation is not None:
        return source_clocks.related_fit(path, relation)
    fit = _estimated(fragment, around)
    if isinstance(fit, str):
        _lose(CLOCK_UNRELATED, fragment.trace, around, fit + _measured(fragment.trace))
        return None
    told = f"{relations.duration(fit.offset_ns)} ± {relations.duration(fit.uncertainty_ns)}"
    around.issues.add(CLOCK_ESTIMATED, fragment.trace.samples.num_rows, told)
    return fit


def _estimated(fragment: Fragment, around: _Around) -> ClockFit | str:
    """The relation as far as values show when GPUs were busy; else why they do not."""
    if around.trace.meta.clock in source_clocks.NO_CLOCK or not around.trace.nodes.num_rows:
        return "the trace has no clock to relate it to"
    owned = around.owned()
    why = "it has no activity and no power of a GPU of the trace"
    for name in _BUSY_SIGNS:
        signals = _signals(owned, around.trace, name)
        if not signals:
            continue
        found = clock_estimate.best(signals, window(around.trace))
        if not isinstance(found, str):
            path, clock = str(fragment.files.paths[0]), fragment.trace.meta.clock
            method = relations.BUSY_AND_POWER
            off, pairs = found.uncertainty_ns, found.samples
            return ClockFit(
                path, clock, method, found.offset_ns, uncertainty_ns=off, pairs=pairs,
                reason=f"estimated by {name}, correlation {found.likeness:.2f}{found.assumed}",
            )  # fmt: skip
        why = found
    return why


_NEAR_NS = 10**9
"""Wall clocks of one node differ by less; zones by a quarter of an hour at least."""
_BUSY_SIGNS = ("GFX activity", "socket power")
"""Series that show when a GPU is busy, the one that follows faster first."""


def _signals(telemetry: Trace, trace: Trace, name: str) -> list[clock_estimate.Signal]:
    """What samples of a name show of each rank's GPU, beside when it was busy."""
    owner, ts, value = (telemetry.array(c, "samples") for c in ("series", "ts", "value"))
    signals = []
    known = set()
    alone = len(trace.ranks) == 1 == len(set(telemetry.array("device", "series").tolist()) - {-1})
    for row, series in enumerate(telemetry.series.to_pylist()):
        rank = trace.ranks[0] if alone and series["rank"] < 0 else series["rank"]
        if series["name"] != name or rank not in trace.rank_rows or rank in known:
            continue
        known.add(rank)
        mine = owner == row
        busy = _busy(trace, rank)
        at = ts[mine] + telemetry.meta.origin_ns
        signals.append(clock_estimate.Signal(busy, at, value[mine]))
    return signals


def _busy(trace: Trace, rank: int) -> intervals.Union:
    """When a rank's GPU was busy, on the trace's clock."""
    rows = trace.rank_rows[rank]
    work = is_any(trace.array("kind")[rows], GPU_WORK)
    start = trace.array("ts")[rows][work] + trace.meta.origin_ns
    return intervals.union(start, start + trace.array("dur")[rows][work])


def moved(telemetry: Trace, fit: ClockFit, clock: str) -> Trace:
    """Telemetry on the clock of the trace; series say how uncertain times are by that as well.

    Within a clock, and between zones, a fit is exact: it states what the samples' own uncertainty
    is, which is not counted twice.
    """
    telemetry = relations.moved(telemetry, fit.offset_ns, clock)
    if fit.clock == clock or fit.method == relations.WALL_CLOCK_ZONE or not fit.uncertainty_ns:
        return telemetry
    off = telemetry.array("uncertainty_ns", "series") + fit.uncertainty_ns
    return replace(telemetry, series=arrow.replaced(telemetry.series, "uncertainty_ns", off))


def _of_zone(fragment: Fragment, around: _Around, off: int) -> ClockFit | None:
    telemetry, path = fragment.trace, str(fragment.files.paths[0])
    found = localtime.zones(window(telemetry), window(around.trace))
    likely = found if len(found) == 1 else _likely(found, fragment, around)
    if len(likely) != 1:
        _lose(ZONE_UNKNOWN, telemetry, around)
        return None
    zone = localtime.text(likely[0])
    around.issues.add(ZONE_ASSUMED, telemetry.samples.num_rows, zone)
    ahead = likely[0] * localtime.MINUTE
    method = relations.WALL_CLOCK_ZONE
    why = f"assumed {zone}" + (", by when GPUs were busy" if len(found) > 1 else "")
    return ClockFit(path, LOCALTIME, method, -ahead, uncertainty_ns=off, reason=why)


def _likely(found: list[int], fragment: Fragment, around: _Around) -> list[int]:
    """Of several zones those that agree with when GPUs were busy."""
    by_values = _estimated(fragment, around) if found else ""
    if isinstance(by_values, str):
        return []
    near = 3 * by_values.uncertainty_ns + _NEAR_NS
    return [z for z in found if abs(by_values.offset_ns + z * localtime.MINUTE) <= near]


def _lose(fault: Fault, telemetry: Trace, around: _Around, why: str = "") -> None:
    path = telemetry.meta.sources[0].path
    around.issues.add(fault, telemetry.samples.num_rows, f"{path}: {why}" if why else path)


def _measured(telemetry: Trace) -> str:
    """What was measured in windows of each GPU: that is known wherever they lie in time."""
    owner, ts, value = (telemetry.array(c, "samples") for c in ("series", "ts", "value"))
    told = []
    for row, series in enumerate(telemetry.series.to_pylist()):
        mine = owner == row
        if series["name"] == WITHIN_WINDOWS and mine.any():
            power = windowed(ts[mine], value[mine], series["uncertainty_ns"])
            (joules,), _ = drawn([power], power.ts[:1], power.ts[-1:])
            told.append(f"{joules:,.1f} J of GPU {series['device']}")
    return f"; its windows measured {', '.join(told)}" if told else ""


def window(trace: Trace) -> tuple[int, int]:
    """First and last time of a trace's nodes, or of its samples if it has no nodes."""
    table = "nodes" if trace.nodes.num_rows else "samples"
    ts = trace.array("ts", table)
    end = ts + trace.array("dur") if table == "nodes" else ts
    return int(ts.min()) + trace.meta.origin_ns, int(end.max()) + trace.meta.origin_ns

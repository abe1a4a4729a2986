"""Whose GPUs telemetry is of: its series under the ranks that compute on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arrow
from chopper_interop.build import concat
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    import numpy.typing as npt

    from chopper_interop.schemas.meta import Device
    from chopper_interop.trace import Trace

    Array = npt.NDArray[Any]
    Owner = tuple[int, int]
    """A rank, and its number of the device that it computes on."""

DEVICES_UNKNOWN = Fault(
    "telemetry-of-unknown-device",
    Severity.INFO,
    "Which rank computes on which GPU of the telemetry is not known: its lanes stand by "
    "themselves.",
)
DEVICES_BY_RANK = Fault(
    "telemetry-by-rank",
    Severity.INFO,
    "Every rank numbers its only GPU alike; they were matched with the GPUs of the telemetry in "
    "ascending order.",
)
CLOCK_UNRELATED = Fault(
    "clock-unrelated",
    Severity.LOSS,
    "Samples on a clock of which no source tells the relation to the trace's were left out.",
)


def with_telemetry(
    trace: Trace, telemetry: list[Trace], devices: list[Device], issues: IssueLog
) -> Trace:
    """Add series and samples to a trace.

    Parameters
    ----------
    trace
        All ranks of a job.
    telemetry
        Traces of samples alone, whose devices have the numbers of the tool that took them.
    devices
        What all sources tell of the devices' numbers.
    issues
        Where it is noted what could not be joined.
    """
    parts = [trace]
    for one in telemetry:
        series = _related(one, trace, issues)
        if series is not None:
            parts.append(_with_owners(series, trace, devices, issues))
    return concat(parts, trace.meta)


def _related(telemetry: Trace, trace: Trace, issues: IssueLog) -> Trace | None:
    """Telemetry on the clock of the trace; None if that is not known."""
    if telemetry.meta.clock == trace.meta.clock:
        return telemetry
    offset = next((o for o in telemetry.meta.offsets if o.clock == trace.meta.clock), None)
    if offset is None:
        issues.add(CLOCK_UNRELATED, telemetry.samples.num_rows, telemetry.meta.sources[0].path)
        return None
    moved = telemetry.meta.origin_ns - offset.offset_ns
    return telemetry.with_meta(origin_ns=moved, clock=trace.meta.clock)


def _with_owners(telemetry: Trace, trace: Trace, devices: list[Device], issues: IssueLog) -> Trace:
    """Telemetry whose series belong to the ranks that compute on its devices."""
    device = telemetry.array("device", "series")
    theirs = [int(d) for d in np.unique(device[device >= 0])]
    owners = _owners(theirs, trace, devices, issues)
    if owners is None:
        issues.add(DEVICES_UNKNOWN, len(theirs), telemetry.meta.sources[0].path)
        return telemetry
    found = [owners.get(int(d), (-1, int(d))) for d in device]
    rank, number = np.array(found, np.int32).reshape(-1, 2).T
    series = arrow.replaced(telemetry.series, "rank", rank)
    return replace(telemetry, series=arrow.replaced(series, "device", number))


def _owners(
    theirs: list[int], trace: Trace, devices: list[Device], issues: IssueLog
) -> dict[int, Owner] | None:
    """Telemetry's number of a GPU → who computes on it; None if that is not known.

    What samples a machine's GPUs does not say which machine that is.
    """
    ranks = [r for r in trace.meta.ranks if r.device >= 0]
    if len({r.host for r in ranks}) > 1:
        return None
    owners = {r.device: (r.rank, r.device) for r in ranks}
    if len(owners) == len(ranks):
        numbers = _numbers(theirs, sorted(owners), devices)
        return (
            None if numbers is None else {t: owners[d] for t, d in numbers.items() if d in owners}
        )
    if len(owners) == 1 and len(theirs) == len(ranks):
        issues.add(DEVICES_BY_RANK, len(ranks))
        ordered = sorted((r.rank, r.device) for r in ranks)
        return dict(zip(theirs, ordered, strict=True))
    return None


def _numbers(theirs: list[int], used: list[int], devices: list[Device]) -> dict[int, int] | None:
    """Telemetry's index of a GPU → the trace's number of that device; None if it is not known.

    Telemetry counts GPUs; a trace may count agents of which some are processors. A source that
    tells both numbers settles it, else there must be as many of the one as of the other.
    """
    ordinals = {d.ordinal: d.device for d in devices if d.ordinal >= 0}
    if ordinals and set(used) <= set(ordinals.values()):
        return {t: ordinals[t] for t in theirs if t in ordinals}
    if len(theirs) == len(used):
        return dict(zip(theirs, used, strict=True))
    return {t: t for t in theirs} if 0 in used and set(used) <= set(theirs) else None

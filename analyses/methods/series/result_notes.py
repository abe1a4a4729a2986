"""Conventions and notes of analyses of telemetry: the time of their rows, and omissions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.series.averaging import NODE, Plan
from chopper_interop.annotate.telemetry import job
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.series.samples import Series

_WORK = (
    "from the first start to the last end of all work on a GPU; of what is of no GPU that a rank "
    "is known to compute on, of all GPU work of its rank, or of the job"
)
_CONVENTIONS = {
    "links": "all GPU work counts, whether its launch is recorded or not",
    "memset and copies": "count as work of the GPU",
}
_GROUPS = (
    "the time in which work of the group ran on the GPU (union of intervals); by iteration alone, "
    "from the first start to the last end of the step's work; work whose step is not known has no row"
)


def conventions(plan: Plan) -> dict[str, str]:
    """Conventions that all analyses of telemetry share."""
    return _CONVENTIONS | ({"groups": _GROUPS} if plan.is_grouped else {})


def notes(
    trace: Trace, plan: Plan, series: Sequence[Series], steps: str, kind: str = ""
) -> dict[str, str]:
    """Notes that all analyses of telemetry share: the window, and the data left out."""
    whole = "all of the telemetry" if plan.is_all else _WORK
    is_of_work = any(s.place.rows.size for s in series) if series else job.has_gpu_work(trace)
    if not plan.is_all and not is_of_work:
        whole = "all of the telemetry, as there is no GPU work in the trace"
    result = {"window": windows.describe(steps, whole)}
    left = sum(s.left_out for s in series)
    parts = [f"{left} samples that are not finite, or of what no GPU can have"] if left else []
    without = {
        (s.place.rank, s.place.device)
        for s in series
        if s.place.device >= 0 and not s.place.is_owned
    }
    others = 0 if kind else trace.series.num_rows - len(series)
    if others:
        parts.append(f"{others} series that were not asked for or have no samples that count")
    result["left out"] = "; ".join(parts) or "nothing"
    if without:
        result["gpus without rank"] = (
            f"on {len(without)} GPUs no rank is known to compute: --map-device states it"
        )
    if plan.owner == NODE and any(not s.place.host for s in series):
        result["nodes"] = "series whose node is not known make rows together, host null"
    if not series:
        result["no rows"] = f"there are no samples{f' {kind}' if kind else ''} in the trace"
    return result

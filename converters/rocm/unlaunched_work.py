"""GPU work without a recorded launch, in recordings of calls by AMD's profilers."""

from __future__ import annotations

import numpy as np

from chopper_interop.arrays.gather import is_any
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.kinds import CALLS, GPU_WORK
from chopper_interop.trace import Trace

NO_LAUNCH = Fault.info(
    "launch-not-recorded",
    "GPU work that no recorded call launched, by correlation ids: it was "
    "queued before the recording of calls began, or by a call that is not recorded.",
)


def count_unlaunched_work(trace: Trace, issues: IssueLog) -> None:
    """Count GPU work without a launch, if calls and correlation ids of work were recorded."""
    kind, launched = trace.array("kind"), trace.launch >= 0
    if not is_any(kind, CALLS).any():
        return
    work = is_any(kind, GPU_WORK)
    if launched.any() or (trace.array("correlation")[work] > 0).any():
        issues.add(NO_LAUNCH, np.count_nonzero(work & ~launched))

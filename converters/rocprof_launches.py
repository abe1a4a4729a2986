"""GPU work of which AMD's profilers recorded no launch, though they recorded calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns.members import is_any
from chopper_interop.issues import Fault, IssueLog, Severity
from chopper_interop.schemas.kinds import CALLS, GPU_WORK

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

NO_LAUNCH = Fault(
    "launch-not-recorded",
    Severity.INFO,
    "GPU work that no recorded call launched, by what ties them: it was queued before the "
    "recording of calls began, or by a call that is not recorded.",
)


def count_missing(trace: Trace, issues: IssueLog) -> None:
    """Count GPU work without a launch, if calls were recorded and anything ties work to them."""
    kind, launched = trace.array("kind"), trace.launch >= 0
    if not is_any(kind, CALLS).any():
        return
    work = is_any(kind, GPU_WORK)
    if launched.any() or (trace.array("correlation")[work] > 0).any():
        issues.add(NO_LAUNCH, np.count_nonzero(work & ~launched))

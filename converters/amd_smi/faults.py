"""Faults of amd-smi's output; those of all tools are in `telemetry_faults`."""

from __future__ import annotations

from chopper_interop.issues import Fault, Severity

JOINED = Fault(
    "row-joined",
    Severity.INFO,
    "Rows about processes became values of the row of their GPU at their time.",
    events=True,
)
COUNTED = Fault(
    "count-without-time",
    Severity.LOSS,
    "Counters (traffic, memory of processes) are samples only where their time is known; those "
    "without were left out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime.",
)
NO_TIME = Fault(
    "row-without-time",
    Severity.LOSS,
    "amd-smi writes no time unless it watches, and times are never invented: such rows were left "
    "out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime, or record with -w 1.",
    events=True,
)
CUT = Fault(
    "row-cut-short",
    Severity.LOSS,
    "Rows with more or fewer cells than their header, or JSON that is cut, were left out: "
    "amd-smi was stopped while it wrote.",
    events=True,
)
DEEP = Fault(
    "row-too-deep",
    Severity.LOSS,
    "Rows whose values are nested hundreds of levels deep were left out.",
    events=True,
)
ERROR = Fault(
    "error-message",
    Severity.LOSS,
    "amd-smi reported an error instead of values.",
    events=True,
)
PROCESS = Fault(
    "process-row",
    Severity.LOSS,
    "Rows about processes without a number, or whose GPU has no row before them, were left out.",
    events=True,
)
OTHER_PART = Fault(
    "row-of-other-part",
    Severity.LOSS,
    "Rows of CPUs, cores and network cards are not read.",
    events=True,
)
REPEATED = Fault(
    "row-repeated",
    Severity.INFO,
    "amd-smi wrote samples a second time in its closing JSON document; each was used once.",
    events=True,
)

"""Faults of amd-smi's output; those of all tools are in `sampling.faults`."""

from __future__ import annotations

from chopper_interop.issues import Fault

JOINED = Fault.info_of_events(
    "row-joined", "Rows about processes became values of the row of their GPU at their time."
)
COUNTED = Fault.loss(
    "count-without-time",
    "Counters (traffic, memory of processes) are samples only where their time "
    "is known; those without were left out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime.",
)
NO_TIME = Fault.loss_of_events(
    "row-without-time",
    "amd-smi writes no time unless it watches, and times are never invented: "
    "such rows were left out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime, or record with -w "
    "1.",
)
CUT = Fault.loss_of_events(
    "row-cut-short",
    "Rows with more or fewer cells than their header, or JSON that is cut, were "
    "left out: amd-smi was stopped while it wrote.",
)
DEEP = Fault.loss_of_events(
    "row-too-deep", "Rows whose values are nested hundreds of levels deep were left out."
)
ERROR = Fault.loss_of_events("error-message", "amd-smi reported an error instead of values.")
PROCESS = Fault.loss_of_events(
    "process-row",
    "Rows about processes without a number, or whose GPU has no row before them, were left out.",
)
OTHER_PART = Fault.loss_of_events(
    "row-of-other-part", "Rows of CPUs, cores and network cards are not read."
)
REPEATED = Fault.info_of_events(
    "row-repeated",
    "amd-smi wrote samples a second time in its closing JSON document; each was used once.",
)

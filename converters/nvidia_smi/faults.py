"""Faults of nvidia-smi's output alone; the rest is in `telemetry_faults`."""

from __future__ import annotations

from chopper_interop.issues import Fault, Severity

NO_DATE = Fault(
    "row-without-date",
    Severity.LOSS,
    "Rows that have a time of day but no date were left out. Give -O date=<2024-05-01>, the day "
    "of the first, or record with -o DT.",
    events=True,
)
FILE_CUT = Fault(
    "file-cut-short",
    Severity.LOSS,
    "A document breaks off between its GPUs: those behind are missing.",
)
NO_HEADER = Fault(
    "row-without-header",
    Severity.LOSS,
    "Rows in front of the first header were left out. Give -O columns=<what stood behind "
    "--query-gpu=>.",
    events=True,
)
BY_ORDER = Fault(
    "gpu-by-order",
    Severity.INFO,
    "Rows do not say which GPU they are of; nvidia-smi writes its GPUs one after the other, and "
    "they were distinguished by this order.",
)
ONE_GPU = Fault(
    "gpu-assumed",
    Severity.INFO,
    "Rows do not say which GPU they are of; none come together, so they were taken as of one.",
)
PROCESS = Fault(
    "process-row",
    Severity.LOSS,
    "Rows about processes, or of what does not change, are not read.",
    events=True,
)
DUPLICATE = Fault(
    "column-twice", Severity.LOSS, "Columns whose name an earlier one has were left out."
)

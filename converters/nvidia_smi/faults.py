"""Faults of nvidia-smi's output alone; the rest is in `sampling.faults`."""

from __future__ import annotations

from chopper_interop.issues import Fault

NO_DATE = Fault.loss_of_events(
    "row-without-date",
    "Rows that have a time of day but no date were left out. Give -O "
    "date=<2024-05-01>, the day of the first, or record with -o DT.",
)
FILE_CUT = Fault.loss(
    "file-cut-short", "A document breaks off between its GPUs: those behind are missing."
)
NO_HEADER = Fault.loss_of_events(
    "row-without-header",
    "Rows in front of the first header were left out. Give -O columns=<what "
    "stood behind --query-gpu=>.",
)
BY_ORDER = Fault.info(
    "gpu-by-order",
    "Rows do not say which GPU they are of; nvidia-smi writes its GPUs one after the "
    "other, and they were distinguished by this order, in ticks of which no row is missing.",
)
ONE_GPU = Fault.info(
    "gpu-assumed",
    "Rows do not say which GPU they are of; none come together, so they were taken as of one.",
)
PROCESS = Fault.loss_of_events(
    "process-row", "Rows about processes, or of what does not change, are not read."
)
PROCESSES_OF_TABLE = Fault.info(
    "processes-left-out", "Lists of processes below nvidia-smi's tables were left out."
)
DUPLICATE = Fault.loss("column-twice", "Columns whose name an earlier one has were left out.")

"""What can be amiss with the output of NVIDIA's tools, and what became of its rows."""

from __future__ import annotations

from chopper_interop.issues import Fault, Severity

SAMPLED = Fault(
    "row-as-samples",
    Severity.INFO,
    "Rows (one GPU at one time) became samples of counter lanes.",
    events=True,
)
NO_TIME = Fault(
    "row-without-time",
    Severity.LOSS,
    "Rows without a time were left out: one is not made up. Give -O at_ns=<epoch nanoseconds of "
    "the last> and -O period_ms=<milliseconds>, or -O at=mtime.",
    events=True,
)
NO_DATE = Fault(
    "row-without-date",
    Severity.LOSS,
    "Rows that have a time of day but no date were left out. Give -O date=<2024-05-01>, the day "
    "of the first, or record with -o DT.",
    events=True,
)
EARLIER_TICK = Fault(
    "row-of-earlier-tick",
    Severity.LOSS,
    "The time that was given is that of the last rows; earlier ones were left out, as the period "
    "is not known. Give -O period_ms=<milliseconds>.",
    events=True,
)
CUT = Fault(
    "row-cut-short",
    Severity.LOSS,
    "Rows with more or fewer cells than their header were left out.",
    events=True,
)
CELL_CUT = Fault(
    "cell-cut-short",
    Severity.LOSS,
    "The file ends within a row: its last cell may lack digits and was left out.",
)
FILE_CUT = Fault(
    "file-cut-short",
    Severity.LOSS,
    "A document breaks off between its GPUs: those behind are missing.",
)
EMPTY = Fault("no-rows", Severity.LOSS, "The file holds no rows.")
NO_HEADER = Fault(
    "row-without-header",
    Severity.LOSS,
    "Rows in front of the first header were left out. Give -O columns=<what stood behind "
    "--query-gpu=>.",
    events=True,
)
NO_GPU = Fault(
    "row-without-gpu",
    Severity.LOSS,
    "Rows that do not say which GPU, of several, were left out. Record with index or uuid.",
    events=True,
)
BY_ORDER = Fault(
    "gpu-by-order",
    Severity.INFO,
    "Rows do not say which GPU they are of; nvidia-smi writes its GPUs one after the other, and "
    "they were told apart by this order.",
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
NOT_A_ROW = Fault("line-without-data", Severity.INFO, "Messages between the rows were left out.")
VALUE_ERROR = Fault(
    "value-in-error",
    Severity.LOSS,
    "Cells that hold an error ([Unknown Error], [GPU is lost]) in place of a value.",
)
SPREAD = Fault(
    "time-spread",
    Severity.INFO,
    "The times are whole seconds; rows were placed within theirs as the period of the run has it. "
    "How far a sample may be off stands in `series.uncertainty_ns`.",
)
ASSUMED_TIME = Fault(
    "time-from-option", Severity.INFO, "Rows without time got the time that was given by option."
)
ASSUMED_MTIME = Fault(
    "time-from-file",
    Severity.INFO,
    "Rows without time got the time at which the file was last changed, which a copy may have "
    "moved.",
)
TEXT_COLUMN = Fault(
    "column-of-words",
    Severity.INFO,
    "Columns that describe the GPU or the machine are no samples and were left out.",
)
DUPLICATE = Fault(
    "column-twice", Severity.LOSS, "Columns whose name an earlier one has were left out."
)

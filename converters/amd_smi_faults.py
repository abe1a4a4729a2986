"""What can be amiss with amd-smi's output, and what became of its rows."""

from __future__ import annotations

from chopper_interop.issues import Fault, Severity

SAMPLED = Fault(
    "row-as-samples",
    Severity.INFO,
    "Rows (one GPU at one tick) became samples of counter lanes.",
    events=True,
)
DESCRIBED = Fault(
    "row-as-description",
    Severity.INFO,
    "Rows that describe a GPU became its names and facts.",
    events=True,
)
JOINED = Fault(
    "row-joined",
    Severity.INFO,
    "Rows about several processes of one GPU at one time became one.",
    events=True,
)
COUNTED = Fault(
    "count-without-time",
    Severity.LOSS,
    "What was counted until amd-smi was called (traffic, memory of processes) is a sample only "
    "where the time is known, and was left out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime.",
)
NO_TIME = Fault(
    "row-without-time",
    Severity.LOSS,
    "amd-smi writes no time unless it watches, and a time is not made up: such rows were left "
    "out. Give -O at_ns=<epoch nanoseconds> or -O at=mtime, or record with -w 1.",
    events=True,
)
EARLIER_RUN = Fault(
    "row-of-earlier-run",
    Severity.LOSS,
    "The file holds several outputs without time, one behind the other: the time that was given "
    "is that of the last, the earlier ones were left out.",
    events=True,
)
CUT = Fault(
    "row-cut-short",
    Severity.LOSS,
    "Rows with more or fewer cells than their header, or JSON that breaks off, were left out: "
    "amd-smi was stopped while it wrote.",
    events=True,
)
DEEP = Fault(
    "row-too-deep",
    Severity.LOSS,
    "Rows whose values are nested hundreds of levels deep were left out.",
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
    "The file ends within a line: the tool was stopped while it wrote a tick, which is missing.",
)
EMPTY = Fault("no-rows", Severity.LOSS, "The file holds no rows.")
TICK_CUT = Fault(
    "tick-without-all-gpus",
    Severity.LOSS,
    "Ticks that lack the rows of GPUs which others have.",
)
NO_HEADER = Fault(
    "row-without-header",
    Severity.LOSS,
    "Rows in front of the first header were left out.",
    events=True,
)
NO_GPU = Fault(
    "row-without-gpu", Severity.LOSS, "Rows that do not say which GPU were left out.", events=True
)
ERROR = Fault(
    "error-message",
    Severity.LOSS,
    "amd-smi reported an error instead of values.",
    events=True,
)
PROCESS = Fault(
    "process-row", Severity.LOSS, "Rows about processes (-q) are not read.", events=True
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
    "amd-smi wrote samples a second time in its closing JSON document; they were taken once.",
    events=True,
)
NOT_A_ROW = Fault(
    "line-without-data", Severity.INFO, "Messages of amd-smi between the rows were left out."
)
ASSUMED_TIME = Fault(
    "time-from-option",
    Severity.INFO,
    "Rows without time got the time that was given by option.",
)
ASSUMED_MTIME = Fault(
    "time-from-file",
    Severity.INFO,
    "Rows without time got the time at which the file was last changed, which a copy may have "
    "moved.",
)
SPREAD = Fault(
    "time-spread",
    Severity.INFO,
    "amd-smi writes whole seconds; rows were placed within theirs as the period of the run has "
    "it. How far a sample may be off stands in `series.uncertainty_ns`.",
)
TEXT = Fault(
    "cell-not-a-number",
    Severity.INFO,
    "Cells that hold words (ENABLED, AUTO, an error's text) are not samples and were left out.",
)
SENTINEL = Fault(
    "value-not-available",
    Severity.INFO,
    "Values that stand for 'not available' (-1, 65535, 4294967295, 18446744073709551615) were "
    "left out.",
)
UNIT = Fault(
    "unit-unknown",
    Severity.LOSS,
    "Values in a unit that is not known here or not of this quantity were left out.",
)
ENERGY = Fault(
    "energy-reads-high",
    Severity.INFO,
    "amd-smi takes 15.3 µJ for a count of the energy counter, which is 2^-16 J = 15.2588 µJ: its "
    "joules are 0.27 % high. They were taken as they are.",
)
RESIDENCY = Fault(
    "residency-went-back",
    Severity.LOSS,
    "Between two samples a throttle residency did not fit its counter (a reset, or a driver that "
    "was loaded anew): no share was made there.",
)

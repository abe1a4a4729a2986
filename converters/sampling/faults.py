"""Faults of the output of any tool that samples, and the fate of its rows."""

from __future__ import annotations

from chopper_interop.issues import Fault, Severity

SAMPLED = Fault(
    "row-as-samples",
    Severity.INFO,
    "Rows (one GPU at one time) became samples of counter lanes.",
    events=True,
)
DESCRIBED = Fault(
    "row-as-description",
    Severity.INFO,
    "Rows that describe a GPU became its names and facts.",
    events=True,
)
NO_TIME = Fault(
    "row-without-time",
    Severity.LOSS,
    "Rows without a time were left out, as times are never invented. Give -O at_ns=<epoch nanoseconds of "
    "the last> and -O period_ms=<milliseconds>, or -O at=mtime.",
    events=True,
)
STAMP_UNKNOWN = Fault(
    "stamp-not-understood",
    Severity.LOSS,
    "Rows whose time is written in a way that is not understood, or that may be read as two "
    "different days (05/01/2024), were left out. Write times as 2024/05/01 12:34:56.789, in "
    "ISO 8601 or as epoch seconds.",
    events=True,
)
EARLIER_OUTPUT = Fault(
    "row-of-earlier-output",
    Severity.LOSS,
    "The file holds several outputs without times: the time that was given is that of the last, "
    "and earlier ones were left out. With -O period_ms=<milliseconds> they are read too.",
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
    "row-without-gpu",
    Severity.LOSS,
    "Rows that do not say which GPU, of several, were left out. Record its index or UUID.",
    events=True,
)
NOT_A_ROW = Fault("line-without-data", Severity.INFO, "Messages between the rows were left out.")
ASSUMED_TIME = Fault(
    "time-from-option",
    Severity.INFO,
    "Rows without time got the time that the options give.",
)
ASSUMED_MTIME = Fault(
    "time-from-file",
    Severity.INFO,
    "Rows without time got the time at which the file was last changed, which copying it may have "
    "changed.",
)
SPREAD = Fault(
    "time-spread",
    Severity.INFO,
    "The times are whole seconds; rows were spread within them by the period of the run. "
    "The largest error of a sample is in `series.uncertainty_ns`.",
)
TEXT = Fault(
    "cell-not-a-number",
    Severity.INFO,
    "Cells that hold words (ENABLED, AUTO, an error's text) are not samples and were left out.",
)
GARBLED = Fault(
    "value-garbled",
    Severity.LOSS,
    "Cells that should hold a number, but hold none that can be read (100,5 W; an unknown word; more "
    "than any type holds), were left out.",
)
SENTINEL = Fault(
    "value-not-available",
    Severity.INFO,
    "Values that mean 'not available' (-1, 65535, 4294967295, 18446744073709551615, nan) were "
    "left out.",
)
UNIT = Fault(
    "unit-unknown",
    Severity.LOSS,
    "Values in an unknown unit, or in one of another quantity, were left out.",
)
VALUE_ERROR = Fault(
    "value-in-error",
    Severity.LOSS,
    "Cells that hold an error ([Unknown Error], [GPU is lost]) in place of a value.",
)
ENERGY = Fault(
    "energy-reads-high",
    Severity.INFO,
    "amd-smi counts 15.3 µJ for one step of the energy counter, which is 2^-16 J = 15.2588 µJ: its "
    "joules are 0.27 % high. They were not corrected.",
)
RESIDENCY = Fault(
    "residency-went-back",
    Severity.LOSS,
    "Between two samples a throttle residency did not fit its counter (a reset, or a driver that "
    "was loaded again): there is no share for that interval.",
)

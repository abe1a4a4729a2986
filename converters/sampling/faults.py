"""Faults of the output of any tool that samples, and the fate of its rows."""

from __future__ import annotations

from chopper_interop.issues import Fault

SAMPLED = Fault.info_of_events(
    "row-as-samples", "Rows (one GPU at one time) became samples of counter lanes."
)
DESCRIBED = Fault.info_of_events(
    "row-as-description", "Rows that describe a GPU became its names and facts."
)
NO_TIME = Fault.loss_of_events(
    "row-without-time",
    "Rows without a time were left out, as times are never invented. Give -O "
    "at_ns=<epoch nanoseconds of the last> and -O period_ms=<milliseconds>, or -O at=mtime.",
)
STAMP_UNKNOWN = Fault.loss_of_events(
    "stamp-not-understood",
    "Rows whose time is written in a way that is not understood, is a date before 1970, or may "
    "be read as two different days (05/01/2024), were left out. Write times as 2024/05/01 "
    "12:34:56.789, in ISO 8601 or as epoch seconds.",
)
BEFORE_1970 = Fault.loss_of_events(
    "time-before-1970",
    "Rows whose time is negative, before 1970, were left out: the clock that wrote them was not set.",
)
EARLIER_OUTPUT = Fault.loss_of_events(
    "row-of-earlier-output",
    "The file holds several outputs without times: the time that was given "
    "is that of the last, and earlier ones were left out. With -O period_ms=<milliseconds> they "
    "are read too.",
)
CUT = Fault.loss_of_events(
    "row-cut-short", "Rows with more or fewer cells than their header were left out."
)
CELL_CUT = Fault.loss(
    "cell-cut-short", "The file ends within a row: its last cell may lack digits and was left out."
)
FILE_CUT = Fault.loss(
    "file-cut-short",
    "The file ends within a line: the tool was stopped while it wrote a tick, which is missing.",
)
EMPTY = Fault.loss("no-rows", "The file holds no rows.")
TICK_CUT = Fault.loss(
    "tick-without-all-gpus", "Ticks that lack the rows of GPUs which others have."
)
NO_HEADER = Fault.loss_of_events(
    "row-without-header", "Rows in front of the first header were left out."
)
NO_GPU = Fault.loss_of_events(
    "row-without-gpu",
    "Rows that do not say which GPU, of several, were left out. Record its index or UUID.",
)
QUANTITY = Fault.info(
    "quantity-unknown",
    "Columns of a quantity and unit that are not known became lanes without a unit, under the column's name.",
)
NOT_A_ROW = Fault.info("line-without-data", "Messages between the rows were left out.")
ASSUMED_TIME = Fault.info(
    "time-from-option", "Rows without time got the time that the options give."
)
ASSUMED_MTIME = Fault.info(
    "time-from-file",
    "Rows without time got the time at which the file was last changed, which "
    "copying it may have changed.",
)
SPREAD = Fault.info(
    "time-spread",
    "The times are whole seconds; rows were spread within them by the period of the "
    "run. The largest error of a sample is in `series.uncertainty_ns`.",
)
TEXT = Fault.info(
    "cell-not-a-number",
    "Cells that hold words (ENABLED, AUTO, an error's text) are not samples and were left out.",
)
GARBLED = Fault.loss(
    "value-garbled",
    "Cells that should hold a number, but hold none that can be read (100,5 W; an "
    "unknown word; more than any type holds), were left out.",
)
SENTINEL = Fault.info(
    "value-not-available",
    "Values that mean 'not available' (-1, 65535, 4294967295, "
    "18446744073709551615, nan, a power limit of 0 W) were left out.",
)
UNIT = Fault.loss(
    "unit-unknown", "Values in an unknown unit, or in one of another quantity, were left out."
)
VALUE_ERROR = Fault.loss(
    "value-in-error",
    "Cells that hold an error ([Unknown Error], [GPU is lost]) in place of a value.",
)
ENERGY = Fault.info(
    "energy-reads-high",
    "amd-smi counts 15.3 µJ for one step of the energy counter, which is 2^-16 "
    "J = 15.2588 µJ: its joules are 0.27 % high. They were not corrected.",
)
RESIDENCY = Fault.loss(
    "residency-went-back",
    "Between two samples a throttle residency did not fit its counter (a "
    "reset, or a driver that was loaded again): there is no share for that interval.",
)
RESIDENCY_ABOVE = Fault.info(
    "residency-above-counter",
    "Between two samples a throttle residency grew more than its counter, as they are not read at the "
    "same time: the share of that interval is 100 %, and the rest counts in the next.",
)

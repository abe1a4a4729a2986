"""Columns of the rows that analyses give: what each is, in what unit.

A column means the same in every analysis that has it. Its name ends in its unit. Beside these,
rows have the columns that they are grouped by (`grouping.GRAINS`), named as those are.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """A column of the rows of an analysis.

    Parameters
    ----------
    unit
        Unit of its values; "" for counts, names and references; "1" for shares and ratios.
    meaning
        One sentence for people.
    """

    unit: str
    meaning: str


KEYS = {
    "job": Figure("", "Name of the job: all of it is one row."),
    "rank": Figure("", "Global rank of the process."),
    "device": Figure("", "Device as the source numbers it."),
    "stream": Figure("", "Name of the stream or queue that it ran on."),
    "iteration": Figure("", "Training step by the program's own number."),
    "step": Figure("", "Training step by the program's own number, or the window's name."),
    "phase": Figure("", "forward, recompute, backward, optimizer or communication."),
    "step_part": Figure("", "Pass that it serves: forward, backward or optimizer."),
    "layer": Figure("", "Number of the repeated block of the model."),
    "module": Figure("", "Innermost module of the model, as the framework names it."),
    "operation": Figure("", "What it is part of: an operator as its user calls it."),
    "collective": Figure("", "Kind of communication, such as all_reduce."),
    "group": Figure("", "Process group that communicates."),
    "class": Figure("", "compute, comm or copy; fills count as compute."),
    "kernel": Figure("", "Name of the kernel as the source wrote it."),
}
"""What rows are grouped by, or are of."""

FIGURES = {
    # temporal
    "span_ns": Figure("ns", "From the first start to the last end of what counts."),
    "busy_ns": Figure("ns", "Time in which anything ran on the GPU."),
    "compute_ns": Figure("ns", "Time in which a kernel or fill ran."),
    "comm_ns": Figure("ns", "Time in which something communicated."),
    "memcpy_ns": Figure("ns", "Time in which something was copied."),
    "overlap_ns": Figure("ns", "Time in which compute and communication ran at once."),
    "exposed_comm_ns": Figure("ns", "Time in which something communicated and no compute ran."),
    "idle_ns": Figure("ns", "Time in which nothing ran on the GPU."),
    # energy
    "window_ns": Figure("ns", "Length of the window."),
    "covered_ns": Figure("ns", "Of the window, how much is known of."),
    "energy_j": Figure("J", "Energy of the GPU over the window."),
    "work_j": Figure("J", "Of it, that of work whose power is known throughout."),
    "cut_j": Figure("J", "Of it, that of work for whose whole time power is not known."),
    "idle_j": Figure("J", "Of it, that of the time in which nothing ran."),
    "compute_j": Figure("J", "Of work_j, that of kernels and fills."),
    "comm_j": Figure("J", "Of work_j, that of communication."),
    "copy_j": Figure("J", "Of work_j, that of copies."),
    "mean_power_w": Figure("W", "Mean power of the GPU."),
    "peak_power_w": Figure("W", "Highest power of the GPU."),
    "counter_j": Figure("J", "Energy by the GPU's own counter."),
    "difference_share": Figure("1", "(energy_j - counter_j) / counter_j."),
    "telemetry_ns": Figure("ns", "Time between samples of power, the longest of several tools."),
    "source": Figure("", "Tools that sampled power, the finest first."),
}
"""Figures by name."""


def figure(name: str) -> Figure | None:
    """What a column is; None if nothing is said of it."""
    return FIGURES.get(name) or KEYS.get(name)

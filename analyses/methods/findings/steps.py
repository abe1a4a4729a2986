"""Steps that are not like the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.findings.finding import MEASURED, Finding
from chopper_interop.analyses.methods.findings.job import ranks_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chopper_interop.analyses.methods.findings.job import ExaminedJob
    from chopper_interop.arrays.types import Array

_LONGER = 1.2
"""By how many times a warm-up exceeds the longest of the other steps. Chosen: more than steps vary."""
_MIN_OTHERS = 2
"""Steps that must be left, so that there is a longest of the others."""


def _count(length: Array) -> int:
    """Number of first steps that exceed all that follow."""
    first = 0
    while len(length) - first > _MIN_OTHERS and length[first] > _LONGER * length[first + 1 :].max():
        first += 1
    return first


def without_warm_up(job: ExaminedJob) -> str:
    """Steps that are none, as text for an option."""
    return ranks_text(job.iterations[_count(job.of_steps_ns) :].tolist())


def warm_up_steps(job: ExaminedJob) -> Iterator[Finding]:
    """Find first steps that take longer than all others, and so are part of every mean."""
    length, number = job.of_steps_ns, job.iterations
    first = _count(length)
    if not first:
        return
    where, takes, are = f"step {number[0]}", "takes", "is"
    if first > 1:
        where, takes, are = f"steps {number[0]}-{number[first - 1]}", "take", "are"
    start, _ = job.span_ns()
    longer = length[:first].mean() / np.median(length[first:])
    yield Finding(
        "warm-up-steps",
        round(float(length.mean() - length[first:].mean())),
        ranks_text(job.ranks),
        where,
        start,
        start + int(length[:first].sum()),
        MEASURED,
        f"The recording begins with a warm-up: {where} {takes} {longer:.1f} times as long as the others, and "
        f"{are} left out of all other findings.",
        f"chopper-analyze RUN/ --steps {without_warm_up(job)}",
        step_ns=job.step_ns,
    )

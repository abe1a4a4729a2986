"""Steps that are not like the others."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from chopper_interop import number_ranges
from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.analyses.methods.findings.finding import MEASURED, Finding
from chopper_interop.analyses.methods.findings.job import ExaminedJob, options_text, ranks_text


def warm_up_steps(job: ExaminedJob, *, is_left_out: bool) -> Iterator[Finding]:
    """Find first steps that take longer than all others; they count in other findings only where they were chosen."""
    length, warm = job.of_steps_ns, warm_up.steps(job.trace)
    first = int(np.isin(job.iterations, warm).sum())
    if not first or first == len(length):
        return
    where = number_ranges.named("step", job.iterations[:first].tolist())
    takes, are = ("takes", "is") if first == 1 else ("take", "are")
    counted = f"{are} left out of" if is_left_out else f"{'counts' if first == 1 else 'count'} in"
    begins = f"with a warm-up: {where} {takes}"
    if warm_up.is_lag(job.trace):
        begins = f"with {where}, which counts from its own begin, as no step before it was recorded: it {takes}"
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
        f"The recording begins {begins} {longer:.1f} times as long as the others, and "
        f"{counted} all other findings.",
        "chopper-analyze RUN/"
        + options_text(warm_up.later_steps(job.trace, job.chosen_ranks), job.chosen_ranks),
        step_ns=job.step_ns,
    )

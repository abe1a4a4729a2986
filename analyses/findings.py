"""Causes that make training steps longer than they need be, in order of what their absence would save."""

from __future__ import annotations

from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.analyses.methods.findings import catalogue, finding
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.result import Result
from chopper_interop.trace import Trace

__all__ = ["findings"]

_CONVENTIONS = {
    "saves_ns": "by how much the mean step would be shorter, by re-timing the job without what was "
    "found; each finding alone: they do not add up",
    "shown": f"what saves {finding.MIN_SHARE:.1%} of the step or more",
    "order": "the largest saving first; small-launches and slow-operators behind single operations that save three quarters "
    "as much; warm-up-steps last, as it is of the recording and not of the steps that count",
    "share": "of the mean step; of warm-up-steps of the mean of all steps",
    "certainty": "measured: the saving is a difference of measured times; modelled: of a re-timed job; "
    "likely: it rests on an assumption that the trace cannot confirm",
    "range": "saves_low_ns and saves_high_ns: of single steps, of three or more; of throttled-gpu the 95 % "
    "interval of dvfs",
    **{
        code: f"{entry.detection}. Saves if {entry.saving}. Remedy: {entry.remedy}"
        for code, entry in catalogue.CATALOGUE.items()
    },
}


def findings(trace: Trace, *, steps: str = "", ranks: str = "") -> Result:
    """Find what makes steps longer than they need be: an ordered list with what each would save.

    Parameters
    ----------
    steps
        Training steps, ``10`` or ``10-12``; ``each`` for all of them, all but a warm-up if empty. A trace without
        training steps counts as one step.
    ranks
        Ranks of which steps and findings are (``"0,4-7"``); all if empty. Late ranks are compared with all.

    Returns
    -------
    Result
        One row a finding, the largest saving first, and `warm-up-steps`, which is of the recording and
        not of the steps that count, last: `code` (stable), `saves_ns` with
        `saves_low_ns` and `saves_high_ns`, `share` of the step, `ranks`, `where`, one place `at_ns`
        to `until_ns` where it can be seen, `certainty`, `finding` (a sentence), `command`.
    """
    job, all_of_them = catalogue.find(trace, steps, ranks)
    table = finding.to_table(all_of_them, job.step_ns)
    summary = {"steps": job.steps if job.has_steps else 0, "step_ns": job.step_ns}
    notes = {}
    if not job.has_times:
        notes["no rows"] = "no times of operations were recorded: give a profile of the job"
    elif not table.num_rows:
        notes["no rows"] = finding.nothing_text(has_steps=job.has_steps)
    notes |= parallelism.unread_ranks(trace)
    notes |= {} if steps else warm_up.left_out(trace)
    return Result("findings", table, summary, _CONVENTIONS, notes=notes)

"""A run of ETs by a simulator's rules: nodes that never end, and wrong spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra import run
from chopper_interop.converters.chakra.checks.communication import (
    group_label,
    kind_and_size,
    mismatch_text,
)
from chopper_interop.converters.chakra.checks.findings import Findings, examples
from chopper_interop.converters.chakra.checks.jobs import job_of

if TYPE_CHECKING:
    from chopper_interop.converters.chakra.decode import EtFile


def run_job(
    ets: list[EtFile], groups: dict[str, list[int]], findings: Findings, tolerance: float
) -> None:
    """Run all ranks by the simulator's rules, to find nodes that wait for ever and wrong spans."""
    job = job_of(ets, groups)
    outcome = run.run(job, len(ets))
    replay = run.run(job._replace(role=np.zeros_like(job.role)), len(ets))
    findings.makespan_us = replay.makespan_us
    stuck = np.flatnonzero(outcome.end_ns < 0)
    for name, (index, *nodes) in zip(groups, outcome.mismatch.tolist(), strict=True):
        if index >= 0:
            a, b = ((kind_and_size((job.kind[i], job.size[i])), job.rank[i]) for i in nodes)
            findings.add("all ranks", mismatch_text(group_label(name), index, a, b))
    if not findings.runs:
        return
    if not stuck.size:
        _check_spans(job, replay, findings, tolerance)
        _check_last_messages(ets, job, outcome, findings)
        return
    bounds = np.cumsum([0, *(len(et.id) for et in ets)])
    for rank, et in enumerate(ets):
        rows = stuck[(stuck >= bounds[rank]) & (stuck < bounds[rank + 1])] - bounds[rank]
        if rows.size:
            started = rows[outcome.started[rows + bounds[rank]]]
            text = "nodes never end, as ranks wait for each other"
            example = examples(et, started if started.size else rows)
            findings.add(f"rank {rank}", text, rows.size, example)


def _ends(job: run.JobNodes, outcome: run.Outcome, ranks: int) -> Array:
    """End of each rank's last node."""
    last = np.zeros(ranks, np.int64)
    np.maximum.at(last, job.rank, outcome.end_ns)
    return last


def _check_spans(
    job: run.JobNodes, replay: run.Outcome, findings: Findings, tolerance: float
) -> None:
    """Compare the end of each rank by durations alone with the measured one."""
    last = _ends(job, replay, findings.ranks)
    for rank, span_ns in findings.span_ns.items():
        deviation = last[rank] / span_ns - 1
        if abs(deviation) > tolerance and abs(last[rank] - span_ns) > run.ROUNDING_NS:
            text = (
                f"it ends after {last[rank] / 1e3:,.0f} µs by its durations, and was measured to take "
                f"{span_ns / 1e3:,.0f} µs ({deviation:+.2%}, tolerance {tolerance:.2%})"
            )
            findings.add_deviation(f"rank {rank}", text)


def _check_last_messages(
    ets: list[EtFile], job: run.JobNodes, outcome: run.Outcome, findings: Findings
) -> None:
    """Find ranks with host nodes that end with a send or receive, at which ASTRA-sim aborts."""
    message = (job.role == run.SEND) | (job.role == run.RECEIVE)
    leaf = np.diff(job.first) == 0
    for rank, et in enumerate(ets):
        of_rank = job.rank == rank
        if not (of_rank & (job.slot == run.HOST)).any():
            continue
        final = np.flatnonzero(of_rank & message & leaf)
        if final.size:
            rows = final - int(np.argmax(of_rank))
            stops = bool(message[outcome.last[rank]])
            findings.add_nodes(
                f"rank {rank}",
                et,
                rows,
                "sends or receives that nothing depends on, in a file with host nodes: ASTRA-sim aborts "
                "in its statistics if one is the last to end",
                stops=stops,
            )

"""Ranks, links and stages that others wait for, as `stragglers` finds them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.communication import times as collective_times
from chopper_interop.analyses.methods.findings.finding import LIKELY, MODELLED, Finding
from chopper_interop.analyses.methods.findings.job import ExaminedJob, FindingPlace, ranks_text
from chopper_interop.analyses.methods.fleet.compared_job import GAIN_COLUMNS
from chopper_interop.analyses.methods.runs import parallelism
from chopper_interop.arrays import statistics
from chopper_interop.grouping import by_key
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.fleet.comparison import Comparison

_LONGER_STAGE, _FAR_LONGER_STAGE = 1.03, 1.1
"""Ratio of kernel times from which on a stage is longer than others; and, of few kernels, from which on it is
not by chance. Chosen: equal ones of a hundred kernels differ by 1 % or 2 %, and hardly ever by 5 %."""
_EXPLAINS = 0.8
"""Share of a stage's gain from which on one rank of it explains the stage. Chosen: the rest is small."""
_SIGMAS = 4.0
"""Standard deviations by which more kernels must be slower than a half. Chosen: 1 in 30,000 is by chance."""
_CODES = {"gpu": "late-rank-gpu", "host": "late-rank-host", "delays": "late-rank-unknown"}
_TEXTS = {
    "gpu": "Rank {rank} is late: its kernels take {slower:.1%} longer than those of {others}.",
    "host": "Rank {rank} is late: half of what its host launches is {late} ms or more later than that of {others}.",
    "delays": "Rank {rank} is late, and nothing that was recorded says why.",
}


def late_ranks(job: ExaminedJob) -> Iterator[Finding]:
    """Find late ranks, slow links and slow stages of pipelines."""
    compared = job.compared
    if compared is None:
        return
    rows = compared.by_gain
    stages = [row["stage"] for row in rows]
    stage = compared.slow_stage
    own = [row for row in rows if row["stage"] == stage]
    if stage is not None and _is_longer(job, rows, own):
        of_stage = _stage(job, compared, stage)
        one_rank = max(row["gain_ns"] or 0 for row in own)
        if one_rank < _EXPLAINS * of_stage.saves_ns * job.steps or stages.count(stage) == 1:
            yield of_stage
    usual_ns, ranks = _usual_ns(rows), set(job.ranks)
    for row in rows:
        if row["cause"] and row["rank"] in ranks and row["rank"] in usual_ns and is_sure(job, row):
            yield _rank(job, row, usual_ns[row["rank"]], of_stage=len(set(stages)) > 1)
    if stage is None and (members := late_together(job, compared)):
        yield _several(job, *members)
    yield from _link(job, compared)


def _usual_ns(rows: list[dict[str, Any]]) -> dict[int, float]:
    """Median kernel time of the other ranks of each rank's stage; without ranks that have a stage to themselves."""
    usual: dict[int, float] = {}
    for same in by_key(rows, lambda row: row["stage"]).values():
        medians = statistics.medians_of_others(
            np.array([row["kernel_time_ns"] for row in same], float)
        )
        if len(same) > 1:
            usual |= {row["rank"]: float(ns) for row, ns in zip(same, medians, strict=True)}
    return usual


def is_sure(job: ExaminedJob, row: dict[str, Any]) -> bool:
    """True unless a rank could be late by chance."""
    return row["cause"] != "gpu" or _is_slower(job, row)


def late_together(
    job: ExaminedJob, compared: Comparison
) -> tuple[list[dict[str, Any]], int] | None:
    """Rows of several ranks whose GPUs hold the job up together, and the gain without that.

    None if there are none, or if one of them could be slower by chance.
    """
    if compared.slow_ranks is None:
        return None
    named, gain_ns = compared.slow_ranks
    rows = [row for row in compared.by_gain if row["rank"] in named]
    return (rows, gain_ns) if all(_is_slower(job, row) for row in rows) else None


def _is_slower(job: ExaminedJob, row: dict[str, Any]) -> bool:
    """True if more of a rank's kernels are slower than their counterparts than could be by chance."""
    of_rank = job.trace.rank_rows[row["rank"]]
    kernels = (job.trace.array("kind")[of_rank] == Kind.KERNEL) & job.inside[of_rank]
    deviations = (row["slower_share"] or 0) * 2 - 1
    return bool(deviations * np.sqrt(kernels.sum()) > _SIGMAS)


def _rank(job: ExaminedJob, row: dict[str, Any], usual_ns: float, *, of_stage: bool) -> Finding:
    rank, cause = row["rank"], row["cause"]
    slower = row["kernel_time_ns"] / max(usual_ns, 1) - 1
    others = _others(job, of_stage=of_stage and cause == "gpu")
    late_ms = f"{(row['host_late_ns'] or 0) / 1e6:,.3f}"
    place = _waits_for(job, [rank])
    return Finding(
        _CODES[cause],
        row[GAIN_COLUMNS[cause]] // job.steps,
        str(rank),
        {"gpu": "kernels", "host": "launches"}.get(cause, "delays"),
        place.at_ns,
        place.until_ns,
        LIKELY if cause == "delays" else MODELLED,
        _TEXTS[cause].format(rank=rank, slower=slower, late=late_ms, others=others),
        job.command("stragglers" + " --by operation" * (cause == "gpu"), of_ranks=False)
        + f" --ranks {rank}" * (cause == "gpu"),
    )


def _others(job: ExaminedJob, *, of_stage: bool = False) -> str:
    """The ranks that a late one is compared with."""
    unread = parallelism.is_part(job.trace)
    return "other ranks" + " of its stage" * of_stage + " that were read" * unread


def _several(job: ExaminedJob, rows: list[dict[str, Any]], gain_ns: int) -> Finding:
    members = [row["rank"] for row in rows]
    ranks, place = ranks_text(members), _waits_for(job, members)
    slower = float(np.median([row["slowdown_factor"] for row in rows])) - 1
    return Finding(
        _CODES["gpu"],
        gain_ns // job.steps,
        ranks,
        "kernels",
        place.at_ns,
        place.until_ns,
        MODELLED,
        f"Ranks {ranks} are late together: their kernels take {slower:.1%} longer than those of {_others(job)}.",
        job.command("stragglers") + f" --by operation --ranks {ranks}",
    )


def certainty_of_link(trace: Trace) -> str:
    """Return how sure a slow link is: only likely where sizes of transfers are not known, as longer ones may be larger."""
    has_sizes = trace.known("bytes")[trace.array("kind") == Kind.COMM].any()
    return MODELLED if has_sizes else LIKELY


def _link(job: ExaminedJob, compared: Comparison) -> Iterator[Finding]:
    link = compared.slow_link
    if link is None:
        return
    members = [int(rank) for rank in link["ranks"].split(",")]
    place = _waits_for(job, members)
    longer = link["slowdown_factor"] - 1
    certainty = certainty_of_link(job.trace)
    others = "others of their kind" + (", of unknown size" if certainty == LIKELY else " and size")
    yield Finding(
        "late-rank-link",
        link["gain_ns"] // job.steps,
        ranks_text(members),
        "transfers",
        place.at_ns,
        place.until_ns,
        certainty,
        f"Transfers between ranks {ranks_text(members)} take {longer:.1%} longer than {others}.",
        job.command("stragglers --by link", of_ranks=False),
    )


def _is_longer(job: ExaminedJob, rows: list[dict[str, Any]], own: list[dict[str, Any]]) -> bool:
    """True if a stage's kernels take so much longer than those of others that it is not by chance."""
    others = [row["kernel_time_ns"] for row in rows if row not in own]
    ratio = np.mean([row["kernel_time_ns"] for row in own]) / max(np.median(others or [0]), 1)
    by_chance = not any(_is_slower(job, row) for row in own)
    return bool(ratio >= (_FAR_LONGER_STAGE if by_chance else _LONGER_STAGE))


def _stage(job: ExaminedJob, compared: Comparison, stage: int) -> Finding:
    gain = {part.key: part.gain_ns for part in compared.job.slowdowns.by_stage}
    members = [row["rank"] for row in compared.by_gain if row["stage"] == stage]
    place = _waits_for(job, members)
    return Finding(
        "straggling-stage",
        (gain.get(stage) or 0) // job.steps,
        ranks_text(members),
        f"stage {stage}",
        place.at_ns,
        place.until_ns,
        MODELLED,
        f"Stage {stage} of the pipeline's stages 0-{len(gain) - 1} takes longer than the others, "
        "which wait for it.",
        job.command("stragglers --by stage", of_ranks=False),
    )


def _waits_for(job: ExaminedJob, members: list[int]) -> FindingPlace:
    """The longest wait of communication for one of these ranks."""
    times = collective_times.communication_times(job.trace)
    awaited = np.where(times.waited_for >= 0, times.rank[times.waited_for], -1)
    waits = np.flatnonzero(np.isin(awaited, members) & job.inside[times.row])
    if not waits.size:
        own = np.isin(job.trace.array("rank"), members) & job.inside
        return job.place(own & job.on_gpu)
    longest = waits[np.argmax(times.wait[waits])]
    at = int(times.start[longest])
    return FindingPlace(ranks_text(members), at, at + int(times.wait[longest]))

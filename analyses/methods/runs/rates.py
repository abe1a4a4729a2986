"""Tokens and samples of runs by time, by GPU and by energy, and the best of several runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.efficiency import batches
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    Row = dict[str, Any]

MEASURES = {
    "throughput": (
        ("tokens_per_s_per_gpu", max),
        ("samples_per_s_per_gpu", max),
        ("step_ns", min),
    ),
    "energy": (("j_per_token", min), ("j_per_sample", min), ("energy_per_step_j", min)),
}
"""Rankings of runs and their columns: the column that most runs have, the first of several.

The last of each does not compare runs of different size: it is used if no two runs have the others.
"""
_MIN_RUNS = 2
"""Runs that have a column, from which on they are ranked by it: one alone has no rank."""


def work_done(
    trace: Trace, chosen: Sequence[int], steps: Sequence[int], tokens: int = 0, samples: int = 0
) -> Row:
    """Tokens and samples of steps together, as `efficiency` has them; what is not known is missing.

    Parameters
    ----------
    trace
        The run.
    chosen
        Ranks that count.
    steps
        Steps that count; none of a run without steps.
    tokens, samples
        Of a step of the job; 0 to take them from shapes.
    """
    numbers = list(steps) or [windows.NO_STEP]
    counts = batches.stated_batches(
        batches.step_batches(trace, chosen, numbers), tokens, samples, numbers
    )
    row: Row = {}
    for name, of_step, text in (
        ("tokens", counts.tokens, counts.tokens_from),
        ("samples", counts.samples, counts.samples_from),
    ):
        known = [number for step in numbers if (number := of_step.get(step)) is not None]
        if known and len(known) == len(numbers):
            row |= {name: round(sum(known)), f"{name}_from": text}
    return row


def rates(row: Row) -> Row:
    """Throughput and efficiency over the time that counts; energy is mean power by all of it."""
    time, power, gpus = row.get("window_ns"), row.get("power_w"), row.get("gpus")
    energy = power * time * 1e-9 if power and time else None
    result: Row = {}
    for name in ("token", "sample"):
        count = row.get(f"{name}s")
        if not count or not time:
            continue
        result[f"{name}s_per_s"] = rate = count / time * 1e9
        if gpus:
            result[f"{name}s_per_s_per_gpu"] = rate / gpus
        if energy:
            result[f"j_per_{name}"] = energy / count
        if name == "token" and energy:
            result["tokens_per_s_per_w"] = count / energy
        if name == "sample" and energy:
            result["samples_per_s_per_mj"] = rate / (energy * 1e-6)
    return result


def best(rows: Sequence[Row]) -> dict[str, tuple[str, list[int]]]:
    """Figure by which a best run is known, and its rows; without what cannot be compared.

    Parameters
    ----------
    rows
        Runs, with their `rates`.
    """
    result = {}
    for goal, measures in MEASURES.items():
        *by_work, by_step = measures
        known = {column: _known(rows, column) for column, _ in by_work}
        if max(map(len, known.values())) < _MIN_RUNS and _alike(rows, by_step[0]):
            known[by_step[0]] = _known(rows, by_step[0])
        column = max(known, key=lambda name: len(known[name]))
        if len(known[column]) >= _MIN_RUNS:
            best = dict(measures)[column](known[column].values())
            result[goal] = (column, [i for i, value in known[column].items() if value == best])
    return result


def add_shares(rows: Sequence[Row]) -> None:
    """Put `efficiency_share`, of the best run of the same model, into rows."""
    for model in dict.fromkeys(row.get("model") for row in rows):
        same_model = [row for row in rows if row.get("model") == model]
        candidates = [
            [
                (row, row[f"{name}s_per_s"] / row[f"j_per_{name}"])
                for row in same_model
                if row.get(f"j_per_{name}")
            ]
            for name in ("sample", "token")
        ]
        known = max(candidates, key=len)
        best = max((value for _, value in known), default=0.0)
        for row, value in known:
            row["efficiency_share"] = value / best


def _known(rows: Sequence[Row], column: str) -> dict[int, float]:
    return {i: row[column] for i, row in enumerate(rows) if row.get(column) is not None}


def _alike(rows: Sequence[Row], column: str) -> bool:
    """True if all runs in which the column is known have the same number of GPUs."""
    sizes = {row.get("gpus") or row.get("ranks") for row in rows if row.get(column) is not None}
    return len(sizes) == 1

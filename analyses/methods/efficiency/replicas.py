"""Ranks that hold one copy of a model together, and those of them that see the same data.

They are known by descriptions of process groups (``mesh_tp``, ``TENSOR_MODEL_PARALLEL_GROUP``),
and for stages of pipelines by the sends between them. A rank without either is a copy of its own,
as under data parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.analyses.methods.communication import group_names, stages
from chopper_interop.grouping import by_key

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_AXES = {
    group_names.TENSOR: "tensor",
    group_names.PIPELINE: "stages",
    group_names.CONTEXT: "context",
    group_names.MODEL: "model",
}
"""Axis that groups of a kind divide; those of data, experts and embeddings do not determine which
ranks see the same data."""


@dataclass(frozen=True)
class Replica:
    """Ranks with one copy of the model.

    Parameters
    ----------
    ranks
        All of them, ascending, also those that the trace lacks.
    same_data
        The same ranks, put together where they see the same tokens (tensor parallelism).
    """

    ranks: tuple[int, ...]
    same_data: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class JobLayout:
    """Division of a job among ranks.

    Parameters
    ----------
    replicas
        Copies of the model, of which the trace has some rank.
    context
        Number of ranks that split each sequence of a rank (context parallelism).
    world
        Ranks of the job as far as is known.
    is_stated
        True if the trace has any evidence of model parallelism.
    """

    replicas: tuple[Replica, ...]
    context: dict[int, int]
    world: int
    is_stated: bool


def job_layout(trace: Trace) -> JobLayout:
    """Return the division of a job among its ranks."""
    groups: dict[str, list[tuple[int, ...]]] = {"tensor": [], "model": [], "context": []}
    world = set(trace.ranks)
    for group in trace.groups.to_pylist():
        ranks = tuple(group["ranks"])
        world |= set(ranks)
        axes = _axes(group["description"]) or _axes(group["name"])
        if axes == {"tensor"}:
            groups["tensor"].append(ranks)
        if axes and axes <= {"tensor", "stages", "model"}:
            groups["model"].append(ranks)
        if axes == {"context"}:
            groups["context"].append(ranks)
    exchange = trace.has("peer")  # without, only ranges show pipelines
    lines = [
        tuple(line.ranks)
        for line in stages.find_pipelines(
            trace, stages.first_kernel_starts(trace) if exchange else {}
        )
    ]
    world.update(*lines)  # with neighbours that neither the trace nor a group has
    copies = _connected_ranks(world, groups["model"] + lines)
    same_data = _connected_ranks(world, groups["tensor"])
    present = set(trace.ranks)
    replicas = tuple(
        Replica(copy, tuple(part for part in same_data if part[0] in copy))
        for copy in copies
        if present & set(copy)
    )
    context = {
        rank: len(part) for part in _connected_ranks(world, groups["context"]) for rank in part
    }
    is_stated = any(len(ranks) > 1 for axis in (*groups.values(), lines) for ranks in axis)
    return JobLayout(replicas, context, len(world), is_stated)


def _axes(text: str) -> set[str]:
    """Axes that groups of this description divide; empty if it names none."""
    return {_AXES.get(kind, "data") for kind in group_names.parallelism_kinds(text)}


def _connected_ranks(
    world: Iterable[int], groups: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Ranks put together that any group has in common, each ascending."""
    part_of = {rank: rank for rank in world}
    for group in groups:
        lowest = min((part_of[rank] for rank in group), default=-1)
        joined = {part_of[rank] for rank in group}
        part_of = {rank: lowest if part in joined else part for rank, part in part_of.items()}
    return [tuple(part) for part in by_key(sorted(part_of), part_of.__getitem__).values()]

"""Division of a job among its ranks: copies of the model, stages of pipelines, ranks that see the same data.

It is known by descriptions of process groups (``mesh_tp``, ``TENSOR_MODEL_PARALLEL_GROUP``),
and for stages of pipelines by the sends between them. A rank without either is a copy of its own,
as under data parallelism.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from chopper_interop.analyses.methods.communication import group_names, stages
from chopper_interop.arrays import Array
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
    dp_copies
        Ranks of each copy of the model; those that split sequences are of the same one.
    stage
        Stage of each rank that is of a pipeline, from 0 on.
    world
        Ranks of the job as far as is known.
    is_stated
        True if the trace has any evidence of model parallelism.
    """

    replicas: tuple[Replica, ...]
    context: dict[int, int]
    dp_copies: list[tuple[int, ...]]
    stage: dict[int, int]
    world: int
    is_stated: bool

    def places(self, ranks: Sequence[int]) -> Places:
        """Return the places of ranks; those that split sequences are of one copy."""
        number = {rank: k for k, copy in enumerate(self.dp_copies) for rank in copy}
        _, dp_rank = np.unique([number[rank] for rank in ranks], return_inverse=True)
        return Places(
            dp_rank,
            np.array([self.stage.get(rank, 0) for rank in ranks], np.int64),
        )


@dataclass(frozen=True)
class Places:
    """Place of each of some ranks.

    Parameters
    ----------
    dp_rank
        Number of the copy of the model that it holds a part of.
    stage
        Stage of the pipeline, from 0 on; 0 where there is no pipeline.
    """

    dp_rank: Array
    stage: Array


def job_layout(trace: Trace) -> JobLayout:
    """Return the division of a job among its ranks."""
    groups: dict[str, list[tuple[int, ...]]] = {"tensor": [], "model": [], "context": []}
    splitting: list[tuple[int, ...]] = []
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
        if "context" in axes and axes <= {"tensor", "context"}:
            splitting.append(ranks)
    pipelines = stages.find_pipelines(trace, stages.first_kernel_starts(trace))
    lines = [tuple(line.ranks) for line in pipelines]
    world.update(*lines)  # with neighbours that neither the trace nor a group has
    same_data = {part[0]: part for part in connected_ranks(world, groups["tensor"])}
    present = set(trace.ranks)
    replicas = tuple(
        Replica(copy, tuple(same_data[rank] for rank in copy if rank in same_data))
        for copy in connected_ranks(world, groups["model"] + lines)
        if present & set(copy)
    )
    contexts = connected_ranks(world, groups["context"])
    return JobLayout(
        replicas,
        context={rank: len(part) for part in contexts for rank in part},
        dp_copies=connected_ranks(world, groups["model"] + lines + splitting),
        stage={
            rank: number
            for line in pipelines
            for number, same in enumerate(line.stages)
            for rank in same
        },
        world=len(world),
        is_stated=any(len(ranks) > 1 for axis in (*groups.values(), lines) for ranks in axis),
    )


def _axes(text: str) -> set[str]:
    """Axes that groups of this description divide; empty if it names none."""
    return {_AXES.get(kind, "data") for kind in group_names.parallelism_kinds(text)}


def connected_ranks(
    ranks: Iterable[int], groups: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Ranks put together that any group has in common, each ascending, in the order of their lowest."""
    part_of = {rank: [rank] for rank in ranks}
    for group in groups:
        parts = {id(part): part for rank in group if (part := part_of.get(rank))}
        largest, *others = sorted(parts.values(), key=len, reverse=True) or [[]]
        for part in others:  # the smaller ones move, so that all of it is n log n
            largest += part
            part_of.update(dict.fromkeys(part, largest))
    parts = {id(part): part for part in part_of.values()}
    return sorted(tuple(sorted(part)) for part in parts.values())

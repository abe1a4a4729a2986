"""Which ranks hold one copy of a model together, and which of them see the same data.

Descriptions of process groups tell it (``mesh_tp``, ``TENSOR_MODEL_PARALLEL_GROUP``), and for stages
of pipelines what they send each other. Ranks of which nothing says so are copies of their own, as
under data parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.communication import group_names, stages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.trace import Trace

_AXES = {
    group_names.TENSOR: "tensor",
    group_names.PIPELINE: "stages",
    group_names.CONTEXT: "context",
    group_names.MODEL: "model",
}
"""What groups divide; of data, experts and embeddings nothing follows for who sees which data."""


@dataclass(frozen=True)
class Replica:
    """Ranks with one copy of the model.

    Parameters
    ----------
    ranks
        All of them, ascending, also those that the trace lacks.
    alike
        The same ranks, put together where they see the same tokens (tensor parallelism).
    """

    ranks: tuple[int, ...]
    alike: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Layout:
    """How a job is divided among ranks.

    Parameters
    ----------
    replicas
        Copies of the model, of which the trace has some rank.
    context
        How many ranks share the sequences of a rank.
    world
        Ranks of the job as far as is known.
    is_told
        Whether anything tells of model parallelism.
    """

    replicas: tuple[Replica, ...]
    context: dict[int, int]
    world: int
    is_told: bool


def of(trace: Trace) -> Layout:
    """How a job is divided among its ranks."""
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
    exchange = "peer" in trace.nodes.column_names  # without, only ranges tell of pipelines
    lines = [
        tuple(line.ranks)
        for line in stages.pipelines(trace, stages.began(trace) if exchange else {})
    ]
    copies = _joined(world, groups["model"] + lines)
    alike = _joined(world, groups["tensor"])
    present = set(trace.ranks)
    replicas = tuple(
        Replica(copy, tuple(part for part in alike if part[0] in copy))
        for copy in copies
        if present & set(copy)
    )
    context = {rank: len(part) for part in _joined(world, groups["context"]) for rank in part}
    is_told = any(len(ranks) > 1 for of in (*groups.values(), lines) for ranks in of)
    return Layout(replicas, context, len(world), is_told)


def _axes(text: str) -> set[str]:
    """What groups of this description divide; empty if it does not tell."""
    return {_AXES.get(kind, "data") for kind in group_names.kinds(text)}


def _joined(world: Iterable[int], groups: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Ranks put together that any group has in common, each ascending."""
    of = {rank: rank for rank in world}
    for group in groups:
        lowest = min((of[rank] for rank in group), default=-1)
        joined = {of[rank] for rank in group}
        of = {rank: lowest if part in joined else part for rank, part in of.items()}
    parts: dict[int, list[int]] = {}
    for rank in sorted(of):
        parts.setdefault(of[rank], []).append(rank)
    return [tuple(part) for part in parts.values()]

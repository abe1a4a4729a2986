"""Places of ranks in a job: its copy of the model, and its stage in that copy's pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.analyses.methods.communication import group_names, stages
from chopper_interop.arrays import Array

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


@dataclass(frozen=True)
class Places:
    """Place of each rank of a trace, in the order of its ranks.

    Parameters
    ----------
    dp_rank
        Number of the copy of the model that it holds a part of.
    stage
        Stage of the pipeline, from 0 on; 0 where there is no pipeline.
    """

    dp_rank: Array
    stage: Array


def places(trace: Trace) -> Places:
    """Find the places of a trace's ranks, by their sends and the descriptions of process groups.

    Ranks of one group for tensor, context or expert parallelism within a stage have the same place.
    A rank of no pipeline is a copy of the model by itself, together with such a group.
    """
    ranks = trace.ranks
    index = {rank: k for k, rank in enumerate(ranks)}
    stage = np.zeros(len(ranks), np.int64)
    copy = np.arange(len(ranks))
    lines = stages.find_pipelines(trace, stages.first_kernel_starts(trace))
    for line in lines:
        members = [index[rank] for rank in line.ranks if rank in index]
        for number, same in enumerate(line.stages):
            stage[[index[rank] for rank in same if rank in index]] = number
        copy[np.isin(copy, copy[members])] = copy[members].min()
    for group in trace.groups.to_pylist():
        text = group["description"] or group["name"]
        kinds = set(group_names.parallelism_kinds(text))
        members = [index[rank] for rank in group["ranks"] if rank in index]
        if members and kinds and kinds <= {group_names.TENSOR, group_names.CONTEXT}:
            copy[np.isin(copy, copy[members])] = copy[members].min()
    _, dp_rank = np.unique(copy, return_inverse=True)
    return Places(dp_rank, stage)

"""Kinds of parallelism of process groups, by their names: tensor, pipeline, data, context, expert."""

from __future__ import annotations

import re

TENSOR, PIPELINE, CONTEXT, DATA, EXPERT = "tp", "pp", "cp", "dp", "ep"
REPLICATE, SHARD, MODEL, OTHER = "dp_replicate", "dp_shard", "model", "other"

_WORDS = {
    "tp": TENSOR, "tensor": TENSOR,
    "pp": PIPELINE, "pipe": PIPELINE, "pipeline": PIPELINE,
    "cp": CONTEXT, "context": CONTEXT, "sp": CONTEXT, "sequence": CONTEXT, "ulysses": CONTEXT,
    "ring": CONTEXT,
    "mp": MODEL, "model": MODEL,
    "dp": DATA, "data": DATA, "ddp": DATA, "fsdp": DATA, "hsdp": DATA,
    "replicate": REPLICATE, "shard": SHARD,
    "ep": EXPERT, "expert": EXPERT,
    "etp": OTHER, "embedding": OTHER, "embd": OTHER, "position": OTHER,
}  # fmt: skip
"""Words of names that DeviceMesh of PyTorch (mesh_tp), Megatron Core (TENSOR_MODEL_PARALLEL_GROUP) and
DeepSpeed give groups, and the kind of parallelism of such a group."""
_SIDE_WORDS = frozenset((
    "parallel", "group", "groups", "mesh", "dim", "and", "process", "pg", "world", "comm",
))  # fmt: skip
"""Words of such names that say nothing about the kind."""


def parallelism_kinds(text: str) -> set[str]:
    """Kinds of parallelism of a group of this name; empty if the name does not determine them.

    Several, if the group is for several at once.

    Parameters
    ----------
    text
        Name or description of a group.
    """
    words = [w for w in re.split(r"[^a-z]+", text.lower()) if w and w not in _SIDE_WORDS]
    if any(word not in _WORDS for word in words):
        return set()
    kinds = {_WORDS[word] for word in words}
    if kinds & {REPLICATE, SHARD}:
        kinds.discard(DATA)  # dp_shard
    # TENSOR_MODEL_PARALLEL is tensor parallelism, MODEL_PARALLEL tensors and stages
    return kinds - {MODEL} if len(kinds) > 1 else kinds

"""What process groups divide, by their names: tensors, pipelines, data, contexts, experts."""

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
DeepSpeed give groups, and what such a group divides."""
_SIDE_WORDS = frozenset((
    "parallel", "group", "groups", "mesh", "dim", "and", "process", "pg", "world", "comm",
))  # fmt: skip


def kinds(text: str) -> set[str]:
    """What groups of this name divide, several of groups of several kinds; empty if it does not tell.

    Parameters
    ----------
    text
        Name or description of a group.
    """
    words = [w for w in re.split(r"[^a-z]+", text.lower()) if w and w not in _SIDE_WORDS]
    if any(word not in _WORDS for word in words):
        return set()
    found = {_WORDS[word] for word in words}
    if found & {REPLICATE, SHARD}:
        found.discard(DATA)  # dp_shard
    # TENSOR_MODEL_PARALLEL is tensor parallelism, MODEL_PARALLEL tensors and stages
    return found - {MODEL} if len(found) > 1 else found

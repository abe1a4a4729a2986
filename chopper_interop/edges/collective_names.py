"""Names that frameworks and communication libraries give to collectives."""

from __future__ import annotations

import re

from chopper_interop.schemas.kinds import Collective

COLLECTIVES: dict[str, str] = {
    "allreduce": Collective.ALL_REDUCE,
    "reduce": Collective.REDUCE,
    "allgather": Collective.ALL_GATHER,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "broadcast": Collective.BROADCAST,
    "alltoall": Collective.ALL_TO_ALL,
    "alltoallv": Collective.ALL_TO_ALL,
    "reducescatter": Collective.REDUCE_SCATTER,
    "barrier": Collective.BARRIER,
    "send": Collective.SEND,
    "isend": Collective.SEND,
    "recv": Collective.RECV,
    "irecv": Collective.RECV,
    "recvanysource": Collective.RECV,
    "sendrecv": Collective.SEND_RECV,
}
"""Name without underscores, prefixes and suffixes → canonical name; see `collective_of_name`."""

_SUFFIXES = ("coalesced", "base", "intotensor", "tensor", "single", "oop", "sparse", "manager")
_IN_KERNEL = re.compile(
    r"nccl(?:Sym)?(?:Dev)?k?(?:Kernel)?_?(AllReduce|ReduceScatter|AllGather|Broadcast|Reduce|SendRecv|AllToAll)",
    re.IGNORECASE,
)


def collective_of_name(name: str) -> str | None:
    """Canonical name of the collective that a framework or a kernel names; None if unknown.

    Takes ``record_param_comms`` names (``_allgather_base``, ``all_to_allv``), annotations
    (``nccl:_reduce_scatter_base``) and kernel names (``ncclDevKernel_AllReduce_Sum_f32_RING``).
    """
    in_kernel = _IN_KERNEL.search(name)
    if in_kernel:
        name = in_kernel.group(1)
    plain = name.lower().rsplit(":", 1)[-1].replace("_", "").replace(" ", "")
    while plain not in COLLECTIVES:
        shorter = next((plain[: -len(e)] for e in _SUFFIXES if plain.endswith(e)), None)
        if not shorter:
            return None
        plain = shorter
    return COLLECTIVES[plain]


def collective_of_kernel(name: str) -> str | None:
    """Canonical name of the collective of an NCCL or RCCL kernel; None if its name does not say."""
    return collective_of_name(name) if _IN_KERNEL.search(name) else None

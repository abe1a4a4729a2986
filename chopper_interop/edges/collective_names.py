"""Names of communication: collectives of frameworks and kernels, and kernels of libraries."""

from __future__ import annotations

import re
from functools import lru_cache

from chopper_interop.schemas.communication import (
    KERNELS,
    LOCAL,
    LOOKS_LIKE,
    NAMED,
    OPERATORS,
    KernelNames,
)
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
    r"(reduce_?scatter|all_?reduce|all_?gather|all_?to_?all|send_?recv|broadcast"
    r"|(?<=kernel_)reduce|(?<=nccl)reduce)",
    re.IGNORECASE,
)
_LONGEST = 256
"""Characters of a name that are searched. Chosen: own names come before template arguments."""
_OWN_NAME = re.compile(rf"_Z.{{0,98}}|[^<(]{{0,{_LONGEST}}}")
_NO_NAME = re.compile(r"(?:\(anonymous namespace\)|<unnamed>)::|^void\s+")
_ANGLES = re.compile("[<>]")
_KNOWN = re.compile(
    r"(?<![A-Za-z_])(?:"
    + "|".join(f"(?P<k{i}>{row.pattern})" for i, row in enumerate(KERNELS))
    + ")"
)
_LOCAL, _LOOKS_LIKE, _OPERATOR = map(re.compile, (LOCAL, LOOKS_LIKE, OPERATORS))


def collective_of_name(name: str) -> str | None:
    """Canonical name of the collective that a framework names; None if unknown.

    Takes ``record_param_comms`` names (``_allgather_base``, ``all_to_allv``) and annotations
    (``nccl:_reduce_scatter_base``).
    """
    plain = name.lower().rsplit(":", 1)[-1].replace("_", "").replace(" ", "")
    while plain not in COLLECTIVES:
        shorter = next((plain[: -len(e)] for e in _SUFFIXES if plain.endswith(e)), None)
        if not shorter:
            return None
        plain = shorter
    return COLLECTIVES[plain]


def own_name(name: str) -> str:
    """A kernel's name without template arguments and parameters; of a mangled one 100 characters.

    It is short, so that patterns that backtrack take no time on names of any length.
    """
    own = _OWN_NAME.match(_without_scoped_arguments(_NO_NAME.sub("", name)))
    return own.group() if own else ""


def _without_scoped_arguments(name: str) -> str:
    """Return a name without template arguments of its scope and result: ``a<b>::c`` is ``a::c``."""
    parts: list[str] = []
    depth = begin = end = 0
    for angle in _ANGLES.finditer(name):
        if angle.group() == "<":
            depth += 1
            begin = angle.start() if depth == 1 else begin
        elif depth:
            depth -= 1
            if not depth and name.startswith(("::", " "), angle.end()):
                parts.append(name[end:begin])
                end = angle.end()
    return "".join(parts) + name[end:]


@lru_cache(maxsize=1 << 16)
def library_of_kernel(name: str) -> KernelNames | None:
    """The row of `KERNELS` that a kernel's name is of; None if it is of no library that is known."""
    match = _KNOWN.search(own_name(name))
    return KERNELS[int(str(match.lastgroup)[1:])] if match else None


def communicates(name: str) -> bool:
    """True if a kernel of this name is one of a library for communication."""
    return library_of_kernel(name) is not None


def looks_like_communication(name: str) -> bool:
    """True if a kernel of no library that is known may communicate, by its name."""
    own = own_name(name)
    return _LOOKS_LIKE.search(own) is not None and _LOCAL.search(own) is None


def is_collective_operator(name: str) -> bool:
    """True if the kernels that an operator or annotation of this name launches communicate."""
    return _OPERATOR.match(name) is not None


def collective_of_kernel(name: str) -> str | None:
    """Canonical name of the collective of a kernel that communicates; None if its name does not say."""
    library = library_of_kernel(name)
    if library is not None and library.collective != NAMED:
        return library.collective
    in_kernel = _IN_KERNEL.search(own_name(name))
    return COLLECTIVES[in_kernel.group().lower().replace("_", "")] if in_kernel else None

"""Recognise GPU work that is communication: by kernel names, the operators around launches, and the user.

Readers recognise kernels of the libraries in `schemas.communication` by their names alone. What the
operators around launches say, and names that the user adds, come here, for traces of all formats.
Each distinct name is looked at once; user's patterns are matched in linear time (RE2).

Names are collectives of frameworks and kernels, and kernels of libraries.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache, partial
from pathlib import Path

import numpy as np
import pyarrow as pa

from chopper_interop import rank_batches
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.communication import (
    KERNELS,
    LOCAL,
    LOOKS_LIKE,
    NAMED,
    OPERATORS,
    KernelNames,
)
from chopper_interop.schemas.kinds import RANGES, Collective, Kind
from chopper_interop.trace import Trace

UNKNOWN = Fault.info(
    "communication-unknown",
    "Kernels that look like communication, but of no library that is known, count as compute; "
    "`-O comm=REGEX` counts those whose names match as communication.",
)
COMPUTES = Fault.info(
    "communication-computes",
    "Kernels that communicate and compute (a norm, a quantization) count as communication.",
)
# Kernels that an issue names, and characters of each. Chosen: a few lines hold them.
_EXAMPLES = 3
_NAME_LENGTH = 80
COLLECTIVES: dict[str, str] = {
    "allreduce": Collective.ALL_REDUCE,
    "reduce": Collective.REDUCE,
    "allgather": Collective.ALL_GATHER,
    "gather": Collective.GATHER,
    "scatter": Collective.SCATTER,
    "broadcast": Collective.BROADCAST,
    "alltoall": Collective.ALL_TO_ALL,
    "alltoallv": Collective.ALL_TO_ALL,
    "all2all": Collective.ALL_TO_ALL,
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
    r"(reduce_?scatter|all_?reduce|all_?gather|all_?(?:to|2)_?all|send_?recv|broadcast"
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


def user_pattern(text: str | None) -> str | None:
    """Pattern of names that the user calls communication: a regular expression, or a file of them.

    Parameters
    ----------
    text
        A regular expression in RE2's syntax, or a path of a file with one in each line; lines that
        begin with ``#`` are comments.

    Raises
    ------
    UsageError
        A regular expression is not valid, or the file has none.
    """
    if text is None:
        return None
    lines = [text]
    if os.path.isfile(text):  # noqa: PTH113 - a long pattern is no path, and no error
        try:
            lines = Path(text).read_text(encoding="utf-8-sig").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"option comm={text}: it cannot be read as text: {error}") from error
    patterns = [line for line in map(str.strip, lines) if line and not line.startswith("#")]
    if not patterns:
        raise UsageError(f"option comm={text}: there is no pattern")
    import pyarrow.compute as pc

    joined = "|".join(f"(?:{pattern})" for pattern in patterns)
    try:
        pc.match_substring_regex(pa.array([""]), joined)
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"option comm={text}: {reason}") from error
    return joined


def recognise(trace: Trace, pattern: str | None = None) -> Trace:
    """Return the trace with further kernels as communication, by operators and by a pattern.

    Parameters
    ----------
    trace
        A trace with its launches.
    pattern
        Names of kernels that are communication whatever launched them; see `user_pattern`.
    """
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    chosen = _under_operators(trace, kernels)
    if pattern is not None:
        import pyarrow.compute as pc

        names = trace.names()
        matches = pc.match_substring_regex(arrow.texts(names), pattern)
        chosen |= arrow.to_numpy(matches).astype(bool)[trace.array("name")[kernels]]
    if not chosen.any():
        return trace
    kind = trace.array("kind").copy()
    kind[kernels[chosen]] = Kind.COMM
    return trace.with_columns(kind=kind)


def note_names(trace: Trace, issues: IssueLog) -> None:
    """Note kernels that may communicate and count as compute, and those that do both.

    Issues that a trace that was read back has already are not added again.
    """
    known = {issue.code for issue in trace.meta.issues}
    name = trace.array("name")
    for fault, of_kind, concerns in (
        (UNKNOWN, Kind.KERNEL, looks_like_communication),
        (COMPUTES, Kind.COMM, _computes),
    ):
        rows = rank_batches.rows_where(trace, "kind", partial(np.equal, of_kind))
        used, names = gather.unique_codes(name[rows]), trace.names()
        named = [n for n in used.tolist() if concerns(names[n])]
        rows = rows[np.isin(name[rows], named)]
        if rows.size and fault.code not in known:
            issues.add(fault, len(rows), _longest(trace, rows))


def _computes(name: str) -> bool:
    library = library_of_kernel(name)
    return library is not None and library.computes


def _longest(trace: Trace, rows: Array) -> str:
    """Names with number and time, those of the longest total time."""
    names, (of_name, code) = (
        trace.names(),
        np.unique(trace.array("name")[rows], return_inverse=True),
    )
    count = np.bincount(code)
    total_ns = np.bincount(code, trace.array("dur")[rows])
    first = np.argsort(-total_ns, kind="stable")[:_EXAMPLES]
    parts = [
        f"{names[of_name[i]][:_NAME_LENGTH]} ({count[i]:,}, {total_ns[i] / 1e6:,.3f} ms)"
        for i in first.tolist()
    ]
    more = len(of_name) - len(parts)
    return "; ".join([*parts, *([f"{more} other names"] if more else [])])


def _under_operators(trace: Trace, kernels: Array) -> Array:
    """Mark kernels that an operator of a collective launched itself.

    It did if the innermost operator or annotation around the launch is one. Of an operator that
    launched a kernel of a known library, the other kernels only prepare or check its data.
    """
    chosen = np.zeros(len(kernels), np.bool_)
    names = [is_collective_operator(n) for n in trace.names()]
    if not any(names) or not kernels.size:
        return chosen
    kind, parent = trace.array("kind"), trace.array("parent")
    is_around = is_any(kind, RANGES)
    is_operator = is_around & np.array(names)[trace.array("name")]
    known = np.flatnonzero(kind == Kind.COMM)
    rows = np.concatenate([kernels, known])
    around = gather.nearest_ancestor(trace.launch[rows], parent, is_around)
    outermost = np.where((around >= 0) & is_operator[around], around, -1)
    while True:
        above = np.where(outermost >= 0, parent[outermost], -1)
        further = gather.nearest_ancestor(above, parent, is_around)
        rises = (further >= 0) & is_operator[further]
        if not rises.any():
            break
        outermost[rises] = further[rises]
    of_kernel, of_known = outermost[: len(kernels)], outermost[len(kernels) :]
    return (of_kernel >= 0) & ~gather.among(of_kernel, of_known[of_known >= 0])


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


def polled_kernels(trace: Trace, chosen: Array) -> Array:
    """Rows of launched kernels of the mask `chosen` that write to memory what hosts may poll for."""
    kernel = np.flatnonzero(chosen & (trace.array("kind") == Kind.COMM) & (trace.launch >= 0))
    name = trace.array("name")[kernel]
    names = trace.names()
    known = [(n, library_of_kernel(names[n])) for n in gather.unique(name)]
    return kernel[np.isin(name, [n for n, library in known if library and library.polled])]


def looks_like_communication(name: str) -> bool:
    """True if a kernel of no library that is known may communicate, by its name."""
    own = own_name(name)
    return _LOOKS_LIKE.search(own) is not None and _LOCAL.search(own) is None


@lru_cache(maxsize=1 << 16)
def is_collective_operator(name: str) -> bool:
    """True if the kernels that an operator or annotation of this name launches communicate."""
    return _OPERATOR.match(name) is not None


@lru_cache(maxsize=1 << 16)
def collective_of_kernel(name: str) -> str | None:
    """Canonical name of the collective of a kernel that communicates; None if its name does not say."""
    library = library_of_kernel(name)
    if library is not None and library.collective != NAMED:
        return library.collective
    in_kernel = _IN_KERNEL.search(own_name(name))
    return COLLECTIVES[in_kernel.group().lower().replace("_", "")] if in_kernel else None

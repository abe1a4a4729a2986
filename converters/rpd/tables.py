"""Content of an rpd database: its tables, and the meaning of the texts in them.

Format: rocmProfileData's ``rocpd_python/rocpd/schema_data/tableSchema.cmd``, schemas 2 and 3, and
``rpd_tracer/*DataSource.cpp``.
"""

from __future__ import annotations

import re

from chopper_interop.converters.rocm.tables import TableFormat
from chopper_interop.schemas.kinds import Kind

CALLS = ("rocpd_api", "rocpd_hsaApi")
"""Tables of calls; HSA has its own where it was recorded."""
MARKER = "UserMarker"
"""Name of the calls that are ranges by roctx or rlog, whose text is their argument."""

KINDS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"hip|cuda"), Kind.RUNTIME),
    (re.compile(r"hsa_|cu[A-Z]"), Kind.DRIVER),
    (re.compile(r"\w+Table::|rpdflush|hcc_activity_callback|run_to_completion"), Kind.OVERHEAD),
)
"""Prefix of a call's name → kind of node; others are calls of a library."""
OPERATOR = re.compile(r"\w+::\w")
"""Prefix of the texts of markers that PyTorch sets around its operators."""
OPERATOR_FACTS = ", (?:seq|op_id|sizes|input_op_ids) = "
"""Beginning of the further facts that PyTorch adds behind an operator's name, and a separator (RE2)."""
SEPARATOR = ", "
"""Separator between an operator's name and the facts."""

OPERATIONS: tuple[tuple[re.Pattern[str], Kind], ...] = (
    (re.compile(r"(?:Mem)?cop?y|memcpy", re.IGNORECASE), Kind.MEMCPY),
    (re.compile(r"fill|(?:mem)?set", re.IGNORECASE), Kind.MEMSET),
    (re.compile(r"barrier|marker|sync|wait", re.IGNORECASE), Kind.GPU_SYNC),
)
"""Prefix of an operation's type → kind of node; others are kernels."""

UNITS: dict[str, str] = {
    "sclk": "MHz", "mclk": "MHz", "fclk": "MHz", "socclk": "MHz", "power": "W", "temp": "°C",
    "gfx": "%", "mem": "%",
}  # fmt: skip
"""Monitored quantity → unit."""

CALL = TableFormat(
    "rpd_api",
    frozenset(),
    args=(
        *((c, (c,)) for c in ("domain", "category", "text", "stream", "kernel")),
        ("grid", ("grid_x", "grid_y", "grid_z")),
        ("workgroup", ("workgroup_x", "workgroup_y", "workgroup_z")),
        *((c, (c,)) for c in ("size", "copy_kind")),
    ),
)
OPERATION = TableFormat(
    "rpd_op",
    frozenset(),
    args=(
        *((c, (c,)) for c in ("type", "queue", "sequence", "stream")),
        ("grid", ("grid_x", "grid_y", "grid_z")),
        ("workgroup", ("workgroup_x", "workgroup_y", "workgroup_z")),
        ("group_segment_bytes", ("group_segment",)),
        ("scratch_bytes", ("scratch",)),
    ),
)


def kind_of_call(name: str) -> Kind:
    """Kind of a call that is no marker."""
    return next((kind for begin, kind in KINDS if begin.match(name)), Kind.API)


def kind_of_operation(name: str) -> Kind:
    """Kind of an operation on a GPU by its type."""
    return next((kind for begin, kind in OPERATIONS if begin.match(name)), Kind.KERNEL)

"""Values of nodes that feeders read: values of attributes, process groups, ends of messages."""

from __future__ import annotations

import re

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.chakra.decode import REAL_FIELDS, TEXT_FIELDS, EtFile
from chopper_interop.schemas.chakra import CommType, NodeType

JOINED = (CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL)
TIMED = (CommType.BROADCAST,)
P2P = (NodeType.COMM_SEND, NodeType.COMM_RECV)
_NUMBER = re.compile(r"\s*\+?0*([0-9]+)")
"""Number without leading zeros, as keys of the file of groups have it."""


def integers(et: EtFile, attribute: str, missing: int) -> Array:
    """Attribute of each node that is neither a float nor a text; `missing` where it has none.

    Lists, which feeders refuse, count as there, unlike in `values.integers`.
    """
    values = np.full(len(et.id), missing, np.int64)
    nodes, fields, stored = et.attribute(attribute)
    present = ~np.isin(fields, REAL_FIELDS + TEXT_FIELDS)
    values[nodes[present]] = stored[present]
    return values


def group_names(et: EtFile, rows: Array) -> list[str]:
    """Names of the nodes' process groups as ASTRA-sim reads them; "" for that of all ranks, which files may call "0"."""
    codes, texts = et.texts("pg_name")
    plain = ["" if text == "0" else _as_read(text) for text in texts]
    return [plain[code] if code >= 0 else "" for code in codes[rows].tolist()]


def _as_read(name: str) -> str:
    """Return the number that a name begins with, as std::stoi reads no further: 3 of ``3.0``; the name if there is none."""
    number = _NUMBER.match(name)
    return number[1] if number else name


def p2p_ends(et: EtFile, rank: int) -> tuple[Array, Array, Array]:
    """Source, destination and tag of sends and receives; -1 where not recorded.

    A send without a source is the rank's own, and so is a receive without a destination.
    """
    src, dst = (
        np.where(et.type == default_type, integers(et, name, rank), integers(et, name, -1))
        for name, default_type in (
            ("comm_src", NodeType.COMM_SEND),
            ("comm_dst", NodeType.COMM_RECV),
        )
    )
    return src, dst, integers(et, "comm_tag", -1)

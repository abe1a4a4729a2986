"""Dependencies among the nodes of an ET, without those that dangle or go in circles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.converters.chakra_decode import EtFile

DANGLING = Fault(
    "et-dependency-dangling",
    Severity.LOSS,
    "Dependencies on nodes that are not in the file were left out.",
)
CIRCULAR = Fault(
    "et-dependency-circular",
    Severity.LOSS,
    "Dependencies that go in circles were left out.",
)
ID_TWICE = Fault(
    "et-id-twice",
    Severity.ERROR,
    "Nodes with an id that an earlier node has: who depends on it depends on the first here, and "
    "on the last in simulators.",
)


def edges(et: EtFile, keep: Array, issues: IssueLog) -> tuple[Array, Array]:
    """Dependencies among the kept nodes, by their places there; no circles."""
    ids = np.concatenate([et.data, et.ctrl])
    rows = np.arange(len(et.id))
    dst = np.concatenate(
        [np.repeat(rows, np.diff(et.data_first)), np.repeat(rows, np.diff(et.ctrl_first))]
    )
    order = np.argsort(et.id, kind="stable")
    issues.add(ID_TWICE, _again(et, keep))
    at = np.minimum(np.searchsorted(et.id[order], ids), max(len(order) - 1, 0))
    exists = et.id[order][at] == ids if len(order) else np.zeros(0, bool)
    place = np.full(len(et.id), -1, np.int64)
    place[keep] = np.arange(len(keep))
    src, dst = place[order[at][exists]], place[dst[exists]]
    issues.add(DANGLING, np.count_nonzero(~exists))
    inside = (src >= 0) & (dst >= 0)
    src, dst = src[inside], dst[inside]
    pairs = np.unique(src * max(len(keep), 1) + dst)
    src, dst = pairs // max(len(keep), 1), pairs % max(len(keep), 1)
    stuck = _stuck(src, dst, len(keep)) & _stuck(dst, src, len(keep))
    circular = (src >= dst) & (stuck[src] & stuck[dst])  # what is left points forward
    issues.add(CIRCULAR, np.count_nonzero(circular))
    return src[~circular], dst[~circular]


def _stuck(src: Array, dst: Array, n: int) -> Array:
    """Nodes on circles, and those behind."""
    return gather.unreached(*gather.lists(src, dst, n))


def _again(et: EtFile, keep: Array) -> int:
    """How many nodes have the id of another before them."""
    return len(keep) - len(np.unique(et.id[keep]))

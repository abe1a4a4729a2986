"""Types of operations, and the duration that all operations of a type ideally have.

A type is what a program does again and again, such as the forward pass of a microbatch: the name of
the operation without trailing numbers. Where the same name stands for operations of different size, as
one kernel for several layers, the n-th of a training step is compared with the n-th of others alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from chopper_interop.analyses.methods.activity import counterparts
from chopper_interop.arrays import Array, gather
from chopper_interop.schemas.kinds import POINT_TO_POINT, Kind
from chopper_interop.trace import Trace

_TRAILING_NUMBERS = re.compile(r"(?<![\s_:#./\d-])[\s_:#./\d-]*\d$")
_BY_POSITION_SHARE = 0.5
"""Share of the variance of durations from which the position in the step explains it: then durations
are compared by position. Chosen: sizes that differ explain nearly all, stragglers nearly nothing."""
_RESOLUTION_NS = 1_000
"""Durations below this count as equal. Chosen: the resolution of old profilers."""


@dataclass(frozen=True)
class OperationTypes:
    """Type of each of some nodes.

    Parameters
    ----------
    code
        Number of the type; sends and receives of one message are of one type.
    labels
        Name of each type.
    group
        Number of the group of nodes whose ideal duration is the same.
    """

    code: Array
    labels: tuple[str, ...]
    group: Array


def operation_types(trace: Trace, rows: Array, duration: Array) -> OperationTypes:
    """Types of GPU work of training steps.

    Parameters
    ----------
    rows
        Nodes.
    duration
        Time of each without what it waits for, nanoseconds.
    """
    name, names = _stems(trace.array("name")[rows], trace.names())
    operation, operations = _stems(*trace.texts("operation", rows))
    is_comm = trace.array("kind")[rows] == Kind.COMM
    size = np.where(is_comm, trace.integers("bytes", rows), -1)
    _, same = gather.distinct(operation, name, size)
    node, first, of_node = np.unique(rows, return_index=True, return_inverse=True)
    _, rank_step = gather.distinct(trace.array("rank")[node], trace.integers("iteration", node))
    position = counterparts.occurrences(same[first], rank_step)[of_node]
    split = _position_share(np.log(np.maximum(duration, _RESOLUTION_NS)), same, position)
    by_position = split[same] >= _BY_POSITION_SHARE
    _, group = gather.distinct(same, np.where(by_position, position, -1))
    label = np.where(operation >= 0, operation, len(operations) + name)
    code, labels = _with_both_ends(trace, rows, label, [*operations, *names])
    return OperationTypes(code, labels, group)


def ideal_durations(trace: Trace, rows: Array, duration: Array, group: Array) -> Array:
    """Ideal duration of each node: the mean of its group, for communication the median.

    Parameters
    ----------
    rows, duration, group
        Nodes, their times and groups, as of `operation_types`.
    """
    size = int(group.max(initial=-1)) + 1
    count = np.maximum(np.bincount(group, minlength=size), 1)
    mean = np.rint(gather.group_sums(group, duration, size) / count).astype(np.int64)
    median, _ = counterparts.group_medians(duration, group, between=True)
    return np.where(trace.array("kind")[rows] == Kind.COMM, median, mean[group])


def _stems(code: Array, texts: Sequence[str]) -> tuple[Array, list[str]]:
    """Codes of texts without trailing numbers, and these texts; -1 stays."""
    numbers: dict[str, int] = {}
    stem = [
        numbers.setdefault(_TRAILING_NUMBERS.sub("", text) or text, len(numbers)) for text in texts
    ]
    return np.array([*stem, -1], np.int64)[code], list(numbers)


def _position_share(values: Array, same: Array, position: Array) -> Array:
    """Share of the variance of each kind's values that their positions explain.

    It is adjusted for the number of positions (epsilon squared), so that it is 0 on average where
    positions explain nothing.
    """
    kinds = int(same.max(initial=-1)) + 1
    first, cell = gather.distinct(same, position)
    members = np.bincount(cell)
    count = np.bincount(same, minlength=kinds)
    mean = np.bincount(same, values, kinds) / np.maximum(count, 1)
    cell_mean = np.bincount(cell, values) / members
    total = np.bincount(same, (values - mean[same]) ** 2, kinds)
    within = np.bincount(same, (values - cell_mean[cell]) ** 2, kinds)
    positions = np.bincount(same[first], minlength=kinds)
    free = count - positions
    adjusted = within / np.maximum(free, 1) * np.maximum(count - 1, 1)
    share = 1 - adjusted / np.where(total > 0, total, np.inf)
    return np.where((free > 0) & (total > 0), share, 0.0)


def _with_both_ends(
    trace: Trace, rows: Array, label: Array, texts: list[str]
) -> tuple[Array, tuple[str, ...]]:
    """Give sends and receives of one message one type, named after both."""
    ends = trace.is_text("collective", POINT_TO_POINT, rows)
    instance = trace.integers("instance", rows)
    ends = np.flatnonzero(ends & (instance >= 0))
    joined = np.arange(len(texts))
    if ends.size:
        first, message = gather.distinct(instance[ends])
        lead = label[ends][first][message]
        pair, _ = gather.distinct(lead, label[ends])
        for a, b in zip(lead[pair].tolist(), label[ends][pair].tolist(), strict=True):
            joined[joined == max(joined[a], joined[b])] = min(joined[a], joined[b])
    used, code = np.unique(joined[label], return_inverse=True)
    present = set(np.unique(label).tolist())
    labels = [
        "+".join(sorted({texts[k] for k in np.flatnonzero(joined == number) if k in present}))
        for number in used
    ]
    return code, tuple(labels)

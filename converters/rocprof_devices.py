"""On which device the rows of rocprofv3's tables ran."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.converters.rocprof_agents import (
    AGENT_COLUMNS,
    UNKNOWN,
    Numbering,
    device_of,
)
from chopper_interop.converters.rocprof_lanes import ANY_DIRECTION, directions
from chopper_interop.converters.rocprof_tables import (
    ALLOCATIONS,
    COPIES,
    COUNTERS,
    DIRECTIONS,
    KERNELS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.rocprof_agents import Agent
    from chopper_interop.converters.rocprof_rows import Rows

_FROM_DEVICE = [direction.startswith("device") for _, direction in DIRECTIONS]
_TO_DEVICE = [direction.endswith("device") for _, direction in DIRECTIONS]


def numbering(tables: Sequence[Rows], agents: Sequence[Agent]) -> Numbering:
    """How a recording numbers its devices.

    Parameters
    ----------
    tables
        All its tables.
    agents
        What is known of the agents; may be empty.
    """
    texts = [text for rows in tables for name in AGENT_COLUMNS for text in rows.codes(name)[1]]
    used = [
        np.unique(_numbers(rows, "agent")) for rows in tables if rows.form in (KERNELS, COUNTERS)
    ]
    found = np.concatenate([*used, np.empty(0, np.int64)])
    return Numbering(agents, texts, [int(n) for n in found])


def devices(tables: Sequence[Rows], told: Numbering) -> list[Array]:
    """Device of each row of each table; -1 on the host and where it is not told."""
    return [_devices(rows, told) for rows in tables]


def _devices(rows: Rows, told: Numbering) -> Array:
    if rows.form is COPIES:
        return _of_copies(rows, told)
    device = _on_gpu(_numbers(rows, "agent"), told)
    return _of_releases(rows, device) if rows.form is ALLOCATIONS else device


def _numbers(rows: Rows, column: str) -> Array:
    codes, texts = rows.codes(column)
    return np.array([*(device_of(text) for text in texts), UNKNOWN], np.int64)[codes]


def _on_gpu(number: Array, told: Numbering) -> Array:
    """Numbers of GPUs as they are, those of CPUs as unknown."""
    distinct, code = np.unique(number, return_inverse=True)
    found = [UNKNOWN if told.is_host(int(n)) else int(n) for n in distinct]
    return np.array([*found, UNKNOWN], np.int64)[code]


def _of_copies(rows: Rows, told: Numbering) -> Array:
    """The GPU at the one end, or that which is read where both ends are GPUs."""
    direction = directions(rows)
    source, target = (_numbers(rows, f"{end}_agent") for end in ("source", "destination"))
    free = direction == ANY_DIRECTION
    from_device = np.array([*_FROM_DEVICE, False])[direction]
    to_device = np.array([*_TO_DEVICE, False])[direction]
    source = np.where(from_device, source, np.where(free, _on_gpu(source, told), UNKNOWN))
    target = np.where(to_device, target, np.where(free, _on_gpu(target, told), UNKNOWN))
    return np.where(source >= 0, source, target)


def _of_releases(rows: Rows, device: Array) -> Array:
    """Releases do not tell their device: it is where their address was last allocated."""
    address, _ = rows.codes("address")
    codes, agents = rows.codes("agent")
    told = np.array([*(any(c.isdecimal() for c in a) for a in agents), False])[codes]
    order = np.lexsort((rows.number("start", 0), address))
    begins = np.diff(address[order], prepend=-2) != 0
    place = np.arange(rows.count)
    last = np.maximum.accumulate(np.where(told[order], place, -1))
    block = np.maximum.accumulate(np.where(begins, place, 0))
    known = (last >= block) & (address[order] >= 0)
    found = device.copy()
    found[order] = np.where(known, device[order][np.maximum(last, 0)], device[order])
    return found

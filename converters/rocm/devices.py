"""Device of each row of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.rocm.agents import (
    AGENT_COLUMNS,
    UNKNOWN,
    Agent,
    DeviceNumbering,
    device_number,
)
from chopper_interop.converters.rocm.lanes import ANY_DIRECTION, copy_directions
from chopper_interop.converters.rocm.tables import (
    ALLOCATIONS,
    COPIES,
    COUNTERS,
    DIRECTIONS,
    KERNELS,
)

if TYPE_CHECKING:
    from chopper_interop.converters.rocm.rows import TableRows

_FROM_DEVICE = [direction.startswith("device") for _, direction in DIRECTIONS]
_TO_DEVICE = [direction.endswith("device") for _, direction in DIRECTIONS]


def device_numbering(tables: Sequence[TableRows], agents: Sequence[Agent]) -> DeviceNumbering:
    """Determine how a recording numbers its devices.

    Parameters
    ----------
    tables
        All its tables.
    agents
        The known agents; may be empty.
    """
    texts = [text for rows in tables for name in AGENT_COLUMNS for text in rows.codes(name)[1]]
    used = [
        np.unique(_agent_numbers(rows, "agent"))
        for rows in tables
        if rows.form in (KERNELS, COUNTERS)
    ]
    numbers = np.concatenate([*used, np.empty(0, np.int64)])
    return DeviceNumbering(agents, texts, [int(n) for n in numbers])


def row_devices(tables: Sequence[TableRows], numbering: DeviceNumbering) -> list[Array]:
    """Return the device of each row of each table; -1 on the host and where it is unknown."""
    return [_row_devices(rows, numbering) for rows in tables]


def _row_devices(rows: TableRows, numbering: DeviceNumbering) -> Array:
    if rows.form is COPIES:
        return _copy_devices(rows, numbering)
    device = _without_cpus(_agent_numbers(rows, "agent"), numbering)
    return _release_devices(rows, device) if rows.form is ALLOCATIONS else device


def _agent_numbers(rows: TableRows, column: str) -> Array:
    return rows.per_text(column, device_number, UNKNOWN).astype(np.int64, copy=False)


def _without_cpus(numbers: Array, numbering: DeviceNumbering) -> Array:
    """Replace the numbers of CPUs by `UNKNOWN`."""
    distinct, code = np.unique(numbers, return_inverse=True)
    gpus = [UNKNOWN if numbering.is_host(int(n)) else int(n) for n in distinct]
    return np.array([*gpus, UNKNOWN], np.int64)[code]


def _copy_devices(rows: TableRows, numbering: DeviceNumbering) -> Array:
    """Return the GPU of each copy: the source, where both ends are GPUs."""
    direction = copy_directions(rows)
    source, target = (_agent_numbers(rows, f"{end}_agent") for end in ("source", "destination"))
    undirected = direction == ANY_DIRECTION
    from_device = np.array([*_FROM_DEVICE, False])[direction]
    to_device = np.array([*_TO_DEVICE, False])[direction]
    source_gpu = np.where(undirected, _without_cpus(source, numbering), UNKNOWN)
    target_gpu = np.where(undirected, _without_cpus(target, numbering), UNKNOWN)
    source = np.where(from_device, source, source_gpu)
    target = np.where(to_device, target, target_gpu)
    return np.where(source >= 0, source, target)


def _release_devices(rows: TableRows, device: Array) -> Array:
    """Return devices of allocations; a release has that on which its address was last allocated.

    Rows are sorted by address and start. Within the rows of an address, the running maximum of the
    indices of rows with an agent is the last allocation before each release.
    """
    address, _ = rows.codes("address")
    has_agent = rows.per_text("agent", lambda agent: any(c.isdecimal() for c in agent), False)
    order = np.lexsort((rows.number("start", 0), address))
    is_first = np.diff(address[order], prepend=-2) != 0
    index = np.arange(rows.count)
    last_allocation = np.maximum.accumulate(np.where(has_agent[order], index, -1))
    first_of_address = np.maximum.accumulate(np.where(is_first, index, 0))
    known = (last_allocation >= first_of_address) & (address[order] >= 0)
    allocated_on = device[order][np.maximum(last_allocation, 0)]
    result = device.copy()
    result[order] = np.where(known, allocated_on, device[order])
    return result

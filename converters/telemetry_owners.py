"""Which device each row of a table is of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.converters.telemetry_table import Identity

LARGEST_INDEX = 1 << 16
"""No machine has as many GPUs."""


@dataclass(frozen=True)
class Owners:
    """Which device each row is of.

    Parameters
    ----------
    device
        Its number; -1 for what is no GPU.
    suffix
        What to add to names of lanes, by row.
    devices
        All of them.
    """

    device: Array
    suffix: list[str]
    devices: tuple[Device, ...]


def owners_of(identities: Sequence[Identity], source: str) -> Owners:
    """Devices of rows.

    A device has the tool's own index where every row tells it and no two GPUs share one; else
    they are numbered in the order of their PCI addresses, as the tool does, or of appearance.
    """
    distinct = list(dict.fromkeys(identities))
    whole = [i for i in distinct if not i.entity]
    index = [_index(i.number) for i in whole]
    if any(n < 0 for n in index) or len(set(index)) < len(index):
        known = all(i.pci for i in whole)
        order = sorted(whole, key=lambda i: i.pci) if known else whole
        number = {i: n for n, i in enumerate(order)}
    else:
        number = dict(zip(whole, index, strict=True))
    devices = [
        Device("", number[i], i.name, source, index=_index(i.number), pci=i.pci, uuid=i.uuid)
        for i in sorted(whole, key=lambda i: number[i])
    ]
    of = {i: number.get(i, -1) for i in distinct}
    return Owners(
        np.array([of[i] for i in identities], np.int64),
        [f" {i.entity}" if i.entity else "" for i in identities],
        tuple(devices),
    )


def _index(text: str) -> int:
    good = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_INDEX))
    return int(text) if good and int(text) < LARGEST_INDEX else -1

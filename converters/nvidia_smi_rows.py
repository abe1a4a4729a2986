"""Rows of telemetry of NVIDIA's tools: cells as they were written, and the series made of them.

Every form (CSV, ``dmon``, ``-q``, ``-x``, dcgmi) is read into a `Table`; from there all is one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chopper_interop import arrow
from chopper_interop.converters import amd_smi_lanes, amd_smi_values
from chopper_interop.converters import nvidia_smi_faults as faults
from chopper_interop.converters import nvidia_smi_tables as tables
from chopper_interop.converters.amd_smi_cells import Cell, Column, Item
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import numpy.typing as npt

    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.amd_smi_tables import Name
    from chopper_interop.issues import Fault, IssueLog

    Array = npt.NDArray[Any]

LARGEST_INDEX = 1 << 16
"""No machine has as many GPUs."""
_ABSENT = frozenset({"", "-", "n/a", "[n/a]", "not supported", "[not supported]", "not available"})
_NUMBER = re.compile(r"([-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?)\s*([^\d\s.,:;/][^\s,:;]*)?", re.ASCII)
_HEX = re.compile(r"0[xX]([0-9a-fA-F]{1,16})")
_LETTER = re.compile(r"(?:[xXP](\d+)|(\d+)x)", re.ASCII)
"""Performance state ``P8``, width ``x16`` or ``16x``."""
_PCI = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-9a-fA-F])")


class Identity(NamedTuple):
    """What a row says of its GPU; empty where it does not.

    Parameters
    ----------
    number
        Index by the tool, as it is written.
    uuid, pci, name
        Its other names.
    entity
        What it is instead of a whole GPU: ``GPU-I 3``, ``CPU 0``.
    """

    number: str = ""
    uuid: str = ""
    pci: str = ""
    name: str = ""
    entity: str = ""

    @property
    def told(self) -> bool:
        """Whether it tells GPUs apart: their models do not."""
        return bool(self.number or self.uuid or self.pci or self.entity)


@dataclass
class Table:
    """Rows of a file, in its order.

    Parameters
    ----------
    stamp
        When each was taken, as it is written; empty if it does not say.
    gpu
        Whose it is.
    columns
        Rows and texts by key and unit.
    events
        Rows of the file, those included that could not be read.
    facts
        What the file says of the whole.
    """

    issues: IssueLog
    stamp: list[str] = field(default_factory=list)
    gpu: list[Identity] = field(default_factory=list)
    columns: dict[tuple[str, str], tuple[list[int], list[str]]] = field(default_factory=dict)
    events: int = 0
    facts: dict[str, str] = field(default_factory=dict)

    def add(self, stamp: str, gpu: Identity, cells: Iterable[tuple[tuple[str, str], str]]) -> None:
        """Add a row: its cells by key and unit of their column."""
        row = len(self.stamp)
        self.events += 1
        self.stamp.append(stamp)
        self.gpu.append(gpu)
        for key, text in cells:
            rows, texts = self.columns.setdefault(key, ([], []))
            rows.append(row)
            texts.append(text)

    def lose(self, fault: Fault, example: str = "", count: int = 1) -> None:
        """Count rows that could not be read."""
        self.events += count
        self.issues.add(fault, count, example[:80])

    def without_last_number(self, row: int) -> bool:
        """Take the last cell of a row away if it may lack digits; whether it did."""
        for rows, texts in reversed(self.columns.values()):
            if rows and rows[-1] == row:
                if not texts[-1].strip()[-1:].isalnum() or texts[-1].strip()[-1:].isalpha():
                    return False
                rows.pop()
                texts.pop()
                return True
        return False


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


def pci_address(text: str) -> str:
    """A PCI address as ``0000:c1:00.0``; empty if it is none."""
    found = _PCI.fullmatch(text.strip())
    if not found:
        return ""
    domain, bus, device, function = found.groups()
    short = f"{int(domain or '0', 16):04x}"
    return f"{short}:{bus}:{device}.{function}".lower()


def _index(text: str) -> int:
    good = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_INDEX))
    return int(text) if good and int(text) < LARGEST_INDEX else -1


@dataclass(frozen=True)
class Timed:
    """Rows that have a time.

    Parameters
    ----------
    row
        Their numbers in the table.
    time
        Nanoseconds on the trace's clock.
    uncertainty_ns
        How far these may be off.
    """

    row: Array
    time: Array
    uncertainty_ns: int


def emit(
    builder: TraceBuilder,
    table: Table,
    owners: Owners,
    timed: Timed,
    source: str,
    meaning: Callable[[str], Name | None],
) -> Counter[str]:
    """Make series and samples of the rows that have a time; how many of each name."""
    new = np.full(len(table.stamp), -1, np.int64)
    new[timed.row] = np.arange(len(timed.row))
    found: list[amd_smi_values.Reading] = []
    for column in _columns(table, new):
        name = meaning(column.key) or tables.unknown(column.key)
        found += amd_smi_values.readings(column, name, len(timed.row), table.issues)
    lanes = amd_smi_lanes.Lanes(
        builder, _groups(owners, timed), source, timed.uncertainty_ns, table.issues
    )
    lanes.add(amd_smi_lanes.ordered(with_preferred(found, tables.PREFERRED)))
    return lanes.samples


def with_preferred(
    readings: list[amd_smi_values.Reading], preferred: Mapping[str, Sequence[str]]
) -> list[amd_smi_values.Reading]:
    """Readings of which the best for a lane has its name."""
    there = {r.full for r in readings}
    chosen = {
        best: lane
        for lane, order in preferred.items()
        if lane not in there
        for best in [name for name in order if name in there][:1]
    }
    return [_renamed(r, chosen[r.full]) if r.full in chosen else r for r in readings]


def _renamed(reading: amd_smi_values.Reading, name: str) -> amd_smi_values.Reading:
    return replace(reading, full=name, name=replace(reading.name, base=name, full=name))


def _groups(owners: Owners, timed: Timed) -> list[amd_smi_lanes.Group]:
    keys = [(int(owners.device[r]), owners.suffix[r]) for r in timed.row.tolist()]
    number: dict[tuple[int, str], int] = {}
    which = np.array([number.setdefault(key, len(number)) for key in keys], np.int64)
    order = np.lexsort((timed.time, which))
    begins = np.flatnonzero(np.diff(which[order])) + 1
    parts = np.split(order, begins) if len(order) else []
    groups = [
        amd_smi_lanes.Group(gpu=keys[p[0]][0], suffix=keys[p[0]][1], row=p, time=timed.time[p])
        for p in parts
    ]
    return sorted(groups, key=lambda g: (g.gpu < 0, g.gpu, g.suffix))


def _columns(table: Table, new: Array) -> list[Column]:
    """Columns of the rows that are kept; a mask of reasons also as one column for each of them."""
    single = any(tables.SINGLE_REASON.fullmatch(key) for key, _ in table.columns)
    found = []
    for (key, unit), (rows, texts) in table.columns.items():
        row = new[np.array(rows, np.int64)]
        keep = row >= 0
        encoded = arrow.texts(texts).dictionary_encode()
        code = arrow.numbers(encoded)[keep]
        if not len(code):
            continue
        distinct = encoded.dictionary.to_pylist()
        uses = np.bincount(code, minlength=len(distinct))
        for text in (t for t, n in zip(distinct, uses, strict=True) if n and _is_error(t)):
            table.issues.add(faults.VALUE_ERROR, uses[distinct.index(text)], f"{key}: {text}"[:80])
        cells = [Cell((item_of(text, unit),)) for text in distinct]
        column = Column(key, row[keep], code, cells)
        found.append(column)
        if not single and tables.ACTIVE_REASONS.fullmatch(key):
            found += _bits(column)
    return found


def _bits(mask: Column) -> list[Column]:
    """One column for each bit that is set anywhere."""
    values = [_mask(cell.items[0]) for cell in mask.distinct]
    return [
        replace(
            mask,
            key=tables.reason_key(bit),
            distinct=[Cell((Item("N/A" if v is None else int(bool(v & bit))),)) for v in values],
        )
        for bit in tables.REASONS
        if any(v is not None and v & bit for v in values)
    ]


def _mask(item: Item) -> int | None:
    return item.value if isinstance(item.value, int) else None


def _is_error(text: str) -> bool:
    text = text.strip()
    return text.startswith("[") and text.endswith("]") and text.lower() not in _ABSENT


def item_of(text: str, unit: str = "") -> Item:
    """What a cell says, in a unit that the tables know.

    Parameters
    ----------
    text
        The cell.
    unit
        Unit of its column, for a cell without one.
    """
    text = text.strip()
    if text.lower() in _ABSENT or _is_error(text):
        return Item("N/A")
    if found := _HEX.fullmatch(text):
        return Item(int(found[1], 16))
    if found := _LETTER.fullmatch(text):
        return Item(found[1] or found[2])
    found = _NUMBER.fullmatch(text)
    if not found:
        return Item(text)
    number, own = found[1], found[2] or unit
    if own in tables.UNITS:
        own, factor = tables.UNITS[own]
        return Item(float(number) * factor, own)
    return Item(number, own)

"""What the GPUs of a trace can do: units, clocks, rates, bandwidth, power, and what tells it.

The one way to find a device's facts. The user's file goes first for each field that it states, as
who gives one wants it to count; then what a source tells of the device itself (HSA agents, then
telemetry), then the product that its name stands for (`schemas.gpus`). Architecture and units of
a user's row only tell which devices it is of: a partition keeps its own count.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.columns import gather
from chopper_interop.columns.members import is_any
from chopper_interop.errors import UsageError
from chopper_interop.gpus import own as own_gpus
from chopper_interop.gpus.devices import of_host
from chopper_interop.schemas.gpus import ONE_DIE, WAVES_PER_SIMD, Gpu, gpu, known
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import Device

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

DEVICE = "device"
"""What tells a figure that a source has of the device itself."""
TELEMETRY, ALIKE = "telemetry", "telemetry, which tells the same of all GPUs"
"""What tells a clock that telemetry has: of the device, or of a node's GPUs without telling apart."""
_HIGHEST = "gfx clock max"
"""How series begin that tell the highest clock: of the device, or of each of its dies."""
_FACT = "max_engine_clk_mhz"
"""The fact that tells it of GPUs that a management tool describes; its name is plain if all agree."""
_MOST_MHZ = 10_000.0
_OF_DEVICE = {
    "arch": "arch", "cus": "cus", "xccs": "xccs", "simds_per_cu": "simds_per_cu",
    "boost_mhz": "max_mhz",
}  # fmt: skip
"""Facts that sources tell of devices: here → field of `Device` and `Gpu`."""
_OF_PRODUCT = {
    "waves_per_simd": "waves_per_simd", "peak_mhz": "peak_mhz", "bandwidth_gbs": "bandwidth_gbs",
    "power_w": "power_w",
}  # fmt: skip


@dataclass(frozen=True)
class Rated:
    """A GPU of the trace; what nothing tells is None.

    Parameters
    ----------
    name
        As a source has it.
    product
        What it is by name.
    own
        The user's row for it.
    arch
        Architecture as compilers name it; may be empty.
    cus, xccs, simds_per_cu, waves_per_simd
        Units, dies, SIMDs of a unit, waves of a SIMD.
    boost_mhz
        Highest clock.
    peak_mhz
        The clock at which the maker states rates.
    bandwidth_gbs
        Of its memory, 1e9 byte/s; of a partition that of the whole, which it cannot exceed.
    power_w
        Of the board at most; of a partition or a die of a module that of the whole.
    told
        What tells each of these by name: "device", "product MI300X", or the user's file.
    part
        Share of the product's units that it has, as a partition.
    """

    name: str = ""
    product: Gpu | None = None
    own: Gpu | None = None
    arch: str = ""
    cus: int | None = None
    xccs: int | None = None
    simds_per_cu: int | None = None
    waves_per_simd: int | None = None
    boost_mhz: float | None = None
    peak_mhz: float | None = None
    bandwidth_gbs: float | None = None
    power_w: float | None = None
    told: dict[str, str] = field(default_factory=dict)
    part: float = 1.0

    def flop_per_cycle(self, kind: str, *, vector: bool = False) -> int | None:
        """Operations a cycle of one unit's matrix cores (or vector units) by type, dense.

        Parameters
        ----------
        kind
            f16, bf16, f8, xf32, tf32, f32, f64, i8, as in `schemas.gpus`.
        vector
            Of the vector units rather than of the matrix cores.
        """
        name = "vector_flop_per_cycle" if vector else "flop_per_cycle"
        for row in (self.own, self.product):
            if row is not None and getattr(row, name).get(kind):
                return int(getattr(row, name)[kind])
        return None

    def peak_flop_per_s(self, kind: str, *, vector: bool = False) -> float | None:
        """Rate of the whole device at its highest clock, FLOP/s."""
        rate = self.flop_per_cycle(kind, vector=vector)
        if rate is None or self.cus is None or self.boost_mhz is None:
            return None
        return rate * self.cus * self.boost_mhz * 1e6

    def achievable(self, kind: str) -> tuple[float, int] | None:
        """What the maker says can be had of the matrix cores, TFLOP/s, and at how many MHz.

        Of a partition, in proportion to its units.
        """
        for row in (self.own, self.product):
            if row is not None and kind in row.achievable:
                tflops, mhz = row.achievable[kind]
                return tflops * (self.part if row is self.product else 1.0), mhz
        return None


def of(trace: Trace, gpus: str = "") -> dict[tuple[int, int], Rated]:
    """What the GPUs can do, by rank and number of the device as the trace has it.

    Parameters
    ----------
    trace
        Any trace.
    gpus
        The user's file of GPUs (`gpus.own`); empty if there is none.

    Returns
    -------
    dict
        One entry for each rank and device with GPU work.

    Raises
    ------
    UsageError
        The user's file cannot be opened, or is of none of the trace's GPUs.
    ReadError
        It says something that cannot be.
    """
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    found, _ = of_nodes(trace, work, gpus)
    return found


def of_nodes(
    trace: Trace, node: Array, gpus: str = ""
) -> tuple[dict[tuple[int, int], Rated], Array]:
    """What the GPUs of some nodes can do, in order of rank and device, and which each is on.

    Parameters
    ----------
    trace
        Any trace.
    node
        Rows of nodes.
    gpus
        The user's file of GPUs.

    Returns
    -------
    found, which
        Of each rank and device, and for each node which of these it is.
    """
    rows, highest, described = own_gpus.read(gpus), highest_clocks(trace), _Described(trace)
    device = trace.array("device", "lanes")[trace.array("lane")[node]]
    first, which = gather.distinct(trace.array("rank")[node], device)
    keys = zip(trace.array("rank")[node][first].tolist(), device[first].tolist(), strict=True)
    found = {}
    for rank, number in keys:
        told = described.of(rank, number) or Device("", number)
        clock = highest.get((rank, number)) or highest.get((-1, -1))
        found[rank, number] = rate(told, rows, gpus, clock)
    if found and not any(one.own for one in found.values()):
        unnamed = [Device("", -1)] * any(not one.name for one in found.values())
        check([*trace.meta.devices, *unnamed], rows, gpus)
    return found, which


def bandwidths(trace: Trace, node: Array, gpus: str = "") -> Array:
    """Peak bandwidth of the memory of each node's GPU, 1e9 byte/s; not a number where unknown.

    Parameters
    ----------
    trace, node, gpus
        As of `of_nodes`.
    """
    found, which = of_nodes(trace, node, gpus)
    return np.array([one.bandwidth_gbs or np.nan for one in found.values()], np.float64)[which]


def check(devices: Iterable[Device], rows: tuple[Gpu, ...], path: str) -> None:
    """Raise if a user's file is of none of some devices.

    Parameters
    ----------
    devices
        What sources tell of them.
    rows
        The user's GPUs; nothing is checked if there are none.
    path
        The file that they are from.

    Raises
    ------
    UsageError
        No row fits any of them.
    """
    devices = list(devices)
    if not rows or any(gpu(d.name, d.arch, d.cus, rows) for d in devices):
        return
    told = {(d.name, d.cus): _called(d) for d in sorted(devices, key=lambda d: d.arch)}
    names = sorted(set(told.values())) or ["not described"]
    raise UsageError(
        f"gpus: no row fits a GPU of the trace, which are {', '.join(names)}",
        path=path,
        hint='name = words of such a name, or "*" for every GPU; arch and cus, if given, must agree',
    )


def _called(device: Device) -> str:
    """A device's name, and what else tells whether a row is of it."""
    if not device.name and not device.arch:
        return "without a name"
    units = f"{device.cus} units" if device.cus > 0 else ""
    if not device.name:
        return " ".join(filter(None, (device.arch, units)))
    beside = ", ".join(filter(None, (device.arch, units)))
    return f"{device.name!r}" + (f" ({beside})" if beside else "")


class _Described:
    """What a trace tells of the devices of ranks, each the first of its number and host."""

    def __init__(self, trace: Trace) -> None:
        self._hosts = {r.rank: r.host for r in trace.meta.ranks}
        self._by_host: dict[int, dict[str, Device]] = {}
        for device in trace.meta.devices:
            self._by_host.setdefault(device.device, {}).setdefault(device.host, device)

    def of(self, rank: int, number: int) -> Device | None:
        """That of a rank by its number; None if nothing is told of it."""
        host, same = self._hosts.get(rank, ""), self._by_host.get(number, {})
        may_be = (same.get(host), same.get("")) if host else same.values()
        return next(iter(of_host(filter(None, may_be), host)), None)


def highest_clocks(trace: Trace) -> dict[tuple[int, int], tuple[float, str]]:
    """Highest clocks in MHz that telemetry tells, and how, by rank and device.

    Under (-1, -1) is that of GPUs that are not told apart, if it is the same of all of them.
    """
    series = trace.series.to_pylist()
    wanted = [
        n for n, s in enumerate(series) if s["name"].startswith(_HIGHEST) and s["unit"] == "MHz"
    ]
    owner, value = trace.array("series", "samples"), trace.array("value", "samples")
    of_place: dict[tuple[int, int], float] = {}
    for n in wanted:
        values = value[np.searchsorted(owner, n) : np.searchsorted(owner, n, "right")]
        values = values[(values > 0) & (values < _MOST_MHZ)]
        if len(values):
            place = (series[n]["rank"], series[n]["device"])
            of_place[place] = max(of_place.get(place, 0.0), float(values.max()))
    found = {place: (mhz, TELEMETRY) for place, mhz in of_place.items() if place[0] >= 0}
    alike = set(of_place.values()) or _of_fact(trace.meta.facts.get(_FACT, ""))
    if len(alike) == 1:
        found[-1, -1] = (alike.pop(), ALIKE)
    return found


def _of_fact(text: str) -> set[float]:
    """A clock as a source tells it of all its GPUs at once; none if it is no such number."""
    mhz = float(text) if re.fullmatch(r"\d{1,4}(\.\d+)?", text) else 0.0
    return {mhz} if mhz > 0 else set()


def rate(
    device: Device,
    rows: tuple[Gpu, ...] = (),
    path: str = "",
    clock: tuple[float, str] | None = None,
) -> Rated:
    """What a device can do.

    Parameters
    ----------
    device
        What sources tell of it.
    rows
        The user's GPUs.
    path
        The file that they are from.
    clock
        Highest clock that telemetry tells in MHz, and how.
    """
    product = gpu(device.name, device.arch, device.cus)
    own = gpu(device.name, device.arch, device.cus, rows) if rows else None
    named = known(device.name, device.arch, device.cus)  # in what its products agree
    by_name = f"product {product.name}" if product else f"name {device.name or device.arch}"
    facts: dict[str, Any] = {}
    told: dict[str, str] = {}

    def take(fact: str, value: Any, by: str) -> None:
        if fact not in facts and value not in (None, "", -1, 0):
            facts[fact], told[fact] = value, by

    for fact, name in _stated(device, own).items():
        take(fact, getattr(own, name), path)
    for fact, name in _OF_DEVICE.items():
        take(fact, getattr(device, name), DEVICE)
    if clock:
        take("boost_mhz", *clock)
    for fact, name in (_OF_DEVICE | _OF_PRODUCT).items():
        take(fact, getattr(own, name, None), path)
    take("peak_mhz", getattr(own, "max_mhz", None), path)
    part = _part(device, named)
    take("xccs", _dies(device, named, part), by_name)
    for fact, name in (_OF_DEVICE | _OF_PRODUCT).items():
        if fact != "xccs":
            take(fact, named.get(name, getattr(product, name, None)), by_name)
    take("peak_mhz", named.get("max_mhz"), by_name)
    take("waves_per_simd", WAVES_PER_SIMD.get(facts.get("arch", "")), "architecture")
    return Rated(device.name, product, own, told=told, part=part, **facts)


def _stated(device: Device, own: Gpu | None) -> dict[str, str]:
    """What goes before all else if the user's row states it: not what a partition has less of."""
    if own is None:
        return {}
    less = {"arch", "cus"} | ({"xccs"} if 0 < device.cus < own.cus else set())
    return {fact: name for fact, name in (_OF_DEVICE | _OF_PRODUCT).items() if fact not in less}


def _dies(device: Device, named: dict[str, Any], part: float) -> int | None:
    """How many accelerator complex dies a device has, by its name."""
    if ONE_DIE.fullmatch(device.arch or named.get("arch", "")):
        return 1
    dies = named.get("xccs", 0) * part
    return int(dies) if dies == int(dies) else None


def _part(device: Device, named: dict[str, Any]) -> float:
    """Share of its product's units that a device has."""
    whole = named.get("cus", 0)
    return device.cus / whole if device.cus > 0 and whole else 1.0

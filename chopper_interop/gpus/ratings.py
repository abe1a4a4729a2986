"""Ratings of the GPUs of a trace: units, clocks, rates, bandwidth, power, each with its source.

The one way to look up a device's facts. The user's file takes precedence for each field that it
states; then comes what a source states of the device itself (HSA agents, then telemetry), then the
product that its name stands for (`schemas.gpus`). Architecture and units of a user's row only select
the devices that it applies to: a partition keeps its own count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from chopper_interop.arrays import Array, gather
from chopper_interop.arrays.gather import is_any
from chopper_interop.errors import UsageError
from chopper_interop.gpus import user_gpus as own_gpus
from chopper_interop.gpus.devices import devices_on_host
from chopper_interop.schemas.gpus import (
    SINGLE_DIE_ARCHS,
    WAVES_PER_SIMD,
    Gpu,
    common_facts,
    find_gpu,
)
from chopper_interop.schemas.kinds import GPU_WORK
from chopper_interop.schemas.meta import Device
from chopper_interop.trace import Trace

DEVICE = "device"
"""Source of a figure that is stated of the device itself."""
TELEMETRY, TELEMETRY_OF_ALL = "telemetry", "telemetry, the same for all GPUs"
"""Sources of a clock from telemetry: of the device, or of all GPUs where it does not distinguish."""
_MAX_CLOCK_SERIES = "gfx clock max"
"""Beginning of series of the highest clock: of the device, or of each of its dies."""
_MAX_CLOCK_FACT = "max_engine_clk_mhz"
"""Fact with the highest clock of GPUs that a management tool describes, where all agree."""
_MAX_MHZ = 10_000.0
"""No GPU clocks higher: such a value is a default or an error."""
_OF_DEVICE = {
    "arch": "arch", "cus": "cus", "xccs": "xccs", "simds_per_cu": "simds_per_cu",
    "boost_mhz": "max_mhz",
}  # fmt: skip
"""Facts that sources state of devices: here → field of `Device` and `Gpu`."""
_OF_PRODUCT = {
    "waves_per_simd": "waves_per_simd", "peak_mhz": "peak_mhz", "bandwidth_gbs": "bandwidth_gbs",
    "power_w": "power_w",
}  # fmt: skip


@dataclass(frozen=True)
class GpuRating:
    """Ratings of a GPU of the trace; None where no source states it.

    Parameters
    ----------
    name
        As a source has it.
    product
        Product by its name.
    user_row
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
        Of its memory, 1e9 byte/s; of a partition that of the full GPU, which it cannot exceed.
    power_w
        Highest power of the board; of a partition or a die of a module that of the full board.
    sources
        Source of each of these by name: "device", "product MI300X", or the user's file.
    part
        Share of the product's units that it has, as a partition.
    """

    name: str = ""
    product: Gpu | None = None
    user_row: Gpu | None = None
    arch: str = ""
    cus: int | None = None
    xccs: int | None = None
    simds_per_cu: int | None = None
    waves_per_simd: int | None = None
    boost_mhz: float | None = None
    peak_mhz: float | None = None
    bandwidth_gbs: float | None = None
    power_w: float | None = None
    sources: dict[str, str] = field(default_factory=dict)
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
        for row in (self.user_row, self.product):
            if row is not None and getattr(row, name).get(kind):
                return int(getattr(row, name)[kind])
        return None

    def peak_flop_per_s(self, kind: str) -> float | None:
        """Rate of the matrix cores of all units of the device at its highest clock, FLOP/s."""
        rate = self.flop_per_cycle(kind)
        if rate is None or self.cus is None or self.boost_mhz is None:
            return None
        return rate * self.cus * self.boost_mhz * 1e6

    def achievable(self, kind: str) -> tuple[float, int] | None:
        """Rate of the matrix cores that the maker reports as achievable, TFLOP/s, and at how many MHz.

        Of a partition, in proportion to its units.
        """
        for row in (self.user_row, self.product):
            if row is not None and kind in row.achievable:
                tflops, mhz = row.achievable[kind]
                return tflops * (self.part if row is self.product else 1.0), mhz
        return None


def rate_gpus(trace: Trace, gpus: str = "") -> dict[tuple[int, int], GpuRating]:
    """Rate the GPUs of a trace, by rank and number of the device.

    Parameters
    ----------
    gpus
        Path of the user's file of GPUs (`gpus.own`); empty if there is none.

    Returns
    -------
    dict
        One entry for each rank and device with GPU work.

    Raises
    ------
    UsageError
        The user's file cannot be opened, or no row fits a GPU of the trace.
    ReadError
        The user's file has an impossible value.
    """
    work = np.flatnonzero(is_any(trace.array("kind"), GPU_WORK))
    ratings, _ = rate_gpus_of_nodes(trace, work, gpus)
    return ratings


def rate_gpus_of_nodes(
    trace: Trace, node: Array, gpus: str = "", devices: DevicesOfRanks | None = None
) -> tuple[dict[tuple[int, int], GpuRating], Array]:
    """Rate the GPUs that some nodes ran on.

    Parameters
    ----------
    node
        Rows of nodes.
    gpus
        Path of the user's file of GPUs.
    devices
        Devices of the job, made once where a rank is rated at a time; those of the trace if None.

    Returns
    -------
    ratings, which
        Rating for each rank and device, and for each node the position of its GPU among these.
    """
    rows, highest = own_gpus.read_gpus(gpus), highest_clocks(trace)
    devices = devices or DevicesOfRanks(trace)
    device = trace.array("device", "lanes")[trace.array("lane")[node]]
    first, which = gather.distinct(trace.array("rank")[node], device)
    keys = zip(trace.array("rank")[node][first].tolist(), device[first].tolist(), strict=True)
    ratings = {}
    for rank, number in keys:
        described = devices.find(rank, number) or Device("", number)
        clock = highest.get((rank, number)) or highest.get((-1, -1))
        ratings[rank, number] = rate_device(described, rows, gpus, clock)
    if rows and ratings and not any(rating.user_row for rating in ratings.values()):
        unnamed = [Device("", -1)] * any(not rating.name for rating in ratings.values())
        refuse_unused_rows([*trace.meta.devices, *unnamed], rows, gpus)
    return ratings, which


def bandwidths(
    trace: Trace, node: Array, gpus: str = "", devices: DevicesOfRanks | None = None
) -> Array:
    """Peak bandwidth of the memory of each node's GPU, 1e9 byte/s; not a number where unknown.

    Parameters
    ----------
    trace, node, gpus, devices
        As of `rate_gpus_of_nodes`.
    """
    ratings, which = rate_gpus_of_nodes(trace, node, gpus, devices)
    bandwidth = [rating.bandwidth_gbs or np.nan for rating in ratings.values()]
    return np.array(bandwidth, np.float64)[which]


def refuse_unused_rows(devices: Iterable[Device], rows: tuple[Gpu, ...], path: str) -> None:
    """Raise if no row of the user's file applies to any of some devices.

    Parameters
    ----------
    devices
        Devices as sources describe them.
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
    if not rows or any(find_gpu(d.name, d.arch, d.cus, rows) for d in devices):
        return
    described = {(d.name, d.cus): _description(d) for d in sorted(devices, key=lambda d: d.arch)}
    names = sorted(set(described.values())) or ["not described"]
    raise UsageError(
        f"gpus: no row fits a GPU of the trace, which are {', '.join(names)}",
        path=path,
        hint='name = words of such a name, or "*" for every GPU; arch and cus, if given, must agree',
    )


def _description(device: Device) -> str:
    """A device's name, architecture and units, by which rows apply to it."""
    if not device.name and not device.arch:
        return "without a name"
    units = f"{device.cus} units" if device.cus > 0 else ""
    if not device.name:
        return " ".join(filter(None, (device.arch, units)))
    details = ", ".join(filter(None, (device.arch, units)))
    return f"{device.name!r}" + (f" ({details})" if details else "")


class DevicesOfRanks:
    """Devices of ranks as a trace describes them: for each number and host the first."""

    def __init__(self, trace: Trace) -> None:
        self._hosts = {r.rank: r.host for r in trace.meta.ranks}
        self._by_host: dict[int, dict[str, Device]] = {}
        for device in trace.meta.devices:
            self._by_host.setdefault(device.device, {}).setdefault(device.host, device)

    def find(self, rank: int, number: int) -> Device | None:
        """Device of a rank by its number; None if the trace does not describe it."""
        host, by_host = self._hosts.get(rank, ""), self._by_host.get(number, {})
        candidates = (by_host.get(host), by_host.get("")) if host else by_host.values()
        return next(iter(devices_on_host(filter(None, candidates), host)), None)


def highest_clocks(trace: Trace) -> dict[tuple[int, int], tuple[float, str]]:
    """Highest clocks in MHz that telemetry reports, with their source, by rank and device.

    Under (-1, -1) is that of GPUs that are not distinguished, if it is the same for all of them.
    """
    series = trace.series.to_pylist()
    rows = [
        n
        for n, s in enumerate(series)
        if s["name"].startswith(_MAX_CLOCK_SERIES) and s["unit"] == "MHz"
    ]
    owner, value = trace.array("series", "samples"), trace.array("value", "samples")
    mhz_of: dict[tuple[int, int], float] = {}
    for n in rows:
        values = value[np.searchsorted(owner, n) : np.searchsorted(owner, n, "right")]
        values = values[(values > 0) & (values < _MAX_MHZ)]
        if len(values):
            gpu_key = (series[n]["rank"], series[n]["device"])
            mhz_of[gpu_key] = max(mhz_of.get(gpu_key, 0.0), float(values.max()))
    clocks = {key: (mhz, TELEMETRY) for key, mhz in mhz_of.items() if key[0] >= 0}
    distinct = set(mhz_of.values()) or _clock_of_fact(trace.meta.facts.get(_MAX_CLOCK_FACT, ""))
    if len(distinct) == 1:
        clocks[-1, -1] = (distinct.pop(), TELEMETRY_OF_ALL)
    return clocks


def _clock_of_fact(text: str) -> set[float]:
    """The clock that a source states once for all its GPUs; empty if the text is no clock."""
    mhz = float(text) if re.fullmatch(r"\d{1,4}(\.\d+)?", text) else 0.0
    return {mhz} if mhz > 0 else set()


def rate_device(
    device: Device,
    rows: tuple[Gpu, ...] = (),
    path: str = "",
    clock: tuple[float, str] | None = None,
) -> GpuRating:
    """Rate a device.

    Parameters
    ----------
    device
        Device as sources describe it.
    rows
        The user's GPUs.
    path
        The file that they are from.
    clock
        Highest clock that telemetry reports in MHz, and its source.
    """
    product = find_gpu(device.name, device.arch, device.cus)
    user_row = find_gpu(device.name, device.arch, device.cus, rows) if rows else None
    # on which all of that name agree
    by_products = common_facts(device.name, device.arch, device.cus)
    by_name = f"product {product.name}" if product else f"name {device.name or device.arch}"
    facts: dict[str, Any] = {}
    sources: dict[str, str] = {}

    def set_if_missing(fact: str, value: Any, source: str) -> None:
        if fact not in facts and value not in (None, "", -1, 0):
            facts[fact], sources[fact] = value, source

    for fact, name in _overriding_facts(device, user_row).items():
        set_if_missing(fact, getattr(user_row, name), path)
    for fact, name in _OF_DEVICE.items():
        set_if_missing(fact, getattr(device, name), DEVICE)
    if clock:
        set_if_missing("boost_mhz", *clock)
    for fact, name in (_OF_DEVICE | _OF_PRODUCT).items():
        set_if_missing(fact, getattr(user_row, name, None), path)
    set_if_missing("peak_mhz", getattr(user_row, "max_mhz", None), path)
    part = _part(device, by_products)
    set_if_missing("xccs", _dies(device, by_products, part), by_name)
    for fact, name in (_OF_DEVICE | _OF_PRODUCT).items():
        if fact != "xccs":
            set_if_missing(fact, by_products.get(name, getattr(product, name, None)), by_name)
    set_if_missing("peak_mhz", by_products.get("max_mhz"), by_name)
    set_if_missing("waves_per_simd", WAVES_PER_SIMD.get(facts.get("arch", "")), "architecture")
    return GpuRating(device.name, product, user_row, sources=sources, part=part, **facts)


def _overriding_facts(device: Device, user_row: Gpu | None) -> dict[str, str]:
    """Facts in which the user's row takes precedence: all but those of which a partition has less."""
    if user_row is None:
        return {}
    fewer = {"arch", "cus"} | ({"xccs"} if 0 < device.cus < user_row.cus else set())
    return {fact: name for fact, name in (_OF_DEVICE | _OF_PRODUCT).items() if fact not in fewer}


def _dies(device: Device, by_products: dict[str, Any], part: float) -> int | None:
    """Number of accelerator complex dies of a device, by its name; None if that is no whole one."""
    if SINGLE_DIE_ARCHS.fullmatch(device.arch or by_products.get("arch", "")):
        return 1
    dies = by_products.get("xccs", 0) * part
    return int(dies) if dies == int(dies) else None


def _part(device: Device, by_products: dict[str, Any]) -> float:
    """Share of its product's units that a device has."""
    all_units = by_products.get("cus", 0)
    return device.cus / all_units if device.cus > 0 and all_units else 1.0

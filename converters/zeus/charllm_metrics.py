"""Names of the files of CharLLM-PPT's fork of Zeus, and the names of their lanes.

Every file is one metric of one rank: ``gpu_power_3.csv``, or with a prefix of the user's
``run1_gpu_power_3.csv``. Metrics of the node are written by the first rank on it; if the node has
several devices of the kind, with the device: ``system_ib_rx_bytes_rank_0_id_ib2.csv``.
Source: dad5f278, ``zeus/monitor/power.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum


class How(Enum):
    """Ways in which values become samples."""

    GAUGE = "every value is a sample"
    WRAPPING = "32 bits of a counter, which begins again at 0"
    COUNTER = "a whole counter"
    SUM = "the values of one moment are parts of one"
    STEADY = "the first, and where it changes"


@dataclass(frozen=True)
class Metric:
    """One metric.

    Parameters
    ----------
    lane
        Name of its lane; ``{id}`` stands for the device that it is of.
    unit
        Unit of the lane.
    factor
        Factor by which values are multiplied.
    how
        See `How`.
    """

    lane: str
    unit: str
    factor: float = 1.0
    how: How = How.GAUGE


_KIB = 1024.0
_KILOBYTES = 8e-3
"""Megabits of a kilobyte."""

GPU: dict[str, Metric] = {
    "gpu_power": Metric("socket power", "W"),
    "mem_power": Metric("memory power", "W"),
    "gpu_thermal": Metric("temperature GPU", "°C"),
    "mem_thermal": Metric("temperature memory", "°C"),
    "gpu_util": Metric("GFX activity", "%"),
    "mem_util": Metric("memory activity", "%"),
    "sm_clock": Metric("gfx clock", "MHz"),
    "mem_clock": Metric("memory clock", "MHz"),
    "pcie_tx_throughput": Metric("PCIe bandwidth sent", "Mb/s", _KILOBYTES),
    "pcie_rx_throughput": Metric("PCIe bandwidth received", "Mb/s", _KILOBYTES),
    "pcie_tx_bytes": Metric("PCIe bytes sent", "B", 1.0, How.WRAPPING),
    "pcie_rx_bytes": Metric("PCIe bytes received", "B", 1.0, How.WRAPPING),
    "nvlink_tx_throughput": Metric("NVLink bytes sent", "B", _KIB, How.WRAPPING),
    "nvlink_rx_throughput": Metric("NVLink bytes received", "B", _KIB, How.WRAPPING),
}
"""Metrics of GPUs. Throughput of PCIe is in KB/s; that of NVLink is no throughput but the raw
counter in KiB."""

AMD: dict[str, Metric] = {
    "gpu_thermal": Metric("temperature edge", "°C"),
    "mem_util": Metric("VRAM used share", "%"),
}
"""Differences on AMD: the temperature is that of the edge, and the utilization of memory is the
allocated share of it."""
NVIDIA_ALONE = frozenset({"mem_power", *(name for name in GPU if name.startswith(("pcie", "nvl")))})
"""Metrics that are written for every rank on NVIDIA and for none on AMD."""

NODE: dict[str, Metric] = {
    "cpu_usage": Metric("CPU {id} busy time", "s", 1.0, How.SUM),
    "cpu_idle": Metric("CPU {id} idle time", "s", 1.0, How.COUNTER),
    "cpu_iowait": Metric("CPU {id} I/O wait time", "s", 1.0, How.COUNTER),
    "cpu_temp": Metric("CPU package {id} temperature", "°C"),
    "ib_rx_bytes": Metric("InfiniBand {id} bytes received", "B", 1.0, How.COUNTER),
    "ib_tx_bytes": Metric("InfiniBand {id} bytes sent", "B", 1.0, How.COUNTER),
    "memory_used": Metric("host memory total", "B", 1.0, How.STEADY),
    "memory_free": Metric("host memory free", "B"),
}
"""Metrics of the node, from node_exporter. Time of processors counts seconds since boot; that of
use has one row for each of the modes user, system, nice, irq and softirq."""

_GPU_NAME = re.compile(rf"(?:.*_)?(?P<metric>{'|'.join(GPU)})_(?P<rank>\d{{1,7}})")
_PART_NAME = re.compile(
    rf"system_(?P<metric>{'|'.join(NODE)})_rank_(?P<rank>\d{{1,7}})_id_(?P<id>.+)"
)
_NODE_NAME = re.compile(r"system_(?P<metric>memory_used|memory_free)_(?P<rank>\d{1,7})")


@dataclass(frozen=True)
class Named:
    """Content of the name of a file.

    Parameters
    ----------
    key
        The metric, as in the tables.
    metric
        The same.
    rank
        The rank that it is of, or whose node it is of.
    id
        The device of the node that it is of.
    gpu
        True if it is of a GPU.
    """

    key: str
    metric: Metric
    rank: int
    id: str
    gpu: bool


def named(name: str) -> Named | None:
    """Parse a file's name, without its endings; None if it is none of CharLLM-PPT's."""
    for pattern, table in ((_PART_NAME, NODE), (_NODE_NAME, NODE), (_GPU_NAME, GPU)):
        match = pattern.fullmatch(name)
        if match:
            key = match["metric"]
            part = match.groupdict().get("id") or ""
            return Named(key, table[key], int(match["rank"]), part, table is GPU)
    return None

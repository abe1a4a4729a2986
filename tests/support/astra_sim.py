"""ETs run by ASTRA-sim: when each node was issued and called back."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

_NODE = re.compile(
    r"(issue|callback),sys->id=(\d+), tick=(\d+), node->id=(\d+), node->name=(.*?), node->type=(\d+)"
)
_GB_IN_GIB = 1e9 / 2**30
"""ASTRA-sim counts bandwidths in 2^30 bytes a second."""
_MEMORY_GBPS = 10**6
"""Bandwidth of memory, from which reductions of all-reduces take time in addition to that of the network. Chosen:
so high that it is none, as transfers of generated programs contain it."""
_FINISHED = re.compile(r"sys\[(\d+)\] finished, (\d+) cycles")


@dataclass
class Simulated:
    """Outcome of ASTRA-sim.

    Parameters
    ----------
    issued_ns, ended_ns
        By rank and id of a node.
    finished_ns
        By rank; absent where it never finished.
    output
        What it printed.
    status
        Exit status, negative where a signal ended it.
    """

    issued_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    ended_ns: dict[tuple[int, int], int] = field(default_factory=dict)
    finished_ns: dict[int, int] = field(default_factory=dict)
    output: str = ""
    status: int = 0


def run(
    binary: Path,
    prefix: Path,
    work: Path,
    *,
    replay: bool = True,
    bandwidth_gbps: float = 100.0,
    latency_ns: float = 0.0,
    timeout_s: float = 300.0,
    roofline: tuple[float, float] | None = None,
) -> Simulated:
    """Run the ETs ``PREFIX.0.et`` and so on.

    Parameters
    ----------
    binary
        ASTRA-sim with an analytical network, congestion-aware or not.
    work
        Folder for configuration and logs; what is in it is removed.
    replay
        Communication lasts as its ET says; otherwise it is simulated, with rings over a network in
        which all ranks are connected to each other.
    bandwidth_gbps, latency_ns
        Of each link, in gigabytes per second.
    roofline
        Peak rate in 10^12 operations and bandwidth of memory in 10^9 bytes a second, from which GPU work is
        computed; it lasts as its ET says if None.
    """
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    ranks = len(list(prefix.parent.glob(f"{prefix.name}.*.et")))
    if ranks == 1:  # it does not simulate a single one
        shutil.copy(f"{prefix}.0.et", work / "twice.0.et")
        shutil.copy(f"{prefix}.0.et", work / "twice.1.et")
        prefix = work / "twice"
    implementations = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    system = {
        "scheduling-policy": "FIFO",
        "endpoint-delay": 0,
        "active-chunks-per-dimension": 1,
        "preferred-dataset-splits": 1,
        **{f"{name}-implementation": ["ring"] for name in implementations},
        "collective-optimization": "baseline",
        "local-mem-bw": _MEMORY_GBPS,
        "boost-mode": 0,
        "trace-enabled": 1,
        "replay-only": int(replay),
    }
    if roofline:
        peak, memory = roofline
        system |= {"roofline-enabled": 1, "peak-perf": peak, "local-mem-bw": memory}
    network = (
        f"topology: [ FullyConnected ]\nnpus_count: [ {max(ranks, 2)} ]\n"
        f"bandwidth: [ {bandwidth_gbps * _GB_IN_GIB} ]\nlatency: [ {latency_ns} ]\n"
    )
    (work / "system.json").write_text(json.dumps(system))
    (work / "network.yml").write_text(network)
    (work / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    groups = prefix.with_name(prefix.name + ".comm_groups.json")
    command = [
        str(binary),
        f"--workload-configuration={prefix}",
        f"--system-configuration={work / 'system.json'}",
        f"--network-configuration={work / 'network.yml'}",
        f"--remote-memory-configuration={work / 'memory.json'}",
        f"--comm-group-configuration={groups if groups.exists() else 'empty'}",
        f"--logging-folder={work / 'log'}",
    ]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=timeout_s, check=False, cwd=work
    )
    result = _read_logs(work / "log")
    result.output, result.status = ended.stdout + ended.stderr, ended.returncode
    if ranks == 1:
        result.finished_ns.pop(1, None)
        for times in (result.issued_ns, result.ended_ns):
            for key in [key for key in times if key[0] == 1]:
                del times[key]
    return result


def _read_logs(folder: Path) -> Simulated:
    result = Simulated()
    for path in folder.glob("log*.log"):
        text = path.read_text(errors="replace")
        for event, rank, tick, node, _, _ in _NODE.findall(text):
            times = result.issued_ns if event == "issue" else result.ended_ns
            times[int(rank), int(node)] = int(tick)
        for rank, cycles in _FINISHED.findall(text):
            result.finished_ns[int(rank)] = int(cycles)
    return result

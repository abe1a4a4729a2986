"""The host while a program runs: its processors and memory, and the program's processes by rank."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Sequence
from typing import Any

import psutil

from chopper_interop.recording.gpus import SLOW_S, Call, GpuFacts, Values

RANK = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
"""Variables that state a process's rank: torchrun's, Slurm's, Open MPI's, MPICH's."""
LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
"""Variables that state its number on the node."""


def name() -> str:
    """Return the name of the host."""
    return socket.gethostname()


class Host:
    """Reads the host, and the processes that descend from one process."""

    def __init__(self) -> None:
        """Start to count the use of the processors."""
        self._root: psutil.Process | None = None
        self._processes: dict[int, dict[str, Any]] = {}
        psutil.cpu_percent()

    def follow(self, pid: int) -> None:
        """Follow a process and its descendants from now on."""
        with contextlib.suppress(psutil.Error):
            self._root = psutil.Process(pid)

    def read(self) -> Values:
        """Read the host's values, and look at the processes."""
        memory = psutil.virtual_memory()
        self._look()
        return {
            "host_cpu_percent": psutil.cpu_percent(),
            "host_memory_used": memory.used,
            "host_memory_free": memory.available,
        }

    def _look(self) -> None:
        """Note what each process has used so far; one that ended keeps what was noted last."""
        if self._root is None:
            return
        with contextlib.suppress(psutil.Error):
            for process in [self._root, *self._root.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    self._note(process)

    def _note(self, process: psutil.Process) -> None:
        """Note what a process is, which may have become another program since, and what it has used."""
        facts = self._processes.get(process.pid) or {"pid": process.pid}
        if "rank" not in facts:
            environment = process.environ()
            for key, names in (("rank", RANK), ("local_rank", LOCAL_RANK)):
                texts = [environment[n] for n in names if environment.get(n, "").isdigit()]
                facts |= {key: int(texts[0])} if texts else {}
        facts["name"] = process.name()
        facts.setdefault("parent", process.ppid())
        self._processes[process.pid] = facts
        used = process.cpu_times()
        facts["cpu_s"] = round(used.user + used.system, 3)
        facts["memory_bytes"] = max(facts.get("memory_bytes", 0), process.memory_info().rss)

    def processes(self) -> list[dict[str, Any]]:
        """Return the processes that were seen: number, rank, processor seconds, largest memory."""
        return list(self._processes.values())


class HostAlone:
    """The host in place of GPUs, where there are none that can be read: rows of GPU -1."""

    vendor, library = "host", f"psutil {psutil.__version__}"

    def __init__(self, host: Host) -> None:
        self.calls: Sequence[Call] = (Call("host", lambda _: host.read(), every_s=SLOW_S),)

    def facts(self, _first: int) -> list[GpuFacts]:
        """Return one that stands for the host."""
        return [GpuFacts(-1, -1, self.vendor)]

    def close(self) -> None:
        """Release nothing: there is no library."""

"""A run as PyTorch's profiler writes it: a Kineto JSON file for each rank.

Which events there are, and what they state, is as in files of PyTorch 2.4 to 2.9, on ROCm (roctracer, which
records no hipEventRecord and names no events) and on CUDA (CUPTI, with or without its cuda_sync events).
"""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import msgspec

from programs import program as p

if TYPE_CHECKING:
    from pathlib import Path

    from programs.simulation import Run

    Event = dict[str, Any]

BASE_NS = 1_767_189_312_000_000_000
_START_NS = 5_000_000_000
"""Time of the run's beginning since `BASE_NS`."""
_BYTES = 4
_FIRST_PID, _FIRST_TID = 4_000, 40
_CALLS = {
    "hip": {
        "Launch": "hipLaunchKernel",
        "Communicate": "hipExtLaunchKernel",
        "gpu_memcpy": "hipMemcpyAsync",
        "blocks": "hipMemcpyWithStream",
        "StreamWait": "hipStreamWaitEvent",
        "EventSync": "hipEventSynchronize",
        "Sync": "hipStreamSynchronize",
        "device": "hipDeviceSynchronize",
    },
    "cuda": {
        "Launch": "cudaLaunchKernel",
        "Communicate": "cudaLaunchKernelExC",
        "gpu_memcpy": "cudaMemcpyAsync",
        "blocks": "cudaMemcpyAsync",
        "Record": "cudaEventRecord",
        "StreamWait": "cudaStreamWaitEvent",
        "EventSync": "cudaEventSynchronize",
        "Sync": "cudaStreamSynchronize",
        "device": "cudaDeviceSynchronize",
    },
}
"""Names of the calls that are recorded."""
_NUMBER = {
    name: number
    for number, name in enumerate(sorted({n for of in _CALLS.values() for n in of.values()}), 100)
}
_CUDA_KERNELS = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}
_HIP_KERNEL = "ncclDevKernel_Generic(ncclDevComm*, channelMasks, ncclWork*)"


def write(run: Run, folder: Path) -> list[Path]:
    """Write ``rank0.json.gz`` and so on into a folder, and return their paths."""
    ranks = range(len(run.program.threads))
    slices: list[list[p.Slice]] = [[] for _ in ranks]
    for recorded in run.recorded():
        slices[recorded.place.rank].append(recorded)
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"rank{rank}.json.gz" for rank in ranks]
    for rank, path in enumerate(paths):
        document = _Writer(run.program, rank).document(slices[rank])
        path.write_bytes(gzip.compress(msgspec.json.encode(document), 1))
    return paths


def device_of(program: p.Program, rank: int) -> int:
    """Number of a rank's GPU in the file: on ROCm CPUs are counted first."""
    return rank + 2 if program.vendor == "hip" else rank


class _Writer:
    """Events of one rank."""

    def __init__(self, program: p.Program, rank: int) -> None:
        self.program, self.rank = program, rank
        self.pid = _FIRST_PID + rank
        self.device = device_of(program, rank)
        self.is_hip = program.vendor == "hip"
        self.events: list[Event] = []
        self.records: dict[int, p.Slice] = {}

    def document(self, slices: list[p.Slice]) -> Event:
        for done in slices:
            if done.on_gpu:
                self._gpu(done)
            elif done.category == "cuda_runtime" and not self._is_range(done):
                self._call(done)
            else:
                self._range(done)
        world = len(self.program.threads)
        group = {
            "pg_name": "0",
            "pg_desc": "default_pg",
            "backend_config": "cuda:nccl",
            "pg_size": world,
            "ranks": list(range(world)),
        }
        info = {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": world,
            "pg_count": 1,
            "pg_config": [group],
            "nccl_version": "2.21.5",
        }
        return {
            "schemaVersion": 1,
            "deviceProperties": [],
            **({"distributedInfo": info} if world > 1 else {}),
            "displayTimeUnit": "ms",
            "baseTimeNanoseconds": BASE_NS,
            "traceEvents": self.events,
            "traceName": f"rank{self.rank}.json",
        }

    def _is_range(self, done: p.Slice) -> bool:
        """True of calls that programs write as ranges, as they do nothing but take time."""
        place = done.place
        return isinstance(self.program.threads[place.rank][place.thread][place.position], p.Begin)

    def _x(self, done: p.Slice, where: tuple[int, int], name: str, args: Event) -> None:
        pid, tid = where
        external = {"External id": done.external} if done.external else {}
        self.events.append({
            "ph": "X",
            "cat": done.category,
            "name": name,
            "pid": pid,
            "tid": tid,
            "ts": self._ts(done),
            "dur": _us(done.end_ns - done.start_ns),
            "args": external | args,
        })  # fmt: skip

    def _ts(self, done: p.Slice) -> float:
        ahead_ns = self.program.gpu_clock_ns if done.on_gpu else 0
        return _us(_START_NS + done.start_ns + ahead_ns)

    def _thread(self, done: p.Slice) -> tuple[int, int]:
        return self.pid, self.pid if done.lane == 0 else self.pid + _FIRST_TID + done.lane

    def _flow(self, ph: str, done: p.Slice, where: tuple[int, int]) -> None:
        event = {"ph": ph, "id": done.correlation, "pid": where[0], "tid": where[1]}
        event |= {"ts": self._ts(done), "cat": "ac2g", "name": "ac2g"}
        self.events.append(event | ({"bp": "e"} if ph == "f" else {}))

    def _range(self, done: p.Slice) -> None:
        args: Event = {"Record function id": 0, "Ev Idx": len(self.events)}
        if done.name == "record_param_comms":
            args |= self._metadata(done.facts["message"], on_host=True)
        begin = self.program.threads[done.place.rank][done.place.thread][done.place.position]
        if isinstance(begin, p.Begin) and begin.shape:
            args |= {"Input Dims": [list(begin.shape)], "Input type": ["float"]}
        self._x(done, self._thread(done), done.name, args)

    def _metadata(self, number: int, *, on_host: bool) -> Event:
        """Return the arguments of a message, as this rank sees it."""
        message = self.program.messages[number]
        kind, group = message.kind, tuple(range(len(self.program.threads)))
        into = out = message.elements
        if kind == "_allgather_base":
            out *= len(group)
        elif kind == "_reduce_scatter_base":
            into *= len(group)
        elif kind == "send":
            kind = "send" if self.rank == message.ranks[0] else "recv"
        args = {
            "Collective name": kind,
            "In msg nelems": into,
            "Out msg nelems": out,
            "Group size": len(group),
            "dtype": "Float",
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": "0",
            "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(group)),
        }
        if message.kind == "send":
            args |= {"Src Rank": message.ranks[0], "Dst Rank": message.ranks[1]}
        if on_host:
            args |= {"Rank": self.rank, "Global rank start": 0, "Global rank stride": 1}
        return args

    def _call(self, done: p.Slice) -> None:
        what = self.program.threads[done.place.rank][done.place.thread][done.place.position]
        names = _CALLS[self.program.vendor]
        key = done.name
        if isinstance(what, p.Launch) and what.category != "kernel":
            key = "blocks" if what.blocks else what.category
        elif isinstance(what, p.Sync) and what.stream < 0:
            key = "device"
        if key == "Record":
            self.records[done.facts["event"]] = done
        if key not in names:
            return
        args: Event = {"cid" if self.is_hip else "cbid": _NUMBER[names[key]]}
        args["correlation"] = done.correlation
        launches = isinstance(what, p.Launch | p.Communicate)
        if self.is_hip and launches:
            if self.program.streams_named:
                args["stream"] = hex(94_000_000_000_000 + what.stream) if what.stream else "0x0"
            if key in ("Launch", "Communicate"):
                args["kernel"] = what.name if isinstance(what, p.Launch) else _HIP_KERNEL
                args |= {"grid": [64, 1, 1], "block": [256, 1, 1], "shared memory": 0}
        self._x(done, self._thread(done), names[key], args)
        self._flow("s" if launches else "f", done, self._thread(done))
        if self.program.waits_recorded and not launches and key != "Record":
            self._wait(done, key)

    def _wait(self, done: p.Slice, key: str) -> None:
        """CUPTI's record of what a call waited for."""
        kind = {
            "StreamWait": "Stream Wait Event",
            "EventSync": "Event Sync",
            "Sync": "Stream Sync",
            "device": "Context Sync",
        }[key]
        stream = done.facts["stream"] if key in ("StreamWait", "Sync") else -1
        args: Event = {"cuda_sync_kind": kind}
        if "event" in done.facts:
            record = self.records.get(done.facts["event"])
            args["wait_on_stream"] = record.facts["stream"] if record else -1
            args["wait_on_cuda_event_record_corr_id"] = record.correlation if record else -1
            args["wait_on_cuda_event_id"] = done.facts["event"]
        args |= {"stream": stream, "correlation": done.correlation, "device": self.device}
        recorded = p.Slice(done.place, -1, True, "cuda_sync", kind, done.start_ns, done.end_ns)
        recorded.external = done.external
        self._x(recorded, (self.device, stream), kind, args | {"context": 1})

    def _gpu(self, done: p.Slice) -> None:
        args: Event = {"device": self.device, "stream": done.lane}
        args["correlation"] = done.correlation
        name = done.name
        if "message" in done.facts:
            message = self.program.messages[done.facts["message"]]
            name = _HIP_KERNEL if self.is_hip else _CUDA_KERNELS[message.kind]
            args |= self._metadata(done.facts["message"], on_host=False)
        if self.is_hip and done.category == "kernel":
            args["kind"] = "Dispatch Kernel"
        elif done.category == "gpu_memcpy":
            args |= {"kind": "DtoH"} if self.is_hip else {"bytes": 4}
        self._x(done, (self.device, done.lane), name, args)
        self._flow("f", done, (self.device, done.lane))


def _us(ns: int) -> float:
    return ns / 1000

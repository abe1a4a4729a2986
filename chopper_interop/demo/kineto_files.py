"""Kineto traces, one gzipped JSON file a rank."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isal import igzip

from chopper_interop.demo import noise
from chopper_interop.demo.identity import STREAMS, Identity
from chopper_interop.demo.kineto_events import (
    annotation_template,
    cpu_template,
    gpu_template,
    runtime_template,
)
from chopper_interop.demo.kineto_pool import PoolLayout
from chopper_interop.demo.parameters import BASE_TIME_NS, GPUS, WINDOW_START_NS
from chopper_interop.demo.program import distinct

if TYPE_CHECKING:
    from chopper_interop.demo.job import DemoJob
    from chopper_interop.demo.render import Compiled

_GPU_ROWS = 16
"""Rows for GPUs that the logger names whatever the machine has."""
# Positions of rows in Kineto's files: GPUs below all processes, spans below these.
_SORT_GPU = 5_000_000
_SORT_SPANS = 536_870_912


def write_kineto(job: DemoJob, folder: Path, *, workers: int) -> None:
    """Write ``rank<r>.<time>.pt.trace.json.gz`` for all ranks.

    Parameters
    ----------
    workers
        Threads; each writes one rank at a time.
    """
    folder.mkdir()
    plans = {id(program): _StepTemplates(PoolLayout(program)) for program in distinct(job.programs)}
    with ThreadPoolExecutor(workers) as pool:
        plan = [plans[id(program)] for program in job.programs]
        ranks = range(job.parameters.ranks)
        list(pool.map(lambda rank: _write_rank(job, folder, plan[rank], rank), ranks))


class _StepTemplates:
    """Templates for the steps of one program."""

    def __init__(self, layout: PoolLayout) -> None:
        self.layout = layout
        makers = (cpu_template, runtime_template, gpu_template, annotation_template)
        self.sections: list[Compiled] = [make(layout) for make in makers]


def file_name(job: DemoJob, rank: int) -> str:
    """Name of a rank's file, with the time at which the profiler would have written it."""
    stop_ns = int(job.timeline.mark_ns[rank, -1, -1]) + 412_000_017 + 7_013 * rank
    return f"rank{rank}.{stop_ns}.pt.trace.json.gz"


def _write_rank(job: DemoJob, folder: Path, plan: _StepTemplates, rank: int) -> None:
    pools = [plan.layout.pool(job, rank, step) for step in range(job.parameters.steps)]
    name = file_name(job, rank)
    with _gzip(folder / name) as out:
        out.write(_header(job, rank).encode())
        for section in plan.sections:
            for pool in pools:
                out.write(section.render(pool))
        out.write("".join(_tail(job, rank)).encode())
        out.write(f'\n  ],\n  "traceName": "./traces/{name.removesuffix(".gz")}"\n}}'.encode())


@contextmanager
def _gzip(path: Path) -> Iterator[Any]:
    """Open a gzip file without name and time in its head, so that equal content is equal bytes."""
    with (
        path.open("wb") as raw,
        igzip.IGzipFile("", "wb", 1, fileobj=raw, mtime=0) as out,  # type: ignore[no-untyped-call]
    ):
        yield out


def _header(job: DemoJob, rank: int) -> str:
    p = job.parameters
    devices = ",".join(_device(i) for i in range(GPUS))
    groups = [
        {
            "pg_name": group.name,
            "pg_desc": group.description,
            "backend_config": "cuda:nccl",
            "pg_size": len(group.ranks),
            "ranks": list(group.ranks),
        }
        for group in job.programs[rank].groups
    ]
    distributed = {
        "backend": "nccl", "rank": rank, "world_size": p.ranks, "pg_count": len(groups),
        "pg_config": groups, "nccl_version": "2.22.3",
    }  # fmt: skip
    words = [int(noise.bits(p.seed, noise.IDENTITY, rank, -1, i)) for i in range(2)]
    fields = {
        "roctracer_version": 4.1,
        "hip_runtime_version": 60443483,
        "hip_driver_version": 60443483,
        "record_shapes": 1,
        "profile_memory": 1,
        "distributedInfo": distributed,
        "trace_id": "".join(f"{word:016X}" for word in words),
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_TIME_NS,
    }
    metadata = "".join(f'\n  "{key}": {json.dumps(value)},' for key, value in fields.items())
    start = f'\n{{\n  "schemaVersion": 1,\n  "deviceProperties": [{devices}\n  ],'
    return start + metadata + '\n  "traceEvents": ['


def _device(index: int) -> str:
    return f"""
    {{
      "id": {index}, "name": "AMD Instinct MI300X", "totalGlobalMem": 206141652992,
      "computeMajor": 9, "computeMinor": 4,
      "maxThreadsPerBlock": 1024, "maxThreadsPerMultiprocessor": 2048,
      "regsPerBlock": 65536, "warpSize": 64,
      "sharedMemPerBlock": 65536, "numSms": 304
    , "maxSharedMemoryPerMultiProcessor": 65536
    }}"""


def _us(time_ns: int) -> str:
    """Microseconds with three decimals."""
    return f"{time_ns // 1000}.{time_ns % 1000:03}"


def _tail(job: DemoJob, rank: int) -> Iterator[str]:
    """Yield the synchronisation at the end, names of rows, the profiler's own marks."""
    who = job.who(rank)
    end_ns = int(job.timeline.mark_ns[rank, -1, -1]) - BASE_TIME_NS
    start_ns = WINDOW_START_NS - BASE_TIME_NS - 310_123
    yield _synchronize(who, job, end_ns + 31_007)
    yield from _rows(who, job.programs[rank].streams, _us(start_ns))
    span = f'"ts": {_us(start_ns)}, "dur": {_us(end_ns + 95_003 - start_ns)}'
    yield (
        f'\n  {{\n    "ph": "X", "cat": "Trace", {span},\n'
        '    "pid": "Spans", "tid": "PyTorch Profiler",\n'
        '    "name": "PyTorch Profiler (0)",\n    "args": {\n      "Op count": 0\n    }\n  },'
    )
    yield _metadata(
        "process_sort_index", _us(start_ns), '"Spans"', 0, f'"sort_index": {_SORT_SPANS}'
    )
    yield (
        '\n  {\n    "name": "Iteration Start: PyTorch Profiler", "ph": "i", "s": "g",\n'
        '    "pid": "Traces", "tid": "Trace PyTorch Profiler", '
        f'"ts": {_us(start_ns)}\n  }},'
    )
    yield (
        '\n  {\n    "name": "Record Window End", "ph": "i", "s": "g",\n'
        f'    "pid": "", "tid": "", "ts": {_us(end_ns + 20_000_009)}\n  }}'
    )


def _synchronize(who: Identity, job: DemoJob, ts_ns: int) -> str:
    calls = sum(event.category == "cuda_runtime" for event in job.programs[who.rank].events)
    correlation = who.correlation + calls * job.parameters.steps
    place = f'"pid": {who.pid}, "tid": {who.pid}'
    return (
        f'\n  {{\n    "ph": "X", "cat": "cuda_runtime", "name": "hipDeviceSynchronize", {place},\n'
        f'    "ts": {_us(ts_ns)}, "dur": 4.721,\n    "args": {{\n      "cid": 48, '
        f'"correlation": {correlation}\n    }}\n  }},\n  {{\n    "ph": "f", "id": {correlation}, '
        f'{place}, "ts": {_us(ts_ns)},\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }},'
    )


def _rows(who: Identity, streams: int, ts: str) -> Iterator[str]:
    """Names of processes and threads."""
    processes = [(who.pid, "CPU", who.pid)]
    processes += [(i, f"GPU {i}", _SORT_GPU + i) for i in range(_GPU_ROWS)]
    for pid, label, order in processes:
        yield _metadata("process_name", ts, str(pid), 0, '"name": "python3"')
        yield _metadata("process_labels", ts, str(pid), 0, f'"labels": "{label}"')
        yield _metadata("process_sort_index", ts, str(pid), 0, f'"sort_index": {order}')
    threads = [(who.device, stream, f"stream {stream} ") for stream in STREAMS[:streams]]
    threads += [(who.pid, who.pid, f"thread {who.pid} (python3)")]
    threads += [(who.pid, who.autograd_tid, f"thread {who.autograd_tid} (pt_autograd_{who.rank})")]
    for pid, tid, name in threads:
        yield _metadata("thread_name", ts, str(pid), tid, f'"name": "{name}"')
        yield _metadata("thread_sort_index", ts, str(pid), tid, f'"sort_index": {tid}')


def _metadata(name: str, ts: str, pid: str, tid: int, arguments: str) -> str:
    return (
        f'\n  {{\n    "name": "{name}", "ph": "M", "ts": {ts}, "pid": {pid}, "tid": {tid},\n'
        f'    "args": {{\n      {arguments}\n    }}\n  }},'
    )

"""How CPU seconds and memory of every output and analysis grow with what a job has many of.

Usage: ``python tests/benchmarks/growth.py CASE [SIZE …] [--stages=temporal,pftrace,…] [--limit=SECONDS]``. Each stage is a
process of its own, forked after the read, so that none profits from what another one has derived, and is
ended after the limit. Exponents are between the last two sizes: 1 is proportional.
"""

import json
import math
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import scale

Event = dict[str, Any]
_STEPS = 3
_STEP_US = 250


def _write(folder: Path, events: list[Event], **document: object) -> Path:
    folder.mkdir()
    head = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}} | document
    (folder / "a.pt.trace.json").write_text(json.dumps(head | {"traceEvents": events}))
    return folder


def _host(
    name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: object
) -> Event:
    place = {"pid": 1, "tid": tid}
    return {"ph": "X", "cat": cat, "name": name, **place, "ts": ts, "dur": dur, "args": args}


def _kernel(name: str, ts: float, dur: float, stream: int = 7, **args: object) -> Event:
    args = {"device": 0, "stream": stream} | args
    place = {"pid": 0, "tid": stream}
    return {"ph": "X", "cat": "kernel", "name": name, **place, "ts": ts, "dur": dur, "args": args}


def _step(number: int, ts: float, dur: float) -> Event:
    return _host(f"ProfilerStep#{number}", ts, dur, "user_annotation")


def _launched(events: list[Event], names: list[str], every: float = 10.0) -> float:
    """An operator, its launch and its kernel for each name; return the end."""
    for n, name in enumerate(names):
        at = every * n
        events += [
            _host(f"aten::{name}", at, 6, **{"External id": n + 1}),
            _host("hipLaunchKernel", at + 1, 3, "cuda_runtime", correlation=n + 1),
            _kernel(name, at + 5, 7, correlation=n + 1),
        ]
    return every * len(names) + 10


def repeated(document: dict[str, Any], steps: int) -> dict[str, Any]:
    """A rank's file with its events once for each step."""
    events: list[Event] = []
    for step in range(steps):
        for event in document["traceEvents"]:
            args = dict(event["args"])
            for key in ("correlation", "External id"):
                if key in args:
                    args[key] += 100 * step
            name = event["name"].replace("#1", f"#{step + 1}")
            events.append(event | {"name": name, "args": args, "ts": event["ts"] + _STEP_US * step})
    return document | {"traceEvents": events}


def make_ranks(folder: Path, ranks: int) -> Path:
    """Small ranks, with collectives of all and of those of a host in each step."""
    folder.mkdir()
    for rank in range(ranks):
        text = json.dumps(repeated(scale.rank_file(rank, ranks), _STEPS))
        (folder / f"rank{rank:05d}.pt.trace.json").write_text(text)
    return folder


_GROUP_RANKS = 64


def make_groups(folder: Path, groups: int) -> Path:
    """64 ranks, and groups of 2 to 64 of them, each with an all-reduce."""
    folder.mkdir()
    random = np.random.default_rng(groups)
    sizes = np.geomspace(2, _GROUP_RANKS, groups).astype(int)
    members = [sorted(random.choice(_GROUP_RANKS, s, replace=False).tolist()) for s in sizes]
    config = [
        {"pg_name": str(n), "pg_desc": f"group{n}", "pg_size": len(m), "ranks": m}
        for n, m in enumerate(members)
    ]
    for rank in range(_GROUP_RANKS):
        events = [_step(1, 0, 60 * groups + 100)]
        own = [n for n, m in enumerate(members) if rank in m]
        for n in own:
            at, key = 60 * n, n + 1
            stated = {
                "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float",
                "Group size": len(members[n]), "Process Group Name": str(n),
                "Process Group Description": f"group{n}", "Process Group Ranks": str(members[n]),
            }  # fmt: skip
            events += [
                _host("c10d::allreduce_", at, 9, **{"External id": key}),
                _host("hipExtLaunchKernel", at + 2, 3, "cuda_runtime", correlation=key),
                _kernel("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", at + 20 + rank % 5,
                        30 - rank % 5, correlation=key, **stated),
            ]  # fmt: skip
        document = {
            "schemaVersion": 1, "baseTimeNanoseconds": scale._EPOCH_S * 10**9, "hostname": f"host{rank // 8}",
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": _GROUP_RANKS,
                                "pg_count": len(own), "pg_config": [config[n] for n in own]},
            "traceEvents": events,
        }  # fmt: skip
        (folder / f"rank{rank:03d}.pt.trace.json").write_text(json.dumps(document))
    return folder


def make_nested(folder: Path, levels: int) -> Path:
    """Ranges within ranges, the innermost with a kernel, in steps."""
    events = [_step(1, 0, 2 * levels + 100)]
    events += [
        _host(
            f"level{n % 50}", n + 1, 2 * (levels - n) + 20, "user_annotation" if n % 2 else "cpu_op"
        )
        for n in range(levels)
    ]
    at = levels + 2
    events += [
        _host("hipLaunchKernel", at, 3, "cuda_runtime", correlation=1),
        _kernel("gemm", at + 4, 9, correlation=1),
    ]
    return _write(folder, events)


def make_steps(folder: Path, steps: int) -> Path:
    """Steps of two operators with a kernel each."""
    events: list[Event] = []
    _launched(events, ["gemm", "softmax"] * steps)
    events += [_step(n, 20 * n, 20) for n in range(steps)]
    return _write(folder, events)


def make_names(folder: Path, names: int) -> Path:
    """Kernels and operators none of which has the name of another."""
    events: list[Event] = []
    end = _launched(events, [f"kernel_{n}_of_a_model" for n in range(names)])
    return _write(folder, [_step(1, 0, end), *events])


def make_collisions(folder: Path, calls: int) -> Path:
    """Calls a third of which share one correlation, and a third of which have one without a kernel."""
    events: list[Event] = []
    end = _launched(events, ["gemm"] * calls)
    for n, event in enumerate(events):
        if "correlation" in event["args"] and n // 3 % 3 == 1:
            event["args"]["correlation"] = 1
        elif n // 3 % 3 == 2 and event["cat"] == "kernel":
            event["args"]["correlation"] = calls + n
    return _write(folder, [_step(1, 0, end), *events])


def make_flows(folder: Path, flows: int) -> Path:
    """Flows from as many calls to one kernel, and from one call to as many kernels."""
    events: list[Event] = []
    end = _launched(events, ["gemm"] * flows)
    for n in range(flows):
        place = {"cat": "ac2g", "name": "ac2g", "id": n}
        events += [
            place | {"ph": "s", "pid": 1, "tid": 1, "ts": 10 * n + 1},
            place | {"ph": "f", "bp": "e", "pid": 0, "tid": 7, "ts": 5},
            place | {"ph": "s", "id": flows + n, "pid": 1, "tid": 1, "ts": 1},
            place | {"ph": "f", "id": flows + n, "bp": "e", "pid": 0, "tid": 7, "ts": 10 * n + 5},
        ]
    return _write(folder, [_step(1, 0, end), *events])


def make_counters(folder: Path, counters: int) -> Path:
    """As many counters with four values each, and a hundred kernels."""
    events: list[Event] = []
    end = _launched(events, ["gemm"] * 100)
    for n in range(counters):
        count = {"ph": "C", "cat": "counter", "name": f"counter {n}", "pid": 1, "tid": 1}
        events += [count | {"ts": 200 * k, "args": {"value": n + k}} for k in range(4)]
    return _write(folder, [_step(1, 0, end), *events])


def make_streams(folder: Path, streams: int) -> Path:
    """Three kernels on each stream, in three steps."""
    events: list[Event] = []
    _launched(events, ["gemm"] * (3 * streams))
    for event in events:
        if event["cat"] == "kernel":
            stream = 7 + event["args"]["correlation"] % streams
            event["tid"] = event["args"]["stream"] = stream
            event["dur"] = 40
    return _write(folder, [*(_step(n, 10 * streams * n, 10 * streams) for n in range(3)), *events])


def make_threads(folder: Path, threads: int) -> Path:
    """Two operators on each thread, a launch and a kernel for every tenth."""
    events: list[Event] = [_step(1, 0, 10 * threads + 100)]
    for n in range(threads):
        tid = 2 + n
        events += [
            _host("aten::mm", 10 * n, 6, tid=tid),
            _host("aten::add", 10 * n + 7, 20, tid=tid),
        ]
        if n % 10 == 0:
            events += [
                _host("hipLaunchKernel", 10 * n + 1, 3, "cuda_runtime", tid, correlation=n + 1),
                _kernel("gemm", 10 * n + 5, 30, correlation=n + 1),
            ]
    return _write(folder, events)


def make_devices(folder: Path, devices: int) -> Path:
    """Two kernels on each of as many GPUs of one process, in three steps."""
    events: list[Event] = []
    end = _launched(events, ["gemm"] * (2 * devices))
    for event in events:
        if event["cat"] == "kernel":
            event["pid"] = event["args"]["device"] = event["args"]["correlation"] % devices
    stated = [{"id": n, "name": "AMD Instinct MI300X"} for n in range(devices)]
    return _write(
        folder,
        [*(_step(n, n * end / 3, end / 3) for n in range(3)), *events],
        deviceProperties=stated,
    )


_LONG_NAMES = 4


def make_long_names(folder: Path, length: int) -> Path:
    """Operators and kernels with names of as many letters, four different ones."""
    events: list[Event] = []
    end = _launched(events, [chr(97 + n) * length for n in range(_LONG_NAMES)] * 3)
    return _write(folder, [_step(1, 0, end), *events])


def make_waits(folder: Path, waits: int) -> Path:
    """As many events that one stream waits for before one kernel, each recorded behind a kernel of a stream of its own."""
    events: list[Event] = []
    for n in range(waits):
        at, key, event = 40 * n, 4 * n + 1, {"event": n + 1}
        events += [
            _host("hipLaunchKernel", at, 3, "cuda_runtime", correlation=key, stream=8 + n),
            _kernel("gemm", at + 5, 9, 8 + n, correlation=key),
            _host("hipEventRecord", at + 4, 2, "cuda_runtime", correlation=key + 1, stream=8 + n, **event),
            _host("hipStreamWaitEvent", at + 8, 2, "cuda_runtime", correlation=key + 2, stream=7, **event),
        ]  # fmt: skip
    end = 40 * waits + 20
    events += [
        _host("hipLaunchKernel", end, 3, "cuda_runtime", correlation=4 * waits + 1, stream=7),
        _kernel("softmax", end + 5, 9, correlation=4 * waits + 1),
        _host("hipDeviceSynchronize", end + 4, 20, "cuda_runtime", correlation=4 * waits + 2),
    ]
    return _write(folder, [_step(1, 0, end + 50), *events])


_TICKS = 1000
_GPUS_A_NODE = 8


def _telemetry(form: str) -> Callable[[Path, int], Path]:
    def make(folder: Path, gpus: int) -> Path:
        """A node's file for every eight GPUs, a thousand samples of each."""
        folder.mkdir()
        write, ending = scale.TELEMETRY[form]
        text = write(_TICKS)
        for node in range(max(1, gpus // _GPUS_A_NODE)):
            (folder / f"node{node:03d}").mkdir()
            (folder / f"node{node:03d}" / f"telemetry.{ending}").write_text(text)
        return folder

    return make


def _one_file(form: str) -> Callable[[Path, int], Path]:
    def make(folder: Path, gpus: int) -> Path:
        """All GPUs in one file, a thousand samples of each."""
        folder.mkdir()
        write, ending = scale.TELEMETRY[form]
        before, scale.GPUS = scale.GPUS, gpus
        try:
            (folder / f"telemetry.{ending}").write_text(write(_TICKS))
        finally:
            scale.GPUS = before
        return folder

    return make


CASES: dict[str, tuple[Callable[[Path, int], Path], list[int]]] = {
    "ranks": (make_ranks, [256, 1024, 4096]),
    "small ranks": (scale.make_ranks, [512, 1024, 2048, 4096]),
    "streams": (make_streams, [100, 1000, 4000]),
    "threads": (make_threads, [500, 2000, 8000]),
    "devices": (make_devices, [100, 1000, 4000]),
    "groups": (make_groups, [64, 512, 4096]),
    "amd-smi": (_one_file("amd-smi CSV"), [8, 128, 1024]),
    "recorder": (_one_file("recorder"), [8, 128, 1024]),
    "nvidia-smi": (_one_file("nvidia-smi CSV"), [8, 128, 1024]),
    "amd-smi-nodes": (_telemetry("amd-smi CSV"), [8, 128, 1024]),
    "nested": (make_nested, [10, 1000, 100_000]),
    "steps": (make_steps, [10, 1000, 20_000]),
    "names": (make_names, [1000, 30_000, 300_000]),
    "name length": (make_long_names, [1000, 1_000_000, 10_000_000]),
    "waits": (make_waits, [300, 3000, 30_000]),
    "collisions": (make_collisions, [300, 9000, 90_000]),
    "flows": (make_flows, [300, 9000, 90_000]),
    "counters": (make_counters, [100, 3000, 30_000]),
}
OUTPUTS: dict[str, tuple[str, dict[str, str]]] = {
    "pftrace": ("a.pftrace", {}),
    "et gpu": ("a.et", {"mode": "gpu"}),
    "et full": ("a.et", {"mode": "full"}),
    "parquet": ("a.parquet", {}),
    "json": ("a.json", {}),
    "graphml": ("a.graphml", {}),
}


def _spent() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _forked(action: Callable[[], object], limit: float) -> dict[str, Any]:
    """CPU seconds and peak memory of an action in a child, or why there are none."""
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        result: dict[str, Any] = {}
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            start = _spent()
            action()
            result["s"] = _spent() - start
        except BaseException as error:  # noqa: BLE001 # the table says it
            result["error"] = f"{type(error).__name__}: {error}"[:100]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        result["MB"] = usage.ru_maxrss / 1024
        os.write(sink, json.dumps(result).encode())
        os._exit(0)
    os.close(sink)
    stop = time.monotonic() + limit
    with os.fdopen(source, "rb") as file:
        os.set_blocking(file.fileno(), False)
        while time.monotonic() < stop:
            done, _ = os.waitpid(child, os.WNOHANG)
            if done:
                text = file.read()
                return json.loads(text) if text else {"error": "died"}
            time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"error": f"> {limit:g} s of wall"}


def stages(path: Path, chosen: list[str]) -> dict[str, Callable[[Any], object]]:
    """Every output, analysis and command, by name; each takes the trace."""
    from chopper_interop import analyses, analyze, write
    from chopper_interop.cli import analyze_main, check_main

    folder = path.parent / "out"

    def output(name: str) -> Callable[[Any], object]:
        file, options = OUTPUTS[name]
        return lambda trace: write(trace, str(folder / file), **options)

    def analysis(name: str) -> Callable[[Any], object]:
        if name in ("sweep", "compare"):
            return lambda trace: analyze(trace, name, against=trace).to_pandas()
        return lambda trace: analyze(trace, name).to_pandas()

    def check(trace: Any) -> None:
        write(trace, str(folder / "a.et"), mode="full")
        check_main([str(folder / "a"), "-q"])

    actions = {name: output(name) for name in OUTPUTS}
    actions |= {name: analysis(name) for name in sorted(analyses())}
    page = str(folder / "a.html")
    actions["report"] = lambda _: analyze_main([str(path), "-q", "--html", page])
    actions["et full, check"] = check
    return {name: actions[name] for name in chosen or actions}


def measure(case: str, sizes: list[int], chosen: list[str], limit: float) -> None:
    """Print the table of a case."""
    from chopper_interop import read

    make, _ = CASES[case]
    table: dict[str, dict[int, dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(dir=os.environ.get("GROWTH_DIR")) as name:
        for size in sizes:
            place = Path(name) / str(size)
            place.mkdir()
            path = make(place / "job", size)
            start = _spent()
            if not table:  # imports are not counted
                read(path)
                start = _spent()
            trace = read(path)
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            read_row = {"s": _spent() - start, "MB": memory}
            table.setdefault("read", {})[size] = read_row
            print(f"{case} {size} read {read_row}", file=sys.stderr, flush=True)
            for stage, action in stages(path, chosen).items():
                last = list(table.get(stage, {}).values())[-1:]
                if last and "error" in last[0] and last[0]["error"].startswith(">"):
                    continue
                (place / "out").mkdir()
                row = _forked(partial(action, trace), limit)
                table.setdefault(stage, {})[size] = row
                print(f"{case} {size} {stage} {row}", file=sys.stderr, flush=True)
                shutil.rmtree(place / "out")
    _show(case, sizes, table)


def _show(case: str, sizes: list[int], table: dict[str, dict[int, dict[str, Any]]]) -> None:
    print(f"{case:18} " + " ".join(f"{size:>16,}" for size in sizes) + "  exponent")
    for stage, rows in table.items():
        cells = []
        for size in sizes:
            row = rows.get(size, {})
            cells.append(
                f"{row['s']:8.2f}s {row['MB']:5.0f}MB" if "s" in row else row.get("error", "-")[:16]
            )
        *_, few, many = [0, *sizes]
        small, large = rows.get(few, {}).get("s"), rows.get(many, {}).get("s")
        power = (
            math.log(large / max(small, 0.01)) / math.log(many / few)
            if small and large
            else math.nan
        )
        print(
            f"{stage:18} " + " ".join(f"{cell:>16}" for cell in cells) + f"  {power:8.2f}",
            flush=True,
        )


def main() -> None:
    """Measure the cases that are named."""
    options = dict(a[2:].split("=", 1) for a in sys.argv[1:] if a.startswith("--"))
    words = [a for a in sys.argv[1:] if not a.startswith("--")]
    sizes = [int(word) for word in words if word.isdigit()]
    chosen = [name for name in options.get("stages", "").split(",") if name]
    for case in [word for word in words if not word.isdigit()] or list(CASES):
        measure(case, sizes or CASES[case][1], chosen, float(options.get("limit", 60)))


if __name__ == "__main__":
    main()

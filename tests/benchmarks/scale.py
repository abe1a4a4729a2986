"""What grows with the number of ranks, lanes, streams and rows of telemetry: seconds and memory of each.

Usage: ``python tests/benchmarks/scale.py [ranks | lanes | streams | telemetry] [SIZE …]``, by default all,
with sizes that take a few minutes. Streams are written as ETs in which each is an NPU of its own, the rest
as Perfetto traces. Each size is a process of its own; seconds are of processors, less those of the smallest
size, which hold what the first use of the package costs.
"""

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

RANKS_A_HOST = 8
SIZES = {
    "ranks": [1, 250, 500, 1000, 2000, 4096],
    "lanes": [1, 500, 1000, 2000, 4000],
    "streams": [1, 500, 1000, 2000, 4000],
    "telemetry": [1, 40],
}
_EPOCH_S = 1_786_553_852


def rank_file(rank: int, ranks: int) -> dict[str, object]:
    """Kineto's file of one rank: an operator, its kernel, an all-reduce of all ranks and one of its host."""
    host = rank // RANKS_A_HOST
    local = [r for r in range(host * RANKS_A_HOST, (host + 1) * RANKS_A_HOST) if r < ranks]
    device, pid = rank % RANKS_A_HOST, 1000 + rank
    groups = [("0", "default_pg", range(ranks)), (f"{host + 1}", f"tp{host}", local)]
    events: list[dict[str, object]] = []

    def add(cat: str, name: str, ts: float, dur: float, **args: object) -> None:
        on_gpu = cat == "kernel"
        place = {"pid": device, "tid": 7} if on_gpu else {"pid": pid, "tid": pid}
        args |= {"device": device, "stream": 7} if on_gpu else {}
        event = {"ph": "X", "cat": cat, "name": name, **place, "ts": ts, "dur": dur, "args": args}
        events.append(event)

    add("user_annotation", "ProfilerStep#1", 0, 200)
    add("cpu_op", "aten::mm", 1, 9, **{"External id": 1})
    add("cuda_runtime", "hipLaunchKernel", 2, 3, correlation=1)
    add("kernel", "Cijk_Alik_Bljk_GEMM", 12, 20 + rank % 7, correlation=1)
    for number, (group, description, members) in enumerate(groups):
        at, key = 20 + 60 * number, 2 + number
        add("cpu_op", "c10d::allreduce_", at, 9, **{"External id": key})
        add("cuda_runtime", "hipExtLaunchKernel", at + 2, 3, correlation=key)
        stated = {
            "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024,
            "Group size": len(members), "dtype": "Float", "Process Group Name": group,
            "Process Group Description": description, "Process Group Ranks": str(list(members))[:80],
        }  # fmt: skip
        name = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
        start = at + 30 + rank % 5
        add("kernel", name, start, at + 50 - start, correlation=key, **stated)
    return {
        "schemaVersion": 1, "deviceProperties": [{"id": device, "name": "AMD Instinct MI300X"}],
        "hostname": f"host{host}", "baseTimeNanoseconds": _EPOCH_S * 10**9,
        "distributedInfo": {
            "backend": "nccl", "rank": rank, "world_size": ranks, "pg_count": len(groups),
            "pg_config": [
                {"pg_name": g, "pg_desc": d, "pg_size": len(m), "ranks": list(m) if len(m) < ranks else []}
                for g, d, m in groups
            ],
        },
        "traceEvents": events,
    }  # fmt: skip


def make_ranks(folder: Path, ranks: int) -> Path:
    """A folder of one small file a rank."""
    folder.mkdir()
    for rank in range(ranks):
        text = json.dumps(rank_file(rank, ranks))
        (folder / f"rank{rank:05d}.pt.trace.json").write_text(text)
    return folder


def make_lanes(folder: Path, lanes: int) -> Path:
    """A folder of one file whose calls are on as many threads."""
    folder.mkdir()
    events = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 10 + n, "ts": n, "dur": 5}
        for n in range(lanes)
    ]
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    (folder / "a.pt.trace.json").write_text(json.dumps(document | {"traceEvents": events}))
    return folder


def make_streams(folder: Path, streams: int) -> Path:
    """A folder of one file with three kernels on each stream."""
    folder.mkdir()
    events: list[dict[str, object]] = []
    for n in range(3 * streams):
        stream, ids = n % streams, {"correlation": n + 1}
        launch = {"cat": "cuda_runtime", "name": "hipLaunchKernel", "pid": 1, "tid": 1, "args": ids}
        events.append({"ph": "X", "ts": 10 * n, "dur": 5} | launch)
        work = {"cat": "kernel", "name": "gemm", "pid": 0, "tid": stream + 2}
        on_gpu = {"device": 0, "stream": stream + 2} | ids
        events.append({"ph": "X", "ts": 10 * n + 8, "dur": 40, "args": on_gpu} | work)
    document = {"schemaVersion": 1, "distributedInfo": {"rank": 0, "world_size": 1}}
    (folder / "a.pt.trace.json").write_text(json.dumps(document | {"traceEvents": events}))
    return folder


MAKERS = {"ranks": make_ranks, "lanes": make_lanes, "streams": make_streams}


def _walk(seed: int, low: float, high: float, step: float) -> Callable[[], float]:
    """A quantity that changes by at most a step from row to row."""
    steps = itertools.cycle(np.random.default_rng(seed).uniform(-step, step, 10_007).tolist())
    value = [(low + high) / 2]

    def next_() -> float:
        value[0] = min(high, max(low, value[0] + next(steps)))
        return value[0]

    return next_


GPUS = 8


def _quantities() -> list[list[Callable[[], float]]]:
    """Power, clock, temperature and activity of each GPU."""
    ranges = [(120, 750, 40), (132, 2100, 90), (35, 95, 1), (0, 100, 10)]
    return [[_walk(10 * g + n, *r) for n, r in enumerate(ranges)] for g in range(GPUS)]


def _amd_smi_csv(ticks: int) -> str:
    """``amd-smi metric --csv -w 1``."""
    head = "timestamp,gpu,gfx_activity,umc_activity,vcn_activity,socket_power,gfx_0_clk,hotspot,mem,total_energy_consumption"
    lines, values = [head], _quantities()
    for tick in range(ticks):
        for gpu, (power, clock, heat, share) in enumerate(values):
            lines.append(
                f'{_EPOCH_S + tick},{gpu},{share():.0f},{share():.0f},"[0, 0, 0, 0]",{power():.0f},'
                f"{clock():.0f},{heat():.0f},{heat():.0f},{1000 + 700 * tick + gpu}.5"
            )
    return "\n".join(lines) + "\n"


def _amd_smi_json(ticks: int) -> str:
    """``amd-smi metric --json -w 1``."""
    documents, values = [], _quantities()
    for tick in range(ticks):
        rows = [
            {
                "gpu": gpu, "timestamp": _EPOCH_S + tick,
                "usage": {"gfx_activity": {"value": round(share()), "unit": "%"},
                          "vcn_activity": [{"value": 0, "unit": "%"}] * 4},
                "power": {"socket_power": {"value": round(power()), "unit": "W"}},
                "clock": {"gfx_0": {"clk": {"value": round(clock()), "unit": "MHz"}}},
                "temperature": {"hotspot": {"value": round(heat()), "unit": "C"}},
            }
            for gpu, (power, clock, heat, share) in enumerate(values)
        ]  # fmt: skip
        documents.append(json.dumps(rows, indent=4))
    return "\n".join(documents) + "\n"


def _amd_smi_text(ticks: int) -> str:
    """``amd-smi metric -w 1``."""
    blocks, values = [], _quantities()
    for tick in range(ticks):
        for gpu, (power, clock, heat, share) in enumerate(values):
            blocks.append(
                f"GPU: {gpu}\n    TIMESTAMP: {_EPOCH_S + tick}\n    USAGE:\n        GFX_ACTIVITY: {share():.0f} %\n"
                f"        VCN_ACTIVITY: [0 %, 0 %, 0 %, 0 %]\n    POWER:\n        SOCKET_POWER: {power():.0f} W\n"
                f"    CLOCK:\n        GFX_0:\n            CLK: {clock():.0f} MHz\n"
                f"    TEMPERATURE:\n        HOTSPOT: {heat():.0f} °C\n\n"
            )
    return "".join(blocks)


def _amd_smi_monitor(ticks: int) -> str:
    """``amd-smi monitor -ptuv -w 1``."""
    lines, values = [" TIMESTAMP  GPU  POWER   GPU_T   GFX%      VRAM_USAGE"], _quantities()
    for tick in range(ticks):
        for gpu, (power, _, heat, share) in enumerate(values):
            lines.append(
                f"{_EPOCH_S + tick}    {gpu}  {power():.0f} W   {heat():.0f} °C   {share():.0f} %    0.3/192.0 GB"
            )
    return "\n".join(lines) + "\n"


def _recorder(ticks: int) -> str:
    """``chopper-record``."""
    head = "realtime_ns,monotonic_ns,boottime_ns,gpu,current_socket_power,current_gfxclk,temperature_hotspot,energy_accumulator,system_clock_counter"
    lines, values = [head], _quantities()
    boot = 1_234_566_800_071_650
    for tick in range(ticks):
        for gpu, (power, clock, heat, _) in enumerate(values):
            at = 100_000_000 * tick + 50_000 * gpu
            lines.append(
                f"{_EPOCH_S * 10**9 + at},{boot + at},{boot + at + 130},{gpu},{power():.0f},{clock():.0f},"
                f"{heat():.0f},{38740027295 + 3_900_000 * tick},{boot + at + 1000}"
            )
    return "\n".join(lines) + "\n"


def _csv_of_a_loop(ticks: int, head: str, cells: Callable[..., str]) -> str:
    """rocm-smi's CSV in a loop that writes the time before each output; cells are those of a card, by its quantities."""
    text, values = [], _quantities()
    for tick in range(ticks):
        rows = "".join(f"card{gpu},{cells(*of_gpu)}\n" for gpu, of_gpu in enumerate(values))
        text.append(f"{_EPOCH_S + tick}\ndevice,{head}\n{rows}\n")
    return "".join(text)


def _rocm_smi_csv(ticks: int) -> str:
    """``rocm-smi -t -P -u --csv``."""
    head = "Temperature (Sensor junction) (C),Average Graphics Package Power (W),GPU use (%)"
    return _csv_of_a_loop(
        ticks, head, lambda power, _, heat, share: f"{heat():.1f},{power():.1f},{share():.0f}"
    )


def _rocm_smi_stamped(ticks: int) -> str:
    """rocm-smi's values as a script writes them, each row with its time."""
    lines, values = ["timestamp,device,power_watts,temp_junction_celsius"], _quantities()
    for tick in range(ticks):
        for gpu, (power, _, heat, _share) in enumerate(values):
            lines.append(f"{_EPOCH_S + tick},card{gpu},{power():.1f},{heat():.1f}")
    return "\n".join(lines) + "\n"


def _rocm_smi_json(ticks: int) -> str:
    """rocm-smi's JSON in a loop that writes the time before each output."""
    text, values = [], _quantities()
    for tick in range(ticks):
        cards = {
            f"card{gpu}": {
                "Temperature (Sensor junction) (C)": f"{heat():.1f}",
                "Average Graphics Package Power (W)": f"{power():.1f}",
                "GPU use (%)": f"{share():.0f}",
            }
            for gpu, (power, _, heat, share) in enumerate(values)
        }
        text.append(f"{_EPOCH_S + tick}\n{json.dumps(cards)}\n")
    return "".join(text)


def _rocm_smi_text(ticks: int) -> str:
    """rocm-smi's text in a loop that writes the time before each output."""
    text, values = [], _quantities()
    rule = "=" * 60
    for tick in range(ticks):
        lines = "".join(
            f"GPU[{gpu}]\t\t: Temperature (Sensor junction) (C): {heat():.1f}\n"
            f"GPU[{gpu}]\t\t: Average Graphics Package Power (W): {power():.1f}\n"
            f"GPU[{gpu}]\t\t: GPU use (%): {share():.0f}\n"
            for gpu, (power, _, heat, share) in enumerate(values)
        )
        text.append(
            f"{_EPOCH_S + tick}\n\n\n============ ROCm System Management Interface ============\n"
            f"==================== All ====================\n{lines}{rule}\n"
            "================== End of ROCm SMI Log ==================\n"
        )
    return "".join(text)


_CLOCK_MHZ = {"fclk": 2000, "mclk": 900, "socclk": 1100}
"""Clocks that stay, next to sclk, which does not."""


def _rocm_smi_clocks(ticks: int) -> str:
    """``rocm-smi -c`` in a loop that writes the time before each output: numbers are glued to their units."""
    text, values = [], _quantities()
    rule = "=" * 60
    for tick in range(ticks):
        lines = []
        for gpu, (_, clock, _, _) in enumerate(values):
            of_gpu = {**_CLOCK_MHZ, "sclk": round(clock())}
            lines += [
                f"GPU[{gpu}]\t\t: {name} clock level: {name == 'sclk':d}: ({mhz}Mhz)\n"
                for name, mhz in of_gpu.items()
            ]
            lines.append(f"GPU[{gpu}]\t\t: pcie clock level: 1 (16.0GT/s x16)\n")
        text.append(
            f"{_EPOCH_S + tick}\n\n\n============ ROCm System Management Interface ============\n"
            f"============ Current clock frequencies ============\n{''.join(lines)}{rule}\n"
            "================== End of ROCm SMI Log ==================\n"
        )
    return "".join(text)


def _rocm_smi_clocks_json(ticks: int) -> str:
    """``rocm-smi -c -P --json`` in a loop that writes the time before each output."""
    text, values = [], _quantities()
    for tick in range(ticks):
        cards = {
            f"card{gpu}": {
                "sclk clock speed:": f"({clock():.0f}Mhz)",
                "sclk clock level:": "1",
                "mclk clock speed:": "(900Mhz)",
                "mclk clock level:": "3",
                "Average Graphics Package Power (W)": f"{power():.1f}",
            }
            for gpu, (power, clock, _, _) in enumerate(values)
        }
        text.append(f"{_EPOCH_S + tick}\n{json.dumps(cards)}\n")
    return "".join(text)


def _rocm_smi_clocks_csv(ticks: int) -> str:
    """``rocm-smi -c -P --csv``."""
    head = "sclk clock speed:,sclk clock level:,mclk clock speed:,mclk clock level:,Average Graphics Package Power (W)"
    return _csv_of_a_loop(
        ticks, head, lambda power, clock, *_: f"({clock():.0f}Mhz),1,(900Mhz),3,{power():.1f}"
    )


def _rocm_smi_table(ticks: int) -> str:
    """``rocm-smi`` alone in a loop that writes the time before each output."""
    text, values = [], _quantities()
    rule = "=" * 110
    for tick in range(ticks):
        rows = "".join(
            f"{gpu}       {gpu + 2}     0x74a1,   {28851 + gpu}  {f'{heat():.1f}°C':<11} {f'{power():.1f}W':<9} NPS1, SPX, 0        "
            f"{f'{clock():.0f}Mhz':<8} 900Mhz  0%   auto  750.0W  0%     {share():.0f}%\n"
            for gpu, (power, clock, heat, share) in enumerate(values)
        )
        text.append(
            f"{_EPOCH_S + tick}\n\n\n{' ROCm System Management Interface ':=^110}\n{' Concise Info ':=^110}\n"
            "Device  Node  IDs              Temp        Power     Partitions          SCLK     MCLK    Fan  Perf  PwrCap  VRAM%  GPU%  \n"
            "              (DID,     GUID)  (Junction)  (Socket)  (Mem, Compute, ID)                                                   \n"
            f"{rule}\n{rows}{rule}\n{' End of ROCm SMI Log ':=^110}\n"
        )
    return "".join(text)


def _rocm_smi_all(ticks: int) -> str:
    """Most of ``rocm-smi -a`` in a loop that writes the time before each output, levels of clocks included."""
    text, values = [], _quantities()
    rule = "=" * 60
    for tick in range(ticks):
        lines = []
        for gpu, (power, clock, heat, share) in enumerate(values):
            sclk = round(clock())
            of_gpu = [
                "Device Name: AMD Instinct MI300X OAM", f"Unique ID: 0x{0x9246A5A1E0B7D3C1 + gpu:x}",
                f"Temperature (Sensor junction) (C): {heat():.1f}", "Temperature (Sensor HBM 0) (C): 41.0",
                "mclk clock level: 3: (1300Mhz)", f"sclk clock level: 1: ({sclk}Mhz)", "socclk clock level: 0: (29Mhz)",
                "Performance Level: auto", "Max Graphics Package Power (W): 750.0",
                f"Current Socket Graphics Package Power (W): {power():.1f}", f"GPU use (%): {share():.0f}",
                "Supported mclk frequencies on GPU" + str(gpu), "0: 900Mhz", "1: 1100Mhz", "2: 1200Mhz", "3: 1300Mhz *",
                "Supported sclk frequencies on GPU" + str(gpu), "0: 132Mhz", f"1: {sclk}Mhz *", "2: 2100Mhz",
                f"PCI Bus: 0000:{5 + 16 * gpu:02X}:00.0", "Voltage (mV): 842",
            ]  # fmt: skip
            lines += [f"GPU[{gpu}]\t\t: {line}\n" for line in of_gpu]
        text.append(
            f"{_EPOCH_S + tick}\n\n\n============ ROCm System Management Interface ============\n"
            f"{''.join(lines)}{rule}\n================== End of ROCm SMI Log ==================\n"
        )
    return "".join(text)


def _nvidia_smi_csv(ticks: int) -> str:
    """``nvidia-smi --query-gpu=… --format=csv -lms 100``."""
    lines = [
        "timestamp, index, name, pci.bus_id, utilization.gpu [%], power.draw [W], clocks.current.sm [MHz], memory.used [MiB]"
    ]
    values = _quantities()
    for tick in range(ticks):
        second = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(_EPOCH_S + tick // 10))
        for gpu, (power, clock, _, share) in enumerate(values):
            lines.append(
                f"{second}.{100 * (tick % 10) + 2 * gpu:03d}, {gpu}, NVIDIA H100 80GB HBM3, 00000000:{0x0F + gpu:02X}:00.0, "
                f"{share():.0f} %, {power():.2f} W, {clock():.0f} MHz, {1000 + gpu} MiB"
            )
    return "\n".join(lines) + "\n"


def _nvidia_smi_dmon(ticks: int) -> str:
    """``nvidia-smi dmon -s pucm -o DT``."""
    lines, values = [], _quantities()
    for row in range(ticks * GPUS):
        if row % 24 == 0:
            lines += [
                "#Date       Time        gpu    pwr  gtemp  mtemp     sm    mem   mclk   pclk     fb ",
                "#YYYYMMDD   HH:MM:SS    Idx      W      C      C      %      %    MHz    MHz     MB ",
            ]
        tick, gpu = divmod(row, GPUS)
        power, clock, heat, share = values[gpu]
        stamp = time.strftime(" %Y%m%d   %H:%M:%S  ", time.gmtime(_EPOCH_S + tick))
        lines.append(
            f"{stamp}    {gpu}    {power():.0f}     {heat():.0f}      -     {share():.0f}     50   2619   {clock():.0f}  70000 "
        )
    return "\n".join(lines) + "\n"


def _dcgmi(ticks: int) -> str:
    """``dcgmi dmon`` with a time before each line."""
    names, units = ["POWER", "TOTEC", "SMCLK", "MMTMP", "SMACT"], ["W", "mJ", "", "C", ""]
    lines, values = [], _quantities()
    for row in range(ticks * GPUS):
        tick, gpu = divmod(row, GPUS)
        stamp = f"{_EPOCH_S + tick // 10}.{tick % 10} "
        if row % 24 == 0:
            lines.append(f"{stamp}{'#Entity':<17}" + "".join(f"{n:<13}" for n in names))
            lines.append(f"{stamp}{'ID':<17}" + "".join(f" {u:<12}" for u in units))
        power, clock, heat, share = values[gpu]
        cells = [f"{power():.3f}", str(10**9 + 40_000 * tick), f"{clock():.0f}", f"{heat():.0f}"]
        cells.append(f"{share() / 100:.3f}")
        lines.append(f"{stamp}{f'GPU {gpu}':<17}" + "".join(f"{c:<13}" for c in cells))
    return "\n".join(lines) + "\n"


def _zeus(ticks: int) -> str:
    """A record of power by Zeus."""
    lines, values = ["time," + ",".join(f"gpu{g}" for g in range(GPUS))], _quantities()
    for tick in range(ticks):
        powers = ",".join(f"{row[0]():.3f}" for row in values)
        lines.append(f"{_EPOCH_S + tick // 10}.{tick % 10}12345,{powers}")
    return "\n".join(lines) + "\n"


TELEMETRY: dict[str, tuple[Callable[[int], str], str]] = {
    "amd-smi CSV": (_amd_smi_csv, "csv"),
    "amd-smi JSON": (_amd_smi_json, "json"),
    "amd-smi text": (_amd_smi_text, "txt"),
    "amd-smi monitor": (_amd_smi_monitor, "txt"),
    "recorder": (_recorder, "csv"),
    "rocm-smi CSV": (_rocm_smi_csv, "csv"),
    "rocm-smi rows": (_rocm_smi_stamped, "csv"),
    "rocm-smi JSON": (_rocm_smi_json, "json"),
    "rocm-smi text": (_rocm_smi_text, "txt"),
    "rocm-smi -c": (_rocm_smi_clocks, "txt"),
    "rocm-smi -c JSON": (_rocm_smi_clocks_json, "json"),
    "rocm-smi -c CSV": (_rocm_smi_clocks_csv, "csv"),
    "rocm-smi -a": (_rocm_smi_all, "txt"),
    "rocm-smi table": (_rocm_smi_table, "txt"),
    "nvidia-smi CSV": (_nvidia_smi_csv, "csv"),
    "nvidia-smi dmon": (_nvidia_smi_dmon, "txt"),
    "dcgmi": (_dcgmi, "txt"),
    "zeus": (_zeus, "csv"),
}


def make_telemetry(folder: Path, form: str, megabytes: float) -> Path:
    """A file of one tool's telemetry of about this size."""
    make, ending = TELEMETRY[form]
    ticks = round(megabytes * 1e6 / (len(make(20)) / 20))
    path = folder / f"{form.replace(' ', '-')}-{megabytes:g}.{ending}"
    path.write_text(make(max(ticks, 1)), encoding="utf-8")
    return path


def _spent() -> float:
    """Seconds of processors of this process, and of those that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def read_one(path: Path, *, ets: bool) -> None:
    """Read, write Perfetto or ETs; print seconds of each and the peak of memory as JSON."""
    from chopper_interop import pipeline

    start = _spent()
    trace = pipeline.read(path)
    read = _spent() - start
    start = _spent()
    with tempfile.TemporaryDirectory() as out:
        if ets:
            pipeline.write(trace, Path(out) / "a.et", mode="gpu", streams="npus")
        else:
            pipeline.write(trace, Path(out) / "a.pftrace")
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"read": read, "write": _spent() - start, "MiB": memory}))


def _measured(path: Path, *, ets: bool = False) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", str(path), *(["ets"] if ets else [])]
    result: dict[str, float] = json.loads(subprocess.check_output(command).splitlines()[-1])
    return result


def _each_number(what: str, sizes: list[int]) -> None:
    """A table of seconds and memory for each of a number of things, less those of the first size."""
    print(f"{what:>8} {'read s':>8} {'write s':>8} {'MiB':>7} {'ms each':>8} {'KiB each':>9}")
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        for size in sizes:
            m = _measured(MAKERS[what](Path(name) / f"{size}", size), ets=what == "streams")
            first = first or m
            line = f"{size:8,} {m['read']:8.2f} {m['write']:8.2f} {m['MiB']:7.0f}"
            if m is not first:
                more = size - sizes[0]
                seconds = m["read"] + m["write"] - first["read"] - first["write"]
                line += (
                    f" {1e3 * seconds / more:8.2f} {1024 * (m['MiB'] - first['MiB']) / more:9.0f}"
                )
            print(line, flush=True)


def _telemetry(sizes: list[float]) -> None:
    """A table of the rate of each form, between the first size and the last."""
    print(f"{'form':16} {'read s':>8} {'write s':>8} {'MiB':>7} {'MB/s read':>10}")
    with tempfile.TemporaryDirectory() as name:
        for form in TELEMETRY:
            paths = [make_telemetry(Path(name), form, size) for size in sizes]
            small, large = (_measured(path) for path in (paths[0], paths[-1]))
            megabytes = (paths[-1].stat().st_size - paths[0].stat().st_size) / 1e6
            rate = megabytes / max(large["read"] - small["read"], 1e-3)
            print(
                f"{form:16} {large['read']:8.2f} {large['write']:8.2f} {large['MiB']:7.0f} {rate:10.1f}",
                flush=True,
            )


def main() -> None:
    """Print the tables."""
    if sys.argv[1:2] == ["--one"]:
        read_one(Path(sys.argv[2]), ets=sys.argv[3:] == ["ets"])
        return
    chosen = sys.argv[1:2] or list(SIZES)
    for what in chosen:
        given = sys.argv[2:]
        if what == "telemetry":
            _telemetry([float(text) for text in given] or list(map(float, SIZES[what])))
        else:
            _each_number(what, [int(text) for text in given] or SIZES[what])


if __name__ == "__main__":
    main()

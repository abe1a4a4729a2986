"""Files as tools write them: PyTorch's profiler, telemetry, and rocprofv3's counters."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sensor_jobs.sensors import Sensor
from sensor_jobs.signals import Steps
from sensor_jobs.simulation import AFTER_NS, CALL_NS, Gpu, Ran, Run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sensor_jobs.programs import Kernel, Program

START_NS = 1_795_207_800_000_000_000  # of a run, in unix time
BASE_NS = 1_790_857_026_000_000_000
BOOT_NS = 1_790_000_000_000_000_000  # CLOCK_BOOTTIME is 0 here
ACTIVITY = Sensor(mean_ns=100_000_000, hold_ns=100_000_000, quantum=0.01)
READ_NS = 60_000  # from the driver's reading to the recorder's clocks
JOULE_TICKS = 65_536  # of the energy counter
_LAUNCH = {"amd": "hipLaunchKernel", "nvidia": "cudaLaunchKernel"}
_PREFIX = {"amd": "hip", "nvidia": "cuda"}
_COMM = {
    "amd": "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)",
    "nvidia": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
}
_FIRST_AGENT = 2  # agents 0 and 1 are processors
BUCKET_ELEMENTS = 50_000_000


# PyTorch's profiler


def write_kineto(run: Run, folder: Path) -> None:
    """Write a trace of the recorded steps for each rank."""
    for rank in range(run.program.gpus):
        (folder / f"rank{rank}.json").write_bytes(msgspec.json.encode(_kineto(run, rank)))


def _us(ns: int) -> float:
    return round((ns + START_NS - BASE_NS) / 1000, 3)


def _kineto(run: Run, rank: int) -> dict[str, Any]:
    program, gpus = run.program, run.program.gpus
    ranks = list(range(gpus))
    document: dict[str, Any] = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": i, "name": program.product, "warpSize": 64, "numSms": 304}
            if program.vendor == "amd"
            else {"id": i, "name": program.product, "warpSize": 32, "numSms": 132}
            for i in ranks
        ],
        "record_shapes": 1,
        "displayTimeUnit": "ms",
        "baseTimeNanoseconds": BASE_NS,
    }
    if gpus > 1:
        group = {"pg_name": "0", "pg_desc": "default_pg", "backend_config": "cuda:nccl"}
        document["distributedInfo"] = {
            "backend": "nccl", "rank": rank, "world_size": gpus, "pg_count": 1,
            "pg_config": [{**group, "pg_size": gpus, "ranks": ranks}], "nccl_version": "2.22.3",
        }  # fmt: skip
    document["traceEvents"] = _Profiled(run, rank).events()
    document["traceName"] = f"rank{rank}.json"
    return document


@dataclass
class _Profiled:
    """The events of one rank."""

    run: Run
    rank: int

    def __post_init__(self) -> None:
        self.pid = 40_000 + self.rank
        self.device = self.rank + (_FIRST_AGENT if self.run.program.vendor == "amd" else 0)
        self.number = 0
        self.made: list[dict[str, Any]] = []

    def events(self) -> list[dict[str, Any]]:
        gpu, recorded = self.run.gpus[self.rank], self.run.recorded
        for step, (begin_ns, sync_ns, end_ns) in enumerate(gpu.steps):
            if step in recorded:
                self._host("user_annotation", f"ProfilerStep#{step}", begin_ns, end_ns)
                call = f"{_PREFIX[self.run.program.vendor]}DeviceSynchronize"
                self.number += 1
                self._call(call, sync_ns, end_ns - sync_ns)
        for ran in gpu.work:
            if ran.step in recorded:
                self._work(ran)
        return self.made

    def _event(self, cat: str, name: str, start_ns: int, end_ns: int, **more: Any) -> None:
        self.made.append(
            {
                "ph": "X", "cat": cat, "name": name, "pid": self.pid, "tid": self.pid,
                "ts": _us(start_ns), "dur": round((end_ns - start_ns) / 1000, 3), **more,
            }
        )  # fmt: skip

    def _host(self, cat: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        self.number += 1
        numbers = {"External id": self.number, "Record function id": 0, "Ev Idx": self.number}
        self._event(cat, name, start_ns, end_ns, args=numbers | args)

    def _call(self, name: str, start_ns: int, length_ns: int, **args: Any) -> None:
        self._event(
            "cuda_runtime", name, start_ns, start_ns + length_ns,
            args={"cid": 1, "correlation": self.number, **args},
        )  # fmt: skip

    def _work(self, ran: Ran) -> None:
        if ran.kernel < 0:
            self._all_reduce(ran)
            return
        kernel = self.run.program.kernels[ran.kernel]
        began_ns = ran.launch_ns - 2000
        dims = [[kernel.grid, 64], [64, 64]]
        self._host(
            "cpu_op", kernel.operator, began_ns, ran.launch_ns + CALL_NS + 500,
            **{"Input Dims": dims, "Input type": ["c10::BFloat16", "c10::BFloat16"]},
        )  # fmt: skip
        self._launched(ran, kernel.name, kernel.grid, stream=0)

    def _launched(self, ran: Ran, name: str, grid: int, stream: int, **args: Any) -> None:
        external = self.number
        self.number += 1
        vendor = self.run.program.vendor
        shape = {"grid": [grid, 1, 1], "block": [256, 1, 1]}
        shaped = {"kernel": name, **shape} if vendor == "amd" else {}
        self._call(_LAUNCH[vendor], ran.launch_ns, CALL_NS, **shaped)
        where = {"device": self.device, "stream": stream, "correlation": self.number, **shape}
        if vendor == "amd":
            where["kind"] = "Dispatch Kernel"
        self._event(
            "kernel", name, ran.start_ns, ran.end_ns, pid=self.device, tid=stream,
            args={"External id": external, **where, **args},
        )  # fmt: skip
        flow = {"id": self.number, "cat": "ac2g", "name": "ac2g"}
        host = {"pid": self.pid, "tid": self.pid, "ts": _us(ran.launch_ns)}
        device = {"pid": self.device, "tid": stream, "ts": _us(ran.start_ns)}
        self.made.append({"ph": "s", **flow, **host})
        self.made.append({"ph": "f", "bp": "e", **flow, **device})

    def _all_reduce(self, ran: Ran) -> None:
        gpus, vendor = self.run.program.gpus, self.run.program.vendor
        stream, prefix = (4 if vendor == "amd" else 20), _PREFIX[vendor]
        meta = {
            "Collective name": "allreduce", "dtype": "BFloat16",
            "In msg nelems": BUCKET_ELEMENTS, "Out msg nelems": BUCKET_ELEMENTS,
            "Group size": gpus, "In split size": "[]", "Out split size": "[]",
            "Process Group Name": "0", "Process Group Description": "default_pg",
            "Process Group Ranks": str(list(range(gpus))),
        }  # fmt: skip
        began_ns = ran.launch_ns - 6000
        for name, at_ns in ((f"{prefix}EventRecord", 0), (f"{prefix}StreamWaitEvent", 1000)):
            self.number += 1
            self._call(name, began_ns + at_ns, 800)
        self._host(
            "user_annotation", "nccl:all_reduce", began_ns + 2000, ran.launch_ns + CALL_NS + 1000
        )
        self._host(
            "cpu_op", "record_param_comms", began_ns + 2500, ran.launch_ns + CALL_NS + 500,
            **meta, Rank=self.rank, Seq=ran.step,
        )  # fmt: skip
        self._launched(ran, _COMM[vendor], 64, stream, **meta)
        for name, at_ns in (("EventRecord", 1500), ("StreamWaitEvent", 2500)):
            self.number += 1
            self._call(prefix + name, ran.launch_ns + CALL_NS + at_ns, 800)


# telemetry


@dataclass(frozen=True)
class Telemetry:
    """How telemetry is recorded: the tool, its period, and the sensors behind clock and power."""

    tool: str  # recorder, recorder of NVML, nvidia-smi or amd-smi
    period_ns: int
    clock: Sensor
    power: Sensor


def sample_times_ns(run: Run, telemetry: Telemetry) -> list[np.ndarray]:
    """Return when each GPU is read: one GPU after the other, with a jitter of 3 % of the period."""
    random = np.random.default_rng([run.program.seed, 3])
    start = 1_100_000_000  # what precedes is for averages
    end = max(gpu.steps[-1][2] for gpu in run.gpus) + AFTER_NS - 100_000_000
    # amd-smi sleeps between readings, which take time as well
    period = telemetry.period_ns * (1.05 if telemetry.tool == "amd-smi" else 1.0)
    first = start + random.uniform(0, min(period, 400_000_000))
    ticks = np.arange(first, end, period)
    ticks += random.uniform(0, 0.03, len(ticks)) * period
    apart = min(600_000, period / 20)
    return [(ticks + i * apart).astype(np.int64) for i in range(run.program.gpus)]


@dataclass(frozen=True)
class Readings:
    """Readings of one GPU: times, clock in MHz, power in W, energy in J, and activity in %."""

    times_ns: np.ndarray
    mhz: np.ndarray
    watts: np.ndarray
    joules: np.ndarray
    active: np.ndarray


def readings(run: Run, telemetry: Telemetry) -> list[Readings]:
    """Return what the tool read of each GPU."""
    random = np.random.default_rng([run.program.seed, 4])
    lacking = np.random.default_rng([run.program.seed, 6]).uniform(*telemetry.clock.at_highest)
    read = []
    for gpu, times in zip(run.gpus, sample_times_ns(run, telemetry), strict=True):
        phases = random.random(2)
        mhz, watts, busy = _signals(gpu)
        # What work lacks of the highest clock it does not lack of lower ones; no clock reads as more than the highest.
        shown = np.minimum(mhz.values * lacking, run.program.max_mhz)
        mhz = Steps(mhz.edges_ns, np.where(mhz.values < run.program.max_mhz, shown, mhz.values))
        read.append(
            Readings(
                times,
                telemetry.clock.read(mhz, times, phases[0]),
                telemetry.power.read(watts, times, phases[1]),
                watts.integral(times) / 1e9,
                100 * ACTIVITY.read(busy, times, phases[0]),
            )
        )
    return read


def _signals(gpu: Gpu) -> tuple[Steps, Steps, Steps]:
    """Return clock, power and activity of a GPU in a run that has ended."""
    if gpu.mhz is None or gpu.watts is None or gpu.busy is None:
        raise ValueError("the run has not ended")
    return gpu.mhz, gpu.watts, gpu.busy


def write_telemetry(run: Run, telemetry: Telemetry, folder: Path) -> Path:
    """Write what the tool writes; return its file."""
    writer = {
        "recorder": _recorder,
        "recorder of NVML": _recorder_of_nvml,
        "nvidia-smi": _nvidia_smi,
        "amd-smi": _amd_smi,
    }
    path = folder / f"{telemetry.tool.partition(' ')[0]}.csv"
    path.write_text(writer[telemetry.tool](run, readings(run, telemetry)), newline="")
    return path


def _in_time_order(read: list[Readings]) -> Iterator[tuple[int, int, float, float, float, float]]:
    """Iterate over all readings: time, GPU, clock, power, energy, activity."""
    columns = [np.concatenate([getattr(r, field.name) for r in read]) for field in fields(Readings)]
    gpus = np.concatenate([np.full(len(r.times_ns), i) for i, r in enumerate(read)])
    columns.insert(1, gpus)
    order = np.argsort(columns[0], kind="stable")
    return zip(*(c[order].tolist() for c in columns), strict=True)


def _recorder(run: Run, read: list[Readings]) -> str:
    del run
    head = (
        "realtime_ns,monotonic_ns,boottime_ns,gpu,current_socket_power,current_gfxclk,temperature_hotspot,"
        "average_gfx_activity,energy_accumulator,system_clock_counter,firmware_timestamp"
    )
    boot_ns = START_NS - BOOT_NS
    rows = [
        f"{t + START_NS + READ_NS},{t + boot_ns + READ_NS},{t + boot_ns + READ_NS},{g},{w:.0f},{f:.0f},55,"
        f"{a:.0f},{joules * JOULE_TICKS:.0f},{t + boot_ns},{t + boot_ns}"
        for t, g, f, w, joules, a in _in_time_order(read)
    ]
    return "\n".join([head, *rows, ""])


def _recorder_of_nvml(run: Run, read: list[Readings]) -> str:
    del run
    head = "realtime_ns,monotonic_ns,boottime_ns,gpu,nvml_power,nvml_sm_clock,nvml_utilization_gpu"
    boot_ns = START_NS - BOOT_NS
    rows = [
        f"{t + START_NS + READ_NS},{t + boot_ns + READ_NS},{t + boot_ns + READ_NS},{g},{w:.3f},{f:.0f},{a:.0f}"
        for t, g, f, w, _, a in _in_time_order(read)
    ]
    return "\n".join([head, *rows, ""])


def _nvidia_smi(run: Run, read: list[Readings]) -> str:
    """Write `nvidia-smi --query-gpu=… --format=csv -lms 100` on a machine in UTC."""
    head = "timestamp, index, name, pci.bus_id, power.draw [W], clocks.current.sm [MHz], utilization.gpu [%]"
    name = run.program.product
    rows = []
    for t, g, f, w, _, a in _in_time_order(read):
        seconds, ns = divmod(t + START_NS, 1_000_000_000)
        stamp = f"{datetime.fromtimestamp(seconds, timezone.utc):%Y/%m/%d %H:%M:%S}.{ns // 1_000_000:03d}"
        bus = f"00000000:{16 * (g + 1):02X}:00.0"
        rows.append(f"{stamp}, {g}, {name}, {bus}, {w:.2f} W, {f:.0f} MHz, {a:.0f} %")
    return "\n".join([head, *rows, ""])


def _amd_smi(run: Run, read: list[Readings]) -> str:
    """Write `amd-smi metric -p -c -w 1 --csv`: stamps are whole seconds, taken after a GPU was read."""
    top = int(run.program.max_mhz)
    names = [f"gfx_{i}" for i in range(8)]
    per_clock = ("clk", "min_clk", "max_clk", "clk_locked", "deep_sleep")
    head = ["timestamp", "gpu", "socket_power", "gfx_voltage", "soc_voltage", "mem_voltage"]
    head += ["throttle_status", "power_management", *(f"{n}_{c}" for n in names for c in per_clock)]
    lines = ["'CTRL' + 'C' to stop watching output:"]
    for t, g, f, w, _, _ in _in_time_order(read):
        if g == 0:
            lines += ["", ",".join(head)] if len(lines) > 1 else [",".join(head)]
        clocks = f",{f:.0f},132,{top},DISABLED,DISABLED" * 8
        lines.append(
            f"{(t + START_NS) // 1_000_000_000},{g},{w:.0f},N/A,N/A,N/A,N/A,ENABLED{clocks}"
        )
    return "\r\n".join([*lines, ""])


# counters

OVERHEAD_CYCLES = 4000  # of the profiler, at every dispatch
_XCCS, _SIMDS = 8, 1216
_COUNTER_HEAD = (
    '"Correlation_Id","Dispatch_Id","Agent_Id","Queue_Id","Process_Id","Thread_Id","Grid_Size","Kernel_Id",'
    '"Kernel_Name","Workgroup_Size","LDS_Block_Size","Scratch_Size","VGPR_Count","Accum_VGPR_Count","SGPR_Count",'
    '"Counter_Name","Counter_Value","Start_Timestamp","End_Timestamp"'
)
_AGENT_HEAD = (
    '"Node_Id","Logical_Node_Id","Agent_Type","Cpu_Cores_Count","Simd_Count","Wave_Front_Size","Num_Xcc",'
    '"Cu_Count","Simd_Per_Cu","Gfx_Target_Version","Max_Engine_Clk_Fcompute","Gpu_Id","Name","Vendor_Name",'
    '"Product_Name"'
)


def write_counters(run: Run, folder: Path, steps: int = 2) -> list[Path]:
    """Write rocprofv3's counters of a run of some steps, for each rank: cycles, and those of matrix cores."""
    program = run.program
    paths = []
    for rank in range(program.gpus):
        random = np.random.default_rng([program.seed, 5, rank])
        cool = random.uniform(0.88, 0.99)  # clock of this run, which is serialised
        now_ns = float(9_000_000_000_000)
        rows = [_COUNTER_HEAD]
        order = list(range(len(program.kernels)))
        if program.gpus > 1:
            order.insert(len(program.forward) + len(program.backward), -1)
        for dispatch, index in enumerate(order * steps, 1):
            kernel = program.kernels[index] if index >= 0 else None
            length_ns, counted = _counted(program, kernel, cool, random)
            name = kernel.name if kernel else _COMM["amd"]
            grid = kernel.grid if kernel else 64
            for counter, value in counted.items():
                rows.append(
                    f'{dispatch},{dispatch},"Agent {rank + _FIRST_AGENT}",1,{50_000 + rank},{50_000 + rank},{grid * 256},'
                    f'{index + 10},"{name}",256,0,0,32,0,32,"{counter}",{value}.000000,'
                    f"{int(now_ns)},{int(now_ns + length_ns)}"
                )
            now_ns += length_ns + 40_000
        path = folder / f"rank{rank}" / f"{50_000 + rank}_counter_collection.csv"
        path.parent.mkdir(parents=True)
        path.write_text("\n".join([*rows, ""]))
        path.with_name(f"{50_000 + rank}_agent_info.csv").write_text(_agents(program))
        paths.append(path)
    return paths


def _agents(program: Program) -> str:
    """Return what rocprofv3 says of the agents of the machine."""
    rows = [_AGENT_HEAD]
    cpu = '"CPU",96,0,0,0,0,0,0,0,0,"AMD EPYC 9684X","CPU","AMD EPYC 9684X"'
    gpu = f'"GPU",0,{_SIMDS},64,{_XCCS},304,4,90402,{program.max_mhz:.0f}'
    rows += [f"{n},{n},{cpu}" for n in range(_FIRST_AGENT)]
    for n in range(_FIRST_AGENT, _FIRST_AGENT + program.gpus):
        rows.append(f'{n},{n},{gpu},{20_000 + n},"gfx942","AMD","{program.product}"')
    return "\n".join([*rows, ""])


def _counted(
    program: Program, kernel: Kernel | None, share: float, random: np.random.Generator
) -> tuple[float, dict[str, int]]:
    """Return length and counters of one kernel in the run with counters; None is communication."""
    share = min(1.0, share * (1 + 0.005 * random.standard_normal()))
    if kernel is None:
        length_ns, busy = program.transfer_ns, 0.0
    else:
        pace = (1 - kernel.beta) + kernel.beta / share
        length_ns = kernel.work_ns * pace * float(np.exp(kernel.noise * random.standard_normal()))
        busy = 0.85 * kernel.beta / share / pace if kernel.matrix else 0.0
    cycles = length_ns * share * program.max_mhz / 1000
    return length_ns, {
        "GRBM_GUI_ACTIVE": round((cycles + OVERHEAD_CYCLES) * _XCCS),
        "SQ_VALU_MFMA_BUSY_CYCLES": round(cycles * busy * _SIMDS),
    }

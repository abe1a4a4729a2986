"""CSV files of rocprofv3 (ROCm 7.0): counters, kernel trace and agents of each pass and process."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo import counter_runs, noise
from chopper_interop.demo.identity import Identity, identity
from chopper_interop.demo.parameters import CPU_AGENTS, GPUS, NODE, DemoParameters
from chopper_interop.demo.program import distinct
from chopper_interop.demo.render import Compiled, Template

if TYPE_CHECKING:
    from chopper_interop.demo.counter_runs import CounterTimes, Dispatch
    from chopper_interop.demo.job import DemoJob

KERNEL_TRACE = (
    "Kind,Agent_Id,Queue_Id,Stream_Id,Thread_Id,Dispatch_Id,Kernel_Id,Kernel_Name,Correlation_Id,"
    "Start_Timestamp,End_Timestamp,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,"
    "SGPR_Count,Workgroup_Size_X,Workgroup_Size_Y,Workgroup_Size_Z,Grid_Size_X,Grid_Size_Y,"
    "Grid_Size_Z"
)
COUNTER_COLLECTION = (
    "Correlation_Id,Dispatch_Id,Agent_Id,Queue_Id,Process_Id,Thread_Id,Grid_Size,Kernel_Id,"
    "Kernel_Name,Workgroup_Size,LDS_Block_Size,Scratch_Size,VGPR_Count,Accum_VGPR_Count,SGPR_Count,"
    "Counter_Name,Counter_Value,Start_Timestamp,End_Timestamp"
)
AGENT_INFO = (
    "Node_Id,Logical_Node_Id,Agent_Type,Cpu_Cores_Count,Simd_Count,Cpu_Core_Id_Base,Simd_Id_Base,"
    "Max_Waves_Per_Simd,Lds_Size_In_Kb,Gds_Size_In_Kb,Num_Gws,Wave_Front_Size,Num_Xcc,Cu_Count,"
    "Array_Count,Num_Shader_Banks,Simd_Arrays_Per_Engine,Cu_Per_Simd_Array,Simd_Per_Cu,"
    "Max_Slots_Scratch_Cu,Gfx_Target_Version,Vendor_Id,Device_Id,Location_Id,Domain,"
    "Drm_Render_Minor,Num_Sdma_Engines,Num_Sdma_Xgmi_Engines,Num_Sdma_Queues_Per_Engine,"
    "Num_Cp_Queues,Max_Engine_Clk_Ccompute,Max_Engine_Clk_Fcompute,Sdma_Fw_Version,Fw_Version,"
    "Capability,Cu_Per_Engine,Max_Waves_Per_Cu,Family_Id,Workgroup_Max_Size,Grid_Max_Size,"
    "Local_Mem_Size,Hive_Id,Gpu_Id,Workgroup_Max_Dim_X,Workgroup_Max_Dim_Y,Workgroup_Max_Dim_Z,"
    "Grid_Max_Dim_X,Grid_Max_Dim_Y,Grid_Max_Dim_Z,Name,Vendor_Name,Product_Name,Model_Name"
)
# Numbers as rocprofv3 gives them; the first kernels are the runtime's own.
_QUEUE = 1
_STREAM = 0
_FIRST_KERNEL_ID = 14
# Buses of the eight GPUs of a node.
_BUSES = (0x0C, 0x22, 0x38, 0x5C, 0x9F, 0xAF, 0xBF, 0xDF)
_CPU = "AMD EPYC 9654 96-Core Processor"
_CORES = 192
"""Hardware threads of a node's socket."""


def write_rocprof(job: DemoJob, folder: Path, *, workers: int) -> None:
    """Write ``pmc_<n>/<node>/<pid>_*.csv`` of all passes and ranks.

    Parameters
    ----------
    workers
        Threads; each writes one process at a time.
    """
    first = counter_runs.start_up()
    steps = {id(program): counter_runs.dispatches(program) for program in distinct(job.programs)}
    with ThreadPoolExecutor(workers) as pool:
        writing = []
        for number, names in enumerate(counter_runs.PASSES, 1):
            place = folder / f"pmc_{number}" / NODE
            place.mkdir(parents=True)
            start = _DispatchTemplates(first, names, number)
            plans = {
                key: [start, _DispatchTemplates(part, names, number)] for key, part in steps.items()
            }
            writing += [
                pool.submit(_write_process, job, place, plans[id(program)], (number, rank))
                for rank, program in enumerate(job.programs)
            ]
        for task in writing:
            task.result()


class _DispatchTemplates:
    """Templates for the dispatches of the start-up or of a step in one pass.

    The pool is: agent, process, the two threads, then first number, start, end and
    GRBM_GUI_ACTIVE of each dispatch.
    """

    def __init__(self, kernels: list[Dispatch], names: tuple[str, ...], number: int) -> None:
        self.kernels = kernels
        self.laws = counter_runs.dispatch_laws(kernels)
        self.numbers = np.array([d.number for d in kernels])
        names_of_kernels = dict.fromkeys(d.kernel.name for d in kernels)
        first = _FIRST_KERNEL_ID + 3 * number
        self.ids = {
            name: 6 + len(name) % 2 if name.startswith("__amd") else first + i
            for i, name in enumerate(names_of_kernels)
        }
        trace, counts = Template(), Template()
        for i, dispatch in enumerate(kernels):
            self._trace_row(trace, i, dispatch)
            for name in names:
                self._counter_row(counts, i, dispatch, name)
        self.trace: Compiled = trace.compile()
        self.counts: Compiled = counts.compile()

    def pool(self, who: Identity, first: int, times: CounterTimes) -> Array:
        """Numbers of one process and step; dispatches count from `first`."""
        fixed = np.array([who.device, who.tid(0), who.tid(0), who.tid(1)])
        parts = [fixed, first + self.numbers, times.start_ns, times.end_ns, times.gui_active]
        return np.concatenate(parts).astype(np.int64)

    def _number_slot(self, column: int, i: int) -> int:
        return 4 + column * len(self.kernels) + i

    def _trace_row(self, t: Template, i: int, dispatch: Dispatch) -> None:
        kernel = dispatch.kernel
        t.text('"KERNEL_DISPATCH","Agent ').slot(0).text(f'",{_QUEUE},{_STREAM},')
        t.slot(2 + dispatch.thread).text(",").slot(self._number_slot(0, i))
        t.text(f',{self.ids[kernel.name]},"{kernel.name}",').slot(self._number_slot(0, i)).text(",")
        t.slot(self._number_slot(1, i)).text(",").slot(self._number_slot(2, i))
        shape = ",".join(map(str, (*kernel.block, *kernel.work_items)))
        t.text(f",{_registers(dispatch)},{shape}\n")

    def _counter_row(self, t: Template, i: int, dispatch: Dispatch, name: str) -> None:
        kernel = dispatch.kernel
        t.slot(self._number_slot(0, i)).text(",").slot(self._number_slot(0, i)).text(
            ',"Agent '
        ).slot(0)
        t.text(f'",{_QUEUE},').slot(1).text(",").slot(2 + dispatch.thread)
        work, group = (math.prod(n) for n in (kernel.work_items, kernel.block))
        t.text(f',{work},{self.ids[kernel.name]},"{kernel.name}",{group},{_registers(dispatch)}')
        t.text(f',"{name}",')
        if name == "GRBM_GUI_ACTIVE":
            t.slot(self._number_slot(3, i)).text(".000000")
        else:
            t.text(_decimal(counter_runs.counters(kernel)[name]))
        t.text(",").slot(self._number_slot(1, i)).text(",").slot(self._number_slot(2, i)).text("\n")


def _registers(dispatch: Dispatch) -> str:
    k = dispatch.kernel
    return f"{k.lds_bytes},0,{k.vgprs},{k.accum_vgprs},{k.sgprs}"


def _decimal(value: float) -> str:
    """Format a counter as the tool does: six decimals from 1 on, scientific below."""
    return f"{value:.6f}" if value >= 1 else f"{value:.8e}"


def _header(columns: str) -> bytes:
    quoted = columns.replace(",", '","')
    return f'"{quoted}"\n'.encode()


def _write_process(
    job: DemoJob, folder: Path, plans: list[_DispatchTemplates], run: tuple[int, int]
) -> None:
    """Write the three files of one process: pass and rank are `run`."""
    number, rank = run
    who = identity(job.parameters.seed, rank, number)
    begin_ns, first = counter_runs.pass_begin_ns(job.parameters, number, rank), 1
    pools: list[tuple[_DispatchTemplates, Array]] = []
    for step in range(-1, job.parameters.counter_steps):
        plan = plans[step >= 0]
        times = counter_runs.counter_times(
            job, plan.kernels, plan.laws, (number, rank, step), begin_ns
        )
        pools.append((plan, plan.pool(who, first, times)))
        begin_ns = int(times.end_ns[-1]) + 2_000_000
        first += counter_runs.FIRST_DISPATCH if step < 0 else len(job.programs[rank].gpu)
    with (folder / f"{who.pid}_kernel_trace.csv").open("wb") as file:
        file.write(_header(KERNEL_TRACE))
        file.writelines(plan.trace.render(pool) for plan, pool in pools)
    with (folder / f"{who.pid}_counter_collection.csv").open("wb") as file:
        file.write(_header(COUNTER_COLLECTION))
        file.writelines(plan.counts.render(pool) for plan, pool in pools)
    (folder / f"{who.pid}_agent_info.csv").write_bytes(agent_info(job.parameters))


def agent_info(parameters: DemoParameters) -> bytes:
    """Return the table of the node's agents: two CPU sockets and eight GPUs."""
    rows = [_cpu(i) for i in range(CPU_AGENTS)] + [_gpu(parameters, i) for i in range(GPUS)]
    return _header(AGENT_INFO) + "".join(f"{row}\n" for row in rows).encode()


def _cpu(index: int) -> str:
    """Return the row of a CPU socket; what it has not is 0."""
    known = {
        "Node_Id": index, "Logical_Node_Id": index, "Cpu_Cores_Count": _CORES,
        "Cpu_Core_Id_Base": index * _CORES, "Num_Xcc": 1, "Cu_Count": _CORES,
        "Max_Engine_Clk_Ccompute": 2400, "Family_Id": 25,
    }  # fmt: skip
    words = {"Agent_Type": "CPU", "Vendor_Name": "CPU", "Model_Name": ""}
    words["Name"] = words["Product_Name"] = _CPU
    columns = AGENT_INFO.split(",")
    return ",".join(f'"{words[c]}"' if c in words else str(known.get(c, 0)) for c in columns)


def _gpu(parameters: DemoParameters, index: int) -> str:
    node = CPU_AGENTS + index
    gpu_id = int(noise.uniform(0, noise.IDENTITY, -1, -1, index) * 60_000) + 2_000
    numbers = (
        f"0,1216,0,{2147487744 + 40 * index},8,64,0,64,64,8,304,32,32,1,10,4,32,90402,4098,29857,"
        f"{_BUSES[index] << 8},0,{128 + 8 * index},2,14,8,24,2400,{parameters.peak_mhz},24,186,2893521536,9,32,"
        f"141,1024,4294967295,0,18143416471259055690,{gpu_id},1024,1024,1024,2147483647,65535,65535"
    )
    return f'{node},{node},"GPU",{numbers},"gfx942","AMD","AMD Instinct MI300X","ip discovery"'

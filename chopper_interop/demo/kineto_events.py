"""Templates of the events of a step as Kineto's JSON logger writes them (torch 2.8, roctracer)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from chopper_interop.demo.identity import STREAMS
from chopper_interop.demo.program import COLLECTIVE, KERNEL, MEMCPY, Event, GpuOp
from chopper_interop.demo.render import MILLIONTHS, THOUSANDTHS, Compiled, Template
from chopper_interop.demo.tensors import inputs_json

if TYPE_CHECKING:
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.kineto_pool import PoolLayout

_CID = {
    "hipEventDestroy": 56, "hipEventRecord": 59, "hipExtLaunchKernel": 62,
    "hipExtModuleLaunchKernel": 65, "hipLaunchKernel": 107, "hipMemcpyWithStream": 153,
    "hipMemsetAsync": 159, "hipModuleLaunchKernel": 169, "hipStreamSynchronize": 199,
    "hipStreamWaitEvent": 200, "hipStreamGetCaptureInfo_v2": 289, "hipStreamIsCapturing": 290,
    "hipStreamGetDevice": 363, "hipGetDevicePropertiesR0600": 370,
}  # fmt: skip
_COPIES = {
    "HtoD": ("Memcpy HtoD (Host -> Device)", "1", "0x7f70ac000000", "0x7f2080000000"),
    "DtoH": ("Memcpy DtoH (Device -> Host)", "2", "0x7f2081fffe00", "0x7f70aae08000"),
    "Device": ("Memset (Device)", "", "", ""),
}
_END = "\n    }\n  },"


def _head(
    t: Template, layout: PoolLayout, category: str, name: str, place: tuple[int, int]
) -> None:
    """Phase, category, name and place (process, thread) of a complete event."""
    t.text(f'\n  {{\n    "ph": "X", "cat": "{category}", "name": ')
    _name(t, layout, name)
    t.text(', "pid": ').slot(place[0]).text(', "tid": ').slot(place[1]).text(",\n")


def _name(t: Template, layout: PoolLayout, name: str) -> None:
    if name == "ProfilerStep":
        t.text('"ProfilerStep#').slot(layout.step).text('"')
    else:
        t.text(json.dumps(name))


def _times(t: Template, ts: int, dur: int) -> None:
    t.text('    "ts": ').slot(ts, THOUSANDTHS).text(', "dur": ').slot(dur, THOUSANDTHS)
    t.text(',\n    "args": {\n      ')


def _flow(t: Template, phase: str, kind: str, number: int, place: tuple[int, int], ts: int) -> None:
    t.text(f'\n  {{\n    "ph": "{phase}", "id": ').slot(number)
    t.text(', "pid": ').slot(place[0]).text(', "tid": ').slot(place[1])
    t.text(', "ts": ').slot(ts, THOUSANDTHS).text(f',\n    "cat": "{kind}", "name": "{kind}"')
    t.text(', "bp": "e"\n  },' if phase == "f" else "\n  },")


def cpu_template(layout: PoolLayout) -> Compiled:
    """Operators, annotations, allocations, and the flows from forward to backward."""
    t, program, at = Template(), layout.program, layout.at
    flows: dict[int, tuple[str, int]] = {}
    for number, (forward, backward) in enumerate(program.flows):
        flows[forward], flows[backward] = ("s", number), ("f", number)
    for row, event in enumerate(program.events):
        if event.category == "memory":
            _memory(t, layout, row, event)
        elif event.category != "cuda_runtime":
            _operator(t, layout, row, event)
        if row in flows:
            phase, number = flows[row]
            place = (layout.pid, layout.tid(event.thread))
            _flow(t, phase, "fwdbwd", at["flow"] + number, place, at["mark"] + event.begin)
    return t.compile()


def _operator(t: Template, layout: PoolLayout, row: int, event: Event) -> None:
    at = layout.at
    _head(t, layout, event.category, event.name, (layout.pid, layout.tid(event.thread)))
    _times(t, at["mark"] + event.begin, at["dur"] + row)
    t.text('"External id": ').slot(at["external"] + row).text(',"Record function id": 0, ')
    if event.sequence >= 0:
        t.text('"Sequence number": ').slot(at["sequence"] + event.sequence)
        t.text(f', "Fwd thread id": {int(event.backward)}, ')
    for key, value in event.extra.items():
        t.text(f'"{key}": {json.dumps(value)}, ')
    if event.name == "record_param_comms" and "Rank" not in event.extra:
        t.text('"Rank": ').slot(layout.rank).text(", ")
    if event.arguments is not None:
        t.text(inputs_json(event.arguments), ", ")
    t.text('"Ev Idx": ').slot(at["row"] + row).text(_END)


def _memory(t: Template, layout: PoolLayout, row: int, event: Event) -> None:
    at, extra = layout.at, event.extra
    t.text('\n  {\n    "ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]",\n')
    t.text('    "pid": ').slot(layout.pid).text(', "tid": ').slot(layout.tid(event.thread))
    t.text(',\n    "ts": ').slot(at["mark"] + event.begin, THOUSANDTHS)
    t.text(',\n    "args": {\n      ')
    t.text(f'"Total Reserved": {extra["reserved"]}, "Total Allocated": {extra["allocated"]}, ')
    t.text(f'"Bytes": {extra["bytes"]}, "Addr": {extra["address"]}, "Device Id": ')
    t.slot(layout.rank).text(', "Device Type": 6, "Ev Idx": ').slot(at["memory"] + row).text(_END)


def runtime_template(layout: PoolLayout) -> Compiled:
    """Runtime calls, each with its end of the flow to the GPU."""
    t, at = Template(), layout.at
    for row, event in enumerate(layout.program.events):
        if event.category != "cuda_runtime":
            continue
        place = (layout.pid, layout.tid(event.thread))
        _head(t, layout, "cuda_runtime", event.name, place)
        _times(t, at["mark"] + event.begin, at["dur"] + row)
        if event.operator >= 0:
            t.text('"External id": ').slot(at["external"] + event.operator).text(", ")
        _call(t, layout, row, event)
        t.text(_END)
        number, ts = at["correlation"] + row, at["mark"] + event.begin
        _flow(t, "s" if event.gpu >= 0 else "f", "ac2g", number, place, ts)
    return t.compile()


def _call(t: Template, layout: PoolLayout, row: int, event: Event) -> None:
    """Arguments of a call; those of a launch are what roctracer saw of it."""
    program, tail = layout.program, ""
    kernel = program.gpu[event.gpu].kernel if event.gpu >= 0 else -1
    if kernel >= 0:
        launched = program.kernels[kernel]
        t.text(f'         "kernel": {json.dumps(launched.name)}, ')
        tail = f',      {_shape(launched)},      "shared memory": {launched.lds_bytes}'
    elif "copy" in event.extra and event.extra["copy"] != "Device":
        _, kind, source, target = _COPIES[event.extra["copy"]]
        tail = f', "src": "{source}", "dst": "{target}", "bytes": "{event.extra["bytes"]}"'
        tail += f', "kind": "{kind}"'
    t.text(f'"cid": {_CID[event.name]}, "correlation": ')
    t.slot(layout.at["correlation"] + row).text(tail)


def _shape(kernel: Kernel) -> str:
    """Grid and block: in work-items for the module launches of Tensile, else in work-groups."""
    items = kernel.api == "hipExtModuleLaunchKernel"
    grid = kernel.work_items if items else kernel.blocks
    return f'"grid": {list(grid)},      "block": {list(kernel.block)}'


def gpu_template(layout: PoolLayout) -> Compiled:
    """Kernels, copies and fills, each with its end of the flow from the host."""
    t, at = Template(), layout.at
    for row, op in enumerate(layout.program.gpu):
        number = at["correlation"] + op.call
        kernel = layout.program.kernels[op.kernel] if op.kernel >= 0 else None
        category = "kernel" if kernel else "gpu_memcpy" if op.kind == MEMCPY else "gpu_memset"
        name = kernel.name if kernel else _COPIES[op.copy][0]
        _gpu_head(t, layout, category, name, op.stream)
        _times(t, at["gpu_ts"] + row, at["gpu_dur"] + row)
        operator = layout.program.events[op.call].operator
        if operator >= 0:
            t.text('"External id": ').slot(at["external"] + operator).text(",      ")
        t.text('"device": ').slot(layout.device).text(f', "stream": {STREAMS[op.stream]},      ')
        t.text('"correlation": ').slot(number).text(", ")
        _gpu_arguments(t, layout, row, op, kernel)
        t.text(_END)
        _gpu_flow(t, layout, number, op.stream, at["gpu_ts"] + row)
    return t.compile()


def _gpu_head(t: Template, layout: PoolLayout, category: str, name: str, stream: int) -> None:
    t.text(f'\n  {{\n    "ph": "X", "cat": "{category}", "name": {json.dumps(name)}')
    t.text(', "pid": ').slot(layout.device).text(f', "tid": {STREAMS[stream]},\n')


def _gpu_arguments(
    t: Template, layout: PoolLayout, row: int, op: GpuOp, kernel: Kernel | None
) -> None:
    if kernel and op.kind in (KERNEL, COLLECTIVE):
        t.text(f'"kind": "Dispatch Kernel",      {_shape(kernel)}')
        return
    t.text(f'"kind": "{op.copy}"')
    if op.kind == MEMCPY:
        t.text(f',      "bytes": {op.bytes}, "memory bandwidth (GB/s)": ')
        t.slot(layout.at["bandwidth"] + row, MILLIONTHS)


def _gpu_flow(t: Template, layout: PoolLayout, number: int, stream: int, ts: int) -> None:
    t.text('\n  {\n    "ph": "f", "id": ').slot(number).text(', "pid": ').slot(layout.device)
    t.text(f', "tid": {STREAMS[stream]}, "ts": ').slot(ts, THOUSANDTHS)
    t.text(',\n    "cat": "ac2g", "name": "ac2g", "bp": "e"\n  },')


def annotation_template(layout: PoolLayout) -> Compiled:
    """User annotations as they appear on the streams."""
    t, at = Template(), layout.at
    for row, span in enumerate(layout.spans):
        name = layout.program.events[span.event].name
        t.text('\n  {\n    "ph": "X", "cat": "gpu_user_annotation", "name": ')
        _name(t, layout, name)
        t.text(', "pid": ').slot(layout.device).text(f', "tid": {STREAMS[span.stream]},\n')
        _times(t, at["span_ts"] + row, at["span_dur"] + row)
        t.text('"External id": ').slot(at["external"] + span.event).text(_END)
    return t.compile()

"""Writes a program as the host would run it: operators, calls, launches, waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from chopper_interop.demo import program as demo_program

if TYPE_CHECKING:
    from chopper_interop.demo.kernels import Kernel
    from chopper_interop.demo.tensors import Argument

# Invented: nanoseconds of a host between calls: in Python, in autograd's engine, in an operator, and after it.
_GAP_PYTHON = 6_500
_GAP_ENGINE = 1_400
_GAP_INSIDE = 900
_TAIL = 700
_BEFORE_CALL = {"hipExtModuleLaunchKernel": 7_500, "hipExtLaunchKernel": 6_000}
_CALL_NS = {
    "hipLaunchKernel": 4_200, "hipExtLaunchKernel": 6_000, "hipExtModuleLaunchKernel": 4_500,
    "hipModuleLaunchKernel": 4_300, "hipMemcpyWithStream": 9_000, "hipMemsetAsync": 4_800,
    "hipStreamWaitEvent": 2_600, "hipEventRecord": 2_200, "hipStreamSynchronize": 1_800,
    "hipGetDevicePropertiesR0600": 450, "hipStreamIsCapturing": 600,
    "hipStreamGetCaptureInfo_v2": 500, "hipStreamGetDevice": 250, "hipEventDestroy": 600,
}  # fmt: skip
COPY_BYTES_PER_NS = {"HtoD": 24.0, "DtoH": 24.0, "Device": 2500.0}
_COPY_LATENCY_NS = {"HtoD": 3_500.0, "DtoH": 3_900.0, "Device": 3_000.0}


class Writer:
    """Writes a `Program` in the order in which the host would run it."""

    def __init__(self) -> None:
        self.program = demo_program.Program()
        self.thread = demo_program.MAIN
        self.stacks: tuple[list[int], list[int]] = ([], [])
        self._rows: dict[Kernel, int] = {}
        self._last = dict.fromkeys(demo_program.STREAMS, -1)
        self._pending = dict.fromkeys(demo_program.STREAMS, -1)
        self._forward: dict[int, int] = {}

    @property
    def last(self) -> dict[int, int]:
        """Latest operation of each stream, which an event recorded now stands for."""
        return dict(self._last)

    def _mark(self, cost_ns: int, action: int = demo_program.NO_ACTION, operand: int = -1) -> int:
        stack = self.stacks[self.thread]
        span = stack[-1] if stack else -1
        self.program.marks.append(demo_program.Mark(self.thread, cost_ns, span, action, operand))
        return len(self.program.marks) - 1

    def _gap(self) -> int:
        stack = self.stacks[self.thread]
        if stack and self.program.events[stack[-1]].category != "user_annotation":
            return _GAP_INSIDE
        return _GAP_PYTHON if self.thread == demo_program.MAIN or stack else _GAP_ENGINE

    def _innermost(self, category: str) -> int:
        events = self.program.events
        ancestors = (
            i for i in reversed(self.stacks[self.thread]) if events[i].category == category
        )
        return next(ancestors, -1)

    def _event(self, category: str, name: str, gap_ns: int) -> int:
        stack = self.stacks[self.thread]
        event = demo_program.Event(
            category,
            name,
            self.thread,
            begin=self._mark(gap_ns),
            parent=stack[-1] if stack else -1,
            operator=self._innermost("cpu_op"),
            annotation=self._innermost("user_annotation"),
        )
        self.program.events.append(event)
        return len(self.program.events) - 1

    @contextmanager
    def _scope(self, row: int, tail_ns: int) -> Iterator[int]:
        self.stacks[self.thread].append(row)
        yield row
        self.program.events[row].end = self._mark(tail_ns)
        self.stacks[self.thread].pop()

    @contextmanager
    def annotation(
        self, name: str, arguments: Sequence[Argument] | None = None, gap_ns: int = 3_000
    ) -> Iterator[int]:
        """Open a user annotation (``record_function``) around what follows."""
        row = self._event("user_annotation", name, gap_ns)
        self.program.events[row].arguments = arguments
        with self._scope(row, 1_800):
            yield row

    @contextmanager
    def op(
        self,
        name: str,
        arguments: Sequence[Argument] | None = None,
        sequence: int = -1,
        *,
        gap_ns: int = 0,
        **extra: Any,
    ) -> Iterator[int]:
        """Open an operator around what follows."""
        row = self._event("cpu_op", name, gap_ns or self._gap())
        event = self.program.events[row]
        event.arguments, event.sequence, event.extra = arguments, sequence, extra
        if sequence >= 0:
            self._forward[sequence] = row
        with self._scope(row, _TAIL):
            yield row

    def leaf(self, name: str, arguments: Sequence[Argument], sequence: int = -1) -> int:
        """Write an operator that calls nothing."""
        with self.op(name, arguments, sequence) as row:
            pass
        return row

    def node(self) -> int:
        """Make an autograd node; its number."""
        self.program.sequences += 1
        return self.program.sequences - 1

    @contextmanager
    def backward(self, name: str, sequence: int, arguments: Sequence[Argument]) -> Iterator[int]:
        """Open the engine's evaluation of a node, with the flow from its forward operator."""
        with self.op(f"autograd::engine::evaluate_function: {name}", None) as outer:
            with self.op(name, arguments) as inner:
                yield inner
            for row in (outer, inner):
                event = self.program.events[row]
                event.sequence, event.backward = sequence, True
        if sequence >= 0:
            self.program.flows.append((self._forward[sequence], inner))

    def hand_over(self, thread: int) -> None:
        """Let another host thread go on; this one sleeps."""
        self.thread = thread
        self.program.marks.append(
            demo_program.Mark(thread, demo_program.HANDOVER_NS, -1, handover=True)
        )

    def think(self, cost_ns: int) -> None:
        """Time that Python spends between operators."""
        self._mark(cost_ns)

    def memory(self, size: int, **fields: int) -> None:
        """Write the instant of an allocation (`size` > 0) or release, bytes."""
        row = self._event("memory", "[memory]", 350)
        self.program.events[row].extra = {"bytes": size, **fields}

    def call(self, api: str, **extra: Any) -> int:
        """Write a runtime call that launches nothing."""
        row = self._event("cuda_runtime", api, 1_200)
        self.program.events[row].extra = extra
        with self._scope(row, _CALL_NS[api]):
            pass
        return row

    def launch(self, kernel: Kernel, stream: int = demo_program.COMPUTE) -> int:
        """Write a launch; the number of the GPU operation."""
        row = self._rows.setdefault(kernel, len(self._rows))
        if row == len(self.program.kernels):
            self.program.kernels.append(kernel)
        call = self._event("cuda_runtime", kernel.api, _BEFORE_CALL.get(kernel.api, 1_700))
        with self._scope(call, _CALL_NS[kernel.api]):
            pass
        kind = demo_program.COLLECTIVE if kernel.kind == "collective" else demo_program.KERNEL
        return self._enqueue(
            demo_program.GpuOp(kind, stream, row, len(self.program.marks) - 1, -1, -1, call)
        )

    def _enqueue(self, op: demo_program.GpuOp) -> int:
        """Put an operation at the end of its stream, behind the event that the stream waits for."""
        program, row = self.program, len(self.program.gpu)
        op.previous, op.waits_for = self._last[op.stream], self._pending[op.stream]
        program.gpu.append(op)
        program.events[op.call].gpu = row
        program.marks[op.mark].action, program.marks[op.mark].operand = demo_program.LAUNCH, row
        self._last[op.stream], self._pending[op.stream] = row, -1
        if op.kind == demo_program.COLLECTIVE:
            program.collectives.append(row)
        return row

    def copy(self, api: str, direction: str, size: int) -> None:
        """Write a copy, which the host waits for, or a fill on the compute stream."""
        kind = demo_program.MEMSET if direction == "Device" else demo_program.MEMCPY
        time_ns = _COPY_LATENCY_NS[direction] + size / COPY_BYTES_PER_NS[direction]
        call = self._event("cuda_runtime", api, 1_700)
        self.program.events[call].extra = {"copy": direction, "bytes": size}
        begin = len(self.program.marks) - 1
        with self._scope(call, _CALL_NS[api]):
            pass
        mark = begin if kind == demo_program.MEMCPY else begin + 1
        op = demo_program.GpuOp(
            kind, demo_program.COMPUTE, -1, mark, -1, -1, call, time_ns, size, direction
        )
        row = self._enqueue(op)
        if kind == demo_program.MEMCPY:
            end = self.program.marks[-1]
            end.action, end.operand = demo_program.SYNC, row

    def synchronize(self) -> None:
        """Wait on the host until the compute stream has nothing left to do."""
        self.call("hipStreamSynchronize")
        end = self.program.marks[-1]
        end.action, end.operand = demo_program.SYNC, self._last[demo_program.COMPUTE]

    def record(self, *, visible: bool) -> None:
        """Write the record of an event, of which the trace may show nothing but the time."""
        if visible:
            self.call("hipEventRecord")
        else:
            self.think(_CALL_NS["hipEventRecord"])

    def wait(self, stream: int, op: int) -> None:
        """Make a stream wait, before its next operation, for an operation of another stream."""
        self.call("hipStreamWaitEvent")
        before, gpu = self._pending[stream], self.program.gpu
        if before >= 0 and op >= 0 and gpu[before].stream != gpu[op].stream:
            raise AssertionError("an operation waits for one other stream only")
        self._pending[stream] = max(before, op)

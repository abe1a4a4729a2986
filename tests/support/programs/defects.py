"""Programs with a known defect that makes their steps longer, and the same programs without it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

from programs import program as p
from programs.families import COMM, MAIN, SIDE, _end, _Job, _steps, _Thread

if TYPE_CHECKING:
    from collections.abc import Callable

_BLOCKS, _KERNELS = 4, 6
"""Blocks of a step, and kernels of a block."""


def _job(code: str, seed: int, ranks: int = 1) -> _Job:
    job = _Job(code, seed, ranks)
    job.kernel_us = dict.fromkeys(job.kernel_us, 1.0)
    job.spread = 0.05
    return job


def _one_rank(
    code: str, seed: int, block: Callable[[_Thread, int], None], kernel_us: float = 0.0
) -> p.Program:
    """One rank; each block of kernels is followed by what the defect adds."""
    job = _job(code, seed)
    thread = job.thread(0)
    mean = kernel_us or job.rng.uniform(40, 90)
    for number in _steps(job, 4):
        with thread.step(number):
            for index in range(_BLOCKS):
                for _ in range(_KERNELS):
                    thread.kernel(mean, name="gemm")
                block(thread, index)
            thread.work(60)
    _end(thread)
    return job.program()


def item(seed: int, *, has: bool) -> p.Program:
    """A value is fetched after each block."""

    def block(thread: _Thread, _index: int) -> None:
        if has:
            thread.item()
        thread.work(80)

    return _one_rank("item", seed, block)


def blocking_copy(seed: int, *, has: bool) -> p.Program:
    """A blocking copy after each block, as of pageable memory."""

    def block(thread: _Thread, _index: int) -> None:
        if has:
            with (
                thread.range("aten::to"),
                thread.range("aten::_to_copy"),
                thread.range("aten::copy_"),
            ):
                is_hip = thread.job.vendor == "hip"
                name = f"Memcpy DtoH (Device -> {'Host' if is_hip else 'Pageable'})"
                launched = p.Launch(MAIN, name, 9_000, 4_000, *thread.latencies())
                more = {"category": "gpu_memcpy", "blocks": is_hip, "return_ns": 8_000}
                thread.add(replace(launched, **more))
                if not is_hip:
                    thread.sync(MAIN)
        thread.work(80)

    return _one_rank("blocking-copy", seed, block)


def exposed_copy(seed: int, *, has: bool) -> p.Program:
    """A tensor is copied within the GPU after each block, on the stream that computes."""

    def block(thread: _Thread, _index: int) -> None:
        if has:
            launched = thread._launch(MAIN, "Memcpy DtoD (Device -> Device)", 60)
            thread.add(replace(launched, category="gpu_memcpy"))

    return _one_rank("exposed-copy", seed, block)


def host_sync(seed: int, *, has: bool) -> p.Program:
    """The host waits for the GPU after each block, as timers do."""

    def block(thread: _Thread, _index: int) -> None:
        if has:
            thread.sync()
        thread.work(80)

    return _one_rank("host-sync", seed, block)


def small_launches(seed: int, *, has: bool) -> p.Program:
    """Kernels are shorter than it takes to launch them."""
    return _one_rank("small-launches", seed, lambda _thread, _index: None, 4.0 if has else 0.0)


def slow_operators(seed: int, *, has: bool) -> p.Program:
    """Operators take the host far longer than they usually do."""
    job = _job("slow-operators", seed)
    thread = job.thread(0)
    thread.host_us = 200.0 if has else 6.0
    for number in _steps(job, 4):
        with thread.step(number):
            for _ in range(_BLOCKS * _KERNELS):
                thread.kernel(15.0, name="gemm")
    _end(thread)
    return job.program()


def code_loading(seed: int, *, has: bool) -> p.Program:
    """One launch in each block takes long, of a kernel that was not used before."""
    number = itertools.count()

    def block(thread: _Thread, _index: int) -> None:
        call_ns = 900_000 if has else 3_000
        with thread.range("aten::new"):
            thread.add(p.Launch(MAIN, f"new_{next(number)}", 40_000, call_ns, *thread.latencies()))
        thread.work(80)

    return _one_rank("code-loading", seed, block)


def serialised_launches(seed: int, *, has: bool) -> p.Program:
    """Launches return when their kernel has ended."""
    program = _one_rank("serialised-launches", seed, lambda thread, _index: thread.work(40))
    for instructions in program.threads[0]:
        for at, what in enumerate(instructions):
            if has and isinstance(what, p.Launch):
                instructions[at] = replace(what, blocks=True, return_ns=5_000)
    return program


def allocator(seed: int, *, has: bool) -> p.Program:
    """Memory is allocated in each block."""

    def block(thread: _Thread, _index: int) -> None:
        if has:
            name = f"{thread.job.vendor}Malloc"
            with thread.range(name, "cuda_runtime"):
                thread.work(900)

    return _one_rank("allocator", seed, block)


def slow_allocations(seed: int) -> p.Program:
    """One block of each step allocates memory for a long time, within an operator, as after many were freed."""

    def block(thread: _Thread, index: int) -> None:
        if index == 1:
            with (
                thread.range("aten::empty"),
                thread.range(f"{thread.job.vendor}Malloc", "cuda_runtime"),
            ):
                thread.work(60_000)

    return _one_rank("slow-allocations", seed, block)


def slow_launches(seed: int) -> p.Program:
    """Launches of some kernels take long each time."""

    def block(thread: _Thread, index: int) -> None:
        launch = p.Launch(MAIN, f"slow_{index}", 40_000, 900_000, *thread.latencies())
        with thread.range("aten::slow"):
            thread.add(launch)

    return _one_rank("slow-launches", seed, block)


def data_loader(seed: int, *, has: bool) -> p.Program:
    """The step begins with waiting for data."""
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def block(thread: _Thread, index: int) -> None:
        if index == 0:
            with thread.range(name, "user_annotation"):
                thread.work(3000 if has else 4)

    return _one_rank("data-loader", seed, block)


def data_loader_with_stacks(seed: int) -> p.Program:
    """The same frame is around the range of the loader and in it."""
    frame = "<built-in function next>", "python_function"
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"

    def block(thread: _Thread, index: int) -> None:
        if index == 0:
            with thread.range(*frame), thread.range(*loader), thread.range(*frame):
                thread.work(3000)

    return _one_rank("data-loader", seed, block)


def compilation(seed: int, *, has: bool) -> p.Program:
    """A block is compiled in each step."""

    def block(thread: _Thread, index: int) -> None:
        if has and index == 1:
            with (
                thread.range("_compile.compile_inner (dynamo_timed)", "user_annotation"),
                thread.range("bytecode_tracing (dynamo_timed)", "user_annotation"),
            ):
                thread.work(3000)

    return _one_rank("compilation", seed, block)


def graph_capture(seed: int, *, has: bool) -> p.Program:
    """Operators are captured as a graph in each step, though another of before is launched."""

    def block(thread: _Thread, index: int) -> None:
        vendor = thread.job.vendor
        if has and index == 1:
            calls = [
                "StreamBeginCapture",
                *["LaunchKernel"] * 20,
                "StreamEndCapture",
                "GraphInstantiate",
            ]
            for call in calls:
                with thread.range(f"{vendor}{call}", "cuda_runtime"):
                    thread.work(1500 if call == "GraphInstantiate" else 100)

    return _one_rank("graph-capture", seed, block)


def host_work(seed: int, *, has: bool) -> p.Program:
    """A callback of the host computes."""

    def block(thread: _Thread, index: int) -> None:
        if index == 1:
            with thread.range("callback", "user_annotation"):
                thread.work(3000 if has else 4)

    return _one_rank("host-work", seed, block)


def computing_operator(seed: int, *, category: str, has: bool) -> p.Program:
    """An operator computes before it launches its kernel."""

    def block(thread: _Thread, index: int) -> None:
        if index == 1:
            with thread.range("prepare", category):
                thread.work(3000 if has else 4)
                thread.kernel(60, name="gemm")

    return _one_rank("host-work", seed, block)


def launching(seed: int, write: Callable[[_Thread], None]) -> p.Program:
    """Operators that launch kernels between those of a step."""

    def block(thread: _Thread, index: int) -> None:
        if index == 1:
            write(thread)

    return _one_rank("host-work", seed, block)


def unrecorded_wait(seed: int, *, has: bool) -> p.Program:
    """A kernel starts long after its launch, as behind the work of another process on the GPU."""

    def block(thread: _Thread, index: int) -> None:
        if index == 1:
            latency_ns, gap_ns = thread.latencies()
            latency_ns += 2_500_000 if has else 0
            with thread.range("aten::decode"):
                thread.add(p.Launch(MAIN, "decode", 40_000, 5_000, latency_ns, gap_ns))
        if index == _BLOCKS - 1:  # else launches of all steps are ahead by as much
            thread.sync()

    return _one_rank("unrecorded-wait", seed, block)


def full_queue(seed: int, *, has: bool) -> p.Program:
    """Launches to a full queue hold up what another stream could do meanwhile."""
    job = _job("full-queue", seed)
    job.depth = 4 if has else 1024
    thread = job.thread(0)
    thread.host_us = 3.0
    mean = job.rng.uniform(60, 90)
    for number in _steps(job, 4):
        with thread.step(number):
            for _ in range(16):
                thread.kernel(mean, name="gemm")
            thread.kernel(10 * mean, SIDE, name="attention")
            thread.wait_stream(MAIN, SIDE)
            thread.kernel(mean, name="gemm")
    _end(thread)
    return job.program()


def exposed_collective(seed: int, *, has: bool) -> p.Program:
    """Gradients are reduced behind the backward pass, not while it goes on."""
    job = _job("exposed-collective", seed, 2)
    listed, mean = _steps(job, 4), job.rng.uniform(40, 90)
    long_us = job.rng.uniform(300, 600)
    messages = [[job.message("allreduce", (0, 1), long_us)] for _ in listed]
    for rank in range(2):
        thread = job.thread(rank)
        for number, (message,) in zip(listed, messages, strict=True):
            with thread.step(number):
                for _ in range(8):
                    thread.kernel(mean, name="gemm")
                end = thread.communicate(message, COMM)
                if has:
                    thread.wait_event(MAIN, end)
                for _ in range(20):
                    thread.kernel(mean, name="gemm")
                thread.wait_event(MAIN, end)
        _end(thread)
    return job.program()


def straggling_stage(seed: int, *, has: bool) -> p.Program:
    """The second stage of a pipeline takes longer."""
    from programs import families

    speeds = iter([1.0, 1.6 if has else 1.0, 1.0, 1.0, 1.0])
    job_thread = families._Job.thread

    def thread(self: _Job, rank: int, speed: float = 1.0) -> _Thread:  # noqa: ARG001 # as drawn
        return job_thread(self, rank, next(speeds))

    families._Job.thread = thread  # type: ignore[method-assign] # speeds are drawn within
    try:
        return families.pipeline(seed)
    finally:
        families._Job.thread = job_thread  # type: ignore[method-assign]


def warm_up_steps(seed: int, *, has: bool) -> p.Program:
    """The first recorded step does much that the others do not."""
    job = _job("warm-up", seed)
    thread = job.thread(0)
    mean = job.rng.uniform(40, 90)
    for number in _steps(job, 4, before=0):
        with thread.step(number):
            for _ in range(24):
                thread.kernel(mean, name="gemm")
            if has and number == job.first_step:
                with thread.range("compile"):
                    thread.work(9000)
            thread.sync()
    _end(thread)
    return job.program()


DEFECTS: dict[str, Callable[..., p.Program]] = {
    "item": item,
    "blocking-copy": blocking_copy,
    "exposed-copy": exposed_copy,
    "host-sync": host_sync,
    "small-launches": small_launches,
    "slow-operators": slow_operators,
    "code-loading": code_loading,
    "serialised-launches": serialised_launches,
    "allocator": allocator,
    "data-loader": data_loader,
    "compilation": compilation,
    "graph-capture": graph_capture,
    "host-work": host_work,
    "unrecorded-wait": unrecorded_wait,
    "full-queue": full_queue,
    "exposed-collective": exposed_collective,
    "straggling-stage": straggling_stage,
    "warm-up-steps": warm_up_steps,
}
"""Programs by the code of what is wrong with them: ``(seed, has=True)``."""
EXACT = (
    "item", "blocking-copy", "host-sync", "allocator", "data-loader", "compilation", "graph-capture", "host-work", "full-queue",
    "serialised-launches", "code-loading", "unrecorded-wait", "exposed-copy",
)  # fmt: skip
"""Those of which the program without the defect shows what it costs."""

"""Dispatches by what is the same in every run: name, work-items, number, order."""

import json

import numpy as np
import pytest

from chopper_interop.annotate.counters.dispatches import (
    base_name,
    is_helper,
    plain_name,
    read_dispatches,
)
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.trace import Trace


def trace_of(args: list[dict[str, object]], call: str = "", correlation: int = -1) -> Trace:
    """Kernels with arguments, each launched by a call of that name."""
    builder = TraceBuilder()
    stream = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    texts = [json.dumps(a).encode() for a in args]
    text = np.frombuffer(b"".join(texts) or b" ", np.uint8).copy()
    length = np.array([len(t) for t in texts], np.int32)
    at = builder.text(text) + np.cumsum(length) - length
    ts = np.arange(len(args)) * 10 + 100
    first = builder.nodes(
        kind=int(Kind.KERNEL), name="k", rank=0, lane=stream, ts=ts, dur=5,
        correlation=correlation, args=(at, length),
    )  # fmt: skip
    if call:
        host = builder.lane(0, LaneKind.THREAD, 1, "t")
        calls = builder.nodes(
            kind=int(Kind.RUNTIME), name=call, rank=0, lane=host, ts=ts - 50, dur=5
        )
        n = np.arange(len(args))
        builder.edges(calls + n, first + n, int(EdgeKind.LAUNCH))
    return builder.finish()


@pytest.mark.parametrize(
    ("args", "call", "threads", "workgroup"),
    [
        ({"grid_size": 1024, "workgroup_size": 256}, "", 1024, 256),
        ({"grid": [64, 4, 2], "workgroup": [16, 4, 1]}, "", 512, 64),
        ({"grid": [8, 2, 1], "block": [128, 1, 1]}, "hipLaunchKernel", 2048, 128),
        ({"grid": [1024, 2, 1], "block": [128, 1, 1]}, "hipExtModuleLaunchKernel", 2048, 128),
        ({"grid": [256, 1, 1], "block": [65536, 1, 1]}, "hipLaunchKernel", 65536, 256),
        ({"grid": [0, 1, 1], "block": [128, 1, 1]}, "", -1, -1),
        ({"grid": "8", "block": None}, "", -1, -1),
        ({"grid": [1 << 40] * 3, "block": [1 << 70, 1, 1]}, "", -1, -1),
        ({}, "", -1, -1),
    ],
)
def test_shapes(args: dict[str, object], call: str, threads: int, workgroup: int) -> None:
    actual = read_dispatches(trace_of([args], call))
    assert (actual.threads.tolist(), actual.workgroup.tolist()) == ([threads], [workgroup])


def test_order_is_that_of_the_numbers() -> None:
    actual = read_dispatches(trace_of([{"dispatch_id": n} for n in (7, 3, 5)]))
    assert actual.number.tolist() == [3, 5, 7]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("void at::native::vectorized_elementwise_kernel<4, float>(int, float)",
         "vectorized_elementwise_kernel"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEvi", "vectorized_elementwise_kernel"),
        ("void at::native::(anonymous namespace)::copy<int>(int)", "copy"),
        ("_ZN2at6native12_GLOBAL__N_14copyIiEEvi", "copy"),
        ("_Z4axpyPf", "axpy"),
        ("Cijk_Ailk_Bljk_SB_MT64x64", "Cijk_Ailk_Bljk_SB_MT64x64"),
        ("__omp_offloading_32_6b6b__QQmain_l18", "__omp_offloading_32_6b6b__QQmain_l18"),
        ("", ""),
        ("<>", "<>"),
        ("_Z", "_Z"),
    ],
)  # fmt: skip
def test_base_names(name: str, base: str) -> None:
    assert base_name(name) == base


def test_names_without_endings() -> None:
    assert plain_name("k(int) [clone .kd]") == "k(int)"
    assert is_helper("__amd_rocclr_copyBuffer")
    assert not is_helper("rocclr")

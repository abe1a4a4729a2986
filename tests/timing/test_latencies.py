"""Least latencies: what took long for another reason is none."""

from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from kineto_files import BASE, call, copies_on_a_free_stream, kernel, span, uploads, write

import chopper_interop as ci
from chopper_interop.schemas.kinds import EdgeKind, Kind


def gain_us(tmp_path: Path, events: list[dict], change: str) -> float:
    """Time that a job of one rank gains by a change, in microseconds."""
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    (row,) = ci.analyze(trace, "what_if", change=change).summary["changes"]
    return row["gain_ns"] / 1000


def test_work_from_before_the_recording_is_no_latency_of_a_launch(tmp_path: Path) -> None:
    """The GPU is busy with what was launched before; the last launch has waited as long as the first."""
    events = []
    for k in range(8):
        events += [
            call("hipLaunchKernel", 900 * k, 10, k + 1),
            kernel("gemm", 8000 + 1000 * k, 1000, k + 1),
        ]
    gain = gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'")
    assert gain == pytest.approx(0.9 * 8000, abs=20)


@pytest.mark.parametrize(("vendor", "between_us"), [("cuda", 0.9), ("hip", 0)])
def test_where_no_kernel_waited_for_the_one_ahead_what_is_usual_is_between(
    tmp_path: Path, vendor: str, between_us: float
) -> None:
    """With no time of the host, kernels that each had waited for its launch, begun 2 µs behind its call, follow each other."""
    events = [span("cpu_op", "aten::all", 0, 190)]
    for k in range(10):
        events += [
            call(f"{vendor}LaunchKernel", 20 * k, 5, k + 1),
            kernel("gemm", 20 * k + 7, 10, k + 1),
        ]
    gain = gain_us(tmp_path, events, "scale=0 where kind in ['runtime', 'cpu_op']")
    assert gain == pytest.approx(197 - (2 + 10 * 10 + 9 * between_us), abs=0.01)


@pytest.mark.parametrize("ahead_us", [-9, 0, 9, 20])
@pytest.mark.parametrize("how", ["device", "stream", "copy"])
def test_hosts_wait_for_work_whose_clock_differs_by_microseconds(
    tmp_path: Path, ahead_us: int, how: str
) -> None:
    """Waits return 7 µs after their work; in a public trace of an MI300X work ends 8 µs behind a wait of 4 ms.

    Which stream a wait is for is not recorded; one for the device shows by how much the clock is ahead. By it a
    copy of 2 µs seems to begin behind the call that copies.
    """
    events = []
    for k in range(6):
        at, launch = 1100 * k, 2 * k + 1
        events += [
            call("cudaLaunchKernel", at, 5, launch),
            kernel("gemm", at + 15 + ahead_us, 1000, launch),
        ]
        name = "cudaStreamSynchronize" if how == "stream" and k else "cudaDeviceSynchronize"
        if how == "copy":
            name = "cudaMemcpyAsync"
            copy = kernel("Memcpy DtoH (Device -> Pageable)", at + 1016 + ahead_us, 2, launch + 1)
            events.append(copy | {"cat": "gpu_memcpy"})
        events.append(call(name, at + 6, 1016, launch + 1))
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    predicted = ci.analyze(trace, "what_if", change="scale=0.1 where kind == 'kernel'").summary
    assert predicted["changes"][0]["gain_ns"] == pytest.approx(6 * 900_000, abs=40_000)
    early = counts(trace.meta.issues).get("wait-ends-early", 0)
    assert early == (6 if ahead_us > 0 else 0)


@pytest.mark.parametrize("late_us", [[60], [10, 500]])
def test_work_that_ends_long_behind_a_wait_is_other_work(
    tmp_path: Path, late_us: list[int]
) -> None:
    """Of one stream or of several: no clock is so far ahead, so that the call did not wait for this device."""
    events = [call("hipDeviceSynchronize", 100, 4000, 9)]
    for stream, late in enumerate(late_us):
        events += [
            call("hipLaunchKernel", 10 * stream, 5, stream + 1),
            kernel("gemm", 50, 4050 + late, stream + 1, stream=stream),
        ]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    noted = counts(trace.meta.issues)
    assert noted["wait-contradicted"] == 1
    assert "wait-ends-early" not in noted


def test_a_call_long_after_the_work_that_it_waits_for_has_a_short_return(tmp_path: Path) -> None:
    events = [
        call("hipLaunchKernel", 0, 10, 1), kernel("gemm", 15, 800, 1),
        call("hipDeviceSynchronize", 910, 20, 2),
    ]  # fmt: skip
    assert gain_us(tmp_path, events, "scale=1.1 where kind == 'kernel'") == 0
    assert gain_us(tmp_path, events, "scale=2 where kind == 'kernel'") == pytest.approx(-705, abs=1)


def fetches(pageable: bool, kernel_us: int, return_us: int = 7) -> list[dict]:  # noqa: FBT001
    """Six kernels, each with a copy of a value to the host behind it: where from and where to, and the call."""
    to = "Pageable" if pageable else "Host"
    name = "cudaMemcpyAsync" if pageable else "hipMemcpyWithStream"
    events, at = [], 0
    for k in range(1, 12, 2):
        copied = at + 10 + kernel_us + 3
        copy = kernel(f"Memcpy DtoH (Device -> {to})", copied - 2, 2, k + 1)
        events += [
            call("cudaLaunchKernel", at, 4, k), kernel("gemm", at + 10, kernel_us, k),
            call(name, at + 6, copied + return_us + k % 4 - at - 6, k + 1), copy | {"cat": "gpu_memcpy"},
        ]  # fmt: skip
        at = copied + return_us + 33
    return events


@pytest.mark.parametrize("pageable", [True, False])
def test_a_call_that_copies_to_pageable_memory_waits(tmp_path: Path, *, pageable: bool) -> None:
    """It is asynchronous by its name alone (CUDA), or blocks always (HIP)."""
    gain = gain_us(tmp_path, fetches(pageable, 1000), "scale=0.1 where kind == 'kernel'")
    assert gain == pytest.approx(6 * 900, abs=20)


@pytest.mark.parametrize("pageable", [True, False])
def test_a_call_that_waited_shortly_for_its_own_copy_did_no_work(tmp_path, *, pageable) -> None:
    """Of the 22 µs that the call lasts, the host works for at most those before the copy."""
    events = fetches(pageable, 5)
    change = "scale=2 where kind == 'runtime' and name.str.contains('Memcpy')"
    assert -6 < gain_us(tmp_path, events, change) <= 0


@pytest.mark.parametrize(
    ("ahead_us", "lengths", "behind_us"),
    [(0, 1, 4), (9, 1, 4), (20, 41, 4), (20, 1, 4), (0, 41, 24)],
)
def test_a_launch_that_waited_for_room_keeps_what_it_takes_itself(
    tmp_path: Path, ahead_us: int, lengths: int, behind_us: int
) -> None:
    """A queue of 16 places; without a wait a launch takes 6 µs, with one it returns late, and the host takes 3 more.

    The GPU's clock may be ahead, so that room seems to be made behind the launch.
    """
    events, starts, at, end = [], [], 0, 0
    for k in range(80):
        room = starts[k - 16] if k >= 16 else 0
        returns = max(at + 6, room + behind_us + k % 3)
        starts.append(max(at + 9, end + 2))
        end = starts[-1] + 80 + 7 * k % lengths
        events += [
            call("cudaLaunchKernel", at, returns - at, k + 1),
            kernel("gemm", starts[-1] + ahead_us, end - starts[-1], k + 1),
        ]
        at = returns + 3
    events.append(call("cudaDeviceSynchronize", at, end + 6 - at, 99))
    after = end + 6 - gain_us(tmp_path, events, "scale=0.01 where kind == 'kernel'")
    assert after == pytest.approx(80 * 9, rel=0.1)


@pytest.mark.parametrize(
    ("how", "outlasts_us"), [("Pageable", 40), ("Pageable", -5), ("Host", 3), ("Host", 0)]
)
def test_a_call_that_copies_to_the_gpu_waits_for_what_is_queued(tmp_path, how, outlasts_us) -> None:
    """From memory that is not pinned it may return before the last part is there (CUDA), or seems so by clocks (HIP)."""
    events = uploads(how, 0, outlasts_us=outlasts_us)
    assert gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'") == pytest.approx(
        5400, abs=20
    )
    assert gain_us(tmp_path, events, "scale=0.1 where kind == 'memcpy'") == pytest.approx(
        1620, abs=20
    )


def test_copies_by_the_names_of_rocprof_are_waited_for_too(tmp_path: Path) -> None:
    events = uploads("Host", 0, outlasts_us=3)
    for event in events:
        if "HtoD" in event["name"]:
            event["name"] = "MEMORY_COPY_HOST_TO_DEVICE"
    gain = gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'")
    assert gain == pytest.approx(5400, abs=20)


def test_a_copy_whose_call_was_not_recorded_is_waited_for_by_none(tmp_path: Path) -> None:
    events = [event for event in uploads("Pageable", 0) if event["name"] != "cudaMemcpyAsync"]
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    assert np.count_nonzero(trace.array("kind") == Kind.MEMCPY) == 6
    assert not np.isin(trace.array("kind", "edges"), (EdgeKind.SYNC, EdgeKind.POLL)).any()


def test_a_copy_that_seems_to_begin_before_its_call_is_waited_for(tmp_path: Path) -> None:
    """By clocks that differ by some microseconds, no more than its last part lasts."""
    events = copies_on_a_free_stream("cudaMemcpyAsync", 265, -7)
    gain = gain_us(tmp_path, events, "scale=0.1 where kind == 'memcpy'")
    assert gain == pytest.approx(6 * 270, abs=50)


def test_a_launch_of_a_graph_does_not_wait_for_copies_of_the_graph(tmp_path: Path) -> None:
    events = copies_on_a_free_stream("cudaGraphLaunch", 30)
    assert gain_us(tmp_path, events, "scale=0.1 where kind == 'memcpy'") < 50


def test_a_copy_within_the_gpu_is_not_waited_for_by_a_call_that_ends_before_it(tmp_path) -> None:
    """Runtimes return from it at once (CUDA's "API synchronization behavior")."""
    events = uploads("Host", 0, outlasts_us=3)
    for event in events:
        event["name"] = event["name"].replace("HtoD (Host", "DtoD (Device")
    assert gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'") < 1000


def test_behind_the_last_copy_of_a_thread_nothing_waits(tmp_path: Path) -> None:
    *events, _ = uploads("Pageable", 0)
    trace = ci.read(write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE))
    waits = trace.array("dst", "edges")[trace.array("kind", "edges") == EdgeKind.POLL]
    assert len(waits) == 5
    assert "dependency-backward-in-time" not in counts(trace)


@pytest.mark.parametrize(("more_bytes", "gain"), [(0, 0), (1, 5400)])
def test_a_small_copy_to_the_gpu_waits_for_nothing(tmp_path, more_bytes: int, gain: int) -> None:
    """The data of up to 64 KB are in the command: that the call lasts as long is work of the host."""
    events = uploads("Pageable", 0, 64 * 1024 + more_bytes)
    change = "scale=0.1 where kind == 'kernel'"
    assert gain_us(tmp_path, events, change) == pytest.approx(gain, abs=50)


def test_a_copy_that_begins_behind_its_call_is_not_waited_for(tmp_path: Path) -> None:
    """What the host does between its calls is not known, so only the last kernel shows."""
    gain = gain_us(tmp_path, uploads("Pageable", 20), "scale=0.1 where kind == 'kernel'")
    assert gain < 1000


def test_a_call_copies_on_behind_its_copy_from_the_gpu(tmp_path: Path) -> None:
    """From the runtime's buffer to memory that is not pinned: longer than the kernel before it takes."""
    gain = gain_us(tmp_path, fetches(True, 50, 90), "scale=2 where kind == 'kernel'")
    assert gain == pytest.approx(-6 * 50, abs=1)


def test_a_call_that_finds_nothing_to_wait_for_returns_at_once(tmp_path: Path) -> None:
    """Waits last 1 to 9 µs behind their kernel, and no time where it has ended."""
    events, at, waited = [], 0, 0
    for k in range(1, 40, 2):
        events += [call("hipLaunchKernel", at, 5, k), kernel("gemm", at + 10, 100, k)]
        wait = 50 + 1 + k * 3 % 9
        events.append(call("hipStreamSynchronize", at + 60, wait, k + 1))
        at, waited = at + 160, waited + wait
    gain = gain_us(tmp_path, events, "scale=0.1 where kind == 'kernel'")
    assert gain == pytest.approx(waited - 20, abs=5)  # the shortest way back takes 1 µs


def test_work_that_waits_for_an_event_shows_no_latency_of_its_launch(tmp_path: Path) -> None:
    """Its stream is free, but another one holds it up, each time as long; a launch arrives 5 µs behind its call, at 22."""
    events = []
    for k in range(4):
        at, number = 1000 * k, 10 * k + 1
        waited_for = {"stream": "0xa", "event": "0xe"}
        waits = {"stream": "0xb", "event": "0xe"}
        events += [
            call("hipLaunchKernel", at, 5, number), kernel("gemm", at + 10, 40, number, stream=7),
            span("cuda_runtime", "hipEventRecord", at + 6, 2, args={"correlation": number + 1} | waited_for),
            span("cuda_runtime", "hipStreamWaitEvent", at + 9, 2, args={"correlation": number + 2} | waits),
            call("hipExtLaunchKernel", at + 12, 5, number + 3), kernel("add", at + 52, 100, number + 3, stream=8),
            span("cpu_op", "aten::add", at + 20, 970) if k < 3 else call("hipDeviceSynchronize", at + 20, 140, 99),
        ]  # fmt: skip
    gain = gain_us(tmp_path, events, "scale=0.1 where name == 'gemm'")
    assert gain == pytest.approx(52 - 22, abs=1)


def test_kernels_of_a_graph_may_begin_as_soon_behind_its_launch_as_the_first(tmp_path) -> None:
    """Graphs take 50 µs to begin but the last one, which takes 10: its second kernel waits for its first only."""
    events = []
    for k in range(150):
        at, first = 5000 * k, 5000 * k + (50 if k < 149 else 10)
        events += [
            call("cudaGraphLaunch", at, 5, k + 1), kernel("gemm", first, 2000, k + 1),
            kernel("relu", first + 2000, 2000, k + 1),
        ]  # fmt: skip
    gain = gain_us(tmp_path, events, "scale=0.001 where kind == 'kernel'")
    assert gain == pytest.approx(2 * 1998, abs=1)

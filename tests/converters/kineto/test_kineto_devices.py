"""GPUs that a Kineto file lists, and those that its events ran on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from kineto_files import kernel, span, write
from read_once import read_once
from shared_data import real

import chopper_interop as ci

if TYPE_CHECKING:
    from pathlib import Path

ROCTRACER = {"roctracer_version": 4.1}
SDK = {"rocprofiler-sdk_version": 1.0}
BIG, SMALL = ("AMD Instinct MI300X", 304), ("AMD Instinct MI210", 104)
GREEN = ("NVIDIA H100", 132)
PRODUCT_UNKNOWN = "product-of-device-unknown"


def described(path: Path, listed: list[tuple[str, int]], on: list[int], **header: Any) -> ci.Trace:
    """Read a file that lists GPUs from 0 on, with a kernel on each of some."""
    properties = [{"id": n, "name": name, "numSms": cus} for n, (name, cus) in enumerate(listed)]
    events = [kernel("k", 9 * n, 5, n, device=n) | {"pid": n} for n in on]
    events.append(span("cpu_op", "aten::add", 0, 9))
    return ci.read(write(path / "a.json", events, deviceProperties=properties, **header))


def products(trace: ci.Trace) -> dict[int, tuple[str, int]]:
    return {d.device: (d.name, d.cus) for d in trace.meta.devices}


@pytest.mark.parametrize(
    ("listed", "on", "header", "expected"),
    [
        ([BIG] * 2, [9], ROCTRACER, {9: BIG}),  # in a container with one GPU, 9 was seen
        ([BIG] * 8, [2, 3], {}, {2: BIG, 3: BIG}),  # old files do not state what made them
        ([BIG, SMALL, SMALL], [2, 3, 4], ROCTRACER, {2: BIG, 3: SMALL, 4: SMALL}),
        ([BIG, SMALL, SMALL], [2], ROCTRACER, {}),
        ([BIG, SMALL], [1], SDK, {0: BIG, 1: SMALL}),
        ([BIG, SMALL], [0, 1], ROCTRACER, {0: BIG, 1: SMALL}),
        ([GREEN, ("NVIDIA A100", 108)], [1], {}, {0: GREEN, 1: ("NVIDIA A100", 108)}),
        ([BIG, SMALL], [], ROCTRACER, {0: BIG, 1: SMALL}),
    ],
)
def test_agents_are_not_indices_of_the_list(
    tmp_path: Path, listed: Any, on: list[int], header: dict[str, Any], expected: Any
) -> None:
    trace = described(tmp_path, listed, on, **header)
    assert products(trace) == expected
    assert (PRODUCT_UNKNOWN in {i.code for i in trace.meta.issues}) == (not expected)


def test_agents_keep_their_products_in_a_written_file(tmp_path: Path) -> None:
    trace = described(tmp_path, [BIG, SMALL], [1, 2], **ROCTRACER)
    ci.write(trace, tmp_path / "again.json")
    names = {d.device: d.name for d in ci.read(tmp_path / "again.json").meta.devices}
    assert names == {1: BIG[0], 2: SMALL[0]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz", {9: "AMD Instinct MI300X"}),
        ("mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz", {2: "AMD Radeon Graphics"}),
        ("mi210/gpu_only_trace.json.gz", {1: "AMD Instinct MI210"}),
        ("mi300x/resnet_act_checkpoint.json.gz", {2: "AMD Instinct MI300X"}),
    ],
)
def test_real_files(path: str, expected: dict[int, str]) -> None:
    trace = read_once(real(f"pytorch/{path}"))
    assert {d.device: d.name for d in trace.meta.devices} == expected

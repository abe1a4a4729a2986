"""FLOPs and bytes by shapes: against loops that count, by hand, and on real files."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from kineto_files import call as runtime
from kineto_files import kernel, span, write
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.annotate.work import attention, kernels, operators
from chopper_interop.annotate.work.calls import CallWork, parse_call
from chopper_interop.annotate.work.operators import find_rule
from chopper_interop.arrays import arrow, gather
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    from pathlib import Path

Dims = list[Any]


def args(dims: Dims, types: list[str] | str = "float", concrete: list[str] | None = None) -> dict:
    """Arguments as Kineto writes them; one type is that of all tensors."""
    each = types if isinstance(types, list) else [types] * len(dims)
    arguments = {"Input Dims": dims, "Input type": each}
    return arguments | ({} if concrete is None else {"Concrete Inputs": concrete})


def by_rule(name: str, *shapes: Any, **more: Any) -> CallWork:
    """Work of one call."""
    rule, call = find_rule(name), parse_call(args(*shapes) | more)
    assert rule is not None
    assert call is not None
    return rule[1](call)


@pytest.mark.parametrize(
    ("name", "dims", "types", "flops", "bytes_"),
    [
        ("mm", [[3, 5], [5, 7]], "float", 2 * 3 * 5 * 7, 4 * (15 + 35 + 21)),
        ("mm", [[3, 5], [5, 7]], "c10::Half", 210, 2 * (15 + 35 + 21)),
        ("mm", [[3, 5], [5, 7]], "long int", None, 8 * (15 + 35 + 21)),
        ("mm", [[3, 5], [4, 7]], "float", None, None),
        ("mm", [[0, 5], [5, 7]], "float", 0, 140),
        ("bmm", [[2, 3, 5], [2, 5, 7]], "float", 420, 4 * (30 + 70 + 42)),
        ("matmul", [[4, 1, 3, 5], [2, 5, 7]], "float", 8 * 210, 4 * (60 + 70 + 168)),
        ("matmul", [[2, 3, 5], [5]], "float", 60, 4 * (30 + 5 + 6)),
        ("matmul", [[5], [5]], "float", 10, 4 * 11),
        ("mv", [[3, 5], [5]], "double", 30, 8 * (15 + 5 + 3)),
        ("dot", [[9], [9]], "float", 18, 4 * 19),
        ("addmm", [[7], [3, 5], [5, 7], [], []], "float", 210, 4 * (7 + 15 + 35 + 21)),
        ("addmv", [[3], [3, 5], [5], [], []], "float", 30, 4 * (3 + 15 + 5 + 3)),
        ("baddbmm", [[2, 3, 7], [2, 3, 5], [2, 5, 7]], "float", 420, 4 * (42 + 30 + 70 + 42)),
        ("addbmm", [[3, 7], [2, 3, 5], [2, 5, 7]], "float", 420, 4 * (21 + 30 + 70 + 21)),
        ("linear", [[2, 3, 5], [7, 5], [7]], "float", 420, 4 * (30 + 35 + 7 + 42)),
        ("outer", [[3], [4]], "float", 12, 4 * 19),
    ],
)
def test_products(name: str, dims: Dims, types: str, flops: int | None, bytes_: int | None) -> None:
    kinds = [types if d else "Scalar" for d in dims]
    work = by_rule(f"aten::{name}", dims, kinds)
    assert (work.flops, work.bytes) == (flops, bytes_)


def test_repeated_elements_in_memory_are_read_once() -> None:
    work = by_rule("aten::mm", [[3, 5], [5, 7]], **{"Input Strides": [[0, 1], [7, 1]]})
    assert work == CallWork(210, 4 * (5 + 35 + 21))


@pytest.mark.parametrize(
    ("types", "concrete"),
    [
        (["c10::Float8_e4m3fnuz", "c10::Float8_e4m3fnuz", "float", "float", "", "", "Scalar"],
         ["", "", "", "", "", "", "15"]),
        (["c10::Float8_e4m3fn", "c10::Float8_e4m3fn", "", "Scalar", "float", "float", "", ""],
         ["", "", "", "15", "", "", "", ""]),
    ],
)  # fmt: skip
def test_scaled_products_of_two_versions(types: list[str], concrete: list[str]) -> None:
    dims = [[3, 5], [5, 7], *([] for _ in types[2:])]
    work = by_rule("aten::_scaled_mm", dims, types, concrete)
    assert work == CallWork(210, 15 + 35 + 2 * 21)


SIZE = st.integers(1, 3)


def multiplications(x: Dims, w: Dims, stride: Dims, pad: Dims, dilation: Dims, groups: int) -> int:
    """Multiply-adds of a convolution, with its padding as if it were data."""
    out = [
        (n + 2 * p - d * (k - 1) - 1) // s + 1
        for n, k, s, p, d in zip(x[2:], w[2:], stride, pad, dilation, strict=True)
    ]
    count = 0
    positions = [range(max(n, 0)) for n in out]
    for _ in itertools.product(range(x[0]), range(w[0]), *positions):
        for _ in itertools.product(range(x[1] // groups), *map(range, w[2:])):
            count += 1
    return count


@given(
    spatial=st.integers(1, 2), data=st.data(), groups=st.integers(1, 2),
    dtype=st.sampled_from([("c10::Half", 2), ("float", 4)]),
)  # fmt: skip
def test_convolutions_against_loops(
    spatial: int, data: st.DataObject, groups: int, dtype: tuple[str, int]
) -> None:
    batch = data.draw(SIZE)
    many = st.lists(SIZE, min_size=spatial, max_size=spatial)
    stride, dilation, kernel_ = (data.draw(many) for _ in range(3))
    pad = data.draw(st.lists(st.integers(0, 2), min_size=spatial, max_size=spatial))
    c, k = data.draw(SIZE), data.draw(SIZE)
    room = [d * (n - 1) + 1 + extra for d, n, extra in
            zip(dilation, kernel_, data.draw(many), strict=True)]  # fmt: skip
    x, w = [batch, c * groups, *room], [k * groups, c, *kernel_]
    dtype, item = dtype
    macs = multiplications(x, w, stride, pad, dilation, groups)
    out = macs // (c * int(np.prod(kernel_)))
    moved = item * (int(np.prod(x)) + int(np.prod(w)) + out)
    s, p, d = map(str, (stride, pad, dilation))
    tail = [[], [], [], [], [], []]
    types = [dtype, dtype, "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    values = ["", "", "", s, p, d, "False", str([0] * spatial), str(groups)]
    work = by_rule("aten::convolution", [x, w, [], *tail], types, values)
    assert (work.flops, work.bytes) == (2 * macs, moved)
    work = by_rule("aten::miopen_convolution", [x, w, [], *tail[:4]],
                    [dtype, dtype, "", *["ScalarList"] * 3, "Scalar"],
                    ["", "", "", p, s, d, str(groups)])  # fmt: skip
    assert (work.flops, work.bytes) == (2 * macs, moved)


def test_a_transposed_convolution_has_the_work_of_its_gradient() -> None:
    # each of 2 * 3 * 5 inputs goes to 4 * 9 outputs: output (5 - 1) * 2 + 3 = 11
    dims = [[2, 3, 5], [3, 4, 9], [], [], [], [], [], [], []]
    types = ["float", "float", "", *["ScalarList"] * 3, "Scalar", "ScalarList", "Scalar"]
    values = ["", "", "", "[2]", "[3]", "[1]", "True", "[0]", "1"]
    work = by_rule("aten::convolution", dims, types, values)
    assert work == CallWork(2 * 2 * 3 * 5 * 4 * 9, 4 * (30 + 108 + 2 * 4 * 11))


@pytest.mark.parametrize(
    ("mask", "parts", "moved"),
    [
        ("[True, True, False]", 2, 4 * (2 * 5 * 16 + 135 + 2 * 3 * 36) + 4 * (216 + 135)),
        ("[False, True, True]", 1, 4 * (160 + 216) + 4 * (135 + 5)),
        ("[True, False, False]", 1, 4 * (160 + 135) + 4 * 216),
    ],
)
def test_gradients_of_a_convolution(mask: str, parts: int, moved: int) -> None:
    grad, x, w = [2, 5, 4, 4], [2, 3, 6, 6], [5, 3, 3, 3]
    types = ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    values = ["", "", "", "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1", mask]
    work = by_rule("aten::convolution_backward", [grad, x, w, *[[]] * 8], types, values)
    each = 2 * multiplications(x, w, [1, 1], [0, 0], [1, 1], 1)
    assert work == CallWork(parts * each, moved, parts)


def test_a_convolution_without_stride_has_unknown_work() -> None:
    assert by_rule("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 3, 3]]) == CallWork()


X, W, GRAD = [2, 3, 8, 8], [5, 3, 3, 3], [2, 5, 4, 4]
EACH = 2 * 2 * 5 * 16 * 27


def test_a_gradient_determines_the_shapes_of_its_convolution(tmp_path: Path) -> None:
    lists = ["GenericList"] * 3
    events = [
        op("aten::cudnn_convolution", 0, 5, [X, W, [], [], []], ["float", "float", *lists]),
        op("aten::cudnn_convolution_backward", 10, 30, [X, GRAD, W, [], []], "float"),
        op("aten::cudnn_convolution_backward_input", 11, 5, [[], GRAD, W, [], []],
           ["GenericList", "float", "float", *lists]),
        op("aten::cudnn_convolution_backward_weight", 21, 5, [[], GRAD, X, [], []],
           ["GenericList", "float", "float", *lists]),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "t.json", [*events, *launched(("conv", 1, 5))]))
    flops, moved = named(trace, "flops"), named(trace, "mem_bytes")
    assert list(flops.values()).count(EACH) == 4
    assert flops["aten::cudnn_convolution_backward"] is None
    size = 4 * (2 * 3 * 64 + 5 * 27 + 2 * 5 * 16)
    assert list(moved.values()).count(size) == 4
    by_code = counts(trace)
    assert by_code["work-shape-inferred"] == 2
    other = op("aten::cudnn_convolution_backward", 50, 3, [X, [2, 5, 8, 8], W, [], []], "float")
    trace = ci.read(write(tmp_path / "t.json", [*events, other]))
    flops = named(trace, "flops")
    assert flops["aten::cudnn_convolution"] is None
    assert flops["aten::cudnn_convolution_backward_weight"] == EACH


LENGTH = st.integers(1, 6)
WINDOW = st.integers(-1, 4)


def attends(i: int, j: int, more_keys: int, mask: int, left: int, right: int) -> bool:
    """True if query i attends to key j, with so many keys more than queries."""
    diagonal = i if mask == attention.TOP_LEFT else i + more_keys
    return (
        (not mask or j <= diagonal)
        and (left < 0 or j >= diagonal - left)
        and (mask > 0 or right < 0 or j <= diagonal + right)
    )


@given(LENGTH, LENGTH, st.integers(0, 2), WINDOW, WINDOW)
def test_pairs_of_attention_against_loops(
    queries: int, keys: int, mask: int, left: int, right: int
) -> None:
    count = sum(
        attends(i, j, keys - queries, mask, left, right)
        for i in range(queries)
        for j in range(keys)
    )
    assert attention.pairs(queries, keys, mask, left, right) == count


FLASH_TYPES = ["c10::BFloat16"] * 3 + ["", "", *["Scalar"] * 6, "", "", "", ""]


def flash(*, causal: bool, lengths: Dims | None = None, q: Dims | None = None) -> CallWork:
    q = q or [2, 6, 4, 8]
    k = [*q[:-2], 2, 8]
    types = list(FLASH_TYPES)
    if lengths is not None:
        types[3] = types[4] = "int"
    values = ["", "", "", "", "", "6", "6", "0.", str(causal), "False", "0.1", "", "", "", ""]
    dims = [q, k, k, lengths or [], lengths or [], *[[]] * 10]
    return by_rule("aten::_flash_attention_forward", dims, types, values)


def test_attention_with_fewer_heads_of_keys() -> None:
    operands = 2 * (2 * 6 * 4 * 8 + 2 * (2 * 6 * 2 * 8) + 2 * 6 * 4 * 8)
    assert flash(causal=False) == CallWork(4 * 2 * 4 * 36 * 8, operands)
    assert flash(causal=True) == CallWork(4 * 2 * 4 * 21 * 8, operands)


def test_sequences_of_unknown_lengths_are_unknown() -> None:
    assert flash(causal=True, lengths=[3], q=[12, 4, 8]) == CallWork()
    assert flash(causal=True, lengths=[2], q=[6, 4, 8]).flops == 4 * 4 * 21 * 8


def test_attention_backward_does_five_products_instead_of_two() -> None:
    q = [2, 4, 6, 8]
    dims = [q, q, q, q, q, [2, 4, 6], [], [], [], [], [], [], [], []]
    types = ["float"] * 6 + ["", "", *["Scalar"] * 4, "long int", "long int"]
    values = [*[""] * 8, "6", "6", "0.", "False", "", ""]
    work = by_rule("aten::_scaled_dot_product_flash_attention_backward", dims, types, values)
    assert work == CallWork(5 * 2 * 2 * 4 * 36 * 8, 4 * 8 * 2 * 4 * 6 * 8)


@pytest.mark.parametrize(
    ("name", "dims", "types", "concrete", "expected"),
    [
        ("add", [[4, 1], [3], []], ["float", "float", "Scalar"], ["", "", "1"], (12, 4 * 19)),
        ("add_", [[4, 3], [3], []], ["c10::Half", "float", "Scalar"], None, (12, 2 * 24 + 12)),
        ("add", [[4], [4], []], ["c10::Half", "float", "Scalar"], None, (4, 8 + 16 + 16)),
        ("add", [[4], [], []], ["c10::Half", "double", "Scalar"], None, (4, 8 + 8 + 8)),
        ("add", [[4], [], []], ["long int", "Scalar", "Scalar"], ["", "2", "1"], (0, 64)),
        ("mul", [[4], []], ["long int", "Scalar"], ["", "2.5"], (None, None)),
        ("mul", [[4], [], [4]], ["float", "double", "float"], None, (4, 16 + 8 + 16)),
        ("eq", [[4], []], ["float", "Scalar"], None, (0, 16 + 4)),
        ("exp", [[4]], ["float"], None, (4, 32)),
        ("exp", [[4]], ["int"], None, (4, 32)),
        ("exp", [[4]], ["long int"], None, (4, 48)),
        ("div", [[4], []], ["c10::Half", "long int"], None, (4, 8 + 8 + 8)),
        ("neg", [[4]], ["float"], None, (0, 32)),
        ("mul", [[4], [4]], ["c10::complex<float>"] * 2, None, (None, 96)),
        ("clamp_min", [[4], [], [4]], ["float", "Int", "float"], None, (0, 32)),
        ("where", [[4], [4], [4]], ["bool", "float", "float"], None, (0, 4 + 48)),
        ("copy_", [[4], [4]], ["float", "c10::Half"], None, (0, 24)),
        ("fill_", [[4], []], ["float", "Scalar"], None, (0, 16)),
        ("_foreach_mul_", [[[2, 2], [3]], []], ["TensorList", "Scalar"], None, (None, None)),
        ("cat", [[[2, 2], [3, 2]], []], ["GenericList[Tensor(float),Tensor(float)]", "Int"],
         None, (0, 80)),
        ("_foreach_add_", [[[2, 2], [3]], [[2, 2], [3]], []],
         ["GenericList[Tensor(float),Tensor(float)]"] * 2 + ["Scalar"], None, (7, 3 * 28)),
        ("_foreach_add_", [[], [], []], ["TensorList", "TensorList", "Scalar"], None, (None, None)),
        ("sum", [[4, 3], [], [], []], ["float", "ScalarList", "Scalar", ""],
         ["", "[0]", "True", ""], (12, 48 + 12)),
        ("sum", [[4, 3], []], ["int", ""], None, (0, 48 + 8)),
        ("mean", [[4, 3], [], [], [], []], ["float", "ScalarList", "Scalar", "", "float"],
         None, (12, 52)),
        ("argmax", [[4, 3], [], []], ["float", "Scalar", "Scalar"], ["", "-1", "False"], (0, 80)),
        ("native_layer_norm", [[4, 3], [], [3], [3], []],
         ["float", "ScalarList", "float", "float", "Scalar"], None, (84, 48 + 24 + 48)),
        ("_softmax", [[4, 3], [], []], ["c10::Half", "Scalar", "Scalar"],
         ["", "-1", "True"], (48, 24 + 48)),
        ("embedding", [[9, 3], [4]], ["float", "long int"], None, (0, 32 + 48 + 48)),
        ("index_select", [[9, 3], [], [4]], ["float", "Scalar", "long int"],
         ["", "0", ""], (0, 32 + 96)),
    ],
)  # fmt: skip
def test_elements(
    name: str, dims: Dims, types: list[str], concrete: list[str] | None, expected: tuple
) -> None:
    work = by_rule(f"aten::{name}", dims, types, concrete)
    assert (work.flops, work.bytes) == expected


def test_values_of_host_execution_traces() -> None:
    pair = "GenericList[Int,Int]"
    arguments = {
        "Input Dims": [[2, 5, 4, 4], [2, 3, 6, 6], [5, 3, 3, 3], [[]], *[[[], []]] * 3, [],
                       [[], []], [], [[], [], []]],
        "Input type": [*["Tensor(float)"] * 3, "GenericList[Int]", *[pair] * 3, "Bool", pair,
                       "Int", "GenericList[Bool,Bool,Bool]"],
        "Input Values": [[7, 8, 0, 160, 4, "cuda:0"], [9, 8, 0, 216, 4, "cuda:0"],
                         [9, 7, 0, 135, 4, "cuda:0"], [0], [1, 1], [0, 0], [1, 1], False,
                         [0, 0], 1, [False, True, False]],
    }  # fmt: skip
    each = 2 * multiplications([2, 3, 6, 6], [5, 3, 3, 3], [1, 1], [0, 0], [1, 1], 1)
    (work,) = operators._work_of_calls(["aten::convolution_backward"], [arguments])
    assert work == CallWork(each, 4 * (160 + 216 + 135), 1)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=8,
)
TYPE = st.sampled_from(["float", "long int", "", "Scalar", "TensorList", "c10::Half", "Tensor(x)"])
OPERATORS = [
    f"aten::{name}"
    for name in [
        "mm",
        "addmm",
        "bmm",
        "matmul",
        "linear",
        "convolution",
        "convolution_backward",
        "cudnn_convolution",
        "add",
        "mul_",
        "sum",
        "_softmax",
        "cat",
        "embedding",
        "_flash_attention_forward",
        "_foreach_add_",
        "_fused_adamw_",
        "mean",
        "exp",
        "max_pool2d_with_indices",
        "native_batch_norm",
        "copy_",
        "index_select",
        "scaled_dot_product_attention",
        "_scaled_mm",
        "cudnn_convolution_backward_input",
        "native_layer_norm_backward",
    ]
]


@given(st.sampled_from(OPERATORS), JUNK, st.lists(TYPE, max_size=6), JUNK, JUNK)
def test_arguments_of_any_kind_give_no_error(
    name: str, dims: Any, types: Any, concrete: Any, strides: Any
) -> None:
    arguments = {"Input Dims": dims, "Input type": types, "Concrete Inputs": concrete}
    (work,) = operators._work_of_calls([name], [arguments | {"Input Strides": strides}])
    for value in (work.flops, work.bytes):
        assert value is None or (isinstance(value, int) and value >= 0)


def op(name: str, ts: float, dur: float, *shapes: Any) -> dict:
    return span("cpu_op", name, ts, dur, args=args(*shapes) if shapes else {})


MM = ([[3, 5], [5, 7]], "float")


def launched(*kernels: tuple[str, float, float]) -> list[dict]:
    """For each (name, time of its launch, duration) a call and a kernel."""
    pairs = [
        (runtime("hipLaunchKernel", ts, 0.5, n), kernel(name, 1000 + 50 * n, dur, n))
        for n, (name, ts, dur) in enumerate(kernels, 1)
    ]
    return [event for pair in pairs for event in pair]


def named(trace: ci.Trace, column: str) -> dict[str, int | None]:
    names = np.array(trace.names())[trace.array("name")]
    values = arrow.single_chunk(trace.nodes[column]).to_pylist()
    return dict(zip(names.tolist(), values, strict=True))


def test_the_innermost_operator_and_its_kernel_have_the_work(tmp_path: Path) -> None:
    events = [
        op("aten::linear", 0, 50, [[3, 5], [7, 5]], "float"),
        op("aten::t", 1, 2),
        op("aten::addmm", 10, 30, [[7], [3, 5], [5, 7]], "float"),
        op("aten::copy_", 11, 4, [[3, 5], [3, 5]], "float"),
        *launched(("copy", 12, 5), ("elementwise_kernel<x>", 20, 9), ("Cijk_Ailk", 25, 3)),
    ]
    trace = ci.read(write(tmp_path / "t.json", events))
    flops, moved = named(trace, "flops"), named(trace, "mem_bytes")
    assert [flops[n] for n in ("aten::linear", "aten::addmm", "Cijk_Ailk")] == [None, 210, 210]
    assert flops["elementwise_kernel<x>"] is None
    assert (moved["copy"], moved["aten::copy_"], flops["copy"]) == (120, 120, 0)
    assert moved["Cijk_Ailk"] == moved["aten::addmm"] == 4 * (7 + 15 + 35 + 21)


def test_two_kernels_of_a_gradient_have_half_each(tmp_path: Path) -> None:
    grad, x, w = [2, 5, 4, 4], [2, 3, 6, 6], [5, 3, 3, 3]
    types = ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    values = [*[""] * 3, "[0]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1",
              "[True, True, False]"]  # fmt: skip
    gradient = args([grad, x, w, *[[]] * 8], types, values)
    events = [
        span("cpu_op", "aten::convolution_backward", 0, 50, args=gradient),
        *launched(("igemm_bwd", 1, 5), ("batched_transpose", 2, 70), ("igemm_wrw", 3, 15)),
    ]
    flops = named(ci.read(write(tmp_path / "t.json", events)), "flops")
    each = 2 * multiplications(x, w, [1, 1], [0, 0], [1, 1], 1)
    assert (flops["igemm_bwd"], flops["igemm_wrw"]) == (each, each)
    assert flops["batched_transpose"] is None


def test_kernels_that_share_are_divided_by_time_and_counted(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 50, *MM), *launched(("gemm_a", 1, 10), ("gemm_b", 2, 20))]
    trace = ci.read(write(tmp_path / "t.json", events))
    flops = named(trace, "flops")
    assert (flops["gemm_a"], flops["gemm_b"]) == (70, 140)
    by_code = counts(trace)
    assert by_code["work-divided-by-time"] == 2


def test_an_unknown_operator_leaves_its_kernels_unknown(tmp_path: Path) -> None:
    events = [
        op("triton_poi_fused_add_0", 0, 50, *MM), op("aten::mm", 60, 20, *MM),
        *launched(("triton_poi_fused_add_0d", 1, 10), ("gemm", 61, 30)),
    ]  # fmt: skip
    trace = ci.read(write(tmp_path / "t.json", events))
    assert named(trace, "flops")["triton_poi_fused_add_0d"] is None
    (issue,) = [issue for issue in trace.meta.issues if issue.code == "work-unknown"]
    assert (issue.count, issue.example) == (1, "25.0% of the time of such kernels")


def test_a_number_that_int64_cannot_hold_is_none(tmp_path: Path) -> None:
    n = 1 << 29
    events = [op("aten::mm", 0, 5, [[n, n], [n, n]], "float"), op("aten::mm", 6, 5, *MM)]
    trace = ci.read(write(tmp_path / "t.json", events))
    assert arrow.single_chunk(trace.nodes["flops"]).to_pylist() == [None, 210]
    assert arrow.single_chunk(trace.nodes["mem_bytes"]).to_pylist() == [3 * 4 * n * n, 284]


def test_dimensions_of_early_2021(tmp_path: Path) -> None:
    arguments = {"Input dims": [[3, 5], [5, 7]], "Input type": ["float", "float"]}
    trace = ci.read(
        write(tmp_path / "t.json", [span("Operator", "aten::mm", 0, 5, args=arguments)])
    )
    assert arrow.single_chunk(trace.nodes["flops"]).to_pylist() == [210]


def test_copies_fills_and_collectives(tmp_path: Path) -> None:
    gather = {"Collective name": "_allgather_base", "dtype": "Float", "In msg nelems": 10,
              "Out msg nelems": 40, "Group size": 4}  # fmt: skip
    events = [
        span("gpu_memcpy", "Memcpy DtoD", 0, 5, args={"bytes": 100, "correlation": 1}),
        span("gpu_memset", "Memset", 10, 5, args={"bytes": 100, "correlation": 2}),
        span("cpu_op", "record_param_comms", 0, 9, args=gather),
        runtime("hipLaunchKernel", 1, 1, 3),
        kernel("ncclDevKernel_AllGather", 20, 5, 3),
    ]
    moved = named(ci.read(write(tmp_path / "t.json", events)), "mem_bytes")
    assert (moved["Memcpy DtoD"], moved["Memset"]) == (200, 100)
    assert moved["ncclDevKernel_AllGather"] == 160


def compared_with_counters(trace: ci.Trace) -> dict[str, tuple[int, float, float]]:
    """Kernels with FLOPs by shapes and by counters, and both sums, by operation."""
    shaped, counted = trace.integers("flops"), trace.reals("flops_counted")
    rows = np.flatnonzero((trace.array("kind") == Kind.KERNEL) & (shaped >= 0) & ~np.isnan(counted))
    owner_of = dict(zip(*operators.kernel_operators(trace), strict=True))
    names, code = trace.names(), trace.array("name")
    sums: dict[str, tuple[int, float, float]] = {}
    for row in rows.tolist():
        own = owner_of.get(row, -1)
        operation = trace.values("operation")[row] or names[code[own if own >= 0 else row]]
        n, by_shapes, by_counters = sums.get(operation, (0, 0.0, 0.0))
        sums[operation] = n + 1, by_shapes + shaped[row], by_counters + counted[row]
    return sums


def test_counters_are_compared_by_operation(tmp_path: Path) -> None:
    events = [op("aten::mm", 0, 50, *MM), *launched(("gemm", 1, 10))]
    trace = ci.read(write(tmp_path / "t.json", events))
    counted = np.where(trace.array("kind") == Kind.KERNEL, 231.0, np.nan)
    mask = np.isnan(counted)
    trace = trace.with_columns(flops_counted=arrow.array(counted, mask=mask))
    assert compared_with_counters(trace) == {"aten::mm": (1, 210.0, 231.0)}


def test_a_kernel_of_an_entry_has_the_role_of_its_own_name() -> None:
    entry = "void ck_tile::kentry<64, 2, ck_tile::{}<ck_tile::bf16_t> >(ck_tile::Kargs)"
    names = [entry.format(own) for own in ("FmhaBwdOGradDotOKernel", "FmhaFwdKernel")]
    assert kernels.roles(names, np.arange(2)).tolist() == [kernels.HELPER, kernels.WORKER]


def test_flops_by_shapes_agree_with_the_sample_jobs_counters(demo: Path) -> None:
    trace = read_once(demo)
    rows = compared_with_counters(trace)
    assert rows["aten::linear"][0] > 10
    for _, by_shapes, by_counters in rows.values():
        assert by_counters == pytest.approx(by_shapes, rel=0.001)


def test_pairs_of_sequences_larger_than_any_memory() -> None:
    n = 1 << 40
    assert attention.pairs(n, n, attention.BOTTOM_RIGHT) == n * (n + 1) // 2


MODELS = {
    "Falconsai_nsfw_image_detection__1016002": (4 * 2 * 17.56e9, 0.01),
    "Qwen_Qwen1.5-0.5B-Chat__1016005": None,
    "gaunernst_bert-small-uncased__1016001": None,
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_has_the_same_work_on_both_vendors_gpus(shared: Path, model: str) -> None:
    total = {}
    for gpu in ("mi300x", "h100"):
        trace = read_once(shared / "pytorch" / gpu / f"{model}.json.gz")
        flops, kind = arrow.to_numpy(trace.nodes["flops"]), trace.array("kind")
        total[gpu] = flops[kind == Kind.KERNEL].sum()
        assert total[gpu] == flops[kind == Kind.CPU_OP].sum()
    assert total["mi300x"] == total["h100"]
    known = MODELS[model]
    if known is not None:  # ViT-B/16 at 224 pixels, a batch of four: 17.56 G multiply-adds each
        assert total["h100"] == pytest.approx(known[0], rel=known[1])


def test_resnet50_has_its_published_work(shared: Path) -> None:
    # 4.087 G multiply-adds an image of 224 pixels; 32 images, three steps. The gradients take
    # twice as much, but for that of the images themselves (0.118 G each).
    trace = read_once(shared / "pytorch" / "host_et" / "resnet_1gpu_et.json.gz")
    name, flops = trace.array("name"), arrow.to_numpy(trace.nodes["flops"], -1)
    total = {
        n: flops[(name == c) & (flops >= 0)].sum()
        for c, n in enumerate(trace.names())
        if "conv" in n
    }
    forward = total["aten::cudnn_convolution"]
    assert forward == pytest.approx(3 * 32 * 2 * 4.087e9, rel=0.001)
    first = 3 * 32 * 2 * 112 * 112 * 64 * 3 * 49
    assert total["aten::convolution_backward"] == 2 * forward - first


REAL = ("ddp_resnet_4rank_amd/rank0.json.gz", "mi300x/resnet_act_checkpoint.json.gz",
        "dlrm_8rank_v100/kineto/worker0_step_12.1694128201545.pt.trace.json",
        "misc/rank0.json.gz", "v100_2021/worker0.1623143089861.pt.trace.json.gz")  # fmt: skip


@pytest.mark.parametrize("file", slow_from(REAL, -1))
def test_kernels_have_the_work_of_their_operators(shared: Path, file: str) -> None:
    trace = read_once(shared / "pytorch" / file)
    kind, launch = trace.array("kind"), trace.launch
    on_gpu = np.isin(kind, [int(k) for k in GPU_WORK])
    for column in ("flops", "mem_bytes"):
        value = arrow.to_numpy(trace.nodes[column], -1)
        has = (value >= 0) & (kind == Kind.CPU_OP)
        rows = np.flatnonzero((kind == Kind.KERNEL) & (value >= 0))
        assert rows.size
        owner = gather.nearest_ancestor(launch[rows], trace.array("parent"), has)
        owners = np.unique(owner)
        divided = np.bincount(owner, value[rows].astype(float), len(value))[owners]
        assert np.array_equal(divided, value[owners])
        assert not ((value >= 0) & on_gpu & (launch < 0) & (kind == Kind.KERNEL)).any()

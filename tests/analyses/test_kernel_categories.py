"""Categories of kernels, and CharLLM-PPT's by an independent implementation of its rules."""

import collections
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kineto_files import events_of
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.analyses.kernels import kernels
from chopper_interop.analyses.methods.peers import charllm_kernels
from chopper_interop.annotate.work import kernel_categories
from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.errors import UsageError
from chopper_interop.schemas.kinds import Kind, LaneKind


def charllm_category(name: str) -> str:
    """CharLLM-PPT's rules (figure_10_1.py, dad5f278), implemented from reading them."""
    low = name.lower()

    def has(*texts: str) -> bool:
        return any(text in low for text in texts)

    if has("nccl", "communication"):
        for texts, label in (
            (("allreduce",), "AllReduce"),
            (("reducescatter",), "ReduceScatter"),
            (("allgather",), "AllGather"),
            (("sendrecv", "broadcast"), "SendRecv"),
        ):
            if has(*texts):
                return label
    if has("pushsend", "pushrecv", "buffer"):
        return "Memory/Elementwise"
    if has("triton_") and has("sum", "add", "mul", "div"):
        return "Memory/Elementwise"
    if has("gemm", "sdpa", "matmul"):
        return "Compute (MatMul)"
    if has("elementwise", "kernel"):
        return "Memory/Elementwise"
    return "Layer Norm" if has("norm") else "Other"


PARTS = ("nccl", "Communication", "AllReduce", "ReduceScatter", "AllGather", "SendRecv", "Broadcast",
         "pushsend", "Buffer", "triton_", "sum", "add", "gemm", "SDPA", "matmul", "Elementwise",
         "Kernel", "norm", "x")  # fmt: skip


@given(st.lists(st.sampled_from(PARTS), max_size=4))
def test_rules_of_the_tool(parts: list[str]) -> None:
    name = "_".join(parts)
    actual = charllm_kernels.categories(arrow.texts([name]))
    assert [charllm_kernels.CATEGORIES[n] for n in actual] == [charllm_category(name)]


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("Cijk_Alik_Bljk_HHS_BH_MT16x32x128_MI16x16x1", "matmul"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_64x64>(P)", "matmul"),
        ("void fbgemm_gpu::permute_2D_lengths_kernel<int>(int)", "elementwise"),
        ("nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul"),
        ("triton_tem_fused_mm_3", "matmul"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_16x128x256x1_swiglu", "matmul"),
        ("sm80_xmma_dgrad_implicit_gemm_tf32f32_tilesize128x128x16", "convolution"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt64x64x16", "convolution"),
        ("cask_cudnn::computeWgradSplitKOffsetsKernel(P)", "elementwise"),
        ("batched_transpose_16x32_half", "elementwise"),
        ("void cudnn::ops::nchwToNhwcKernel<float, float>(P)", "elementwise"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::traits<64>>(P)", "attention"),
        ("_ZN7ck_tile6kentryILi1ENS_13FmhaFwdKernelEEE", "attention"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdE", "normalization"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "normalization"),
        ("MIOpenBatchNormFwdTrainSpatial", "normalization"),
        ("void at::native::reduce_kernel<512, 1, ReduceOp<float, NormTwoOps<float>>>(R)", "elementwise"),
        ("void at::native::vectorized_elementwise_kernel<4, gemm_functor>(int)", "elementwise"),
        ("(anonymous namespace)::softmax_warp_forward<float>(float*)", "elementwise"),
        ("fft2d_r2c_32x32<float>(float2*)", "other"),
        ("bmm_kernel", "matmul"),
        ("fused_moe_kernel", "matmul"),
        ("moe_align_block_size_kernel", "elementwise"),
        ("addmm", "matmul"),
        ("void wvSplitK_hf_<__half, 64, 2>(int)", "matmul"),
        ("distribution_normal", "elementwise"),
        ("clip_grad_norm", "elementwise"),
        ("FusedRMSNormAllReduce", "normalization"),
        ("normalize_kernel", "normalization"),
        ("void at::native::cunn_SoftMaxForwardReg<float, long, 6>(float*)", "elementwise"),
        ("std::enable_if<(((8)>(0)))&&vllm::f<T>::exists, void>::type vllm::fused_add_rms_norm_kernel<T, 8>(T*)", "normalization"),
        ("std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(P)", "matmul"),
        ("sage_fwd", "attention"),
        ("", "other"),
    ],
)  # fmt: skip
def test_ours_by_name(name: str, category: str) -> None:
    actual = kernel_categories.name_categories(arrow.texts([name]))
    assert kernel_categories.CATEGORIES[actual[0]] == category


def job(collective: str | None) -> ci.Trace:
    builder = TraceBuilder()
    lane = builder.lane(0, LaneKind.STREAM, 0, "s", 0)
    for at, (kind, name) in enumerate(
        [
            (Kind.COMM, "ncclDevKernel_Generic(ncclDevComm*)"),
            (Kind.KERNEL, "Cijk_x"),
            (Kind.MEMCPY, "Memcpy DtoD"),
            (Kind.MEMSET, "Memset"),
        ]
    ):
        builder.nodes(
            kind=np.array([int(kind)], np.uint8), name=name, rank=0, lane=lane,
            ts=np.array([100 * at]), dur=np.array([10 + at]),
        )  # fmt: skip
    trace = builder.finish()
    return trace.with_columns(collective=[collective, None, None, None]) if collective else trace


def test_collectives_are_named_by_metadata() -> None:
    for stated, category in (("all_gather", "all_gather"), (None, "communication")):
        rows = kernels(job(stated), by="category").rows.to_pylist()
        assert {row["category"]: row["total_ns"] for row in rows} == {
            category: 10, "matmul": 11, "copy": 12, "fill": 13,
        }  # fmt: skip
    result = kernels(job("all_gather"), compat="charllm")
    rows = {row["category"]: row["total_us"] for row in result.rows.to_pylist()}
    assert rows == {"Memory/Elementwise": 0.01, "Other": 0.011}
    assert result.summary["differs_share"] == 1.0
    assert result.summary["communication_elsewhere_us"] == 0.01
    assert "0.000 ms" in result.notes["differs"]


def test_degree_of_pipelines_and_refusals() -> None:
    trace = job("all_gather")
    row = kernels(trace, compat="charllm", pp=4).rows.to_pylist()[0]
    assert row["total_per_stage_us"] == row["total_us"] / 4
    for options in (
        {"compat": "charllm", "pp": 0}, {"pp": 2}, {"compat": "charllm", "steps": "each"},
        {"compat": "charllm", "by": "layer"}, {"compat": "charllm", "by": "rank"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            kernels(trace, **options)
    empty = kernels(TraceBuilder().finish(), compat="charllm")
    assert empty.rows.num_rows == 0
    assert "no rows" in empty.notes


def test_the_sample_job(demo: Path) -> None:
    trace = read_once(demo)
    rows = kernels(trace, by="class,category").rows.to_pylist()
    comm = {row["category"] for row in rows if row["class"] == "comm"}
    assert comm <= set(kernel_categories.CATEGORIES) - {"communication"}
    times = {row["category"]: row["total_ns"] for row in rows}
    computes = {name: time for name, time in times.items() if name not in comm}
    assert max(computes, key=computes.get) == "matmul"
    job_rows = kernels(trace, by="job").rows.to_pylist()
    assert sum(times.values()) == sum(row["total_ns"] for row in job_rows)


LARGEST = 4e6
"""Bytes; the only larger file is made of others that are here."""
FILES = [
    "h100", "mi210", "mi250", "mi350x", "cuda_sync_a100", "mi300x", "ddp_resnet_4rank_amd",
    "v100_2021", "misc", "torchrec_4rank_v100",
]  # fmt: skip
"""Folders; the last five, whose kernels have names like those of the others, are slow."""


def kineto_files(folder: Path) -> list[Path]:
    return [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.name.endswith((".json", ".json.gz"))
        and path.stat().st_size < LARGEST
    ]


class Slice(msgspec.Struct):
    """An event, with what the tool takes of it."""

    cat: str = ""
    name: str = ""
    dur: float = 0


def plain(path: Path) -> list[Slice]:
    """Kernels of a Kineto file, as the tool takes them."""
    return [event for event in events_of(path, Slice) if event.cat == "kernel"]


@pytest.mark.parametrize("name", slow_from(FILES, -5))
def test_real_files(shared: Path, name: str) -> None:
    seen = 0
    for path in kineto_files(shared / "pytorch" / name):
        events = plain(path)
        if not events:
            continue
        trace = read_once(path)
        count: collections.Counter[str] = collections.Counter()
        total: collections.Counter[str] = collections.Counter()
        for event in events:
            count[event.name] += 1
            total[charllm_category(event.name)] += round(1000 * event.dur)
        rows = kernels(trace, by="kernel", compat="charllm").rows.to_pylist()
        assert {row["kernel"]: row["occurrences"] for row in rows} == count, path
        result = kernels(trace, compat="charllm")
        actual = {row["category"]: round(1000 * row["total_us"]) for row in result.rows.to_pylist()}
        assert actual == total, path
        assert 0 <= (result.summary["differs_share"] or 0) <= 1
        seen += 1
    if not seen:
        pytest.skip(f"no file of {name} has kernels")

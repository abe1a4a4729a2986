"""Kernels as the libraries of a ROCm build of PyTorch name, launch and size them."""

from __future__ import annotations

from chopper_interop.demo.kernels import FLOP_PER_CYCLE, STREAM_BYTES_PER_NS, Kernel
from chopper_interop.demo.parameters import PEAK_MHZ

SHORTEST_NS = 2600.0
"""Time of a kernel that has almost nothing to do, nanoseconds."""
# Invented: extents up to which a matrix product has few rows or columns.
_SKINNY = 1024
_BF16 = "c10::BFloat16"
_TENSILE = (
    "Cijk_{layout}_BBS_BH_Bias_HA_S_SAV_UserArgs_MT{m}x{n}x64_MI16x16x1_SN_LDSB1_AFC1_AFEM1_AFEM1_"
    "ASEM1_CLR1_CADS0_DTLA0_DTLB0_DTVA0_DTVB0_EPS0_FDSI0_GRPM1_GRVWA8_GRVWB8_GSUAMB_GLS0_ISA942_IU1"
    "_K1_LBSPPA1024_LBSPPB512_LBSPPM0_LPA16_LPB16_LPM0_LRVW8_LWPMn1_MIAV0_MIWT8_{w}_MO40_NTn1_NTA0_"
    "NTB0_NTC0_NTD4_NTM0_NEPBS16_NLCA1_NLCB1_ONLL1_PGR2_PLR1_PKA1_SIA3_SS1_SPO0_SRVW0_SSO0_SVW8_SK0_"
    "SKXCCM0_TLDS1_ULSGRO0_USL1_UIOFGRO0_USFGROn1_VSn1_VWA8_VWB{w}_WSGRA0_WSGRB0_WS64_WG32_8_1"
)
_LAYOUTS = {"TN": "Alik_Bljk", "NN": "Ailk_Bljk", "NT": "Ailk_Bjlk"}


def gemm(m: int, n: int, k: int, layout: str) -> Kernel:
    """Matrix product (m x k) (k x n) in BF16; `layout` as in BLAS: TN forward, NN and NT backward."""
    skinny = min(m, n) <= _SKINNY
    tile_m, tile_n = (256, 128) if skinny else (256, 256)
    flop = 2 * m * n * k
    efficiency = 0.46 if skinny else 0.66
    return Kernel(
        name=_TENSILE.format(layout=_LAYOUTS[layout], m=tile_m, n=tile_n, w=tile_n // 32),
        kind="gemm_skinny" if skinny else "gemm",
        api="hipExtModuleLaunchKernel",
        blocks=(-(-m // tile_m) * -(-n // tile_n), 1, 1),
        reference_ns=1e3 * flop / (FLOP_PER_CYCLE * efficiency * PEAK_MHZ),
        flop=flop,
        read_bytes=2 * (m * k + k * n),
        write_bytes=2 * m * n,
        lds_bytes=65536,
        vgprs=128 if skinny else 256,
        accum_vgprs=128 if skinny else 256,
        sgprs=112,
    )


def attention(part: str, batch: int, heads: int, kv_heads: int, length: int, dim: int) -> Kernel:
    """Kernel of causal flash attention; `part` is "forward", "backward", "dot" or "convert"."""
    query = 2 * batch * heads * length * dim
    keys = 4 * batch * kv_heads * length * dim
    products = {"forward": 2, "backward": 5}.get(part, 0)
    flop = products * length * length * dim * heads * batch
    traffic = {
        "forward": (query + keys, query),
        "dot": (2 * query, 4 * batch * heads * length),
        "backward": (3 * query + keys, 2 * query + keys),
        "convert": (2 * query, query),
    }[part]
    efficiency = {"forward": 0.42, "backward": 0.34}.get(part, 1.0)
    core_ns = 1e3 * flop / (FLOP_PER_CYCLE * efficiency * PEAK_MHZ)
    return Kernel(
        name=_ATTENTION[part],
        kind="attention" if flop else "reduction",
        api="hipModuleLaunchKernel" if part in ("backward", "convert") else "hipLaunchKernel",
        blocks=(heads, length // 128, batch),
        reference_ns=core_ns or sum(traffic) / STREAM_BYTES_PER_NS,
        flop=flop,
        read_bytes=traffic[0],
        write_bytes=traffic[1],
        lds_bytes=32768 if flop else 0,
        vgprs=128,
        accum_vgprs=128 if flop else 0,
        sgprs=96,
    )


_TRAITS = "ck_tile::TileFmhaTraits<true, true, true, true, false, ck_tile::BlockAttentionBiasEnum::"
_ATTENTION = {
    "forward": (
        "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::BlockFmhaPipelineQRKSVSAsync<"
        "ck_tile::BlockFmhaPipelineProblem<ck_tile::bf16_t, ck_tile::TileFmhaShape<ck_tile::"
        "sequence<128, 128, 32, 128, 32, 128> >, " + _TRAITS + "NO_BIAS> > > > >(ck_tile::"
        "FmhaFwdKernel::Kargs)"
    ),
    "dot": (
        "void ck_tile::kentry<64, 2, ck_tile::FmhaBwdOGradDotOKernel<ck_tile::bf16_t, "
        + _TRAITS
        + ""
        "NO_BIAS> > >(ck_tile::FmhaBwdOGradDotOKernel::Kargs)"
    ),
    "backward": "aiter::fmha_bwd_hd128_bf16_causal_br_a32_rtna_pssk",
    "convert": "aiter::fmha_bwd_hd128_dq_convert_bf16_rtna",
}


def spread(elements: int, per_block: int = 2048) -> tuple[int, int, int]:
    """Return the grid, in work-groups, that covers so many elements."""
    return max(1, -(-elements // per_block)), 1, 1


def stream(
    name: str,
    kind: str,
    traffic: tuple[int, int],
    blocks: tuple[int, int, int],
    block: tuple[int, int, int] = (256, 1, 1),
    api: str = "hipLaunchKernel",
) -> Kernel:
    """Kernel that the memory bounds.

    Parameters
    ----------
    traffic
        Bytes read and bytes written.
    blocks, block
        Grid in work-groups and work-group in work-items.
    """
    return Kernel(
        name=name,
        kind=kind,
        api=api,
        blocks=blocks,
        block=block,
        reference_ns=max(sum(traffic) / STREAM_BYTES_PER_NS, SHORTEST_NS),
        read_bytes=traffic[0],
        write_bytes=traffic[1],
    )


def pointwise(functor: str, elements: int, reads: int, writes: int = 1, size: int = 2) -> Kernel:
    """Element-wise kernel of PyTorch over `reads` inputs and `writes` outputs of `size` bytes."""
    pointers = f"std::array<char*, {reads + writes}ul>"
    width = 16 // size
    return stream(
        f"void at::native::vectorized_elementwise_kernel<{width}, at::native::{functor}, {pointers} >"
        f"(int, at::native::{functor}, {pointers})",
        "elementwise",
        (reads * size * elements, writes * size * elements),
        spread(elements, 256 * width),
    )


ADD = f"CUDAFunctor_add<{_BF16}>"
MUL = f"BinaryFunctor<{_BF16}, {_BF16}, {_BF16}, at::native::binary_internal::MulFunctor<float> >"
_SIXTH = "operator()() const::{lambda()#6}::operator()() const::{lambda("
SILU = (
    "(anonymous namespace)::silu_kernel(at::TensorIteratorBase&)::{lambda()#1}::"
    f"{_SIXTH}{_BF16})#1}}"
)
SILU_BACKWARD = (
    "(anonymous namespace)::silu_backward_kernel(at::TensorIteratorBase&)::{lambda()#1}::"
    f"{_SIXTH}{_BF16}, {_BF16})#1}}"
)
TO_FLOAT = "bfloat16tofloat32_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
TO_BF16 = "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}"
FILL = "FillFunctor<float>"
SCALE = "AUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >"
RECIPROCAL = "reciprocal_kernel_cuda(at::TensorIteratorBase&)::{lambda()#1}"
CLAMP = "(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&)::{lambda()#1}"


def triton(name: str, kind: str, rows: int, traffic: tuple[int, int]) -> Kernel:
    """Kernel compiled by Triton, one program for each row."""
    return stream(name, kind, traffic, (rows, 1, 1), api="hipModuleLaunchKernel")


def multi_tensor(
    metadata: str, functor: str, kind: str, elements: int, streams: tuple[int, int]
) -> Kernel:
    """One launch of a kernel over a list of tensors, moving so many float32 streams in and out."""
    space = "at::native::(anonymous namespace)::"
    signature = f"{space}{metadata}, {space}{functor}"
    return stream(
        f"void {space}multi_tensor_apply_kernel<{signature} >({signature})",
        kind,
        (4 * streams[0] * elements, 4 * streams[1] * elements),
        spread(elements, 65536),
        (512, 1, 1),
    )


RCCL = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
# Invented, of the order of what eight GPUs with a link to each other reach.
_BUS_BYTES_PER_NS = 230
_LATENCY_NS = 24_000


def collective(total_bytes: int, ranks: int, *, passes: int = 1, channels: int = 56) -> Kernel:
    """Kernel of a collective.

    Parameters
    ----------
    total_bytes
        Bytes of the whole tensor, all ranks' shares together.
    passes
        1 for all-gather and reduce-scatter, 2 for all-reduce.
    """
    moved = passes * total_bytes * (ranks - 1) // ranks
    return _rccl(channels, _LATENCY_NS + moved / _BUS_BYTES_PER_NS)


# Invented, of the order of what one link between two GPUs reaches.
_LINK_BYTES_PER_NS = 45
_EXCHANGE_LATENCY_NS = 9_000


def point_to_point(size: int) -> Kernel:
    """Kernel of a send or receive of so many bytes over one link between two GPUs."""
    return _rccl(8, _EXCHANGE_LATENCY_NS + size / _LINK_BYTES_PER_NS)


def _rccl(channels: int, reference_ns: float) -> Kernel:
    return Kernel(
        name=RCCL,
        kind="collective",
        api="hipExtLaunchKernel",
        blocks=(channels, 1, 1),
        reference_ns=reference_ns,
        lds_bytes=30208,
        vgprs=96,
        sgprs=112,
    )

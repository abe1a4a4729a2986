"""Names by which communication is recognised: kernels of libraries, and operators of frameworks.

The names are those of the libraries' sources. They are looked for in a kernel's own name, which
ends before its template arguments and parameters, and may be mangled.
"""

from __future__ import annotations

from typing import NamedTuple

from chopper_interop.schemas.kinds import Collective

NAMED = "named"
"""The collective is part of the kernel's name: ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``."""


class KernelNames(NamedTuple):
    """Kernels of one library that communicate.

    Parameters
    ----------
    library
        Library, and framework, that has them.
    collective
        The collective (see `Collective`), `NAMED`, or None if the name does not say.
    pattern
        Regular expression for the name from the beginning of a word on; it must not need
        backtracking over more than one repetition.
    source
        Files in which they are defined.
    computes
        True if they compute as well, a norm or a quantization; they count as communication.
    polled
        True if they write to memory what hosts may poll for: no call of a runtime waits (`edges.polls`).
    """

    library: str
    collective: str | None
    pattern: str
    source: str
    computes: bool = False
    polled: bool = False


_DEEP_EP = r"(?:deep_ep|hybrid_ep|nccl_ep|uccl|dpsk(?:::|2)ep)[\w:]*?(?:::|\d)"
_WORD_END = r"(?![a-z_])"

KERNELS: tuple[KernelNames, ...] = (
    KernelNames("NCCL, RCCL, MSCCL, MSCCL++", NAMED,
                r"(?i:nccl(?!_ep)|rccl|msccl)",
                "nccl src/device/generate.py, src/device/symmetric/generate.py (2.0 to 2.28); rccl; "
                "msccl ncclMscclKernel; mscclpp src/ext/collectives"),
    KernelNames("DeepEP, HybridEP, UCCL-EP, Primus-Turbo", Collective.ALL_TO_ALL,
                _DEEP_EP
                + r"(?:hybrid_)?(?:dispatch|combine)(?:_impl|_kernel)?"
                + _WORD_END
                + r"|nccl_ep_jit_(?:ht|ll)_(?:dispatch|combine)_kernel",
                "DeepEP csrc/kernels/legacy/{intranode,internode,internode_ll}.cu, "
                "deep_ep/include/deep_ep/impls (V2); nccl contrib/nccl_ep/device (HybridEP)"),
    KernelNames("DeepEP, HybridEP, UCCL-EP, Primus-Turbo", None,
                _DEEP_EP
                + r"(?:cached_notify(?:_dispatch|_combine)?|barrier(?:_impl)?|device_sync_kernel"
                + r"|clean_low_latency_buffer|cleanLowLatencyBufferKernel|pp_(?:send|recv)_impl|engram_fetch(?:_wait)?_impl)"
                + _WORD_END,
                "the same; they exchange counts, or wait for all ranks"),
    KernelNames("DeepEP, UCCL-EP, Primus-Turbo", None,
                _DEEP_EP + r"notify_dispatch" + _WORD_END,
                "DeepEP csrc/legacy/buffer.hpp (moe_recv_counter); hosts poll unless num_worst_tokens is given", polled=True),
    KernelNames("MORI-EP", Collective.ALL_TO_ALL,
                r"Ep(?:Dispatch|Combine)(?:Intra|Inter|LowLatency(?!Async(?:Send|Recv)Copy))",
                "mori src/ops/dispatch_combine; of InterNodeV1 and the asynchronous kernels those that copy "
                "and sum in this GPU's memory count as compute"),
    KernelNames("MORI-EP, MORI-SHMEM", None,
                r"EpCombineSyncBarrier|_?(?:mori_)?shmem_barrier_all_block|mori::shmem::_barrier_kernel",
                "mori src/ops/dispatch_combine/internode_v1.cpp, src/shmem, include/mori/shmem/shmem.hpp; they wait for all ranks"),
    KernelNames("MORI-IO", None,
                r"\A(?:fabricCopyKernel|scatterGatherCopyKernel)\Z",
                "mori src/io/kernels; copies between GPUs, of several pieces each"),
    KernelNames("MORI-CCL", NAMED,
                r"(?!BroadcastKernel(?!_))(?:OneShot|Sdma|InterNodeRing)?(?:All2all|AllGather|ReduceScatter|Broadcast)"
                r"(?:AllGatherFused|Async|ReducedSdma|Sdma|Ring|P2p|Kernel(?![A-Za-z]))|OneShotAllReduceKernel",
                "mori src/collective/kernels, include/mori/collective"),
    KernelNames("MORI-CCL", Collective.ALL_GATHER,
                r"FusedRing(?:Local|Remote)GatherKernel",
                "mori src/collective/kernels/ccl_kernels.hip"),
    KernelNames("pplx-garden, pplx-kernels", Collective.ALL_TO_ALL,
                r"a2a_(?:dispatch|combine)_(?:send|recv)_kernel|\A(?:dispatch|combine)Kernel\Z",
                "pplx-garden p2p-all-to-all/a2a-kernels/src/a2a; pplx-kernels csrc/all_to_all, whose kernels "
                "are in no namespace with a name"),
    KernelNames("Triton-distributed, FLUX", Collective.ALL_GATHER,
                r"_forward_(?:pull|push_(?:numa_)?[23]d(?:_ll)?(?:_multimem|_multinode)?)_kernel"
                r"|ag_(?:a2a_mode|ring[12]d_with_scale)_kernel",
                "Triton-distributed kernels/nvidia/low_latency_allgather.py; flux src/coll/all_gather_impls.cu"),
    KernelNames("Triton-distributed, UCC, AITER", NAMED,
                r"all_?gather_(?:opt|no_barrier|strided_chunked|chunked_pull|push_2d)\w*_kernel"
                r"|allreduce_(?:one_shot|two_shot|double_tree)_\w*intra_node_kernel"
                r"|consumer_all_reduce_(?:load_store_)?kernel|reduce_scatter_ring_push_1d_intra_node_kernel"
                r"|\A(?:allreduce|allgatherv|reduce_scatter)_kernel(?:_(?:vec|scalar)(?:32|64))?\Z"
                r"|\A_(?:all_gather|reduce_scatter)_kernel\Z|\Aallgather_(?:ipc_)?kernel\Z",
                "Triton-distributed kernels/{nvidia,amd}; ucc src/components/tl/cuda/kernels; aiter "
                "aiter/ops/triton/comms"),
    KernelNames("Triton-distributed, FLUX", Collective.ALL_TO_ALL,
                r"all_to_all_(?:kernel|single_2d_kernel|v_2d_)|cp_from_recv_buf|\A(?:dispatch|combine)_kernel_v2\Z"
                r"|kernel_cutlass_\w*ep_overlapkernelscutedsl_(?:dispatch|combine)(?!_group_gemm)"
                r"|kernel_(?:dispatch|combine)_(?:intranode|token(?:_intra_node)?)\Z|kernel_all2all_(?:pull|push)_intra_node"
                r"|(?:kernel_)?(?:pre|post)_attn_(?:qkv_pack_)?(?:a2a|all2all)|a2a_single_kernel"
                r"|flux::(?:all2all|transport_kernel|perform_data_copy)"
                r"|dis_scatter_(?:forward_flatten|backward|backward_single_node|pre_comm_index)_kernel"
                r"(?!_copy_out)",
                "Triton-distributed kernels/{nvidia,amd}/*a2a*, *all_to_all*, FlashComm/python/flash_comm/"
                "ep_overlap (CuTe DSL writes the module without its dots); flux src/coll, "
                "src/{gemm_a2a_transpose,a2a_transpose_gemm}"),
    KernelNames("Triton-distributed, FLUX", None,
                r"_?(?:kernel_)?(?:(?:local_)?copy_|reset_signal_)(?:and_reset_)?and_barrier_all"
                r"|(?:kernel_)?barrier_all_(?:kernel|ipc_kernel|intra_node|on_stream)|CudaIpcBarrierAll|local_copy_and_reset_kernel"
                r"|kernel_get_ag_splits_and_recv_offset|kernel_build_fused_dispatch_metadata"
                r"|kernel_inter_node_p2p_for_same_local_rank|mxshmem_"
                r"|p2p_(?:copy_kernel|copy_remote_to_local_kernel|put_kernel|set_signal|wait_signal)",
                "Triton-distributed kernels/{nvidia,amd,metax}; flux src/{coll,cuda}; they wait for all ranks, "
                "exchange counts, or copy to one other"),
    KernelNames("Triton-distributed, FLUX", Collective.REDUCE_SCATTER,
                r"(?:ep_)?topk_gather_rs_(?:v2_)?kernel|gather_rs_kernel|run_per_segment_kernel"
                r"|reduce_topk_reduce_scatter_",
                "flux src/moe_gather_rs/topk_gather_rs*.cu, src/gemm_rs/reduce_scatter_kernel.hpp, "
                "python/flux/triton/topk_gather_rs.py; Triton-distributed kernels/nvidia/moe_reduce_rs.py", computes=True),
    KernelNames("Triton-distributed", Collective.ALL_REDUCE,
                r"reduce_topk_allreduce_kernel",
                "Triton-distributed kernels/nvidia/moe_reduce_ar.py", computes=True),
    KernelNames("UCC", None,
                r"\A(?:executor_(?:kernel|start|shutdown_ack)|kernel_copy_multi(?:_aligned)?)\Z",
                "ucc src/components/ec/cuda/kernel/ec_cuda_executor.cu; it works for all of UCC's collectives"),
    KernelNames("NCCL user buffers", NAMED,
                r"ubx_kernel_(?:all|a2a|combine|barrier)|(?:directR|r)eshardKernelUserWindow"
                r"|lsa_(?:poison|simple)_alltoall_kernel|(?:one|two)shot_mc_(?:poison_|simple_)?allreduce_kernel",
                "nccl contrib/nccl_ubx/csrc/ubx.cu, contrib/nccl_m2n/src/reshard_user_window.cu, contrib/custom_algos"),
    KernelNames("NVSHMEM", None,
                r"(?:barrier|sync|quiet|signal_op|signal_wait_until|rdxn|reducescatter|alltoall|broadcast"
                r"|fcollect)(?:_all)?_on_stream_kernel|nvshmem(?!i_(?:init|call_init|team))|rocshmem"
                r"|niin_stream_",
                "nvshmem src/host/coll, src/device/launch; NCCL's NIIN niin/stream.h; rocSHMEM has none of its "
                "own"),
    KernelNames("PyTorch symmetric memory", NAMED,
                r"(?:multimem_(?:one_shot_|two_shot_)?|one_shot_|two_shot_)all_?(?:reduce|gather)",
                "torch/csrc/distributed/c10d/symm_mem/CUDASymmetricMemoryOps.cu"),
    KernelNames("PyTorch symmetric memory", None,
                r"multimem_(?:one_shot_)?reduce"
                r"|symmetric_memory::(?:barrier|(?:put|wait)_signal|nixl_wait_\w*)_kernel"
                r"|exchangeSplitAndOffset",
                "torch/csrc/distributed/c10d/symm_mem/{CUDASymmetricMemory,nvshmem_extension,"
                "NIXLSymmetricMemoryOps}.cu"),
    KernelNames("PyTorch symmetric memory", Collective.ALL_TO_ALL,
                r"allToAllV" + _WORD_END + "|allToAllV_2d",
                "torch/csrc/distributed/c10d/symm_mem/nvshmem_extension.cu"),
    KernelNames("vLLM, SGLang, AITER custom all-reduce", Collective.ALL_REDUCE,
                r"cross_device_reduce_(?:[12]stage|half_butterfly)|allreduce_prototype_(?:one|two)shot"
                r"|all_reduce_(?:one|two)_shot(?:_push|_pull)?_kernel|ar_(?:ll_)?gfx1250",
                "vllm csrc/custom_all_reduce.cuh, csrc/quickreduce; sgl-kernel csrc/allreduce; "
                "sglang jit_kernel/csrc/distributed; "
                "aiter csrc/include/{custom,quick}_all_reduce.cuh, custom_all_reduce_gfx1250.cuh"),
    KernelNames("SGLang", NAMED,
                r"(?:sglang::)?sp_collective::(?:all_gather|reduce_scatter)",
                "sglang jit_kernel, collectives of row shards of K3's MoE"),
    KernelNames("SGLang", Collective.ALL_REDUCE,
                r"parallel_qknorm_across_head|all_reduce_(?:push|pull)_(?:res|norm)_kernel",
                "sglang jit_kernel/csrc/distributed, its fusions for K3", computes=True),
    KernelNames("SGLang", None,
                r"nvlink_barrier_kernel",
                "sglang jit_kernel, custom all-reduce"),
    KernelNames("AITER", Collective.ALL_GATHER,
                r"ag_gfx1250_",
                "aiter csrc/include/custom_all_reduce_gfx1250.cuh"),
    KernelNames("AITER", Collective.REDUCE_SCATTER,
                r"rs_gfx1250_",
                "aiter csrc/include/custom_all_reduce_gfx1250.cuh"),
    KernelNames("AITER", None,
                r"\Afused_pipeline_kernel\Z",
                "aiter aiter/ops/triton/comms/fused/reduce_scatter_rmsnorm_quant_all_gather.py", computes=True),
    KernelNames("AITER", Collective.ALL_REDUCE,
                r"(?:qknorm_)?allreduce_fusion_kernel_[12]stage|allreduce_(?:rmsnorm_prototype|mhc_post)"
                r"|allReduceQuantFp8",
                "aiter csrc/include/{custom,quick}_all_reduce.cuh", computes=True),
    KernelNames("AITER", NAMED,
                r"reduce_scatter_(?:cross_device_store|split_(?:first|last|mid)_?dim)"
                r"|allgather_(?:lastdim|naive|vec)" + _WORD_END,
                "aiter csrc/include/custom_all_reduce.cuh"),
    KernelNames("TensorRT-LLM, FlashInfer", Collective.ALL_REDUCE,
                r"(?:oneShot|twoShot|lowPrecisionOneShot|lowPrecisionTwoShot(?:Hier)?|twoshot|hybridCubeMesh)"
                r"All[Rr]educeKernel|(?:one|two)shot_allreduce_kernel",
                "TensorRT-LLM cpp/tensorrt_llm/kernels/{customAllReduceKernels,communicationKernels}; "
                "flashinfer include/flashinfer/comm; torch intra_node_comm.cu"),
    KernelNames("TensorRT-LLM, FlashInfer", Collective.ALL_REDUCE,
                r"(?:moereduce_|moefinalize_)?allreduce_fusion_kernel_(?:one|two)shot"
                r"|oneshotAllreduceFusionKernel|rmsNormLamport"
                r"|(?:lamport_style_)?one_shot_(?:prenorm_)?all_reduce_norm_kernel"
                r"|minimax_reduce_rms_kernel|kimi_k3_moe_tail_kernel|_fp8_blockscale_2shot_kernel"
                r"|kernel_cutlass_\w*mnnvl_cutedsl",
                "TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels; flashinfer "
                "include/flashinfer/comm/trtllm_{allreduce,mnnvl_allreduce,moe_allreduce}*.cuh, "
                "flashinfer/comm/{quantized_allreduce.py,mnnvl_cutedsl}; vllm csrc/minimax_reduce_rms_kernel.cu", computes=True),
    KernelNames("TensorRT-LLM", Collective.ALL_GATHER,
                r"mnnvlAllGatherSplitKernel|kimi_k3_stripe_ag_add_kernel",
                "TensorRT-LLM cpp/tensorrt_llm/kernels/communicationKernels/{mnnvlAllGather,kimiK3}*.cu", computes=True),
    KernelNames("TensorRT-LLM, FlashInfer", Collective.ALL_TO_ALL,
                r"moeAllToAllKernel|moeA2A(?:Dispatch|Combine)Kernel|helixAllToAllKernel|ulysses_a2a_kernel",
                "TensorRT-LLM cpp/tensorrt_llm/kernels/{moeCommKernels,fusedMoeCommKernels,helixAllToAll}; "
                "flashinfer include/flashinfer/comm"),
    KernelNames("FlashInfer", Collective.ALL_TO_ALL,
                r"\A(?:(?:store_publish|combine_publish)(?:_dedup)?(?:_fp8)?(?:_grouped)?_kernel)\Z",
                "flashinfer flashinfer/moe_ep/kernel_src/sm90/push_style_megamoe/src/a2a/sm90_push_a2a_ops.cu, whose kernels "
                "are in no namespace with a name"),
    KernelNames("FlashInfer", None,
                r"\A(?:reserve_publish(?:_dedup)?|publish_abort|wait_(?:acks|prefix|combine)|ack|barrier_triton)_kernel\Z",
                "the same; they exchange counts, or wait for other ranks; flashinfer flashinfer/comm/all_gather_matmul"),
    KernelNames("FlashInfer", None,
                r"mixed_comm::\w*(?:allreduce|allgather|reducescatter)\w*_kernel|pcie_ipc::\w+_kernel",
                "flashinfer include/flashinfer/comm/{mixed_comm,pcie_ipc_all_reduce}.cuh"),
    KernelNames("Transformer Engine userbuffers", None,
                r"k?userbuffers_|wait_until_on_stream_and_reset",
                "TransformerEngine common/comm_gemm_overlap/userbuffers/userbuffers.cu, common/nvshmem_api; TensorRT-LLM "
                "kernels/userbuffers"),
    KernelNames("oneCCL", NAMED,
                r"oneccl_|(?:Allreduce|Allgatherv?|Reduce_?[Ss]catter)_?(?:[Ss]mall|Medium|Large)(?:NoCopy)?_?[Kk]ernel(?![a-z])"
                r"|(?:allreduce|alltoallv)_kernel_(?:\d+_)?(?:u?int\d+|b?float\d+)(?:_|\Z)",
                "oneCCL src/coll/algorithms/*/sycl, src/kernels/kernels.cl; by public traces"),
    KernelNames("oneCCL", Collective.ALL_REDUCE,
                r"(?:NoCopy)?Kernel_(?:local_sum_and_distribute_to_remote|gather_from_remote_and_dist|all_sum|rankSync|2rank|GlobalSync"
                r"|compute\Z)|(?<=14)Kernel_computeI|(?<=20)NoCopyKernel_computeI",
                "oneCCL src/coll/algorithms/allreduce/sycl"),
    KernelNames("HCCL", NAMED,
                r"(?i:hcom_|hccl)|aiv_(?:all_?(?:reduce|gather|to_?all)|reduce_?scatter|broadcast|send|recv)",
                "torch_npu; tasks of Ascend's library, and its kernels for vector cores (AIV)"),
)  # fmt: skip
"""All libraries, the first match counts. Gloo and MPI run on copies."""

LOCAL = (
    r"get_dispatch_layout|(?:dispatch_copy|combine_reduce)_epilogue|mask_buffer|splitkv|flash|attn"
    r"|mla_|moeA2APrepare|nvshmemi_(?:init|call_init|team)|nccl_ep|moeA2ASanitize|SendRecvRankCount|SendRecvIndices"
    r"|SendRecvRankCumSum|allToAllMetadataDevice|moeLocalGather|LocalReduce|lamport_initialize|rms_pre_post_norm"
    r"|local_(?:dispatch|combine)|dispatch_(?:layout|postprocess)|combine_preprocess|align_block_size|moe_ag_scatter_args"
    r"|stable_local_token"
)
"""Kernels of these libraries, and of attention, that look like communication and are local."""

LOOKS_LIKE = (
    r"(?i:all_?reduce|all_?to_?all|all_?2_?all|all_?gather|reduce_?scatter|nvshmem|symm_?mem|multimem"
    r"|cross_device|\bep::|int(?:er|ra)_?node|(?:moe|expert|token|_ep_)\w*(?:dispatch|combine)"
    r"|(?:dispatch|combine)\w*(?:moe|expert|token)|gemm_(?:rs|ar|ag)(?![a-z])|gather_rs(?![a-z])"
    r"|notify_ar(?![a-z])|wait_signal|(?<![a-z])(?:ag_(?:gemm|scatter)|a2a|p2p)(?![a-z0-9]))"
)
"""Own names of kernels that may communicate, of no library in `KERNELS`."""

OPERATORS = (
    r"c10d::|_?c10d_functional(?:_autograd)?::|record_param_comms|symm_mem::(?!\w*(?:matmul|_mm))"
    r"|(?:nccl|rccl|gloo|mpi|ucc|xccl|hccl):|deep_ep::|_C_custom_ar::"
    r"|(?:vllm|sgl_kernel|aiter)::(?:\w+_)?(?:all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"
)
"""Beginnings of the names of operators and annotations of PyTorch whose kernels communicate."""

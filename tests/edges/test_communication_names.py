"""Communication is recognised by the names of libraries' kernels, by operators, and by the user."""

import time
from pathlib import Path
from typing import Any

import pytest
from kineto_files import call, kernel, span, write

import chopper_interop as ci
from chopper_interop.edges import communication

# names as profilers recorded or compilers make them, none of which is a pattern of the table
COMMUNICATE = [
    ("void <unnamed>::multimem_all_reduce_kernel<float>(float*)", "all_reduce"),
    ("std::enable_if<(a<8>)1, void>::type deep_ep::intranode::combine<int>(int*)", "all_to_all"),
    ("std::tuple<int, a<b> > deep_ep::intranode::dispatch<8>(int*)", "all_to_all"),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", "all_reduce"),
    ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     "reduce_scatter"),
    ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", None),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce"),
    ("ncclSymkDevKernel_AllGather_LLMC(ncclSymkDevWorkArgs4K)", "all_gather"),
    ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", None),
    ("_Z23ncclDevKernel_Generic_1PK", None),
    ("void mscclpp::collective::allreduceFullmesh<(mscclpp::ReduceOp)0, __half>(__half*)",
     "all_reduce"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all"),
    ("void deep_ep::legacy::internode::combine<true, __nv_bfloat16, 1>(int4*)", "all_to_all"),
    ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*, void*)", "all_to_all"),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*)", None),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*)", None),
    ("void deep_ep::intranode::barrier<8>(int**, int)", None),
    ("_ZN7deep_ep9intranode8dispatchILi8ELi768ELi8192EEEvP4int4PfPi", "all_to_all"),
    ("void deep_ep::elastic::hybrid_dispatch_impl<4, 8>(void*)", "all_to_all"),
    ("void primus_turbo::deep_ep::internode::combine<4>(int4*)", "all_to_all"),
    ("void dpsk::ep::internode::combine<false, 8, __nv_bfloat16>(int4*, float*)", "all_to_all"),
    ("_ZN4dpsk2ep9internode8dispatchILb0ELi8EEEvP4int4", "all_to_all"),
    ("void dpsk::ep::internode::cached_notify<false>(int, int)", None),
    ("void hybrid_ep::dispatch_kernel<hybrid_ep::tma, 4, 8>(dispatch_param_t)", "all_to_all"),
    ("void hybrid_ep::device_sync_kernel(unsigned int*, unsigned int const*)", None),
    ("nccl_ep_jit_ht_dispatch_kernel", "all_to_all"),
    ("void nccl_ep::internode_ll::combine<true, 7168>(void*)", "all_to_all"),
    ("EpDispatchIntraNodeKernel_bf16", "all_to_all"),
    ("OneShotAllGatherSdmaKernel_u32", "all_gather"),
    ("InterNodeRingAllGatherKernel_u32", "all_gather"),
    ("ReduceScatterSdmaPutKernel_bf16", "reduce_scatter"),
    ("void a2a_dispatch_send_kernel<8>(unsigned long)", "all_to_all"),
    ("void ubx_kernel_allreduce_2shot_mc<__half>(int)", "all_reduce"),
    ("void (anonymous namespace)::all_reduce_one_shot_push_kernel<__nv_bfloat16, 8u, true>(X)",
     "all_reduce"),
    ("barrier_on_stream_kernel_threadgroup(int, int)", None),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)",
     "all_reduce"),
    ("multimem_one_shot_all_reduce_kernel", "all_reduce"),
    ("void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<float, 16, 8>(float**)",
     "all_reduce"),
    ("void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**)", None),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 4>(vllm::RankData*)", "all_reduce"),
    ("_ZN5aiter26cross_device_reduce_2stageIDF16bLi8ELb0EEEv", "all_reduce"),
    ("void quickreduce::allreduce_prototype_twoshot<quickreduce::AllReduceTwoshot<__half>>()",
     "all_reduce"),
    ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>()", "reduce_scatter"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 2, true, false>()", "all_reduce"),
    ("void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(x)1>()",
     "all_reduce"),
    ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<(unsigned char)2>()",
     "all_reduce"),
    ("userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<8>", None),
    ("void userbuffers_fp16_sum_inplace_gpu_mc_rs<8>(int, int, int, int, int)", None),
    ("void tensorrt_llm::runtime::ub::userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm_quant_fp4<half, 4>()",
     None),
    ("kuserbuffers_pullrecv(int, int, int, int, int*)", None),
    ("void tensorrt_llm::kernels::lowPrecisionTwoShotHierAllReduceKernel<half, __nv_fp8_e4m3, 4>(X)",
     "all_reduce"),
    ("void nccl_ep::internode_ll::cleanLowLatencyBufferKernel<256>(int*)", None),
    ("reshardKernelUserWindow(ncclReshardParams, int)", None),
    ("void reducescatter_on_stream_kernel<float, (rdxn_ops)1, 0>(int)", None),
    ("nvshmemi_proxy_rma_entrypoint(void*, void*, unsigned long)", None),
    ("oneccl_allreduce_pcie", "all_reduce"),
    ("_forward_push_2d_kernel", "all_gather"),
    ("_forward_push_numa_2d_ll_multinode_kernel", "all_gather"),
    ("dispatch_kernel_v2", "all_to_all"),
    ("cp_from_recv_buf", "all_to_all"),
    ("kernel_combine_token_intra_node", "all_to_all"),
    ("kernel_pre_attn_qkv_pack_a2a", "all_to_all"),
    ("all_gather_push_2d_kernel", "all_gather"),
    ("allreduce_two_shot_multimem_st_intra_node_kernel", "all_reduce"),
    ("_copy_and_reset_and_barrier_all_kernel", None),
    ("kernel_get_ag_splits_and_recv_offset_intra_node", None),
    ("p2p_copy_remote_to_local_kernel", None),
    ("gather_rs_kernel", "reduce_scatter"),
    ("void bytedance::flux::ep_topk_gather_rs_kernel_v2<(int)8>(X)", "reduce_scatter"),
    ("bytedance::flux::all2all_v2(bytedance::flux::All2AllParams)", "all_to_all"),
    ("void bytedance::flux::post_attn_all2all_transpose_kernel<float>(X)", "all_to_all"),
    ("_fp8_blockscale_2shot_kernel", "all_reduce"),
    ("void (anonymous namespace)::dispatchKernel<10u, true, true>(int*, unsigned long)",
     "all_to_all"),
    ("void combineKernel<16u, __nv_bfloat16, __nv_bfloat16, 1ul, true, true>(X)", "all_to_all"),
    ("EpCombineSyncBarrier_bf16", None),
    ("EpDispatchLowLatencyAsyncSendTransfer_bf16", "all_to_all"),
    ("FusedRingRemoteGatherKernel_u32", "all_gather"),
    ("void mori::collective::OneShotAllReduceKernel<float>(X)", "all_reduce"),
    ("void niin_stream_put_kernel<float>(float*, float const*, unsigned long, int)", None),
    ("void c10d::nccl_extension::reduce_scatter_offset_kernel<float, true>(X)", "reduce_scatter"),
    ("c10d::symmetric_memory::nixl_wait_signal_kernel(unsigned int**, int)", None),
    ("void tensorrt_llm::kernels::twoshot_allreduce_kernel<8, float>(float*)", "all_reduce"),
    ("void vllm::tensorrt_llm::minimax_reduce_rms_kernel_lamport<float, 8, true>(X)", "all_reduce"),
    ("tensorrt_llm::kernels::mnnvl::mnnvlAllGatherSplitKernel(X)", "all_gather"),
    ("allgatherv_kernel_vec32(X)", "all_gather"),
    ("void allreduce_kernel_scalar32<NvlsInt32Ops>(X)", "all_reduce"),
    ("void reduce_scatter_kernel_scalar64<NvlsUint64Ops>(X)", "reduce_scatter"),
    ("void mori::collective::OneShotAll2allKernel<float>(int, int)", "all_to_all"),
    ("void mori::collective::SdmaReduceScatterKernel<float>(int, int)", "reduce_scatter"),
    ("mori::shmem::_barrier_kernel()", None),
    ("fabricCopyKernel", None),
    ("void executor_kernel<false>(ucc_ec_cuda_executor volatile*, int)", None),
    ("aiv_all_reduce_910b_bfloat16_t", "all_reduce"),
    ("_reduce_scatter_kernel", "reduce_scatter"),
    ("kernel_cutlass_kernel_flashinfercommmnnvl_cutedslkernel_htdevice_kernel_MoeFinalize_object_at_",
     "all_reduce"),
    ("kernel_cutlass_kernel_flash_commep_overlapkernelscutedsl_dispatchMoEDispatch_object_at_",
     "all_to_all"),
    ("hcom_allReduce__721_0", "all_reduce"),
    ("void vllm::cross_device_reduce_half_butterfly<float, 4>(vllm::RankData*)", "all_reduce"),
    ("void sglang::sp_collective::all_gather_direct_kernel<8u, true>(X)", "all_gather"),
    ("void sglang::sp_collective::reduce_scatter_res_kernel<8u, true, true>(X)", "reduce_scatter"),
    ("void (anonymous namespace)::all_reduce_one_shot_kernel<__nv_bfloat16, 8u, true>(X)", "all_reduce"),
    ("void (anonymous namespace)::parallel_qknorm_across_head<X<__nv_bfloat16, 8u> >(X)", "all_reduce"),
    ("void sglang::all_reduce_pull_norm_kernel<4u, true>(X)", "all_reduce"),
    ("void sglang::nvlink_barrier_kernel<true>(X)", None),
    ("void aiter::ar_ll_gfx1250<__hip_bfloat16, 8>(aiter::RankData*)", "all_reduce"),
    ("void aiter::ar_gfx1250_naive_unroll4<__hip_bfloat16, 8>()", "all_reduce"),
    ("void aiter::ag_gfx1250_warpsplit_unroll4<__hip_bfloat16, 8>()", "all_gather"),
    ("void aiter::rs_gfx1250_split_middim_naive<__hip_bfloat16, 8>()", "reduce_scatter"),
    ("fused_pipeline_kernel", None),
    ("void (anonymous namespace)::store_publish_dedup_fp8_kernel<8>(X)", "all_to_all"),
    ("void (anonymous namespace)::combine_publish_fp8_grouped_kernel<8>(X)", "all_to_all"),
    ("(anonymous namespace)::wait_combine_kernel(X)", None),
    ("(anonymous namespace)::reserve_publish_kernel(X)", None),
    ("barrier_triton_kernel", None),
    ("directReshardKernelUserWindow(X)", None),
    ("void lsa_poison_alltoall_kernel<float>(X)", "all_to_all"),
    ("void twoshot_mc_simple_allreduce_kernel<float>(X)", "all_reduce"),
    ("wait_until_on_stream_and_reset(unsigned long*, unsigned long, unsigned long)", None),
    ("typeinfo name for AllreduceMediumKernel_GlobalSync<sycl::half>", "all_reduce"),
    ("_ZTS29Allgatherv_small_kernel_esimdIiLi4EE", "all_gather"),
    ("ReduceScatterLargeNoCopyKernel_compute<float, 4>", "reduce_scatter"),
    ("NoCopyKernel_gather_from_remote_and_dist_to_rank_pair<float>", "all_reduce"),
    ("_ZTS14Kernel_computeIfLj4EE", "all_reduce"),
    ("allreduce_kernel_float32_add", "all_reduce"),
    ("kernel_dispatch_intranode", "all_to_all"),
    ("kernel_barrier_all_on_stream", None),
    ("bytedance::flux::perform_data_copy(X)", "all_to_all"),
    ("allgather_ipc_kernel", "all_gather"),
]  # fmt: skip
COMPUTE = [
    "void at::native::elementwise_kernel<128, 4, ncclDevKernel_fake>(int)",
    "void at::native::vectorized_elementwise_kernel<4, c10d::all_reduce_functor>(int)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*)",
    "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<4>(__nv_bfloat16*)",
    "void aiter::local_device_load_rmsnorm<__hip_bfloat16, 512>()",
    "flash_fwd_splitkv_combine_kernel",
    "void BroadcastKernel<float>(float*)",  # of values over a tensor's dimensions
    "void nccl_ep::hybridep::dense_to_sparse_prob_kernel(float const*)",
    "void nvshmemi_team_mapping_kernel(int*)", "ReduceScatterLocalReduceKernel_bf16",
    "EpCombineSync_bf16", "EpDispatchCopyToStaging_bf16", "EpCombineLowLatencyAsyncRecvCopy_bf16",
    "RingFinishCopyKernel_u32", "dis_scatter_pre_comm_index_kernel_copy_out",
    "moe_gather_rs_grouped_gemm_kernel", "void my::dispatchKernel<8>(int*)",
    "flash_combine_kernel_v2",
    "kernel_cutlass_kernel_flash_commep_overlapkernelscutedsl_topk_reduceMoETopkReduce_object_at_",
    "kernel_cutlass_kernel_flash_attncuteflash_fwd_sm100FlashAttentionForwardSm100_object_at__tensor",
    "void softmax_warp_forward<block_reduce, 8>(float*)", "Cijk_Ailk_Bljk_BBS_BH_MT256x128",
    "triton_red_fused_all_gather_copy", "cross_entropy_kernel", "Kernel_compute_loss",
    "Kernel_computeIndices", "_Z21Kernel_computeIndicesPf",
    "combine_reduce_fp8_kernel", "compact_fp8_persistent_kernel", "void my::ack_kernel(int)",
    "moe_publish_fused_pipeline_kernel", "wait_kernel", "AllreduceSmallKernels",
]  # fmt: skip


@pytest.mark.parametrize(("name", "collective"), COMMUNICATE, ids=[n[:50] for n, _ in COMMUNICATE])
def test_kernels_of_libraries(name: str, collective: str | None) -> None:
    assert communication.communicates(name)
    assert communication.collective_of_kernel(name) == collective


@pytest.mark.parametrize("name", COMPUTE)
def test_kernels_that_compute(name: str) -> None:
    assert not communication.communicates(name)


@pytest.mark.parametrize(
    "name",
    [
        "kernel_gemm_rs_producer_persistent",
        "kernel_persistent_gemm_notify_ar",
        "kernel_fused_ag_gemm",
        "void sglang::gemm_ag::gemm_ag_gemv_kernel<7168u, 256u, 1u, 2u, true>(X)",
        "void bytedance::flux::some_a2a_kernel<8>(X)",
        "mega_kernel_dispatch_token_moe_grouped_gemm",
        "wait_signal_matmul_triton_kernel",
    ],
)
def test_products_that_communicate_compute_and_are_named(name: str) -> None:
    assert not communication.communicates(name)
    assert communication.looks_like_communication(name)


@pytest.mark.parametrize(
    "name",
    [
        "void tensorrt_llm::kernels::moe_comm::moeA2ASanitizeExpertIdsKernel(int*)",
        "void flashinfer::trtllm_alltoall::computeSendRecvIndicesKernel<8>(int*)",
        "void flashinfer::trtllm_alltoall::moeLocalGatherDevice<float>(int*)",
        "void flashinfer::trtllm_allreduce::lamport_initialize_kernel<float>(float*)",
        "kernel_skipped_token_local_dispatch_intra_node",
        "void bytedance::flux::get_moe_ag_scatter_args_kernel(X)",
    ],
)
def test_what_prepares_communication_is_not_named(name: str) -> None:
    assert not communication.communicates(name)
    assert not communication.looks_like_communication(name)


def test_a_name_of_any_length_takes_no_time() -> None:
    started = time.process_time()
    for text in (
        "deep_ep" * 50_000,
        "a" * 500_000,
        "deep_ep::" * 50_000,
        "_Z" + "9deep_ep" * 50_000,
    ):
        communication.communicates(text)
        communication.looks_like_communication(text)
    assert time.process_time() - started < 2


def read(tmp_path: Path, *events: dict[str, Any], **options: Any) -> ci.Trace:
    return ci.read(write(tmp_path / "trace.json", list(events)), **options)


def kinds(trace: ci.Trace) -> dict[str, str]:
    frame = trace.to_pandas()
    return dict(zip(frame["name"], frame["kind"], strict=True))


def issues(trace: ci.Trace) -> dict[str, tuple[int, str]]:
    return {i.code: (i.count, i.example) for i in trace.meta.issues}


def test_deep_ep_is_exposed_communication(tmp_path: Path) -> None:
    name = "void deep_ep::intranode::dispatch<8, 768, 8192>(int4*)"
    events = [kernel(name, 1000 * i, 900, i + 1) for i in range(5)]
    result = ci.analyze(read(tmp_path, *events), "temporal")
    assert result.summary["comm_ns"] == 5 * 900_000
    assert result.summary["compute_ns"] == 0


def launched(name: str, at: float, number: int, *around: str) -> list[dict[str, Any]]:
    """A kernel, its launch, and the operators around it, outermost first."""
    depth = len(around)
    operators = [span("cpu_op", o, at + i, 100 - 2 * i) for i, o in enumerate(around)]
    launch = call("cudaLaunchKernel", at + depth, 100 - 2 * depth, number)
    return [*operators, launch, kernel(name, at + 200, 50, number)]


def test_a_kernel_under_an_operator_of_a_collective(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        *launched("my_exchange", 0, 1, "record_param_comms", "nccl:all_reduce"),
        *launched("copy_kernel", 1000, 2, "c10d::allgather_", "aten::copy_"),
        *launched("fused_mm", 2000, 3, "symm_mem::fused_all_gather_matmul"),
        *launched("my_reduce", 3000, 4, "vllm::all_reduce", "_C_custom_ar::all_reduce"),
        *launched("plain", 4000, 5, "aten::add"),
    )
    kind_by_name = kinds(trace)
    assert kind_by_name["my_exchange"] == kind_by_name["my_reduce"] == "comm"
    assert (
        kind_by_name["copy_kernel"] == kind_by_name["fused_mm"] == kind_by_name["plain"] == "kernel"
    )
    assert trace.to_pandas().set_index("name").loc["my_exchange", "collective"] == "all_reduce"


def test_what_prepares_a_collective_computes(tmp_path: Path) -> None:
    check = [call("cudaLaunchKernel", 1, 2, 1), kernel("checkForNaN", 200, 50, 1)]
    comm = [call("cudaLaunchKernelExC", 12, 2, 2), kernel("ncclDevKernel_AllReduce", 300, 50, 2)]
    around = [span("cpu_op", "record_param_comms", 0, 50), span("cpu_op", "nccl:all_reduce", 10, 9)]
    kind_by_name = kinds(read(tmp_path, *around, *check, *comm))
    assert (kind_by_name["checkForNaN"], kind_by_name["ncclDevKernel_AllReduce"]) == (
        "kernel",
        "comm",
    )


def test_the_user_names_further_kernels(tmp_path: Path) -> None:
    events = [kernel("ring_push<8>", 0, 10, 1), kernel("gemm", 20, 10, 2)]
    assert kinds(read(tmp_path, *events))["ring_push<8>"] == "kernel"
    assert kinds(read(tmp_path, *events, comm="^ring_")) == {
        "ring_push<8>": "comm",
        "gemm": "kernel",
    }
    patterns = tmp_path / "comm.txt"
    patterns.write_text("# our own\nring_push\n\nother\n")
    assert kinds(read(tmp_path, *events, comm=str(patterns)))["ring_push<8>"] == "comm"


def test_a_pattern_longer_than_a_path(tmp_path: Path) -> None:
    names = "|".join(f"own_kernel_{k}" for k in range(1000))
    assert kinds(read(tmp_path, kernel("own_kernel_7", 0, 1, 1), comm=names)) == {
        "own_kernel_7": "comm"
    }


@pytest.mark.parametrize("pattern", ["(", "a(?=b)", ""])
def test_patterns_that_cannot_be_used(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(ci.ChopperError, match="option comm="):
        read(tmp_path, kernel("k", 0, 1, 1), comm=pattern)


def test_what_may_communicate_is_named(tmp_path: Path) -> None:
    name = "triton_distributed_all_gather_push"
    trace = read(
        tmp_path,
        *(kernel(name, 100 * i, 50, i + 1) for i in range(3)),
        kernel("allreduce_fusion_kernel_twoshot_sync", 1000, 20, 9),
        kernel("gemm", 2000, 20, 10),
    )
    count, example = issues(trace)["communication-unknown"]
    assert (count, example) == (3, f"{name} (3, 0.150 ms)")
    assert issues(trace)["communication-computes"][0] == 1
    again = ci.convert(tmp_path / "trace.json", tmp_path / "t.parquet")
    assert issues(ci.read(tmp_path / "t.parquet")) == issues(again)


def test_kinds_survive_every_output(tmp_path: Path) -> None:
    events = [kernel("ring_push", 0, 10, 1), kernel("gemm", 20, 10, 2)]
    trace = read(tmp_path, *events, comm="ring_push")
    for output in ("t.parquet", "t2.json"):
        ci.write(trace, tmp_path / output)
        assert kinds(ci.read(tmp_path / output))["ring_push"] == "comm", output


def test_names_in_tables_of_rocprof(tmp_path: Path) -> None:
    header = '"Kind","Agent_Id","Queue_Id","Kernel_Id","Kernel_Name","Correlation_Id",'
    header += '"Start_Timestamp","End_Timestamp"'
    row = '"KERNEL_DISPATCH",1,1,1,"void aiter::cross_device_reduce_1stage<bf16, 8>(int)",1,10,20'
    (tmp_path / "k_kernel_trace.csv").write_text(f"{header}\n{row}\n")
    assert list(ci.read(tmp_path).to_pandas()["kind"]) == ["comm"]

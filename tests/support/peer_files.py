"""The inputs of which there are figures of other tools, by the names of these figures."""

FILES = {
    "hta_amd_mi250": "pytorch/mi250/mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "hta_event_sync": "pytorch/cuda_sync_a100/event_sync_trace.json.gz",
    "hta_event_sync_multi": "pytorch/cuda_sync_a100/event_sync_multi_stream.json.gz",
    "hta_nccl_data": "pytorch/misc/nccl_data.json.gz",
    "hta_neg_queue": "pytorch/misc/rank0.json.gz",
    "hta_ns_resolution": "pytorch/misc/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz",
    "hta_simple_add": "pytorch/cuda_sync_a100/simple_add.json.gz",
    "param_dlrm_8rank": "pytorch/dlrm_8rank_v100/kineto",
    "param_linear": "pytorch/rtx2080ti_pairs/linear_kineto.json.gz",
    "tl_h100_bert": "pytorch/h100/gaunernst_bert-small-uncased__1016001.json.gz",
    "tl_h100_falcons": "pytorch/h100/Falconsai_nsfw_image_detection__1016002.json.gz",
    "tl_h100_qwen": "pytorch/h100/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tl_mi210_gpuonly": "pytorch/mi210/gpu_only_trace.json.gz",
    "tl_mi300_bert": "pytorch/mi300x/gaunernst_bert-small-uncased__1016001.json.gz",
    "tl_mi300_falcons": "pytorch/mi300x/Falconsai_nsfw_image_detection__1016002.json.gz",
    "tl_mi300_qwen": "pytorch/mi300x/Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "tl_mi300_resnet_ckpt": "pytorch/mi300x/resnet_act_checkpoint.json.gz",
    "tl_mi300_sglang_decode": "pytorch/hip_graph_mi300x/sglang_Qwen3-8B_decode.json.gz",
    "tl_vllm_decode": "pytorch/hip_graph_mi300x/vllm_graph_execution.json.gz",
}
"""Below `shared_data.SHARED`; the figures lie in its folder `peer_figures`."""

"""Words of the field, which say nothing of a program, its user or its machine.

Anonymised names keep them, and with them what the rules of this package recognise: ``AcmeDecoderLayer_3``
is a layer under any first word. Collected from PyTorch's operators, the rules themselves, telemetry tools,
profilers' arguments, and libraries' kernels; in lower case.
"""

from __future__ import annotations

import builtins

_OPERATORS = """
abs accumulate adagrad adaptive add addcdiv addcmul addmm alias all allgather allow allreduce allto alltoall
alpha amp and arange argmax as asynchronous aten attention auto autograd average avg backward base batch
benchmark beta bias binary block blocking bmm bool bounds broadcast bucketize cat ceil check clamp clone codegen
compatible compiled complete concat conj contiguous conv convolution copy cos cpp cross cuda cudnn cumsum data
dense detach deterministic device diff dilation dim dims distributed div divide dot dropout dtype embedding embs
empty enabled end entropy eps epsilon eq exact exp expand exponential factor false fbgemm features fill finite
flash flat flatten float foreach format forward fresh full function ge gelu gpu grad groups gt half has ignore
impl implicit index indices input int ints is item keepdim kernel label layer layout le length lerp lift like
linear list local log logical logits lookup loss mask mat matmul max mean memory min miopen mm mode momentum mse
mul narrow native nd neg new nll node non none nonzero norm normal numpy offset ones op other out output padding
permute pin pinned pool pooled pos pow product put rand randn reciprocal record reduce reducer reduction relu
remainder req reserve reshape resize resolve result rounding rowwise rsqrt rsub running same save scalar scale
scaled scatter select self set sgn shallow shape sigmoid silu sin single size sizes slice smoothing softmax
source space sparse split sqrt squeeze src stack start step storage str stream stride strided sub sum sym tanh
target tensor tensors tf threshold to torch training transpose transposed type unflatten uniform unsafe unscale
unsqueeze unweighted update using value values var view wait weight where with zero zeros
"""
"""Of operators of PyTorch, their arguments and backward functions."""

_RULES = """
activation active aiter algorithms allocate allocation alltoallv amd annotation anonymous aot api args
arithmetic array ascend asmconv ast async at attn backwards barrier bernoulli between bf bfloat biw bn braced
buffer busy bw bwd byte bytecode bytes cached call cast cc ccl char checkpoint chunk chw cijk ck clean clip
coalesced coll collective combine comm common comms communication complex complexdouble complexfloat complexhalf
compute concrete context convert convol copies counted cpu csrc ctx cu cube cuh custom cutlass cycles dconv ddp
decoder deep dequeue dict dispatch dispatcher distribution divided do double dq driver dur dynamo elementwise
encoder engine engram enqueue enumerate ep epilogue evaluate event events exchange expert extension external fb
fcollect fetch ff first flags flashinfer floating flop flops fma fmha fn fnu fnuz for fp fprop free fsdp fully
func functional fused fusion fw fwd gather gemm gemv generate generator get gfx global gloo glow grads graph
grbm gsu gui hccl hcom helix hip hook host hpu hsa hwc hybrid id igemm impls include infer inferred init inputs
insight instance instant insts intensity inter internode intotensor intra intranode ipc irecv isend iter
iteration izer kentry kern kernels kind kokkos kreduce kv lane lang last lastdim latency layers legacy len
library lists ll llm load loader long low manager mark marker mem memcpy memset mesh mfma mha mhc mid migration
mixed mla mnnvl model module moe moefinalize moereduce mops mori mpi msccl mtia multi multimem naive name named
namespace nccl nchw next nhwc nn nonfused normalization notify npu nvjet nvshmem nvshmemi occupancy of offload
offsets ompt on one oneccl oneshot oop operations operator ops opt optim optimized optimizer overflow overhead
overlap own packed page paged parallel param params parent part pass pcie per percent philox ping plain point
pop post postprocess pp pre precision precompute prefetch pregraph prenorm prepare preprocess primus privateuse
profiler prop propagation prototype pt pthread public push py python qknorm quant query quick quiet random range
rccl rdxn re read recat recomputation recompute recv recvanysource reducescatter region register reorder request
right rms rmsnorm rocclr rocdecode rocjpeg rocm rocshmem roctx root rotary rr rs rt runtime sampling scan
scratch scudnn sd sdpa send sendrecv sequential several sg sgemm sgl sharded shmem short shot signal signed sort
sp speed splitkv spt sq stable stage stop store strides style symm symmetric sync synchronize sz take tasks tcc
tem tensorrt thread tile tiles time timer tion token top trace traces train trans transformer triton trtllm ts
turbo two twoshot ucc uccl ucx uint ulysses units unknown unnamed unpack unsigned until user userbuffers util
utils vaapi valu vec vectorized vllm void waves wgrad winograd wmma wrapper write written wv xccl xccs xdnn
xform xmma xpu
"""
"""Of the rules by which names are recognised: passes, modules, kernels, communication."""

_TELEMETRY = """
acc accesses accum accumulated accumulation accumulator activity addr agent aggregate alloc allocated amount
annotations any application applications are atomic band bandwidth bank bar beginning begins below best bit
blvio board boost boottime both brake branch bubble bulky bus cache can cap card cause ccpm cell cells celsius
changes charllm choose clk clkviol clock clocks cmp coalescable coarse compat conflict consumption contradicted
correctable corrected count counter counters counts covered cpc cpf crossing csc csn cur current curve cvt cycle
date datetime dbecc dc dcache dcef dcefclk dclk dclock dcutl dec decode default deferred definition deg dfma die
differs direction display dmon dram drama dramut draw drive drver duplicate duration dvbrn dvcctr dvnam ecc
ecutl edatl edge edvtl elapsed en enc ended energy enforced entity eplmt epoch error errors esatl esvtl evict
fabric fan fansp fbfre fbrsv fbttl fbusd fbusp fclk finest firmware frequency from gaps gate gb gds gen
generation gfxclk gmi go gp gpucurrent gpus gputl gr gract graphics graphs gtlimit gtt hardware have hbm heat
hit hits hmma holds hotspot hw hz ib ibc icache idle idx ie ifetch imma in info inst intac integer inv
invalidates ip iso items iu job jpeg jpg junction kb lanes launch lds left level limit link links logging lt
luvio maclk many map mb mclk mcutl me memclk metrics mhz mi minor misc miss misses missing mmclk mmmax mmtmp
moment monitor monotonic ms multimedia nan nbwlt nc no nodes not ns num number numbered nv nvdec nvjpg nvlink
nvlrx nvltx nvofa nvver oam ofa or over overdrive package packet partition partitions pc pcbid pci pcilg pcilw
pcimg pcimw pcirx pcitx pending performance permission phot pid pmdef pmlmt pmmax pmmin port power powinst ppt
probe process prochot protected pstat pstate pviol queue ra ranges rank ranks rate ratio rd rdreq readings
readyb real realtime reasons received recorded reliability replace replay res reserved residency resolution
restored ret retimer return rotation rows rpctr rpd rpm rviol rw rx rxpci rxtpt saclk salu sample samples saved
sbecc sbvio sca sclk sdtmp sendmsg sensor sent series setting sgpr share shtmp shutdown simd since sleep
slowdown sm smact smclk smem smi smmax smocc smutil soc socclk socclks socket spi sqc sram srnum stacks stall
stalled stamps stat state states status steady steps straight streaming supported sw swc system ta tag
tagconflict tc tciu tcp tcr td tdfma telemetry temp temperature text tglim that the there thermal thm thmma
threadgroups throttle throttling throughput tid timestamp timma tmp tmptr too total totalviol totec translation
tviol tx txpci txtpt ubb uc uclk umc unaligned uncached uncertain uncertainty uncorrectable uncorrected unique
unit unix unspecified up us usage use used utc utcl utf utilization utilviol uuid valid vbver vclk vclock vcn
vdd vddboard version vgpr viclk video violation violations vis visible vmem volatile voltage vr vram vrgfx vrmem
vrsoc vskipped vwc waits watts wave wavefront wavefronts wb whole width widths window windows within without wr
writeback wrreq wrreqs wvlim xcd xcp xgmi xid xider
"""
"""Of quantities of telemetry tools and hardware counters."""

_ARGUMENTS = """
absolute achieved address after alone analysis arch arg asynchronized attrs backend begin bind blob blocks bp
calls category cbid chopper cid cmd collection column completed config copyapi correlation ctrl cupti cus deps
desc description destination dispatched dispatches domain dst edges environment est et ev exec executable
extdata fbar fcompute file finish finished fwdbwd grd grid group guid handle hbmbw hbmbwlow header hostname
instruction kernelapi kernelname kineto labels lasts launches little location message metadata msg nelems nid
null numcu numse obj object operation ordinal outputs peer percentage pg ph pmc position ppid prefix private ptr
queued raw records registers rename rf rocpd rocprof roctracer row schema scope scr segment seq sequence shapes
shared sig simds sqid starting string suffix symbol table task times track true types username ustring warps wgr
workgroup workitem world xcc
"""
"""Of arguments that profilers record."""

_KERNELS = """
accessor addresses advance alg algorithm align alignc aligned allocator ampere apply arr asm batched bfs bitwise
bound bt calculator cask cleanup cnn collect combination compact compare conditional const constant contig
counting create csr cub cublas cunn curand dawn decltype decomposer delta detail determinism dgrad direct
divides divisor duplicates edc ediv enable enactor engines equality exclusive execute exists experimental filter
find frontier functor future gamma gcgemm gcuda generic gkgs gtcx gunrock helper hipcub hiprand histogram
identity ids if ihip indexed indexing inequality integral interior internal invert io iterate iterator kd key
krn kvcache lambda large ldg lengths limits lock lookback loop lp lpnorm manual masked matrix md medium merge
method mh modern modifier multiplies nhwckrsc nocast nonpacked nt nullary nullptr oddeven off onesweep opaque
operators pack pad partial partials path persistent plus poi pointer pointwise policy precompiled problem ptx
pytorch radix reduced ref reset restrict results rocprim round scaling segments selector sign simt singleread
sliced small soft spin standard statistics stats std struct subalgo tb templated templates tensorop ternary
threadid thrust tilesize tn tofloat tr traits trampoline transform trivial trunc tuple unary uninitialized unity
unroll unrolled vector volta vs vsmem warp warpgroupsize warpsize wrapped wrw ws wt xregs
"""
"""Of kernels of libraries."""

_APIS = """
abort access advise alignment allv anisotropy argument arrays ato attach attribute attributes available border
callback capability capture capturing carveout child close coherent color compression concurrent configure
cooperative cubin decompression dependencies dependent deregister destroy dev disable drv dynamic encode entry ex
export ext fat flag flush functions gl granularity hcc hipblas hop image instantiate instantiated interprocess jit
linker malloc managed mapped mempool mip mipmap mipmapped modules multicast multiprocessor multiprocessors nvls
opportunistic peek pitch potential predecessors primary priority proc properties rdma red redop reference release
remove resource resources retain ring semaphore semaphores setup shareable simple spatial stages suballoc
successors surf surface tex texref texture tiled topology trim tuner unbind unbound uncache unload unmap unregister
upload work writes
"""
"""Of functions of HIP, CUDA and NCCL."""

_OTHERS = """
wg tensile
unified addition multiply subtract multiplication gated softplus topk routing combined quantize ggml cpy cta fuse
bitmatrix finalize ogs mmq dma weighted weights indice val linearize fft explicit convolve bin bcast rope net ssm
nnt cnhw hf sml splt bc crow act qkv kv cont batching criterion nsp omp offloading initialize descriptor accum xy xyz
sgd adam dto hto by ea cols before submission pageable unpinned force chakra rocprofv static quant channel masks
ul ull ll args storage prologue bucket command instances radeon incorporated devices mem only post pre
assumed labels collective ends matched kernels correlation ids three clocks busy wall clock zone whole seconds stated
realtime boottime localtime order computed tai json gz csv parquet et pt pftrace rocprofiler sdk im col
adamw ati batchnorm built classes cls cp decorate dgxs dp enter exit geforce genexpr getitem gtx hooks hsdp
instinct issue layernorm lion listcomp lr main modulelist muon navi nvidia nvl pro profile profiling program
quadro radeon recorder rmsprop rtx run scheduler super sxm tesla ti titan tp undefined vega vf watchdog worker
xt xtx zeus
"""
"""Of Python, products, process groups and tools."""

WORDS = frozenset(
    word
    for block in (_OPERATORS, _RULES, _TELEMETRY, _ARGUMENTS, _KERNELS, _APIS, _OTHERS)
    for word in block.split()
) | frozenset(name.strip("_").lower() for name in dir(builtins))
"""All of them; single letters count too, wherever they stand."""

STEMS = [
    "attention",
    "attn",
    "fmha",
    "flash",
    "sdpa",
    "mha",
    "softmax",
    "norm",
    "conv",
    "convol",
    "igemm",
    "winograd",
    "grad",
    "fprop",
    "scudnn",
    "xdnn",
    "gemm",
    "gemv",
    "matmul",
    "nvjet",
    "wmma",
    "xmma",
    "triton",
    "elementwise",
    "transpose",
    "reduc",
    "kernel",
    "pool",
    "scan",
    "sort",
    "index",
    "copy",
    "fill",
    "cast",
    "scatter",
    "gather",
    "permute",
    "swiglu",
    "gelu",
    "silu",
    "rotary",
    "dropout",
    "embedding",
    "distribution",
    "nchw",
    "nhwc",
    "preprocess",
    "postprocess",
    "memset",
    "random",
    "philox",
    "vectorized",
    "offset",
    "xform",
    "forward",
    "backward",
    "fwd",
    "bwd",
    "optim",
    "recompute",
    "recomputation",
    "checkpoint",
    "dispatch",
    "combine",
    "expert",
    "token",
    "allreduce",
    "allgather",
    "alltoall",
    "reducescatter",
    "broadcast",
    "nccl",
    "rccl",
    "nvshmem",
    "symmem",
    "multimem",
    "layer",
    "block",
    "step",
    "iter",
]
"""Words that the rules find within longer ones: ``mynorm`` is a norm."""

NAMESPACES = [
    "at",
    "aten",
    "c10",
    "c10d",
    "c10_functional",
    "c10d_functional",
    "_c10d_functional",
    "_c10d_functional_autograd",
    "torch",
    "autograd",
    "prim",
    "prims",
    "caffe2",
    "std",
    "__gnu_cxx",
    "thrust",
    "cub",
    "cuda",
    "cutlass",
    "cute",
    "cudnn",
    "cask_cudnn",
    "cask_cudnn_train",
    "cask_cudnn_infer",
    "cutlass_cudnn",
    "cutlass_cudnn_infer",
    "cutlass_cudnn_train",
    "cublas",
    "cublasLt",
    "cusparse",
    "cufft",
    "curand",
    "nvfuser",
    "fbgemm",
    "fbgemm_gpu",
    "flash",
    "flash_attn",
    "flash_attn_2",
    "flash_attn_3",
    "xformers",
    "xformers_flash",
    "xformers_flash3",
    "vllm",
    "sglang",
    "sgl_kernel",
    "aiter",
    "ck",
    "ck_tile",
    "rocprim",
    "hipcub",
    "rocblas",
    "rocblaslt",
    "hipblaslt",
    "rocsparse",
    "rocsolver",
    "rocfft",
    "miopen",
    "migraphx",
    "transformer_engine",
    "apex",
    "deepspeed",
    "flashinfer",
    "tensorrt_llm",
    "trtllm",
    "bitsandbytes",
    "quantized",
    "torchvision",
    "torchaudio",
    "mkldnn",
    "onednn",
    "dnnl",
    "nccl",
    "rccl",
    "profiler",
    "inductor",
    "triton",
    "nvshmem",
    "deep_ep",
    "mori",
    "hip_rocprim",
    "Kokkos",
    "Eigen",
    "tensorflow",
    "xla",
    "stream_executor",
    "_C_custom_ar",
    "symm_mem",
    "higher_order",
    "rngprims",
    "c10_autograd",
    "flex_attention",
]
"""Namespaces of libraries: names in them stay whole."""

PACKAGES = [
    "torch",
    "torchvision",
    "torchaudio",
    "torchrec",
    "torchao",
    "torchtitan",
    "torchtune",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "deepspeed",
    "megatron",
    "transformer_engine",
    "apex",
    "triton",
    "flash_attn",
    "xformers",
    "vllm",
    "sglang",
    "numpy",
    "pandas",
    "scipy",
    "einops",
    "safetensors",
    "tokenizers",
    "huggingface_hub",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "fairscale",
    "fbgemm_gpu",
    "timm",
    "diffusers",
    "bitsandbytes",
    "ray",
    "jax",
    "flax",
    "tensorflow",
    "keras",
    "composer",
    "aiter",
    "flashinfer",
    "asyncio",
    "concurrent",
    "multiprocessing",
    "importlib",
    "logging",
    "json",
    "unittest",
    "collections",
]
"""Packages of Python: functions in their files stay whole."""

"""All findings: how each is found, what its saving is, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.analyses.methods.findings import (
    clock,
    communication,
    hosts,
    kernels,
    launches,
    ranks,
    steps,
    waits,
)
from chopper_interop.analyses.methods.findings.job import ExaminedJob
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.finding import Finding


class Entry(NamedTuple):
    """Texts that describe a code.

    Parameters
    ----------
    detection
        How it is found.
    saving
        How what it saves is computed: the job is re-timed so.
    remedy
        What to do.
    step
        Step of which the saving is a share, if it is not the mean of those that count.
    """

    detection: str
    saving: str
    remedy: str
    step: str = ""


CATALOGUE = {
    "late-rank-gpu": Entry(
        "kernels longer than their counterparts on other ranks, which wait for it, or for several (stragglers)",
        "their operations take the median of their counterparts",
        "compare clock, power and temperature of that GPU (imbalance); balance the work",
    ),
    "late-rank-host": Entry(
        "a host that launches work later than those of other ranks, which wait for it",
        "its host is as early as the median of others, whose hosts wait no longer for it",
        "look for other processes, pinning and data loading on that host",
    ),
    "late-rank-unknown": Entry(
        "a rank that others wait for, whose delays nothing recorded explains",
        "it has no unexplained delays",
        "record the host (CPU activity, HIP or CUDA calls) of that rank",
    ),
    "late-rank-link": Entry(
        "transfers between some ranks longer than others of their kind and size",
        "they take the median of the others",
        "test that link (rccl-tests, xGMI or NIC counters)",
    ),
    "straggling-stage": Entry(
        "a stage of a pipeline whose operations are longer than those of others",
        "its operations take the mean of their type",
        "give that stage fewer layers",
    ),
    "exposed-collective": Entry(
        "transfers of a kind of collective on the critical path; of one rank without launches also what of others' "
        "unexplained waits passes during them",
        "they take no time, hidden wholly: an upper bound",
        "start it sooner, in smaller pieces or another stream; other buckets (what_if buckets=)",
    ),
    "exposed-copy": Entry(
        "copies of a kind on the critical path, for which no call waits",
        "they take no time, hidden wholly: an upper bound",
        "within a GPU: no contiguous(), clone() or cat() that is not needed; else pinned memory, another stream, prefetching",
    ),
    "small-launches": Entry(
        "the median kernel is below 20 µs and GPUs wait for launches",
        "operators and calls that launch kernels take no time, nor does code around them for less than 0.1 ms "
        "at a time, as with a graph",
        "hipGraph or CUDA graph, torch.compile, fused optimizers, larger batches",
    ),
    "slow-operators": Entry(
        "as small-launches, but operators take hosts 100 µs or more for each kernel that they launch",
        "they take 50 µs for each kernel",
        "measure steps without the profiler, record fewer shapes and stacks; then as for small-launches",
    ),
    "code-loading": Entry(
        "first launches of kernels that take 0.1 ms or more without waiting, and ten times what others "
        "take or that of a rank with no other; calls that load modules; and, before the second step of a program, calls that allocate "
        "or free memory but take 50 ms or more, and ten times what others of their name take, as they set up a library",
        "they take no time, nor do operators that call them by themselves, if that is 1 ms or more",
        "warm up before what is measured; HIP_ENABLE_DEFERRED_LOADING=0, CUDA_MODULE_LOADING=EAGER",
    ),
    "serialised-launches": Entry(
        "nine tenths of a rank's launches return behind the end of their kernel",
        "launches take what is left without their kernel's duration",
        "unset AMD_SERIALIZE_KERNEL, HIP_LAUNCH_BLOCKING, CUDA_LAUNCH_BLOCKING",
    ),
    "item": Entry(
        "hosts wait for copies within aten::item and the like",
        "these calls do not wait",
        "fetch values rarely, or asynchronously some steps later",
    ),
    "blocking-copy": Entry(
        "hosts wait within calls that copy",
        "these calls do not wait",
        "pinned memory and non_blocking=True; no nonzero or masked_select on the GPU",
    ),
    "host-sync": Entry(
        "hosts wait in calls that do nothing else",
        "these calls do not wait",
        "remove synchronize() of timers and loggers from steps",
    ),
    "full-queue": Entry(
        "launches wait for a place in a full queue",
        "they do not wait",
        "none for one stream: the GPU is the limit; else launch what others wait for first",
    ),
    "unrecorded-wait": Entry(
        "work that starts 0.1 ms or more after its launch on a free queue, for no recorded reason, but "
        "for the first of a rank",
        "it starts when all is done that it is known to wait for",
        "record what it may wait for: from a step earlier on, all streams, other processes on the GPU, calls that "
        "record events and wait for them",
    ),
    "busy-at-start": Entry(
        "where there are no steps: the first work of a rank starts 0.1 ms or more after its launch, for no recorded "
        "reason, though its call has returned and more is launched",
        "it starts at once",
        "begin the recording when GPUs are idle (synchronize() before it), or mark steps (prof.step()), which leave this out",
    ),
    "allocator": Entry(
        "calls of hipMalloc, hipFree, cudaMalloc, … within steps; aten::empty and its like, which do nothing "
        "else, where they would be host-work",
        "these calls take no time and do not wait",
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, memory that is left free, equal shapes",
    ),
    "data-loader": Entry(
        "ranges of the data loader in steps",
        "they take no time",
        "more workers, pinned memory, prefetching",
    ),
    "compilation": Entry(
        "ranges of torch.compile while it compiles (dynamo_timed)",
        "they and all that they call take no time",
        "warm up before what is measured; TORCH_LOGS=recompiles says why it compiles again: mark_dynamic, equal shapes",
    ),
    "graph-capture": Entry(
        "calls of cudaStreamBeginCapture or hipStreamBeginCapture within steps, and what the thread does until the capture ends",
        "that and making the graph (GraphInstantiate) take no time; where steps capture to launch once, launches would take its place",
        "capture before what is measured; static shapes and addresses, so that a graph is captured once and launched often",
    ),
    "host-work": Entry(
        "ranges of hosts, and operators that take 1 ms by themselves for each kernel and ten times as long as "
        "others, for which GPUs are idle 0.1 ms or more at a time (idle --by blame), but for what one of them calls; "
        "time between operations of a thread that launches, in which no range was recorded",
        "its own time is 0, and that of all that it calls if nothing of it launches work, but for "
        "allocation, loading of code and data, compilation and capture of graphs",
        "move it off the launching thread, or let the host run ahead",
    ),
    "throttled-gpu": Entry(
        "the clock was recorded and below its highest (dvfs)",
        "all steps are at the highest clock, with the interval of dvfs",
        "power cap, cooling; see throttling and power",
    ),
    "below-roofline": Entry(
        "kernels of 20 µs and more at less than a quarter of what their FLOPs and bytes by shapes allow",
        "they reach half of it",
        "other shapes, layouts, element types or tuned libraries",
    ),
    "unfused-elementwise": Entry(
        "elementwise kernels behind one of their size on the same stream, but for copies behind copies, sums of "
        "gradients and those whose launch loads code",
        "there is no gap before them, and two thirds of the shorter one's time less (not of optimizers, whose kernels "
        "work on different tensors)",
        "torch.compile, fused or foreach optimizers",
    ),
    "recompute": Entry(
        "work of the phase recompute",
        "it and its launches take no time",
        "keep activations of some layers, as far as memory allows",
    ),
    "warm-up-steps": Entry(
        "first steps that take 1.2 times the longest of the others, and more than these differ: a warm-up, or the first "
        "step where GPUs lag behind hosts, as it counts from its own begin",
        "the mean step is that of the others: measured",
        "leave them out with --steps, or by the profiler's schedule (warmup=)",
        "the mean of all steps",
    ),
}
"""All codes. They never change their meaning."""

FINDERS: tuple[Callable[[ExaminedJob], Iterator[Finding]], ...] = (
    ranks.late_ranks, communication.exposed_collectives, communication.exposed_copies, launches.small_launches, hosts.code_loading,
    launches.serialised_launches, waits.waits, waits.unrecorded_waits, waits.busy_at_start, hosts.allocator,
    hosts.data_loader, hosts.compilation, hosts.graph_capture, hosts.host_work, hosts.unrecorded_host_work, clock.throttled_gpus, kernels.below_roofline, kernels.unfused_elementwise, kernels.recompute,
)  # fmt: skip
"""Functions that find them."""


def find(trace: Trace, chosen_steps: str, chosen_ranks: str) -> tuple[ExaminedJob, list[Finding]]:
    """Find all there is, of any size.

    Warm-up steps count in no other finding, unless steps were chosen.

    Parameters
    ----------
    chosen_steps, chosen_ranks
        As of `windows.rank_windows`.

    Returns
    -------
    job
        The job with the steps that count.
    findings
        In any order.
    """
    # the summary and the analysis itself ask for the same
    return trace.cached(
        f"findings {chosen_steps!r} {chosen_ranks!r}",
        lambda of_trace: _find(of_trace, chosen_steps, chosen_ranks),
    )


def _find(trace: Trace, chosen_steps: str, chosen_ranks: str) -> tuple[ExaminedJob, list[Finding]]:
    job = ExaminedJob(trace, chosen_steps, chosen_ranks)
    if not job.has_times:
        return job, []
    first = list(steps.warm_up_steps(job, is_left_out=not chosen_steps))
    if first and not chosen_steps:
        job = ExaminedJob(trace, warm_up.later_steps(trace, chosen_ranks), chosen_ranks)
    return job, [*first, *(finding for finder in FINDERS for finding in finder(job))]

"""A small training job with exact truth, written as the profilers of a real one would write it.

`make_demo` simulates some steps of Llama layers, under FSDP2 or in a pipeline, on the GPUs of one
MI300X node and writes a folder:

``kineto/rank<r>.<time>.pt.trace.json.gz``
    Kineto traces of PyTorch 2.8 on ROCm 6.4, one a rank.
``rocprof/pmc_<n>/<node>/<pid>_{counter_collection,kernel_trace,agent_info}.csv``
    Two counter passes of rocprofv3 (ROCm 7.0), each a run of its own of the same program.
``telemetry/amd-smi-watch.csv``, ``telemetry/recorder.csv``
    Output of ``amd-smi metric -p -c -t -u -E -w 1 --csv`` (ROCm 7.1), and a fast recorder.
``truth.json``
    Ground truth of the job; see below.
``README.txt``
    Instructions for the folder.

Equal parameters give equal bytes.

Notes
-----
truth.json is one object. All times are integer nanoseconds; those called ``ts_ns``, ``start_ns`` or
``end_ns`` are unix times, the axis of Kineto's ``baseTimeNanoseconds + 1000 ts``. Tables are objects
of columns of equal length. ``step`` is the N of ``ProfilerStep#N``, ``correlation`` and
``external_id`` are those of the rank's Kineto file, and -1 stands for none.

``format``, ``version``, ``parameters``
    "chopper-interop demo", 1, and the arguments of `make_demo` (those of a pipeline if there is
    one, `power_w` if it is another than 600).
``files``
    All other files of the folder, as paths from it: those that the next demo may replace.
``constants``
    The fixed latencies of the simulation: from the end of a launching call (the begin of a copying
    one) to the earliest start on the GPU (``launch_latency_ns``), from the end of what an event
    stands for to the earliest start of what waits (``event_latency_ns``), from the end of the last
    GPU operation to the return of the host's wait (``sync_latency_ns``), between host threads
    (``handover_ns``); ``control_tick_ns``, over which a clock is constant, and ``peak_mhz``.
``clocks``
    ``node``, ``base_time_ns`` of the Kineto files, ``realtime_minus_boottime_ns`` of the node, and
    the profiled window: ``window_start_ns`` (first ProfilerStep begins) to ``window_end_ns`` (last
    one ends).
``measured_step_ns``, ``ideal_step_ns``, ``mean_measured_step_ns``, ``mean_ideal_step_ns``
    For each step the time to the last rank's end, from that of the step before, in the job as it ran,
    and in the same job, with the same noise, at a constant clock of ``peak_mhz``.
``straggler``
    ``rank`` (-1: none), ``requested_slowdown``, ``slowdown`` (its kernel time by the median of the
    others') and ``kernel_time_ns`` of each rank (compute kernels only).
``steps``
    Table by ``rank`` and ``step`` of ``start_ns``, ``end_ns``, ``duration_ns`` (of ProfilerStep),
    ``ideal_duration_ns``, and what the GPU did, by unions of intervals: ``compute_ns`` (kernels but
    RCCL's, and fills), ``communication_ns`` (RCCL's), ``copy_ns``, ``overlap_ns`` (of compute and
    communication), ``exposed_communication_ns`` (communication without compute),
    ``busy_ns`` (any), ``idle_ns`` (the duration but ``busy_ns``).
``collectives``
    Table, in the order in which every rank starts them: ``step``, ``name`` (as "Collective name"),
    ``bytes`` (of the larger of ``in_bytes`` and ``out_bytes``), ``transfer_ns``, ``max_start_ns``,
    ``end_ns`` (of all members) and by rank ``starts_ns``, ``waits_ns``, ``correlations``. Of a
    pipeline in the order of ``max_start_ns``; a send with its receive is one row, ``name`` "send",
    and ``ranks`` says whose the entries of the lists are: of a send the sender's, the receiver's.
``pipeline``
    Of a pipeline: ``stages``, ``microbatches``, ``schedule`` ("1F1B"), ``ideal_bubble_share``
    ((p-1)/(m+p-1) for p stages and m microbatches) and ``steps``, a table by ``rank`` and ``step``
    of ``stage``; ``start_ns`` and ``end_ns``, from the first kernel of a forward or backward pass
    of the step to the end of the last one, over all stages of the rank's pipeline; ``span_ns``, the
    time between; of this ``compute_ns`` (the rank runs a kernel or fill), ``p2p_ns`` (it sends or
    receives) and ``bubble_ns`` (it runs neither kernel nor fill nor collective), which is
    ``warmup_ns`` (before the rank's first such kernel) + ``steady_ns`` + ``cooldown_ns`` (after
    its last); and of the bubble ``recv_ns`` (a receive runs) and ``recv_wait_ns`` (and its sender
    has not started).
``critical_path``
    ``window`` for the whole profiled window, and ``steps`` by step number as a string: ``start_ns``,
    ``end_ns``, and the pieces that tile this time: ``kind``, ``rank``, ``step``, ``correlation``,
    ``external_id``, ``ts_ns``, ``dur_ns``. Kinds are "kernel", "collective" (its transfer, on the
    member that started last), "memcpy" and "memset"; "launch_latency" and "event_latency" before
    what ``correlation`` launched; "sync_latency" (the return of the call ``correlation``);
    "runtime" (time in a call), "host" (time in the operator or annotation ``external_id``, without
    what it calls), "handover" (from a thread to what another does next). Where several things
    were equally late, the operation before on the stream counts, then the event, then the launch,
    and of the members of a collective the lowest rank.
``kernels``
    Unless `truth_kernels` is false, table of all kernels: ``rank``, ``correlation``, ``step``,
    ``class`` ("gemm", "gemm_skinny", "attention", "norm", "elementwise", "reduction", "optimizer",
    "copy", "collective"), ``ts_ns``, ``dur_ns``, ``mean_clock_mhz`` (over the kernel's time),
    ``ideal_dur_ns`` (at ``peak_mhz``; the transfer, for a collective), ``beta`` (sensitivity
    -d ln t / d ln f at the mean clock), and for compute kernels, with the running maximum of the
    ends of those before in the step: ``launch_ns`` (gap before it), ``prep_ns`` (of this, until the
    launching call began), ``call_ns`` (from there, or from the gap's begin, on).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.demo.parameters import DemoParameters

if TYPE_CHECKING:
    import os

__all__ = ["make_demo"]


def make_demo(  # noqa: PLR0913 # each size is a parameter
    directory: str | os.PathLike[str],
    *,
    ranks: int = DemoParameters.ranks,
    layers: int = DemoParameters.layers,
    steps: int = DemoParameters.steps,
    seed: int = DemoParameters.seed,
    recorder_hz: int = DemoParameters.recorder_hz,
    peak_scale: float = DemoParameters.peak_scale,
    power_w: int = DemoParameters.power_w,
    straggler: int = DemoParameters.straggler,
    straggler_slowdown: float = DemoParameters.straggler_slowdown,
    batch: int = DemoParameters.batch,
    sequence: int = DemoParameters.sequence,
    counter_steps: int = DemoParameters.counter_steps,
    telemetry: bool = DemoParameters.telemetry,
    truth_kernels: bool = DemoParameters.truth_kernels,
    event_records: bool = DemoParameters.event_records,
    pipeline: int = DemoParameters.pipeline,
    microbatches: int = DemoParameters.microbatches,
) -> Path:
    """Write a demo job; its folder.

    Parameters
    ----------
    directory
        Folder to make. An earlier demo there is replaced.
    ranks
        GPUs that take part, 1 to 8.
    layers
        Layers of the model.
    steps
        Profiled steps.
    seed
        Of everything random.
    recorder_hz
        Samples of the recorder a second and GPU; 0 leaves the recorder out.
    peak_scale
        Highest core clock as a multiple of 2100 MHz, 0.7 to 1.2.
    power_w
        Power that the clock of each GPU is held at, 300 to 1500 W.
    straggler
        Rank that heat makes slower, modulo `ranks`; -1 for none. One rank alone is none.
    straggler_slowdown
        How many times as long its kernels take, 1 to 1.2.
    batch
        Sequences of a rank's batch.
    sequence
        Tokens of a sequence, a multiple of 256.
    counter_steps
        Steps of each counter run; 0 leaves rocprof's files out.
    telemetry
        Whether to write the telemetry files.
    truth_kernels
        Whether truth.json has the table of all kernels.
    event_records
        Whether ``hipEventRecord`` is in the traces; Kineto's roctracer backend leaves it out.
    pipeline
        Stages of a 1F1B pipeline, which replaces FSDP2; 0 for none. `ranks` is a multiple of it: the
        ranks of a stage follow each other and share its gradients. Its layers are the stage's part
        of `layers`, its first and last stage have the embedding and the loss in addition.
    microbatches
        Microbatches of a step of a pipeline, each of `batch` sequences.

    Returns
    -------
    pathlib.Path
        `directory`.

    Raises
    ------
    UsageError
        If a parameter is out of range, or the folder holds something else.
    WriteError
        If the folder cannot be written.
    """
    from chopper_interop.demo.folder import write_folder

    parameters = DemoParameters(
        ranks=ranks,
        layers=layers,
        steps=steps,
        seed=seed,
        recorder_hz=recorder_hz,
        peak_scale=peak_scale,
        power_w=power_w,
        straggler=straggler,
        straggler_slowdown=straggler_slowdown,
        batch=batch,
        sequence=sequence,
        counter_steps=counter_steps,
        telemetry=telemetry,
        truth_kernels=truth_kernels,
        event_records=event_records,
        pipeline=pipeline,
        microbatches=microbatches,
    )
    return write_folder(parameters, directory)

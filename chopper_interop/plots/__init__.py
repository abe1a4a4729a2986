"""Charts of results and traces, for notebooks and for the report: each function returns an Altair chart.

Most take the `Result` of one analysis, as their docstrings say; some take a trace, or a result and a
trace. They return None where there is nothing to draw. `PLOTS` lists them as the report does.

import chopper_interop as ci
from chopper_interop import plots

plots.idle_causes(ci.analyze(trace, "idle"))
plots.core_clock_over_time(trace)
plots.step_timeline(ci.analyze(trace, "critical_path", by="piece"), trace).save("step.svg")
"""

from __future__ import annotations

from chopper_interop.plots.catalogue import PLOTS, Plot
from chopper_interop.plots.clocks import (
    clock_and_duration,
    clock_loss,
    ideal_times,
    operation_breakdown,
)
from chopper_interop.plots.communication import (
    collective_bandwidth,
    collective_durations,
    collective_waits,
    hidden_by_kind,
    late_ranks,
    link_bytes,
    overlap_and_duration,
    overlap_by_rank,
    overlap_of_each,
    solo_and_overlapped,
)
from chopper_interop.plots.gpus import (
    clock_and_power,
    clock_and_temperature,
    core_clock_over_time,
    energy_by_rank,
    gpu_differences,
    memory_clock_over_time,
    over_time,
    power_distribution,
    power_over_time,
    processors_over_time,
    temperature_by_place,
    temperature_over_time,
    throttle_causes,
    throttling_over_time,
    total_power,
    utilisation_over_time,
)
from chopper_interop.plots.host import (
    empty_queues,
    idle_blame,
    idle_causes,
    launch_overhead,
)
from chopper_interop.plots.kernels import (
    device_timeline,
    kernel_durations,
    roofline,
)
from chopper_interop.plots.path import (
    change_gains,
    path_classes,
    path_layers,
    path_operations,
    slack_by_layer,
)
from chopper_interop.plots.runs import (
    changed_kernels,
    run_clock,
    run_efficiency,
    run_gpu_busy,
    run_gpu_bytes,
    run_gpu_clock,
    run_gpu_power,
    run_gpu_temperature,
    run_kernels,
    run_power,
    run_steps,
    run_temperature,
    run_throughput,
)
from chopper_interop.plots.steps import (
    pipeline_bubbles,
    step_parts,
    step_throughput,
    step_times,
    work_by_phase,
    work_by_rank,
)
from chopper_interop.plots.stragglers import (
    rank_leads,
    slow_operations,
    straggler_gains,
    straggler_map,
)
from chopper_interop.plots.timeline import (
    step_timeline,
    timeline_of,
)

__all__ = [
    "PLOTS", "Plot", "change_gains", "changed_kernels", "clock_and_duration", "clock_and_power",
    "clock_and_temperature", "clock_loss", "collective_bandwidth", "collective_durations",
    "collective_waits", "core_clock_over_time", "device_timeline", "empty_queues",
    "energy_by_rank", "gpu_differences", "hidden_by_kind", "ideal_times", "idle_blame",
    "idle_causes", "kernel_durations", "late_ranks", "launch_overhead", "link_bytes",
    "memory_clock_over_time", "operation_breakdown", "over_time", "overlap_and_duration",
    "overlap_by_rank", "overlap_of_each", "path_classes", "path_layers", "path_operations",
    "pipeline_bubbles", "power_distribution", "power_over_time", "processors_over_time",
    "rank_leads", "roofline", "run_clock", "run_efficiency", "run_gpu_busy", "run_gpu_bytes",
    "run_gpu_clock", "run_gpu_power", "run_gpu_temperature", "run_kernels", "run_power",
    "run_steps", "run_temperature", "run_throughput", "slack_by_layer", "slow_operations",
    "solo_and_overlapped", "step_parts", "step_throughput", "step_timeline", "step_times",
    "straggler_gains", "straggler_map", "temperature_by_place", "temperature_over_time",
    "throttle_causes", "throttling_over_time", "timeline_of", "total_power",
    "utilisation_over_time", "work_by_phase", "work_by_rank",
]  # fmt: skip

"""All charts: section, title, the analysis whose result each draws, and what to record for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.plots import (
    clocks,
    communication,
    gpus,
    host,
    kernels,
    path,
    runs,
    stragglers,
    timeline,
)
from chopper_interop.plots import steps as training_steps
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart

STEPS, PATH, COMMUNICATION, HOST = "Steps", "Critical path", "Communication", "Host and idle time"
CLOCK, GPUS, STRAGGLERS, KERNELS, RUNS = (
    "Clock", "GPUs over time", "Stragglers", "Kernels", "Runs side by side"
)  # fmt: skip
SECTIONS = (STEPS, PATH, COMMUNICATION, HOST, CLOCK, GPUS, STRAGGLERS, KERNELS, RUNS)


@dataclass(frozen=True)
class Plot:
    """A chart of the report.

    Parameters
    ----------
    section, title
        Its place and heading.
    function
        Makes it, of a result, a trace, or a result and the trace; None if there is nothing to draw.
    needs
        What to record for it.
    analysis, options
        The analysis whose result it draws, and its options; of the trace itself if empty.
    takes_trace
        True if it takes the trace after the result.
    on_page
        False if the page has something better in its place.
    """

    section: str
    title: str
    function: Callable[..., Chart]
    needs: str
    analysis: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    takes_trace: bool = False
    on_page: bool = True

    @property
    def name(self) -> str:
        """Name of its file and of its place in a page."""
        words = "".join(c if c.isalnum() else " " for c in self.title.lower()).split()
        return "-".join(words)

    def takes(self, item: Any) -> bool:
        """True if it draws this: a result of its analysis, or a trace."""
        if self.analysis:
            return isinstance(item, Result) and item.analysis == self.analysis
        return isinstance(item, Trace)

    @property
    def call(self) -> str:
        """The call whose result it draws, as a program writes it."""
        if not self.analysis:
            return "a trace"
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f'analyze(trace, "{self.analysis}"{options})'


def _options(by: str = "", **options: Any) -> dict[str, Any]:
    return ({"by": by} if by else {}) | options


_GPU = "GPU work: profile with torch.profiler or rocprofv3"
_STEP = "training steps: call profiler.step() after each"
_TELEMETRY = (
    "telemetry of GPUs while the job runs: amd-smi metric -w 1 --csv, or a recorder at 10 ms"
)
_COMMS = "communication of several ranks: profile them all"
_SIZES = "sizes of communication of several ranks, which newer versions of PyTorch's profiler write"
_SEVERAL = "traces of several ranks"
_COUNTERS = "hardware counters: a run of rocprofv3 --pmc for each set of them"
_SHAPES = "shapes: torch.profiler with record_shapes=True"
_HOST = "the host's calls: torch.profiler with activities CPU and CUDA"
_LAYERS = "layers: torch.profiler with with_modules=True, or record_function in the model"
_MORE = "other runs: --against 'RUNS/*'"

PLOTS = (
    Plot(STEPS, "Step time by rank and step", training_steps.step_times, _STEP,
         "temporal", _options("rank,iteration", steps="each")),
    Plot(STEPS, "What each rank's GPU does", training_steps.step_parts, _GPU, "temporal", _options("rank")),
    Plot(STEPS, "Throughput of steps", training_steps.step_throughput, _SHAPES,
         "efficiency", _options("iteration")),
    Plot(STEPS, "GPU time by phase and category", training_steps.work_by_phase, _GPU,
         "kernels", _options("phase,category")),
    Plot(STEPS, "Bubbles of the pipeline", training_steps.pipeline_bubbles, "a job with pipeline parallelism",
         "bubbles"),
    Plot(STEPS, "One step of all ranks", timeline.step_timeline, _GPU,
         "critical_path", _options("piece"), takes_trace=True, on_page=False),
    Plot(PATH, "Critical path by class", path.path_classes, _GPU, "critical_path", _options("class")),
    Plot(PATH, "Critical path by operation", path.path_operations, _GPU,
         "critical_path", _options("class,operation")),
    Plot(PATH, "Critical path by layer", path.path_layers, _LAYERS,
         "critical_path", _options("layer,class")),
    Plot(PATH, "Slack by layer", path.slack_by_layer, _LAYERS),
    Plot(PATH, "What changes would save", path.change_gains, _GPU, "what_if"),
    Plot(COMMUNICATION, "Exposed and hidden communication", communication.hidden_by_kind, _COMMS,
         "overlap", _options("collective")),
    Plot(COMMUNICATION, "Overlap of each collective", communication.overlap_of_each, _COMMS,
         "overlap", _options("instance")),
    Plot(COMMUNICATION, "Waiting and transfer", communication.collective_waits, _COMMS, "collectives"),
    Plot(COMMUNICATION, "Durations of collectives by rank", communication.collective_durations, _COMMS,
         "kernels", _options("collective,rank")),
    Plot(COMMUNICATION, "Bus bandwidth and size", communication.collective_bandwidth, _SIZES,
         "collectives", _options("instance")),
    Plot(COMMUNICATION, "Ranks that others wait for", communication.late_ranks, _COMMS, "collectives"),
    Plot(COMMUNICATION, "Kernels alone and under communication", communication.solo_and_overlapped,
         _COMMS),
    Plot(COMMUNICATION, "Overlap and duration", communication.overlap_and_duration, _HOST,
         "overlap", _options("operation_instance")),
    Plot(COMMUNICATION, "Overlap of operations by rank", communication.overlap_by_rank, _HOST,
         "overlap", _options("operation_instance")),
    Plot(COMMUNICATION, "Bytes over links", communication.link_bytes, _TELEMETRY, "traffic"),
    Plot(HOST, "Idle time by cause", host.idle_causes, _GPU, "idle", _options("rank")),
    Plot(HOST, "Host operations behind idle time", host.idle_blame, _HOST, "idle", _options("rank")),
    Plot(HOST, "Launch overhead by operation", host.launch_overhead, _HOST,
         "launch", _options("phase,operation")),
    Plot(HOST, "Empty queues", host.empty_queues, _HOST, "launch", _options("phase,operation")),
    Plot(HOST, "Processors over time", gpus.processors_over_time, "samples of processors: chopper-record, CharLLM-PPT or Zeus"),
    Plot(CLOCK, "Ideal time of steps", clocks.ideal_times, _TELEMETRY, "dvfs", _options("iteration")),
    Plot(CLOCK, "What the clock costs by operation", clocks.clock_loss, _TELEMETRY,
         "dvfs", _options("operation,phase")),
    Plot(CLOCK, "Breakdown of operations", clocks.operation_breakdown, _COUNTERS, "breakdown"),
    Plot(CLOCK, "Clock and duration of kernels", clocks.clock_and_duration, _TELEMETRY),
    Plot(CLOCK, "Clock and power", gpus.clock_and_power, _TELEMETRY),
    Plot(CLOCK, "Clock and temperature", gpus.clock_and_temperature, _TELEMETRY),
    Plot(GPUS, "Core clock over time", gpus.core_clock_over_time, _TELEMETRY),
    Plot(GPUS, "Memory clock over time", gpus.memory_clock_over_time, _TELEMETRY),
    Plot(GPUS, "Power over time", gpus.power_over_time, _TELEMETRY),
    Plot(GPUS, "Temperature over time", gpus.temperature_over_time, _TELEMETRY),
    Plot(GPUS, "Utilisation over time", gpus.utilisation_over_time, _TELEMETRY),
    Plot(GPUS, "Throttling over time", gpus.throttling_over_time, _TELEMETRY),
    Plot(GPUS, "Causes of throttling", gpus.throttle_causes, _TELEMETRY, "throttling"),
    Plot(GPUS, "Power of all GPUs", gpus.total_power, _TELEMETRY),
    Plot(GPUS, "Distribution of power", gpus.power_distribution, _TELEMETRY),
    Plot(GPUS, "Energy by rank", gpus.energy_by_rank, _TELEMETRY, "energy", _options("rank")),
    Plot(GPUS, "Temperature by place", gpus.temperature_by_place, _TELEMETRY, "imbalance", _options("rank")),
    Plot(STRAGGLERS, "Straggler map", stragglers.straggler_map, _SEVERAL,
         "temporal", _options("rank,iteration", steps="each")),
    Plot(STRAGGLERS, "Differences between GPUs", gpus.gpu_differences, _SEVERAL,
         "imbalance", _options("rank")),
    Plot(STRAGGLERS, "What ranks cost the job", stragglers.straggler_gains, _SEVERAL, "stragglers", _options("rank")),
    Plot(STRAGGLERS, "Slow operations by rank", stragglers.slow_operations, _SEVERAL,
         "stragglers", _options("operation")),
    Plot(STRAGGLERS, "Leads of ranks", stragglers.rank_leads, _SEVERAL, "imbalance", _options("rank")),
    Plot(KERNELS, "Roofline", kernels.roofline, _SHAPES, "kernels", _options("class,kernel"),
         takes_trace=True),
    Plot(KERNELS, "GPU time by rank and category", training_steps.work_by_rank, _GPU,
         "kernels", _options("rank,category")),
    Plot(KERNELS, "Spread of durations", kernels.kernel_durations, _GPU,
         "kernels", _options("phase,operation,category")),
    Plot(KERNELS, "Matrix cores over time", kernels.device_timeline, _COUNTERS),
    Plot(RUNS, "Step of each run", runs.run_steps, _MORE, "sweep"),
    Plot(RUNS, "Kinds of work of each run", runs.run_kernels, _MORE, "sweep"),
    Plot(RUNS, "Throughput of each run", runs.run_throughput, _MORE, "sweep"),
    Plot(RUNS, "Efficiency of each run", runs.run_efficiency, _MORE, "sweep"),
    Plot(RUNS, "Power of each run", runs.run_power, _MORE, "sweep"),
    Plot(RUNS, "Temperature of each run", runs.run_temperature, _MORE, "sweep"),
    Plot(RUNS, "Core clock of each run", runs.run_clock, _MORE, "sweep"),
    Plot(RUNS, "Power of each GPU of each run", runs.run_gpu_power, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Highest power of each GPU of each run", runs.run_gpu_peak_power, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Temperature of each GPU of each run", runs.run_gpu_temperature, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Highest temperature of each GPU of each run", runs.run_gpu_peak_temperature, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Core clock of each GPU of each run", runs.run_gpu_clock, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Highest core clock of each GPU of each run", runs.run_gpu_peak_clock, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Utilisation of each GPU of each run", runs.run_gpu_utilisation, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Busy share of each GPU of each run", runs.run_gpu_busy, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Bytes over links of each GPU of each run", runs.run_gpu_bytes, _MORE,
         "sweep", _options("run,gpu")),
    Plot(RUNS, "Kinds of work by rank of two runs", runs.kinds_by_rank, _MORE,
         "compare", _options("rank,category")),
    Plot(RUNS, "Work that changed", runs.changed_kernels, _MORE, "compare"),
)  # fmt: skip
"""Charts in the order in which the report has them."""

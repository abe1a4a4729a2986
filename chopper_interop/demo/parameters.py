"""Parameters of a demo job, and the constants of the node that it runs on."""

from __future__ import annotations

from dataclasses import dataclass, fields

from chopper_interop.errors import UsageError

NODE = "demo-node-0"
GPUS = 8
"""GPUs of the node; a job of fewer ranks leaves the rest idle."""
CPU_AGENTS = 2
"""CPU sockets, which the HSA runtime counts before the GPUs."""
FIRST_STEP = 10
"""Number of the first profiled step, as in ``ProfilerStep#10``."""

WINDOW_START_NS = 1_768_478_400_123_456_789
"""Unix time at which the host threads enter the profiled window: 15 January 2026, noon."""
BASE_TIME_NS = 1_767_189_312_000_000_000
"""`baseTimeNanoseconds` of Kineto on that day."""
UPTIME_NS = 1_234_567_000_000_000
"""Age of the node's BOOTTIME clock at `WINDOW_START_NS`, before the seed's share is added."""

PEAK_MHZ = 2100
MIN_MHZ = 1300
POWER_W = 600
"""Power that the controller holds, unless another is asked for."""

PIPELINE = ("pipeline", "microbatches")
"""Parameters of a pipeline."""

_RANGES = {
    "ranks": (1, GPUS), "layers": (1, 256), "steps": (1, 10_000), "seed": (0, 2**31 - 1),
    "recorder_hz": (0, 10_000), "peak_scale": (0.7, 1.2), "power_w": (300, 1500),
    "straggler": (-1, GPUS - 1), "straggler_slowdown": (1.0, 1.2), "batch": (1, 8),
    "sequence": (256, 8192), "counter_steps": (0, 10_000), "pipeline": (0, GPUS),
    "microbatches": (1, 64),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class DemoParameters:
    """Parameters of the job; `make_demo` says what each of them means."""

    ranks: int = 8
    layers: int = 4
    steps: int = 3
    seed: int = 0
    recorder_hz: int = 1000
    peak_scale: float = 1.0
    power_w: int = POWER_W
    straggler: int = 5
    straggler_slowdown: float = 1.06
    batch: int = 2
    sequence: int = 4096
    counter_steps: int = 1
    telemetry: bool = True
    truth_kernels: bool = True
    event_records: bool = True
    pipeline: int = 0
    microbatches: int = 4

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise UsageError(f"{field.name} is true or false, not {value!r}")
            else:
                _check_number(field.name, value, whole=isinstance(field.default, int))
        if self.sequence % 256:
            raise UsageError(f"sequence is a multiple of 256, not {self.sequence}")
        if self.pipeline == 1:
            raise UsageError("pipeline is 0 for none, or at least two stages")
        if self.pipeline and self.ranks % self.pipeline:
            raise UsageError(
                f"ranks is a multiple of pipeline, not {self.ranks} of {self.pipeline}"
            )
        if self.layers < self.pipeline:
            raise UsageError(f"each stage of the pipeline has a layer: layers is {self.layers}")

    @property
    def peak_mhz(self) -> int:
        """Highest core clock, MHz."""
        return round(PEAK_MHZ * self.peak_scale)

    @property
    def slow_rank(self) -> int:
        """The straggler among the ranks of this job, -1 if there is none."""
        if self.straggler < 0 or self.ranks == 1 or self.straggler_slowdown == 1.0:
            return -1
        return self.straggler % self.ranks

    @property
    def boottime_ns(self) -> int:
        """BOOTTIME of the node at `WINDOW_START_NS`."""
        return UPTIME_NS + 7_919_000_111 * (self.seed % 100_003)

    @property
    def boottime_offset_ns(self) -> int:
        """REALTIME minus BOOTTIME of the node, nanoseconds."""
        return WINDOW_START_NS - self.boottime_ns


def _check_number(name: str, value: object, *, whole: bool) -> None:
    low, high = _RANGES[name]
    kind = "a whole number" if whole else "a number"
    allowed = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, allowed) or not low <= value <= high:
        raise UsageError(f"{name} is {kind} from {low} to {high}, not {value!r}")

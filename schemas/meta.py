"""Metadata of a trace: sources, ranks, devices and clocks."""

from __future__ import annotations

from dataclasses import dataclass, field

from chopper_interop.issues import Issue

REALTIME = "realtime"
"""Nanoseconds since 1970-01-01 UTC."""
BOOTTIME = "boottime"
"""Nanoseconds since the node was booted, sleep included (Linux ``CLOCK_BOOTTIME``)."""
LOCALTIME = "localtime"
"""Time of a wall clock in nanoseconds, as if its zone, which is not known, were UTC."""
ORDER = "order"
"""No clock: ``ts`` counts the nodes in the order of their program."""
COMPUTED = "computed"
"""No clock: ``ts`` are nanoseconds that follow from durations and dependencies alone."""

WORLD_SIZE = "world_size"
"""Fact: number of ranks of the job, in the trace or not, as a source states it."""

TIME_BASE = "time_base"
"""Fact: what times in a Kineto file count from, where that is not a base near them: `SINCE_1970`."""
SINCE_1970 = "1970"

ASSUMED = "assumed"
"""`Rank.known_by` of a rank whose number is not in the source."""


@dataclass(frozen=True)
class Source:
    """A file, or a set of files that one tool wrote together."""

    path: str
    format: str
    tool: str = ""
    """Tool and version, as far as the files state them."""
    sha256: str = ""
    size: int = 0
    """Bytes on disk."""
    events: int = 0
    """Input events: nodes, and those that issues with ``events`` count."""
    nodes: int = 0
    """Nodes that were read from it."""


@dataclass(frozen=True)
class Rank:
    """A process of the job."""

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1
    """The device that it computes on, as its source numbers devices."""
    known_by: str = ASSUMED
    """Origin of its number: "header", "name", "labels", "user", or none: "assumed"."""
    parent: int = -1
    """Id of the process that started it; -1 if unknown."""


@dataclass(frozen=True)
class Device:
    """A GPU, with every name that its source has for it; what is unknown is -1 or empty."""

    host: str
    device: int
    """Number in lanes and series: the source's, which may be any of the numbers below."""
    name: str = ""
    source: str = ""
    ordinal: int = -1
    """HIP or CUDA ordinal: its index among the GPUs that the process sees."""
    agent: int = -1
    """HSA agent (KFD node); processors come first among them."""
    index: int = -1
    """Index of the management tool (amd-smi, rocm-smi, nvidia-smi), in order of PCI addresses."""
    pci: str = ""
    """PCI address as ``0000:c1:00.0``, lower case."""
    uuid: str = ""
    arch: str = ""
    """Architecture as compilers name it: gfx942, sm_90."""
    xccs: int = -1
    """Accelerator complex dies of this partition; counters are sums over them."""
    cus: int = -1
    """Compute units (AMD) or streaming multiprocessors (NVIDIA)."""
    simds_per_cu: int = -1
    max_mhz: int = -1
    """Highest clock of its shaders."""


@dataclass(frozen=True)
class DeviceMatch:
    """Statement that a GPU of one source is one of the job's GPUs."""

    source: str
    """First file of the source."""
    number: int
    """The GPU's number by that source."""
    device: int
    """Its number in the trace's lanes."""
    rank: int = -1
    """The rank that computes on it; -1 stands for all that do."""
    known_by: str = ""
    """Reason: a name that both have, the user, or an assumption."""


@dataclass(frozen=True)
class Offset:
    """Relation of another clock of the node to the trace's clock."""

    clock: str
    offset_ns: int
    """Time on the trace's clock minus time on `clock`."""
    uncertainty_ns: int = 0


@dataclass(frozen=True)
class ClockFit:
    """Relation by which the times of a rank or a source were brought to the trace's clock.

    Their time t is ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9`` on the trace's clock.
    """

    of: str
    """"rank 3", or the first file of a source."""
    clock: str
    """The clock of their times before."""
    method: str
    """Method by which the relation was found, a name of `chopper_interop.clocks.relations`."""
    offset_ns: int = 0
    drift_ppb: int = 0
    pivot_ns: int = 0
    uncertainty_ns: int = 0
    """Plus or minus this: a standard deviation if it was estimated, a bound if it was stated."""
    pairs: int = 0
    """Number of pairs of times from which it was estimated."""
    applied: bool = True
    """True if times were changed by it."""
    reason: str = ""
    """Reason why it was not applied, or what was assumed."""


@dataclass(frozen=True)
class Mark:
    """A place in time of which an analysis speaks."""

    start_ns: int
    """Its start and end, as `ts`."""
    end_ns: int
    kind: str
    """Its kind, for grouping: a stable code."""
    text: str
    """The remark on it, for people."""
    ranks: str = ""
    """Ranks concerned: "3", "0,4" or "0-7"; empty for the job."""
    details: str = "{}"
    """Further values as a JSON object."""


@dataclass(frozen=True)
class Meta:
    """Metadata of a trace as a whole."""

    job: str = "job"
    origin_ns: int = 0
    """The time, on `clock`, of `ts` = 0."""
    clock: str = REALTIME
    offsets: tuple[Offset, ...] = ()
    """Relations of other clocks, which the sources state."""
    clocks: tuple[ClockFit, ...] = ()
    """Relations by which the clocks of ranks and sources were aligned, with their uncertainty."""
    run: str = ""
    """Name of the run, if a program ran several times: that of a counter pass; else empty."""
    ranks: tuple[Rank, ...] = ()
    devices: tuple[Device, ...] = ()
    device_matches: tuple[DeviceMatch, ...] = ()
    sources: tuple[Source, ...] = ()
    issues: tuple[Issue, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    """Versions of tools and drivers, and the like."""
    marks: tuple[Mark, ...] = ()
    """Places of which analyses speak, for pictures."""

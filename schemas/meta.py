"""What is known of a trace as a whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from chopper_interop.issues import Issue

REALTIME = "realtime"
"""Nanoseconds since 1970-01-01 UTC."""
BOOTTIME = "boottime"
"""Nanoseconds since the node was booted, sleep included (Linux ``CLOCK_BOOTTIME``)."""
LOCALTIME = "localtime"
"""What a wall clock showed, in nanoseconds as if its zone, which is not known, were UTC."""
ORDER = "order"
"""No clock: ``ts`` counts the nodes in the order of their program."""
COMPUTED = "computed"
"""No clock: ``ts`` are nanoseconds that follow from durations and dependencies alone."""

ASSUMED = "assumed"
"""`Rank.known_by` of a rank that nothing in the source tells."""


@dataclass(frozen=True)
class Source:
    """A file, or a set of files that one tool wrote together."""

    path: str
    format: str
    tool: str = ""
    """Tool and version, as far as the files say."""
    sha256: str = ""
    size: int = 0
    """Bytes on disk."""
    events: int = 0
    """Input events: nodes + what the issues with ``events`` count."""
    nodes: int = 0
    """Nodes that came from it."""


@dataclass(frozen=True)
class Rank:
    """A process of the job."""

    rank: int
    host: str = ""
    pid: int = -1
    device: int = -1
    """The device that it computes on, as its source numbers devices."""
    known_by: str = ASSUMED
    """What tells its number: "header", "name", "labels", "user", or nothing: "assumed"."""
    parent: int = -1
    """Id of the process that started it; -1 if unknown."""


@dataclass(frozen=True)
class Device:
    """A GPU, by every name that its source has for it; what it does not tell is -1 or empty."""

    host: str
    device: int
    """Number by the source, the one in its lanes and series; which of those below it is differs."""
    name: str = ""
    source: str = ""
    ordinal: int = -1
    """Its place among the GPUs that the process sees: the HIP or CUDA ordinal."""
    agent: int = -1
    """HSA agent (KFD node), among which processors come first."""
    index: int = -1
    """Index by the management tool (amd-smi, rocm-smi, nvidia-smi): by PCI address."""
    pci: str = ""
    """PCI address as ``0000:c1:00.0``, lower case."""
    uuid: str = ""
    arch: str = ""
    """Architecture as compilers name it: gfx942, sm_90."""
    xccs: int = -1
    """Accelerator complex dies that it has as it is partitioned; counters are sums over them."""
    cus: int = -1
    """Compute units (AMD) or streaming multiprocessors (NVIDIA)."""
    simds_per_cu: int = -1
    max_mhz: int = -1
    """Highest clock of its shaders."""


@dataclass(frozen=True)
class DeviceMatch:
    """That a GPU of one source is one of the job's."""

    source: str
    """First file of the source."""
    number: int
    """The GPU's number by that source."""
    device: int
    """Its number in the trace's lanes."""
    rank: int = -1
    """The rank that computes on it, -1 for all that do."""
    known_by: str = ""
    """What tells it: a name that both have, the user, or what was assumed."""


@dataclass(frozen=True)
class Offset:
    """How another clock of the node relates to the trace's clock."""

    clock: str
    offset_ns: int
    """Time on the trace's clock minus time on `clock`."""
    uncertainty_ns: int = 0


@dataclass(frozen=True)
class ClockFit:
    """How the times of a rank or a source were brought to the trace's clock.

    A time t of theirs is ``t + offset_ns + drift_ppb * (t - pivot_ns) / 1e9`` on the trace's clock.
    """

    of: str
    """"rank 3", or the first file of a source."""
    clock: str
    """The clock that their times were on."""
    method: str
    """What the relation is known by, a name of `chopper_interop.clocks.relations`."""
    offset_ns: int = 0
    drift_ppb: int = 0
    pivot_ns: int = 0
    uncertainty_ns: int = 0
    """Plus or minus this: one standard deviation of what is estimated, the most of what is told."""
    pairs: int = 0
    """So many pairs of moments it was estimated from."""
    applied: bool = True
    """Whether times were changed by it."""
    reason: str = ""
    """Why it was not applied, or what was assumed."""


@dataclass(frozen=True)
class Meta:
    """What is known of a trace as a whole."""

    job: str = "job"
    origin_ns: int = 0
    """The time, on `clock`, of `ts` = 0."""
    clock: str = REALTIME
    offsets: tuple[Offset, ...] = ()
    """Other clocks of which the sources told the relation."""
    clocks: tuple[ClockFit, ...] = ()
    """How the ranks' and sources' clocks were brought together, with uncertainty."""
    run: str = ""
    """Which of several runs of a program it is: the name of a counter pass, or empty."""
    ranks: tuple[Rank, ...] = ()
    devices: tuple[Device, ...] = ()
    device_matches: tuple[DeviceMatch, ...] = ()
    sources: tuple[Source, ...] = ()
    issues: tuple[Issue, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)
    """Versions of tools and drivers, and the like."""

"""Description of a recording: its GPUs with all their names, the node's clocks, and what is missing."""

from __future__ import annotations

from pathlib import Path

import msgspec

from chopper_interop.build import TraceBuilder
from chopper_interop.converters.amd_smi.recorder_samples import SOURCE
from chopper_interop.converters.sampling import facts
from chopper_interop.converters.sampling.rows import source_of_file
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas.meta import Device, Meta
from chopper_interop.trace import Trace

INCOMPLETE = Fault.loss(
    "recording-incomplete", "The recorder could not read or write all that it should have."
)


class _RecordedGpu(msgspec.Struct):
    gpu: int
    index: int = -1
    name: str = ""
    pci: str = ""
    uuid: str = ""
    arch: str = ""
    cus: int = -1
    max_mhz: int = -1
    power_limit_w: float = -1.0


class _Call(msgspec.Struct):
    achieved_hz: float = 0.0
    less_often: bool = False


class _Sampler(msgspec.Struct):
    library: str = ""
    rate_hz: float = 0.0
    achieved_hz: float | None = None
    ticks_left_out: int = 0
    calls: dict[str, _Call] = {}


class _Recording(msgspec.Struct):
    chopper_recording: int
    tool: str = ""
    host: str = ""
    gpus: list[_RecordedGpu] = []
    samplers: list[_Sampler] = []
    problems: list[str] = []


def read(paths: list[Path]) -> Trace:
    """Read one description.

    Parameters
    ----------
    paths
        The file, alone in a list.

    Returns
    -------
    Trace
        Without nodes and samples: ``meta.devices`` and ``meta.facts``.

    Raises
    ------
    ReadError
        It cannot be opened, or is no such description.
    """
    (path,) = paths
    issues = IssueLog(str(path))
    data = inputs.read(path, issues)
    try:
        recording = msgspec.json.decode(data.tobytes(), type=_Recording)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ReadError(f"it describes no recording: {error}", path=path) from error
    for problem in recording.problems:
        issues.add(INCOMPLETE, 1, problem)
    meta = Meta(
        job=inputs.plain_name(path),
        devices=tuple(_device(gpu) for gpu in recording.gpus),
        facts=_facts(recording),
        sources=(source_of_file(path, "recording", recording.tool, events=0),),
    )
    return TraceBuilder(meta).finish().with_meta(issues=tuple(issues))


def _device(gpu: _RecordedGpu) -> Device:
    return Device(
        "", gpu.gpu, gpu.name, SOURCE,
        index=gpu.index, pci=gpu.pci, uuid=gpu.uuid, arch=gpu.arch, cus=gpu.cus, max_mhz=gpu.max_mhz,
    )  # fmt: skip


def _facts(recording: _Recording) -> dict[str, str]:
    """Facts of the recording, and power caps under the name that excursions and power models look for."""
    own = {
        "recorder": recording.tool,
        "recorder library": "; ".join(s.library for s in recording.samplers),
        "recorder rate": "; ".join(_rates(s) for s in recording.samplers),
    }
    caps = ((g.index, g.power_limit_w) for g in recording.gpus if g.power_limit_w > 0)
    return own | facts.join_facts((index, "power_cap_w", f"{cap:g}") for index, cap in caps)


def _rates(sampler: _Sampler) -> str:
    """Rate of the rows, and of what was read less often."""
    rate = sampler.achieved_hz or 0.0
    less = {n: c.achieved_hz for n, c in sampler.calls.items() if c.less_often}
    return ", ".join(
        [f"{rate:g} of {sampler.rate_hz:g} Hz", *(f"{n} {hz:.3g} Hz" for n, hz in less.items())]
    )

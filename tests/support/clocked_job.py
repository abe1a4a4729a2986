"""Made jobs: kernels of known clocks and durations, one after the other."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import arrow
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Device, Rank

if TYPE_CHECKING:
    import chopper_interop as ci

MS = 1_000_000


def job(  # what of a kernel matters here
    mhz: np.ndarray,
    t_ns: np.ndarray,
    *,
    period_ns: int = MS,
    names: list[str] | None = None,
    ranks: int = 1,
    gpus: tuple[str, ...] = (),
    gap_ns: int = 10,
) -> ci.Trace:
    """Kernels one after the other on streams of ranks in turn, with known clocks and GPUs."""
    builder = TraceBuilder()
    n = len(t_ns)
    for rank in range(ranks):
        lane = builder.lane(rank, LaneKind.STREAM, 7, "s", 0)
        own = np.arange(rank, n, ranks)
        dur = t_ns[own].astype(np.int64)
        start = np.cumsum(dur + gap_ns) - dur
        of = np.array([names[i] for i in own]) if names else np.full(len(own), "Cijk_gemm")
        for name in np.unique(of):
            its = of == name
            builder.nodes(
                kind=int(Kind.KERNEL), name=str(name), rank=rank, lane=lane,
                ts=start[its], dur=dur[its],
            )  # fmt: skip
    trace = _on(builder.finish(), gpus)
    place = np.concatenate([np.arange(rank, n, ranks) for rank in range(ranks)])
    step = np.full(n, period_ns, np.int64)
    return trace.with_columns(gfxclk_mhz=arrow.array(mhz[place]), telemetry_ns=arrow.array(step))


def _on(trace: ci.Trace, gpus: tuple[str, ...]) -> ci.Trace:
    """The same with ranks on GPUs of these names, each alone in a host; "" is one without a name."""
    hosts = [f"host{rank}" for rank in range(len(gpus))]
    ranks = tuple(Rank(rank, host=host, device=0) for rank, host in enumerate(hosts))
    devices = tuple(Device(host, 0, name) for host, name in zip(hosts, gpus, strict=True) if name)
    if not gpus:
        return trace
    return dataclasses.replace(
        trace, meta=dataclasses.replace(trace.meta, ranks=ranks, devices=devices)
    )

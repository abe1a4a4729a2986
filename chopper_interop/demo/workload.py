"""The programs of a job: one for all ranks under FSDP2, one for each rank of a pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.demo.fsdp_step import FsdpStep
from chopper_interop.demo.groups import world
from chopper_interop.demo.pipeline_step import StageStep

if TYPE_CHECKING:
    from chopper_interop.demo.parameters import DemoParameters
    from chopper_interop.demo.program import Program


def training_step(p: DemoParameters) -> tuple[Program, ...]:
    """Programs of one step by rank; ranks that do the same share one."""
    if not p.pipeline:
        return (FsdpStep(p, world(p.ranks)).write(),) * p.ranks
    return tuple(StageStep(p, rank).write() for rank in range(p.ranks))

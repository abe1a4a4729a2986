"""ETs run by a simulator's rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.chakra import check, run
from chopper_interop.converters.chakra.checks.findings import Findings
from chopper_interop.converters.chakra.checks.jobs import job_of

if TYPE_CHECKING:
    from pathlib import Path


def end_ns(prefix: Path) -> int:
    """End of the last node, where NPUs wait for each other."""
    findings = Findings()
    ets = [et for _, et in check.read_files(prefix, findings)]
    job = job_of(ets, check.read_groups(prefix, len(ets), findings))
    return int(run.run(job, len(ets)).end_ns.max())

"""Real files that `test_real_inputs` converts to Perfetto, and which of them `make test` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared_data import SHARED
from slow import slow_but_each, slow_from

_COPIES = (
    "base_boundary_4rank_amd",
    "clock_skew_4rank_amd",
    *(f"ddp_resnet_4rank_amd/{name}" for name in ("merged", "rank1", "rank2", "rank3")),
)
"""Files that have the events of ddp_resnet_4rank_amd/rank0 with other clocks, of other ranks, or in one file."""


def kineto_files() -> list[str]:
    """All profiles of PyTorch below ``pytorch/``, without the broken ones and the execution traces."""
    folder = SHARED / "pytorch"
    other = ("odd", "host_et")
    result = [p.relative_to(folder) for p in folder.rglob("*.json*")]
    return sorted(
        str(p)
        for p in result
        if not set(other) & set(p.parts) and not p.stem.startswith("truth") and "_et." not in p.name
    )


def other_files() -> list[str]:
    """All files of rocprofv3 and amd-smi."""
    result = [*SHARED.glob("rocprof/v3_*/**/*"), *SHARED.glob("telemetry/amd_smi_*/**/*")]
    return sorted(str(p.relative_to(SHARED)) for p in result if p.is_file())


def kineto_cases() -> list[Any]:
    """Profiles of PyTorch for `parametrize`: every ninth one, and slowly all."""
    names = kineto_files()
    return [
        *slow_but_each([name for name in names if not name.startswith(_COPIES)], 9),
        *slow_from([name for name in names if name.startswith(_COPIES)], 0),
    ]


def other_cases() -> list[Any]:
    """Files of rocprofv3 and amd-smi: every eighth one; what another version of amd-smi wrote likewise is slow."""
    seen: set[str] = set()
    first: list[str] = []
    again: list[str] = []
    for name in other_files():
        known = "by_version" in name and Path(name).name in seen
        (again if known else first).append(name)
        seen.add(Path(name).name)
    return [*slow_but_each(first, 8), *slow_from(again, 0)]


def converted() -> set[str]:
    """Files that `make test` converts, which are therefore read and counted there."""
    kineto = {f"pytorch/{name}" for name in kineto_cases() if isinstance(name, str)}
    return kineto | {name for name in other_cases() if isinstance(name, str)}

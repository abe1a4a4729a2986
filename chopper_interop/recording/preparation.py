"""Settings with which other tools write profiles that join well.

PyTorch's profiler gets them from a hook, rocprofv3 by its options.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from chopper_interop.errors import UsageError, WriteError

TORCH = ("shapes", "host")
"""Requests to PyTorch's profiler: shapes, and host execution traces as well, which slow each operator down."""
TORCH_ON, TORCH_FOLDER = "CHOPPER_TORCH", "CHOPPER_TORCH_FOLDER"
"""Variables that switch the hook in the program on, and name the folder for host execution traces to it."""
HOOK = Path(__file__).parent / "torch_hook"

_SQ = "SQ_INSTS_VALU_"
COUNTER_PASSES: tuple[tuple[str, ...], ...] = (
    (
        *("GRBM_GUI_ACTIVE", "FETCH_SIZE", "SQ_VALU_MFMA_BUSY_CYCLES", "SQ_ACTIVE_INST_VALU"),
        *("SQ_WAVE_CYCLES", *(f"{_SQ}MFMA_MOPS_{kind}" for kind in ("F16", "BF16", "F32", "F64"))),
    ),
    (
        *("GRBM_GUI_ACTIVE", "WRITE_SIZE"),
        *(
            f"{_SQ}{work}_{kind}"
            for kind in ("F16", "F32")
            for work in ("ADD", "MUL", "FMA", "TRANS")
        ),
    ),
    ("GRBM_GUI_ACTIVE", *(f"{_SQ}{work}_F64" for work in ("ADD", "MUL", "FMA", "TRANS"))),
)
"""Counters that the analyses need, by pass. A pass holds 8 of the SQ block, 4 of each L2 channel and 2 of GRBM
(CDNA 2 and 3); FETCH_SIZE takes three of L2's and WRITE_SIZE two, so each has a pass of its own."""
ROCPROF = ("traces", "counters")
"""Requests to rocprofv3. Counters slow the program down, and each pass is a run of its own."""
_TRACES = ("--kernel-trace", "--hip-trace", "--memory-copy-trace", "--rccl-trace", "--marker-trace")


def torch_environment(recorded: str, folder: Path) -> dict[str, str]:
    """Return the variables that load the hook for PyTorch's profiler into the program's processes.

    Parameters
    ----------
    recorded
        One of `TORCH`.
    folder
        Where host execution traces are written.
    """
    paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {TORCH_FOLDER: str(folder.resolve())} if recorded == "host" else {}
    return {"PYTHONPATH": os.pathsep.join(paths), TORCH_ON: recorded, **wanted}


def rocprof_command(recorded: str, folder: Path, command: Sequence[str]) -> list[str]:
    """Return the command that runs another under rocprofv3.

    Parameters
    ----------
    recorded
        One of `ROCPROF`.
    folder
        Where rocprofv3 writes.
    command
        The program and its arguments.

    Raises
    ------
    UsageError
        rocprofv3 is not installed.
    WriteError
        The folder cannot be written.
    """
    tool = shutil.which("rocprofv3") or shutil.which("rocprofv3", path="/opt/rocm/bin")
    if tool is None:
        raise UsageError("--rocprof: rocprofv3 is neither in PATH nor in /opt/rocm/bin")
    to = folder.resolve() / "rocprof"  # the program may change its folder before the tool writes
    options = ["-d", str(to), "--output-format", "csv"]
    if recorded == "counters":
        passes = to / "counters.json"
        jobs = [{"pmc": list(counters), "kernel_trace": True} for counters in COUNTER_PASSES]
        try:
            to.mkdir(parents=True, exist_ok=True)
            passes.write_text(json.dumps({"jobs": jobs}, indent=1), encoding="utf-8")
        except OSError as error:
            raise WriteError(str(error.strerror), path=passes) from error
        return [tool, "-i", str(passes), *options, "--", *command]
    return [tool, *_TRACES, *options, "--", *command]

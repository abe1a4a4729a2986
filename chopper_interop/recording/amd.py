"""GPUs of AMD by the Python package of amd-smi.

The copy that comes with ROCm fits the installed library and is preferred to that of PyPI. Either raises what it
likes where there is no driver: ``KeyError``, ``OSError``, ``AttributeError``, or its own exceptions.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from chopper_interop.recording.gpus import SLOW_S, Call, GpuFacts, Values, known

_MICROWATT = 1e-6
_MAX_CAP_W = 10_000
"""A larger power limit is in microwatts, as newer libraries state it (chosen: ten times a GPU's)."""
_NESTED = "xcp_stats"
"""Statistics of partitions in gpu_metrics 1.6 on, eight by eight values each."""


class AmdGpus:
    """GPUs of AMD, read by ``amdsmi_get_gpu_metrics_info``."""

    vendor = "amd"

    def __init__(self) -> None:
        """Load the library.

        Raises
        ------
        Exception
            There is no library, no driver or no GPU; which exception depends on the library.
        """
        self._smi = _import()
        self._smi.amdsmi_init(self._smi.AmdSmiInitFlags.INIT_AMD_GPUS)
        self._handles = list(self._smi.amdsmi_get_processor_handles())
        version = self._ask("amdsmi_get_lib_version") or {}
        self.library = "amdsmi " + ".".join(
            str(version[part]) for part in ("major", "minor", "release") if part in version
        )
        self.calls = (
            Call("metrics", self._metrics, always=True),
            Call("memory", self._memory, every_s=SLOW_S),
        )

    def facts(self, first: int) -> list[GpuFacts]:
        """Return the facts of each GPU, numbered from `first`."""
        return [self._facts_of(k, first + k) for k in range(len(self._handles))]

    def _facts_of(self, k: int, gpu: int) -> GpuFacts:
        handle = self._handles[k]
        asic = self._ask("amdsmi_get_gpu_asic_info", handle) or {}
        clock = self._ask("amdsmi_get_clock_info", handle, self._enum("AmdSmiClkType", "GFX")) or {}
        cap = (self._ask("amdsmi_get_power_cap_info", handle) or {}).get("power_cap", -1)
        cap = float(cap) if known(cap) else -1.0
        maximum, cus = clock.get("max_clk", -1), asic.get("num_compute_units", -1)
        return GpuFacts(
            gpu=gpu,
            index=k,
            vendor=self.vendor,
            name=str(asic.get("market_name") or ""),
            pci=str(self._ask("amdsmi_get_gpu_device_bdf", handle) or "").lower(),
            uuid=str(self._ask("amdsmi_get_gpu_device_uuid", handle) or ""),
            arch=str(asic.get("target_graphics_version") or ""),
            cus=int(cus) if known(cus) else -1,
            max_mhz=int(maximum) if known(maximum) else -1,
            power_limit_w=cap * _MICROWATT if cap > _MAX_CAP_W else cap,
        )

    def _metrics(self, k: int) -> Values:
        """Read gpu_metrics: clocks of every XCD, power, temperatures, energy, residencies, links."""
        metrics = self._smi.amdsmi_get_gpu_metrics_info(self._handles[k])
        values: Values = {}
        for name, value in metrics.items():
            if name == _NESTED:
                for key, rows in value.items() if isinstance(value, dict) else ():
                    _add(values, f"{name}.{key}", rows)
            elif name != "common_header":
                _add(values, name, value)
        return values

    def _memory(self, k: int) -> Values:
        """Read the memory in use."""
        kind = self._enum("AmdSmiMemoryType", "VRAM")
        used = self._ask("amdsmi_get_gpu_memory_usage", self._handles[k], kind)
        return {"vram_used": used} if known(used) else {}

    def close(self) -> None:
        """Release the library."""
        self._ask("amdsmi_shut_down")

    def _ask(self, function: str, *arguments: Any) -> Any:
        """Call a function that this library or GPU may not have; None without an answer."""
        with contextlib.suppress(Exception):
            return getattr(self._smi, function)(*arguments)
        return None

    def _enum(self, name: str, member: str) -> Any:
        return getattr(getattr(self._smi, name, None), member, None)


def _add(values: Values, name: str, value: Any) -> None:
    """Add a number, or the numbers of a list under ``name_0``, ``name_1`` …"""
    if isinstance(value, list | tuple):
        for n, item in enumerate(value):
            _add(values, f"{name}_{n}", item)
    elif known(value):
        values[name] = value


def _import() -> Any:
    """Import amdsmi: the copy of ROCm if there is one, else the installed package."""
    roots = [os.environ.get("ROCM_PATH"), os.environ.get("ROCM_HOME"), "/opt/rocm"]
    copies = [Path(root, "share/amd_smi") for root in roots if root]
    before = list(sys.path)
    sys.path[:0] = [str(path) for path in copies if path.is_dir()]
    try:
        return importlib.import_module("amdsmi")
    finally:
        sys.path[:] = before

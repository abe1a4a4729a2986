"""GPUs of NVIDIA by NVML, through the package ``nvidia-ml-py``."""

from __future__ import annotations

import contextlib
import importlib
from typing import TYPE_CHECKING, Any

from chopper_interop.recording.gpus import GpuFacts, quiet_stdout

if TYPE_CHECKING:
    from collections.abc import Callable

    from chopper_interop.recording.gpus import Values

_POWER_AVERAGE, _POWER_INSTANT, _MEMORY_TEMPERATURE = 185, 186, 82
"""Numbers of fields (nvml.h: NVML_FI_DEV_POWER_AVERAGE, _POWER_INSTANT, _MEMORY_TEMP)."""
_FIELDS = {
    _POWER_INSTANT: ("nvml_power", 1e-3),
    _POWER_AVERAGE: ("nvml_power_average", 1e-3),
    _MEMORY_TEMPERATURE: ("nvml_temperature_memory", 1.0),
}
"""Number of a field → column, and factor to its unit (W, °C)."""


class NvidiaGpus:
    """GPUs of NVIDIA."""

    vendor = "nvidia"

    def __init__(self) -> None:
        """Load the library.

        Raises
        ------
        Exception
            There is no library, no driver or no GPU: ``ImportError`` or ``NVMLError``.
        """
        self._nvml: Any = importlib.import_module("pynvml")
        with quiet_stdout():
            self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(k) for k in range(count)]
        self.library = f"NVML {_text(self._nvml.nvmlSystemGetDriverVersion())}"
        self._fast = self._functions()

    def _functions(self) -> dict[str, Callable[[Any], float]]:
        """Columns of what changes fast, with the function that reads each."""
        n = self._nvml
        sm, memory = n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM
        return {
            "nvml_power_draw": lambda h: n.nvmlDeviceGetPowerUsage(h) * 1e-3,
            "nvml_energy": n.nvmlDeviceGetTotalEnergyConsumption,
            "nvml_sm_clock": lambda h: n.nvmlDeviceGetClockInfo(h, sm),
            "nvml_memory_clock": lambda h: n.nvmlDeviceGetClockInfo(h, memory),
            "nvml_temperature": lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
            "nvml_throttle_reasons": n.nvmlDeviceGetCurrentClocksThrottleReasons,
        }

    def facts(self, first: int) -> list[GpuFacts]:
        """Return the facts of each GPU, numbered from `first`."""
        n = self._nvml
        return [
            GpuFacts(
                gpu=first + k,
                index=k,
                vendor=self.vendor,
                name=_text(self._ask(n.nvmlDeviceGetName, h) or ""),
                pci=_pci(self._ask(n.nvmlDeviceGetPciInfo, h)),
                uuid=_text(self._ask(n.nvmlDeviceGetUUID, h) or ""),
                arch=_arch(self._ask(n.nvmlDeviceGetCudaComputeCapability, h)),
                max_mhz=self._ask(lambda h: n.nvmlDeviceGetMaxClockInfo(h, n.NVML_CLOCK_SM), h)
                or -1,
                power_limit_w=(self._ask(n.nvmlDeviceGetEnforcedPowerLimit, h) or -1000) * 1e-3,
            )
            for k, h in enumerate(self._handles)
        ]

    def read(self, k: int) -> Values:
        """Read power, energy, clocks, temperatures and what holds the clock back."""
        handle = self._handles[k]
        values: Values = {}
        failures: list[Exception] = []
        for name, function in self._fast.items():
            try:
                values[name] = function(handle)
            except self._nvml.NVMLError as error:  # noqa: PERF203 # six calls
                failures.append(error)
        if not values and failures:
            raise failures[0]  # the GPU is lost: no function answers
        for field in self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, list(_FIELDS)) or ():
            if field.nvmlReturn == self._nvml.NVML_SUCCESS:
                name, factor = _FIELDS[field.fieldId]
                values[name] = field.value.uiVal * factor
        if "nvml_power_draw" in values:  # before driver 530 there is no instant power
            values.setdefault("nvml_power", values["nvml_power_draw"])
        return values

    def read_slow(self, k: int) -> Values:
        """Read utilization, whose window is a sixth of a second to a second, and memory in use."""
        handle = self._handles[k]
        values: Values = {}
        if rates := self._ask(self._nvml.nvmlDeviceGetUtilizationRates, handle):
            values |= {"nvml_utilization_gpu": rates.gpu, "nvml_utilization_memory": rates.memory}
        if memory := self._ask(self._nvml.nvmlDeviceGetMemoryInfo, handle):
            values["vram_used"] = memory.used
        return values

    def close(self) -> None:
        """Release the library."""
        self._ask(self._nvml.nvmlShutdown)

    def _ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function that this driver or GPU may not have; None without an answer."""
        with contextlib.suppress(self._nvml.NVMLError, AttributeError):
            return function(*arguments)
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pci(info: Any) -> str:
    """PCI address with a domain of four digits, as in /sys: NVML writes eight."""
    if info is None:
        return ""
    domain, _, rest = _text(info.busId).lower().partition(":")
    return f"{domain[-4:]}:{rest}"


def _arch(capability: tuple[int, int] | None) -> str:
    return f"sm_{capability[0]}{capability[1]}" if capability else ""

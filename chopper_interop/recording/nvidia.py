"""GPUs of NVIDIA by NVML, through the package ``nvidia-ml-py``."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

from chopper_interop.recording.gpus import SLOW_S, Call, GpuFacts, Values

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
        self._nvml.nvmlInit()
        count = self._nvml.nvmlDeviceGetCount()
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(k) for k in range(count)]
        self.library = f"NVML {_text(self._nvml.nvmlSystemGetDriverVersion())}"
        self.calls = self._calls()

    def _calls(self) -> tuple[Call, ...]:
        n = self._nvml
        sm, memory = n.NVML_CLOCK_SM, n.NVML_CLOCK_MEM
        columns: dict[str, tuple[str, Callable[[Any], float]]] = {
            "clock": ("nvml_sm_clock", lambda h: n.nvmlDeviceGetClockInfo(h, sm)),
            "power draw": ("nvml_power_draw", self._power_draw),
            "throttling": ("nvml_throttle_reasons", n.nvmlDeviceGetCurrentClocksThrottleReasons),
            "temperature": (
                "nvml_temperature",
                lambda h: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU),
            ),
            "memory clock": ("nvml_memory_clock", lambda h: n.nvmlDeviceGetClockInfo(h, memory)),
            "energy": ("nvml_energy", n.nvmlDeviceGetTotalEnergyConsumption),
        }
        clock, *others = (
            Call(name, self._of_column(*column), always=name == "clock")
            for name, column in columns.items()
        )
        return (
            clock,
            Call("power", self._power),
            *others,
            Call("utilization", self._utilization, every_s=SLOW_S),
            Call("memory", self._memory, every_s=SLOW_S),
        )

    def _of_column(self, column: str, read: Callable[[Any], float]) -> Callable[[int], Values]:
        return lambda k: {column: read(self._handles[k])}

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

    def _power_draw(self, handle: Any) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(handle) * 1e-3)

    def _power(self, k: int) -> Values:
        """Read the power of this moment; before driver 530 there is its average of a second alone."""
        handle = self._handles[k]
        values: Values = {}
        for field in self._ask(self._nvml.nvmlDeviceGetFieldValues, handle, list(_FIELDS)) or ():
            if field.nvmlReturn == self._nvml.NVML_SUCCESS:
                name, factor = _FIELDS[field.fieldId]
                values[name] = field.value.uiVal * factor
        return (
            values if "nvml_power" in values else values | {"nvml_power": self._power_draw(handle)}
        )

    def _utilization(self, k: int) -> Values:
        """Read utilization, whose window is a sixth of a second to a second."""
        rates = self._nvml.nvmlDeviceGetUtilizationRates(self._handles[k])
        return {"nvml_utilization_gpu": rates.gpu, "nvml_utilization_memory": rates.memory}

    def _memory(self, k: int) -> Values:
        """Read the memory in use."""
        return {"vram_used": self._nvml.nvmlDeviceGetMemoryInfo(self._handles[k]).used}

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

"""One GPU as nvidia-ml-py shows it, with some functions that it does not support."""

import os
import time
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU, NVML_SUCCESS = 1, 2, 0, 0
_energy = iter(range(0, 10**9, 6500))


class NVMLError(Exception):
    pass


def nvmlInit() -> None: ...
def nvmlShutdown() -> None: ...
def nvmlDeviceGetCount() -> int:
    return int(os.environ.get("GPUS", "1"))


def nvmlDeviceGetHandleByIndex(k) -> int:
    return k


def nvmlSystemGetDriverVersion() -> str:
    return "550.54"


def nvmlDeviceGetName(h) -> str:
    return "NVIDIA H100"


def nvmlDeviceGetPciInfo(h):
    return SimpleNamespace(busId="00000000:1B:00.0")


def nvmlDeviceGetUUID(h) -> str:
    return "GPU-1"


def nvmlDeviceGetCudaComputeCapability(h) -> tuple[int, int]:
    return 9, 0


def nvmlDeviceGetMaxClockInfo(h, kind) -> int:
    return 1980


def nvmlDeviceGetEnforcedPowerLimit(h) -> int:
    raise NVMLError("Not Supported")


def nvmlDeviceGetPowerUsage(h) -> int:
    return 600_000


def nvmlDeviceGetTotalEnergyConsumption(h) -> int:
    """An H100's driver takes 3 ms of a processor for it, where other calls take microseconds."""
    end = time.monotonic() + float(os.environ.get("ENERGY_S", "0"))
    while time.monotonic() < end:
        pass
    return next(_energy)


def nvmlDeviceGetClockInfo(h, kind) -> int:
    return {NVML_CLOCK_SM: 1980, NVML_CLOCK_MEM: 2619}[kind]


def nvmlDeviceGetTemperature(h, kind) -> int:
    return 55


def nvmlDeviceGetCurrentClocksThrottleReasons(h) -> int:
    raise NVMLError("Not Supported")


def nvmlDeviceGetFieldValues(h, ids) -> list:
    values = {185: 640_000, 186: 650_000}
    return [
        SimpleNamespace(
            fieldId=i,
            nvmlReturn=NVML_SUCCESS if i in values else 3,
            value=SimpleNamespace(uiVal=values.get(i, 0)),
        )
        for i in ids
    ]


def nvmlDeviceGetUtilizationRates(h):
    return SimpleNamespace(gpu=97, memory=40)


def nvmlDeviceGetMemoryInfo(h):
    return SimpleNamespace(used=70 << 30)

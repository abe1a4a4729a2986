"""Two GPUs as amd-smi's Python package shows them: N/A where there is no sensor, chatter on stdout, errors."""

import os
import time
from enum import IntEnum

print("chatter at import")
_reads = {0: 0, 1: 0}


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    GFX = 1


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


class AmdSmiLibraryException(Exception):
    def get_error_code(self) -> int:
        return 31


def amdsmi_init(flag) -> None:
    os.write(1, b"chatter of the C library\n")


def amdsmi_shut_down() -> None:
    print("chatter at the end")


def amdsmi_get_lib_version() -> dict:
    return {"year": 25, "major": 26, "minor": 1, "release": 0}


def amdsmi_get_processor_handles() -> list[int]:
    return [0, 1][: int(os.environ.get("GPUS", "2"))]


def amdsmi_get_gpu_asic_info(handle) -> dict:
    return {
        "market_name": "Instinct MI300X",
        "num_compute_units": 304,
        "target_graphics_version": "gfx942",
    }


def amdsmi_get_gpu_device_bdf(handle) -> str:
    return ("0000:05:00.0", "0000:26:00.0")[handle]


def amdsmi_get_gpu_device_uuid(handle) -> str:
    return f"uuid-{handle}"


def amdsmi_get_clock_info(handle, kind) -> dict:
    return {"clk": 2000, "max_clk": 2100}


def amdsmi_get_power_cap_info(handle) -> dict:
    return {"power_cap": 750_000_000}


def _is_lost(handle) -> bool:
    return handle == 1 and _reads[1] > int(os.environ.get("LOST_AFTER", 10**9))


def amdsmi_get_gpu_memory_usage(handle, kind) -> int:
    if _is_lost(handle):
        raise AmdSmiLibraryException(31)
    time.sleep(float(os.environ.get("MEMORY_S", "0")))
    return 5 << 30


def amdsmi_get_gpu_metrics_info(handle) -> dict:
    _reads[handle] += 1
    if _is_lost(handle):
        raise AmdSmiLibraryException(31)
    return {
        "common_header": {"structure_size": 1, "format_revision": 1, "content_revision": 6},
        "temperature_edge": "N/A",
        "temperature_hotspot": 60 + handle,
        "average_gfx_activity": 99,
        "current_socket_power": 700,
        "energy_accumulator": 1000 * _reads[handle],
        "system_clock_counter": time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        "current_gfxclks": [2000, 2001, 2002, 2003, "N/A", "N/A", "N/A", "N/A"],
        "accumulation_counter": 10 * _reads[handle],
        "ppt_residency_acc": _reads[handle],
        "xcp_stats": {"gfx_busy_inst": [["N/A"] * 8 for _ in range(8)]},
    }

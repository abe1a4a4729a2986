"""Formats of NVIDIA's telemetry: nvidia-smi (``--query-gpu``, ``dmon``, ``-q``) and dcgmi."""

from __future__ import annotations

from chopper_interop.converters.nvidia_smi import sniff
from chopper_interop.registry import Converter

NVIDIA_SMI = Converter(
    name="nvidia-smi",
    description="telemetry of NVIDIA GPUs: nvidia-smi --query-gpu, dmon, -q, its table in a loop",
    versions="CSV with and without header and units, once or -l/-lms; dmon, also -o DT and CSV; "
    "-q and -q -x of drivers 290 to 580; CSV of scripts with ISO 8601 or epoch stamps",
    suffixes=(".csv", ".txt", ".log", ".xml"),
    sniff=sniff.is_samples,
    json=False,
    read="chopper_interop.converters.nvidia_smi.samples:read",
    carries="power, clocks, temperatures, utilization, memory, PCIe, ECC, throttle reasons (masks "
    "bit by bit); of CSV every other number under its own name; index, PCI address and UUID",
    memory_ratio=5.0,
)

NVIDIA_SMI_PROCESSES = Converter(
    name="nvidia-smi-processes",
    description="nvidia-smi's lists of processes (pmon, --query-compute-apps)",
    sniff=sniff.is_processes,
    json=False,
    not_read_because="it is about processes and not about GPUs; record with --query-gpu=timestamp,"
    "index,power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)

NVIDIA_SMI_STATIC = Converter(
    name="nvidia-smi-static",
    description="what nvidia-smi prints once (its table, -L, topo, nvlink, c2c, supported clocks)",
    sniff=sniff.is_static,
    json=False,
    not_read_because="it holds no samples in time; record with --query-gpu=timestamp,index,"
    "power.draw,clocks.sm,utilization.gpu --format=csv -lms 100",
)

DCGMI = Converter(
    name="dcgmi",
    description="telemetry of NVIDIA GPUs: dcgmi dmon",
    versions="tables of DCGM 1.7 to 4.x, also with a stamp in front of every line",
    suffixes=(".txt", ".log"),
    sniff=sniff.is_dcgmi_table,
    json=False,
    read="chopper_interop.converters.nvidia_smi.dcgmi_samples:read",
    carries="device fields (power, clocks, temperatures, utilization, memory, ECC, energy) and "
    "throttle reasons bit by bit, and "
    "profiling fields (SM, tensor, DRAM, FP activity, PCIe, NVLink); others under their short name",
    memory_ratio=5.0,
)

DCGMI_OTHERS = Converter(
    name="dcgmi-others",
    description="what dcgmi prints once (discovery, groups, stats, diag, health, nvlink)",
    sniff=sniff.is_other_of_dcgmi,
    json=False,
    not_read_because="it holds no samples in time; record with dcgmi dmon -e 155,100,1002,1005 "
    "-d 100, a time in front of every line (… | ts '%s')",
)

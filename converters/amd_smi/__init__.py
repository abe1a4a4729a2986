"""Formats of AMD's telemetry: amd-smi 5.7.1 to 7.x, rocm-smi, and the recorder of ``gpu_metrics``."""

from __future__ import annotations

from chopper_interop.converters.amd_smi import sniff
from chopper_interop.registry import Converter

AMD_SMI = Converter(
    name="amd-smi",
    description="telemetry of AMD GPUs: amd-smi metric and monitor, CSV or JSON",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".csv", ".json"),
    sniff=sniff.is_samples,
    json_words=sniff.JSON_WORDS,
    read="chopper_interop.converters.amd_smi.samples:read",
    carries="power, clocks of every XCD, temperatures, activity of engines, memory, energy, PCIe, "
    "ECC, throttling as shares of time, memory of processes (monitor -q); every other number under "
    "its own name",
    memory_ratio=5.0,
)

AMD_SMI_TEXT = Converter(
    name="amd-smi-text",
    description="telemetry of AMD GPUs: amd-smi metric and monitor in human-readable form",
    versions="5.7.1 to 7.x, with and without -w",
    suffixes=(".txt",),
    sniff=sniff.is_text,
    json=False,
    read="chopper_interop.converters.amd_smi.samples:read_text",
    carries="the same as amd-smi",
    memory_ratio=5.0,
)

AMD_SMI_STATIC = Converter(
    name="amd-smi-static",
    description="what amd-smi prints once: static, list, topology, xgmi, process, partition",
    versions="5.7.1 to 7.x; CSV, JSON and human-readable form",
    sniff=sniff.is_static,
    json_words=sniff.JSON_WORDS,
    read="chopper_interop.converters.amd_smi.static:read",
    carries="GPUs with all their names; power cap, clock levels, compute units, memory, versions, "
    "partitions as facts; traffic of xGMI and memory of processes where the time is known",
)

AMD_SMI_MESSAGES = Converter(
    name="amd-smi-messages",
    description="amd-smi output without values",
    sniff=sniff.is_without_values,
    json_words=sniff.JSON_WORDS,
    not_read_because="it holds an error, or amd-smi's first line alone",
)

ROCM_SMI = Converter(
    name="rocm-smi",
    description="telemetry of AMD GPUs: rocm-smi, CSV, JSON or human-readable form",
    versions="2.x to 7.x, once or out of a loop",
    suffixes=(".csv", ".json", ".txt"),
    sniff=sniff.is_rocm_smi,
    json_words=sniff.ROCM_SMI_JSON_WORDS,
    read="chopper_interop.converters.amd_smi.rocm_smi_samples:read",
    carries="power, clocks, temperatures, activity, memory, energy, fans; names, addresses and "
    "limits of the cards",
    memory_ratio=5.0,
)

RECORDER = Converter(
    name="recorder",
    description="telemetry of AMD and NVIDIA GPUs by chopper-record, with three clocks a row",
    versions="gpu_metrics 1.3 to 1.8, NVML",
    suffixes=(".csv",),
    sniff=sniff.is_recorder,
    json=False,
    read="chopper_interop.converters.amd_smi.recorder_samples:read",
    carries="power, clocks, temperatures, activity, energy, throttling as shares of time, at the "
    "driver's own times; how the node's clocks relate",
)

RECORDING = Converter(
    name="recording",
    description="description of a recording of chopper-record",
    versions="1",
    suffixes=(".json",),
    sniff=sniff.RECORDING.match,
    read="chopper_interop.converters.amd_smi.recorder_facts:read",
    carries="the GPUs with all their names, how the node's clocks relate, what was not recorded",
)

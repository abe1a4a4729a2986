"""Formats of ROCm's profilers: rocprofv3, rocprofv2, rocprof (v1) and rocprof-compute."""

from __future__ import annotations

from pathlib import Path

from chopper_interop.converters.rocm import file_names as files
from chopper_interop.converters.rocm import sniff
from chopper_interop.io import inputs
from chopper_interop.registry import Converter


def group_workload(paths: list[Path]) -> list[list[Path]]:
    """Take each table of a workload for a source, together with the folder's ``sysinfo.csv``."""
    systems = [path for path in paths if sniff.is_compute_system(inputs.head(path))]
    by_folder = {path.parent: path for path in systems}
    tables = [path for path in paths if path not in systems]
    groups = [[p, *([by_folder[p.parent]] if p.parent in by_folder else [])] for p in tables]
    served = {path.parent for path in tables}
    return groups + [[path] for path in systems if path.parent not in served]


ROCPROFV3_CSV = Converter(
    name="rocprofv3-csv",
    description="rocprofv3 CSV files, also those of rocpd convert",
    versions="ROCm 6.2 to 7.13",
    sniff=sniff.is_v3_csv,
    json=False,
    group=files.group_by_process,
    read="chopper_interop.converters.rocprof.v3.csv_reader:read",
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies, "
    "allocations, scratch, waits for HIP events, hardware counters of dispatches, launches, agents",
)

ROCPROFV3_JSON = Converter(
    name="rocprofv3-json",
    description="rocprofv3 JSON",
    versions="ROCm 6.2 to 7.13",
    sniff=sniff.V3_JSON.match,
    json=True,
    words_of_work=(b'"dispatch_info"',),
    read="chopper_interop.converters.rocprof.v3.json_reader:read",
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies and "
    "allocations with their sizes, scratch, hardware counters of dispatches, launches, agents",
)

ROCPROFV3_STATS = Converter(
    name="rocprofv3-stats",
    description="rocprofv3 statistics",
    sniff=sniff.is_v3_statistics,
    json=False,
    not_read_because="statistics without a timeline are not read",
)

ROCPROFV3_PC_SAMPLING = Converter(
    name="rocprofv3-pc-sampling",
    description="rocprofv3 samples of program counters or streamed counters",
    sniff=sniff.is_v3_samples,
    json=False,
    not_read_because="samples without a timeline are not read",
)

ROCPROFV2 = Converter(
    name="rocprofv2",
    description="rocprofv2 CSV files",
    versions="ROCm 5.3 to 6.x",
    sniff=sniff.is_v2,
    json=False,
    group=files.group_by_v2_name,
    read="chopper_interop.converters.rocprof.v2.reader:read",
    carries="kernels, HIP and HSA calls, copies, roctx messages as instants, hardware counters of "
    "dispatches (XCCs summed), launches",
)

ROCPROFV2_PC_SAMPLING = Converter(
    name="rocprofv2-pc-sampling",
    description="rocprofv2 samples of program counters",
    sniff=sniff.is_v2_samples,
    json=False,
    not_read_because="samples without a timeline are not read",
)

ROCPROF_V1 = Converter(
    name="rocprof-v1",
    description="rocprof (v1) tables, JSON and databases",
    versions="ROCm 2 to 7",
    sniff=sniff.is_v1,
    json_words=sniff.V1_JSON_WORDS,
    confirms=sniff.confirms_v1,
    group=files.group_by_name,
    read="chopper_interop.converters.rocprof.v1.reader:read",
    carries="kernels, HIP and HSA calls, roctx ranges, copies, hardware counters of dispatches, "
    "launches",
)

ROCPROF_V1_STATS = Converter(
    name="rocprof-v1-stats",
    description="rocprof (v1) statistics",
    sniff=sniff.is_v1_statistics,
    json=False,
    not_read_because="statistics without a timeline are not read",
)

ROCPROF_V1_TEXT = Converter(
    name="rocprof-v1-text",
    description="raw text traces of rocprof (v1) and roctracer",
    versions="ROCm 2 to 6",
    sniff=sniff.is_v1_text,
    json=False,
    group=files.group_by_folder,
    read="chopper_interop.converters.rocprof.v1.text_reader:read",
    carries="HIP and HSA calls with arguments, kernels, copies, roctx ranges, launches",
)

ROCPROF_V1_OTHERS = Converter(
    name="rocprof-v1-others",
    description="further raw text files of rocprof (v1)",
    sniff=sniff.V1_TEXT_OTHERS.match,
    json=False,
    not_read_because="handles, begins and raw dispatches are not read: its tables hold them",
)

ROCPROF_COMPUTE = Converter(
    name="rocprof-compute",
    description="rocprof-compute and Omniperf workloads",
    versions="Omniperf 1.0 to rocprof-compute 3.x",
    sniff=sniff.is_compute,
    json=False,
    group=group_workload,
    read="chopper_interop.converters.rocprof.compute.reader:read",
    carries="dispatches with sizes and registers, hardware counters (channels summed), facts of "
    "the GPUs (sysinfo.csv)",
)

ROCPROF_COMPUTE_OTHERS = Converter(
    name="rocprof-compute-others",
    description="rocprof-compute statistics, lists, rooflines and databases of metrics",
    sniff=sniff.is_compute_derived,
    json=False,
    confirms=sniff.confirms_compute_derived,
    not_read_because="what is derived from a workload's pmc_perf.csv is not read",
)

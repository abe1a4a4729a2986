"""Formats of ROCm's profilers: rocprofv3, rocprofv2, rocprof (v1) and rocprof-compute.

The modules that read a format are imported when a file of it is read, so that the table of formats
is there at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop.converters.rocm import file_names as files
from chopper_interop.converters.rocm import sniff
from chopper_interop.io import inputs
from chopper_interop.registry import Converter

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.trace import Trace


def read_v3_csv(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the CSV files of one process and run, or of several processes that share files.

    Parameters
    ----------
    paths
        The files, whose headers say what each holds.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.v3 import csv_reader

    return csv_reader.read_csv(paths, ROCPROFV3_CSV.name, rank)


def read_v3_json(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one JSON file.

    Parameters
    ----------
    paths
        The file, alone in a list.
    rank
        Rank to give it, over what it says itself. Not for files of several processes.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        It cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.v3 import json_reader

    return json_reader.read_json(paths[0], ROCPROFV3_JSON.name, rank)


def read_v2(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one process.

    Parameters
    ----------
    paths
        The files, whose headers say what each holds.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.v2 import reader

    return reader.read_v2(paths, ROCPROFV2.name, rank)


def read_v1(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the files of one name.

    Parameters
    ----------
    paths
        NAME.db, NAME.json and NAME.csv, or some of them.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot; of counters without times, in the order of dispatches.

    Raises
    ------
    ReadError
        No file can be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.v1 import reader as v1_reader

    return v1_reader.read_v1(paths, ROCPROF_V1.name, rank)


def read_v1_text(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read the text files of one run.

    Parameters
    ----------
    paths
        The files, whose first lines say what each holds.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot.

    Raises
    ------
    ReadError
        A file cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.v1 import text_reader

    return text_reader.read_text(paths, ROCPROF_V1_TEXT.name, rank)


def read_compute(paths: list[Path], *, rank: int | None = None) -> Trace:
    """Read one table of a workload.

    Parameters
    ----------
    paths
        The table, and ``sysinfo.csv`` if there is one.
    rank
        Rank to give the process, over what the names of its files say.

    Returns
    -------
    Trace
        On the clock of the node's boot; without times, in the order of the dispatches.

    Raises
    ------
    ReadError
        The table cannot be read at all. What is lost otherwise is counted in ``meta.issues``.
    """
    from chopper_interop.converters.rocprof.compute import reader as compute_reader

    return compute_reader.read_workload(paths, ROCPROF_COMPUTE.name, rank)


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
    group=files.group_by_process,
    read=read_v3_csv,
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies, "
    "allocations, scratch, waits for HIP events, hardware counters of dispatches, launches, agents",
)

ROCPROFV3_JSON = Converter(
    name="rocprofv3-json",
    description="rocprofv3 JSON",
    versions="ROCm 6.2 to 7.13",
    sniff=sniff.is_v3_json,
    read=read_v3_json,
    carries="kernels, HIP, HSA, RCCL, rocDecode and rocJPEG calls, roctx markers, copies and "
    "allocations with their sizes, scratch, hardware counters of dispatches, launches, agents",
)

ROCPROFV3_STATS = Converter(
    name="rocprofv3-stats",
    description="rocprofv3 statistics",
    sniff=sniff.is_v3_statistics,
    not_read_because="statistics without a timeline are not read",
)

ROCPROFV3_PC_SAMPLING = Converter(
    name="rocprofv3-pc-sampling",
    description="rocprofv3 samples of program counters or streamed counters",
    sniff=sniff.is_v3_samples,
    not_read_because="samples without a timeline are not read",
)

ROCPROFV2 = Converter(
    name="rocprofv2",
    description="rocprofv2 CSV files",
    versions="ROCm 5.3 to 6.x",
    sniff=sniff.is_v2,
    group=files.group_by_v2_name,
    read=read_v2,
    carries="kernels, HIP and HSA calls, copies, roctx messages as instants, hardware counters of "
    "dispatches (XCCs summed), launches",
)

ROCPROFV2_PC_SAMPLING = Converter(
    name="rocprofv2-pc-sampling",
    description="rocprofv2 samples of program counters",
    sniff=sniff.is_v2_samples,
    not_read_because="samples without a timeline are not read",
)

ROCPROF_V1 = Converter(
    name="rocprof-v1",
    description="rocprof (v1) tables, JSON and databases",
    versions="ROCm 2 to 7",
    sniff=sniff.is_v1,
    confirms=sniff.confirms_v1,
    group=files.group_by_name,
    read=read_v1,
    carries="kernels, HIP and HSA calls, roctx ranges, copies, hardware counters of dispatches, "
    "launches",
)

ROCPROF_V1_STATS = Converter(
    name="rocprof-v1-stats",
    description="rocprof (v1) statistics",
    sniff=sniff.is_v1_statistics,
    not_read_because="statistics without a timeline are not read",
)

ROCPROF_V1_TEXT = Converter(
    name="rocprof-v1-text",
    description="raw text traces of rocprof (v1) and roctracer",
    versions="ROCm 2 to 6",
    sniff=sniff.is_v1_text,
    group=files.group_by_folder,
    read=read_v1_text,
    carries="HIP and HSA calls with arguments, kernels, copies, roctx ranges, launches",
)

ROCPROF_V1_OTHERS = Converter(
    name="rocprof-v1-others",
    description="further raw text files of rocprof (v1)",
    sniff=sniff.is_v1_text_other,
    not_read_because="handles, begins and raw dispatches are not read: its tables hold them",
)

ROCPROF_COMPUTE = Converter(
    name="rocprof-compute",
    description="rocprof-compute and Omniperf workloads",
    versions="Omniperf 1.0 to rocprof-compute 3.x",
    sniff=sniff.is_compute,
    group=group_workload,
    read=read_compute,
    carries="dispatches with sizes and registers, hardware counters (channels summed), facts of "
    "the GPUs (sysinfo.csv)",
)

ROCPROF_COMPUTE_OTHERS = Converter(
    name="rocprof-compute-others",
    description="rocprof-compute statistics, lists and rooflines",
    sniff=sniff.is_compute_derived,
    not_read_because="what is derived from a workload and has no times is not read",
)

"""Every converter of the package that reads or writes keeps the contract of `check_converter`."""

from pathlib import Path

import pytest
from seeds import seeds, written
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.testing import check_converter

SAMPLES = {
    "amd-smi": "*watch*.csv",
    "chakra": "et/*.0.et",
    "graphml": "kineto/rank0.*",
    "kineto": "kineto/rank0.*",
    "parquet": "job.parquet",
    "perfetto": "job.pftrace",
    "recorder": "*recorder*.csv",
    "rocprofv3-csv": "rocprof/pmc_1",
}
"""Of the sample job and what is made of it; of other formats the first seed is taken."""
REAL = (
    ("amd-smi", "amd_smi_by_version/v5.7.1/metric_watch_stdout.json"),
    ("amd-smi", "amd_smi_by_version/v6.3.3/metric_watch_file.csv"),
    ("amd-smi", "amd_smi_by_version/v7.1.0/metric_throttle.csv"),
    ("amd-smi", "amd_smi_7.1_real_tool_simulated_gpus/watch-monitor-10s.stdout.csv"),
    ("amd-smi-static", "amd_smi_real_8xmi300x/result2.txt"),
    ("amd-smi-text", "amd_smi_by_version/v7.1.0/metric_watch_stdout.txt"),
    ("amd-smi-text", "amd_smi_by_version/v7.1.0/monitor_watch.txt"),
    ("rocm-smi", "rocm_smi_real/**/MI300X_x4_smi.out.txt"),
    ("rocm-smi", "rocm_smi_real/**/rocm-smi-4xMI300A.txt"),
    ("recorder", "amd_smi_7.1_real_tool_simulated_gpus/sampler-50Hz-8gpu-10s.csv"),
    ("amd-smi", "amd_smi_real_8xmi355x/gpu_metrics.excerpt.csv"),
    ("rocm-smi", "rocm_smi_real/**/gpu_temp_*bs8*0.9*.csv"),
)
"""Files of telemetry that were recorded, as patterns; the last three are long."""
WORKING = [n for n, c in registry.converters().items() if c.read or c.write]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample job of one rank and one layer, and what is made of it."""
    from chopper_interop.demo import make_demo

    job = tmp_path_factory.mktemp("samples") / "job"
    make_demo(job, ranks=1, layers=1, steps=1, recorder_hz=20)
    trace = ci.read(job / "kineto")
    ci.write(trace, job / "et" / "job.et")
    ci.write(trace, job / "job.parquet")
    ci.write(trace, job / "job.pftrace")
    return job


@pytest.mark.parametrize("name", WORKING)
def test_contract(name: str, samples: Path, tmp_path: Path) -> None:
    if name in SAMPLES:
        (sample,) = samples.rglob(SAMPLES[name])
    else:
        seed = next(seed for seed in seeds() if seed.format == name)
        sample = written({seed.name: seed.data, **seed.others}, tmp_path, Path)
    check_converter(registry.converters()[name], sample)


@pytest.mark.parametrize(("name", "pattern"), slow_from(REAL, -3))
def test_contract_on_recorded_files(name: str, pattern: str, shared: Path) -> None:
    (sample,) = (shared / "telemetry").glob(pattern)
    check_converter(registry.converters()[name], sample)

"""Every converter of the package that reads or writes keeps the contract of `check_converter`."""

from pathlib import Path

import pytest
from seeds import other_telemetry, seeds

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.testing import check_converter

SAMPLES = {
    "amd-smi": "*watch*.csv",
    "charllm": "seeds/charllm/gpu_power_3.csv",
    "chakra": "et/*.0.et",
    "dcgmi": "seeds/dcgmi/dcgmi.txt",
    "kineto": "kineto/rank0.*",
    "nvidia-smi": "seeds/nvidia-smi/smi.csv",
    "parquet": "job.parquet",
    "perfetto": "kineto/rank0.*",
    "recorder": "*recorder*.csv",
    "rocprofv3-csv": "rocprof/pmc_1",
    "zeus": "seeds/zeus/windows.csv",
}
ELSEWHERE = {"rocprofv3-json": "the sample job has none: see test_rocprof_json.py"}
SEEDED = {
    "amd-smi-static": "xgmi.json",
    "amd-smi-text": "metric.txt",
    "rocm-smi": "loop.csv",
}
"""Formats whose sample is a seed, by its name."""
WORKING = [n for n, c in registry.converters().items() if c.read or c.write]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sample job of one rank and one layer, and what is made of it."""
    from chopper_interop.demo import make_demo

    job = tmp_path_factory.mktemp("samples") / "job"
    make_demo(job, ranks=1, layers=1, steps=1, recorder_hz=20)
    trace = ci.read(job / "kineto")
    ci.write(trace, job / "et" / "job.et", mode="gpu")
    ci.write(trace, job / "job.parquet")
    for seed in other_telemetry.SEEDS:
        path = job / "seeds" / seed.format / seed.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(seed.data)
    return job


@pytest.mark.parametrize("name", WORKING)
def test_contract(name: str, samples: Path) -> None:
    if name in SEEDED:
        (seed,) = (s for s in seeds() if (s.format, s.name) == (name, SEEDED[name]))
        sample = samples / seed.name
        sample.write_bytes(seed.data)
        check_converter(registry.converters()[name], sample)
        return
    if name in ELSEWHERE:
        pytest.skip(ELSEWHERE[name])
    (sample,) = samples.rglob(SAMPLES[name])
    check_converter(registry.converters()[name], sample)

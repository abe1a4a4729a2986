"""The same input, in whatever order and by however many threads, gives the same bytes."""

import os
import random
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import kineto_files
import pyarrow as pa
import pytest
from outputs import OUTPUTS
from shared_data import real

import chopper_interop as ci
from chopper_interop import pipeline
from chopper_interop.demo import make_demo
from chopper_interop.errors import ChopperError
from chopper_interop.reading import workers

JOBS = (
    "pytorch/ddp_resnet_4rank_amd",
    "pytorch/torchrec_4rank_v100",
    "rocprof/rocprof_compute_pmc/omp_MI300A",
)


def digests(inputs: list[Path], folder: Path) -> dict[str, str]:
    """Hash of each file of each output."""
    outputs = [f"{folder}/{name}" for name in (*OUTPUTS, "z.pftrace.gz", "z.json.gz")]
    ci.convert(inputs, outputs, name="job")
    return hashes(folder)


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture
def threads(monkeypatch):
    """Set how many threads read and compute."""
    before = pa.cpu_count()

    def choose(count: int) -> None:
        monkeypatch.setattr(workers, "cpu_count", lambda: count)
        pa.set_cpu_count(count)

    yield choose
    pa.set_cpu_count(before)


def assert_same_bytes(files: list[Path], tmp_path: Path, threads, tries: int) -> None:
    digests_by_try = []
    for k in range(tries):
        threads((1, 8, 3)[k % 3])
        folder = tmp_path / f"out{k}"
        folder.mkdir()
        digests_by_try.append(digests(random.Random(k).sample(files, len(files)), folder))  # noqa: S311 # tries
    assert digests_by_try[0]
    for other in digests_by_try[1:]:
        assert [name for name in other if other[name] != digests_by_try[0].get(name)] == []


def small_job(folder: Path) -> list[Path]:
    """Two ranks, each profiled with a log of power next to it."""
    for rank in range(2):
        at = 10 * rank
        events = [
            kineto_files.span("user_annotation", "ProfilerStep#1", at, 90),
            kineto_files.span("cpu_op", "aten::mm", at + 1, 8),
            kineto_files.call("hipLaunchKernel", at + 2, 5, 1),
            kineto_files.kernel("gemm", at + 20, 9, 1),
        ]
        info = {"distributedInfo": {"rank": rank, "world_size": 2}, "host_name": f"node{rank}"}
        (folder / f"b{rank}").mkdir(parents=True)
        kineto_files.write(folder / f"b{rank}" / "trace.json", events, **info)
        (folder / f"b{rank}" / "notes.txt").write_text("nothing")
    (folder / "a").mkdir()
    (folder / "a" / "linked.json").symlink_to(folder / "b1" / "trace.json")
    return [folder, folder / "a", folder / "b0", folder / "b1" / "trace.json"]


def test_a_small_job(tmp_path: Path, threads) -> None:
    """Folders within folders, a link, a file by name: whatever comes first, it is the same job."""
    assert_same_bytes(small_job(tmp_path / "job"), tmp_path, threads, 3)


def ci_reads(path: Path) -> bool:
    """True if a file can be given by name."""
    try:
        pipeline.sources.find([path])
    except ChopperError:
        return False
    return True


@pytest.mark.slow
def test_processes_that_hash_differently(tmp_path: Path) -> None:
    job = make_demo(tmp_path / "job", ranks=2, layers=1, steps=1, recorder_hz=100)
    hashes_by_seed = []
    for seed in ("1", "2"):
        folder = tmp_path / f"out{seed}"
        folder.mkdir()
        outputs = [a for name in OUTPUTS for a in ("-o", f"{folder}/{name}")]
        command = [str(Path(sys.executable).parent / "chopper-convert"), "-q", str(job), *outputs]
        alone = {"OMP_NUM_THREADS": seed, "ARROW_IO_THREADS": seed, "PYTHONHASHSEED": seed}
        subprocess.run(command, check=True, env=os.environ | alone)  # our own
        hashes_by_seed.append(hashes(folder))
    assert hashes_by_seed[0] == hashes_by_seed[1]


@pytest.mark.slow
def test_the_sample_job(demo: Path, tmp_path: Path, threads) -> None:
    files = sorted(path for path in demo.rglob("*") if path.is_file() and ci_reads(path))
    assert_same_bytes(files, tmp_path, threads, 4)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS)
def test_real_jobs(job: str, tmp_path: Path, threads) -> None:
    files = sorted(path for path in real(job).rglob("*") if path.is_file() and ci_reads(path))
    assert_same_bytes(files, tmp_path, threads, 3)

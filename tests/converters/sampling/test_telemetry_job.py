"""NVIDIA's and CharLLM-PPT's telemetry, and descriptions of GPUs, next to profiles: one job."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from kineto_files import call, kernel, span, write
from seeds import pytorch_et as seed
from seeds.other_telemetry import charllm_folder

import chopper_interop as ci
from chopper_interop.schemas.kinds import Kind
from chopper_interop.schemas.meta import REALTIME

BASE_NS = 1_714_566_896_400_000_000
SMI = "timestamp, index, power.draw [W], {clock} [MHz], temperature.gpu"


def ranks(folder: Path, count: int = 2, base_ns: int = BASE_NS) -> None:
    """A trace for each rank: a kernel of 2.5 s that begins 0.5 ms behind the base."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank in range(count):
        events = [
            span("user_annotation", "ProfilerStep#1", 0, 3_000_000),
            span("cpu_op", "aten::mm", 50, 200, args={"Record function id": 10}),
            call("cudaLaunchKernel", 100, 10, 7),
            kernel("gemm", 500, 2_500_000, 7, device=rank),
        ]
        world = {"rank": rank, "world_size": count}
        path = folder / f"rank-{rank}.json"
        write(path, events, baseTimeNanoseconds=base_ns, distributedInfo=world)


def nvidia_smi(path: Path, minutes: int, clock: str = "clocks.current.sm", gpus: int = 2) -> None:
    """A log every 100 ms, by a wall clock so many minutes before UTC; it starts 0.4 s early."""
    lines = [SMI.format(clock=clock)]
    for tick in range(40):
        second = (BASE_NS + (tick - 4) * 100_000_000) / 1e9
        wall = datetime.fromtimestamp(second, timezone(timedelta(minutes=minutes)))
        stamp = f"{wall:%Y/%m/%d %H:%M:%S}.{wall.microsecond // 1000:03}"
        for gpu in range(gpus):
            values = f"{300 + 100 * gpu + tick}.00 W, {1500 + 100 * gpu} MHz, {50 + gpu}"
            lines.append(f"{stamp}, {gpu}, {values}")
    path.write_text("\n".join(lines) + "\n")


def of_kernels(trace: ci.Trace, column: str) -> dict[int, float]:
    rows = trace.nodes.to_pylist()
    return {row["rank"]: row[column] for row in rows if row["kind"] == Kind.KERNEL}


def codes(trace: ci.Trace) -> dict[str, str]:
    return {issue.code: issue.example for issue in trace.meta.issues}


def first_sample(trace: ci.Trace) -> int:
    return int(trace.array("ts", "samples").min()) + trace.meta.origin_ns


@pytest.mark.parametrize(
    ("minutes", "method"), [(120, "UTC+02:00"), (-420, "UTC-07:00"), (330, "UTC+05:30")]
)
def test_the_zone_of_a_wall_clock_is_determined_by_the_trace(
    tmp_path: Path, minutes: int, method: str
) -> None:
    ranks(tmp_path)
    nvidia_smi(tmp_path / "smi.csv", minutes)
    trace = ci.read(tmp_path)
    assert codes(trace)["zone-assumed"] == method
    exact = ci.read(tmp_path, tz=method.removeprefix("UTC"))
    assert "zone-assumed" not in codes(exact)
    assert "times-of-wall-clock" not in codes(exact)
    for one in (trace, exact):
        assert one.meta.clock == REALTIME
        assert first_sample(one) == BASE_NS - 400_000_000
        series = one.series.to_pylist()
        assert {(s["rank"], s["device"]) for s in series} == {(0, 0), (1, 1)}
        power = of_kernels(one, "power_w")
        # watts rise by one every 100 ms, from 4 at the base to 29 at the end of 2.5005 s
        assert power == pytest.approx({0: 316.5, 1: 416.5}, abs=0.1)
        assert of_kernels(one, "gfxclk_mhz") == {0: 1500, 1: 1600}
        assert of_kernels(one, "temperature_c") == {0: 50, 1: 51}


def test_a_wrong_zone_is_no_overlap(tmp_path: Path) -> None:
    ranks(tmp_path)
    nvidia_smi(tmp_path / "smi.csv", 120)
    trace = ci.read(tmp_path, tz="+00:00")
    assert first_sample(trace) == BASE_NS - 400_000_000 + 7200 * 1_000_000_000
    assert "power_w" not in trace.nodes.column_names


def test_a_log_of_another_day_has_no_zone(tmp_path: Path) -> None:
    ranks(tmp_path, base_ns=BASE_NS + 5 * 86_400 * 1_000_000_000)
    nvidia_smi(tmp_path / "smi.csv", 120)
    trace = ci.read(tmp_path)
    assert codes(trace)["zone-unknown"].endswith("of another run")
    assert trace.samples.num_rows == 0


@pytest.mark.parametrize("clock", ["clocks.sm", "clocks.gr", "clocks.current.graphics"])
def test_the_clock_of_kernels_by_whatever_name(tmp_path: Path, clock: str) -> None:
    ranks(tmp_path)
    nvidia_smi(tmp_path / "smi.csv", 0, clock)
    assert of_kernels(ci.read(tmp_path), "gfxclk_mhz") == {0: 1500, 1: 1600}


def execution(rank: int) -> bytes:
    """The host's execution trace of a rank: one operator."""
    operator = seed.node(10, "aten::mm", 2, (seed.tensor(1, 2),), (seed.tensor(3, 4),), tid=1)
    return seed.document([seed.node(2, seed.THREAD, 1, scope=7), operator], pid=300 + rank)


def test_charllm_next_to_profiles_and_execution_traces(tmp_path: Path, run) -> None:
    ranks(tmp_path / "run_kineto", base_ns=1_714_566_896_000_000_000)
    (tmp_path / "run_chakra").mkdir()
    for rank in range(2):
        (tmp_path / "run_chakra" / f"rank-{rank}.json").write_bytes(execution(rank))
    (tmp_path / "run").mkdir()
    for name, data in charllm_folder(2, 60).items():
        (tmp_path / "run" / name).write_bytes(data)
    trace = ci.read(tmp_path)
    assert [r.rank for r in trace.meta.ranks] == [0, 1]
    assert {(s["rank"], s["device"]) for s in trace.series.to_pylist()} == {(0, 0), (1, 1), (0, -1)}
    assert codes(trace)["host-et-joined-by-id"]
    power = of_kernels(trace, "power_w")
    assert power[1] == pytest.approx(power[0] + 1)
    assert 320 < power[0] < 330
    status, _, stderr = run("convert", tmp_path, "-o", tmp_path / "out" / "job.pftrace")
    assert status == 0
    assert "of 2 ranks" in stderr


STATIC = [
    {
        "gpu": gpu,
        "asic": {"market_name": "AMD Instinct MI300X", "num_compute_units": 304},
        "bus": {"bdf": f"0000:{0x10 + gpu:02x}:00.0"},
        "limit": {"max_power": {"value": 750, "unit": "W"}},
    }
    for gpu in range(2)
]
LIST = [
    {
        "gpu": gpu,
        "bdf": f"0000:{0x10 + gpu:02x}:00.0",
        "uuid": f"{gpu:02x}ff74a1-0000-1000-80aa-000000000000",
        "node_id": 2 + gpu,
        "hip_id": gpu,
    }
    for gpu in range(2)
]


@pytest.mark.parametrize("described", ["", "MI300X of the profile"])
def test_devices_get_the_names_that_amd_smi_states(tmp_path: Path, described: str) -> None:
    ranks(tmp_path)
    if described:  # what the profile says of its devices stays
        for path in tmp_path.glob("rank-*.json"):
            known = [{"id": gpu, "name": described} for gpu in range(2)]
            path.write_text(json.dumps(json.loads(path.read_text()) | {"deviceProperties": known}))
    (tmp_path / "static.json").write_text(json.dumps({"gpu_data": STATIC}))
    (tmp_path / "list.json").write_text(json.dumps(LIST))
    trace = ci.read(tmp_path)
    name = described or "AMD Instinct MI300X"
    actual = {d.device: (d.name, d.pci, d.uuid, d.agent) for d in trace.meta.devices}
    assert actual == {n: (name, LIST[n]["bdf"], LIST[n]["uuid"], 2 + n) for n in range(2)}
    assert trace.meta.facts["cu_count"] == "304"
    assert trace.meta.facts["max_power_w"] == "750"


def test_no_names_for_gpus_that_all_ranks_call_0(tmp_path: Path) -> None:
    ranks(tmp_path)
    for path in tmp_path.glob("rank-*.json"):
        path.write_text(path.read_text().replace('"device": 1', '"device": 0'))
    (tmp_path / "list.json").write_text(json.dumps(LIST))
    assert not any(d.pci for d in ci.read(tmp_path).meta.devices)

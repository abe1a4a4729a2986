"""GPUs of one source matched with those of another: by names, by the user, or assumed."""

import json
from pathlib import Path

import pytest
from issue_counts import counts
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci
from chopper_interop.errors import AmbiguousRunError, UsageError
from chopper_interop.gpus import devices
from chopper_interop.schemas.meta import Device

AGENTS = "Node_Id,Logical_Node_Id,Logical_Node_Type_Id,Agent_Type,Simd_Count,Name\n"


def gpu(number: int, **names: object) -> Device:
    return Device("", number, **names)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("others", "gpus", "bridges", "expected"),
    [
        # one name in common
        ([gpu(3, pci="0000:c1:00.0")], [gpu(0, pci="0000:c1:00.0")], [], {3: (0, "PCI address")}),
        ([gpu(3, uuid="u")], [gpu(1, uuid="u"), gpu(0, uuid="v")], [], {3: (1, "UUID")}),
        # a third source knows both
        (
            [gpu(0, index=0), gpu(1, index=1)],
            [gpu(2, agent=2), gpu(3, agent=3)],
            [gpu(9, index=0, agent=3), gpu(9, index=1, agent=2)],
            {0: (3, "HSA agent"), 1: (2, "HSA agent")},
        ),
        # two others in a row
        (
            [gpu(7, index=7)],
            [gpu(0, ordinal=0)],
            [gpu(7, index=7, pci="p"), gpu(4, agent=4, pci="p"), gpu(4, agent=4, ordinal=0)],
            {7: (0, "HIP or CUDA ordinal")},
        ),
        # a name that two GPUs have is none
        (
            [gpu(0, index=0, pci="p"), gpu(1, index=1, pci="q")],
            [gpu(5, agent=5, pci="q")],
            [gpu(0, ordinal=0, pci="p"), gpu(0, ordinal=0, pci="q")],
            {1: (5, "PCI address")},
        ),
        # no names: counting, then order, then nothing
        ([gpu(1, index=1)], [gpu(0, ordinal=0), gpu(1, ordinal=1)], [], {1: (1, devices.BY_COUNTING)}),
        ([gpu(0), gpu(1)], [gpu(4, agent=4), gpu(6, agent=6)], [],
         {0: (4, devices.BY_ORDER), 1: (6, devices.BY_ORDER)}),
        ([gpu(0), gpu(1), gpu(2)], [gpu(4, agent=4)], [], {}),
        # two architectures are two GPUs, whatever their numbers
        ([gpu(0, ordinal=0, arch="gfx950")], [gpu(0, ordinal=0, arch="gfx942")], [], {}),
        ([gpu(0, arch="gfx950"), gpu(1, arch="gfx942")], [gpu(4, arch="gfx942"), gpu(5)], [],
         {1: (5, devices.BY_ORDER)}),
        # one tool's numbers in both
        ([gpu(4, source="x")], [gpu(4, source="x"), gpu(5, source="x")], [], {4: (4, devices.BY_TOOL)}),
    ],
)  # fmt: skip
def test_match(others, gpus, bridges, expected) -> None:
    actual = devices.match_devices([d.device for d in others], others, gpus, [*bridges, *others])
    assert actual == expected


@pytest.mark.parametrize(
    ("text", "number", "target"),
    [
        ("3=0", 3, (0, False)),
        ("amd-smi:0-7=2", 7, (2, False)),
        ("job/node1*.csv:0=rank8", 0, (8, True)),
    ],
)
def test_rules(text: str, number: int, target: tuple[int, bool]) -> None:
    rule = devices.parse_device_rule(text)
    assert rule.first <= number <= rule.last
    assert (rule.target, rule.is_rank) == target
    assert rule.applies_to("amd-smi", "job/node1_smi.csv")


@pytest.mark.parametrize("text", ["", "3", "3=", "=3", "a=1", "5-3=1", "1=rank", "1=-1"])
def test_invalid_rules_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write it as"):
        devices.parse_device_rule(text)


def job(folder: Path, ranks: dict[int, int], name: str = "", host: str = "") -> Path:
    """A rank's trace each, with work on its device, and the host in the header if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    for rank, device in ranks.items():
        events = [
            event
            for i in range(4)
            for event in (
                call("hipLaunchKernel", 400_000 * i, 5, i + 1, pid=100 + rank),
                kernel("gemm", 400_000 * i + 10, 300_000, i + 1, device=device) | {"pid": device},
            )
        ]
        header = {"host_name": host} if host else {}
        info = {"distributedInfo": {"rank": rank, "world_size": 16}}
        write(folder / f"{name}rank{rank}.json", events, baseTimeNanoseconds=BASE, **info, **header)
    return folder


def telemetry(path: Path, gpus: int, power: int) -> Path:
    """Three seconds of telemetry; each GPU has a power of its own."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        f"{BASE // 10**9 + second},{gpu},{power + gpu},1000"
        for second in range(3)
        for gpu in range(gpus)
    ]
    path.write_text("\n".join(["timestamp,gpu,socket_power,gfx_0_clk", *rows, ""]))
    return path


def power(trace: ci.Trace) -> dict[int, float]:
    """Power of each rank's GPU, which is another for each GPU of each machine."""
    series = trace.to_pandas("series")
    samples = trace.to_pandas("samples").join(series, on="series")
    result = samples[(samples["rank"] >= 0) & (samples["name"] == "socket power")]
    result = result.groupby("rank")["value"].unique()
    return {int(rank): float(value) for rank, (value,) in result.items()}


def known_by(trace: ci.Trace) -> set[str]:
    return {match.known_by for match in trace.meta.device_matches}


def test_machines_whose_host_the_path_names(tmp_path: Path) -> None:
    job(tmp_path, {0: 0, 1: 1}, "a", host="gpu-a17.cluster")
    job(tmp_path, {2: 0, 3: 1}, "b", host="gpu-a1.cluster")
    telemetry(tmp_path / "smi" / "gpu-a17.csv", 2, 100)
    telemetry(tmp_path / "smi" / "gpu-a1_amd-smi.csv", 2, 200)
    trace = ci.read(tmp_path)
    assert power(trace) == {0: 100, 1: 101, 2: 200, 3: 201}


def test_machines_in_folders_of_their_own(tmp_path: Path) -> None:
    for node in range(2):
        job(tmp_path / f"n{node}" / "torch", {2 * node: 0, 2 * node + 1: 1})
        telemetry(tmp_path / f"n{node}" / "smi" / "watch.csv", 2, 100 * (node + 1))
    assert power(ci.read(tmp_path)) == {0: 100, 1: 101, 2: 200, 3: 201}


def test_the_user_can_state_what_no_source_records(tmp_path: Path, run) -> None:
    job(tmp_path / "torch", {0: 0, 1: 1, 2: 0, 3: 1})
    for node in range(2):
        telemetry(tmp_path / f"n{node}.csv", 2, 100 * (node + 1))
    trace = ci.read(tmp_path)
    assert power(trace) == {}
    assert "telemetry-of-unknown-device" in {i.code for i in trace.meta.issues}
    trace = ci.read(tmp_path, map_device=["n0.csv:0-1=rank0", "n1.csv:0-1=rank2"])
    assert power(trace) == {0: 100, 1: 101, 2: 200, 3: 201}
    assert known_by(trace) == {"the user"}
    out = tmp_path / "x.pftrace"
    swapped = ("--map-device", "n?.csv:0=rank1", "--map-device", "n?.csv:1=rank0")
    status, _, output = run("convert", "--on-loss", "ignore", tmp_path, "-o", out, *swapped)
    assert status == 0
    assert "the user" in output


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("0=0", "ranks 0, 2 compute on a device 0"),
        ("0=5", "no rank computes on a device 5"),
        ("0=rank9", "there is no rank 9"),
        ("recorder:0=rank0", "no telemetry and no counter pass 'recorder' has such a GPU"),
        ("7=rank0", "7=rank0: no telemetry and no counter pass has such a GPU"),
    ],
)
def test_impossible_rules_are_refused(tmp_path: Path, rule: str, message: str) -> None:
    job(tmp_path / "torch", {0: 0, 1: 1, 2: 0, 3: 1})
    telemetry(tmp_path / "n0.csv", 2, 100)
    with pytest.raises(UsageError, match=message):
        ci.read(tmp_path, map_device=[rule])


def test_contradicting_rules_are_refused(tmp_path: Path) -> None:
    job(tmp_path, {0: 0, 1: 1})
    telemetry(tmp_path / "smi.csv", 2, 100)
    with pytest.raises(UsageError, match="0=0 and 0-1=1 contradict each other for GPU 0"):
        ci.read(tmp_path, map_device=["0=0", "0-1=1"])


def test_telemetry_alone_has_no_ranks(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has such a GPU"):
        ci.read(telemetry(tmp_path / "smi.csv", 2, 100), map_device=["0=rank0"])


def test_telemetry_of_another_day_is_reported(tmp_path: Path, run) -> None:
    path = telemetry(tmp_path / "smi.csv", 1, 100)
    path.write_text(
        path.read_text().replace(f"{BASE // 10**9}"[:5], f"{BASE // 10**9 - 10**6}"[:5])
    )
    trace = ci.read(job(tmp_path, {0: 0}))
    assert counts(trace)["telemetry-apart"] == 6
    for command, done in (
        (["convert"], "outputs were written"),
        (["analyze", "temporal"], "shown"),
    ):
        status, _, output = run(*command, "-q", tmp_path, "-o", tmp_path.parent / "a.pftrace")
        assert status == AmbiguousRunError.exit_status
        assert "telemetry is of another run: 6 telemetry-apart, " in output
        assert f"{done} without its values for any operation (leave it out, " in output
        assert (tmp_path.parent / "a.pftrace").exists()
    ignored = ["-q", "--on-loss", "ignore", tmp_path, "-o", tmp_path.parent / "a.pftrace"]
    assert run("convert", *ignored)[0] == 0
    target = tmp_path.parent / "b.pftrace"
    with pytest.raises(AmbiguousRunError, match="6 telemetry-apart"):
        ci.convert(tmp_path, target)
    assert target.exists()
    assert ci.convert(tmp_path, target, on_loss="ignore").nodes.num_rows == trace.nodes.num_rows


@pytest.mark.parametrize(("power_w", "count"), [(105, 0), (200, 1)])
def test_two_files_of_one_gpu_that_contradict_each_other(
    tmp_path: Path, power_w: int, count: int
) -> None:
    job(tmp_path, {0: 0})
    telemetry(tmp_path / "a.csv", 1, 100)
    telemetry(tmp_path / "b.csv", 1, power_w)
    by_code = counts(ci.read(tmp_path))
    assert by_code.get("telemetry-contradicts", 0) == count


def test_hosts_in_names_as_pytorch_makes_them(tmp_path: Path) -> None:
    job(tmp_path / "a", {0: 0})
    name = "gpu-a17_100.1700000000.pt.trace.json"
    (tmp_path / "a" / "rank0.json").rename(tmp_path / name)
    trace = ci.read(tmp_path / name, keep_environment=True)
    assert trace.meta.ranks[0].host == "gpu-a17"
    (tmp_path / name).rename(tmp_path / "gpu-a17_99.pt.trace.json")  # of another process
    assert ci.read(tmp_path / "gpu-a17_99.pt.trace.json").meta.ranks[0].host == ""


def test_rules_take_precedence_over_sources(tmp_path: Path) -> None:
    job(tmp_path, {0: 0, 1: 1})
    telemetry(tmp_path / "smi.csv", 2, 100)
    assert power(ci.read(tmp_path)) == {0: 100, 1: 101}
    assert power(ci.read(tmp_path, map_device=["0=1", "1=0"])) == {0: 101, 1: 100}


@pytest.mark.parametrize(
    ("rules", "expected", "unknown"),
    [
        (["4-7=rank0"], {0: 104, 1: 105, 2: 106, 3: 107}, 4),  # no guess puts others there too
        (["4=rank0"], {0: 104, 1: 101, 2: 102, 3: 103}, 1),
        (["1=rank0"], {0: 101, 2: 102, 3: 103}, 1),
    ],
)
@pytest.mark.parametrize("first", [0, 2])
def test_rules_of_some_gpus(tmp_path: Path, first, rules, expected, unknown) -> None:
    """Of eight GPUs; nothing determines which four these are if the ranks' devices count from 2."""
    folder = job(tmp_path, {rank: first + rank for rank in range(4)})
    telemetry(folder / "smi.csv", 8, 100)
    trace = ci.read(folder, map_device=rules)
    by_code = counts(trace)
    assert "telemetry-contradicts" not in by_code
    by_user = [m for m in trace.meta.device_matches if m.known_by == devices.BY_USER]
    if first:
        expected = {m.rank: 100 + m.number for m in by_user}
        unknown = 8 - len(by_user)
    assert power(trace) == expected
    assert by_code["telemetry-of-unknown-device"] == unknown


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["0=rank3", "3=rank0"], [103, 101, 102, 100]),
        (["0=rank3"], [103, 101, 102, 100]),
        (["0-1=rank2"], [102, 103, 100, 101]),
    ],
)
def test_rules_leave_the_other_gpus_as_they_were(tmp_path: Path, first, rules, expected) -> None:
    folder = job(tmp_path, {rank: first + rank for rank in range(4)})
    telemetry(folder / "smi.csv", 4, 100)
    assert power(ci.read(folder, map_device=rules)) == dict(enumerate(expected))


def test_rules_of_processes_that_see_one_gpu_each(tmp_path: Path) -> None:
    folder = job(tmp_path, dict.fromkeys(range(4), 0))
    telemetry(folder / "smi.csv", 4, 100)
    trace = ci.read(folder, map_device=["0=rank1"])
    assert power(trace) == {0: 101, 1: 100, 2: 102, 3: 103}
    assert counts(trace)["telemetry-by-rank"] == 3


def test_names_determine_the_gpus_without_a_rule() -> None:
    guessed = {n: (n, "PCI address") for n in range(3)}
    by_user = {0: (2, devices.BY_USER)}
    assert devices.match_remaining([0, 1, 2], by_user, guessed) == {1: (1, "PCI address")}


def test_a_few_gpus_of_a_machine(tmp_path: Path) -> None:
    """CUDA counts GPUs, so that device 3 is no agent even if there is no device 0."""
    folder = job(tmp_path, {0: 3})
    path = folder / "rank0.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cuda_runtime_version": 12040}))
    telemetry(folder / "smi.csv", 8, 100)
    assert power(ci.read(folder)) == {0: 103}


def test_hardware_of_another_host_is_not_used(tmp_path: Path) -> None:
    trace = ci.read(job(tmp_path, {0: 0}))
    trace = trace.with_meta(devices=(Device("a", 0), Device("", 1)))
    others = [Device("b", 0, arch="gfx942", cus=304), Device("b", 1, arch="gfx90a", cus=104)]
    actual = devices.with_hardware(trace, others, {0: 0, 1: 1}).meta.devices
    assert [(d.host, d.device, d.arch) for d in actual] == [
        ("a", 0, ""), ("", 1, "gfx90a"), ("b", 0, "gfx942"),
    ]  # fmt: skip

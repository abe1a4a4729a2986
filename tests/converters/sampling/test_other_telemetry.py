"""dcgmi, Zeus and CharLLM-PPT: counts against plain csv, times exactly, nothing lost in silence."""

import csv
from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from seeds import Seed
from seeds.other_telemetry import (
    SEEDS,
    START_NS,
    charllm_file,
    charllm_folder,
    dcgmi_dmon,
    zeus_power,
    zeus_windows,
)
from shared_data import real
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.zeus.charllm_samples import read as read_charllm
from chopper_interop.converters.zeus.charllm_series import unwrapped
from chopper_interop.errors import ReadError, UnknownFormatError
from chopper_interop.io import inputs

MS = 1_000_000


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: seed.name)
def test_each_is_taken_by_one(seed: Seed) -> None:
    assert [c.name for c in registry.sniffed(seed.data)] == [seed.format]


@pytest.mark.parametrize("folder", ["nvidia_smi_real", "zeus_windows"])
def test_each_real_file_is_taken_by_one(folder: str) -> None:
    files = [p for p in real(f"telemetry/{folder}").rglob("*") if p.is_file()]
    assert all(len(registry.sniffed(inputs.head(path))) == 1 for path in files)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def test_dcgmi(tmp_path: Path) -> None:
    put(tmp_path, {"dcgmi.txt": dcgmi_dmon(5, 2)})
    trace = ci.read(tmp_path / "dcgmi.txt", at_ns=START_NS, period_ms=100)
    assert trace.samples.num_rows == 5 * (6 + 5)  # the second GPU has no memory temperature
    assert_all_rows_counted(trace)
    assert lanes(trace)[0, "socket power"] == [400.125, 401.125, 402.125, 403.125, 404.125]
    assert lanes(trace)[1, "energy"] == pytest.approx([1e6 + 400 * n for n in range(5)])
    assert lanes(trace)[0, "SM active"] == pytest.approx([99.8] * 5)
    assert lanes(trace)[0, "PCIe bandwidth sent"] == pytest.approx(
        [16 + 8e-6 * n for n in range(5)]
    )
    assert units(trace)["temperature memory"] == "°C"
    assert units(trace)["gfx clock"] == "MHz"
    times = [t for t, _ in points_of(trace)[1, "gfx clock"]]
    assert times == [START_NS - 100 * MS * n for n in reversed(range(5))]


def test_dcgmi_with_stamps_in_front(tmp_path: Path) -> None:
    put(tmp_path, {"dcgmi.txt": dcgmi_dmon(5, 1, again=100, stamps=True)})
    trace = ci.read(tmp_path / "dcgmi.txt")
    assert trace.meta.clock == "realtime"
    times = [t for t, _ in points_of(trace)[0, "socket power"]]
    assert times == [1_714_566_898_125_000_000 + n * 10**9 for n in range(5)]


def test_dcgmi_parts_and_old_heading(tmp_path: Path) -> None:
    text = (
        "# Entity          POWER       TOTEC       GRACT  \n"
        "      Id              W          mJ              \n"
        "    GPU 0        50.500        1000       0.500  \n"
        "  GPU-I 3           N/A         N/A       0.250  \n"
        "  GPU-CI 3          N/A         N/A       0.125  \n"
    )
    put(tmp_path, {"dcgmi.txt": text.encode()})
    trace = ci.read(tmp_path / "dcgmi.txt", at_ns=START_NS)
    assert lanes(trace) == {
        (0, "socket power"): [50.5],
        (0, "energy"): [1.0],
        (0, "GFX active"): [50.0],
        (-1, "GFX active GPU-I 3"): [25.0],
        (-1, "GFX active GPU-CI 3"): [12.5],
    }


@pytest.mark.parametrize(
    "name", ["A40+resnet18+gpu0.csv", "A40+resnet18+gpu0,1,2,3.csv", "V100+resnet50+gpu0,1.csv"]
)
def test_real_windows(name: str) -> None:
    path = real(f"telemetry/zeus_windows/{name}")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    gpus = [key for key in rows[0] if key.endswith("_energy")]
    trace = ci.read(path)
    assert trace.samples.num_rows == len(rows) * (1 + 4 * len(gpus))
    assert trace.meta.clock == "monotonic"
    assert counts(trace)["clock-unknown"] == len(rows)
    assert_all_rows_counted(trace)
    points = points_of(trace)
    for row in rows:
        seconds, fraction = row["start_time"].split(".")
        ns = int(seconds) * 10**9 + int(fraction.ljust(9, "0")[:9])
        for gpu, key in enumerate(gpus):
            ((time, energy),) = points[gpu, f"energy of {row['window_name']}"]
            assert (time, energy) == (ns, float(row[key]))
            ((_, power),) = points[gpu, f"mean power of {row['window_name']}"]
            assert power == float(row[key]) / float(row["elapsed_time"])


def test_real_summary_is_refused() -> None:
    path = real("telemetry/zeus_windows/summary_power_a40.csv")
    with pytest.raises(UnknownFormatError, match="means over runs"):
        ci.read(path)


def test_windows_on_the_real_clock(tmp_path: Path) -> None:
    put(tmp_path, {"w.csv": zeus_windows(3, 1, start="1714566896.1234567")})
    trace = ci.read(tmp_path / "w.csv")
    assert trace.meta.clock == "realtime"
    points = points_of(trace)[0, "energy of step"]
    assert points == [
        (1_714_566_896_123_456_700 + 2 * n * 10**9, 1000.5 + 10 * n) for n in range(3)
    ]


def test_many_names_of_windows_share_lanes(tmp_path: Path) -> None:
    lines = zeus_windows(100, 1).decode().splitlines()
    text = "\n".join(line.replace("step", f"step{n}") for n, line in enumerate(lines)) + "\n"
    put(tmp_path, {"w.csv": text.encode()})
    trace = ci.read(tmp_path / "w.csv")
    assert trace.series.num_rows == 4
    assert counts(trace)["windows-numbered"] == 100
    assert trace.samples.num_rows == 500


def test_windows_of_processors(tmp_path: Path) -> None:
    text = (
        "start_time,window_name,elapsed_time,gpu1_energy,cpu0_energy,dram0_energy\n5.5,w,2,10,20,\n"
    )
    put(tmp_path, {"w.csv": text.encode()})
    assert lanes(ci.read(tmp_path / "w.csv")) == {
        (-1, "duration of w"): [2.0],
        (1, "energy of w"): [10.0],
        (1, "mean power of w"): [5.0],
        (1, "power within windows"): [5.0, 5.0],
        (-1, "cpu0 energy of w"): [20.0],
        (-1, "cpu0 mean power of w"): [10.0],
    }


@pytest.mark.parametrize("header", ["time,gpu0,gpu1", "timestamp,gpu0_power,gpu1_power"])
def test_record_of_power(tmp_path: Path, header: str) -> None:
    put(tmp_path, {"p.csv": zeus_power(25).replace(b"time,gpu0,gpu1", header.encode())})
    trace = ci.read(tmp_path / "p.csv")
    assert lanes(trace)[1, "socket power"] == [200.25 + n for n in range(25)]
    first, second, *_ = (t for t, _ in points_of(trace)[0, "socket power"])
    assert (first, second) == (1_714_566_896_012_345_000, 1_714_566_896_112_345_000)


def test_charllm_folder(tmp_path: Path) -> None:
    ranks, rows = 4, 8
    files = charllm_folder(ranks, rows)
    put(tmp_path / "run", files)
    trace = ci.read(tmp_path / "run")
    lines = sum(data.count(b"\n") for data in files.values())
    events = sum(source.events for source in trace.meta.sources)
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert events == counted == lines
    actual = {
        (s["rank"], s["name"]): [v for _, v in points]
        for s, points in zip(trace.series.to_pylist(), _points_by_series(trace), strict=True)
    }
    assert actual[3, "socket power"] == [303.5 + n for n in range(rows)]
    assert actual[2, "GFX activity"] == [99.0] * (rows - 1)
    assert actual[1, "PCIe bytes sent"] == [2**32 - 3000 + 1000 * n for n in range(rows)]
    assert actual[1, "NVLink bytes received"] == [
        (2**32 - 3000 + 1000 * n) * 1024 for n in range(rows)
    ]
    assert actual[0, "PCIe bandwidth sent"] == [8.0] * rows
    assert actual[0, "CPU 7 busy time"] == [6.5] * rows
    assert actual[0, "host memory total"] == [2e12]
    assert actual[0, "InfiniBand ib2 bytes received"] == [1e15 + 4096 * n for n in range(rows)]
    faults = counts(trace)
    wraps = [i.count for i in trace.meta.issues if i.code == "counter-wrapped"]
    assert sum(wraps) == 2 * ranks
    assert faults["memory-used-is-total"] == 1
    unknown = [i.count for i in trace.meta.issues if i.code == "reading-failed"]
    assert sum(unknown) == ranks * (rows + 1)
    alone = read_charllm(sorted((tmp_path / "run").glob("*.csv")))
    assert [(r.rank, r.known_by) for r in alone.meta.ranks] == [(n, "name") for n in range(ranks)]


def _points_by_series(trace: ci.Trace) -> list[list[tuple[int, float]]]:
    result: list[list[tuple[int, float]]] = [[] for _ in range(trace.series.num_rows)]
    table = trace.samples.to_pydict()
    for series, ts, value in zip(table["series"], table["ts"], table["value"], strict=True):
        result[series].append((ts + trace.meta.origin_ns, value))
    return result


def test_charllm_times_are_exact(tmp_path: Path) -> None:
    data = b"1758685713.4934567,1\n1758685713.5434568,2\n1758685714,3\n1.7586857145e9,4\n"
    put(tmp_path, {"sm_clock_0.csv": data})
    times = [t for (t, _) in points_of(ci.read(tmp_path / "sm_clock_0.csv"))[0, "gfx clock"]]
    assert times == [
        1_758_685_713_493_456_700,
        1_758_685_713_543_456_800,
        1_758_685_714_000_000_000,
        1_758_685_714_500_000_000,
    ]


def test_charllm_times_beyond_2096_are_none(tmp_path: Path) -> None:
    # a whole second of ten digits was taken up to 2262, and wrapped around beyond
    path = tmp_path / "gpu_power_0.csv"
    path.write_text("1754585903,1\n4000000001,2\n9999999999.5,3\n1754585904,4\n")
    trace = read_charllm([path])
    assert trace.samples["value"].to_pylist() == [1, 4]
    assert counts(trace)["row-cut-short"] == 2


def test_charllm_on_amd(tmp_path: Path) -> None:
    names = ("gpu_util", "mem_util", "gpu_power", "gpu_thermal", "mem_thermal", "sm_clock")
    put(tmp_path, {f"{name}_0.csv": charllm_file([50]) for name in names})
    trace = ci.read(tmp_path)
    assert {"VRAM used share", "temperature edge", "socket power"} <= set(units(trace))
    assert "metrics-of-amd" in counts(trace)


def test_charllm_with_a_prefix_and_two_gpus(tmp_path: Path) -> None:
    data = b"".join(b"171456689%d.5,%d\n" % (n // 2, 100 + n) for n in range(6))
    put(tmp_path, {"run1_gpu_power_5.csv": data})
    trace = ci.read(tmp_path)
    assert lanes(trace) == {
        (5, "socket power GPU 0"): [100.0, 102.0, 104.0],
        (5, "socket power GPU 1"): [101.0, 103.0, 105.0],
    }


def test_parts_of_a_sum_are_complete(tmp_path: Path) -> None:
    data = b"1714566896.5,1\n1714566896.5,2\n1714566897.5,3\n"
    put(tmp_path, {"system_cpu_usage_rank_0_id_1.csv": data})
    trace = ci.read(tmp_path)
    assert lanes(trace) == {(-1, "CPU 1 busy time"): [3.0]}
    assert counts(trace)["sum-without-all-parts"] == 1


def test_two_folders_are_two_sources(tmp_path: Path) -> None:
    put(tmp_path, {"a/gpu_power_0.csv": charllm_file([1]), "b/gpu_power_1.csv": charllm_file([2])})
    trace = ci.read(tmp_path)
    assert sorted(lanes(trace).values()) == [[1.0], [2.0]]


def test_unwrapped() -> None:
    top = 2.0**32
    values, wraps = unwrapped(np.array([top - 1, 0.0, 5.0, 1.0]))
    assert values.tolist() == [top - 1, top, top + 5, 2 * top + 1]
    assert wraps == 2
    assert unwrapped(np.array([top, 1.0]))[1] == 0


@pytest.mark.parametrize(("name", "gpu"), [("run+gpu3.csv", 3), ("run.csv", -1)])
def test_power_of_one_gpu(tmp_path: Path, name: str, gpu: int) -> None:
    put(tmp_path, {name: b"Time,Power\n1714566896.5,100.5\n1714566896.6,101.5\n"})
    trace = ci.read(tmp_path / name)
    assert lanes(trace) == {(gpu, "socket power"): [100.5, 101.5]}
    assert ("gpu-unknown" in counts(trace)) == (gpu < 0)


def test_other_powers_are_not_taken(tmp_path: Path) -> None:
    put(tmp_path, {"solar.csv": b"time,power\n0,100\n1,101\n"})
    with pytest.raises(UnknownFormatError, match="no format that is known"):
        ci.read(tmp_path / "solar.csv")


def test_a_mask_of_dcgmi_is_read_bit_by_bit(tmp_path: Path) -> None:
    text = "#Entity   POWER     DVCCTR\nID        W\n" + "".join(
        f"GPU {gpu}     300.5     {mask}\n" for gpu, mask in ((0, 0), (1, 4), (0, 36), (1, 0))
    )
    put(tmp_path, {"d.txt": text.encode()})
    by_lane = lanes(ci.read(tmp_path / "d.txt", at_ns=START_NS, period_ms=100))
    assert by_lane[0, "throttle status SW power cap"] == [0, 1]
    assert by_lane[1, "throttle status SW power cap"] == [1, 0]
    assert by_lane[0, "throttle status SW thermal slowdown"] == [0, 1]
    assert by_lane[0, "throttle reasons active"] == [0, 36]


@pytest.mark.parametrize(
    "text",
    [
        "8 GPUs found.\n+--------+---------------------------+\n| GPU ID | Device Information |\n",
        "Successfully retrieved statistics for job: 1.\n+-----+\n",
        "Successfully ran diagnostic for group.\n+-----+\n",
    ],
)
def test_what_dcgmi_prints_once_is_refused_in_a_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "d.txt").write_text(text)
    with pytest.raises(ci.ChopperError, match="dcgmi dmon"):
        ci.read(tmp_path / "d.txt")


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("zeus", "time,gpu0", "{},100"),
        ("zeus", "start_time,window_name,elapsed_time,gpu0_energy", "{},train,1.5,100"),
        ("nvidia-smi", "timestamp,index,power.draw [W]", "{},0,100.00 W"),
    ],
)
def test_negative_times_are_named_as_such(tmp_path: Path, name: str, header: str, row: str) -> None:
    """The line said that they are no numbers, or not understood."""
    path = tmp_path / "a.csv"
    stamps = ["1700000000.5", "-1700000001.5", "soon 5", "1700000002.5"]
    path.write_text("\n".join([header, *map(row.format, stamps), ""]))
    found = counts(ci.read(path, from_format=name))
    assert found["time-before-1970"] == 1
    assert found["row-without-time" if name == "zeus" else "stamp-not-understood"] == 1
    path.write_text("\n".join([header, row.format(-1), ""]))
    with pytest.raises(ReadError, match="time is negative, before 1970"):
        ci.read(path, from_format=name)

"""nvidia-smi: every form gives the lanes, times and devices that its text says."""

import csv
from collections import Counter
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path

import pytest
from issue_counts import counts
from seeds.other_telemetry import (
    HEADLESS,
    QUERY,
    START_NS,
    dmon,
    query_csv,
    smi_log,
    smi_xml,
)
from shared_data import real
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop.converters.nvidia_smi import lanes as tables
from chopper_interop.converters.nvidia_smi.samples import read as read_file
from chopper_interop.errors import ReadError, UnknownFormatError, UsageError
from chopper_interop.registry import sniffed

ABSENT = {"N/A", "[N/A]", "[Not Supported]"}
DESCRIBING = {"timestamp", "index", "name", "pci.bus_id", "driver_version"}
MS = 1_000_000


def file_of(folder: Path, data: bytes, name: str = "smi.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    "name", ["query-gpu-1xH100.csv", "query-gpu-8xH100.csv", "query-gpu-1xT4-NA.csv"]
)
def test_real_query(name: str) -> None:
    path = real(f"telemetry/nvidia_smi_real/{name}")
    rows = list(csv.DictReader(path.read_text().splitlines(), skipinitialspace=True))
    cells = [
        (row["index"], key, value)
        for row in rows
        for key, value in row.items()
        if key not in DESCRIBING and value not in ABSENT
    ]
    trace = ci.read(path)
    assert trace.samples.num_rows == len(cells)
    assert trace.meta.clock == "localtime"
    assert_all_rows_counted(trace)
    by_lane = lanes(trace)
    for row in rows:
        gpu = int(row["index"])
        power = row["power.draw.instant [W]"]
        assert by_lane[gpu, "socket power"] == [float(power)]
        assert by_lane[gpu, "gfx clock"] == [float(row["clocks.current.sm [MHz]"])]
        assert by_lane[gpu, "VRAM total"] == [float(row["memory.total [MiB]"]) * 1024**2]
        at = datetime.strptime(row["timestamp"] + "000+0000", "%Y/%m/%d %H:%M:%S.%f%z")
        seconds = int(at.replace(microsecond=0).timestamp())
        ((time, _),) = points_of(trace)[gpu, "socket power"]
        assert time == seconds * 10**9 + at.microsecond * 1000


def test_real_loop_of_a_script() -> None:
    path = real("telemetry/nvidia_smi_real/8gpu_iso8601_0.24s.csv")
    rows = list(csv.DictReader(path.read_text().splitlines(), skipinitialspace=True))
    trace = ci.read(path)
    assert trace.samples.num_rows == 3 * len(rows) == 15_336
    assert trace.meta.clock == "realtime"
    assert_all_rows_counted(trace)
    by_lane = lanes(trace)
    per_gpu = Counter(row["gpu_index"] for row in rows)
    for gpu, count in per_gpu.items():
        own = [float(row["power_W"]) for row in rows if row["gpu_index"] == gpu]
        assert by_lane[int(gpu), "socket power"] == own
        assert len(by_lane[int(gpu), "temperature GPU"]) == count
    (first, _), *_ = points_of(trace)[0, "socket power"]
    assert first == 1_758_685_713_493_000_000  # 2025-09-24T03:48:33.493Z


@pytest.mark.parametrize(
    ("name", "reason"), [("query-c2c.txt", "holds no samples in time"), ("dcgmi", "")]
)
def test_real_others(name: str, reason: str) -> None:
    path = real(f"telemetry/nvidia_smi_real/{name}")
    if reason:
        with pytest.raises(UnknownFormatError, match=reason):
            ci.read(path)
    else:
        (table,) = path.iterdir()
        rows = [line for line in table.read_text().splitlines() if line.startswith("GPU ")]
        trace = ci.read(table, at_ns=START_NS, period_ms=1000)
        assert trace.samples.num_rows == 3 * len(rows)
        active = [float(line.split()[2]) * 100 for line in rows]
        assert lanes(trace)[0, "GFX active"] == pytest.approx(active)


@pytest.mark.parametrize("with_units", [True, False])
def test_query(tmp_path: Path, *, with_units: bool) -> None:
    path = file_of(tmp_path, query_csv(5, 3, units=with_units))
    trace = ci.read(path)
    assert trace.samples.num_rows == 5 * 3 * 4
    assert lanes(trace)[2, "socket power"] == [302.5, 312.5, 322.5, 332.5, 342.5]
    assert lanes(trace)[1, "VRAM used"] == [1001 * 1024**2] * 5
    assert units(trace) == {
        "GFX activity": "%",
        "socket power": "W",
        "gfx clock": "MHz",
        "VRAM used": "B",
    }
    times = [t for t, _ in points_of(trace)[0, "gfx clock"]]
    assert times == [START_NS + 100 * MS * n for n in range(5)]
    assert set(trace.series["uncertainty_ns"].to_pylist()) == {11 * MS}
    (_, second, _) = read_file([path]).meta.devices
    assert (second.index, second.pci) == (1, "0000:10:00.0")
    assert second.name == "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("tz", "hours"), [("Europe/Berlin", 2), ("+02:00", 2), ("UTC", 0), ("-0530", -5.5)]
)
def test_zone_makes_real_times(tmp_path: Path, tz: str, hours: float) -> None:
    trace = ci.read(file_of(tmp_path, query_csv(2, 1)), tz=tz)
    assert trace.meta.clock == "realtime"
    first, *_ = (t for t, _ in points_of(trace)[0, "gfx clock"])
    assert first == START_NS - int(hours * 3600) * 10**9


def stamped(stamps: list[str]) -> bytes:
    rows = [f"{stamp}, 0, {100 + n} W" for n, stamp in enumerate(stamps)]
    return ("timestamp, index, power.draw [W]\n" + "\n".join(rows) + "\n").encode()


def test_the_hour_that_comes_twice(tmp_path: Path) -> None:
    night = ["01:50", "02:10", "02:50", "02:05", "02:55", "03:05"]
    data = stamped([f"2024/10/27 {clock}:00.000" for clock in night])
    trace = ci.read(file_of(tmp_path, data), tz="Europe/Berlin")
    times = [t // 10**9 for t, _ in points_of(trace)[0, "socket power"]]
    assert [b - a for a, b in pairwise(times)] == [1200, 2400, 900, 3000, 600]
    assert counts(trace)["hour-comes-twice-resolved"] == 4


def test_an_hour_that_nothing_determines(tmp_path: Path) -> None:
    data = stamped(["2024/10/27 02:10:00.000", "2024/10/27 02:10:01.000"])
    trace = ci.read(file_of(tmp_path, data), tz="Europe/Berlin")
    assert counts(trace)["hour-comes-twice"] == 2
    data = stamped(["2024/10/27 02:59:59.500", "2024/10/27 03:00:00.500"])
    trace = ci.read(file_of(tmp_path, data), tz="Europe/Berlin")
    assert [t for t, _ in points_of(trace)[0, "socket power"]][1] - trace.meta.origin_ns == 10**9


def test_an_hour_that_never_was(tmp_path: Path) -> None:
    data = stamped(["2024/03/31 02:30:00.000"])
    trace = ci.read(file_of(tmp_path, data), tz="Europe/Berlin")
    assert counts(trace)["hour-never-was"] == 1


def test_gpus_are_distinguished_by_order(tmp_path: Path) -> None:
    text = query_csv(4, 3).decode().replace("index, name, pci.bus_id, ", "")
    for gpu in range(3):
        text = text.replace(f" {gpu}, NVIDIA H100 80GB HBM3, 00000000:{0x0F + gpu:02X}:00.0,", "")
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert counts(trace)["gpu-by-order"] == 12
    assert lanes(trace)[2, "socket power"] == [302.5, 312.5, 322.5, 332.5]


def test_one_gpu_without_its_name(tmp_path: Path) -> None:
    data = stamped([f"2024/05/01 12:34:5{n}.00{n}" for n in range(5)]).replace(b"index, ", b"")
    trace = ci.read(file_of(tmp_path, data.replace(b", 0,", b",")))
    assert counts(trace)["gpu-assumed"] == 5
    assert lanes(trace) == {(0, "socket power"): [100.0, 101.0, 102.0, 103.0, 104.0]}


def of_one_column(samples: list[tuple[float, float]]) -> bytes:
    """CSV without a column that says which GPU, of rows of seconds after noon and watts."""
    noon = datetime(2024, 5, 1, 12, tzinfo=timezone.utc)
    rows = [
        f"{noon + timedelta(seconds=s):%Y/%m/%d %H:%M:%S.%f}"[:-3] + f", {watts:.2f} W"
        for s, watts in samples
    ]
    return "\n".join(["timestamp, power.draw [W]", *rows, ""]).encode()


def test_one_gpu_whose_period_was_changed(tmp_path: Path) -> None:
    data = of_one_column([(second, 9.0) for second in (*range(50), *range(50, 4000, 61))])
    assert counts(ci.read(file_of(tmp_path, data)))["gpu-assumed"] == 115


def test_a_column_of_values_alone(tmp_path: Path) -> None:
    path = file_of(tmp_path, b"power.draw [W]\n13.61 W\n13.75 W\n")
    with pytest.raises(ReadError, match=r"without a time.*period_ms"):
        ci.read(path)
    trace = ci.read(path, at_ns=START_NS, period_ms=100)
    assert [value for _, value in points_of(trace)[0, "socket power"]] == [13.61, 13.75]


def test_ticks_that_lack_rows_are_lost_where_others_are_certain(tmp_path: Path) -> None:
    rows = [(tick + 0.003 * gpu, 100.0 + gpu) for tick in range(40) for gpu in range(4)]
    assert counts(ci.read(file_of(tmp_path, of_one_column(rows))))["gpu-by-order"] == 160
    cut = rows[3:70] + rows[71:-2]  # the begin, a row within, and the end are missing
    trace = ci.read(file_of(tmp_path, of_one_column(cut)))
    assert (counts(trace)["gpu-by-order"], counts(trace)["row-without-gpu"]) == (148, 6)
    assert lanes(trace) == {(gpu, "socket power"): [100.0 + gpu] * 37 for gpu in range(4)}


@pytest.mark.parametrize("decimals", [3, 0])
def test_rows_of_several_gpus_are_not_of_one(tmp_path: Path, decimals: int) -> None:
    rows = [(tick * 0.9 + 0.003 * gpu, 9.0) for tick in range(40) for gpu in range(4)]
    many_lost = [row for n, row in enumerate(rows) if n % 11]
    seconds = [(round(time, decimals), watts) for time, watts in many_lost]
    with pytest.raises(ReadError, match="which GPU, of several"):
        ci.read(file_of(tmp_path, of_one_column(seconds)))


def test_gpus_that_are_read_slowly_are_not_one(tmp_path: Path) -> None:
    rows = [(0.1 * tick + 0.03 * gpu, 9.0) for tick in range(40) for gpu in range(2)]
    with pytest.raises(ReadError, match="which GPU, of several"):
        ci.read(file_of(tmp_path, of_one_column(rows)))


@pytest.mark.parametrize("zero", ["0.00 W", "[N/A]", "0.00"])
def test_a_limit_of_0_is_none(tmp_path: Path, zero: str) -> None:
    rows = [(zero, "0.00 W"), ("400.00 W", "90.00 W"), ("300.00 W", "95.00 W")]
    text = "timestamp, index, power.limit [W], power.draw [W]\n"
    for second, (limit, draw) in enumerate(rows * 20):
        text += f"2024/05/01 12:00:{second:02}.000, 0, {limit}, {draw}\n"
    by_lane = lanes(ci.read(file_of(tmp_path, text.encode())))
    assert by_lane[0, "power limit"] == [400, 300] * 20
    assert by_lane[0, "socket power"] == [0, 90, 95] * 20


def test_gpus_by_uuid_and_address(tmp_path: Path) -> None:
    text = (
        "timestamp, uuid, pci.bus_id, power.draw [W]\n"
        "2024/05/01 12:34:56.000, GPU-b, 00000000:C1:00.0, 2.00 W\n"
        "2024/05/01 12:34:56.001, GPU-a, 00000000:0F:00.0, 1.00 W\n"
    )
    path = file_of(tmp_path, text.encode())
    devices = read_file([path]).meta.devices
    assert [(d.device, d.uuid, d.pci) for d in devices] == [
        (0, "GPU-a", "0000:0f:00.0"),
        (1, "GPU-b", "0000:c1:00.0"),
    ]
    assert lanes(ci.read(path))[1, "socket power"] == [2.0]


REASONS = (
    "timestamp, index, clocks_throttle_reasons.active\n"
    "2024/05/01 12:34:56.000, 0, 0x0000000000000004\n"
    "2024/05/01 12:34:57.000, 0, 0x0000000000000000\n"
    "2024/05/01 12:34:58.000, 0, 0x0000000000000024\n"
)


def test_masks_of_reasons(tmp_path: Path) -> None:
    assert lanes(ci.read(file_of(tmp_path, REASONS.encode()))) == {
        (0, "throttle reasons active"): [4.0, 0.0, 36.0],
        (0, "throttle status SW power cap"): [1.0, 0.0, 1.0],
        (0, "throttle status SW thermal slowdown"): [0.0, 0.0, 1.0],
    }


@pytest.mark.parametrize("era", ["throttle", "event"])
def test_reasons_in_words(tmp_path: Path, era: str) -> None:
    text = (
        f"timestamp, index, clocks_{era}_reasons.hw_thermal_slowdown, "
        f"clocks_{era}_reasons.gpu_idle\n"
        "2024/05/01 12:34:56.000, 0, Active, Not Active\n"
    )
    assert lanes(ci.read(file_of(tmp_path, text.encode()))) == {
        (0, "throttle status HW thermal slowdown"): [1.0],
        (0, "throttle status GPU idle"): [0.0],
    }


def test_the_best_power_is_the_gpus(tmp_path: Path) -> None:
    text = (
        "timestamp, index, power.draw [W], power.draw.average [W], power.draw.instant [W]\n"
        "2024/05/01 12:34:56.000, 0, 10.00 W, 11.00 W, 12.00 W\n"
    )
    assert lanes(ci.read(file_of(tmp_path, text.encode()))) == {
        (0, "socket power"): [12.0],
        (0, "socket power average"): [11.0],
        (0, "socket power draw"): [10.0],
    }


def test_without_header(tmp_path: Path) -> None:
    path = file_of(tmp_path, HEADLESS)
    trace = ci.read(path, columns="timestamp,index,power.draw")
    assert lanes(trace) == {(0, "socket power"): [53.6, 54.1]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("power.draw [W]", ("power_draw", "W")),
        (" power.draw[W] ", ("power_draw", "W")),
        ("a [b] [ W ]", ("a_b", "W")),
        ("[W]", ("", "W")),
        ("a [W", ("a_w", "")),
        ("a] [b", ("a_b", "")),
        ("a]", ("a", "")),
    ],
)
def test_keys_and_units(name: str, expected: tuple[str, str]) -> None:
    assert tables.key_of(name) == expected


def test_dmon(tmp_path: Path) -> None:
    trace = ci.read(file_of(tmp_path, dmon(6, 2), "dmon.txt"), tz="UTC")
    assert trace.samples.num_rows == 6 * 2 * 7
    assert lanes(trace)[1, "socket power"] == [200.0, 201.0, 202.0, 203.0, 204.0, 205.0]
    assert lanes(trace)[0, "VRAM used"] == [70000 * 1024**2] * 6
    assert lanes(trace)[0, "gfx clock"] == [1980.0] * 6
    times = [t for t, _ in points_of(trace)[0, "socket power"]]
    midnight = 1_714_521_600 + 86_400
    assert [t // 10**9 for t in times] == [midnight - 2 + n for n in range(6)]
    assert trace.series["uncertainty_ns"][0].as_py() > 10 * MS
    assert counts(trace)["time-spread"] == 12


def test_dmon_with_times_of_day(tmp_path: Path) -> None:
    text = dmon(4, 1).decode().replace("Date       ", "").replace("YYYYMMDD   ", "")
    text = text.replace(" 20240501   ", " ").replace(" 20240502   ", " ")
    path = file_of(tmp_path, text.encode(), "dmon.txt")
    with pytest.raises(ci.errors.ReadError, match="Give -O date="):
        ci.read(path)
    trace = ci.read(path, date="2024-05-01", tz="UTC")
    first, *_, last = (t // 10**9 for t, _ in points_of(trace)[0, "socket power"])
    assert (first, last - first) == (1_714_521_600 + 86_398, 3)
    with pytest.raises(UsageError, match="that is no day"):
        ci.read(path, date="yesterday")


def test_dmon_without_times(tmp_path: Path) -> None:
    path = file_of(tmp_path, dmon(3, 2, dated=False), "dmon.txt")
    trace = ci.read(path, at_ns=START_NS, period_ms=500)
    times = [t for t, _ in points_of(trace)[1, "socket power"]]
    assert times == [START_NS - 1000 * MS, START_NS - 500 * MS, START_NS]
    trace = ci.read(path, at="mtime")
    assert counts(trace)["row-of-earlier-output"] == 4
    assert_all_rows_counted(trace)


def test_dmon_with_stamps_in_front(tmp_path: Path) -> None:
    lines = dmon(3, 1, dated=False).decode().splitlines()
    text = "".join(f"2024-05-01T12:34:5{n}.250Z {line}\n" for n, line in enumerate(lines))
    trace = ci.read(file_of(tmp_path, text.encode(), "dmon.txt"))
    assert trace.meta.clock == "realtime"
    times = [t for t, _ in points_of(trace)[0, "socket power"]]
    assert times == [1_714_566_892_250_000_000 + n * 10**9 for n in range(3)]


def test_dmon_of_old_drivers(tmp_path: Path) -> None:
    text = "# gpu   pwr  temp    sm\n# Idx     W     C     %\n    0    43    48     -\n"
    trace = ci.read(file_of(tmp_path, text.encode(), "dmon.txt"), at_ns=START_NS)
    assert lanes(trace) == {(0, "socket power"): [43.0], (0, "temperature GPU"): [48.0]}


def test_names_of_scripts(tmp_path: Path) -> None:
    text = (
        "timestamp,gpu_id,gpu_util,mem_used_mb,power_w,temp_c,sm_clock_mhz\n"
        "1714566896.789,3,50,1000,300.5,60,1410\n"
    )
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert lanes(trace) == lanes(
        ci.read(file_of(tmp_path, text.replace("gpu_util", "util_pct").encode()))
    )
    assert trace.meta.clock == "realtime"
    assert lanes(trace) == {
        (3, "GFX activity"): [50.0],
        (3, "VRAM used"): [1000 * 1024.0**2],
        (3, "socket power"): [300.5],
        (3, "temperature GPU"): [60.0],
        (3, "gfx clock"): [1410.0],
    }


@pytest.mark.parametrize(
    "name", ["gpu_power_mw", "power_usage_mw", "Power Draw (mW)", "GPU power [mW]"]
)
def test_power_in_milliwatts(tmp_path: Path, name: str) -> None:
    """NVML's own unit, which scripts write as it comes: it had no unit, and no place next to other power."""
    text = f"timestamp,gpu_id,utilization_gpu,{name}\n1714566896.789,3,50,300500\n"
    assert lanes(ci.read(file_of(tmp_path, text.encode())))[3, "socket power"] == [300.5]


def test_milliwatts_of_a_small_gpu_that_are_called_watts(tmp_path: Path) -> None:
    """A GPU of 5 W drew 5 kW, as the limit was ten times that of the largest one."""
    text = "timestamp,gpu_power_w\n1751532187.9,4939.00\n1751532188.9,6629.00\n"
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert units(trace) == {"gpu_power_w": ""}
    assert counts(trace)["quantity-unknown"] == 1


@pytest.mark.parametrize("stamp", ["1714566896", "2024-05-01 12:34:56Z"])
def test_a_time_and_the_usage_alone(tmp_path: Path, stamp: str) -> None:
    """It was of no known format."""
    trace = ci.read(file_of(tmp_path, f"Time,GPU_Usage\n{stamp},50\n".encode()))
    assert lanes(trace) == {(0, "GFX activity"): [50.0]}
    assert trace.meta.clock == "realtime"


@pytest.mark.parametrize(
    ("days", "read"),
    [(("04-03-2021",), False), (("12-03-2021", "13-03-2021"), True), (("04-03-2021", "05-03-2021"), True)],
)  # fmt: skip
def test_dates_that_end_in_the_year_are_read_if_the_file_shows_which_is_the_month(
    tmp_path: Path, days: tuple[str, ...], *, read: bool
) -> None:
    """By a number above 12, or as the days follow each other; else one line says that they may be two days."""
    rows = "".join(f"{day} 12:00:00.5, 0, 300.0 W\n" for day in days)
    file = file_of(tmp_path, f"timestamp, index, power.draw [W]\n{rows}".encode())
    if not read:
        with pytest.raises(ReadError, match="may be read as two different days"):
            ci.read(file, tz="UTC")
        return
    times = [t for t, _ in points_of(ci.read(file, tz="UTC"))[0, "socket power"]]
    written = [datetime(2021, 3, int(day[:2]), 12, tzinfo=timezone.utc) for day in days]
    assert times == [int(time.timestamp()) * 10**9 + 500_000_000 for time in written]


def test_names_of_scripts_around_dmon_and_dcgm(tmp_path: Path) -> None:
    text = (
        "GPUId,TimeStampUs,Watts,sm_util,memory_util,enc_util,mem_temp_c,power_limit_w\n"
        "1,1718369824263312,71.12,78,45,1,70,400\n"
    )
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert {
        key: points for key, points in points_of(trace).items() if key[1] == "socket power"
    } == {(1, "socket power"): [(1718369824263312000, 71.12)]}
    assert lanes(trace) == {
        (1, "socket power"): [71.12],
        (1, "GFX activity"): [78.0],
        (1, "memory activity"): [45.0],
        (1, "encoder activity"): [1.0],
        (1, "temperature memory"): [70.0],
        (1, "power limit"): [400.0],
    }
    assert "quantity-unknown" not in counts(trace)


def test_columns_in_unknown_units_keep_their_names(tmp_path: Path) -> None:
    text = (
        "timestamp,gpu_id,power,memory_used,temperature\n1714566896.789,0,300500,83886080000,60\n"
    )
    assert lanes(ci.read(file_of(tmp_path, text.encode()))) == {
        (0, "power"): [300500.0],
        (0, "memory_used"): [83886080000.0],
        (0, "temperature GPU"): [60.0],
    }


def test_dmon_as_csv(tmp_path: Path) -> None:
    text = "#gpu, pwr, rxpci\n#Idx, W, MB/s\n0, 100, 5\n0, 101, 6\n"
    trace = ci.read(file_of(tmp_path, text.encode(), "dmon.txt"), at_ns=START_NS, period_ms=100)
    assert lanes(trace) == {
        (0, "socket power"): [100.0, 101.0],
        (0, "PCIe bandwidth received"): [40.0, 48.0],
    }


@pytest.mark.parametrize("made", [smi_log, smi_xml])
def test_logs(tmp_path: Path, made: object) -> None:
    data: bytes = made(3, 2)  # type: ignore[operator]
    path = file_of(tmp_path, data, "log.txt")
    trace = ci.read(path, tz="+00:00")
    assert_all_rows_counted(trace)
    assert lanes(trace)[1, "socket power"] == [300.25, 301.25, 302.25]
    assert lanes(trace)[0, "gfx clock"] == [1975.0] * 3
    assert lanes(trace)[0, "graphics clock"] == [1980.0] * 3
    assert lanes(trace)[1, "GFX activity"] == [91.0] * 3
    assert lanes(trace)[1, "throttle status SW power cap"] == [1.0] * 3
    assert lanes(trace)[0, "VRAM used"] == [n * 1024**2 for n in (1000, 1001, 1002)]
    assert lanes(trace)[0, "temperature GPU"] == [61.0] * 3
    alone = read_file([path])
    assert alone.meta.facts["driver_version"] == "550.54.15"
    assert [(d.index, d.pci) for d in alone.meta.devices] == [
        (0, "0000:0f:00.0"),
        (1, "0000:10:00.0"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "GPU 0: NVIDIA A100 (UUID: GPU-5428af19-1e82-a38c-ee42-cdd3ad745b7e)\n",
        "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-47\n",
        "memory [MHz], graphics [MHz]\n2619 MHz, 1980 MHz\n",
        "gpu_name, pid, process_name, used_gpu_memory [MiB]\nH100, 1, python, 12 MiB\n",
    ],
)
def test_recognised(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownFormatError, match="record with --query-gpu"):
        ci.read(file_of(tmp_path, text.encode(), "x.txt"))


def test_query_names_are_those_of_the_seed() -> None:
    assert QUERY.startswith("timestamp, index")


@pytest.mark.parametrize("parted", [", ", "   "])
def test_dmon_without_a_heading(tmp_path: Path, parted: str) -> None:
    rows = (("0", "71", "40", "-", "12"), ("1", "72", "41", "-", "13"))
    (tmp_path / "d.txt").write_text("".join(parted.join(row) + "\n" for row in rows))
    options = {"columns": "gpu pwr gtemp mtemp sm", "at_ns": 1_700_000_000_000_000_000}
    trace = ci.read(tmp_path / "d.txt", from_format="nvidia-smi", **options)
    assert lanes(trace)[1, "socket power"] == [72]
    assert lanes(trace)[0, "GFX activity"] == [12]
    assert_all_rows_counted(trace)


@pytest.mark.parametrize(
    ("name", "whose"),
    [
        ("gfx", "amd-smi"),
        ("mem_clock", "amd-smi"),
        ("power_usage", "amd-smi"),
        ("fb_used,gfx", "amd-smi"),
        ("power_w", "nvidia-smi"),
        ("mem_clock,sm_clock", "nvidia-smi"),
        ("uuid,power.draw [W]", "nvidia-smi"),
        ("utilization_gpu,power_usage", "nvidia-smi"),
    ],
)
def test_headers_that_begin_like_those_of_amd_smi(name: str, whose: str) -> None:
    head = f"timestamp,gpu,{name}\n1700000000,0,1,2\n".encode()
    assert [c.name for c in sniffed(head)] == [whose]


def test_lists_in_amd_smis_text_are_no_rows() -> None:
    text = b"GPU: 0\n    USAGE:\n        VCN_ACTIVITY: [0 %, 0 %, 12 %]\n        MM_ACTIVITY: N/A\n"
    assert [c.name for c in sniffed(text)] == ["amd-smi-text"]


CALL = "utilization.gpu [%], power.draw [W]\n90 %, 100.00 W\n91 %, 101.00 W\n"


@pytest.mark.parametrize(
    ("line", "clock"),
    [
        ("Sun Nov 29 01:07:{:02d} UTC 2026", "realtime"),
        ("2026-11-29 01:07:{:02d}", "localtime"),
        ("== Time: 2026-11-29T01:07:{:02d}.250+00:00 ==", "realtime"),
    ],
)
def test_a_time_in_front_of_each_call_is_that_of_its_rows(
    tmp_path: Path, line: str, clock: str
) -> None:
    text = "".join(f"{line.format(second)}\n{CALL}\n" for second in range(0, 40, 2))
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert trace.meta.clock == clock
    assert lanes(trace)[1, "socket power"] == [101.0] * 20
    times = [time for time, _ in points_of(trace)[1, "socket power"]]
    assert times[-1] - times[0] == 38 * 10**9
    assert 0 <= times[0] - datetime(2026, 11, 29, 1, 7, tzinfo=timezone.utc).timestamp() * 1e9 < 1e9
    assert counts(trace)["gpu-by-order"] == 40
    assert "line-without-data" not in counts(trace)
    assert_all_rows_counted(trace)


def test_rows_behind_each_header_are_gpus_where_they_are_equally_many(tmp_path: Path) -> None:
    path = file_of(tmp_path, (CALL * 3).encode())
    trace = read_file([path], at_ns=START_NS, period_ms=1000)
    assert lanes(trace)[0, "socket power"] == [100.0] * 3
    assert [time for time, _ in points_of(trace)[1, "socket power"]] == [
        START_NS - n * 10**9 for n in (2, 1, 0)
    ]
    runs = file_of(tmp_path, (CALL + "90 %, 1.00 W\n" + CALL * 2).encode())
    assert "gpu-by-order" not in counts(read_file([runs], at_ns=START_NS, period_ms=1000))


@pytest.mark.parametrize("rows", [1, 2])
def test_two_queries_behind_one_time_are_of_the_same_gpus(tmp_path: Path, rows: int) -> None:
    memory = "memory.used [MiB], utilization.gpu [%]\n" + "5 MiB, 7 %\n" * rows
    power = "power.draw [W], temperature.gpu\n100.00 W, 40\n"
    text = "".join(f"2026-11-29 01:07:{s:02d}\n{power}{memory}" for s in range(9))
    path = file_of(tmp_path, text.encode())
    if rows == 1:
        assert {gpu for gpu, _ in lanes(ci.read(path))} == {0}
        return
    with pytest.raises(ReadError, match="no samples"):  # of which GPU the power is, nothing says
        ci.read(path)


def test_gpm_metrics_of_dmon_have_the_units_behind_their_prefix(tmp_path: Path) -> None:
    text = (
        "# gpu   pwr smutil  smocc intutil mmaact   dram   fp16  pcitx     nvlrx\n"
        "# Idx     W  GPM:%  GPM:%   GPM:%  GPM:%  GPM:%  GPM:% GPM:MiB/s GPM:MiB/s\n"
        "    0   119     98     40       3     55     20      2       100         -\n"
    )
    path = file_of(tmp_path, (text * 2).encode())
    trace = read_file([path], at_ns=START_NS, period_ms=1000)
    assert {name: values[0] for (_, name), values in lanes(trace).items()} == {
        "socket power": 119.0, "SM active": 98.0, "SM occupancy": 40.0, "integer active": 3.0,
        "tensor active": 55.0, "DRAM active": 20.0, "FP16 active": 2.0,
        "PCIe bandwidth sent": pytest.approx(838.8608),
    }  # fmt: skip
    assert {"unit-unknown", "line-without-data"}.isdisjoint(counts(trace))


def test_a_script_may_log_one_value_of_one_gpu(tmp_path: Path) -> None:
    rows = [f"{START_NS + n * 130_000_000},{13 + n}.25" for n in range(4)]
    trace = ci.read(
        file_of(tmp_path, "\n".join(["Timestamp (ns),Power Draw (W)", *rows, ""]).encode())
    )
    assert points_of(trace)[0, "socket power"] == [
        (START_NS + n * 130_000_000, 13.25 + n) for n in range(4)
    ]
    other = b"timestamp,power_limit\n1764378420,5\n"  # of anything
    assert not sniffed(other, tmp_path / "a.csv")


def test_memory_of_dmon_may_have_a_script_s_names(tmp_path: Path) -> None:
    text = "timestamp,gpu_id,fb_mem_mb,bar1_mem_mb,ccpm_mem_mb\n1764378420,0,4096,5,0\n"
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert units(trace) == {"VRAM used": "B", "BAR1 used": "B", "protected memory used": "B"}


def test_rows_without_any_value_are_named(tmp_path: Path) -> None:
    text = "TIMESTAMP  GPU  POWER  GPU_TEMP\n1764378420    0    N/A       N/A\n"
    with pytest.raises(ReadError, match="no samples") as caught:
        ci.read(file_of(tmp_path, text.encode(), "smi.txt"))
    assert "all are N/A" in str(caught.value.hint)


def test_sums_of_codecarbon_are_no_samples(tmp_path: Path) -> None:
    text = (
        "timestamp,project_name,run_id,duration,emissions,gpu_power,gpu_energy,gpu_utilization_percent\n"
        "2024-05-31T10:39:13,a,409f7ac2,355.46,3.4e-05,0.02,8.2e-05,1.0\n"
    )
    with pytest.raises(UnknownFormatError, match="sums over runs"):
        ci.read(file_of(tmp_path, text.encode(), "emissions.csv"))


def table(second: int, power: int) -> str:
    return f"""Sun Nov 29 01:07:{second:02d} 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 565.57.01              Driver Version: 565.57.01      CUDA Version: 12.7     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  Quadro RTX 8000                On  |   00000000:1D:00.0 Off |                  Off |
| 33%   31C    P8             {power}W /  260W |       1MiB /  49152MiB |      7%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA L40S                    On  |   00000000:4A:00.0 Off |                    0 |
| N/A   53C    P0            305W /  350W |   11948MiB /  46068MiB |     93%      Default |
|                                         |                        |                  N/A |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|    1   N/A  N/A      1234      C   python                                      11940MiB |
+-----------------------------------------------------------------------------------------+
"""


def test_tables_of_a_loop_are_samples(tmp_path: Path) -> None:
    text = "".join(table(second, 31 + second) for second in range(0, 40, 2))
    path = file_of(tmp_path, text.encode(), "smi.log")
    trace = ci.read(path)
    by_lane = lanes(trace)
    assert by_lane[0, "socket power"] == [31.0 + second for second in range(0, 40, 2)]
    assert {name: by_lane[1, name][0] for gpu, name in by_lane if gpu == 1} == {
        "socket power": 305.0, "power limit": 350.0, "temperature GPU": 53.0, "GFX activity": 93.0,
        "performance state": 0.0, "VRAM used": 11948 * 1024**2, "VRAM total": 46068 * 1024**2,
    }  # fmt: skip
    assert [(d.name, d.pci) for d in read_file([path]).meta.devices] == [
        ("Quadro RTX 8000", "0000:1d:00.0"), ("NVIDIA L40S", "0000:4a:00.0"),
    ]  # fmt: skip
    assert trace.meta.facts["driver_version"] == "565.57.01"
    assert counts(trace)["processes-left-out"] == 20
    assert_all_rows_counted(trace)
    once = file_of(tmp_path, table(0, 31).encode(), "once.log")
    with pytest.raises(UnknownFormatError, match="prints once"):
        ci.read(once)


def test_memory_of_a_query_is_in_mebibytes_without_the_header_s_unit(tmp_path: Path) -> None:
    text = "timestamp,index,memory.used,power.draw\n1764378420,0,4,70\n1764378421,0,5 MiB,70\n"
    trace = ci.read(file_of(tmp_path, text.encode()))
    assert lanes(trace)[0, "VRAM used"] == [4 * 1024**2, 5 * 1024**2]


@pytest.mark.parametrize(
    "text",
    [
        "3 field groups found.\n+-----+-----+\n| FIELD GROUPS    |\n+=====+=====+\n",
        "+-----+-----+\n| GROUPS          |\n| 2 groups found. |\n+=====+=====+\n",
    ],
)
def test_lists_of_groups_of_dcgmi_are_recognised(tmp_path: Path, text: str) -> None:
    with pytest.raises(UnknownFormatError, match="dcgmi prints once"):
        ci.read(file_of(tmp_path, text.encode(), "groups.txt"))


@pytest.mark.parametrize("own", [False, True])
def test_a_time_in_front_of_each_line_of_csv_is_that_of_its_row(
    tmp_path: Path, *, own: bool
) -> None:
    stamp = "2026-11-29T01:07:{:02d}.250000Z "
    rows = [f"{gpu}, {100 + gpu}.00 W" for _ in range(5) for gpu in (0, 1)]
    lines = ["index, power.draw [W]", *rows, "Killed"]
    if own:
        lines = [f"{'timestamp' if n == 0 else 1764378420}, {line}" for n, line in enumerate(lines)]
    text = "".join(f"{stamp.format(n // 2)}{line}\n" for n, line in enumerate(lines))
    trace = ci.read(file_of(tmp_path, text.encode(), "smi.log"))
    assert lanes(trace)[1, "socket power"] == [101.0] * 5
    first = int(datetime(2026, 11, 29, 1, 7, 1, tzinfo=timezone.utc).timestamp()) * 10**9
    assert own or points_of(trace)[1, "socket power"][0][0] == first + 250_000_000


@pytest.mark.parametrize("zone", ["", "Z"])
def test_dates_that_end_in_the_year_are_those_of_their_rows(tmp_path: Path, zone: str) -> None:
    """Of rows in a zone those without one are left out, and counted once."""
    rows = [f"03/{day}/2026 01:00:00.500{zone}, 0, {day} W" for day in (11, 12, 13)]
    if zone:
        rows.append("03/13/2026 01:00:01.500, 0, 14 W")
    trace = ci.read(
        file_of(tmp_path, "\n".join(["timestamp, index, power.draw [W]", *rows]).encode())
    )
    first = int(datetime(2026, 3, 11, 1, tzinfo=timezone.utc).timestamp()) * 10**9 + 500_000_000
    day_ns = 24 * 3600 * 10**9
    samples = [(first + n * day_ns, 11.0 + n) for n in range(3)]
    assert points_of(trace)[0, "socket power"] == samples
    lost = {i.code: i.count for i in trace.meta.issues if i.severity.name != "INFO"}
    assert lost == ({"time-without-zone": 1} if zone else {})


def test_a_row_with_neither_gpu_nor_zone_is_counted_once(tmp_path: Path) -> None:
    text = """timestamp, pci.bus_id, power.draw [W]
2024/05/01 12:34:56.789, , 300.5
2024/05/01 12:34:56.789+02:00, 00000000:0F:00.0, 300.5
2024/05/01 12:34:56.789+02:00, 00000000:10:00.0, 300.5
"""
    trace = ci.read(file_of(tmp_path, text.encode()))
    counted = {issue.code: issue.count for issue in trace.meta.issues if issue.events}
    assert counted == {"time-without-zone": 1, "row-as-samples": 2}
    assert trace.meta.sources[0].events == 3

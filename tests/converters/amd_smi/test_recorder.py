"""The recorder's CSV: exact times on three clocks, millions of rows, columns by name."""

import csv
import itertools
import statistics
from collections import defaultdict
from pathlib import Path

import pytest
from issue_counts import counts
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop.converters.amd_smi import RECORDER
from chopper_interop.converters.amd_smi.recorder_samples import read as read_recorder
from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.schemas.meta import BOOTTIME

SAMPLE = "telemetry/amd_smi_7.1_real_tool_simulated_gpus/sampler-50Hz-8gpu-10s.csv"
BOOTED_NS = 1_795_203_926_303_384_992
NOW_NS = 1_795_207_823_869_444_807
CLOCKS = "realtime_ns,monotonic_ns,boottime_ns,gpu"


def clocks(ms: int, gpu: int, delay_ns: int = 200) -> str:
    """Clocks of a row, read one after the other."""
    real = NOW_NS + ms * 1_000_000
    return f"{real},{real - BOOTED_NS + 60},{real - BOOTED_NS + delay_ns},{gpu}"


def read(folder: Path, text: str | bytes) -> ci.Trace:
    path = folder / "recorder.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert RECORDER.sniff(inputs.head(path)), "not recognised"
    trace = read_recorder([path])
    assert_all_rows_counted(trace)
    return trace


def test_times_and_values_are_exactly_those_of_the_file(shared: Path) -> None:
    with (shared / SAMPLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = {
        "socket power": ("current_socket_power", 1.0),
        "gfx clock": ("current_gfxclk", 1.0),
        "temperature hotspot": ("temperature_hotspot", 1.0),
        "GFX activity": ("average_gfx_activity", 1.0),
        "energy": ("energy_accumulator", 2.0**-16),
        "accumulation counter": ("accumulation_counter", 1.0),
    }
    expected = defaultdict(list)
    previous: dict[str, dict[str, str]] = {}
    repeated = 0
    for row in rows:
        values = {k: v for k, v in row.items() if k not in CLOCKS.split(",")[:3]}
        values.pop("firmware_timestamp")
        if previous.get(row["gpu"]) == values:
            repeated += 1
            continue
        previous[row["gpu"]] = values
        ns = {k: int(row[k]) for k in ("system_clock_counter", "realtime_ns", "boottime_ns")}
        at = ns["system_clock_counter"] + ns["realtime_ns"] - ns["boottime_ns"]
        for lane, (column, scale) in columns.items():
            expected[int(row["gpu"]), lane].append((at, int(row[column]) * scale))
    trace = read_recorder([shared / SAMPLE])
    actual = points_of(trace)
    for key, points in expected.items():
        assert actual[key] == points, key
    assert len(expected) == 8 * len(columns)
    assert counts(trace)["sample-read-again"] == repeated
    assert trace.meta.sources[0].events == len(rows)
    assert_all_rows_counted(trace)


def test_shares_of_throttling(shared: Path) -> None:
    with (shared / SAMPLE).open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["gpu"] == "3"]
    steps = [
        (
            int(b["accumulation_counter"]) - int(a["accumulation_counter"]),
            int(b["ppt_residency_acc"]) - int(a["ppt_residency_acc"]),
        )
        for a, b in itertools.pairwise(rows)
    ]
    shares, rest = [], 0
    for all_, held in [step for step in steps if step[0] and step[1] >= 0]:
        within = min(held + rest, all_)  # what is too much is of the next interval
        rest += held - within
        shares.append(100.0 * within / all_)
    assert len(shares) > 400
    assert max(shares) > 80
    by_lane = lanes(read_recorder([shared / SAMPLE]))
    assert by_lane[3, "throttle share PPT"] == pytest.approx(shares)


def test_how_the_clocks_relate_is_in_the_meta(shared: Path) -> None:
    with (shared / SAMPLE).open(newline="") as file:
        rows = list(csv.DictReader(file))
    trace = read_recorder([shared / SAMPLE])
    offsets = {o.clock: o for o in trace.meta.offsets}
    for clock, column in ((BOOTTIME, "boottime_ns"), ("monotonic", "monotonic_ns")):
        since = [int(row["realtime_ns"]) - int(row[column]) for row in rows]
        assert abs(offsets[clock].offset_ns - statistics.median(since)) <= 1
        assert 0 <= max(since) - min(since) - offsets[clock].uncertainty_ns < 1000
    assert trace.meta.offsets[0].clock == BOOTTIME
    uncertain = {s["uncertainty_ns"] for s in trace.series.to_pylist()}
    assert uncertain == {offsets[BOOTTIME].uncertainty_ns}
    assert max(uncertain) < 10_000


def test_without_the_drivers_time_a_sample_is_as_of_its_row(tmp_path: Path) -> None:
    rows = [f"{clocks(20 * k + g, g)},{500 + g}\n" for k in range(3) for g in range(2)]
    trace = read(tmp_path, f"{CLOCKS},current_socket_power\n" + "".join(rows))
    assert points_of(trace) == {
        (g, "socket power"): [(NOW_NS + (20 * k + g) * 1_000_000, 500.0 + g) for k in range(3)]
        for g in range(2)
    }
    assert {s["uncertainty_ns"] for s in trace.series.to_pylist()} == {1_000_000}


def test_a_drivers_time_that_cannot_be_is_not_taken(tmp_path: Path) -> None:
    near, far = NOW_NS - BOOTED_NS - 5000, (NOW_NS - BOOTED_NS) * 10
    text = (
        f"{CLOCKS},system_clock_counter,current_socket_power\n"
        f"{clocks(0, 0)},{near},500\n"
        f"{clocks(20, 0)},{far},501\n"
        f"{clocks(40, 0)},N/A,502\n"
    )
    trace = read(tmp_path, text)
    assert points_of(trace)[0, "socket power"] == [
        (NOW_NS - 5200, 500.0),
        (NOW_NS + 20_000_000, 501.0),
        (NOW_NS + 40_000_000, 502.0),
    ]
    assert counts(trace)["sample-clock-far"] == 1


def test_further_columns_by_name(tmp_path: Path) -> None:
    columns = {
        "current_uclk": ("1300", "memory clock", 1300.0, "MHz"),
        "temperature_mem": ("41", "temperature memory", 41.0, "°C"),
        "current_gfxclk_0": ("2100", "gfx clock XCD 0", 2100.0, "MHz"),
        "current_gfxclk_1": ("2090", "gfx clock XCD 1", 2090.0, "MHz"),
        "energy_accumulator": ("65536", "energy", 1.0, "J"),
        "pcie_link_speed": ("320", "PCIe speed", 32.0, "GT/s"),
        "average_umc_activity": ("12", "memory activity", 12.0, "%"),
        "xgmi_read_data_acc_0": ("3", "XGMI read link 0", 3072.0, "B"),
        "xgmi_write_data_acc_7": ("4", "XGMI written link 7", 4096.0, "B"),
        "xgmi_link_speed": ("32", "XGMI speed", 32_000.0, "Mb/s"),
        "pcie_nak_rcvd_count_acc": ("65535", "PCIe NAK received count", 65535.0, ""),
        "new_counter": ("7", "new_counter", 7.0, ""),
    }
    cells = ",".join(cell for cell, *_ in columns.values())
    trace = read(tmp_path, f"{CLOCKS},{','.join(columns)}\n{clocks(0, 0)},{cells}\n")
    by_lane = lanes(trace)
    for _, lane, value, unit in columns.values():
        assert by_lane[0, lane] == [value], lane
        assert units(trace)[lane] == unit


def test_lists_and_values_that_are_not_there(tmp_path: Path) -> None:
    text = (
        f"{CLOCKS},current_gfxclks,temperature_edge,current_socket_power\n"
        f'{clocks(0, 0)},"[2100, 2000, N/A]",65535,500\n'
        f'{clocks(20, 0)},"[2101, 2001, N/A]",65535,N/A\n'
    )
    trace = read(tmp_path, text)
    assert lanes(trace) == {
        (0, "gfx clock XCD 0"): [2100, 2101],
        (0, "gfx clock XCD 1"): [2000, 2001],
        (0, "socket power"): [500],
    }
    assert counts(trace)["value-not-available"] == 2


def test_words_among_the_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{clocks(k, 0)},{500 + k},{k}\n" for k in range(50))
    text = f"{CLOCKS},current_socket_power,current_uclk\n{rows}{clocks(50, 0)},AUTO,50\n"
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "socket power"] == [500 + k for k in range(50)]
    assert lanes(trace)[0, "memory clock"] == list(range(51))
    assert counts(trace)["cell-not-a-number"] == 1


def test_a_file_that_is_cut_and_one_of_two_runs(tmp_path: Path) -> None:
    header = f"{CLOCKS},current_socket_power\r\n"
    text = header + f"{clocks(0, 0)},500\r\n" + header + f"{clocks(20, 0)},501\r\n"
    trace = read(tmp_path, text + clocks(40, 0) + ",50")
    assert lanes(trace) == {(0, "socket power"): [500, 501]}
    assert counts(trace)["row-cut-short"] == 1


def test_rows_that_are_no_rows_are_counted(tmp_path: Path) -> None:
    text = (
        f"{CLOCKS},current_socket_power\n"
        f"{clocks(0, 0)},500\n"
        "1,2,3\n"
        f"x,1,2,0,501\n"
        f"{clocks(20, 0)},502\n"
    )
    trace = read(tmp_path, text.encode() + b"\xec\xff,1\n")
    assert lanes(trace) == {(0, "socket power"): [500, 502]}
    assert counts(trace)["row-cut-short"] == 2
    assert counts(trace)["row-without-clock"] == 1


def test_a_sample_that_is_read_twice_is_one(tmp_path: Path) -> None:
    """At 1 kHz the driver's table is often not yet a new one."""
    header = f"{CLOCKS},system_clock_counter,current_socket_power\n"
    boot = NOW_NS - BOOTED_NS
    text = header + "".join(
        f"{clocks(k, 0)},{boot + k // 2 * 2_000_000},{500 + k // 2}\n" for k in range(6)
    )
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "socket power"] == [500, 501, 502]
    assert counts(trace)["sample-read-again"] == 3


def test_a_clock_that_was_set_is_reported(tmp_path: Path) -> None:
    header = f"{CLOCKS},system_clock_counter,current_socket_power\n"
    rows = []
    for k in range(4):
        real = NOW_NS + k * 20_000_000 + (0 if k < 2 else 3_000_000)
        boot = NOW_NS - BOOTED_NS + k * 20_000_000
        rows.append(f"{real},{boot},{boot},0,{boot},500\n")
    trace = read(tmp_path, header + "".join(rows))
    assert counts(trace)["clocks-moved"] == 1
    assert {s["uncertainty_ns"] for s in trace.series.to_pylist()} == {3_000_000}


def test_integers_beyond_floating_point_stay_exact(tmp_path: Path) -> None:
    boot = 9_007_199_254_740_993  # 2^53 + 1
    real = BOOTED_NS + boot
    text = (
        f"{CLOCKS},system_clock_counter,current_socket_power\n{real},{boot},{boot},0,{boot},500\n"
    )
    assert points_of(read(tmp_path, text)) == {(0, "socket power"): [(real, 500.0)]}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("realtime_ns,gpu,power", "another clock"),
        (f"{CLOCKS},power,power", "same name"),
    ],
)
def test_what_is_no_recorders_file(tmp_path: Path, header: str, why: str) -> None:
    path = tmp_path / "x.csv"
    path.write_text(f"{header}\n1,2,3,4,5,6\n")
    with pytest.raises(ReadError, match=why):
        read_recorder([path])

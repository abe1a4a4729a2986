"""rocm-smi in every form: the same lanes as amd-smi, and no time made up."""

import csv
import json
import os
import re
from pathlib import Path

import pytest
from issue_counts import counts
from slow import slow_from
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.amd_smi import ROCM_SMI
from chopper_interop.errors import UnknownFormatError
from chopper_interop.io import inputs

AT_NS = 1_700_000_000_123_456_789
T = 1_754_585_903
SECOND = 1_000_000_000
REAL = "telemetry/rocm_smi_real"
WARNING = (
    "WARNING: AMD GPU device(s) is/are in a low-power state. Check power control/runtime_status\n"
)
CARD = {
    "Temperature (Sensor edge) (C)": "31.0",
    "Temperature (Sensor junction) (C)": "44.0",
    "Temperature (Sensor memory) (C)": "40.0",
    "sclk clock speed:": "(1500Mhz)",
    "sclk clock level:": "1",
    "Average Graphics Package Power (W)": "128.0",
    "GPU use (%)": "97",
    "GPU Memory Allocated (VRAM%)": "14",
    "GPU Memory Read/Write Activity (%)": "2",
    "Accumulated Energy (uJ)": "2000000.5",
    "VRAM Total Memory (B)": "68702699520",
    "VRAM Total Used Memory (B)": "11000",
}
LANES = {
    "temperature edge": (31.0, "°C"),
    "temperature hotspot": (44.0, "°C"),
    "temperature memory": (40.0, "°C"),
    "gfx clock": (1500.0, "MHz"),
    "socket power": (128.0, "W"),
    "GFX activity": (97.0, "%"),
    "VRAM used share": (14.0, "%"),
    "memory activity": (2.0, "%"),
    "energy": (2.0000005, "J"),
    "VRAM total": (68702699520.0, "B"),
    "VRAM used": (11000.0, "B"),
}


def read(folder: Path, text: str | bytes, **options: object) -> ci.Trace:
    path = folder / "smi.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert [c.name for c in registry.sniffed(inputs.head(path))] == ["rocm-smi"]
    trace = ROCM_SMI.reader([path], **options)
    assert_all_rows_counted(trace)
    return trace


def as_csv(card: dict[str, str], cards: int = 1) -> str:
    rows = "".join(f"card{n},{','.join(card.values())}\n" for n in range(cards))
    return f"device,{','.join(card)}\n{rows}\n"


def as_text(card: dict[str, str], cards: int = 1) -> str:
    lines = "".join(
        f"GPU[{n}]\t\t: {key.rstrip(':')}: {value}\n"
        for key, value in card.items()
        for n in range(cards)
    )
    begin = "============ ROCm System Management Interface ============\n===== Some =====\n"
    return f"{begin}{lines}==========\n============= End of ROCm SMI Log =============\n"


def test_all_forms_give_the_same_lanes(tmp_path: Path) -> None:
    for text in (json.dumps({"card0": CARD}), as_csv(CARD), as_text(CARD)):
        trace = read(tmp_path, WARNING + text, at_ns=AT_NS)
        assert lanes(trace) == {(0, name): [value] for name, (value, _) in LANES.items()}
        assert units(trace) == {name: unit for name, (_, unit) in LANES.items()}
        assert counts(trace)["energy-reads-high"] == 1


def test_a_clock_that_one_output_has_several_times(tmp_path: Path) -> None:
    card = {
        "Temperature (Sensor edge) (C)": "45.0",
        "sclk clock speed:": "(500Mhz)",
        "sclk clock level:": "1",
        "pcie clock level": "1 (16.0GT/s x16)",
        "sclk clock level": "1 (500Mhz)",
        "10": "1319Mhz",
        "Average Graphics Package Power (W)": "6.0",
    }
    for text in (json.dumps({"card0": card, "card1": card}), as_csv(card, 2)):
        trace = read(tmp_path, text, at_ns=AT_NS)
        assert lanes(trace) == {
            (device, name): [value]
            for device in range(2)
            for name, value in (("temperature edge", 45), ("gfx clock", 500), ("socket power", 6))
        }
        assert counts(trace).keys() == {"row-as-samples", "time-from-option"}


METRICS = {
    "Metric Version and Size (Bytes)": "1.5 680",
    "temperature_edge (C)": "N/A",
    "temperature_hotspot (C)": "45",
    "temperature_hbm (C)": "[38, 39]",
    "average_gfx_activity (%)": "97",
    "energy_accumulator (15.259uJ (2^-16))": "131072",
    "system_clock_counter (ns)": "123456789012345",
    "current_gfxclk (MHz)": "2100",
    "current_fan_speed (rpm)": "1200",
    "pcie_link_speed (0.1 GT/s)": "320",
    "firmware_timestamp (10ns resolution)": "1234567890",
    "current_socket_power (W)": "544",
    "current_gfxclks (MHz)": "[2100, 1800, 'N/A']",
    "accumulation_counter (Count)": "1000",
    "ppt_residency_acc (Count)": "250",
}
"""``rocm-smi --showmetrics``: members of gpu_metrics as ``showGPUMetrics`` of rocm_smi.py prints them."""


def test_the_drivers_table_of_metrics(tmp_path: Path) -> None:
    # rocm-smi's CSV has no commas within values
    without_commas = {key: value.replace(",", "") for key, value in METRICS.items()}
    for text in (json.dumps({"card0": METRICS}), as_csv(without_commas), as_text(METRICS)):
        trace = read(tmp_path, text, at_ns=AT_NS)
        assert lanes(trace) == {
            (0, "temperature hotspot"): [45],
            (0, "temperature HBM stack 0"): [38],
            (0, "temperature HBM stack 1"): [39],
            (0, "GFX activity"): [97],
            (0, "energy"): [2],
            (0, "gfx clock"): [2100],
            (0, "gfx clock XCD 0"): [2100],
            (0, "gfx clock XCD 1"): [1800],
            (0, "fan rotation"): [1200],
            (0, "PCIe speed"): [32],
            (0, "socket power"): [544],
            (0, "accumulation counter"): [1000],
            (0, "throttle residency PPT"): [250],
        }
        assert units(trace)["energy"] == "J"
        assert "quantity-unknown" not in counts(trace)


def test_values_of_partitions(tmp_path: Path) -> None:
    text = as_text(METRICS) + (
        "GPU[0] XCP[0]\t: xcp_stats.gfx_busy_inst (%): [97, 96]\n"
        "GPU[0] XCP[1]\t: xcp_stats.gfx_busy_inst (%): [0, 'N/A']\n"
        "GPU[0] XCP[1]\t: xcp_stats.vcn_busy (%): [3]\n"
    )
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert {name: value for (_, name), value in lanes(trace).items() if "busy" in name} == {
        "GFX busy XCP 0 XCD 0": [97],
        "GFX busy XCP 0 XCD 1": [96],
        "GFX busy XCP 1 XCD 0": [0],
        "VCN busy XCP 1 engine 0": [3],
    }
    assert not counts(trace).keys() & {"line-without-data", "quantity-unknown"}


def test_values_that_all_of_rocm_smi_has_twice_are_one_lane(tmp_path: Path) -> None:
    trace = read(tmp_path, json.dumps({"card0": CARD | METRICS}), at_ns=AT_NS)
    assert lanes(trace)[0, "socket power"] == [128]
    assert lanes(trace)[0, "current_socket_power (W)"] == [544]


CONCISE = {
    "MI300X_smi.out.txt": 1,
    "MI300X_x4_smi.out.txt": 4,
    "rocm-smi-4xMI300A.txt": 4,
}


@pytest.mark.parametrize("name", CONCISE)
def test_the_concise_table(shared: Path, name: str) -> None:
    path = shared / REAL / name
    trace = ROCM_SMI.reader([path], at_ns=AT_NS)
    assert_all_rows_counted(trace)
    row = re.compile(
        r"^(\d+) .*?([\d.]+)°C +([\d.]+)W .*? (\d+)Mhz +(\d+)Mhz +(\d+)% +\w+ +([\d.]+)W +(\d+)%"
        r" +(\d+)%",
        re.MULTILINE,
    )
    names = ("temperature hotspot", "socket power", "gfx clock", "memory clock", "fan usage")
    names = (*names, "power limit", "VRAM used share", "GFX activity")
    rows = row.findall(path.read_text())
    assert len(rows) == CONCISE[name] == counts(trace)["row-as-samples"]
    assert lanes(trace) == {
        (int(card), lane): [float(value)]
        for card, *values in rows
        for lane, value in zip(names, values, strict=True)
    }
    assert trace.meta.facts["power_cap_w"] == str(int(float(rows[0][6])))


def test_the_table_of_the_hardware(tmp_path: Path) -> None:
    text = (
        "================ ROCm System Management Interface ================\n"
        "====================== Concise Hardware Info =====================\n"
        "GPU  NODE  DID     GUID   GFX VER  GFX RAS  SDMA RAS  UMC RAS   VBIOS  BUS           PARTITION ID\n"
        "0    4     0x74a0  3877   gfx942   ENABLED  ENABLED   DISABLED  N/A    0000:01:00.0  0\n"
        "1    5     0x74a0  54196  gfx942   ENABLED  ENABLED   DISABLED  N/A    0001:01:00.0  0\n"
        "==================================================================\n"
        "====================== End of ROCm SMI Log =======================\n"
    )
    trace = read(tmp_path, text)
    assert [(d.index, d.agent) for d in trace.meta.devices] == [(0, 4), (1, 5)]
    assert trace.meta.facts["gfx"] == "gfx942"
    assert counts(trace) == {"row-as-description": 2}


def test_the_names_next_to_a_concise_table(shared: Path) -> None:
    trace = ROCM_SMI.reader([shared / REAL / "MI300X_x4_smi.out.txt"])
    assert {d.name for d in trace.meta.devices} == {"AMD Instinct MI300X"}
    trace = ROCM_SMI.reader([shared / REAL / "rocm-smi-4xMI300A.txt"])
    assert [(d.index, d.agent) for d in trace.meta.devices] == [(0, 4), (1, 5), (2, 6), (3, 7)]


def test_all_values_of_rocm_smi(shared: Path) -> None:
    path = shared / REAL / "MI300X_x4_smi.out_a.txt"
    trace = ROCM_SMI.reader([path], at_ns=AT_NS)
    assert_all_rows_counted(trace)
    text = path.read_text()
    by_lane = lanes(trace)
    for lane, key in {
        "temperature hotspot": r"Temperature \(Sensor junction\) \(C\)",
        "temperature memory": r"Temperature \(Sensor memory\) \(C\)",
        "socket power": r"Current Socket Graphics Package Power \(W\)",
        "gfx clock": r"sclk clock level: \w+",
        "GFX activity counter": "GFX Activity",
    }.items():
        stated = re.findall(rf"GPU\[(\d)\]\s+: {key}: \(?([\d.]+)", text)
        assert {int(card): float(value) for card, value in stated} == {
            card: by_lane[card, lane][0] for card in range(4)
        }
    numbers = r"GPU\[(\d)\]\s+: (?:Temperature|\w+ clock level|.*Power \(W\)|.* \(%\)|\w+ Activity"
    numbers += r"|Avg|Energy counter|Accumulated|PCIe Replay)[^\n]*: \(?[\d.]+"
    assert trace.samples.num_rows == len(re.findall(numbers, text)) == 64
    pci = re.findall(r"PCI Bus: (\S+)", text)
    assert [d.pci for d in trace.meta.devices] == [address.lower() for address in pci]
    assert trace.meta.facts["driver_version"] == "6.7.0"
    assert trace.meta.facts["max_engine_clk_mhz"] == "2100"
    assert trace.meta.facts["compute_partition"] == "SPX"


LOOP = sorted(("gpu_power", "gpu_temp", "gpu_usage"))


@pytest.mark.parametrize("what", slow_from(LOOP, 1))
def test_the_loop_on_eight_mi300x(shared: Path, what: str) -> None:
    files = sorted((shared / REAL).rglob(f"{what}_*.csv"))
    assert len(files) == 4
    for path in files:
        with path.open() as file:
            head, *rows = list(csv.reader(file))
        rows = [row for row in rows if row[1:2] != [""]]
        trace = ROCM_SMI.reader([path])
        assert_all_rows_counted(trace)
        assert counts(trace)["row-as-samples"] == len(rows) > 2000
        gauges = [name for name in head[2 : len(rows[0])] if name != "vram_total_bytes"]
        steady = 8 if "vram_total_bytes" in head else 0
        assert trace.samples.num_rows == len(rows) * len(gauges) + steady
        lane = {"gpu_power": "socket power", "gpu_temp": "temperature edge"}.get(what, "VRAM used")
        column = -1 if what == "gpu_usage" else 2
        points = points_of(trace)
        for card in range(8):
            own = [row for row in rows if row[1] == f"card{card}"]
            assert points[card, lane] == [
                (int(row[0]) * SECOND + SECOND // 2, float(row[column])) for row in own
            ]


def test_other_lines_of_the_loop_are_refused(shared: Path) -> None:
    taken = 0
    for path in sorted((shared / REAL).rglob("*")):
        if path.is_file() and not ROCM_SMI.sniff(inputs.head(path)):
            assert path.name.startswith(("cpu_", "memory_", "Llama")), path
            with pytest.raises(UnknownFormatError, match="no format"):
                ci.read(path)
            taken += 1
    assert taken == 12


def test_nothing_else_is_taken_for_rocm_smi(shared: Path) -> None:
    for path in shared.rglob("*"):
        if path.is_file() and "rocm_smi" not in str(path):
            try:
                head = inputs.head(path)
            except ci.ChopperError:
                continue
            assert not ROCM_SMI.sniff(head), path


def test_without_times_it_says_what_to_do(shared: Path) -> None:
    with pytest.raises(ci.ChopperError, match=r"at_ns.*period_ms") as raised:
        ci.read(shared / REAL / "MI300X_x4_smi.out.txt")
    assert "\n" not in str(raised.value)


def loop(form: str, powers: list[int], between: list[str]) -> str:
    text = ""
    for power, line in zip(powers, between, strict=True):
        card = {"Average Graphics Package Power (W)": f"{power}.0", "GPU use (%)": "1"}
        one = {"json": lambda c: json.dumps({"card0": c, "card1": c}) + "\n"}.get(
            form, lambda c: (as_csv if form == "csv" else as_text)(c, cards=2)
        )(card)
        text += f"{line}\n{one}" if line else one
    return text


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_a_loop_with_times_between_its_outputs(tmp_path: Path, form: str) -> None:
    dates = ["1754585903", "Thu Aug  7 16:58:28 UTC 2025", "2025-08-07T18:58:33.250+02:00"]
    trace = read(tmp_path, loop(form, [100, 101, 102], dates))
    half = SECOND // 2
    when = [T * SECOND + half, (T + 5) * SECOND + half, (T + 10) * SECOND + half // 2]
    for card in range(2):
        expected = [(t, 100.0 + n) for n, t in enumerate(when)]
        assert points_of(trace)[card, "socket power"] == expected
    assert counts(trace)["time-of-loop"] == 6


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_a_loop_whose_times_stand_behind_each_output(tmp_path: Path, form: str) -> None:
    text = loop(form, [100, 101], ["", f"{T}"]) + f"{T + 5}\n"
    points = points_of(read(tmp_path, text))[0, "socket power"]
    assert [(t // SECOND, v) for t, v in points] == [(T, 100.0), (T + 5, 101.0)]


@pytest.mark.parametrize("form", ["json", "csv", "text"])
def test_a_loop_without_times(tmp_path: Path, form: str) -> None:
    text = loop(form, [100, 101, 102], ["", "", ""])
    assert counts(read(tmp_path, text))["row-without-time"] == 6
    trace = read(tmp_path, text, at_ns=AT_NS, period_ms=5000)
    expected = [(AT_NS - (2 - n) * 5 * SECOND, 100.0 + n) for n in range(3)]
    assert points_of(trace)[1, "socket power"] == expected
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert points_of(trace)[1, "socket power"] == [(AT_NS, 102.0)]
    assert counts(trace)["row-of-earlier-output"] == 4


def test_the_time_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "host7_smi.json"
    path.write_text(json.dumps({"card0": CARD}))
    os.utime(path, ns=(AT_NS, AT_NS))
    trace = ci.read(path, at="mtime")
    assert points_of(trace)[0, "socket power"] == [(AT_NS, 128.0)]
    assert {d.host for d in ROCM_SMI.reader([path]).meta.devices} == {
        ""
    }  # a file's name states no host


def test_times_without_a_zone_are_what_a_wall_clock_showed(tmp_path: Path) -> None:
    trace = read(tmp_path, loop("json", [100], ["2025-08-07 16:58:23"]))
    assert trace.meta.clock == "localtime"
    assert counts(trace)["stamp-without-zone"] == 2


def test_json_with_times_that_somebody_put_around_it(tmp_path: Path) -> None:
    lines = [json.dumps({"timestamp": T + n, "gpus": {"card0": CARD}}) for n in range(3)]
    points = points_of(read(tmp_path, "\n".join(lines)))[0, "socket power"]
    assert [t // SECOND for t, _ in points] == [T, T + 1, T + 2]


def test_cells_that_say_that_there_is_no_value(tmp_path: Path) -> None:
    key = "Average Graphics Package Power (W)"
    text = json.dumps({"card0": {key: "128.0"}, "card1": {key: "N/A (Secondary die)"}})
    assert lanes(read(tmp_path, text, at_ns=AT_NS)) == {(0, "socket power"): [128]}


def test_blocks_of_different_keys_are_one_output(tmp_path: Path) -> None:
    text = as_csv({"GPU use (%)": "5"}, 2) + as_csv({"Energy counter": "9"}, 2)
    text += 'name, value\n"Driver version", "6.7.0"\n'
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert counts(trace)["row-as-samples"] == 2
    assert counts(trace)["row-as-description"] == 1
    assert trace.meta.facts == {"driver_version": "6.7.0"}
    assert lanes(trace)[1, "energy counter"] == [9]


def test_what_breaks_off_keeps_what_is_whole(tmp_path: Path) -> None:
    complete = json.dumps({"card0": {"GPU use (%)": "5"}, "card1": {"GPU use (%)": "66"}})
    trace = read(tmp_path, complete[:-4], at_ns=AT_NS)
    assert lanes(trace) == {(0, "GFX activity"): [5]}
    assert counts(trace)["row-cut-short"] == 1
    text = "device,GPU use (%),x\ncard0,5,1\ncard1,66"
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert lanes(trace)[0, "GFX activity"] == [5]
    assert counts(trace)["row-cut-short"] == 1


def test_other_encodings(tmp_path: Path) -> None:
    text = loop("text", [100], [f"{T}"])
    for encoding in ("utf-16", "utf-8-sig"):
        trace = read(tmp_path, text.replace("\n", "\r\n").encode(encoding))
        assert lanes(trace)[0, "socket power"] == [100]


def test_the_first_tables(tmp_path: Path) -> None:
    text = "========================ROCm System Management Interface========================\n"
    text += "=" * 80 + "\n"
    text += "GPU  Temp   AvgPwr  SCLK     MCLK     Fan     Perf  PwrCap  VRAM%  GPU%  \n"
    text += "0    38.0c  155.0W  1802Mhz  1001Mhz  21.96%  auto  250.0W   48%   100%  \n"
    by_lane = lanes(read(tmp_path, text, at_ns=AT_NS))
    assert by_lane[0, "temperature edge"] == [38]
    assert by_lane[0, "socket power"] == [155]
    assert by_lane[0, "fan usage"] == [21.96]
    assert by_lane[0, "GFX activity"] == [100]


def test_heads_of_two_words(tmp_path: Path) -> None:
    """ROCm 2.0 to 2.4 have two more columns: all rows had fewer cells than their header."""
    text = "========================ROCm System Management Interface========================\n"
    text += "GPU  Temp   AvgPwr  SCLK    MCLK    Fan     Perf  PwrCap  SCLK OD  MCLK OD  GPU%  \n"
    text += "0    31.0c  8.0W    852Mhz  167Mhz  28.63%  auto  220.0W  5%       0%       7%    \n"
    trace = read(tmp_path, text, at_ns=AT_NS)
    by_lane = lanes(trace)
    assert (by_lane[0, "GFX activity"], by_lane[0, "overdrive"]) == ([7], [5])
    assert (by_lane[0, "memory overdrive"], by_lane[0, "gfx clock"]) == ([0], [852])


def test_degrees_where_their_sign_is_no_character(tmp_path: Path) -> None:
    text = "===== ROCm System Management Interface =====\n"
    text += "Device  Node  IDs              Temp    Power  Partitions          SCLK   MCLK   GPU%\n"
    text += "              (DID,     GUID)  (Edge)  (Avg)  (Mem, Compute, ID)                    \n"
    text += "0       1     0x7550,   45807  32.0_C  17.0W  N/A, N/A, 0         41Mhz  96Mhz  3%  \n"
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert lanes(trace)[0, "temperature edge"] == [32]
    assert "unit-unknown" not in counts(trace)


def test_the_second_die_has_no_limit_of_its_own(tmp_path: Path) -> None:
    text = "===== ROCm System Management Interface =====\n"
    text += "GPU  Temp   AvgPwr  SCLK    MCLK     Fan  Perf  PwrCap  VRAM%  GPU%\n"
    text += "0    47.0c  91.0W   800Mhz  1600Mhz  0%   auto  560.0W    0%   0%\n"
    text += "1    46.0c  N/A     800Mhz  1600Mhz  0%   auto  0.0W      0%   0%\n"
    by_lane = lanes(read(tmp_path, text, at_ns=AT_NS))
    assert (by_lane[0, "power limit"], by_lane.get((1, "power limit"))) == ([560], None)


def test_a_fan_level_with_its_share_in_brackets(tmp_path: Path) -> None:
    text = "===== ROCm System Management Interface =====\n"
    text += "GPU[0] \t\t: Fan Level: 56 (21.96)%\nGPU[1] \t\t: Fan Level: 79 (30%)\n"
    trace = read(tmp_path, text, at_ns=AT_NS)
    by_lane = lanes(trace)
    assert [by_lane[gpu, "fan speed"] for gpu in (0, 1)] == [[56], [79]]
    assert [by_lane[gpu, "fan usage"] for gpu in (0, 1)] == [[21.96], [30]]
    assert not any(issue.code == "value-garbled" for issue in trace.meta.issues)


@pytest.mark.parametrize("stamp", ["20:00:0{}", "11/29/2026 20:00:0{}", "29. Nov, 20:00:0{}"])
def test_times_of_a_loop_that_are_not_read_are_no_other_format(tmp_path: Path, stamp: str) -> None:
    """Such files were of no known format."""
    path = tmp_path / "loop.txt"
    table = "device,Average Graphics Package Power (W)\ncard0,{}\n\n"
    path.write_text("".join(f"{stamp.format(k)}\n{table.format(100 + k)}" for k in range(3)))
    with pytest.raises(ci.errors.ReadError, match=r"rocm-smi writes no time.*period_ms"):
        ci.read(path)
    trace = ci.read(path, at_ns=10**18, period_ms=1000)
    assert trace.array("value", "samples").tolist() == [100, 101, 102]

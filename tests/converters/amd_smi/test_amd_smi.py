"""amd-smi's real output, every version: which file is what, and that no value is changed."""

import ast
import csv
import itertools
import json
import math
from pathlib import Path

import pytest
from issue_counts import counts
from telemetry import assert_all_rows_counted, lanes

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.converters.amd_smi import (
    AMD_SMI,
    AMD_SMI_MESSAGES,
    AMD_SMI_STATIC,
    AMD_SMI_TEXT,
    RECORDER,
)
from chopper_interop.converters.amd_smi.samples import read as read_amd_smi
from chopper_interop.errors import UnknownFormatError
from chopper_interop.io import inputs

FAMILY = (AMD_SMI, AMD_SMI_STATIC, AMD_SMI_TEXT, AMD_SMI_MESSAGES, RECORDER)
AT_NS = 1_700_000_000_123_456_789

VERSIONS = ["v5.7.1", "v6.0.2", "v6.1.2", "v6.2.4", "v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0"]
BY_VERSION = {
    "list": "amd-smi-static",
    "process": "amd-smi-static",
    "metric_all": "amd-smi",
    "metric_energy": "amd-smi",
    "metric_file": "amd-smi",
    "metric_pctu": "amd-smi",
    "metric_throttle": "amd-smi",
    "metric_watch_file": "amd-smi",
    "metric_watch_stdout": "amd-smi",
    "monitor": "amd-smi",
    "monitor_proc": "amd-smi",
    "monitor_ptum": "amd-smi",
    "monitor_viol": "amd-smi",
    "monitor_watch": "amd-smi",
}
"""Begin of the name of a CSV or JSON file → what it is; ``.txt`` is always the text form."""
EXCEPT = {
    "v6.1.2/monitor_proc.csv": "amd-smi-messages",  # error: -q is not known there
    "v7.1.0/metric_file.json": None,  # 7.1 leaves it empty and prints instead
    "v7.1.0/metric_file.json.stdout": "amd-smi",
    "v7.1.0/metric_watch_file.json.stdout": "amd-smi",
}
OTHER_FOLDERS = {
    "amd_smi_7.1_real_tool_simulated_gpus": {
        "energy.csv": "amd-smi",
        "list.json": "amd-smi-static",
        "metric-guest.csv": "amd-smi",
        "metric.csv": "amd-smi",
        "metric.json": "amd-smi",
        "metric.txt": "amd-smi-text",
        "monitor-V.csv": "amd-smi",
        "monitor.csv": "amd-smi",
        "monitor.txt": "amd-smi-text",
        "partition.json": "amd-smi-static",
        "sampler-50Hz-8gpu-10s.csv": "recorder",
        "static.json": "amd-smi-static",
        "throttle.json": "amd-smi",
        "topology.json": "amd-smi-messages",
        "watch-metric-12s.file.json": "amd-smi",
        "watch-metric-12s.file.json.stdout": "amd-smi",
        "watch-metric-20s.stdout.csv": "amd-smi",
        "watch-metric-4s.stdout.txt": "amd-smi-text",
        "watch-metric-6s.stdout.json": "amd-smi",
        "watch-monitor-10s.stdout.csv": "amd-smi",
        "watch-monitor-6s.stdout.json": "amd-smi",
        "xgmi.json": "amd-smi-static",
    },
    "amd_smi_real_8xmi300x": {
        "metric-8xMI300X.csv": "amd-smi",
        "metric-8xMI300X.v1.csv": "amd-smi",
        "metric.csv": "amd-smi",
        "metrics.txt": "amd-smi-text",
        "powerMetrics.csv": "amd-smi",
        "result.txt": "amd-smi",  # CSV in UTF-16
        "result1.txt": "amd-smi",
        "result2.txt": "amd-smi-static",
        "temperatureMetrics.csv": "amd-smi",
        "xgmi-8xMI300X.2024-07.json": "amd-smi-static",
        "xgmi-8xMI300X.json": "amd-smi-static",
    },
    "amd_smi_real_8xmi355x": {"gpu_metrics.excerpt.csv": "amd-smi"},
    "amd_smi_real_mi210": {"amd-smi-static.json": "amd-smi-static"},
}

# Column of CSV, or path of JSON, of every version → lane. Of the units only B is not amd-smi's.
LANES = {
    "socket power": "socket_power current_power average_socket_power power_usage",
    "temperature hotspot": "hotspot hotspot_temperature",
    "temperature edge": "edge",
    "temperature memory": "temperature/mem memory_temperature",
    "GFX activity": "gfx_activity gfx_usage gfx",
    "memory activity": "umc_activity usage/mem_usage monitor/mem",
    "gfx clock": "cur_clk gfx/cur_clk gfx_clk gfx_clock",
    **{f"gfx clock XCD {n}": f"gfx_{n}_clk gfx_{n}/clk" for n in range(8)},
    "memory clock": "mem_0_clk mem_0/clk mem_clock mem_cur_clk mem/cur_clk MEM_cur_clk MEM/cur_clk",
    "fabric clock": "fclk_0_clk fclk_0/clk",
    "soc clock": "socclk_0_clk socclk_0/clk",
    "energy": "total_energy_consumption",
    "throttle activity PPT": "ppt_violation_activity pviol",
    "PCIe bandwidth": "bandwidth pcie_bw",
}


def name_of(path: Path) -> str | None:
    """Format that this file should be taken for, by the tables above."""
    key = f"{path.parent.name}/{path.name}"
    if key in EXCEPT:
        return EXCEPT[key]
    if path.parent.name in OTHER_FOLDERS:
        return OTHER_FOLDERS[path.parent.name][path.name]
    if path.suffix == ".stdout":  # with --file: nothing, or the first line of a watch
        return "amd-smi-messages" if path.stat().st_size else None
    return "amd-smi-text" if path.suffix == ".txt" else BY_VERSION[path.stem]


def amd_smi_files(shared: Path) -> list[Path]:
    return sorted(p for p in shared.glob("telemetry/amd_smi_*/**/*") if p.is_file())


def plain_csv(text: str) -> list[dict[str, object]]:
    """Rows of GPUs, by the csv module and nothing else."""
    rows, header = [], None
    for cells in csv.reader(text.splitlines()):
        if cells[:1] in (["timestamp"], ["gpu"]):
            header = [c.strip() for c in cells]
        elif header and "pid" not in header and cells and cells[0].strip().isdigit():
            row = dict(zip(header, cells, strict=False))
            metric = {"hotspot", "edge", "gfx_usage"} & set(row)
            for plain, of_metric, of_monitor in (
                ("mem", "temperature/mem", "monitor/mem"),
                ("mem_usage", "usage/mem_usage", "mem_usage"),
            ):
                if plain in row:
                    row[of_metric if metric else of_monitor] = row.pop(plain)
            rows.append(row)
    return rows


def plain_json(text: str) -> list[dict[str, object]]:
    """Rows of GPUs, by the json module, their values by path and without units."""
    decoder, at, rows = json.JSONDecoder(), 0, []
    while at < len(text):
        if text[at] not in "[{":
            at = text.find("\n", at) + 1 or len(text)
            continue
        document, at = decoder.raw_decode(text, at)
        result = document["gpu_data"] if isinstance(document, dict) else document
        rows += [flattened(row) for row in result]
        at += len(text[at:]) - len(text[at:].lstrip())
    return rows


def flattened(row: dict[str, object]) -> dict[str, object]:
    values = {}
    for section, inner in row.items():
        if isinstance(inner, dict) and "unit" not in inner:
            for name, value in inner.items():
                if isinstance(value, dict) and "unit" not in value:
                    values |= {f"{name}/{k}": v for k, v in value.items()}
                else:
                    values[name] = value
                    values[f"{section}/{name}"] = value
        else:
            values[section] = inner
            values[f"monitor/{section}"] = inner
    return {k: v["value"] if isinstance(v, dict) and "value" in v else v for k, v in values.items()}


def plain_rows(path: Path) -> list[dict[str, object]]:
    raw = path.read_bytes()
    text = raw.decode("utf-16" if raw[:2] == b"\xff\xfe" else "utf-8")
    body = text.split("\n", 1)[1] if text.startswith("'CTRL'") else text
    return plain_json(text) if body.lstrip()[:1] in ("[", "{") else plain_csv(text)


def as_number(value: object) -> float | None:
    try:
        number = float(str(value))
    except ValueError:
        return None
    return None if number in (65535.0, 4294967295.0) else number


def test_every_file_is_taken_for_what_it_is(shared: Path) -> None:
    files = amd_smi_files(shared)
    assert len(files) > 200
    for path in files:
        claims = [c.name for c in FAMILY if c.sniff(inputs.head(path))]
        expected = name_of(path)
        assert claims == ([expected] if expected else []), path


def test_nothing_else_is_taken_for_telemetry_of_amd(shared: Path) -> None:
    own = {*amd_smi_files(shared), *(shared / "crashes").glob("amd_smi*")}
    others = [p for p in shared.rglob("*") if p.is_file() and p not in own]
    assert len(others) > 100
    for path in others:
        try:
            head = inputs.head(path)
        except ci.ChopperError:
            continue  # damaged on purpose
        assert not [c.name for c in FAMILY if c.sniff(head)], path


@pytest.mark.parametrize("version", VERSIONS)
def test_no_file_of_a_version_is_claimed_twice(shared: Path, version: str) -> None:
    for path in sorted((shared / "telemetry/amd_smi_by_version" / version).iterdir()):
        assert len(registry.sniffed(inputs.head(path))) <= 1, path


def test_values_are_those_of_the_files(shared: Path) -> None:
    """Each lane of each GPU against the same values taken by the csv and json modules."""
    compared = 0
    for path in amd_smi_files(shared):
        if name_of(path) != "amd-smi":
            continue
        rows = plain_rows(path)
        timed = "timestamp" in rows[0]
        trace = read_amd_smi([path], at_ns=None if timed else AT_NS)
        counted = counts(trace)
        assert_all_rows_counted(trace)
        assert trace.meta.sources[0].events == len(rows) + counted.get(
            "process-row", 0
        ) + counted.get("row-joined", 0), path
        assert counted.get("row-as-samples", 0) + counted.get("row-of-earlier-output", 0) == len(
            rows
        )
        if not timed:
            rows = rows[-counted["row-as-samples"] :]
        compared += compare(lanes(trace), rows, path)
    assert compared > 2000


def compare(actual: dict[tuple[int, str], list[float]], rows: list, path: Path) -> int:
    checked = 0
    for lane, columns in LANES.items():
        for gpu in sorted({int(row["gpu"]) for row in rows}):
            known = [
                number
                for row in rows
                if int(row["gpu"]) == gpu
                for column in columns.split()
                if (number := as_number(row.get(column))) is not None
            ]
            assert actual.get((gpu, lane), []) == known, (path, gpu, lane)
            checked += len(known)
    return checked


def test_a_file_without_times_gives_no_samples_and_says_why(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_real_8xmi300x/metric-8xMI300X.csv"
    trace = read_amd_smi([path])
    assert trace.samples.num_rows == trace.series.num_rows == 0
    (lost,) = [i for i in trace.meta.issues if i.severity.value == "loss"]
    assert (lost.code, lost.count, lost.events) == ("row-without-time", 8, True)
    assert "at_ns" in lost.meaning
    with pytest.raises(ci.ChopperError, match="at_ns"):
        ci.read(path)


def test_units_of_memory_agree_between_forms_and_versions(shared: Path) -> None:
    """``monitor`` gives GB with one decimal, ``monitor -v`` and ``metric`` whole MB."""
    totals = {}
    for version in ("v6.4dev", "v7.1.0"):
        for name in ("monitor.csv", "monitor.json", "monitor_ptum.csv", "metric_all.json"):
            path = shared / "telemetry/amd_smi_by_version" / version / name
            by_lane = lanes(read_amd_smi([path], at_ns=AT_NS))
            totals[version, name] = by_lane.get((0, "VRAM total"), [None])[0]
    known = {key: value for key, value in totals.items() if value is not None}
    assert len(known) >= 7
    for key, value in known.items():
        assert math.isclose(value, 196_592 * 2**20, rel_tol=3e-4), key


def test_the_log_of_eight_mi355x(shared: Path) -> None:
    """A stream that was cut three times: ticks that break off, and gaps of nine minutes."""
    path = shared / "telemetry/amd_smi_real_8xmi355x/gpu_metrics.excerpt.csv"
    rows = plain_csv(path.read_text())
    trace = read_amd_smi([path])
    counted = counts(trace)
    assert counted["row-as-samples"] == len(rows) == 43
    assert counted["tick-without-all-gpus"] == 3
    words = sum(v in ("ENABLED", "DISABLED") for row in rows for v in row.values())
    assert counted["cell-not-a-number"] == words
    gauges = 0
    for row in rows:
        for column, value in row.items():
            if column in ("timestamp", "gpu") or "_min_" in column or "_max_" in column:
                continue
            cell = ast.literal_eval(value) if value.startswith("[") else [value]
            gauges += sum(as_number(v) is not None for v in cell)
    steady = [s for s in trace.series.to_pylist() if s["name"].endswith((" min", " max"))]
    assert trace.samples.num_rows == gauges + len(steady)
    assert {s["uncertainty_ns"] for s in trace.series.to_pylist()} == {510_000_000}
    assert [d.device for d in trace.meta.devices] == list(range(8))


def test_throttling_as_shares_of_time(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_7.1_real_tool_simulated_gpus/watch-metric-20s.stdout.csv"
    rows = plain_csv(path.read_text())
    by_lane = lanes(read_amd_smi([path]))
    for gpu in range(8):
        own = [row for row in rows if row["gpu"] == str(gpu)]
        steps = list(itertools.pairwise(own))
        expected = [
            100.0
            * (int(b["ppt_accumulated"]) - int(a["ppt_accumulated"]))
            / (int(b["accumulation_counter"]) - int(a["accumulation_counter"]))
            for a, b in steps
        ]
        assert len(expected) == 10
        assert by_lane[gpu, "throttle share PPT"] == pytest.approx(expected)
        states = [float(row["ppt_violation_status"] == "ACTIVE") for row in own]
        assert by_lane[gpu, "throttle status PPT"] == states
        assert by_lane[gpu, "accumulation counter"] == [
            float(row["accumulation_counter"]) for row in own
        ]


def test_a_share_stands_where_its_interval_begins(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_7.1_real_tool_simulated_gpus/watch-metric-20s.stdout.csv"
    trace = read_amd_smi([path])
    series, samples = trace.to_pandas("series"), trace.to_pandas("samples")
    of_gpu = series[series["device"] == 3]
    times = {
        name: samples.loc[samples["series"] == row, "ts"].tolist()
        for row, name in of_gpu["name"].items()
    }
    assert times["throttle share PPT"] == times["socket power"][:-1]


def test_steady_values_are_recorded_once(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_7.1_real_tool_simulated_gpus/watch-metric-20s.stdout.csv"
    by_lane = lanes(read_amd_smi([path]))
    assert by_lane[5, "gfx clock max"] == [2100.0]
    assert by_lane[5, "gfx clock min"] == [132.0]
    assert (5, "gfx clock max XCD 0") not in by_lane


def test_lists_become_a_lane_for_each_element_that_is_known(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_real_8xmi355x/gpu_metrics.excerpt.csv"
    rows = [row for row in plain_csv(path.read_text()) if row["gpu"] == "0"]
    by_lane = lanes(read_amd_smi([path]))
    for xcd in range(8):
        expected = [float(ast.literal_eval(r["gfx_busy_inst_xcp_0"])[xcd]) for r in rows]
        assert by_lane[0, f"GFX busy XCP 0 XCD {xcd}"] == expected
    assert not [name for _, name in by_lane if name.startswith("VCN activity")]  # all N/A


def test_the_old_form_whose_lists_stand_without_quotes(shared: Path) -> None:
    folder = shared / "telemetry/amd_smi_real_8xmi300x"
    for name in ("metric.csv", "result.txt"):
        by_lane = lanes(read_amd_smi([folder / name], at_ns=AT_NS))
        assert by_lane[0, "GFX activity"] == [98.0]
        assert by_lane[0, "memory activity"] == [1.0]
        assert by_lane[0, "fb_total"] == [14928.0]
        assert by_lane[0, "multimedia activity 1"] == [0.0]


def test_energy_is_taken_as_it_is_and_said_to_be_high(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_by_version/v6.4dev/metric_energy.json"
    trace = read_amd_smi([path], at_ns=AT_NS)
    assert lanes(trace)[1, "energy"] == [12085128.012]
    assert counts(trace)["energy-reads-high"] == 2


@pytest.mark.parametrize(
    ("file", "why"),
    [
        ("amd_smi_7.1_real_tool_simulated_gpus/topology.json", "error"),
    ],
)
def test_what_is_not_read_says_why(shared: Path, file: str, why: str) -> None:
    with pytest.raises(UnknownFormatError, match=why):
        ci.read(shared / "telemetry" / file)

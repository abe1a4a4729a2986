"""amd-smi's output as it comes: messages in it, headers again, cut, in odd units and encodings."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
from issue_counts import counts
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop.converters.amd_smi import (
    AMD_SMI,
    AMD_SMI_MESSAGES,
    AMD_SMI_STATIC,
    AMD_SMI_TEXT,
)
from chopper_interop.converters.amd_smi.samples import read as read_amd_smi
from chopper_interop.converters.sampling import series
from chopper_interop.errors import UsageError
from chopper_interop.io import inputs

WATCHING = "'CTRL' + 'C' to stop watching output:\n"
T = 1_786_553_852
AT_NS = 1_700_000_000_000_000_001


def read(folder: Path, text: str | bytes, **options: object) -> ci.Trace:
    path = folder / "telemetry.out"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert AMD_SMI.sniff(inputs.head(path)), "not recognised"
    trace = read_amd_smi([path], **options)
    assert_all_rows_counted(trace)
    return trace


def ticks(*rows: str, header: str = "timestamp,gpu,socket_power") -> str:
    """Print as a watch does: the header again each tick, CRLF, a blank line between."""
    block = "".join(f"{row}\r\n" for row in (header, *rows))
    return f"{block}\n"


def test_the_stdout_of_a_watch(tmp_path: Path) -> None:
    text = WATCHING + ticks(f"{T},0,100", f"{T},1,101") + ticks(f"{T + 1},0,102", f"{T + 1},1,103")
    by_lane = lanes(read(tmp_path, text))
    assert by_lane == {(0, "socket power"): [100, 102], (1, "socket power"): [101, 103]}


def test_the_file_of_a_watch_has_one_header(tmp_path: Path) -> None:
    text = f"timestamp,gpu,socket_power\r\n{T},0,100\r\n{T + 1},0,101\r\n{T + 2},0,102\r\n"
    assert lanes(read(tmp_path, text))[0, "socket power"] == [100, 101, 102]


def test_the_time_that_a_script_writes_in_front(tmp_path: Path) -> None:
    trace = read(tmp_path, f"Timestamp,gpu,socket_power\n{T},0,100\n{T + 1},0,101\n")
    assert lanes(trace) == {(0, "socket power"): [100, 101]}


OUTPUTS = [
    "gpu,socket_power\r\n0,{}\r\n1,7\r\n",
    '[{{"gpu": 0, "power": {{"socket_power": "{} W"}}}},\n{{"gpu": 1, "power": {{"socket_power": "7 W"}}}}]\n',
    "GPU: 0\n    POWER:\n        SOCKET_POWER: {} W\nGPU: 1\n    POWER:\n        SOCKET_POWER: 7 W\n",
    "GPU  XCP  POWER\n  0    0  {} W\n  1    0    7 W\n",
]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    ("stamp", "clock", "plus"),
    [
        ("Sun Nov 29 20:00:0{} UTC 2026", "realtime", 500_000_000),
        ("== 2026-11-29T20:00:0{}.250Z ==", "realtime", 250_000_000),
        ("2026-11-29 20:00:0{}", "localtime", 500_000_000),  # which begins like a row
        ("179598240{}", "realtime", 500_000_000),
        ("----- 20261129_20000{} -----", "localtime", 500_000_000),  # as scripts name files
        ("11/29/2026 20:00:0{}", "localtime", 500_000_000),
    ],
)
def test_a_time_that_a_loop_prints_is_that_of_the_output_behind_it(
    tmp_path: Path, output: str, stamp: str, clock: str, plus: int
) -> None:
    """``date`` in front of each call made outputs of no known format."""
    path = tmp_path / "loop.txt"
    texts = [f"{stamp.format(2 * k)}\n{output.format(100 + k)}" for k in range(3)]
    path.write_text("".join(texts), newline="")
    trace = ci.read(path)
    assert lanes(trace) == {(0, "socket power"): [100, 101, 102], (1, "socket power"): [7] * 3}
    first = 1_795_982_400 * 10**9 + plus
    times = trace.array("ts", "samples") + trace.meta.origin_ns - first
    assert sorted(set(times.tolist())) == [0, 2 * 10**9, 4 * 10**9]
    assert trace.meta.clock == clock
    assert counts(trace)["time-of-loop"] == 6
    path.write_text(
        "".join(texts) + stamp.format(9) + "\n", newline=""
    )  # the loop was stopped there
    assert lanes(ci.read(path)) == lanes(trace)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize(
    "stamp", ["20:00:0{}", "Sample at 20:00:0{}", "So 29. Nov 20:00:0{} CET 2026"]
)
def test_times_of_a_loop_that_are_not_read_are_named(
    tmp_path: Path, output: str, stamp: str
) -> None:
    """Such files were of no known format, and with it named, of rows in front of a header."""
    path = tmp_path / "loop.txt"
    texts = [f"{stamp.format(2 * k)}\n{output.format(100 + k)}" for k in range(3)]
    path.write_text("".join(texts), newline="")
    with pytest.raises(ci.errors.ReadError, match=r"Times of a loop without a date.*date -Is"):
        ci.read(path)
    trace = ci.read(path, at_ns=AT_NS)
    assert lanes(trace) == {(0, "socket power"): [102], (1, "socket power"): [7]}
    assert counts(trace)["time-of-loop-unread"] == 3


def test_times_of_a_loop_that_are_not_one_for_each_output(tmp_path: Path) -> None:
    """A loop over GPUs prints several for what counts as one output."""
    path = tmp_path / "loop.txt"
    texts = [f"Sun Nov 29 20:00:0{k} UTC 2026\ngpu,socket_power\n{k % 2},100\n" for k in range(4)]
    path.write_text("".join(texts))
    with pytest.raises(ci.errors.ReadError, match="more or fewer than the outputs"):
        ci.read(path)
    assert lanes(ci.read(path, at_ns=AT_NS))[0, "socket power"] == [100]


def test_a_time_above_a_watch_is_none_of_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "watch.txt"
    path.write_text(
        "Sun Nov 29 20:00:00 UTC 2026\n" + ticks(f"{T},0,100") + ticks(f"{T + 1},0,102")
    )
    trace = ci.read(path)
    assert lanes(trace) == {(0, "socket power"): [100, 102]}
    assert T <= trace.meta.origin_ns / 10**9 < T + 1
    assert counts(trace)["line-without-data"] == 1


def test_messages_between_the_rows(tmp_path: Path) -> None:
    warning = "WARNING: User is missing the following required groups: render, video\n"
    text = warning + WATCHING + ticks(f"{T},0,100") + warning + ticks(f"{T + 1},0,101")
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "socket power"] == [100, 101]
    assert counts(trace)["line-without-data"] == 3


def test_a_header_that_changes_in_the_middle(tmp_path: Path) -> None:
    text = ticks(f"{T},0,100") + ticks(
        f"{T + 9},0,61,200", header="timestamp,gpu,hotspot,socket_power"
    )
    assert lanes(read(tmp_path, text)) == {
        (0, "socket power"): [100, 200],
        (0, "temperature hotspot"): [61],
    }


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode("utf-16"),
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("board", "54 °C").encode("latin-1"),
        lambda text: gzip.compress(text.encode()),
    ],
    ids=["UTF-16", "byte order mark", "Latin-1", "gzip"],
)
def test_encodings(tmp_path: Path, encode) -> None:
    text = ticks(f"{T},0,100,board", header="timestamp,gpu,socket_power,note")
    assert lanes(read(tmp_path, encode(text)))[0, "socket power"] == [100]


@pytest.mark.parametrize(
    ("cell", "value", "fault"),
    [
        ("640", 640.0, None),
        ("640.5", 640.5, None),
        ("-3", -3.0, None),
        ("640 W", 640.0, None),
        ("250000 mW", 250.0, None),
        ("1.5 kW", 1500.0, None),
        ("N/A", None, None),
        ("N/A W", None, None),
        ("[Not Supported]", None, None),
        ("", None, None),
        ("65535", None, "value-not-available"),
        ("4294967295", None, "value-not-available"),
        ("18446744073709551615", None, "value-not-available"),
        ("9 furlong", None, "unit-unknown"),
        ("9 MHz", None, "unit-unknown"),
        ("AMDSMI_STATUS_NOT_YET_IMPLEMENTED", None, "cell-not-a-number"),
        ("nan", None, "value-not-available"),
    ],
)
def test_cells(tmp_path: Path, cell: str, value: float | None, fault: str | None) -> None:
    text = ticks(f"{T},0,{cell},50", header="timestamp,gpu,socket_power,hotspot")
    trace = read(tmp_path, text)
    by_lane = lanes(trace)
    assert by_lane.get((0, "socket power")) == (None if value is None else [value])
    assert by_lane[0, "temperature hotspot"] == [50.0]
    known = ("value-not-available", "unit-unknown", "cell-not-a-number")
    assert {f: 1 for f in known if f in counts(trace)} == ({fault: 1} if fault else {})


@pytest.mark.parametrize(
    ("quantity", "value"),
    [
        ({"value": 2, "unit": "kW"}, 2000.0),
        ({"value": 2500, "unit": "mW"}, 2.5),
        ({"value": 2500, "unit": "W"}, 2500.0),
        ({"value": "N/A", "unit": "W"}, None),
        ({"value": 3, "unit": "hp"}, None),
        (640, 640.0),
        ("N/A", None),
        (None, None),
    ],
)
def test_units_of_json(tmp_path: Path, quantity: object, value: float | None) -> None:
    row = {"timestamp": T, "gpu": 0, "power": {"socket_power": quantity}, "fan": {"rpm": 7}}
    trace = read(tmp_path, json.dumps([row]))
    assert lanes(trace).get((0, "socket power")) == (None if value is None else [value])
    assert counts(trace).get("unit-unknown", 0) == int("hp" in str(quantity))


@pytest.mark.parametrize(("unit", "scale"), [("B", 1), ("KB", 2**10), ("MB", 2**20), ("GB", 2**30)])
def test_memory_is_in_bytes(tmp_path: Path, unit: str, scale: int) -> None:
    used = {"value": 3, "unit": unit}
    trace = read(tmp_path, json.dumps([{"timestamp": T, "gpu": 0, "vram_used": used}]))
    assert lanes(trace)[0, "VRAM used"] == [3.0 * scale]
    assert units(trace)["VRAM used"] == "B"


def test_a_unit_that_changes_between_ticks_is_followed(tmp_path: Path) -> None:
    rows = [
        {"timestamp": T + i, "gpu": 0, "power": {"socket_power": {"value": v, "unit": u}}}
        for i, (v, u) in enumerate([(900, "W"), (1.1, "kW"), (7, "furlong"), (950, "W")])
    ]
    trace = read(tmp_path, json.dumps(rows))
    assert lanes(trace)[0, "socket power"] == [900.0, 1100.0, 950.0]
    assert counts(trace)["unit-unknown"] == 1


def test_mem_is_a_temperature_in_metric_and_a_share_in_monitor(tmp_path: Path) -> None:
    metric = ticks(f"{T},0,46,38", header="timestamp,gpu,hotspot,mem")
    monitor = ticks(f"{T},0,46,38", header="timestamp,gpu,hotspot_temperature,mem")
    assert lanes(read(tmp_path, metric))[0, "temperature memory"] == [38]
    assert lanes(read(tmp_path, monitor))[0, "memory activity"] == [38]


@pytest.mark.parametrize(
    ("header", "lane"),
    [
        ("width,speed,bandwidth", "PCIe speed"),
        ("width,speed,bandwidth,max,rpm,usage", "fan speed"),
        ("speed,max,rpm,usage", "fan speed"),
    ],
)
def test_columns_that_amd_smi_wrote_over_one_another(
    tmp_path: Path, header: str, lane: str
) -> None:
    cells = ",".join("32" if name == "speed" else "1" for name in header.split(","))
    by_lane = lanes(read(tmp_path, ticks(f"{T},0,{cells}", header=f"timestamp,gpu,{header}")))
    assert by_lane[0, lane] == [32]
    if "rpm" in header:
        assert by_lane[0, "fan usage"] == [1]
        assert by_lane[0, "fan speed max"] == [1]


def test_a_number_that_the_table_does_not_know_keeps_its_name(tmp_path: Path) -> None:
    trace = read(tmp_path, ticks(f"{T},0,9,7", header="timestamp,gpu,socket_power,new_thing"))
    assert lanes(trace)[0, "new_thing"] == [7]
    assert units(trace)["new_thing"] == ""
    (issue,) = (i for i in trace.meta.issues if i.code == "quantity-unknown")
    assert (issue.count, issue.example) == (1, "new_thing")
    row = {"timestamp": T, "gpu": 0, "power": {"flux": {"value": 2, "unit": "Wb"}}}
    trace = read(tmp_path, json.dumps([row]))
    assert lanes(trace)[0, "flux"] == [2]
    assert units(trace)["flux"] == "Wb"
    assert not any(issue.code == "quantity-unknown" for issue in trace.meta.issues)


def test_the_clock_of_a_gpu_with_one_die_has_no_number(tmp_path: Path) -> None:
    header = "timestamp,gpu,gfx_0_clk,gfx_1_clk,gfx_0_max_clk,gfx_1_max_clk"
    text = ticks(f"{T},0,2100,2000,2400,2300", f"{T},1,900,N/A,2500,N/A", header=header)
    assert lanes(read(tmp_path, text)) == {
        (0, "gfx clock XCD 0"): [2100],
        (0, "gfx clock XCD 1"): [2000],
        (0, "gfx clock max XCD 0"): [2400],
        (0, "gfx clock max XCD 1"): [2300],
        (1, "gfx clock"): [900],
        (1, "gfx clock max"): [2500],
    }


def test_steady_values_have_a_sample_where_they_change(tmp_path: Path) -> None:
    header = "timestamp,gpu,power_limit,socket_power"
    rows = [f"{T + i},0,{limit},500" for i, limit in enumerate([750, 750, 600, 600, 750])]
    points = points_of(read(tmp_path, ticks(*rows, header=header)))
    assert [v for _, v in points[0, "power limit"]] == [750, 600, 750]
    assert [ts for ts, _ in points[0, "power limit"]] == [
        ts for i, (ts, _) in enumerate(points[0, "socket power"]) if i in (0, 2, 4)
    ]


def test_a_residency_that_goes_back_gives_no_share(tmp_path: Path) -> None:
    header = "timestamp,gpu,accumulation_counter,ppt_accumulated"
    values = [(1000, 10), (2000, 260), (50, 3), (1050, 503), (1050, 503)]
    rows = [f"{T + i},0,{a},{r}" for i, (a, r) in enumerate(values)]
    trace = read(tmp_path, ticks(*rows, header=header))
    assert lanes(trace)[0, "throttle share PPT"] == [25.0, 50.0]
    assert counts(trace)["residency-went-back"] == 1


def test_a_residency_ahead_of_its_counter_counts_up_to_it(tmp_path: Path) -> None:
    header = "timestamp,gpu,accumulation_counter,ppt_accumulated"
    values = [(1000, 10), (2000, 1010), (3000, 2040), (4000, 2540), (4100, 99_999)]
    rows = [f"{T + i},0,{a},{r}" for i, (a, r) in enumerate(values)]
    trace = read(tmp_path, ticks(*rows, header=header))
    assert lanes(trace)[0, "throttle share PPT"] == [100.0, 100.0, 53.0]
    assert counts(trace)["residency-above-counter"] == 1
    assert counts(trace)["residency-went-back"] == 1


@pytest.mark.parametrize("share", [0.5, 0.97, 1])
def test_a_residency_that_is_read_late_is_known_in_total(tmp_path: Path, share: float) -> None:
    """By up to a quarter of the interval; each interval alone has at most 100 %."""
    header = "timestamp,gpu,accumulation_counter,ppt_accumulated"
    late = np.random.default_rng(1).integers(0, 250, 200)
    rows = [f"{T + i},0,{1000 * i},{round(share * (1000 * i + late[i]))}" for i in range(200)]
    shares = lanes(read(tmp_path, ticks(*rows, header=header)))[0, "throttle share PPT"]
    assert max(shares) <= 100
    assert sum(shares) / len(shares) == pytest.approx(100 * share, abs=0.15)


def test_a_residency_that_is_always_ahead_counts_where_it_is(tmp_path: Path) -> None:
    header = "timestamp,gpu,accumulation_counter,ppt_accumulated"
    rows = [f"{T + i},0,{1000 * i},{1200 * min(i, 10)}" for i in range(15)]
    shares = lanes(read(tmp_path, ticks(*rows, header=header)))[0, "throttle share PPT"]
    assert shares == [100.0] * 10 + [0.0] * 4


def test_a_residency_without_a_second_sample_is_kept_as_it_is(tmp_path: Path) -> None:
    header = "timestamp,gpu,accumulation_counter,ppt_accumulated"
    by_lane = lanes(read(tmp_path, ticks(f"{T},0,1000,10", header=header)))
    assert by_lane == {(0, "accumulation counter"): [1000], (0, "throttle residency PPT"): [10]}


def test_a_run_of_one_gpu_in_partitions(tmp_path: Path) -> None:
    header = "timestamp,gpu,xcp,power_usage,gfxclk_pviol"
    rows = [
        f"{T},0,0,500,\"['7', '8']\"",
        f"{T},0,1,N/A,\"['9', 'N/A']\"",
        f"{T},1,0,510,\"['1', '2']\"",
    ]
    cause = "throttle activity gfx clock below host limit by power"
    assert lanes(read(tmp_path, ticks(*rows, header=header))) == {
        (0, "socket power XCP 0"): [500],
        (0, f"{cause} XCD 0 XCP 0"): [7],
        (0, f"{cause} XCD 1 XCP 0"): [8],
        (0, f"{cause} XCD 0 XCP 1"): [9],
        (1, "socket power"): [510],
        (1, f"{cause} XCD 0"): [1],
        (1, f"{cause} XCD 1"): [2],
    }


def test_an_error_row_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    error = "error,code\r\nParameter '-T' is invalid. Run '--help' for more info.,-2\r\n"
    trace = read(tmp_path, error + ticks(f"{T},0,100"))
    assert lanes(trace)[0, "socket power"] == [100]
    assert counts(trace)["error-message"] == 1


def test_processes_below_a_monitor_are_values_of_their_gpu(tmp_path: Path) -> None:
    text = ""
    for tick in range(2):
        text += ticks(
            f"{T + tick},0,100", f"{T + tick},1,90", header="timestamp,gpu,power_usage"
        ) + ticks(
            f"{T + tick},0,python3,42,{5 + tick}",
            f"{T + tick},1,python3,42,8",
            f"{T + tick},1,sh,43,9",
            header="timestamp,gpu,name,pid,vram_mem",
        )
    trace = read(tmp_path, text)
    assert lanes(trace) == {
        (0, "socket power"): [100, 100],
        (1, "socket power"): [90, 90],
        (0, "process 42 VRAM"): [5, 6],
        (1, "process 42 VRAM"): [8, 8],
        (1, "process 43 VRAM"): [9, 9],
    }
    assert counts(trace)["row-joined"] == 6
    assert trace.meta.sources[0].events == 4 + 6


@pytest.mark.parametrize("row", [f"{T},5,python3,42,5", f"{T + 9},0,python3,42,5", f"{T},0,sh,x,5"])
def test_processes_of_no_row_are_counted(tmp_path: Path, row: str) -> None:
    text = ticks(f"{T},0,100", header="timestamp,gpu,power_usage") + ticks(
        row, header="timestamp,gpu,name,pid,mem_usage"
    )
    trace = read(tmp_path, text)
    assert lanes(trace) == {(0, "socket power"): [100]}
    assert counts(trace)["process-row"] == 1


def test_processes_in_the_json_of_a_monitor(tmp_path: Path) -> None:
    def process(pid: int) -> dict:
        memory = {"vram_mem": {"value": pid, "unit": "B"}}
        return {"process_info": {"name": "python3", "pid": pid, "memory_usage": memory}}

    processes = [process(42), process(43)]
    row = {"timestamp": T, "gpu": 0, "power_usage": 100, "process_list": processes}
    none = [{"process_info": "No running processes detected"}]
    other = {"timestamp": T, "gpu": 1, "power_usage": 90, "process_list": none}
    trace = read(tmp_path, json.dumps([row, other]))
    assert lanes(trace) == {
        (0, "socket power"): [100],
        (1, "socket power"): [90],
        (0, "process 42 VRAM"): [42],
        (0, "process 43 VRAM"): [43],
    }
    assert counts(trace)["row-joined"] == 2
    assert "process-row" not in counts(trace)
    assert trace.meta.sources[0].events == 4


@pytest.mark.parametrize("keep", [5, 14, 16])
def test_a_stream_that_is_cut_within_its_last_row(tmp_path: Path, keep: int) -> None:
    """Of ``TTTTTTTTTT,1,203`` the power 203 may not become 20 or 2."""
    complete = ticks(f"{T},0,100", f"{T},1,101")
    row = f"{T + 1},1,203"
    trace = read(tmp_path, complete + ticks(f"{T + 1},0,102").rstrip() + "\r\n" + row[:keep])
    assert lanes(trace) == {(0, "socket power"): [100, 102], (1, "socket power"): [101]}
    cut = counts(trace)
    assert cut.get("row-cut-short", 0) + cut.get("cell-cut-short", 0) == 1
    assert cut.get("tick-without-all-gpus", 0) == int("row-cut-short" in cut)


def test_a_stream_that_is_cut_within_a_header(tmp_path: Path) -> None:
    trace = read(tmp_path, ticks(f"{T},0,100") + "timestamp,gpu,sock")
    assert lanes(trace) == {(0, "socket power"): [100]}
    assert counts(trace)["file-cut-short"] == 1


def test_a_row_that_was_cut_and_another_run_appended(tmp_path: Path) -> None:
    header = "timestamp,gpu,socket_power,vcn_activity"
    text = ticks(f'{T},0,100,"[1, 2]"', header=header) + header + f'\r\n{T + 1},0,101,"[3,'
    text += WATCHING + ticks(f'{T + 60},0,102,"[5, 6]"', header=header)
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "socket power"] == [100, 102]
    assert lanes(trace)[0, "VCN activity 1"] == [2, 6]
    assert counts(trace)["row-cut-short"] == 1


def test_rows_in_front_of_any_header(tmp_path: Path) -> None:
    path = tmp_path / "tail.csv"
    path.write_text(f"{T},0,99\r\n" + ticks(f"{T + 1},0,100"))
    trace = read_amd_smi([path])
    assert_all_rows_counted(trace)
    assert lanes(trace)[0, "socket power"] == [100]
    assert counts(trace)["row-without-header"] == 1


def rows_of_json(*powers: int, first: int = T, timed: bool = True) -> list[dict]:
    stamp = [{"timestamp": first + i} if timed else {} for i in range(len(powers))]
    return [
        s | {"gpu": 0, "power": {"socket_power": {"value": p, "unit": "W"}}}
        for s, p in zip(stamp, powers, strict=True)
    ]


def test_json_documents_one_behind_the_other(tmp_path: Path) -> None:
    documents = [json.dumps([row], indent=4) for row in rows_of_json(100, 101, 102)]
    trace = read(tmp_path, WATCHING + "\n".join(documents))
    assert lanes(trace)[0, "socket power"] == [100, 101, 102]


@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
def test_json_that_breaks_off_keeps_its_whole_rows(tmp_path: Path, share: float) -> None:
    rows = rows_of_json(*range(100, 120))
    text = json.dumps(rows, indent=4)
    cut = text[: int(len(text) * share)]
    trace = read(tmp_path, cut)
    expected = [100 + n for n in range(cut.count("\n    }"))]
    assert len(expected) in range(8, 20)
    assert lanes(trace)[0, "socket power"] == expected
    assert counts(trace)["row-cut-short"] == 1


def test_json_that_breaks_off_and_goes_on(tmp_path: Path) -> None:
    first = json.dumps(rows_of_json(100, 101), indent=4)[:-30]
    second = json.dumps(rows_of_json(200, first=T + 50), indent=4)
    trace = read(tmp_path, first + "\n" + second)
    assert lanes(trace)[0, "socket power"] == [100, 200]
    assert counts(trace)["row-cut-short"] == 1


def test_the_closing_document_of_7_1_repeats_what_was_written(tmp_path: Path) -> None:
    """With several GPUs the samples come timed, and once more without times at the end."""
    timed = json.dumps(rows_of_json(100, 100, 102), indent=4)
    again = json.dumps({"gpu_data": rows_of_json(100, 100, 102, timed=False)}, indent=4)
    trace = read(tmp_path, WATCHING + timed + "\n" + again)
    assert lanes(trace)[0, "socket power"] == [100, 100, 102]
    assert counts(trace)["row-repeated"] == 3


def test_the_watch_of_7_1_without_times(tmp_path: Path) -> None:
    """All ticks in one document and no times: nothing is made up; the last may be placed."""
    text = WATCHING + json.dumps({"gpu_data": rows_of_json(100, 101, 102, timed=False)})
    trace = read(tmp_path, text)
    assert not trace.samples.num_rows
    assert counts(trace) == {"line-without-data": 1, "row-without-time": 3}
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert points_of(trace) == {(0, "socket power"): [(AT_NS, 102.0)]}
    assert counts(trace)["row-of-earlier-output"] == 2


def test_parts_of_the_machine_that_are_no_gpus_are_counted(tmp_path: Path) -> None:
    text = json.dumps({"gpu_data": rows_of_json(100), "cpu_data": [{"cpu": 0}, {"cpu": 1}]})
    trace = read(tmp_path, text)
    assert lanes(trace) == {(0, "socket power"): [100]}
    assert counts(trace)["row-of-other-part"] == 2


def test_the_time_of_a_single_output_is_what_was_given(tmp_path: Path) -> None:
    text = "gpu,socket_power\r\n0,100\r\n1,101\r\n"
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert points_of(trace) == {
        (0, "socket power"): [(AT_NS, 100.0)],
        (1, "socket power"): [(AT_NS, 101.0)],
    }
    assert counts(trace)["time-from-option"] == 2


def test_the_time_of_a_single_output_may_be_its_files(tmp_path: Path) -> None:
    path = tmp_path / "metric.csv"
    path.write_text("gpu,socket_power\r\n0,100\r\n")
    os.utime(path, ns=(AT_NS, AT_NS))
    trace = ci.read(path, at="mtime")
    assert points_of(trace) == {(0, "socket power"): [(AT_NS, 100.0)]}
    assert counts(trace)["time-from-file"] == 1


def test_a_time_is_given_once_and_properly(tmp_path: Path) -> None:
    path = tmp_path / "metric.csv"
    path.write_text("gpu,socket_power\r\n0,100\r\n")
    for options in ({"at": "noon"}, {"at": "mtime", "at_ns": 5}):
        with pytest.raises(UsageError, match="at_ns"):
            read_amd_smi([path], **options)


def test_files_with_times_keep_their_own(tmp_path: Path) -> None:
    text = ticks(f"{T},0,100")
    assert points_of(read(tmp_path, text, at_ns=AT_NS)) == points_of(read(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "converter"),
    [
        (WATCHING, AMD_SMI_MESSAGES),
        ("error,code\r\nParameter '-q' is invalid.,-2\r\n", AMD_SMI_MESSAGES),
        ('{"error": "x", "code": -1002}', AMD_SMI_MESSAGES),
        ("gpu,name,pid\r\n0,python3,42\r\n", AMD_SMI_STATIC),
        ('[{"gpu": 0, "bdf": "0000:0c:00.0", "uuid": "x"}]', AMD_SMI_STATIC),
        ('{"gpu_data": [{"gpu": 0, "clock": {"sys": {"frequency_levels": {}}}}]}', AMD_SMI_STATIC),
        (WATCHING + "GPU: 0\n    TIMESTAMP: 1\n    POWER:\n", AMD_SMI_TEXT),
        ("GPU  XCP  POWER  GPU_T\n  0    0  700 W\n", AMD_SMI_TEXT),
        ("+-----+\n| AMD-SMI 26.1.0+0  amdgpu version: 6.14 |\n", AMD_SMI_STATIC),
        ('[{"gpu": 0, "power_usage": 1, "process_list": []}]', AMD_SMI),
        ("gpu,colour\r\n0,red\r\n", None),
        (f"timestamp,gpu,socket_power,gpu,socket_power\n{T},0,200,1,300\n", None),
        ("timestamp,gpu_index,power_W\n2025,0,3\n", None),
        ("device,Temperature (C)\ncard0,41\n", None),
        ('{"card0": {"GPU use (%)": "3"}, "gpu": 5}', None),
        ("", None),
    ],
)
def test_what_a_beginning_is_taken_for(text: str, converter: object) -> None:
    family = (AMD_SMI, AMD_SMI_STATIC, AMD_SMI_TEXT, AMD_SMI_MESSAGES)
    assert [c for c in family if c.sniff(text.encode())] == ([converter] if converter else [])


def test_what_a_residency_has_too_much_counts_in_the_next_interval_and_is_never_less_than_none() -> (
    None
):
    held, _ = series._within_counter(np.array([6.0, 4.0, 0.0]), np.array([5.0, 5.0, 5.0]))
    assert held.tolist() == [5, 5, 0]
    elapsed = np.random.default_rng(0).uniform(0.5, 2, 200)
    held, _ = series._within_counter(np.where(np.arange(200) % 3, 0, 1.1 * elapsed), elapsed)
    assert held.min() == 0

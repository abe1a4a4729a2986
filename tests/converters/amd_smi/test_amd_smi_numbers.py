"""Telemetry with numbers that nothing can have: unknown and counted, never a crash."""

import json
from pathlib import Path

import pytest
from boundary import assert_held, garbled_csv, garbled_json
from issue_counts import counts
from slow import slow_from
from telemetry import assert_all_rows_counted, lanes

import chopper_interop as ci
from chopper_interop.converters.amd_smi import recorder_samples, samples
from chopper_interop.errors import UsageError

T = 1_786_553_852
MONITOR = "timestamp,gpu,xcp,power_usage,gfx_clk,mem,vram_used,prochot_accumulated\n" + "".join(
    f"{T + tick},{gpu},0,{300 + gpu},[1400, 1410],45 %,1024,{tick}\n"
    for tick in range(4)
    for gpu in range(2)
)
METRIC = json.dumps(
    [
        {
            "timestamp": T + tick,
            "gpu": gpu,
            "power": {"socket_power": {"value": 300 + tick, "unit": "W"}},
            "throttle": {"accumulation_counter": 100 * tick, "ppt_accumulated": [tick, tick]},
            "mem_usage": {"used_vram": {"value": 1024, "unit": "MB"}},
        }
        for tick in range(4)
        for gpu in range(2)
    ]
)
NOW_NS = 1_795_207_823_869_444_807
RECORDER = (
    "realtime_ns,monotonic_ns,boottime_ns,gpu,system_clock_counter,current_socket_power,"
    "energy_accumulator,accumulation_counter,ppt_residency_acc\n"
) + "".join(
    f"{NOW_NS + tick},{5000 + tick},{6000 + tick},{gpu},{6000 + tick},300,{tick},{tick},0\n"
    for tick in range(10**7, 5 * 10**7, 10**7)
    for gpu in range(2)
)


CASES = slow_from([20, 200], 1)
"""Files with other numbers, in a test."""


def read(folder: Path, text: str, **options: int) -> ci.Trace:
    path = folder / "monitor.csv"
    path.write_text(text)
    trace = samples.read([path], **options)
    assert_all_rows_counted(trace)
    return trace


@pytest.mark.parametrize("gpu", [2**31, 4_000_000_000, 2**32 - 1, 2**64 - 1])
@pytest.mark.parametrize("form", ["csv", "json"])
def test_a_gpu_that_cannot_be_is_counted(tmp_path: Path, gpu: int, form: str) -> None:
    text = f"timestamp,gpu,socket_power\n{T},0,300\n{T},{gpu},310\n"
    if form == "json":
        rows = [{"timestamp": T, "gpu": g, "socket_power": 300} for g in (0, gpu)]
        text = json.dumps(rows)
    trace = read(tmp_path, text)
    assert counts(trace)["row-without-gpu"] == 1
    assert lanes(trace) == {(0, "socket power"): [300.0]}


def test_numbers_of_more_digits_than_any_has(tmp_path: Path) -> None:
    digits = "9" * 5000
    row = f'{{"timestamp": {T}, "gpu": 0, "socket_power": 300, "other": {digits}}}'
    far = f'{{"timestamp": "{digits}", "gpu": 1, "socket_power": 300}}'
    trace = read(tmp_path, f"[{row}, {far}]")
    assert lanes(trace) == {(0, "socket power"): [300.0]}


def test_a_value_that_leaves_floating_point_in_its_unit_is_none(tmp_path: Path) -> None:
    assert lanes(read(tmp_path, f"timestamp,gpu,vram_used\n{T},0,1e308 GB\n")) == {}


@pytest.mark.parametrize("at_ns", [-1, 2**63, 10**30])
def test_a_time_that_cannot_be_given(tmp_path: Path, at_ns: int) -> None:
    with pytest.raises(UsageError, match="at_ns"):
        read(tmp_path, "gpu,socket_power\n0,300\n", at_ns=at_ns)


@pytest.mark.parametrize(("column", "number"), [(0, 2**62), (3, 2**31), (3, 2**63 - 1)])
def test_clocks_and_gpus_of_the_recorder_that_cannot_be(
    tmp_path: Path, column: int, number: int
) -> None:
    header, first, *rest = RECORDER.splitlines()
    cells = first.split(",")
    cells[column] = str(number)
    path = tmp_path / "recorder.csv"
    path.write_text("\n".join([header, ",".join(cells), *rest, ""]))
    trace = recorder_samples.read([path])
    assert_all_rows_counted(trace)
    assert counts(trace)["row-without-clock"] == 1


@pytest.mark.parametrize("levels", [800, 100_000])
@pytest.mark.parametrize("brackets", ["[]", "{}"])
def test_values_nested_deeply(tmp_path: Path, levels: int, brackets: str) -> None:
    begin = "[" if brackets == "[]" else '{"a": '
    deep = f"{begin * levels}1{brackets[1] * levels}"
    good = f'{{"timestamp": {T}, "gpu": 0, "socket_power": 300}}'
    bad = f'{{"timestamp": {T}, "gpu": 1, "other": {deep}}}'
    assert lanes(read(tmp_path, f"[{good}, {bad}]"))[0, "socket power"] == [300.0]


@pytest.mark.parametrize("cases", CASES)
def test_any_number_in_any_cell(tmp_path: Path, cases: int) -> None:
    held = [assert_held(tmp_path / "m.csv", t) for t in garbled_csv(MONITOR, cases, seed=1)]
    assert sum(trace is not None for trace in held) > 3 / 4 * cases


def test_any_number_without_times(tmp_path: Path) -> None:
    text = "\n".join(line.partition(",")[2] for line in MONITOR.splitlines()) + "\n"
    for garbled in garbled_csv(text, 30, seed=2):
        assert_held(tmp_path / "m.csv", garbled, at_ns=10**18)


@pytest.mark.parametrize("cases", CASES)
def test_any_number_in_json(tmp_path: Path, cases: int) -> None:
    held = [assert_held(tmp_path / "m.json", t) for t in garbled_json(METRIC, cases, seed=3)]
    assert sum(trace is not None for trace in held) > 3 / 4 * cases


@pytest.mark.parametrize("cases", CASES)
def test_any_number_of_the_recorder(tmp_path: Path, cases: int) -> None:
    held = [assert_held(tmp_path / "r.csv", t) for t in garbled_csv(RECORDER, cases, seed=4)]
    assert sum(trace is not None for trace in held) > cases / 3

"""amd-smi's form for people gives what its CSV and JSON give."""

import re
from pathlib import Path

import pytest
from issue_counts import counts
from slow import slow_but_each
from telemetry import assert_all_rows_counted, lanes, points_of, units

import chopper_interop as ci
from chopper_interop.converters.amd_smi import AMD_SMI, AMD_SMI_TEXT
from chopper_interop.converters.amd_smi.samples import read_text
from chopper_interop.io import inputs

AT_NS = 1_700_000_000_123_456_789
T = 1_786_553_852
WATCHING = "'CTRL' + 'C' to stop watching output:\n"
BY_VERSION = "telemetry/amd_smi_by_version"
SAME_VALUES = [
    *(("v5.7.1", "metric_pctu"), ("v6.0.2", "metric_all"), ("v6.1.2", "metric_all")),
    *(("v6.2.4", "metric_all"), ("v6.3.0", "metric_all"), ("v6.3.3", "metric_all")),
    *(("v6.4dev", "metric_all"), ("v7.1.0", "metric_all")),
    *((v, "metric_throttle") for v in ("v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0")),
    *((v, "monitor") for v in ("v6.1.2", "v6.2.4", "v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0")),
    *((v, "monitor_viol") for v in ("v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0")),
]
"""Outputs of one command in all three forms, in which the tool's values did not move."""
OVERWRITTEN = "PCIe speed"
"""In a full ``metric --csv`` the fan's speed overwrites that of PCIe."""


def read(folder: Path, text: str | bytes, **options: object) -> ci.Trace:
    path = folder / "telemetry.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert AMD_SMI_TEXT.sniff(inputs.head(path)), "not recognised"
    trace = read_text([path], **options)
    assert_all_rows_counted(trace)
    return trace


def block(gpu: int, power: str, stamp: int | None = T, more: str = "") -> str:
    time = f"    TIMESTAMP: {stamp}\n" if stamp is not None else ""
    return f"GPU: {gpu}\n{time}    POWER:\n        SOCKET_POWER: {power}\n{more}\n"


@pytest.mark.parametrize(("version", "name"), slow_but_each(SAME_VALUES, 3))
def test_all_forms_give_the_same_samples(shared: Path, version: str, name: str) -> None:
    folder = shared / BY_VERSION / version
    text = read_text([folder / f"{name}.txt"], at_ns=AT_NS)
    for suffix in (".json", ".csv"):
        other = AMD_SMI.reader([folder / f"{name}{suffix}"], at_ns=AT_NS)
        actual, expected = points_of(text), points_of(other)
        if suffix == ".csv":
            actual = {key: points for key, points in actual.items() if key[1] != OVERWRITTEN}
        assert actual == expected
        assert {k: v for k, v in units(text).items() if k != OVERWRITTEN} == {
            k: v for k, v in units(other).items() if k != OVERWRITTEN
        }
        energy = "energy-reads-high"
        assert counts(text).get(energy) == counts(other).get(energy)


def test_the_watch_of_a_monitor_in_all_forms(shared: Path) -> None:
    for version in ("v6.1.2", "v6.2.4", "v6.3.0", "v6.3.3", "v6.4dev", "v7.1.0"):
        folder = shared / BY_VERSION / version
        text = read_text([folder / "monitor_watch.txt"])
        assert lanes(text) == lanes(AMD_SMI.reader([folder / "monitor_watch.csv"])), version


def numbers_of(text: str) -> int:
    """Numbers that stand as values, by regular expressions alone; times are none of them."""
    if re.search(r"^GPU: ", text, re.MULTILINE):
        text = re.sub(r"\n +(?![A-Z0-9_ ]+:)", " ", text)  # lists that wrap
        values = re.findall(r"^ +(?!TIMESTAMP)[A-Z0-9_]+: (.*)$", text, re.MULTILINE)
        return sum(len(re.findall(r"(?:^|[\[ ])-?\d+(?:\.\d+)?(?=[ ,\]]|$)", v)) for v in values)
    cells = re.findall(r"(?<=\s)\d+(?:\.\d+)? (?:W|°C|%|MHz|MB|Mb/s)", text)
    return len(cells)


@pytest.mark.parametrize("version", ["v6.0.2", "v6.1.2", "v6.2.4", "v6.3.0", "v6.4dev", "v7.1.0"])
def test_every_number_of_a_watch_is_a_sample(shared: Path, version: str) -> None:
    path = shared / BY_VERSION / version / "metric_watch_stdout.txt"
    trace = read_text([path])
    assert_all_rows_counted(trace)
    text = path.read_text()
    assert counts(trace)["row-as-samples"] == len(re.findall(r"^GPU: ", text, re.MULTILINE)) == 4
    states = text.count("UNTHROTTLED")
    steady = 2 * text.count("POWER_LIMIT") // 4  # recorded where it changes
    limits = text.count("POWER_LIMIT")
    assert trace.samples.num_rows == numbers_of(text) + states - limits + steady


def test_the_real_text_of_eight_mi300x(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_real_8xmi300x/metrics.txt"
    trace = read_text([path], at_ns=AT_NS)
    assert_all_rows_counted(trace)
    assert counts(trace)["row-as-samples"] == 8
    text = path.read_text(encoding="latin-1")
    clocks = [float(n) for n in re.findall(r"GFX_\d:\n +CLK: (\d+) MHz", text)]
    by_lane = lanes(trace)
    stated = [by_lane[g, f"gfx clock XCD {x}"][0] for g in range(8) for x in range(8)]
    assert stated == clocks
    hotspot = [float(n) for n in re.findall(r"HOTSPOT: (\d+) °C", text)]
    assert [by_lane[g, "temperature hotspot"][0] for g in range(8)] == hotspot


def test_a_text_without_times_says_what_to_do(shared: Path) -> None:
    path = shared / "telemetry/amd_smi_real_8xmi300x/metrics.txt"
    with pytest.raises(ci.ChopperError, match="at_ns") as raised:
        ci.read(path)
    assert "\n" not in str(raised.value)


def test_lists_that_wrap_within_a_value(tmp_path: Path) -> None:
    more = "    USAGE:\n        VCN_ACTIVITY: [1 %, 2 %, 3\n            %, N/A]\n"
    by_lane = lanes(read(tmp_path, block(0, "100 W", more=more)))
    assert [by_lane[0, f"VCN activity {n}"] for n in range(3)] == [[1], [2], [3]]
    assert (0, "VCN activity 3") not in by_lane


def test_messages_and_other_processors(tmp_path: Path) -> None:
    text = WATCHING + block(0, "100 W") + "WARNING: User is missing groups\n"
    text += "CPU: 0\n    POWER_METRICS:\n        SOCKET_POWER: 90 W\n\n" + block(0, "101 W", T + 1)
    trace = read(tmp_path, text)
    assert lanes(trace) == {(0, "socket power"): [100, 101]}
    assert counts(trace)["line-without-data"] == 2
    assert counts(trace)["row-of-other-part"] == 1


def test_processors_in_front_of_the_gpus(tmp_path: Path) -> None:
    cpu = "CPU: 0\n    POWER_METRICS:\n        SOCKET_POWER: 90 W\n\n"
    trace = read(tmp_path, cpu + block(0, "100 W") + block(0, "101 W", T + 1))
    assert lanes(trace) == {(0, "socket power"): [100, 101]}
    assert counts(trace)["row-of-other-part"] == 1


@pytest.mark.parametrize("keep", [1, 3, 5])
def test_a_text_that_breaks_off_within_a_number(tmp_path: Path, keep: int) -> None:
    """Of ``203 W`` the power may not become 2 or 20."""
    text = WATCHING + block(0, "100 W") + block(1, "101 W") + block(0, "102 W", T + 1)
    last = block(1, "203 W", T + 1).rstrip("\n")
    text += last[: len(last) - 5 + keep]
    trace = read(tmp_path, text)
    assert lanes(trace) == {(0, "socket power"): [100, 102], (1, "socket power"): [101]}
    assert counts(trace)["cell-cut-short"] == 1


@pytest.mark.parametrize("degree", ["°", "\N{LATIN CAPITAL LETTER A WITH CIRCUMFLEX}°", "\ufffd"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-8-sig"])
def test_degrees_in_any_encoding(tmp_path: Path, degree: str, encoding: str) -> None:
    more = f"    TEMPERATURE:\n        HOTSPOT: 46 {degree}C\n"
    trace = read(tmp_path, block(0, "100 W", more=more).replace("\n", "\r\n").encode(encoding))
    assert lanes(trace)[0, "temperature hotspot"] == [46]
    assert units(trace)["temperature hotspot"] == "°C"


def test_degrees_in_latin_1(tmp_path: Path) -> None:
    text = f" TIMESTAMP  GPU  POWER   GPU_T\n{T}    0  700 W   46 °C\n"
    trace = read(tmp_path, text.encode("latin-1"))
    assert lanes(trace) == {(0, "socket power"): [700], (0, "temperature hotspot"): [46]}


def test_cells_of_a_table_that_are_wider_than_their_column(tmp_path: Path) -> None:
    text = f"TIMESTAMP GPU XCP POWER GPU_T VRAM_USAGE\n{T} 10 0 1000 W 46 °C 180.3/288.0 GB\n"
    assert lanes(read(tmp_path, text)) == {
        (10, "socket power"): [1000],
        (10, "temperature hotspot"): [46],
        (10, "VRAM used"): [180.3 * 2**30],
        (10, "VRAM total"): [288 * 2**30],
    }


def test_memory_that_is_not_known_is_no_amount(tmp_path: Path) -> None:
    trace = read(tmp_path, f"TIMESTAMP GPU XCP POWER VRAM_USAGE\n{T} 10 0 1000 W N/A\n")
    assert lanes(trace) == {(10, "socket power"): [1000]}
    assert "value-garbled" not in counts(trace)


def test_memory_of_less_than_100_gb_and_of_the_host(tmp_path: Path) -> None:
    tool = "AMDSMI Tool: 27.0.0+6b0e43f3 | AMDSMI Library version: 27.0.0 | ROCm version: 10.0.0\n"
    for head, lane in (("VRAM_USAGE", "VRAM"), ("GTT_USAGE", "GTT")):
        rows = "".join(f"  {T + n}    0    N/A    {9.9 + n:3.1f}/ 15.9 GB\n" for n in range(9))
        text = (
            f"{tool} TIMESTAMP  GPU  POWER       {head}\n{rows}  {T + 9}    0    N/A    N/A/N/A\n"
        )
        assert lanes(read(tmp_path, text)) == {
            (0, f"{lane} used"): [(9.9 + n) * 2**30 for n in range(9)],
            (0, f"{lane} total"): [15.9 * 2**30],
        }


def test_rows_of_a_table_that_have_other_cells_than_its_head(tmp_path: Path) -> None:
    head = " TIMESTAMP  GPU  POWER   GPU_T\n"
    text = WATCHING + head + f"{T}    0  700 W   46 °C\n{T}    1  70"
    trace = read(tmp_path, text)
    assert lanes(trace)[0, "socket power"] == [700]
    assert counts(trace)["row-cut-short"] == 1


def test_processes_below_a_table(tmp_path: Path) -> None:
    text = f" TIMESTAMP  GPU  POWER\n{T}    0  700 W\n\nPROCESS INFO:\n"
    text += " TIMESTAMP  GPU  NAME  PID  GTT_MEM\n" + f"{T}    0  python3  42  2 MB\n"
    trace = read(tmp_path, text)
    assert lanes(trace) == {(0, "socket power"): [700], (0, "process 42 GTT"): [2 * 2**20]}
    assert counts(trace)["row-joined"] == 1


def test_blocks_and_tables_in_one_file(tmp_path: Path) -> None:
    table = f" TIMESTAMP  GPU  POWER\n{T + 5}    0  700 W\n\n"
    for text in (block(0, "100 W") + table, table + block(0, "100 W")):
        trace = read(tmp_path, WATCHING + text)
        assert sorted(lanes(trace)[0, "socket power"]) == [100, 700]
        assert counts(trace)["row-as-samples"] == 2


def test_sentinels_are_no_values(tmp_path: Path) -> None:
    for sentinel in (-1, 65535, 4294967295, 18446744073709551615):
        trace = read(tmp_path, block(0, f"{sentinel} W") + block(1, "9 W"))
        assert lanes(trace) == {(1, "socket power"): [9]}
        assert counts(trace)["value-not-available"] == 1


def test_several_outputs_without_times_by_their_period(tmp_path: Path) -> None:
    text = "".join(block(0, f"{100 + n} W", None) for n in range(3))
    trace = read(tmp_path, text, at_ns=AT_NS, period_ms=500)
    assert points_of(trace) == {
        (0, "socket power"): [(AT_NS - (2 - n) * 500_000_000, 100.0 + n) for n in range(3)]
    }
    trace = read(tmp_path, text, at_ns=AT_NS)
    assert points_of(trace) == {(0, "socket power"): [(AT_NS, 102.0)]}
    assert counts(trace)["row-of-earlier-output"] == 2


def test_a_period_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ci.ChopperError, match="at_ns"):
        read(tmp_path, block(0, "1 W", None), period_ms=500)


def test_the_index_of_a_gpu_and_the_name_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "run.v1.5.txt"
    path.write_text(block(3, "100 W"))
    trace = read_text([path])
    assert trace.meta.job == "run.v1.5"
    assert [(d.device, d.index) for d in trace.meta.devices] == [(3, 3)]


def test_what_looks_like_a_time_in_front_of_a_block_may_be_none(tmp_path: Path) -> None:
    """As of a file that was named to be such a text."""
    path = tmp_path / "metric.txt"
    path.write_text("TIMESTAMP: nTIMESTAMP: n")
    trace = read_text([path])
    assert not points_of(trace)
    assert counts(trace)["line-without-data"] == 1

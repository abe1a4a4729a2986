"""Rows of rocprofv3's CSV that are broken, cut, repeated or rounded."""

import csv
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from rocprof import (
    CALLS,
    COUNTERS,
    KERNELS,
    T0,
    assert_whole,
    example,
    nodes,
    row,
    write,
)

import chopper_interop as ci
from chopper_interop.converters.rocprof import ROCPROFV3_CSV
from chopper_interop.converters.rocprof.v3.csv_reader import read as read_v3_csv
from chopper_interop.errors import ReadError
from chopper_interop.testing import check_converter


def marker(text: str, position: int = 0, **changes: object) -> str:
    start = T0 + 1_000 * position
    return row(
        CALLS, Domain="MARKER_CORE_API", Function=text, Start_Timestamp=start,
        End_Timestamp=start + 10, **changes,
    )  # fmt: skip


MESSAGES = {
    "a quote": 'say "hi" there',
    "a quote at the end": 'size 5"',
    "a quote at the begin": '"size" 5',
    "nothing but a quote": '"',
    "quotes and commas": 'a "b, c" d, e',
    "what looks like a field": 'x","y',
    "a line end": "step 3\nloss 0.5",
    "blank lines": "one\n\n\ntwo",
    "a line end, a quote, commas": 'a "b"\n1,2,3\nc, d"',
    "a carriage return": "a\rb",
    "a line end of another system": "a\r\nb\r\n",
    "only commas": ",,,,,,",
    "a long text": 'lorem "ipsum" ' * 20_000,
}


@pytest.mark.parametrize("text", MESSAGES.values(), ids=MESSAGES)
def test_messages_that_break_their_row_are_put_together_again(tmp_path: Path, text: str) -> None:
    rows = [marker("before", 0), marker(text, 1), marker("after", 2), marker(text, 3)]
    trace = read_v3_csv([write(tmp_path / "7_marker_api_trace.csv", CALLS, *rows)])
    assert_whole(trace, 4)
    assert [(n["name"], n["ts"], n["dur"]) for n in nodes(trace)] == [
        ("before", T0, 10),
        (text, T0 + 1_000, 10),
        ("after", T0 + 2_000, 10),
        (text, T0 + 3_000, 10),
    ]
    assert not [i for i in trace.meta.issues if i.severity.value == "loss"]


def test_line_ends_within_messages_of_a_file_with_carriage_returns(tmp_path: Path) -> None:
    rows = [marker('a "b"\r\nc', 0), marker("d", 1)]
    trace = read_v3_csv([write(tmp_path / "7_marker_api_trace.csv", CALLS, *rows, end="\r\n")])
    assert_whole(trace, 2)
    assert [n["name"] for n in nodes(trace)] == ['a "b"\nc', "d"]


@pytest.mark.parametrize("text", ['say "hi"', "a\nb", '"', 'x""y', "a, b"])
def test_escaped_messages_are_read_as_they_were(tmp_path: Path, text: str) -> None:
    path = tmp_path / "regions_trace.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["Guid", *CALLS])
        writer.writerow(["0-a", "MARKER_CORE_API", text, 7, 7, 1, T0, T0 + 5])
    trace = read_v3_csv([path])
    assert_whole(trace, 1)
    assert nodes(trace)[0]["name"] == text


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=6))
def test_no_message_is_lost_in_silence(tmp_path_factory, texts: list[str]) -> None:
    path = tmp_path_factory.mktemp("m") / "7_marker_api_trace.csv"
    rows = [marker(text, i) for i, text in enumerate(texts)]
    write(path, CALLS, *rows, marker("the end", len(texts)))
    trace = read_v3_csv([path])
    (source,) = trace.meta.sources
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert source.events == trace.nodes.num_rows + counted
    assert source.events >= len(texts) + 1
    actual = {n["ts"]: n["name"] for n in nodes(trace)}
    assert actual[T0 + 1_000 * len(texts)] == "the end"
    plain = {"MARKER_CORE_API"}
    for i, text in enumerate(texts):
        if not plain & set(text.split('"')) and '""' not in text:
            assert actual[T0 + 1_000 * i] == text


def test_lines_that_are_no_rows_are_counted_with_their_number(tmp_path: Path) -> None:
    rows = [
        row(KERNELS),
        "Killed",
        row(KERNELS, Dispatch_Id=2),
        "1,2,3",
        row(KERNELS, Dispatch_Id=3),
    ]
    trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, 5)
    assert trace.nodes.num_rows == 3
    assert counts(trace)["row-unreadable"] == 2
    assert example(trace, "row-unreadable") == "9_kernel_trace.csv, line 3: 'Killed'"


def test_each_line_of_what_is_no_row_is_counted(tmp_path: Path) -> None:
    cut_short, other = row(KERNELS).rsplit(",", 6)[0], '"KERNEL_DISPATCH",x,y,z,"k",a,b,c'
    rows = [row(KERNELS), cut_short, other, row(KERNELS, Dispatch_Id=2)]
    trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, 4)
    assert counts(trace)["row-unreadable"] == 2


def test_kernel_names_without_quotes_keep_their_commas(tmp_path: Path) -> None:
    line = row(KERNELS).replace('"gemm(float*, float const*)"', "gemm(float*, float const*)")
    trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, line)])
    assert_whole(trace, 1)
    assert nodes(trace)[0]["name"] == "gemm(float*, float const*)"


def test_rows_with_a_field_too_many_are_not_guessed_at(tmp_path: Path) -> None:
    quoted = [row(KERNELS), row(KERNELS, Dispatch_Id=2) + ",5", row(KERNELS, Dispatch_Id=3) + ","]
    bare = [line.replace('"', "").replace("(float*, float const*)", "") for line in quoted]
    for rows in (quoted, bare):
        trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)])
        assert_whole(trace, 3)
        assert [(n["ts"], n["dur"]) for n in nodes(trace)] == [(T0, 12_800)]
        assert counts(trace)["row-unreadable"] == 2


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("cut", range(5, 120, 10))
def test_a_cut_row_is_counted(tmp_path: Path, end: str, cut: int) -> None:
    rows = [row(CALLS, Start_Timestamp=T0 + i, End_Timestamp=T0 + i + 7) for i in range(3)]
    path = write(tmp_path / "9_hip_api_trace.csv", CALLS, *rows, end=end)
    complete = path.read_bytes()
    last = len(rows[-1]) + len(end)
    path.write_bytes(complete[: len(complete) - last + min(cut, last - len(end) - 3)])
    trace = read_v3_csv([path])
    assert_whole(trace, 3)
    assert [n["dur"] for n in nodes(trace)] == [7, 7]
    assert counts(trace)["row-cut-short"] == 1


def test_a_missing_last_line_end_costs_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "9_hip_api_trace.csv", CALLS, row(CALLS), row(CALLS))
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    trace = read_v3_csv([path])
    assert_whole(trace, 2)
    assert trace.nodes.num_rows == 2


def test_blank_lines_and_zeros_at_the_end_are_nothing(tmp_path: Path) -> None:
    path = write(tmp_path / "9_hip_api_trace.csv", CALLS, "", row(CALLS), "  ", "", row(CALLS))
    path.write_bytes(b"\n\n" + path.read_bytes() + b"\r\n\n" + bytes(512))
    trace = read_v3_csv([path])
    assert_whole(trace, 2)
    assert trace.nodes.num_rows == 2


def test_appended_files_have_several_headers(tmp_path: Path) -> None:
    first = write(tmp_path / "a.csv", KERNELS, row(KERNELS), row(KERNELS, Dispatch_Id=2))
    older = [c for c in KERNELS if c not in ("Stream_Id", "VGPR_Count")]
    second = write(tmp_path / "b.csv", older, row(older, Dispatch_Id=3, Agent_Id=4))
    third = write(tmp_path / "c.csv", CALLS, row(CALLS))
    path = tmp_path / "out_kernel_trace.csv"
    path.write_bytes(b"".join(p.read_bytes() for p in (first, second, third, first)))
    trace = read_v3_csv([path])
    assert_whole(trace, 6)
    assert sorted(n["kind"] for n in nodes(trace)) == ["KERNEL"] * 5 + ["RUNTIME"]
    assert sorted(n["args"]["dispatch_id"] for n in nodes(trace) if n["kind"] == "KERNEL") == [
        1, 1, 2, 2, 3,
    ]  # fmt: skip
    assert counts(trace)["processes-mixed"] == 2


def test_times_that_a_spreadsheet_rounded_are_exact_as_written(tmp_path: Path) -> None:
    rows = [
        row(KERNELS, Dispatch_Id=1).replace(f"{T0},{T0 + 12_800}", "8.1097E+14,8.1097E+14"),
        row(KERNELS, Dispatch_Id=2).replace(f"{T0},", "41551790928449.54,"),
        row(KERNELS, Dispatch_Id=3).replace(f"{T0},", f"{T0}.0,"),
        row(KERNELS, Dispatch_Id=4, Start_Timestamp=2**63 - 3, End_Timestamp=2**63 - 1),
    ]
    trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, 4)
    starts = {n["args"]["dispatch_id"]: (n["ts"], n["dur"]) for n in nodes(trace)}
    assert starts == {
        1: (810_970_000_000_000, 0),
        2: (41_551_790_928_450, T0 + 12_800 - 41_551_790_928_450),
        3: (T0, 12_800),
        4: (2**63 - 3, 2),
    }
    assert counts(trace)["time-rounded"] == 3  # two cells of the first row, one of the second


def test_cells_that_hold_no_number(tmp_path: Path) -> None:
    rows = [
        row(KERNELS, Dispatch_Id=1, Queue_Id="?", Stream_Id=2),
        row(KERNELS, Dispatch_Id=2).replace(f"{T0},", ","),
        row(KERNELS, Dispatch_Id=3, Start_Timestamp=0, End_Timestamp=0),
        row(KERNELS, Dispatch_Id=4, End_Timestamp=T0 - 5),
        row(KERNELS, Dispatch_Id=5, Correlation_Id=2**64 - 1),
        row(KERNELS, Dispatch_Id=6, Stream_Id="9e999999999"),  # more digits than fit into memory
        row(KERNELS, Dispatch_Id=7, Start_Timestamp=-(2**63)),  # differences of it do not fit
        row(KERNELS, Dispatch_Id=8, End_Timestamp=-(2**63)),
    ]
    trace = read_v3_csv([write(tmp_path / "9_kernel_trace.csv", KERNELS, *rows)])
    assert_whole(trace, 8)
    actual = {n["args"]["dispatch_id"]: n for n in nodes(trace)}
    assert set(actual) == {1, 4, 5, 6, 8}
    assert "queue" not in actual[1]["args"]
    assert actual[4]["dur"] == actual[8]["dur"] == 0
    assert actual[5]["correlation"] == -1
    assert counts(trace) | {"rank-assumed": 1} == {
        "number-unreadable": 2,
        "event-without-time": 3,
        "duration-negative": 2,
        "rank-assumed": 1,
    }
    assert example(trace, "number-unreadable") == "9_kernel_trace.csv, row 1: queue is '?'"


def test_bytes_that_are_no_utf8(tmp_path: Path) -> None:
    path = write(tmp_path / "9_marker_api_trace.csv", CALLS, marker("caf?"), marker('a "b"', 1))
    path.write_bytes(path.read_bytes().replace(b"caf?", b"caf\xe9"))
    trace = read_v3_csv([path])
    assert_whole(trace, 2)
    assert [n["name"] for n in nodes(trace)] == ["caf\ufffd", 'a "b"']
    assert counts(trace)["text-not-utf8"] == 1


@pytest.mark.parametrize("content", [b"", b"\n\n", b"a,b\n1,2\n", b"\x00" * 100])
def test_files_without_a_table_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "9_kernel_trace.csv"
    path.write_bytes(content)
    with pytest.raises(ReadError) as refused:
        read_v3_csv([path])
    assert "\n" not in str(refused.value)
    assert str(path) in str(refused.value)


def test_packed_files_and_files_in_utf16(tmp_path: Path) -> None:
    import gzip

    path = write(tmp_path / "9_kernel_trace.csv", KERNELS, row(KERNELS))
    plain = read_v3_csv([path])
    (tmp_path / "9_kernel_trace.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    path.write_bytes(path.read_text().encode("utf-16"))
    for other in (path, tmp_path / "9_kernel_trace.csv.gz"):
        assert nodes(ci.read(other))[0]["ts"] == nodes(plain)[0]["ts"]


@pytest.mark.parametrize("header", [KERNELS, CALLS, COUNTERS], ids=lambda h: h[1])
def test_the_contract_of_converters(tmp_path: Path, header: list[str]) -> None:
    chance = random.Random(3)  # noqa: S311
    rows = [
        row(header, Dispatch_Id=i + 1, Start_Timestamp=T0 + i * 1_000 + chance.randrange(900))
        for i in range(40)
    ]
    check_converter(ROCPROFV3_CSV, write(tmp_path / "9_table.csv", header, *rows))

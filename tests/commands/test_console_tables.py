"""Cells of tables: any column has one."""

import io
import math

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from chopper_interop.commands import console_tables
from chopper_interop.schemas import results

NAMES = ("mean", "busy_ns", "read_bytes", "flops", "busy_share", "tokens_per_s", "power_w", "rank")
NUMBERS = st.floats() | st.floats(9_990, 10_001) | st.floats(1e-4, 1.01)
COLUMNS = st.sampled_from(
    [
        (NUMBERS, pa.float64()),
        (st.integers(-(2**63), 2**63 - 1), pa.int64()),
        (st.booleans(), pa.bool_()),
    ]
).flatmap(
    lambda kind: st.lists(st.none() | kind[0], min_size=3, max_size=3).map(
        lambda values: pa.array(values, kind[1])
    )
)


def number(cell: str) -> float:
    return float(cell.split(" ", maxsplit=1)[0].replace(",", ""))


def test_the_largest_number_below_10000_has_four_figures() -> None:
    assert console_tables.cells("mean", [9_997.0, 9_100.5, None]) == ["9,997", "9,100", ""]


def test_a_column_of_zeros_has_the_unit_of_its_sum() -> None:
    assert console_tables.cells("comm_ns", [0, 0], [762_095_000]) == ["0 ms", "0 ms", "762.1 ms"]
    assert console_tables.cells("comm_ns", [0, 0], [0]) == ["0 ns", "0 ns", "0 ns"]


def test_small_numbers_have_no_exponent() -> None:
    assert console_tables.cells("tflop_per_s", [3.74e-05, 753.8]) == [
        "0.0000374 TFLOP/s",
        "753.8 TFLOP/s",
    ]


def test_large_sums_have_no_decimals() -> None:
    assert console_tables.cells("busy_ns", [513_000_000, 1_250_000], [514_250_000, 0]) == [
        "513.00 ms", "1.25 ms", "514.25 ms", "0 ms",
    ]  # fmt: skip
    assert console_tables.cells("busy_ns", [999_123, 5_120], [51_720_000]) == [
        "999.12 µs", "5.12 µs", "51,720 µs",
    ]  # fmt: skip


def test_names_of_figures_read_as_in_headers() -> None:
    names = ["kernel_time_ns", "throttle_share", "gfxclk_mhz", None]
    assert console_tables.cells("with_quantity", names) == ["kernel_time", "throttle", "gfxclk", ""]


@given(st.lists(COLUMNS, min_size=len(NAMES), max_size=len(NAMES)))
def test_columns_of_all_numbers_are_printed(columns: list[pa.Array]) -> None:
    rows = pa.table(dict(zip(NAMES, columns, strict=True)))
    console = Console(width=console_tables.PIPE_WIDTH, quiet=True)
    console_tables.print_table(console, rows, None, total={"busy_ns": 1, "power_w": math.nan})
    for name, column in zip(NAMES, columns, strict=True):
        values = column.to_pylist()
        shown = console_tables.cells(name, values)
        assert [
            "" if value is None else cell for value, cell in zip(values, shown, strict=True)
        ] == shown
        if results.unit(name) in ("", "1/s", "W") and pa.types.is_floating(column.type):
            for value, cell in zip(values, shown, strict=True):
                if value is not None and abs(value) < 1e300:  # more would be inf as four figures
                    assert math.isclose(number(cell), value, rel_tol=0.006)


@given(st.floats(-0.01, 1.1) | st.floats(0.9985, 1.0015) | st.sampled_from([0, 1]))
def test_only_nothing_and_all_read_so(share: float) -> None:
    (cell,) = console_tables.cells("busy_share", [share])
    if cell in ("0.0%", "-0.0%", "100.0%"):
        assert abs(share - round(share)) <= 1e-9
    elif cell[0] in "<>":
        bound = float(cell[1:-1]) / 100
        assert 0 < (bound - share if cell[0] == "<" else share - bound) < 0.001
    else:
        assert abs(float(cell[:-1]) / 100 - share) <= 0.000501


def test_long_names_in_a_pipe_are_cut_and_stay_apart() -> None:
    names = [f"void kernel<{'float, ' * 400}{number}>" for number in (1, 2)]
    rows = pa.table({"kernel": names, "count": [1, 2]})
    console = Console(width=console_tables.PIPE_WIDTH, file=io.StringIO())
    console_tables.print_table(console, rows, None)
    _, *lines = console.file.getvalue().splitlines()
    assert all(len(line) < 220 for line in lines)
    assert [f"{number}>" in line for line, number in zip(lines, (1, 2), strict=True)] == [
        True,
        True,
    ]

"""Templates: reading many lines by one form gives what reading them one by one gives."""

import json
import sys
from operator import attrgetter
from pathlib import Path

import mutations
import numpy as np
import pytest
from seeds import Seed
from slow import slow_again, slow_from

import chopper_interop as ci
from chopper_interop.arrays.compiled import Loop
from chopper_interop.converters.sampling import laid_rows, layouts, pieces, stamps, templates, text
from chopper_interop.converters.sampling.cells import DECIMAL, INTEGER, OTHER
from chopper_interop.converters.sampling.text import encoded
from chopper_interop.converters.sampling.timestamps import parse_timestamp
from chopper_interop.errors import ChopperError

TELEMETRY = [s for f in ("amd_smi", "nvidia_smi", "zeus") for s in mutations.seeds_of(f)]


def scanned(text: str, *, gaps: bool = False) -> tuple[pieces.TextPieces, list[bytes]]:
    data = encoded(text)
    (window,) = pieces.line_windows(data)
    scanner = pieces.Scanner(data, gaps=gaps)
    return scanner.scan(*window), scanner.templates


def outcome(path: Path, seed: Seed) -> str:
    try:
        trace = ci.read(path, **seed.options)
    except ChopperError as refused:
        return f"{type(refused).__name__}: {refused}"
    tables = [trace.series.to_pydict(), trace.samples.to_pydict()]
    return repr((tables, trace.meta))


CUTS = (
    (1, pieces.WINDOW_BYTES, laid_rows._TOGETHER), (2, pieces.WINDOW_BYTES, 1), (2, 1, laid_rows._TOGETHER),
    (1, 300, 2),
)  # fmt: skip
"""Pieces from which on a template has a layout, bytes of a window, and pieces that are put into columns at once."""


@pytest.mark.parametrize("mutants", slow_from([3, 12], 1))
@pytest.mark.parametrize(
    "seed", slow_again(TELEMETRY[::-1], attrgetter("form")), ids=lambda s: f"{s.format}-{s.name}"
)
def test_layouts_change_no_value_and_no_issue(seed, mutants, tmp_path, monkeypatch):
    for number in range(-1, mutants):
        sound = mutations.Mutant(seed, seed.data * 2, "twice", -1)
        made = sound if number < 0 else mutations.mutant(seed, 10_000 + number)
        path = mutations.written(made, tmp_path)
        monkeypatch.setattr(pieces, "FEW", sys.maxsize)
        alone = outcome(path, seed)
        for few, window, together in CUTS:
            with monkeypatch.context() as patch:
                patch.setattr(pieces, "FEW", few)
                patch.setattr(pieces, "WINDOW_BYTES", window)
                patch.setattr(laid_rows, "_TOGETHER", together)
                assert outcome(path, seed) == alone, (made.how, few, window, together)


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")  # hashes wrap around
def test_no_reader_writes_to_a_text(tmp_path, monkeypatch):
    """Arrays of texts are Python's own memory; here they are read-only, and loops run as Python."""

    class ReadOnly(text._Utf8):
        def __init__(self, of: str) -> None:
            super().__init__(of)
            address, _ = self.__array_interface__["data"]
            self.__array_interface__["data"] = (address, True)
            readers.add(sys._getframe(2).f_globals["__name__"])

    readers: set[str] = set()
    smallest: dict[str, Seed] = {}
    for seed in sorted(TELEMETRY, key=lambda s: len(s.data)):
        smallest.setdefault(seed.form, seed)
    paths = {}
    for number, seed in enumerate(smallest.values()):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        paths[mutations.written(mutations.Mutant(seed, seed.data * 2, "twice", -1), folder)] = seed
    monkeypatch.setattr(pieces, "FEW", 1)
    expected = [outcome(path, seed) for path, seed in paths.items()]
    monkeypatch.setattr(text, "_Utf8", ReadOnly)
    monkeypatch.setattr(Loop, "__call__", lambda self, *values: self.py_func(*values))
    assert [outcome(path, seed) for path, seed in paths.items()] == expected
    named = {m for m, v in list(sys.modules.items()) if getattr(v, "encoded", None) is text.encoded}
    assert readers == {m for m in named if m.startswith("chopper_interop.") and m != text.__name__}


def test_cells_of_rows_with_and_without_a_layout_count_once(tmp_path, monkeypatch):
    # Whether words in a column are garbled numbers depends on how many different cells are numbers.
    words = "\n".join(f"2024/05/01 12:34:{n:02d}.000, {w}, 5 W" for n, w in ((20, "a"), (21, "b")))
    rows = "\n".join(f"2024/05/01 12:34:{n}.000, {n % 2}, 5 W" for n in range(10, 16))
    alone = "2024/05/01 12:34:30.000, 0, N/A"
    path = tmp_path / "a.csv"
    path.write_text(f"timestamp, some.count, power.draw [W]\n{rows}\n{words}\n{alone}\n")
    monkeypatch.setattr(pieces, "FEW", sys.maxsize)
    expected = outcome(path, Seed("nvidia-smi", "a.csv", b""))
    monkeypatch.setattr(pieces, "FEW", 3)
    assert outcome(path, Seed("nvidia-smi", "a.csv", b"")) == expected
    assert "cell-not-a-number" in expected


def test_numbers_are_taken_out_of_lines(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    scan, made = scanned("5,1.50,08:05 P8 -3 1e5 1.2.3 0x1f 65535,123456789012345678901\n7,2.5,")
    numbers = scan.numbers
    texts = [numbers.text(number) for number in range(len(numbers.value))]
    assert texts == ["5", "1.50", "08", "05", "123456789012345678901", "7", "2.5"]
    assert numbers.kind.tolist() == [INTEGER, DECIMAL, OTHER, OTHER, OTHER, INTEGER, DECIMAL]
    assert numbers.value[[0, 1, 5, 6]].tolist() == [5.0, 1.5, 7.0, 2.5]
    assert made[0] == b"\1,\1,\1:\1 P8 -3 1e5 1.2.3 0x1f 65535,\1"


def row_of(text: str) -> layouts.Layout:
    return layouts.Layout((), (), (("key", text),))


def test_numbers_are_identical_if_their_texts_are():
    texts = [
        "00.5",
        "0.50",
        "0.5",
        "0.5",
        "7",
        "007",
        "7.0",
        "007",
        "9007199254740993",
        "9007199254740992",
        "7",
    ]
    lines = "".join(f"{text} W\n" for text in texts)
    scan, _ = scanned(lines)
    odd = laid_rows.OddNumbers(scan.numbers.data)
    laid = laid_rows.LaidPieces(layouts.PieceLayout((row_of("731000000"),)), odd)
    laid.add(scan.numbers, scan.first[:-2], np.arange(len(texts)), 1.0)
    column = laid.column(0)
    rows = laid_rows.LaidRows(scan.numbers.data, [laid], odd)
    assert [rows.text(0, 0, row) for row in range(len(texts))] == texts
    identities = list(zip(*(c.tolist() for c in column.identity()), strict=True))
    for a, of_a in zip(texts, identities, strict=True):
        for b, of_b in zip(texts, identities, strict=True):
            assert a == b or of_a != of_b
    assert identities[2] == identities[3]
    assert identities[4] == identities[10]


def test_a_piece_may_have_the_numbers_of_thousands_of_gpus():
    template = b"GPU[\1]: \2\1 MHz, \1 W\n" * 20_000
    probe = layouts.probe_of(template)
    assert probe is not None
    assert layouts.slots_in(probe) == list(range(60_000))
    sample = "".join(f"GPU[{n}]:    {n / 4} MHz, 5 W\n" for n in range(20_000))
    expected = [text for n in range(20_000) for text in (str(n), str(n / 4), "5")]
    assert layouts.numbers_of(probe, sample) == expected


def test_numbers_that_are_glued_to_a_unit_are_taken_out(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    _, of_units = scanned("1: (1500Mhz) 900MHz 35.0c 300.0W 41°C 35.5°C 65535Mhz")
    assert of_units == ["\1: (\1Mhz) \1MHz \1c \1W \1°C \1°C 65535Mhz".encode()]
    words = "0x1f 0xff 00:0F:3C:3c MI300X gfx942 12:34:56Z 05T12 1.2.3c 5W5 5Wx 5W.3 80GB 5Mh 5°"
    expected = "0x1f 0xff \1:0F:3C:3c MI300X gfx942 \1:\1:56Z 05T12 1.2.3c 5W5 5Wx 5W.3 80GB 5Mh 5°"
    assert scanned(words)[1] == [expected.encode()]


@pytest.mark.parametrize("text", ["0.1", "123456789.012345", "999999999999999", "0.000123", "4.35"])
def test_numbers_are_rounded_as_python_rounds_them(text):
    assert scanned(f"a {text}")[0].numbers.value.tolist() == [float(text)]


def test_several_spaces_are_one_gap(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    assert scanned("1  2\n1    2\n1 2", gaps=True)[0].template.tolist() == [0, 0, 1]
    assert scanned("1  2\n1    2")[0].template.tolist() == [0, 1]


def test_control_characters_have_no_template(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    assert scanned("5\0\n5\1\n5")[0].template.tolist() == [-1, -1, 0]


def test_a_table_of_templates_grows():
    words = [f"{chr(97 + n % 26)}{n}" for n in range(5000)]
    _, made = scanned("\n".join(words * 3))
    assert [t.decode() for t in made] == words


TIMES = [
    "2024/05/01 12:34:56.789", "2024/05/01 12:34:57.001", "20240501 12:34:58", "1714566896.5",
    "1714566897.25", "1714566898", "1714566896789", "4000000000.5", "3999999999.9", "12:34:60.5",
    "2024-05-01T12:34:60", "2024-05-01T12:34:56,789", "2024-05-01T12:34:56.1234567891",
    "2024-05-01T12:34:56Z", "Wed May  1 12:34:56 2024", "17145.5", "2024/13/01 12:00:07.5", "7",
]  # fmt: skip


def test_seconds_that_are_split_off_mean_the_same():
    data = encoded(",".join(TIMES))
    end = np.cumsum([len(text) + 1 for text in TIMES]) - 1
    begin = end - [len(text) for text in TIMES]

    class Laid:
        def __init__(self) -> None:
            self.data = data

        def texts(self, _column):
            return [], begin, end

    texts = stamps.texts_of(Laid(), 0, of_times=True)
    assert [texts.text(row) for row in range(len(TIMES))] == TIMES
    assert len(texts.distinct) < len(TIMES)
    for row, written in enumerate(TIMES):
        head, whole = parse_timestamp(texts.distinct[texts.code[row]]), parse_timestamp(written)
        assert (head is None) == (whole is None), written
        if head is not None and whole is not None:
            assert head.ns + texts.offset_ns[row] == whole.ns
            assert head[2:] == whole[2:]


def test_no_state_that_a_line_leads_to_is_beyond_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line between had led on from the last state, for which there was no row: the loop read beyond the array."""
    advance = templates._advance

    def checked(*arguments: object) -> None:
        action, following = arguments[5:7]
        assert following.max() < len(action)
        advance(*arguments)

    monkeypatch.setattr(templates, "_advance", checked)
    kept = (Path(__file__).parents[2] / "corpus" / "nvidia_smi-8").read_bytes()
    seeds = mutations.seeds_of("nvidia_smi")
    path = tmp_path / Path(seeds[kept[0] % len(seeds)].name).name
    path.write_bytes(kept[1:])
    ci.read(path)


T = 1_754_585_903
ROCM_VALUES = "Average Graphics Package Power (W)", "sclk clock speed"


def rocm_json(tick: int) -> str:
    cards = {f"card{n}": dict.fromkeys(ROCM_VALUES, f"{100 + tick}.5") for n in range(2)}
    return f"{T + tick}\n{json.dumps(cards)}\n"


def rocm_csv(tick: int) -> str:
    rows = "".join(f"card{n},{100 + tick}.5,{tick}\n" for n in range(2))
    return f"{T + tick}\ndevice,{','.join(ROCM_VALUES)}\n{rows}a message\n\n"


def rocm_text(tick: int) -> str:
    lines = "".join(f"GPU[{n}]\t\t: {k}: {100 + tick}.5\n" for k in ROCM_VALUES for n in range(2))
    title = "===== ROCm System Management Interface =====\n"
    return f"{T + tick}\n{title}{lines}a message\n===== End of ROCm SMI Log =====\n"


def rocm_rows(tick: int) -> str:
    head = "timestamp,device,power_watts\n" if tick == 0 else ""
    rows = "".join(f"{T + tick},card{n},{100 + tick}.5\n" for n in range(2))
    return f"{head}{rows}{T + tick},\n"


def rocm_clocks(tick: int) -> str:
    lines = "".join(
        f"GPU[{n}]\t\t: sclk clock level: 1: ({1000 + tick}Mhz)\nGPU[{n}]\t\t: Supported sclk frequencies on GPU{n}\n"
        f"GPU[{n}]\t\t: 0: 132Mhz\nGPU[{n}]\t\t: 1: {1000 + tick}Mhz *\nGPU[{n}]\t\t: 2: 2100Mhz\n"
        for n in range(2)
    )
    return f"{T + tick}\n===== ROCm System Management Interface =====\n{lines}===== End of ROCm SMI Log =====\n"


def rocm_table(tick: int) -> str:
    rows = "".join(
        f"{n}    {30 + tick}.0°C  {100 + tick}.5W  {1000 + tick}Mhz  900Mhz\n" for n in range(2)
    )
    title = "===== ROCm System Management Interface =====\n==== Concise Info ====\n"
    head = "GPU  Temp (Junction)  AvgPwr  SCLK  MCLK\n"
    return f"{T + tick}\n{title}{head}{rows}===== End of ROCm SMI Log =====\n"


def zeus_rows(tick: int) -> str:
    return ("time,gpu0,gpu1\n" if tick == 0 else "") + f"{T + tick}.25,{100 + tick}.5,{tick}\n"


def dcgmi_rows(tick: int) -> str:
    head = f"{T + tick} #Entity   POWER  SMCLK\n{T + tick} ID        W\n"
    return head + f"{T + tick} GPU 0     {100 + tick}.5  1980\n"


LOOPS = (
    ("rocm-smi", "a.json", rocm_json), ("rocm-smi", "a.csv", rocm_csv),
    ("rocm-smi", "a.txt", rocm_text), ("rocm-smi", "b.csv", rocm_rows),
    ("rocm-smi", "c.txt", rocm_clocks), ("rocm-smi", "d.txt", rocm_table),
    ("zeus", "c.csv", zeus_rows), ("dcgmi", "d.txt", dcgmi_rows),
)  # fmt: skip


@pytest.mark.parametrize(
    ("form", "name", "made"), LOOPS, ids=[f"{form}-{name}" for form, name, _ in LOOPS]
)
def test_most_of_a_loop_is_not_read_one_by_one(form, name, made, tmp_path, monkeypatch):
    read_alone = templates._Walk._read_alone
    alone: list[int] = []

    def counted(walk, at, template, *, is_complete):
        alone.append(at)
        read_alone(walk, at, template, is_complete=is_complete)

    monkeypatch.setattr(templates._Walk, "_read_alone", counted)
    path = tmp_path / name
    path.write_text("".join(map(made, range(100))))
    seed = Seed(form, name, b"")
    by_layouts = outcome(path, seed)
    assert 0 < len(alone) < 20
    monkeypatch.setattr(pieces, "FEW", sys.maxsize)
    assert outcome(path, seed) == by_layouts


@pytest.mark.parametrize("level", ["1234.5", "0900", "65535", "99999999"])
def test_odd_levels_of_clocks_are_read_one_by_one(level, tmp_path, monkeypatch):
    path = tmp_path / "c.txt"
    odd = rocm_clocks(5).replace("1005Mhz *", f"{level}Mhz *")
    path.write_text("".join([*map(rocm_clocks, range(5)), odd, *map(rocm_clocks, range(6, 9))]))
    seed = Seed("rocm-smi", "c.txt", b"")
    by_layouts = outcome(path, seed)
    monkeypatch.setattr(pieces, "FEW", sys.maxsize)
    assert outcome(path, seed) == by_layouts


@pytest.mark.parametrize("value", [(1 << 53) - 1, 1 << 53, 383838383838383838])
def test_counters_of_json_may_be_more_than_a_double_holds(value, tmp_path, monkeypatch):
    path = tmp_path / "a.json"
    rows = [{"timestamp": T + n, "gpu": 0, "power": value if n == 5 else n} for n in range(9)]
    path.write_text("".join(json.dumps([row]) + "\n" for row in rows))
    by_layouts = outcome(path, Seed("amd-smi", "a.json", b""))
    assert "Error" not in by_layouts
    monkeypatch.setattr(pieces, "FEW", sys.maxsize)
    assert outcome(path, Seed("amd-smi", "a.json", b"")) == by_layouts


def test_pieces_of_several_windows_count_together(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 3)
    scanner = pieces.Scanner(encoded("a 1\na 2\na 3"))
    begin, end = np.array([[0, 4, 8], [3, 7, 11]])
    assert scanner.scan(begin[:2], end[:2]).template.tolist() == [-1, -1]
    assert scanner.scan(begin[2:], end[2:]).template.tolist() == [0]


def test_words_of_a_heading_in_other_columns_are_another_heading(tmp_path, monkeypatch):
    def rows(first: int, unit: str) -> str:
        lines = [f"{T + first} #Entity   POWER     SMCLK\n{T + first} ID        {unit}\n"]
        lines += [f"{T + n} GPU 0     {n}.5     {n}\n" for n in range(first, first + 5)]
        return "".join(lines)

    path = tmp_path / "a.txt"
    path.write_text("".join(rows(n * 5, "W" if n != 3 else "          W") for n in range(6)))
    by_layouts = outcome(path, Seed("dcgmi", "a.txt", b""))
    monkeypatch.setattr(pieces, "FEW", sys.maxsize)
    assert outcome(path, Seed("dcgmi", "a.txt", b"")) == by_layouts


def test_numbers_of_a_piece_and_of_its_probe():
    template = b"a \1:\2\1 b"
    probe = layouts.probe_of(template)
    assert probe == f"a {layouts.probe_number(0)}:  {layouts.probe_number(1)} b"
    assert layouts.numbers_of(probe, "a 5:     6.25 b") == ["5", "6.25"]
    assert layouts.numbers_of(probe, "a 5: 6.25 b") is None
    assert layouts.with_numbers(probe, {1: "6"}) == f"a {layouts.probe_number(0)}:  6 b"

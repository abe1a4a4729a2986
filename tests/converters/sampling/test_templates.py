"""Templates: reading many lines by one form gives what reading them one by one gives."""

import sys
from operator import attrgetter
from pathlib import Path

import mutations
import numpy as np
import pytest
from seeds import Seed
from slow import slow_again, slow_from

import chopper_interop as ci
from chopper_interop.converters.sampling import pieces, stamps, templates
from chopper_interop.converters.sampling.cells import DECIMAL, INTEGER, OTHER, TextNumbers
from chopper_interop.converters.sampling.text import encoded
from chopper_interop.converters.sampling.timestamps import parse_timestamp
from chopper_interop.errors import ChopperError

TELEMETRY = [s for f in ("amd_smi", "nvidia_smi", "zeus") for s in mutations.seeds_of(f)]


def scanned(text: str, **options: bool) -> pieces.TextPieces:
    data = encoded(text)
    return pieces.scan(data, *pieces.lines_of(data), **options)


def outcome(path: Path, seed: Seed) -> str:
    try:
        trace = ci.read(path, **seed.options)
    except ChopperError as refused:
        return f"{type(refused).__name__}: {refused}"
    tables = [trace.series.to_pydict(), trace.samples.to_pydict()]
    return repr((tables, trace.meta))


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
        for few in (1, 2):
            monkeypatch.setattr(pieces, "FEW", few)
            assert outcome(path, seed) == alone, made.how


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
    scan = scanned("5,1.50,08:05 P8 -3 1e5 1.2.3 0x1f 65535,123456789012345678901\n7,2.5,")
    numbers = scan.numbers
    texts = [numbers.text(number) for number in range(len(numbers.value))]
    assert texts == ["5", "1.50", "08", "05", "123456789012345678901", "7", "2.5"]
    assert numbers.kind.tolist() == [INTEGER, DECIMAL, OTHER, OTHER, OTHER, INTEGER, DECIMAL]
    assert numbers.value[[0, 1, 5, 6]].tolist() == [5.0, 1.5, 7.0, 2.5]
    assert scan.templates[0] == b"\1,\1,\1:\1 P8 -3 1e5 1.2.3 0x1f 65535,\1"


@pytest.mark.parametrize("text", ["0.1", "123456789.012345", "999999999999999", "0.000123", "4.35"])
def test_numbers_are_rounded_as_python_rounds_them(text):
    assert scanned(f"a {text}").numbers.value.tolist() == [float(text)]


def test_several_spaces_are_one_gap(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    assert scanned("1  2\n1    2\n1 2", gaps=True).template.tolist() == [0, 0, 1]
    assert scanned("1  2\n1    2").template.tolist() == [0, 1]


def test_control_characters_have_no_template(monkeypatch):
    monkeypatch.setattr(pieces, "FEW", 1)
    assert scanned("5\0\n5\1\n5").template.tolist() == [-1, -1, 0]


def test_a_table_of_templates_grows():
    words = [f"{chr(97 + n % 26)}{n}" for n in range(5000)]
    scan = scanned("\n".join(words * 3))
    assert len(scan.templates) == len(words)
    assert [t.decode() for t in scan.templates] == words


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
        numbers = TextNumbers(data, *(np.zeros(0),) * 4)

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

"""The scanner finds in any text what a JSON library finds, and recovers where that gives up."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from slow import slow_from

from chopper_interop.arrays.byte_masks import WIDTH
from chopper_interop.arrays.compiled import Loop
from chopper_interop.errors import ReadError
from chopper_interop.io import json_events, json_text
from chopper_interop.io.inputs import TextWindow


def buffer(text: str | bytes) -> np.ndarray:
    raw = text.encode() if isinstance(text, str) else text
    return np.frombuffer(bytearray(raw), np.uint8)


def scan_text(text: str | bytes) -> json_events.Events:
    """Scan a list of events that is read at once."""
    return json_events.scan(TextWindow([buffer(text)]), 0)


def scan(text: str | bytes) -> tuple[json_events.Events, list[dict[str, Any]]]:
    """Scan a list of events; its columns again as dictionaries."""
    events = scan_text(text)
    texts = events.texts()
    result = []
    for k in range(events.count):
        row = {name: column[k] for name, column in events.columns.items()}
        event = {
            "ph": chr(row["ph"]) if row["ph"] else None,
            "cat": texts[row["cat"]] if row["cat"] >= 0 else None,
            "name": texts[row["name"]] if row["name"] >= 0 else None,
            "ts": int(row["ts"]) if row["has"] & json_events.HAS_TS else None,
            "dur": int(row["dur"]) if row["has"] & json_events.HAS_DUR else None,
        }
        for key in ("pid", "tid", "id"):
            value = int(row[key])
            textual = value < json_events.TEXT_ID + len(texts)
            event[key] = texts[value - json_events.TEXT_ID] if textual else value
        start, length = int(row["args_at"]), int(row["args_len"])
        event["args"] = json.loads(events.args[start : start + length].tobytes() or b"null")
        result.append(event)
    return events, result


MICROS = st.one_of(
    st.integers(0, 2**61 // 1000),
    st.decimals(0, 10**13, places=3).map(float),
)
SCALARS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=8), st.booleans(), st.none())
VALUES = st.recursive(
    SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(st.text(max_size=4), v, max_size=3)
)
EVENTS = st.fixed_dictionaries(
    {"ph": st.sampled_from("XisfMC"), "name": st.text(max_size=20), "ts": MICROS},
    optional={
        "cat": st.sampled_from(["kernel", "cpu_op", 'odd "cat"']),
        "dur": MICROS,
        "pid": st.integers(-(2**61) + 1, 2**63 - 1),
        "tid": st.integers(-1, 2**63 - 1),
        "id": st.integers(0, 2**53) | st.sampled_from(["0x1f", "a"]),
        "args": st.dictionaries(st.text(max_size=6), VALUES, max_size=4),
        "extra": VALUES,
    },
)


@given(st.lists(EVENTS, max_size=20), st.booleans(), st.sampled_from([None, 1]))
def test_events_are_those_of_a_json_library(events: list, ascii_only, indent) -> None:
    scanned, actual = scan(json.dumps(events, ensure_ascii=ascii_only, indent=indent))
    assert scanned.closed
    assert scanned.malformed == 0
    assert len(actual) == len(events)
    for scanned_event, event in zip(actual, events, strict=True):
        assert scanned_event["ph"] == event["ph"]
        assert scanned_event["name"] == event["name"]
        assert scanned_event["cat"] == event.get("cat")
        for key in ("ts", "dur"):
            micros = event.get(key)
            exact = None if micros is None else round(Decimal(repr(micros)) * 1000)
            assert scanned_event[key] == exact
        for key in ("pid", "tid", "id"):
            assert scanned_event[key] == event.get(key, 0)
        assert scanned_event["args"] == event.get("args")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("1712195495519689.0", 1712195495519689000),
        ("1712195495502094.5", 1712195495502094500),
        ("4458676522690.655", 4458676522690655),
        ("0.0004", 0),
        ("0.0005", 1),
        ("12.3456", 12346),
        ("-1.5", -1500),
        ("1.5e3", 1500000),
        ("1.7126E+15", 1712600000000000000),
        ("25e-4", 3),
        ('"123.456"', 123456),
    ],
)
def test_times_are_exact(text: str, nanoseconds: int) -> None:
    _, (event,) = scan(f'[{{"ph": "X", "ts": {text}}}]')
    assert event["ts"] == nanoseconds


@pytest.mark.parametrize("text", ["null", "NaN", "Infinity", '""', '"soon"', "true", "[1]", "1e99"])
def test_a_text_that_is_no_time_gives_none(text: str) -> None:
    _, (event,) = scan(f'[{{"ph": "X", "name": "a", "ts": {text}, "dur": 1}}]')
    assert event["ts"] is None
    assert event["dur"] == 1000


DIGITS = st.text("0123456789", min_size=1, max_size=40)


@given(
    st.sampled_from(["", "-", "+"]),
    DIGITS
    | st.sampled_from(["18446744073709551615", "9223372036854775807", "1844674407370955161"])
    | st.sampled_from(["9223372036854775", "1683564901752663"]),
    st.none() | DIGITS | st.sampled_from(["", "807", "808"]),
    st.none() | st.integers(-45, 45) | st.sampled_from([10**30, -(10**30)]),
    st.sampled_from([0, 3]),
)
def test_decimals_are_rounded_as_python_rounds_them(
    sign, integral, fraction, power, decimals
) -> None:
    text = sign + integral
    text += "" if fraction is None else f".{fraction}"
    size = len(text)
    text += "" if power is None else f"e{power}"
    value, end, ok = json_text.parse_decimal(buffer(text), 0, len(text), decimals)
    assert end == len(text)
    if not any(c in "123456789" for c in text[:size]):
        assert (value, ok) == (0, True)
        return
    exact = int(_shifted(text[:size], (power or 0) + decimals))
    fits = -(2**63) <= exact < 2**64
    assert ok == fits
    if fits:
        assert value == (exact if exact < 2**63 else exact - 2**64)


def _shifted(number: str, power: int) -> Decimal:
    """A number times a power of ten, to the nearest integer, halves away from zero."""
    exact = Decimal(number).scaleb(max(-200, min(power, 200)), Context(prec=400))
    return exact.to_integral_value(ROUND_HALF_UP, Context(prec=400))


@pytest.mark.parametrize(
    "text",
    [
        "9999999999999999",
        "-9999999999999999",
        "9223372036854775.808",
        "18446744073709551.615",
        "18446744073709551.616",
        "18446744073709551616",
        "9" * 40,
        "1e16",
        "1e400",
        "0.1e18",
        '"9999999999999999"',
        '"0xffffffffffffffff"',
        '"0x10000000000000001"',
        "1e",
        "1e+",
    ],
)
def test_times_out_of_range_give_none(text: str) -> None:
    events, (event,) = scan(f'[{{"ph": "X", "ts": {text}, "dur": {text}}}]')
    assert (event["ts"], event["dur"]) == (None, None)
    assert events.columns["has"].tolist() == [json_events.BAD_TIME]
    assert (events.columns["ts"].tolist(), events.columns["dur"].tolist()) == ([0], [0])


@pytest.mark.parametrize(
    "text",
    [
        *("9223372036854775808", "18446744073709551615", "-9223372036854775809", "1e19", "9" * 40),
        *("1e400", '"0x8000000000000000"', '"0x10000000000000000"', "1e", '"1x"', "-"),
    ],
)
def test_arguments_out_of_range_are_not_found(text: str) -> None:
    raw = buffer(f'{{"a": {text}, "b": 1}}')
    values, actual = json_events.extract_integers(
        raw, np.array([0]), np.array([len(raw)], np.int32), ["a", "b"]
    )
    assert actual[:, 0].tolist() == [False, True]
    assert values[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("odd", ["7x", "1.5e", "9223372036854775808", "9" * 40])
def test_ids_that_are_no_int64_are_texts(odd: str) -> None:
    _, (event,) = scan(f'[{{"ph": "X", "tid": {odd}}}]')
    assert event["tid"] == odd


def test_keys_that_begin_alike_are_distinguished() -> None:
    expected = {"ph": "X", "ts": 1, "dur": 2, "pid": 3, "tid": 4, "id": 5, "cat": "c", "name": "n"}
    alike = {
        "tts": 90,
        "tdur": 91,
        "did": 92,
        "pod": 93,
        "tad": 94,
        "ix": 95,
        "ih": "i",
        "th": "f",
        "cut": "x",
        "cnt": "x",
        "nome": "x",
        "area": {"x": 1},
        "axes": {},
        "ths": 96,
        "": 97,
    }
    for event in (expected | alike, alike | expected, {**alike, **expected, **alike}):
        _, (actual,) = scan(json.dumps([event | {"args": {"a": 1}}]))
        assert actual == expected | {"ts": 1000, "dur": 2000, "args": {"a": 1}}


@pytest.mark.parametrize(
    ("members", "ts"),
    [
        *(('"ts":1', 1000), ('"ts":  1', 1000), ('"ts" : 1', 1000), ('"ts"\t:\r\n1', 1000)),
        *(('"ts": 1, "ts": 2', 2000), ('"ts": 1, "ts": "soon"', None), ('"ts": "soon", "ts": 1', 1000)),
        *(('"ts": 1, "ts2": 2', 1000), ('"ts": 1, "ts\\"": 2', 1000), ('"ts": 1, "bind_id\\"": 2', 1000)),
    ],
)  # fmt: skip
def test_members_may_be_spaced_repeated_and_begin_alike(members: str, ts: int | None) -> None:
    events, (event,) = scan(f'[{{"ph": "X", {members}}}]')
    assert (event["ts"], events.malformed) == (ts, 0)
    assert not events.columns["has"] & json_events.HAS_BIND_ID


def test_of_equal_arguments_the_first_counts() -> None:
    raw = buffer('{"b": 1, "b": 2, "a": "x", "a": 3}')
    values, actual = json_events.extract_integers(
        raw, np.array([0]), np.array([len(raw)], np.int32), ["a", "b"]
    )
    assert (values[:, 0].tolist(), actual[:, 0].tolist()) == ([0, 1], [False, True])


def test_a_phase_is_one_letter() -> None:
    _, actual = scan('[{"ph": "Xs"}, {"ph": ""}, {"ph": "X"}]')
    assert [event["ph"] for event in actual] == [None, None, "X"]


GOOD = '{"ph": "X", "name": "good", "ts": 1}'


@pytest.mark.parametrize(
    "bad",
    [
        '{"ph": "X", "name": "say "hello" now", "ts": 1}',
        '{"ph": "X", "name": "odd " quote", "ts": 1}',
        '{"ph": "X", "name": "two\nlines", "ts": 1}',
        '{"ph": "X", "name" "no colon"}',
        '{"ph": "X", "args": {"stack": "a "b" {c}"}}',
        '{"ph": "X", "args": {"stack": "one " quote"}}',
        '{"ph": "X", ts: 1}',
        "null",
        "17",
        '"text"',
        "[1, 2]",
        '{"ph": "X", "args": [[1}',
        '{"ph": "X", "args": {"a": [1}}',
        '{"ph": "X", "args": {"a": 1]}',
        '{"ph": "X", "args": {"a": [[{"b": 1}',
        '{"ph": "X", "args": ' + "[" * 70 + "]" * 69 + "}}",
    ],
)
def test_only_the_malformed_event_is_left_out(bad: str) -> None:
    events, actual = scan(f"[{GOOD},\n{bad},\n{GOOD},\n{GOOD}]")
    assert [e["name"] for e in actual] == ["good"] * 3
    assert events.malformed == 1
    assert events.malformed_at == (len(GOOD) + 3,)


@pytest.mark.parametrize("depth", [1, 31, 32, 33, 300])
def test_events_of_any_depth(depth: int) -> None:
    inner = '{"a":[' * depth + "]}" * depth
    events, actual = scan('[{"ph":"X","name":"good","args":' + inner + "}," + GOOD + "]")
    assert events.columns["args_len"].tolist() == [len(inner), 0]
    assert (events.malformed, len(actual)) == (0, 2)


OF_NAMES_AND_NUMBERS = {
    json_text: ("parse_integer_within", "plain_number"),
    json_events: (
        "parse_decimal",
        "plain_number",
        "intern_text",
        "merge_texts",
        "_append",
        "_word",
    ),
}


def loops_within(loop: Loop) -> set[str]:
    """Names of the loops that a loop calls, which have to stay loops for it to be compiled."""
    known = loop.py_func.__globals__
    names = {n for n in loop.py_func.__code__.co_names if isinstance(known.get(n), Loop)}
    return names.union(*(loops_within(known[name]) for name in names))


CALLED_BY_THESE = set().union(
    *(
        loops_within(getattr(module, name))
        for module, names in OF_NAMES_AND_NUMBERS.items()
        for name in names
    )
)


class CountedText:
    """A text that counts how many of its bytes are read, for loops that Python runs."""

    def __init__(self, text: str) -> None:
        self.bytes, self.array, self.reads = text.encode(), buffer(text), 0

    def __len__(self) -> int:
        return len(self.bytes)

    def __getitem__(self, at: int) -> int:
        self.reads += not isinstance(at, slice)
        return self.bytes[at]


def steps_of_scan(monkeypatch: pytest.MonkeyPatch, text: str) -> int:
    """Bytes that a scan reads, each as often as it is read; names and numbers are not counted."""
    counted, skip, skip_plain = CountedText(text), json_text.skip_bytes, json_text._skip_plain
    skip_plain(counted.array, 0, 0)  # compiled before what it calls is Python's

    def skip_bytes(_: CountedText, i: int, n: int, table: np.ndarray) -> int:
        end = skip(counted.array, i, n, table)
        counted.reads += end - i + 1
        return end

    def skip_blocks(_: CountedText, i: int, n: int) -> int:
        end = skip_plain(counted.array, i, n)
        counted.reads += max(
            end - i, WIDTH
        )  # in vain it goes no further than the walk that follows
        return end

    def by_array(function: Callable) -> Callable:
        return lambda _, *arguments: function(counted.array, *arguments)

    with monkeypatch.context() as patch:
        for module in (json_text, json_events):
            for name, function in vars(module).items():
                if name in OF_NAMES_AND_NUMBERS[module]:
                    patch.setattr(module, name, by_array(function))
                elif isinstance(function, Loop) and name not in CALLED_BY_THESE:
                    patch.setattr(module, name, function.py_func)
        wide = np.dtype([(name, np.int64) for name in json_events.EVENT.names])
        patch.setattr(json_events, "EVENT", wide)  # Python's numbers do not wrap around
        walk = json_events._walk
        patch.setattr(json_text, "skip_bytes", skip_bytes)
        patch.setattr(json_text, "_skip_plain", skip_blocks)
        patch.setattr(
            json_events,
            "_walk",
            lambda text, i, batch, *rest: walk(text, i, batch.view(np.recarray), *rest),
        )
        window = TextWindow([])
        window.bytes = counted
        json_events.scan(window, 0)
    return counted.reads


@pytest.mark.parametrize(
    ("piece", "more"),
    [
        ('{"ph":"X","args":[[1},', 0),
        ('{"ph":"X","args":[[1},' + GOOD + ",", 1),
        ('{},{"ph":"X","args":{"a":[', 0),
        ('{},{"ph":"X","args":' + "[" * 70, 0),
        ('{},{"ph":"X","args":[{"a":"x","b":"', 0),
        ('{},{"ph":"X","args":{"a":"b"},"c":[', 0),
        ('{},{"ph":"X","name":"\\', 0),
        ('{},{"ph":"X","name":"', 0),
        ('{},{"ph":"X","name":', 0),
        ('{},{"ph":"X","ts":1', 0),
        ('{},{"ph":"X"  ', 0),
        ("[", 0),
        ('{"a":', 0),
        ('"', 0),
        (",", 0),
        ("]", 0),
        ("}", 0),
        ("{    ", 0),
    ],
)
@pytest.mark.parametrize("end", slow_from(["", ' "x"y', "\n]", "}"], 1))
def test_broken_text_takes_no_more_steps_than_proper_text(
    monkeypatch: pytest.MonkeyPatch, piece: str, more: int, end: str
) -> None:
    """Were it n**2 steps, a file of n bytes would take hours."""

    def text(size: int) -> str:
        return "[" + piece * (size // len(piece)) + end

    assert_steps_are_in_proportion(monkeypatch, text(2_000), text(8_000))
    events = scan_text(text(500_000))
    complete = np.count_nonzero(events.columns["ts"] == 1000)
    assert complete >= more * (500_000 // len(piece))


def nested(levels: int) -> str:
    """An event whose arguments are nested, and that breaks where they end."""
    levels_text = '{"ph":"X","args":[{},' * levels + "1" + "]bad}" * levels
    return f"[{GOOD},{levels_text},{GOOD},{GOOD}]"


@pytest.mark.parametrize("levels", [1, 50_000])
def test_only_a_broken_event_is_lost(levels: int) -> None:
    events, actual = scan(nested(levels))
    assert (events.malformed, len(actual)) == (1, 3)


def test_objects_within_a_broken_one_are_walked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_steps_are_in_proportion(monkeypatch, nested(100), nested(400))


def assert_steps_are_in_proportion(monkeypatch: pytest.MonkeyPatch, short: str, long: str) -> None:
    steps = [steps_of_scan(monkeypatch, text) for text in (short, long)]
    assert steps[0] < 20 * len(short)
    assert steps[1] / len(long) < 1.2 * steps[0] / len(short)


DAMAGED = [
    *(',{"ph":"X","name":"a" b"}', "]", ',{"ph":"X","args":[[1}', ",null", ',{"ph":"X","name":"'),
    ',{"ph":"X","args":{"x":[{},{"name":"within","ts":5},{"ph":"X"}]}}',
    ',{"ph":"X","name":"},{\\"ph\\":","tid":"worker"}',
]
"""Texts that follow an event: most is damaged, the last two have what only looks like an event."""


@given(
    st.lists(EVENTS.map(json.dumps) | st.sampled_from(DAMAGED), max_size=30),
    st.integers(1, 300),
    st.integers(1, 40),
    st.integers(1, 300),
    st.sampled_from([0, 1 << 25]),
)
def test_pieces_are_read_as_the_whole_text(
    parts: list[str], piece: int, batch: int, block: int, ahead: int
) -> None:
    text = "[" + GOOD + "".join(p if p in DAMAGED else f",\n{p}" for p in parts)
    whole = scan_text(text + " behind")
    with pytest.MonkeyPatch.context() as patch:
        sizes = {"_PIECE": piece, "_BATCH": batch, "_STRINGS": 1, "_READ_AHEAD": ahead}
        for name, size in sizes.items():
            patch.setattr(json_events, name, size)
        raw = buffer(text + " behind")
        blocks = (raw[at : at + block] for at in range(0, len(raw), block))
        window = TextWindow(blocks)
        in_pieces = json_events.scan(window, 0)
        window.finish()
    assert window.base == in_pieces.end
    assert bytes(window.bytes) == bytes(raw[in_pieces.end :])
    for name, column in whole.columns.items():
        assert in_pieces.columns[name].tolist() == column.tolist(), name
    assert in_pieces.texts() == whole.texts()
    for name in ("end", "closed", "malformed", "malformed_at"):
        assert getattr(in_pieces, name) == getattr(whole, name), name


def _tiny_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"_PIECE": 60, "_BATCH": 2, "_STRINGS": 1, "_READ_AHEAD": 0, "_MIN_GROWTH": 1}
    for name, size in sizes.items():
        monkeypatch.setattr(json_events, name, size)


def test_pieces_that_are_copied_late_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays do not grow while threads copy to them, and no window is read from again until its events are copied."""
    events = [
        {
            "ph": "X",
            "name": f"n{k % 7}",
            "ts": k,
            "tid": f"t{k % 5}",
            "args": {"k": k} if k % 3 else {},
        }
        for k in range(80)
    ]
    text = json.dumps(events)
    whole = scan_text(text)
    _tiny_pieces(monkeypatch)
    copy, reuse = json_events._copy, TextWindow.reuse
    reused = []

    def copy_late(walk: json_events._Walk, *arguments: Any) -> None:
        time.sleep(0.002 * (walk.piece.base % 3))
        copy(walk, *arguments)

    def reuse_at_once(text: TextWindow, window: np.ndarray) -> None:
        if window.base is not None and window.base is not text.bytes.base:
            window.base[:] = ord("#")
            reused.append(window)
        reuse(text, window)

    monkeypatch.setattr(json_events, "_copy", copy_late)
    monkeypatch.setattr(TextWindow, "reuse", reuse_at_once)
    raw = buffer(text)
    in_pieces = json_events.scan(TextWindow(raw[at : at + 50] for at in range(0, len(raw), 50)), 0)
    assert len(reused) > 20
    for name, column in whole.columns.items():
        assert in_pieces.columns[name].tolist() == column.tolist(), name
    assert in_pieces.texts() == whole.texts()
    assert in_pieces.args.tobytes() == whole.args.tobytes()


@pytest.mark.parametrize("at", [0, 79])
def test_an_error_of_a_thread_that_copies_is_raised(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """Of the first piece, which later ones wait for, as of one of the last."""
    raw = buffer(json.dumps([{"ph": "X", "name": "n", "ts": k} for k in range(80)]))
    _tiny_pieces(monkeypatch)
    copy, seen = json_events._copy, []

    def copy_but_one(walk: json_events._Walk, *arguments: Any) -> None:
        if any(1000 * at in rows["ts"] for rows in walk.batches):
            seen.append(walk.piece.is_last)
            raise MemoryError
        copy(walk, *arguments)

    monkeypatch.setattr(json_events, "_copy", copy_but_one)
    window = TextWindow(raw[at : at + 50] for at in range(0, len(raw), 50))
    with pytest.raises(MemoryError):
        json_events.scan(window, 0)
    assert len(seen) == 1


@pytest.mark.parametrize("closed_after", [2, 50])
def test_an_error_of_a_text_that_is_read_ahead_is_not_its_end(
    monkeypatch: pytest.MonkeyPatch, closed_after: int
) -> None:
    """Whether the array of events ends before it or not."""
    monkeypatch.setattr(json_events, "_PIECE", 2 * len(GOOD))
    monkeypatch.setattr(json_events, "_READ_AHEAD", 0)

    def blocks() -> Iterator[np.ndarray]:
        yield buffer("[" + GOOD)
        for count in range(20):
            yield buffer("]" if count == closed_after else "," + GOOD)
        raise ReadError("cut short")

    window = TextWindow(blocks())
    with suppress(ReadError):  # it is not known yet where the array ends before it
        json_events.scan(window, 0)
    with pytest.raises(ReadError, match="cut short"):
        window.finish()


def test_the_thread_that_reads_ahead_ends_before_the_text_is_put_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would go on with the window, of which others read what is behind the array."""
    monkeypatch.setattr(json_events, "_PIECE", 2 * len(GOOD))
    monkeypatch.setattr(json_events, "_READ_AHEAD", 0)
    parts = ["[" + GOOD, "]", *["," + GOOD] * 40]

    def blocks() -> Iterator[np.ndarray]:
        for part in parts:
            time.sleep(0.005)
            yield buffer(part)

    window = TextWindow(blocks())
    events = json_events.scan(window, 0)
    at_first = window.base, len(window.bytes)
    time.sleep(0.05)
    assert (window.base, len(window.bytes)) == at_first == (events.end, len(window.bytes))
    window.finish()
    assert bytes(window.bytes).decode() == "".join(parts)[events.end :]


def test_too_little_memory_for_a_piece_behind_the_array_moves_no_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The thread that reads ahead has no use for the error, as the array ends before."""
    sizes = {"_PIECE": 2 * len(GOOD), "_READ_AHEAD": 0, "_MAX_AHEAD": 2}
    for name, size in sizes.items():
        monkeypatch.setattr(json_events, name, size)
    events = ["[" + GOOD, "]", *["," + GOOD] * 6]
    parts = [*events, '"' + 9 * GOOD.replace('"', "") + '"', *events]
    extend, failed = TextWindow.extend, []

    def extend_later(window: TextWindow) -> None:
        if not failed:
            failed.append(window.base)
            raise MemoryError
        extend(window)

    monkeypatch.setattr(TextWindow, "extend", extend_later)
    window = TextWindow(map(buffer, parts))
    events_read = json_events.scan(window, 0)
    assert failed
    window.finish()
    assert bytes(window.bytes).decode() == "".join(parts)[events_read.end :]


@given(st.integers(1, 400))
def test_a_truncated_text_keeps_every_complete_event(at: int) -> None:
    text = "[" + ",\n".join([GOOD] * 12) + "]"
    events, actual = scan(text[:at])
    assert len(actual) == text[:at].count(GOOD)
    assert events.closed == (at >= len(text))
    rest = text[:at].rsplit("}", 1)[-1].strip(" ,\n[]")
    assert events.malformed == (1 if rest else 0)


def test_the_table_of_strings_grows() -> None:
    names = [f"name {i}" for i in range(400_000)]
    text = "[" + ",".join(f'{{"ph":"X","name":"{n}","ts":{i}}}' for i, n in enumerate(names)) + "]"
    events = scan_text(text)
    texts = events.texts()
    assert [texts[i] for i in events.columns["name"]] == names


@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["a", "b"]),
        VALUES | st.integers(0, 2**32).map(hex) | st.integers().map(str),
        max_size=6,
    )
)
def test_integers_are_found_in_any_notation(args: dict) -> None:
    raw = json.dumps(args)
    text = buffer(f"    {raw}  ")
    values, actual = json_events.extract_integers(
        text, np.array([4]), np.array([len(raw.encode())], np.int32), ["a", "b", "absent"]
    )
    for k, key in enumerate(["a", "b", "absent"]):
        expected = _integer(args.get(key))
        assert (int(values[k, 0]) if actual[k, 0] else None) == expected


def _integer(value: Any) -> int | None:
    """The integer that a value says, as a number or as a text of one."""
    if isinstance(value, bool) or value is None:
        return None
    if isinstance(value, str):
        plain = value.removeprefix("-")
        if plain.isascii() and plain.isdigit():
            value = int(value)
        elif value.startswith("0x") and len(value) <= 18:
            value = int(value, 16)
        else:
            return None
    return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None


_PIECES = st.sampled_from([*'{}[]"":,\\\n a', '": ', '", "', " " * 61, f'"{"b" * 70}"'])


@given(st.lists(_PIECES, max_size=60).map("".join) | VALUES.map(json.dumps), _PIECES)
def test_blocks_of_bytes_are_skipped_as_single_ones(inner: str, behind: str) -> None:
    """The last 64 bytes of a buffer are walked one by one; with more behind, the same value is skipped by blocks."""
    text = f'{{"a": [{inner}]}}'.encode()
    alone = json_text.skip_value(buffer(text), 0, len(text))
    longer = buffer(text + behind.encode() + b"}" * 64)
    assert json_text.skip_value(longer, 0, len(text)) == alone


def test_values_of_any_length_are_skipped() -> None:
    for size in range(200):
        for filling in (
            f'"{"b" * size}"',
            f'"{"{" * size}"',
            " " * size + "1",
            "[]," * size + "[]",
        ):
            text = f'{{"a": {filling}}}'.encode()
            assert json_text.skip_value(buffer(text + b", " * 40), 0, len(text) + 80) == len(text)

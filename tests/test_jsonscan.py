"""The scanner finds in any text what a JSON library finds, and recovers where that gives up."""

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop import jsonscan


def buffer(text: str | bytes) -> np.ndarray:
    raw = text.encode() if isinstance(text, str) else text
    return np.frombuffer(bytearray(raw), np.uint8)


def scan(text: str | bytes) -> tuple[jsonscan.Events, list[dict[str, Any]]]:
    """Events of a list of events, as dictionaries of what the scanner took."""
    events = jsonscan.scan(buffer(text), 0)
    texts = events.texts()
    found = []
    for row in events.rows:
        event = {
            "ph": chr(row["ph"]) if row["ph"] else None,
            "cat": texts[row["cat"]] if row["cat"] >= 0 else None,
            "name": texts[row["name"]] if row["name"] >= 0 else None,
            "ts": int(row["ts"]) if row["has"] & jsonscan.HAS_TS else None,
            "dur": int(row["dur"]) if row["has"] & jsonscan.HAS_DUR else None,
        }
        for key in ("pid", "tid", "id"):
            value = int(row[key])
            textual = value < jsonscan.TEXT + len(texts)
            event[key] = texts[value - jsonscan.TEXT] if textual else value
        start, length = int(row["args_at"]), int(row["args_len"])
        event["args"] = json.loads(events.buffer[start : start + length].tobytes() or b"null")
        found.append(event)
    return events, found


MICROS = st.one_of(
    st.integers(0, 2**52),
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
        "id": st.integers(0, 2**53),
        "args": st.dictionaries(st.text(max_size=6), VALUES, max_size=4),
        "extra": VALUES,
    },
)


@given(st.lists(EVENTS, max_size=20), st.booleans(), st.sampled_from([None, 1]))
def test_finds_what_a_json_library_finds(events: list, ascii_only, indent) -> None:
    scanned, found = scan(json.dumps(events, ensure_ascii=ascii_only, indent=indent))
    assert scanned.closed
    assert scanned.malformed == 0
    assert len(found) == len(events)
    for ours, theirs in zip(found, events, strict=True):
        assert ours["ph"] == theirs["ph"]
        assert ours["name"] == theirs["name"]
        assert ours["cat"] == theirs.get("cat")
        for key in ("ts", "dur"):
            told = theirs.get(key)
            exact = None if told is None else round(Decimal(repr(told)) * 1000)
            assert ours[key] == exact
        for key in ("pid", "tid", "id"):
            assert ours[key] == theirs.get(key, 0)
        assert ours["args"] == theirs.get("args")


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
def test_what_is_no_time_is_none(text: str) -> None:
    _, (event,) = scan(f'[{{"ph": "X", "name": "a", "ts": {text}, "dur": 1}}]')
    assert event["ts"] is None
    assert event["dur"] == 1000


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
    ],
)
def test_a_malformed_event_costs_only_itself(bad: str) -> None:
    events, found = scan(f"[{GOOD},\n{bad},\n{GOOD},\n{GOOD}]")
    assert [e["name"] for e in found] == ["good"] * 3
    assert events.malformed == 1
    assert events.malformed_at == (len(GOOD) + 3,)


@given(st.integers(1, 400))
def test_a_cut_text_keeps_every_whole_event(at: int) -> None:
    text = "[" + ",\n".join([GOOD] * 12) + "]"
    events, found = scan(text[:at])
    whole = text[:at].count(GOOD)
    assert len(found) == whole
    assert events.closed == (at >= len(text))
    rest = text[:at].rsplit("}", 1)[-1].strip(" ,\n[]")
    assert events.malformed == (1 if rest else 0)


def test_more_strings_than_the_first_table_holds() -> None:
    names = [f"name {i}" for i in range(400_000)]
    text = "[" + ",".join(f'{{"ph":"X","name":"{n}","ts":{i}}}' for i, n in enumerate(names)) + "]"
    events = jsonscan.scan(buffer(text), 0)
    texts = events.texts()
    assert [texts[i] for i in events.rows["name"]] == names


@given(
    st.dictionaries(
        st.text(max_size=5) | st.sampled_from(["a", "b"]),
        VALUES | st.integers(0, 2**32).map(hex) | st.integers().map(str),
        max_size=6,
    )
)
def test_extract_finds_integers_of_any_writing(args: dict) -> None:
    raw = json.dumps(args)
    text = buffer(f"    {raw}  ")
    values, found = jsonscan.extract(
        text, np.array([4]), np.array([len(raw.encode())], np.int32), ["a", "b", "absent"]
    )
    for k, key in enumerate(["a", "b", "absent"]):
        expected = _integer(args.get(key))
        assert (int(values[k, 0]) if found[k, 0] else None) == expected


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
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return None
    return value if value < 2**63 else value - 2**64

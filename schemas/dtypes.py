"""Element types of tensors: their sizes, and the kinds of numbers that they hold."""

from __future__ import annotations

ELEMENT_BYTES: dict[str, int] = {
    "float": 4,
    "double": 8,
    "half": 2,
    "bfloat16": 2,
    "long": 8,
    "int": 4,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
    "complexfloat": 8,
    "complexdouble": 16,
    "complexhalf": 4,
    "complex<float>": 8,
    "complex<double>": 16,
    "complex<c10::half>": 4,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "float4_e2m1fn_x2": 1,
    "long int": 8,  # until 2023 types have their C++ names
    "long long": 8,
    "unsigned char": 1,
    "signed char": 1,
    "short int": 2,
    "unsigned short": 2,
    "unsigned int": 4,
    "unsigned long": 8,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "float64": 8,
    "float32": 4,
    "float16": 2,
}
"""Bytes of an element by c10 name in lower case."""

SCALAR_TYPES: dict[int, str] = {
    0: "unsigned char",
    1: "signed char",
    2: "short",
    3: "int",
    4: "long",
    5: "c10::Half",
    6: "float",
    7: "double",
    9: "c10::complex<float>",
    10: "c10::complex<double>",
    11: "bool",
    15: "c10::BFloat16",
    23: "c10::Float8_e5m2",
    24: "c10::Float8_e4m3fn",
    25: "c10::Float8_e5m2fnuz",
    26: "c10::Float8_e4m3fnuz",
}
"""Number of a type in PyTorch's ``c10/core/ScalarType.h``, as arguments have it → its name."""

BOOL, INTEGER, REAL, COMPLEX = range(4)
"""Categories of types, in the order in which PyTorch promotes them."""


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

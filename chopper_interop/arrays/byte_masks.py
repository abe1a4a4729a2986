"""Masks of 64 bytes at a time, in compiled loops: a bit for each byte, the lowest for the first.

One comparison of a vector in place of 64 of bytes. numba has no vectors, so that they are written in LLVM's language, which
it translates for each processor.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from chopper_interop.arrays import Bytes
from chopper_interop.arrays.code_files import Written

WIDTH = 64
"""Bytes of a mask, one a bit of a number."""


def _splat(builder: Any, byte: Any) -> Any:
    """A vector of 64 times the same byte."""
    from llvmlite import ir

    vector = ir.VectorType(ir.IntType(8), WIDTH)
    first = builder.insert_element(ir.Constant(vector, ir.Undefined), byte, ir.IntType(32)(0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), None)
    return builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)


def _equal_bytes(_: Any, buffer: Any, _at: Any, _ignored: Any, _byte: Any) -> Any:
    """Return the types of `equal_bytes`, and what writes it."""
    from llvmlite import ir
    from numba.core.types import uint8, uint64

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array, offset, set_bits, wanted = arguments
        data = context.make_array(signature.args[0])(context, builder, array).data
        vector = ir.VectorType(ir.IntType(8), WIDTH)
        start = builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())
        block = builder.or_(builder.load(start, align=1), _splat(builder, set_bits))
        equal = builder.icmp_unsigned("==", block, _splat(builder, wanted))
        return builder.bitcast(equal, ir.IntType(WIDTH))

    return uint64(buffer, uint64, uint8, uint8), generate


def _lowest_bit(_: Any, _mask: Any) -> Any:
    """Return the types of `lowest_bit`, and what writes it."""
    from llvmlite import ir
    from numba.core.types import uint64

    def generate(_: Any, builder: Any, __: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.IntType(1)(0))

    return uint64(uint64), generate


def _equal_bytes_by_numpy(buffer: Bytes, at: int, ignored: int, byte: int) -> Any:
    bits = np.packbits(buffer[at : at + WIDTH] | ignored == byte, bitorder="little")
    return bits.view(np.uint64)[0]


def _lowest_bit_by_python(mask: int) -> Any:
    return np.uint64((int(mask) & -int(mask)).bit_length() - 1 if mask else WIDTH)


_AS_PYTHON = os.environ.get("NUMBA_DISABLE_JIT", "0") != "0"
"""Whether loops run as Python, to measure what tests cover."""
equal_bytes: Any = _equal_bytes_by_numpy if _AS_PYTHON else Written(_equal_bytes)
"""``equal_bytes(buffer, at, ignored, byte)``: mask of the bytes from `at` on that are `byte` once the bits that are `ignored`
are set. All 64 must be in the buffer."""
lowest_bit: Any = _lowest_bit_by_python if _AS_PYTHON else Written(_lowest_bit)
"""``lowest_bit(mask)``: number of the lowest bit that is 1; 64 if there is none."""

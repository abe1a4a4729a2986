"""Text of a tool's output: decoding, cells of CSV, whole numbers.

This module must stay free of heavy imports: converters use it to recognise files.
"""

from __future__ import annotations

import csv

from chopper_interop.arrays import Array, Bytes

LARGEST_INDEX = (1 << 31) - 1
"""Largest number of a device, or of a part of one."""
NO_NUMBER = -1
"""Stands for a number that is absent or cannot be read."""


def decode(data: Array) -> str:
    """Decode UTF-8, or else Latin-1, in which Windows writes the sign of degrees."""
    try:
        return str(data.data, "utf-8")
    except UnicodeDecodeError:
        return str(data.data, "latin-1")


def decode_lines(data: Array) -> str:
    """Decode a text and make all its lines end in a line feed."""
    text = decode(data)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


class _Utf8:
    """The UTF-8 that Python keeps with a text, for ASCII the text's own memory, for as long as this lives."""

    def __init__(self, text: str) -> None:
        import ctypes

        size = ctypes.c_ssize_t()
        begin = ctypes.pythonapi.PyUnicode_AsUTF8AndSize
        begin.restype, begin.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_void_p)
        address = begin(text, ctypes.byref(size))
        self.text = text
        self.__array_interface__ = {
            "shape": (size.value,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


def encoded(text: str) -> Bytes:
    """Return the UTF-8 of a text, as compiled loops take it, which must not be written.

    A copy in an array was a seventh of the memory that reading telemetry takes, and of its page faults.
    It is Python's own memory, in which a byte that is written changes a text that others hold, but it is not
    marked read-only: loops are kept as machine code for arrays that are not, and one of another type would
    be compiled at each first use. Tests read every form with an array that is marked.
    """
    import numpy as np

    return np.asarray(_Utf8(text))


def without_tabs(text: str) -> str:
    """Replace tabs, which editors and terminals make of spaces, in a text that is in columns."""
    return text.replace("\t", "    ")


def csv_cells(line: str) -> list[str]:
    """Split one line of CSV; a quote that is left open ends with the line."""
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        return line.split(",")


def whole_number(cell: str, largest: int) -> int:
    """Parse a whole number; `NO_NUMBER` if the cell holds none or a larger one than `largest`."""
    cell = cell.strip()
    if not (cell.isascii() and cell.isdigit() and len(cell) <= len(str(largest))):
        return NO_NUMBER
    return int(cell) if int(cell) <= largest else NO_NUMBER

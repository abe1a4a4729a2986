"""The text of a tool's output."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array


def decoded(data: Array) -> str:
    """Text in UTF-8, or else in Latin-1, in which Windows writes degrees."""
    raw = data.tobytes()
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def lines_of(data: Array) -> str:
    """The same, its lines ending in a line feed."""
    return decoded(data).replace("\r\n", "\n").replace("\r", "\n")


def without_tabs(text: str) -> str:
    """Text in columns whose tabs, which editors and terminals make of spaces, are spaces."""
    return text.replace("\t", "    ")

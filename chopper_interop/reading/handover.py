"""Results that a process hands to another by a file: columns are mapped, neither sent nor copied."""

from __future__ import annotations

import mmap
import pickle
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_ALIGNMENT = 64
"""Bytes to which columns are aligned, as Arrow recommends."""


@dataclass(frozen=True)
class Stored:
    """A result whose buffers lie in a file.

    Parameters
    ----------
    path
        The file.
    places
        Start and end of each buffer in it.
    content
        Everything else, pickled.
    """

    path: Path
    places: tuple[tuple[int, int], ...]
    content: bytes

    def load(self) -> Any:
        """Return the result, whose buffers are pages of the file, and remove the name of the file.

        Pages that are written to are copied. Those that are not can be dropped when memory is short, as the
        disk has them.
        """
        with self.path.open("rb") as file:
            pages = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))
        with suppress(PermissionError):  # Windows keeps it until nothing is mapped
            self.path.unlink()
        buffers = [pages[start:stop] for start, stop in self.places]
        return pickle.loads(self.content, buffers=buffers)  # noqa: S301 # made by `store`


def store(folder: Path, function: Callable[..., Any], *arguments: Any) -> Stored:
    """Call a function and store what it returns in a new file in a folder."""
    buffers: list[pickle.PickleBuffer] = []
    result = function(*arguments)
    content = pickle.dumps(result, protocol=5, buffer_callback=buffers.append)
    places = []
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        for buffer in buffers:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            start = file.tell()
            file.write(buffer.raw())
            places.append((start, file.tell()))
        file.write(bytes(1))  # an empty file cannot be mapped
    return Stored(Path(file.name), tuple(places), content)

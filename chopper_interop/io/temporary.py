"""Temporary folders of this process alone: gone at its end, or, if it was killed, with the next one that makes one."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from chopper_interop.io import outputs

_UNTIL_THE_END = ExitStack()


@contextmanager
def folder() -> Iterator[Path]:
    """Make a folder in the temporary folder (``TMPDIR``) that no other user can open; it is removed at the end."""
    parent = Path(os.path.realpath(tempfile.gettempdir()))
    with outputs.workspace(parent, is_folder=True, mode=0o700) as path:
        yield path


@cache
def process_folder() -> Path:
    """Return a folder that stays until `remove_all` is called or the process ends."""
    return _UNTIL_THE_END.enter_context(folder())


def remove_all() -> None:
    """Remove the folder that `process_folder` made."""
    _UNTIL_THE_END.close()
    process_folder.cache_clear()


atexit.register(remove_all)

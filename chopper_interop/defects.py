"""Errors that a converter or an analysis, often a plug-in, does not expect, as errors of one line."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from chopper_interop.errors import ChopperError, InternalError
from chopper_interop.io import memory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def as_errors(subject: str, path: Path | None = None) -> Iterator[None]:
    """Raise `InternalError` for an error that a block does not expect.

    Parameters
    ----------
    subject
        What the block does, such as "reading kineto".
    path
        The file or folder concerned.

    Raises
    ------
    TooLittleMemoryError
        Memory does not suffice.
    """
    try:
        with memory.sufficing(subject, path):
            yield
    except ChopperError:
        raise
    except (Exception, SystemExit) as error:
        raise InternalError(error, subject, path) from error

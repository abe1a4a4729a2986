"""Logs of several processes in one file, in which a launcher put a label in front of every line.

``srun -l`` and flux write ``0: text``, Open MPI ``[1,0]<stdout>:text``, torchrun ``[default0]:text``, pdsh and
clush ``host: text``. The lines of one label are what one process wrote.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.io import inputs
from chopper_interop.io.archive_members import Member

if TYPE_CHECKING:
    from chopper_interop.io.archive_members import Budget

_FORMS = tuple(
    re.compile(rb"^" + form + rb"(.*\n?)", re.MULTILINE)
    for form in (
        rb" {0,7}(\d{1,7}): ?",
        rb"\[[\w@.-]{0,99}?,?(\d{1,7})\]<std(?:out|err)>: ?",
        rb"\[default(\d{1,7})\]: ?",
        rb"([A-Za-z][\w.-]{0,99}): ",
    )
)
"""A label, and the line behind it. Bounded, so that a long line without one is left at once."""
_LINE = re.compile(rb"^[ \t]*[^ \t\n].*\n?", re.MULTILINE)
_LINES = 200
"""Lines by which a log is recognised. Chosen: longer than the banners of scripts."""
_HEAD = 1 << 16
"""Bytes by which a log is recognised: 200 lines of 300 bytes."""
_MIN_LINES = 2
"""One line may look as if it had a label. Chosen: the shortest log has a header and a row."""
OTHERS = "without label"
"""Name of what has no label."""


def first_task(head: bytes) -> bytes:
    """Return the lines of the first label at the beginning of a file, without it."""
    form = _form(head)
    lines = form.findall(head) if form else []
    return b"".join(text for label, text in lines if label == lines[0][0])


def members(path: Path, head: bytes, budget: Budget) -> Iterator[Member]:
    """Yield the log of each label, and what has none."""
    form = _form(head)
    if form is None:
        return
    data = inputs.read(path).tobytes()
    logs: dict[bytes, list[bytes]] = {}
    for label, text in form.findall(data):
        logs.setdefault(label, []).append(text)
    others = [line for line in _LINE.findall(data) if not form.match(line)]
    named = {f"task {label.decode()}": lines for label, lines in logs.items()}
    for name, lines in {**named, **({OTHERS: others} if others else {})}.items():
        text = b"".join(lines)
        budget.take_member()
        budget.take_bytes(len(text))
        yield Member(name, len(text), partial(io.BytesIO, text))


def _form(head: bytes) -> re.Pattern[bytes] | None:
    """Form of the labels of most lines; None if there is none. The last line may be cut."""
    lines = _LINE.findall(head, 0, _HEAD)[:_LINES]
    for form in _FORMS:
        labelled = sum(form.match(line) is not None for line in lines)
        if labelled >= _MIN_LINES and 2 * labelled > len(lines):
            return form
    return None

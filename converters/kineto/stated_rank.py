"""The rank that a file states near its beginning or in its name, without reading the file."""

from __future__ import annotations

import re
from pathlib import Path

_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_FOLDER = re.compile(r"rank[-_.]?(\d+)", re.IGNORECASE)
_IN_HEADER = re.compile(rb'"distributedInfo"\s*:\s*\{[^{}\[\]]*"rank"\s*:\s*(\d{1,7})\s*[,}]')
_FUSED = re.compile(rb'"pid_raw"|"(?:name|labels)"\s*:\s*"[^"]*\brank\s*[:#-]?\s*\d', re.IGNORECASE)
"""Marks of tools in files in which they fuse ranks."""


def stated_rank(path: Path, head: bytes) -> int | None:
    """Return the rank of a file that begins so; None if it may hold several, or states none.

    It is the rank that `ranks.assign_ranks` gives the file when it is read.
    """
    if _FUSED.search(head):
        return None
    stated = _IN_HEADER.search(head)
    if stated is not None:
        return int(stated[1])
    named = "" if b'"distributedInfo"' in head else rank_in_path(path)
    return int(named) if named else None


def rank_in_path(path: Path) -> str:
    """Return the digits of the rank that the name of a file states, or its folder where that is all of its name."""
    named = _IN_NAME.search(path.name) or _FOLDER.fullmatch(path.parent.name)
    return named[1] if named else ""

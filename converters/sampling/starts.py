"""Lines with which pieces of a text begin: what marks their begin, or a time that a loop wrote in front of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from chopper_interop.arrays import Array, Bytes
from chopper_interop.converters.sampling.pieces import Scanner, line_windows

NO_MARK, BEGIN, STAMP = range(3)
"""Marks of lines: none, the begin of a piece, a time in front of one."""


def starts_of(
    data: Bytes,
    may_be: Array,
    of_template: Callable[[str, str], int],
    of_line: Callable[[str], int],
) -> tuple[Array, Array]:
    """Return the numbers of the lines with which pieces begin, from 0, and where these are in the text.

    Parameters
    ----------
    data
        The text, UTF-8.
    may_be
        Mask of the bytes with which such lines may begin; others are not looked at.
    of_template
        Returns what lines of a template mark, of the template and one of the lines.
    of_line
        Returns what a line marks.
    """
    scanner, of_templates, lines_before = Scanner(data), list[int](), 0
    parts = []
    for begin, end in line_windows(data):
        looked_at = np.flatnonzero(end > begin)
        looked_at = looked_at[may_be[data[begin[looked_at]]]]
        pieces = scanner.scan(begin[looked_at], end[looked_at])
        of_templates += [
            of_template(scanner.templates[number].decode(), scanner.sample_text(number))
            for number in range(len(of_templates), len(scanner.templates))
        ]
        mark = np.array([*of_templates, NO_MARK])[pieces.template]
        for rare in np.flatnonzero(pieces.template < 0).tolist():
            mark[rare] = of_line(pieces.text(rare))
        marked = np.flatnonzero(mark != NO_MARK)
        line = looked_at[marked]
        parts.append((lines_before + line, begin[line], mark[marked] == STAMP))
        lines_before += len(begin)
    line, place, is_stamp = map(np.concatenate, zip(*parts, strict=True))
    behind_stamp = np.concatenate([[False], is_stamp[:-1]])[: len(line)]
    is_start = is_stamp | ~behind_stamp
    return line[is_start], place[is_start]

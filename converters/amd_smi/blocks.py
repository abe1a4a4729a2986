"""Blocks of one GPU each, the human-readable form of ``metric``, ``static``, ``list``, ``process``.

Up to 6.3 it is YAML without its quotes, whose long lists wrap over lines; later amd-smi writes the
same on single lines. Keys are those of JSON in capitals. Up to 6.0 sections are indented as far as
``GPU: 0``, and the time comes before that line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from chopper_interop.converters.sampling import faults
from chopper_interop.converters.sampling.text import without_tabs
from chopper_interop.issues import IssueLog

Tree = dict[str, Any]
"""Keys in lower case → text, or a tree."""

KINDS = ("GPU", "CPU", "CORE", "NIC", "SWITCH", "TIMESTAMP")
"""Words with which first lines of blocks begin, and what may come in front of a block."""
BLOCK = re.compile(r"(GPU|CPU|CORE|NIC|SWITCH): *(\S*)\s*$")
"""First line of a block."""
STAMP = re.compile(r" *TIMESTAMP: *(\S*)\s*$")
ENDS_IN_NUMBER = re.compile(r"(?:^|[\s/])[-+]?\d+(?:\.\d*)?$")
"""A number without unit at the end, which may lack digits; addresses are none."""
_KEY = re.compile(r"( *)(?:- )?([A-Z0-9][\w %/.()#-]*):(?: (.*))?$")
_MESSAGE = re.compile(r"'CTRL' \+ 'C'|WARNING|[A-Z]+ INFO:")
_AS_WRITTEN = re.compile(r"ecc_blocks?\.[^.]+|\w+_board\.temperature\.[^.]+|clock\.[VD]CLK\d+")
"""Paths whose last name is in capitals in JSON too."""


@dataclass
class Block:
    """Values of one processor.

    Parameters
    ----------
    kind
        ``GPU``, ``CPU``, ….
    number
        Its number, as it is written.
    line
        The line on which it begins.
    stamp
        Seconds since 1970 as they are written; empty if there are none.
    tree
        Its values.
    """

    kind: str
    number: str
    line: int
    stamp: str = ""
    tree: Tree = field(default_factory=dict)


@dataclass
class _BlockReader:
    issues: IssueLog
    blocks: list[Block] = field(default_factory=list)
    parents: list[tuple[int, str, Tree]] = field(default_factory=list)
    """Depth, path and tree of the keys that may contain the next line."""
    last: tuple[Tree, str] | None = None
    """Tree and key of the text that the next line may continue."""
    stamp: str = ""
    is_watched: bool = False

    def line(self, text: str, number: int) -> None:
        begin = BLOCK.match(text)
        if begin:
            self._close()
            self.blocks.append(Block(begin[1], begin[2], number, self.stamp))
            self.parents = [(-1, "", self.blocks[-1].tree)]
            self.stamp = ""
            return
        stamp = STAMP.match(text)
        if stamp:
            self._stamp(stamp[1], indented=text[0] == " ")
        elif text.strip():
            self._value(text)

    def _stamp(self, stamp: str, *, indented: bool) -> None:
        if indented and self.blocks:
            self.blocks[-1].stamp = stamp
        else:
            self._close()
            self.parents, self.stamp = [], stamp

    def _value(self, text: str) -> None:
        key = _KEY.match(text)
        if self.last and (self._is_open() or not key) and text[0] == " ":
            tree, name = self.last
            tree[name] += " " + text.strip()
        elif key and self.parents and not _MESSAGE.match(text):
            self._close()
            self._add(len(key[1]), key[2], (key[3] or "").strip())
        else:
            self.issues.add(faults.NOT_A_ROW, 1, text.strip()[:80])

    def _add(self, depth: int, key: str, value: str) -> None:
        while self.parents[-1][0] >= depth:
            self.parents.pop()
        _, path, tree = self.parents[-1]
        name = key if _AS_WRITTEN.fullmatch(f"{path}{key}") else key.lower()
        name = name if name not in tree else f"{name}#{len(tree)}"
        if value:
            tree[name], self.last = value, (tree, name)
        else:
            tree[name] = {}
            self.parents.append((depth, f"{path}{name}.", tree[name]))

    def _is_open(self) -> bool:
        """True if the value so far is a list without its end."""
        tree, name = self.last or ({"": ""}, "")
        return str(tree[name]).startswith("[") and not str(tree[name]).endswith("]")

    def _ends_in_digit(self) -> bool:
        tree, name = self.last or ({"": ""}, "")
        return ENDS_IN_NUMBER.search(str(tree[name])) is not None

    def _close(self) -> None:
        """Drop a list that has no end."""
        if self.last and self._is_open():
            self._cut()
        self.last = None

    def _cut(self) -> None:
        tree, name = self.last or ({"": ""}, "")
        self.issues.add(faults.CELL_CUT, 1, f"{name}: {tree.pop(name)}"[:80])

    def end(self, *, complete: bool) -> None:
        """Drop the last value of a file that is cut, as it may lack digits.

        A file with times was written by a watch that was stopped. One without may have been edited:
        there only a last value that ends in a digit may be cut.
        """
        watched = self.is_watched or any(block.stamp for block in self.blocks)
        if not complete and self.last and (watched or self._ends_in_digit()):
            self._cut()
            self.last = None
        elif not complete and watched:
            self.issues.add(faults.FILE_CUT)
        self._close()


def read(text: str, issues: IssueLog, *, is_watched: bool = False) -> list[Block]:
    """Read the blocks of a text, or of several texts one after the other.

    Parameters
    ----------
    text
        The file.
    issues
        Where lines outside of blocks are counted.
    is_watched
        True if blocks in front of the text have times.
    """
    reader = _BlockReader(issues, is_watched=is_watched)
    for number, line in enumerate(without_tabs(text).split("\n"), 1):
        reader.line(line.rstrip("\r\0 "), number)
    reader.end(complete=not text.rpartition("\n")[2].strip("\r\0 "))
    return reader.blocks

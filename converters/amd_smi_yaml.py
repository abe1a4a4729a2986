"""The form for people of ``metric``, ``static``, ``list`` and ``process``: blocks of one GPU each.

Up to 6.3 it is YAML without its quotes, whose long lists wrap over lines; later a writer of
amd-smi's own makes the same on single lines. Keys are those of JSON in capitals. Up to 6.0 the
sections stand as far left as ``GPU: 0``, and the time stands in front of that.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chopper_interop.converters import telemetry_faults as faults
from chopper_interop.converters.telemetry_text import without_tabs

if TYPE_CHECKING:
    from chopper_interop.issues import IssueLog

Tree = dict[str, Any]
"""Keys in lower case → text, or a tree."""

BLOCK = re.compile(r"(GPU|CPU|CORE|NIC|SWITCH): *(\S*)\s*$")
"""How a block begins."""
STAMP = re.compile(r" *TIMESTAMP: *(\S*)\s*$")
ENDS_IN_NUMBER = re.compile(r"(?:^|[\s/])[-+]?\d+(?:\.\d*)?$")
"""A number without unit, which more digits may belong behind; no address is one."""
_KEY = re.compile(r"( *)(?:- )?([A-Z0-9][\w %/.()#-]*):(?: (.*))?$")
_MESSAGE = re.compile(r"'CTRL' \+ 'C'|WARNING|[A-Z]+ INFO:")
_AS_WRITTEN = re.compile(r"ecc_blocks?\.[^.]+|\w+_board\.temperature\.[^.]+|clock\.[VD]CLK\d+")
"""Paths whose last name is in capitals in JSON too."""


@dataclass
class Block:
    """What stands about one processor.

    Parameters
    ----------
    kind
        ``GPU``, ``CPU``, ….
    number
        What stands behind it.
    line
        The line on which it begins.
    stamp
        Epoch seconds as they stand there; empty if there are none.
    tree
        Its values.
    """

    kind: str
    number: str
    line: int
    stamp: str = ""
    tree: Tree = field(default_factory=dict)


@dataclass
class _Reader:
    issues: IssueLog
    blocks: list[Block] = field(default_factory=list)
    inside: list[tuple[int, str, Tree]] = field(default_factory=list)
    """Depth, path and tree of the keys that the next line may lie below."""
    last: tuple[Tree, str] | None = None
    """Where the text stands that the next line may go on with."""
    stamp: str = ""

    def line(self, text: str, number: int) -> None:
        begin = BLOCK.match(text)
        if begin:
            self._close()
            self.blocks.append(Block(begin[1], begin[2], number, self.stamp))
            self.inside = [(-1, "", self.blocks[-1].tree)]
            self.stamp = ""
            return
        stamp = STAMP.match(text)
        if stamp:
            self._stamp(stamp[1], own=text[0] == " ")
        elif text.strip():
            self._value(text)

    def _stamp(self, stamp: str, *, own: bool) -> None:
        if own and self.blocks:
            self.blocks[-1].stamp = stamp
        else:
            self._close()
            self.inside, self.stamp = [], stamp

    def _value(self, text: str) -> None:
        key = _KEY.match(text)
        if self.last and (self._open() or not key) and text[0] == " ":
            tree, name = self.last
            tree[name] += " " + text.strip()
        elif key and self.inside and not _MESSAGE.match(text):
            self._close()
            self._add(len(key[1]), key[2], (key[3] or "").strip())
        else:
            self.issues.add(faults.NOT_A_ROW, 1, text.strip()[:80])

    def _add(self, depth: int, key: str, value: str) -> None:
        while self.inside[-1][0] >= depth:
            self.inside.pop()
        _, path, tree = self.inside[-1]
        name = key if _AS_WRITTEN.fullmatch(f"{path}{key}") else key.lower()
        name = name if name not in tree else f"{name}#{len(tree)}"
        if value:
            tree[name], self.last = value, (tree, name)
        else:
            tree[name] = {}
            self.inside.append((depth, f"{path}{name}.", tree[name]))

    def _open(self) -> bool:
        """Whether the value so far is a list without its end."""
        tree, name = self.last or ({"": ""}, "")
        return str(tree[name]).startswith("[") and not str(tree[name]).endswith("]")

    def _ends_in_digit(self) -> bool:
        tree, name = self.last or ({"": ""}, "")
        return ENDS_IN_NUMBER.search(str(tree[name])) is not None

    def _close(self) -> None:
        """Leave out a list that has no end."""
        if self.last and self._open():
            self._cut()
        self.last = None

    def _cut(self) -> None:
        tree, name = self.last or ({"": ""}, "")
        self.issues.add(faults.CELL_CUT, 1, f"{name}: {tree.pop(name)}"[:80])

    def end(self, *, whole: bool) -> None:
        """What the file breaks off in may lack digits, if amd-smi was stopped there.

        An output without time may also have been edited: there a digit alone says that it may.
        """
        watched = any(block.stamp for block in self.blocks)
        if not whole and self.last and (watched or self._ends_in_digit()):
            self._cut()
            self.last = None
        elif not whole and watched:
            self.issues.add(faults.FILE_CUT)
        self._close()


def read(text: str, issues: IssueLog) -> list[Block]:
    """Blocks of a text, or of several one behind the other.

    Parameters
    ----------
    text
        The file.
    issues
        Where lines that belong to no block are counted.
    """
    reader = _Reader(issues)
    for number, line in enumerate(without_tabs(text).split("\n"), 1):
        reader.line(line.rstrip("\r\0 "), number)
    reader.end(whole=not text.rpartition("\n")[2].strip("\r\0 "))
    return reader.blocks

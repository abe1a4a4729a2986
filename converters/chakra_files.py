"""Which files are ETs, what belongs to each, and what their names tell."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from chopper_interop.converters.chakra_json import is_json
from chopper_interop.converters.chakra_old import fields
from chopper_interop.errors import ReadError
from chopper_interop.files import inputs
from chopper_interop.issues import Fault, IssueLog, Severity

if TYPE_CHECKING:
    from pathlib import Path

GROUPS_DIFFER = Fault(
    "et-groups-differ",
    Severity.LOSS,
    "Files of process groups beside the ET give the same group other ranks: those of the last "
    "file hold.",
)

_NAMED = re.compile(r"(?P<job>.*)\.(?P<rank>\d{1,7})\.(?:et|json)(?:\.\w+)?", re.IGNORECASE)
_OWN_GROUPS = ".comm_groups.json"
_GROUPS_JSON = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\[[\s\d,]*[\],]')
_VERSION = re.compile(rb"\d+\.\d+\.\d+[\w.-]*\Z")
_METADATA: dict[int, tuple[int, ...]] = {1: (2,), 2: (2,)}
_NODE: dict[int, tuple[int, ...]] = {
    1: (0,),
    2: (2,),
    3: (0,),
    4: (0, 2),
    5: (0, 2),
    6: (0, 2),
    7: (0, 2),
    8: (2,),
    9: (2,),
    10: (2,),
}
_OLD_NODE = _NODE | dict.fromkeys(range(5, 23), (0, 2))
"""Wire types that fields of a message have, in today's schema and in those before it."""
_LONGEST_FIRST = 1 << 24


def sniff(head: bytes) -> bool:
    """Whether a file that begins so is an ET, or the file of process groups beside one."""
    if head[:1] in b"{ \t\r\n" and head.strip()[:1] == b"{" and _json(head):
        return True
    found = _first_messages(head)
    if not found:
        return False
    first, whole = found[0]
    if not whole:
        return False
    rest = found[1:]
    if first and _is_metadata(first):
        return bool(rest and _is_node(*rest[0])) or (not rest and _states_version(first))
    nodes = found if first else rest
    return bool(nodes) and all(_is_node(*one) for one in nodes) and _is_named(*nodes[0])


def _json(head: bytes) -> bool:
    return _GROUPS_JSON.match(head) is not None or is_json(head)


def _first_messages(head: bytes) -> list[tuple[bytes, bool]]:
    """The first three messages, and whether each is whole."""
    found: list[tuple[bytes, bool]] = []
    i = 0
    while i < len(head) and len(found) < 3:  # noqa: PLR2004
        size, width = _varint(head[i : i + 10])
        if width < 0 or size > _LONGEST_FIRST:
            return found if found and found[0][0] and _is_metadata(found[0][0]) else []
        i += width
        found.append((head[i : i + size], i + size <= len(head)))
        i += size
    return found


def _varint(raw: bytes) -> tuple[int, int]:
    value = 0
    for i, byte in enumerate(raw):
        value |= (byte & 127) << (7 * i)
        if byte < 128:  # noqa: PLR2004
            return value, i + 1
    return 0, -1


def _fits(raw: bytes, wires: dict[int, tuple[int, ...]]) -> bool:
    """Whether a message has these fields only."""
    try:
        return bool(raw) and all(w in wires.get(n, ()) for n, w, _ in fields(raw))
    except ValueError:
        return False


def _is_metadata(raw: bytes) -> bool:
    return not raw or _fits(raw, _METADATA)


def _states_version(raw: bytes) -> bool:
    return any(
        n == 1 and isinstance(value, bytes) and _VERSION.match(value) is not None
        for n, _, value in fields(raw)
    )


def _is_node(raw: bytes, whole: bool) -> bool:  # noqa: FBT001
    """Whether it is a node with an id, a name or a type, or begins like one."""
    if not whole:
        return raw[:1] in (b"\x08", b"\x12", b"")
    if not _fits(raw, _OLD_NODE):
        return False
    told = {n: value for n, _, value in fields(raw)}
    name = told.get(2, b"")
    return bool({2, 3} & told.keys()) and isinstance(name, bytes) and b"\0" not in name


def _is_named(raw: bytes, whole: bool) -> bool:  # noqa: FBT001
    """Whether a node has a type and a name that people can read: what tells it without metadata."""
    told = {n: value for n, _, value in fields(raw)} if whole else {}
    name = told.get(2)
    if not isinstance(name, bytes) or not {2, 3} <= told.keys():
        return False
    return name.isascii() and name != b"" and name.decode().isprintable()


def is_groups(path: Path) -> bool:
    """Whether a file lists process groups."""
    if path.name.endswith(_OWN_GROUPS):
        return True
    return _GROUPS_JSON.match(inputs.head(path)) is not None


def group(paths: list[Path]) -> list[list[Path]]:
    """Each rank's file is a source; a file of groups goes with the ETs that it lies beside.

    ``JOB.comm_groups.json`` goes with those of that job, any other name with all of the folder.
    """
    groups = [path for path in paths if is_groups(path)]
    sources = [[path] for path in paths if path not in groups]
    for path in sorted(groups, key=lambda p: p.name.endswith(_OWN_GROUPS)):
        beside = [s for s in sources if s[0].parent == path.parent] or sources
        if path.name.endswith(_OWN_GROUPS):
            job = path.name.removesuffix(_OWN_GROUPS)
            beside = [s for s in sources if s[0].name.startswith(f"{job}.")]
        for source in beside or [[]]:
            source.append(path)
            if source == [path] and source not in sources:
                sources.append(source)
    return sources


def named(path: Path) -> tuple[str, int | None]:
    """Job and rank by a file's name ``JOB.RANK.et``; no rank where it has another."""
    found = _NAMED.fullmatch(path.name)
    if found is None or int(found.group("rank")) >= 1 << 20:
        return inputs.plain_name(path), None
    return found.group("job"), int(found.group("rank"))


def of_everyone(path: Path, groups: dict[str, list[int]]) -> str:
    """Name of the group that has all ranks of which a file's folder has ETs; "" if none has."""
    if not groups:
        return ""
    job, _ = named(path)
    ranks = {rank for beside, rank in map(named, path.parent.iterdir()) if beside == job}
    return next((name for name, of in groups.items() if {*of} == ranks - {None}), "")


def groups_of(paths: list[Path], issues: IssueLog) -> dict[str, list[int]]:
    """Process groups by name."""
    known: dict[str, list[int]] = {}
    for path in paths:
        listed = _listed(path)
        differ = [name for name, ranks in listed.items() if known.get(name, ranks) != ranks]
        issues.add(GROUPS_DIFFER, len(differ), f"{differ[:1]} of {path.name}")
        known |= listed
    return known


def _listed(path: Path) -> dict[str, list[int]]:
    try:
        listed = json.loads(inputs.read(path).tobytes())
        known = {str(name): [int(rank) for rank in ranks] for name, ranks in listed.items()}
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ReadError(f"it is no object of lists of ranks: {error}", path=path) from error
    wrong = [name for name, ranks in known.items() if any(not 0 <= r < 1 << 20 for r in ranks)]
    if wrong:
        raise ReadError(f"it is no object of lists of ranks: group {wrong[0]!r}", path=path)
    return known

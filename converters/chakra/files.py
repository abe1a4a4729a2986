"""Recognise ETs, the files that belong to each, and the job and rank in their names."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.schemas import hub
from chopper_interop.schemas.chakra import message_class

GROUPS_DIFFER = Fault.loss(
    "et-groups-differ",
    "Files of process groups next to the ET give the same group other ranks: those of the last "
    "file hold.",
)

STREAM_OF = "stream_of"
"""Attribute of metadata: rank of the stream that the file's NPU runs (`streams`)."""
_NAMED = re.compile(r"(?P<job>.*)\.(?P<rank>\d{1,7})\.(?:et|json)(?:\.\w+)?", re.IGNORECASE)
RANK_FILE = re.compile(r"(?P<job>.+)\.\d+\.et")
_JOB_GROUPS = ".comm_groups.json"
_GROUPS_JSON = re.compile(rb'\s*\{\s*"\d+"\s*:\s*\[[\s\d,]*[\],]')
JSON_GRAPH = re.compile(rb'\s*\{[^{}\[\]]*"workload_graph"\s*:\s*\[')
_JSON_FIRST = re.compile(rb'\s*\{\s*(?:"version"\s*:|"attr"\s*:\s*\[|\}\s*\{)')
_JSON_NODE = re.compile(
    rb'\}\s*\{[^{}\[\]]*"type"\s*:\s*"(?:INVALID|METADATA|MEM_LOAD|MEM_STORE|COMP|COMM_\w+)_NODE"'
)
VARINT, LENGTH = 0, 2
"""Wire types of protobuf."""
_VERSION = re.compile(rb"\d+\.\d+\.\d+[\w.-]*\Z")
_METADATA: dict[int, tuple[int, ...]] = {1: (2,), 2: (2,)}
_NODE: dict[int, tuple[int, ...]] = {
    1: (0,), 2: (2,), 3: (0,), 4: (0, 2), 5: (0, 2), 6: (0, 2), 7: (0, 2), 8: (2,), 9: (2,),
    10: (2,),
}  # fmt: skip
_OLD_NODE = _NODE | dict.fromkeys(range(5, 23), (0, 2))
"""Wire types that fields of a message have, in today's schema and in those before it."""
_MAX_FIRST_BYTES = 1 << 24
"""Bytes of a file's first messages. Chosen: far more than any known writer's, so that most files
of another format are refused by their first bytes."""


def sniff(head: bytes) -> bool:
    """True if a file that begins with `head` is an ET, or a file of process groups next to one."""
    if (
        head[:1] in b"{ \t\r\n"
        and head.strip()[:1] == b"{"
        and (_GROUPS_JSON.match(head) or is_json(head))
    ):
        return True
    messages = _first_messages(head)
    if not messages:
        return False
    first, complete = messages[0]
    if not complete:
        return False
    rest = messages[1:]
    if first and _is_metadata(first):
        return bool(rest and _is_node(*rest[0])) or (not rest and _states_version(first))
    nodes = messages if first else rest
    return bool(nodes) and all(_is_node(*one) for one in nodes) and _is_named(*nodes[0])


def is_json(head: bytes) -> bool:
    """True if a file that begins with `head` is an ET as JSON."""
    if JSON_GRAPH.match(head):
        return True
    return _JSON_FIRST.match(head) is not None and _JSON_NODE.search(head) is not None


def _first_messages(head: bytes) -> list[tuple[bytes, bool]]:
    """First three messages, each with whether `head` has all of it."""
    messages: list[tuple[bytes, bool]] = []
    i = 0
    while i < len(head) and len(messages) < 3:  # noqa: PLR2004
        size, width = _varint(head[i : i + 10])
        if width < 0 or size > _MAX_FIRST_BYTES:
            return messages if messages and messages[0][0] and _is_metadata(messages[0][0]) else []
        i += width
        messages.append((head[i : i + size], i + size <= len(head)))
        i += size
    return messages


def _varint(raw: bytes) -> tuple[int, int]:
    """Value of the first varint, not cut to 64 bits, and its size; size -1 if it does not end."""
    value = 0
    for i, byte in enumerate(raw):
        value |= (byte & 127) << (7 * i)
        if byte < 128:  # noqa: PLR2004
            return value, i + 1
    return 0, -1


def fields(raw: bytes) -> list[tuple[int, int, Any]]:
    """Number, wire type and value of a message's fields; raises `DecodeError` if it is none."""
    unknown: Any = UnknownFieldSet(Empty.FromString(raw))
    return [(field.field_number, field.wire_type, field.data) for field in unknown]


def _fits(raw: bytes, wires: dict[int, tuple[int, ...]]) -> bool:
    """True if a message has these fields only."""
    number, wire = divmod(raw[0], 8) if raw else (0, 0)
    # of a number below 16 the first byte says it, by which most files of other formats are refused
    if raw and raw[0] < 128 and wire not in wires.get(number, ()):  # noqa: PLR2004
        return False
    try:
        return bool(raw) and all(w in wires.get(n, ()) for n, w, _ in fields(raw))
    except DecodeError:
        return False


def _is_metadata(raw: bytes) -> bool:
    return not raw or _fits(raw, _METADATA)


def _states_version(raw: bytes) -> bool:
    return any(
        n == 1 and isinstance(value, bytes) and _VERSION.match(value) is not None
        for n, _, value in fields(raw)
    )


def _is_node(raw: bytes, complete: bool) -> bool:  # noqa: FBT001
    """True if it is a node with a name or a type or, if incomplete, begins like a node."""
    if not complete:
        return raw[:1] in (b"\x08", b"\x12", b"")
    if not _fits(raw, _OLD_NODE):
        return False
    values = {n: value for n, _, value in fields(raw)}
    name = values.get(2, b"")
    return bool({2, 3} & values.keys()) and isinstance(name, bytes) and b"\0" not in name


def _is_named(raw: bytes, complete: bool) -> bool:  # noqa: FBT001
    """True if a node has a type and a printable name, which identifies ETs without metadata."""
    values = {n: value for n, _, value in fields(raw)} if complete else {}
    name = values.get(2)
    if not isinstance(name, bytes) or not {2, 3} <= values.keys():
        return False
    return name.isascii() and name != b"" and name.decode().isprintable()


def is_groups(path: Path) -> bool:
    """True if a file lists process groups."""
    if path.name.endswith(_JOB_GROUPS):
        return True
    return _GROUPS_JSON.match(inputs.head(path)) is not None


def facts(raw: bytes) -> dict[str, int | str]:
    """Attributes of a file's metadata that are integers or texts; none if it cannot be read."""
    try:
        parsed = message_class("GlobalMetadata").FromString(raw)
    except DecodeError:
        return {}
    kinds = ("int64_val", "string_val")
    return {
        a.name: getattr(a, a.WhichOneof("value"))
        for a in parsed.attr
        if a.WhichOneof("value") in kinds
    }


def integer(stated: dict[str, int | str], name: str) -> int:
    """Attribute of a file's metadata that is an integer; 0 if it has none."""
    value = stated.get(name, 0)
    return value if isinstance(value, int) else 0


def facts_of(path: Path) -> dict[str, int | str]:
    """Attributes of the metadata of a file on disk; none if it does not begin with metadata."""
    first = _first_messages(inputs.head(path))[:1]
    return facts(first[0][0]) if first and _is_metadata(first[0][0]) else {}


def stream_of(path: Path) -> int | None:
    """Number of the rank whose stream a file's NPU runs (`streams`); None for the file of a rank."""
    stated = facts_of(path)
    return integer(stated, STREAM_OF) if STREAM_OF in stated else None


def group(paths: list[Path]) -> list[list[Path]]:
    """Make each rank's file a source; a file of groups goes with the ETs of its folder.

    ``JOB.comm_groups.json`` goes with those of that job, any other name with all of the folder. Files of
    streams go with that of their rank.
    """
    groups = [path for path in paths if is_groups(path)]
    streams = {path: stream_of(path) for path in paths if path not in groups}
    sources = [[path] for path, rank in streams.items() if rank is None]
    of_ranks = {(s[0].parent, *job_and_rank(s[0])): s for s in sources}
    for path, rank in streams.items():
        if rank is not None:
            named = (path.parent, job_and_rank(path)[0], rank)
            if named in of_ranks:
                of_ranks[named].append(path)
            else:
                sources.append([path])
    for path in sorted(groups, key=lambda p: p.name.endswith(_JOB_GROUPS)):
        matching = [s for s in sources if s[0].parent == path.parent] or sources
        if path.name.endswith(_JOB_GROUPS):
            job = path.name.removesuffix(_JOB_GROUPS)
            matching = [s for s in sources if s[0].name.startswith(f"{job}.")]
        for source in matching or [[]]:
            source.append(path)
            if source == [path] and source not in sources:
                sources.append(source)
    return sources


def prefixes(folder: Path) -> list[Path]:
    """Paths of the jobs with ETs ``JOB.RANK.et`` in a folder, without that ending, in order of name."""
    matches = (RANK_FILE.fullmatch(path.name) for path in folder.iterdir() if path.is_file())
    return [folder / job for job in sorted({match.group("job") for match in matches if match})]


def job_and_rank(path: Path) -> tuple[str, int | None]:
    """Job and rank in a file's name ``JOB.RANK.et``; rank None where it has another form."""
    match = _NAMED.fullmatch(path.name)
    if match is None or int(match.group("rank")) > hub.MAX_RANK:
        return inputs.plain_name(path), None
    return match.group("job"), int(match.group("rank"))


def all_ranks_group(path: Path, groups: dict[str, list[int]]) -> str:
    """Name of the group of all ranks that have an ET next to this file; "" if there is none."""
    if not groups:
        return ""
    job, _ = job_and_rank(path)
    neighbours = map(job_and_rank, path.parent.iterdir())
    ranks = {rank for neighbour, rank in neighbours if neighbour == job} - {None}
    return next((name for name, members in groups.items() if {*members} == ranks), "")


def process_groups(paths: list[Path], issues: IssueLog) -> dict[str, list[int]]:
    """Read the ranks of process groups, by name; of several files the last one counts."""
    groups: dict[str, list[int]] = {}
    for path in paths:
        listed = _read_groups(path)
        differ = [name for name, ranks in listed.items() if groups.get(name, ranks) != ranks]
        issues.add(GROUPS_DIFFER, len(differ), f"{differ[:1]} of {path.name}")
        groups |= listed
    return groups


def parsed_groups(text: str | bytes) -> dict[str, list[int]]:
    """Parse the JSON of process groups.

    Raises
    ------
    ValueError, TypeError, AttributeError, OverflowError, RecursionError
        It is no object of lists of ranks; see `NOT_GROUPS`.
    """
    listed = json.loads(text)
    return {str(name): [int(rank) for rank in ranks] for name, ranks in listed.items()}


NOT_GROUPS = (ValueError, TypeError, AttributeError, OverflowError, RecursionError)
"""Errors of `parsed_groups`."""


def _read_groups(path: Path) -> dict[str, list[int]]:
    try:
        groups = parsed_groups(inputs.read(path).tobytes())
    except NOT_GROUPS as error:
        raise ReadError(f"it is no object of lists of ranks: {error}", path=path) from error
    invalid = [
        name for name, ranks in groups.items() if any(not 0 <= r <= hub.MAX_RANK for r in ranks)
    ]
    if invalid:
        raise ReadError(f"it is no object of lists of ranks: group {invalid[0]!r}", path=path)
    return groups

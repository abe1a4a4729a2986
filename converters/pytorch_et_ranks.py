"""Which rank a host execution trace is of, and which process groups it tells of."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import msgspec
import numpy as np

from chopper_interop.files import inputs
from chopper_interop.issues import Fault, Severity
from chopper_interop.schemas.meta import ASSUMED

if TYPE_CHECKING:
    from pathlib import Path

    from chopper_interop.columns.types import Array

RANK_ASSUMED = Fault(
    "et-rank-assumed",
    Severity.INFO,
    "Neither the execution trace nor its name says its rank, so 0 was assumed; beside a profile "
    "it goes by the process id.",
)

_MOST_RANKS = 1 << 20
_PROBES = 64
_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_AT_END = re.compile(r"(?:eg|et|trace|host|pytorch)[-_.](\d{1,7})$", re.IGNORECASE)
_GROUPS = "## process_group:init ##"
_COMMS = "record_param_comms"
_RANK_AT, _NAME_AT = 3, 4
_ALIKE = re.compile(r"_?(all|reduce_?scatter|barrier)", re.IGNORECASE)
"""Collectives that have no root: for others, the root stands where the own number does."""
_FIRST_GROUP = ("0", "default_pg")
"""Names of the group of all ranks."""


@dataclass
class Told:
    """What a trace tells of its job."""

    rank: tuple[int, str] = (0, ASSUMED)
    groups: list[dict[str, Any]] = field(default_factory=list)


def told(path: Path, texts: list[str], names: Array, text: Array, at: Array, length: Array) -> Told:
    """Rank and process groups, by what stands in the nodes, or in the file's name."""

    def arguments(name: str, most: int) -> list[dict[str, Any]]:
        number = texts.index(name) if name in texts else -2
        rows = np.flatnonzero(names == number)[:most]
        return [_decoded(text[at[i] : at[i] + length[i]]) for i in rows.tolist()]

    found = Told()
    for args in arguments(_GROUPS, _PROBES):
        found.groups += _groups(args)
    stated = [_rank(args) for args in arguments(_COMMS, _PROBES)]
    ranks = {rank for rank in stated if rank is not None}
    if len(ranks) == 1:
        found.rank = (ranks.pop(), "header")
        return found
    name = inputs.plain_name(path)
    named = _IN_NAME.search(name) or _AT_END.search(name)
    if named and int(named.group(1)) <= _MOST_RANKS:
        found.rank = (int(named.group(1)), "name")
    return found


def _decoded(raw: Array) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw.tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _groups(args: dict[str, Any]) -> list[dict[str, Any]]:
    """Process groups of a node that lists them as a text of JSON; no ranks means all."""
    values = args.get("Input Values")
    try:
        listed = msgspec.json.decode(values[0]) if isinstance(values, list) and values else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return []
    found = []
    for group in listed if isinstance(listed, list) else []:
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        ranks = [r for r in ranks if _is_rank(r)] if isinstance(ranks, list) else []
        size = group.get("group_size")
        if not ranks and _is_rank(size):
            ranks = list(range(size))
        found.append(
            {
                "name": str(group.get("pg_name", "")),
                "ranks": ranks,
                "description": str(group.get("pg_desc", "")),
                "backend": str(group.get("backend_config", "")),
            }
        )
    return found


def _is_rank(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _MOST_RANKS


def _rank(args: dict[str, Any]) -> int | None:
    """Global rank of who took part in a collective: its number in the group, and the group's."""
    values = args.get("Input Values")
    if not isinstance(values, list) or len(values) <= _NAME_AT:
        return None
    within, group = values[_RANK_AT], values[_RANK_AT - 1]
    name = values[_NAME_AT]
    if not _is_rank(within) or not isinstance(name, str) or not _ALIKE.match(name):
        return None
    start, stride = args.get("Global rank start"), args.get("Global rank stride")
    if _is_rank(start) and _is_rank(stride):
        return start + stride * within
    whole = isinstance(group, list) and tuple(group[:2]) == _FIRST_GROUP
    return within if whole else None

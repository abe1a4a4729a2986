"""Rank and process groups of a host execution trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.io import inputs
from chopper_interop.issues import Fault
from chopper_interop.schemas import hub
from chopper_interop.schemas.meta import ASSUMED

RANK_ASSUMED = Fault.info(
    "et-rank-assumed",
    "Neither the execution trace nor its name states its rank, so 0 was assumed; "
    "together with a profile it is matched by the process id.",
)

_MAX_NODES = 64
"""Nodes of each kind that are decoded; chosen: one process has one list of groups, and all its
collectives state one rank, so a few are enough to notice a contradiction."""
_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d{1,7})(?!\d)", re.IGNORECASE)
_AT_END = re.compile(r"(?:eg|et|trace|host|pytorch)[-_.](\d{1,7})$", re.IGNORECASE)
_FOLDER = re.compile(r"rank[-_.]?(\d{1,7})", re.IGNORECASE)
_GROUPS_NODE = "## process_group:init ##"
_COLLECTIVE_NODE = "record_param_comms"
_GROUP_INPUT, _RANK_INPUT, _NAME_INPUT = 2, 3, 4
"""Inputs of ``record_param_comms``: the group's name, the rank within it, the collective's name."""
_ROOTLESS = re.compile(r"_?(all|reduce_?scatter|barrier)", re.IGNORECASE)
"""Collectives without a root: others have the root where these have the own rank."""
_FIRST_GROUP = ("0", "default_pg")
"""Name and description of the group of all ranks."""


@dataclass
class JobFacts:
    """Rank and process groups that a trace states."""

    rank: tuple[int, str] = (0, ASSUMED)
    """The rank, and how it is known (`Rank.known_by`)."""
    groups: list[dict[str, Any]] = field(default_factory=list)
    """Arguments of `TraceBuilder.group`."""


def job_facts(
    path: Path, texts: list[str], names: Array, text: Array, at: Array, length: Array
) -> JobFacts:
    """Find rank and process groups, in the nodes or in the file's name.

    Parameters
    ----------
    path
        The file.
    texts
        Names by number.
    names
        Number of each node's name.
    text, at, length
        Arguments of the nodes, as one text and where each lies in it.
    """

    def arguments_of(name: str) -> list[dict[str, Any]]:
        number = texts.index(name) if name in texts else -2
        rows = np.flatnonzero(names == number)[:_MAX_NODES]
        return [_decode(text[at[i] : at[i] + length[i]]) for i in rows.tolist()]

    facts = JobFacts()
    for args in arguments_of(_GROUPS_NODE):
        facts.groups += _groups(args)
    stated = [_global_rank(args) for args in arguments_of(_COLLECTIVE_NODE)]
    ranks = {rank for rank in stated if rank is not None}
    if len(ranks) == 1:
        facts.rank = (ranks.pop(), "header")
        return facts
    name = inputs.plain_name(path)
    named = _IN_NAME.search(name) or _AT_END.search(name) or _FOLDER.fullmatch(path.parent.name)
    if named and int(named.group(1)) <= hub.MAX_RANK:
        facts.rank = (int(named.group(1)), "name")
    return facts


def _decode(raw: Array) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw.tobytes())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _groups(args: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the process groups in a node's text of JSON; a group without ranks has all of them."""
    values = args.get("Input Values")
    try:
        listed = msgspec.json.decode(values[0]) if isinstance(values, list) and values else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError):
        return []
    groups = []
    for group in listed if isinstance(listed, list) else []:
        if not isinstance(group, dict):
            continue
        ranks = group.get("ranks")
        ranks = [r for r in ranks if _is_rank(r)] if isinstance(ranks, list) else []
        size = group.get("group_size")
        if not ranks and _is_rank(size):
            ranks = list(range(size))
        groups.append(
            {
                "name": str(group.get("pg_name", "")),
                "ranks": ranks,
                "description": str(group.get("pg_desc", "")),
                "backend": str(group.get("backend_config", "")),
            }
        )
    return groups


def _is_rank(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= hub.MAX_RANK


def _global_rank(args: dict[str, Any]) -> int | None:
    """Return a collective participant's rank, by the number in its group; None if unknown."""
    values = args.get("Input Values")
    if not isinstance(values, list) or len(values) <= _NAME_INPUT:
        return None
    group, within, name = (values[i] for i in (_GROUP_INPUT, _RANK_INPUT, _NAME_INPUT))
    if not _is_rank(within) or not isinstance(name, str) or not _ROOTLESS.match(name):
        return None
    start, stride = args.get("Global rank start"), args.get("Global rank stride")
    if _is_rank(start) and _is_rank(stride):
        return start + stride * within
    of_all_ranks = isinstance(group, list) and tuple(group[:2]) == _FIRST_GROUP
    return within if of_all_ranks else None

"""Protobuf messages of Chakra ETs, in a pool of descriptors of their own.

A generated module would register its file in the pool of the process, where it collides with the
one of MLCommons' package.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from importlib.resources import files
from typing import Any

VERSION = "1.0.0"
"""Version of the schema, as `GlobalMetadata.version` states it."""


class NodeType(IntEnum):
    """Type of a node of an ET."""

    INVALID = 0
    METADATA = 1
    MEM_LOAD = 2
    MEM_STORE = 3
    COMP = 4
    COMM_SEND = 5
    COMM_RECV = 6
    COMM_COLL = 7


class CommType(IntEnum):
    """Kind of a collective in an ET (``comm_type``)."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Cause(IntEnum):
    """Reason why a node of an ET takes time, as the attribute ``cause`` names it."""

    WORK = 0
    """It is GPU work, or the first piece of a host operation."""
    HOST = 1
    """The host itself: the rest of an operation, or time between operations."""
    RETURN = 2
    """The least time until a host that waited goes on."""
    UNEXPLAINED = 3
    """Nothing that was recorded explains the time."""
    END = 4
    """The latency of the last launches, or no time: simulators must not end with a send or receive."""
    READY = 5
    """A message of a few bytes by which a receiver says that it waits, or its receive by the sender."""
    ENDED = 6
    """A message of a few bytes by which a member of a collective says that it ended there, or its receive."""
    BEGIN = 7
    """No time: simulators' networks must not begin with a message that takes none."""
    DONE = 8
    """A message of a few bytes by which the NPU of a stream says that work has ended."""
    LATENCY = 9
    """Time from when GPU work could begin until it began, as usual for launches and streams."""
    RELAYED = 10
    """A message of a few bytes that notifies what waits for a message of its end, or its receive; also the receive of
    data of which the other end was not recorded."""
    UNRECORDED = 11
    """Time until another rank answered, which did not record yet."""


CONTROL = (Cause.READY, Cause.ENDED, Cause.RELAYED)
"""Causes of nodes that are messages of a few bytes, of which no data are sent."""

CAUSE_NAMES: dict[Cause, str] = {
    Cause.HOST: "host",
    Cause.RETURN: "return of a wait",
    Cause.UNEXPLAINED: "unexplained delay",
    Cause.READY: "ready to receive",
    Cause.ENDED: "collective has ended",
    Cause.DONE: "work has ended",
    Cause.LATENCY: "latency of work",
    Cause.RELAYED: "message has ended",
    Cause.UNRECORDED: "unrecorded work",
    Cause.BEGIN: "begin",
    Cause.END: "end",
}
"""Names of nodes that are part of no operation, by their cause."""


@cache
def message_class(name: str) -> Any:
    """Return the class of a message: "Node", "GlobalMetadata", …"""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    raw = files("chopper_interop.schemas").joinpath("chakra_et.binpb").read_bytes()
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(raw).file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))

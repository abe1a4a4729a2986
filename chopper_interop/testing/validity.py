"""Check that a trace keeps the invariants of the hub's tables, and lost nothing of its sources."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chopper_interop import invariants
from chopper_interop.errors import SchemaError

if TYPE_CHECKING:
    from chopper_interop.trace import Trace


def check_trace(trace: Trace) -> None:
    """Raise `AssertionError`, with the row, if a trace violates an invariant of the hub.

    Checked are what `invariants.check` checks, and that every event of a source became a node or was counted.
    """
    try:
        invariants.check(trace)
    except SchemaError as error:
        raise AssertionError(str(error)) from error
    check_events(trace)


def check_events(trace: Trace) -> None:
    """Raise `AssertionError` unless every event of every source is a node or counted as an issue."""
    for source in trace.meta.sources:
        counted = sum(i.count for i in trace.meta.issues if i.events and i.source == source.path)
        if source.events != source.nodes + counted:
            raise AssertionError(
                f"{source.path}: {source.events} events are not {source.nodes} nodes + {counted} "
                "counted by issues with `events`"
            )
    paths = {source.path for source in trace.meta.sources}
    lost = [i for i in trace.meta.issues if i.events and i.source not in paths]
    if lost and paths:
        raise AssertionError(
            f"issue {lost[0].code} counts events of {lost[0].source!r}, which is no source"
        )

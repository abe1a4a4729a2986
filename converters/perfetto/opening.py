"""View of a trace when Perfetto's UI opens it: the time in view, and the groups that are unfolded.

The writer notes what the UI needs in one of the first packets, so that opening a trace of any size
does not read it. The commands are those that Perfetto documents as stable for automation.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from chopper_interop.converters.perfetto import chopper_metadata, packets_of_head

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

_NAME = "chopper opening"
_MARGIN = 50
"""Share of the time in view that is shown before and after it: one fiftieth."""
_WORKSPACE = "job"
_MODULES = ("kernels", "steps")
"""Files of ``sql/chopper``, which define views."""
_GPU_GROUPS = r"^GPU( \d+)?( \(.*\))?$"


@dataclass(frozen=True)
class Opening:
    """View of a trace when it is opened.

    Parameters
    ----------
    start_ns, end_ns
        Time in view, on the clock of the trace's packets.
    groups
        Names of the groups of tracks at the top, in order.
    unfolded
        Names of those that are unfolded.
    """

    start_ns: int
    end_ns: int
    groups: tuple[str, ...]
    unfolded: tuple[str, ...]

    def parameters(self, *, in_order: bool) -> dict[str, str]:
        """Return parameters of the UI's address.

        Parameters
        ----------
        in_order
            Bring the groups into order by a workspace, for versions before v57, which order
            processes by their number of slices.
        """
        margin = (self.end_ns - self.start_ns) // _MARGIN
        return {
            "visStart": str(max(self.start_ns - margin, 0)),
            "visEnd": str(self.end_ns + margin),
            "startupCommands": json.dumps(self._commands(in_order=in_order)),
        }

    def _commands(self, *, in_order: bool) -> list[dict[str, Any]]:
        commands = []
        if in_order:
            commands.append(_command("CreateWorkspace", _WORKSPACE))
            commands += [
                _command("CopyTracksToWorkspaceByRegex", _pattern(group), _WORKSPACE)
                for group in self.groups
            ]
            commands.append(_command("SwitchWorkspace", _WORKSPACE))
        unfold = [*map(_pattern, self.unfolded), _GPU_GROUPS]
        commands += [_command("ExpandTracksByRegex", pattern) for pattern in unfold]
        return commands + [_command("RunQuery", text) for text in sql_modules().values()]


def sql_modules() -> dict[str, str]:
    """Return the SQL modules for traces that our writer wrote, by their names, without comments."""
    folder = files("chopper_interop.converters.perfetto").joinpath("sql").joinpath("chopper")
    modules = {}
    for name in _MODULES:
        lines = folder.joinpath(f"{name}.sql").read_text("utf-8").splitlines()
        modules[f"chopper.{name}"] = " ".join(
            line.strip() for line in lines if line and not line.startswith("--")
        )
    return modules


def _command(name: str, *args: str) -> dict[str, Any]:
    return {"id": f"dev.perfetto.{name}", "args": list(args)}


def _pattern(group: str) -> str:
    """Pattern of the name of a group, to which the UI adds the number of a process."""
    escaped = re.sub(r"[.*+?^${}()|\[\]\\]", r"\\\g<0>", group)
    return rf"^{escaped}( \d+)?$"


def address(ui: str, parameters: dict[str, str]) -> str:
    """Return the address of the UI with parameters; what is after "#" stays in the browser."""
    query = "&".join(f"{name}={quote(value, safe='')}" for name, value in parameters.items())
    return f"{ui}/#!/?{query}"


def opening_packet(opening: Opening) -> proto.TracePacket:
    """Build the packet that notes how a trace is opened."""
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    packet = messages.TracePacket()
    packet.chrome_events.metadata.add(name=_NAME, json_value=json.dumps(asdict(opening)))
    return packet


def read_opening(head: bytes) -> Opening | None:
    """Read how a trace is opened from its first bytes; None if another program wrote it."""
    from google.protobuf.message import DecodeError
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as messages

    for raw in packets_of_head(head, chopper_metadata.PACKET):
        packet = messages.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        for entry in packet.chrome_events.metadata:
            if entry.name == _NAME:
                return _parsed(entry.json_value)
    return None


def _parsed(text: str) -> Opening | None:
    try:
        value = json.loads(text)
        return Opening(
            int(value["start_ns"]),
            int(value["end_ns"]),
            tuple(str(name) for name in value["groups"]),
            tuple(str(name) for name in value["unfolded"]),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None  # of a later version, or damaged: the trace is opened without it

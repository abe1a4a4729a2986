"""Metadata that our writer adds and our reader takes back: clock, groups, lanes, kinds of arrows, the view.

One packet at the end of the file holds it as JSON, in the list of names and values that Chrome
keeps of a trace (``ChromeEventBundle.metadata``); Perfetto shows it among a trace's metadata.
How the UI opens the trace stands in one of the first packets, so that it is known of a trace of any
size without reading it.
The names by which the reader recognises what else the writer draws are here, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import msgspec
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

from chopper_interop.clocks import relations as clocks
from chopper_interop.converters.perfetto import packets_of_head
from chopper_interop.schemas.kinds import EdgeKind, LaneKind
from chopper_interop.schemas.meta import ORDER, ClockFit, Device
from chopper_interop.trace import Trace

PACKET = 5
"""The field of a packet that holds the metadata, ``chrome_events``."""
COLUMNS_GROUP, COUNTERS_GROUP = "chopper", "counters"
"""Dictionaries of a slice's arguments that hold annotation columns and hardware counters."""
DERIVED_CATEGORY = "derived"
"""Category of slices that stand for no event of the input."""
DISPATCH_SOURCE = "hardware counters"
"""Group of the counter lanes that draw the hardware counters of kernels."""
RATES_SOURCE = "rates of kernels"
"""Group of the counter lanes that draw annotation columns of kernels."""
CONSTANT_SUFFIX = " (constant)"
"""End of the names of groups of counter lanes whose values never change."""
_NAME = "chopper"
_OPENING_NAME = "chopper opening"
_FIT_NAME = "clock of {}"
"""Name of a clock fit among the trace's metadata."""


@dataclass
class ChopperMetadata:
    """Metadata of a trace that our writer wrote; empty for other writers and older versions.

    Parameters
    ----------
    groups
        Rows of the groups table.
    lanes
        Uuid of a track → kind, device, number and name of its lane.
    uncertainty_ns
        Uuid of a counter's track → how well the times of its samples are known, ns.
    series
        Uuid of a counter's track → name of its series, where tracks of one name have numbers.
    ends
        Uuid of a counter's track → how many of its values are `NaN` to say that samples end.
    flows
        First id, number, `EdgeKind` and direction of arrows with consecutive ids: 1 where the
        slice that comes later is the one on which the other depends.
    clocks
        `Meta.clock` of each trace in the file: Perfetto has no words for times that no clock shows.
    fits
        How the clocks of ranks and sources were brought together.
    models
        Model of each GPU: what does not tell it from others of its number on other nodes.
    """

    groups: list[dict[str, Any]] = field(default_factory=list)
    lanes: dict[int, tuple[int, int, int, str]] = field(default_factory=dict)
    uncertainty_ns: dict[int, int] = field(default_factory=dict)
    series: dict[int, str] = field(default_factory=dict)
    ends: dict[int, int] = field(default_factory=dict)
    flows: list[tuple[int, int, int, int]] = field(default_factory=list)
    clocks: set[str] = field(default_factory=set)
    fits: list[ClockFit] = field(default_factory=list)
    models: list[Device] = field(default_factory=list)

    def model(self, number: int) -> Device:
        """Return the model of the GPUs of a number; nothing is known where they differ."""
        models = {model for model in self.models if model.device == number}
        return models.pop() if len(models) == 1 else Device("", number)

    def clock(self, shown: str) -> str:
        """Return the clock of the times, where the packets are on the clock `shown`.

        Of several traces that were put together, one without times makes that of all of them.
        """
        if ORDER in self.clocks:
            return ORDER
        return min(self.clocks) if len(self.clocks) == 1 else shown


@dataclass(frozen=True)
class Opening:
    """View of a trace when Perfetto's UI opens it.

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


class DrawnCounter(Protocol):
    """Entry of the metadata for a counter lane."""

    @property
    def name(self) -> str:
        """Name of its series."""

    @property
    def label(self) -> str:
        """Name of its track."""

    @property
    def uncertainty_ns(self) -> int:
        """Uncertainty of the times of its samples, ns."""


@dataclass(frozen=True)
class DrawnTracks:
    """Tracks of a written trace, by their uuids.

    Parameters
    ----------
    lanes
        Lanes that are drawn.
    counters
        Counter lanes that are drawn.
    ends
        How many marks on each counter lane say that its samples end.
    flows
        As in `ChopperMetadata`.
    """

    lanes: Mapping[int, dict[str, Any]]
    counters: Mapping[int, DrawnCounter]
    ends: Mapping[int, int]
    flows: list[tuple[int, int, int, int]]


def metadata_packet(trace: Trace, drawn: DrawnTracks) -> proto.TracePacket:
    """Build the packet of metadata."""
    counters = drawn.counters.items()
    content = {
        "clock": trace.meta.clock,
        "groups": trace.groups.to_pylist(),
        "lanes": {
            str(uuid): [int(lane["kind"]), lane["device"], lane["number"], lane["name"]]
            for uuid, lane in drawn.lanes.items()
        },
        "uncertainty_ns": {str(u): c.uncertainty_ns for u, c in counters if c.uncertainty_ns},
        "series": {str(uuid): c.name for uuid, c in counters if c.label != c.name},
        "ends": {str(uuid): n for uuid, n in drawn.ends.items() if n},
        "flows": drawn.flows,
        "clocks": msgspec.to_builtins(trace.meta.clocks),
        "models": msgspec.to_builtins(list(dict.fromkeys(map(_model, trace.meta.devices)))),
    }
    packet = proto.TracePacket()
    packet.chrome_events.metadata.add(name=_NAME, json_value=json.dumps(content))
    for fit in trace.meta.clocks:
        name = _FIT_NAME.format(fit.of)
        packet.chrome_events.metadata.add(name=name, string_value=clocks.fit_text(fit))
    return packet


def _model(device: Device) -> Device:
    """Return a GPU without the names that only it has."""
    return replace(device, host="", source="", ordinal=-1, agent=-1, index=-1, pci="", uuid="")


def parse_metadata(raws: Iterable[bytes]) -> ChopperMetadata:
    """Parse such packets; one that is damaged adds nothing."""
    from google.protobuf.message import DecodeError

    metadata = ChopperMetadata()
    for raw in raws:
        packet = proto.TracePacket()
        try:
            packet.ParseFromString(raw)
            for entry in packet.chrome_events.metadata:
                if entry.name == _NAME:
                    _add(metadata, json.loads(entry.json_value))
        except (DecodeError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            continue
        except RecursionError:  # nested deeper than anything that we write
            continue
    return metadata


def _add(metadata: ChopperMetadata, value: dict[str, Any]) -> None:
    """Add the metadata of one trace, all of it or, if any of it is wrong, nothing."""
    groups = [
        {
            "name": str(g["name"]),
            "description": str(g.get("description") or ""),
            "backend": str(g.get("backend") or ""),
            "ranks": [_int32(r) for r in g["ranks"]],
        }
        for g in value["groups"]
    ]
    lanes = {
        int(uuid): (int(LaneKind(kind)), _int32(device), int(number), str(name))
        for uuid, (kind, device, number, name) in value["lanes"].items()
    }
    uncertainty = {int(uuid): int(ns) for uuid, ns in value["uncertainty_ns"].items()}
    series = {int(uuid): str(name) for uuid, name in value.get("series", {}).items()}
    ends = {int(uuid): int(n) for uuid, n in value.get("ends", {}).items()}
    flows = [
        (int(first), int(n), int(EdgeKind(kind)), int(reverse))
        for first, n, kind, reverse in value.get("flows", ())
    ]
    numbers = (*uncertainty.values(), *(n for f in flows for n in f[:2]))
    if any(abs(n) >= 1 << 63 for n in (*numbers, *(lane[2] for lane in lanes.values()))):
        return
    models = [_model(m) for m in msgspec.convert(value.get("models", []), list[Device])]
    for model in models:
        for number in (model.device, model.xccs, model.cus, model.simds_per_cu, model.max_mhz):
            _int32(number)
    clock = value.get("clock")
    if isinstance(clock, str) and clock and clock.isprintable():
        metadata.clocks.add(clock)
    metadata.fits += clocks.from_json(value.get("clocks"))
    metadata.groups += groups
    metadata.lanes |= lanes
    metadata.uncertainty_ns |= uncertainty
    metadata.series |= series
    metadata.ends |= ends
    metadata.flows += flows
    metadata.models += models


def _int32(value: Any) -> int:
    number = int(value)
    if abs(number) >= 1 << 31:
        raise ValueError(value)
    return number


def opening_packet(opening: Opening) -> proto.TracePacket:
    """Build the packet that notes how a trace is opened."""
    packet = proto.TracePacket()
    packet.chrome_events.metadata.add(name=_OPENING_NAME, json_value=json.dumps(asdict(opening)))
    return packet


def read_opening(head: bytes) -> Opening | None:
    """Read how a trace is opened from its first bytes; None if another program wrote it."""
    from google.protobuf.message import DecodeError

    for raw in packets_of_head(head, PACKET):
        packet = proto.TracePacket()
        try:
            packet.ParseFromString(raw)
        except DecodeError:
            continue
        for entry in packet.chrome_events.metadata:
            if entry.name == _OPENING_NAME:
                return _parsed_opening(entry.json_value)
    return None


def _parsed_opening(text: str) -> Opening | None:
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

"""Field numbers of Perfetto's messages are those of its own descriptors."""

import pytest
from perfetto.protos.perfetto.trace import perfetto_trace_pb2

from chopper_interop.schemas import perfetto

MESSAGES = {
    "PACKET": "TracePacket",
    "DEFAULTS": "TracePacketDefaults",
    "SNAPSHOT": "ClockSnapshot",
    "CLOCK": "ClockSnapshot.Clock",
    "THREAD": "ThreadDescriptor",
    "EVENT": "TrackEvent",
    "LEGACY": "TrackEvent.LegacyEvent",
    "INTERNED": "InternedData",
    "ENTRY": "EventName",
    "ANNOTATION": "DebugAnnotation",
    "NESTED": "DebugAnnotation.NestedValue",
    "STAGE": "GpuRenderStageEvent",
    "COUNTERS": "GpuCounterEvent",
    "COUNTER": "GpuCounterEvent.GpuCounter",
}
VALUES = {"NESTED_DICT", "NESTED_ARRAY"}
FIELDS = [n for n in vars(perfetto) if n.split("_")[0] in MESSAGES and n not in VALUES]


@pytest.mark.parametrize("message", MESSAGES)
def test_fields_have_the_numbers_of_the_descriptor(message):
    descriptor = perfetto_trace_pb2
    for part in MESSAGES[message].split("."):
        descriptor = getattr(descriptor, part)
    stated = {n: getattr(perfetto, n) for n in FIELDS if n.startswith(f"{message}_")}
    fields = descriptor.DESCRIPTOR.fields_by_name
    assert stated
    for name, number in stated.items():
        assert fields[name.removeprefix(f"{message}_").lower()].number == number, name


def test_packets_and_types_of_nested_values():
    values = perfetto_trace_pb2.DebugAnnotation.NestedValue.NestedType
    assert (
        perfetto_trace_pb2.Trace.DESCRIPTOR.fields_by_name["packet"].number == perfetto.TRACE_PACKET
    )
    assert values.Value("DICT") == perfetto.NESTED_DICT
    assert values.Value("ARRAY") == perfetto.NESTED_ARRAY

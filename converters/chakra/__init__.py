"""Chakra ETs: one file a rank, which a simulator runs to the end and in the measured time.

Read by feeders of versions 1 and 3, whose demands differ (types of attributes, which dependencies
count); what is written here satisfies both. Plain files: the newer feeder reads no gzip.
"""

from __future__ import annotations

from chopper_interop.converters.chakra.files import group, sniff
from chopper_interop.registry import Converter

CHAKRA = Converter(
    name="chakra",
    description="Chakra execution traces, one a rank (MLCommons)",
    versions="written: chakra 1.0.0, for feeders 1 and 3 (ASTRA-sim 2); read: schemas 2022 to 1.0.0, "
    "gzip, jsonizer's output, workload_graph JSON",
    suffixes=(".et", "/"),
    sniff=sniff,
    group=group,
    read="chopper_interop.converters.chakra.reader:read",
    write="chopper_interop.converters.chakra.writer:write",
    usage="chopper_interop.converters.chakra.writer:usage",
    folder=True,
    derived=True,
    has_arguments=False,
    memory_ratio=3.1,
    carries="operations with exact times and dependencies, collectives with kind, size and group, "
    "sends paired with receives, counters and annotations as attributes",
)

"""Series and samples from the counter tracks of a Perfetto trace."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.converters.perfetto.chopper_metadata import (
    CONSTANT_SUFFIX,
    DISPATCH_SOURCE,
    RATES_SOURCE,
)
from chopper_interop.converters.perfetto.read import kinds
from chopper_interop.converters.perfetto.read.events_decode import COUNTER
from chopper_interop.converters.perfetto.read.tracks import Track
from chopper_interop.issues import Fault

if TYPE_CHECKING:
    from chopper_interop.build import TraceBuilder
    from chopper_interop.converters.perfetto.read.recording import DecodedPackets

AS_SAMPLES = Fault.info_of_events("counters-as-samples", "Values of counter tracks became samples.")
REDUNDANT = Fault.info_of_events(
    "counters-redundant",
    "Counter tracks that draw hardware counters or columns of slices again were not read twice.",
)
NOT_FINITE = Fault.loss_of_events(
    "counter-not-finite", "Values of counters that are no finite numbers were left out."
)
END_MARKS = Fault.info_of_events(
    "counter-ends", "Marks by which our writer ends the lanes of samples are no samples."
)
TRUNCATED = Fault.info(
    "counter-values-truncated",
    "rocprofv3 writes hardware counters to this format without their "
    "decimals; its CSV, JSON or rocpd has them.",
)
BYTES_ROUNDED = Fault.info(
    "counter-bytes-rounded", "rocprofv3 writes bytes that are copied and allocated in whole KiB."
)

_CHOPPER_GPU = re.compile(r"GPU (\d+)")
_ROUNDED = re.compile(r"(COPY BYTES to|ALLOCATE BYTES on|FREE BYTES|SCRATCH MEMORY on)")


@dataclass(frozen=True)
class CounterReader:
    """Makes series of the counter tracks of a trace.

    Parameters
    ----------
    recording
        The trace.
    tool
        Tool that wrote it.
    ranks
        Process id → rank.
    builder
        Builder of the trace that is read.
    """

    recording: DecodedPackets
    tool: str
    ranks: Mapping[int, int]
    builder: TraceBuilder

    def add_series(self, ts: Array, keep: Array) -> None:
        """Add the series of all counter tracks to the builder.

        Parameters
        ----------
        ts, keep
            Times of all events on the trace's clock, and the mask of the events that have one.
        """
        events, lists = self.recording.events, self.recording.lists
        rows = np.flatnonzero((events.type == COUNTER) & keep)
        bits = events.number[rows]
        value = np.where(events.real[rows], bits.view(np.float64), bits.astype(np.float64))
        extra = np.flatnonzero(keep[lists.counter_event])
        uuid = np.concatenate([events.track[rows], lists.counter_track[extra]])
        time = np.concatenate([ts[rows], ts[lists.counter_event[extra]]])
        value = np.concatenate([value, lists.counter_value[extra]])
        order = np.lexsort((time, uuid))
        uuid, time, value = uuid[order], time[order], value[order]
        bounds = np.flatnonzero(np.append(uuid[1:] != uuid[:-1], True)) + 1
        start = 0
        for stop in bounds.tolist() if len(uuid) else []:
            self._add_track(int(uuid[start]), time[start:stop], value[start:stop])
            start = stop

    def _add_track(self, uuid: int, ts: Array, value: Array) -> None:
        issues, from_chopper = self.recording.issues, self.recording.from_chopper
        ancestry = self.recording.tracks.ancestry(uuid)
        track = ancestry[0] if ancestry else Track(name=f"track {uuid}")
        parents = [t.name for t in ancestry[1:] if t.name]
        if from_chopper and parents and parents[0] in (DISPATCH_SOURCE, RATES_SOURCE):
            issues.add(REDUNDANT, len(ts))
            return
        if track.incremental:
            value = np.cumsum(value)
        value = value * track.multiplier
        finite = np.isfinite(value)
        lost = int(np.count_nonzero(~finite))
        ends = min(max(self.recording.metadata.ends.get(uuid, 0), 0), lost)
        issues.add(END_MARKS, ends)
        issues.add(NOT_FINITE, lost - ends, track.name)
        issues.add(AS_SAMPLES, np.count_nonzero(finite))
        if kinds.TRUNCATED_COUNTER.match(track.name):
            issues.add(TRUNCATED, 1, track.name)
        if self.tool == kinds.ROCPROF and _ROUNDED.match(track.name):
            issues.add(BYTES_ROUNDED, 1, track.name)
        by_group = from_chopper and parents
        row = self.builder.series(
            self._rank(uuid),
            self.recording.metadata.series.get(uuid, track.name),
            track.unit,
            parents[0].removesuffix(CONSTANT_SUFFIX) if by_group else self.tool,
            device=_device(track.name, parents),
            uncertainty_ns=self.recording.metadata.uncertainty_ns.get(uuid, 0),
        )
        self.builder.samples(row, ts[finite], value[finite])

    def _rank(self, uuid: int) -> int:
        """Return the rank of a track's process, else the only rank, else -1."""
        tracks = self.recording.tracks
        pid = tracks.process_of(uuid)
        if pid in self.ranks:
            return self.ranks[pid]
        if self.recording.from_chopper:
            return -1  # the host's
        known = set(self.ranks.values()) - {-1}
        return known.pop() if len(known) == 1 and pid not in tracks.processes else -1


def _device(name: str, parents: list[str]) -> int:
    """Return the GPU in the name of a counter's track or of the groups around it; -1 without one."""
    if kinds.COUNTER_OF_HOST.search(name):
        return -1
    for text in (*parents, name):
        match = _CHOPPER_GPU.match(text) if text != name else kinds.COUNTER_DEVICE.search(text)
        if match:
            return int(next(filter(None, match.groups())))
    return -1

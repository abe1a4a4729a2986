"""A trace as text, for golden files and for comparison by eye."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.clocks import relations
from chopper_interop.grouping import grouped
from chopper_interop.io.json_events import TEXT_ID
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import EdgeKind, Kind, LaneKind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Meta

_CORE = {column.name for column in hub.NODES}
NUMBERED_FROM = TEXT_ID + (1 << 32)
"""Numbers of lanes below this were made up by a reader, as the source has names only."""


def dump(trace: Trace) -> str:
    """Render a complete trace as text that depends on its content only.

    Parameters
    ----------
    trace
        Any trace; meant for small ones.

    Returns
    -------
    str
        A section for each table, its lines sorted, names instead of codes, times in nanoseconds
        since the trace's origin. A node is called ``rank.number``, where the number is its
        position among the nodes of its rank; equal starts and durations are ordered by lane, kind,
        name and the rest, so that the order in which a reader added them does not show. Of paths
        only the last part is shown.

    Notes
    -----
    The order of rows that has no meaning (edges, counters, equal nodes) does not show, nor do
    columns without values.
    """
    text = _TraceText(trace)
    sections = {
        f"trace {_quoted(trace.meta.job)}": _meta_lines(trace.meta),
        "lanes": sorted(text.lanes),
        "groups": text.groups(),
        "nodes": text.nodes(),
        "edges": text.edges(),
        "counters": text.counters(),
        "series": text.samples(),
    }
    lines = []
    for title, content in sections.items():
        body = list(content)
        if body:
            lines += [title, *(f"  {line}" for line in body)]
    return "\n".join(lines) + "\n"


class _TraceText:
    """Lines of each table of a trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.lanes = [_lane_text(row) for row in trace.lanes.to_pylist()]
        self.group_names = [_group_text(row) for row in trace.groups.to_pylist()]
        self.bodies = list(self._bodies())
        self.order = self._order()
        self.labels = self._labels()

    def _bodies(self) -> Iterator[str]:
        """Yield the text of each node without its label and parent."""
        columns = self.trace.nodes.drop_columns(["args_at", "args_len", "parent"]).to_pydict()
        extra = [name for name in columns if name not in _CORE]
        lengths = self.trace.array("args_len").tolist()
        for row in range(self.trace.nodes.num_rows):
            kind = _kind_name(Kind, columns["kind"][row])
            parts = [f"{kind} {_quoted(columns['name'][row])} on {self._lane(columns, row)}"]
            if columns["correlation"][row] != -1:
                parts.append(f"correlation={columns['correlation'][row]}")
            parts += [
                f"{name}={self._value(name, columns[name][row])}"
                for name in sorted(extra)
                if columns[name][row] is not None
            ]
            args = self.trace.args(row)
            if args:
                parts.append(f"args={json.dumps(args, sort_keys=True, ensure_ascii=False)}")
            elif lengths[row] > len("{}"):
                parts.append(f"args of {lengths[row]} bytes that are not a JSON object")
            yield " ".join(parts)

    def _lane(self, columns: dict[str, list[Any]], row: int) -> str:
        lane = columns["lane"][row]
        return self.lanes[lane] if 0 <= lane < len(self.lanes) else f"lane {lane}?"

    def _value(self, name: str, value: Any) -> str:
        if name == "group" and 0 <= value < len(self.group_names):
            return self.group_names[value]
        return _quoted(value) if isinstance(value, str) else str(value)

    def _order(self) -> list[int]:
        """Order rows by time, and equal times by their text."""
        rank, ts, dur = (self.trace.array(c).tolist() for c in ("rank", "ts", "dur"))
        rows = range(len(ts))
        return sorted(rows, key=lambda i: (rank[i], ts[i], -dur[i], self.bodies[i]))

    def _labels(self) -> list[str]:
        """Label of each row: its rank and its position among that rank's rows."""
        rank = self.trace.array("rank").tolist()
        labels, count = [""] * len(rank), dict.fromkeys(rank, 0)
        for row in self.order:
            labels[row] = f"{rank[row]}.{count[rank[row]]}"
            count[rank[row]] += 1
        return labels

    def _label(self, row: int) -> str:
        return self.labels[row] if 0 <= row < len(self.labels) else f"node {row}?"

    def nodes(self) -> Iterator[str]:
        """Yield one line for each node."""
        ts, dur, parent = (self.trace.array(c).tolist() for c in ("ts", "dur", "parent"))
        for row in self.order:
            within = f" in {self._label(parent[row])}" if parent[row] != -1 else ""
            yield f"{self.labels[row]} at {ts[row]}+{dur[row]}{within}: {self.bodies[row]}"

    def edges(self) -> list[str]:
        """Return one line for each edge."""
        rows = self.trace.edges.to_pylist()
        return sorted(
            f"{_kind_name(EdgeKind, e['kind'])} {self._label(e['src'])} → {self._label(e['dst'])}"
            for e in rows
        )

    def counters(self) -> list[str]:
        """Return one line for each counter of a node."""
        rows = self.trace.counters.to_pylist()
        return sorted(
            f"{self._label(c['node'])} {_quoted(c['name'])} = {c['value']!r}" for c in rows
        )

    def groups(self) -> list[str]:
        """Return one line for each process group."""
        rows = self.trace.groups.to_pylist()
        return sorted(
            f"{_group_text(g)} {_quoted(g['description'])} backend {_quoted(g['backend'])}"
            for g in rows
        )

    def samples(self) -> Iterator[str]:
        """Yield a line for each series, and one for each of its samples."""
        owner, ts, value = (self.trace.array(c, "samples") for c in ("series", "ts", "value"))
        at = zip(ts.tolist(), value.tolist(), strict=True)
        points = grouped(zip(owner.tolist(), at, strict=True))
        series = [_series_text(row) for row in self.trace.series.to_pylist()]
        for row in sorted(range(len(series)), key=series.__getitem__):
            yield series[row]
            yield from (f"  at {t}: {v!r}" for t, v in sorted(points.get(row, [])))
        for k in np.flatnonzero(~np.isin(owner, range(len(series)))):
            yield f"series {owner[k]}?: at {ts[k]}: {value[k].item()!r}"


def _meta_lines(meta: Meta) -> Iterator[str]:
    """Yield lines for the metadata, without the folders of the source files."""
    plain = _folder_remover(meta)
    yield f"origin {meta.origin_ns} ns, clock {meta.clock}{f', run {meta.run}' * bool(meta.run)}"
    for offset in meta.offsets:
        yield f"clock {offset.clock} is {offset.offset_ns} ± {offset.uncertainty_ns} ns behind"
    for fit in meta.clocks:
        short = replace(fit, of=PurePath(fit.of).name, reason=plain(fit.reason))
        yield f"clock of {_quoted(short.of)}: {relations.fit_text(short)}, pivot {fit.pivot_ns}"
    for rank in meta.ranks:
        yield (
            f"rank {rank.rank}: host {_quoted(rank.host)}, pid {rank.pid}, device {rank.device}, "
            f"known by {rank.known_by}"
        )
    for device in meta.devices:
        yield (
            f"device {device.device}: {_quoted(device.name)} on {_quoted(device.host)} by "
            f"{device.source or 'nobody'}, ordinal {device.ordinal}, agent {device.agent}, index "
            f"{device.index}, PCI {_quoted(device.pci)}, UUID {_quoted(device.uuid)}"
        )
    for match in meta.device_matches:
        yield (
            f"device {match.number} of {_quoted(PurePath(match.source).name)} is {match.device} of "
            f"rank {match.rank}, known by {match.known_by}"
        )
    yield from sorted(
        f"source {_quoted(PurePath(s.path).name)}: {s.format}, tool {_quoted(s.tool)}, "
        f"{s.events} events, {s.nodes} nodes"
        for s in meta.sources
    )
    yield from sorted(
        f"{i.severity.value} {i.code}: {i.count}{' events' * i.events} in "
        f"{_quoted(PurePath(i.source).name)}, example {_quoted(plain(i.example))}"
        for i in meta.issues
    )
    yield from (f"fact {name}: {_quoted(plain(v))}" for name, v in sorted(meta.facts.items()))


def _folder_remover(meta: Meta) -> Callable[[str], str]:
    """Return a function that removes the folders of the sources from a text."""
    folders = {str(PurePath(s.path).parent) for s in meta.sources} - {".", "/"}
    longest_first = sorted(folders, key=lambda folder: (-len(folder), folder))

    def plain(text: str) -> str:
        for folder in longest_first:
            text = text.replace(f"{folder}/", "").replace(f"{folder}\\", "")
        return text

    return plain


def _lane_text(row: dict[str, Any]) -> str:
    device = f" device {row['device']}" if row["device"] != -1 else ""
    number = "" if row["number"] < NUMBERED_FROM else f" {row['number']}"
    kind = _kind_name(LaneKind, row["kind"])
    return f"{{rank {row['rank']}{device} {kind}{number} {_quoted(row['name'])}}}"


def _group_text(row: dict[str, Any]) -> str:
    return f"{_quoted(row['name'])}{row['ranks']}"


def _series_text(row: dict[str, Any]) -> str:
    device = f" device {row['device']}" if row["device"] != -1 else ""
    return (
        f"rank {row['rank']}{device} {_quoted(row['name'])} in {_quoted(row['unit'])} by "
        f"{_quoted(row['source'])} ± {row['uncertainty_ns']} ns"
    )


def _kind_name(kinds: Any, number: int) -> str:
    try:
        return str(kinds(number).name.lower())
    except ValueError:
        return f"kind {number}?"


def _quoted(text: Any) -> str:
    return json.dumps(text, ensure_ascii=False)

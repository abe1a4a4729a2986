"""A demo job on disk, its files read by plain Python, and a replay built from these alone."""

from __future__ import annotations

import csv
import gzip
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pytest

from chopper_interop.demo import make_demo

if TYPE_CHECKING:
    from pathlib import Path

SMALL = {"ranks": 3, "layers": 2, "steps": 2, "sequence": 512, "straggler": 1}
Event = dict[str, Any]


def nanoseconds(text: str) -> int:
    """Whole nanoseconds of a number of microseconds with three decimals."""
    integer, _, decimals = text.partition(".")
    assert len(decimals) == 3, text
    return int(integer) * 1000 + int(decimals)


@dataclass(frozen=True)
class Launch:
    """A GPU operation and what the file says of its launch."""

    correlation: int
    stream: int
    call: Event
    event: Event
    waits_for: int
    collective: str

    @property
    def copies(self) -> bool:
        return self.event["cat"] == "gpu_memcpy"


class Rank:
    """One Kineto file; times are unix nanoseconds in `start` and `end`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = gzip.decompress(path.read_bytes()).decode()
        self.content = json.loads(self.text, parse_float=str)
        self.rank = self.content["distributedInfo"]["rank"]
        base = self.content["baseTimeNanoseconds"]
        self.events: list[Event] = self.content["traceEvents"]
        for event in self.events:
            if event["ph"] in "Xi":
                event["start"] = base + nanoseconds(event["ts"])
                event["end"] = event["start"] + nanoseconds(event.get("dur", "0.000"))

    def of(self, *categories: str) -> list[Event]:
        return [e for e in self.events if e["ph"] == "X" and e.get("cat") in categories]

    @cached_property
    def host(self) -> list[Event]:
        """Operators, annotations and calls within the steps, parents before children."""
        result = self.of("cpu_op", "user_annotation", "cuda_runtime")
        result = [e for e in result if e["name"] != "hipDeviceSynchronize"]
        return sorted(result, key=lambda e: (e["start"], -e["end"]))

    @cached_property
    def steps(self) -> dict[int, Event]:
        result = {}
        for event in self.of("user_annotation"):
            if match := re.fullmatch(r"ProfilerStep#(\d+)", event["name"]):
                result[int(match[1])] = event
        return result

    def step_of(self, event: Event) -> int:
        (step,) = (n for n, s in self.steps.items() if s["start"] <= event["start"] <= s["end"])
        return step

    @cached_property
    def around(self) -> dict[int, list[Event]]:
        """By identity of a host event, those around it on its thread, outermost first."""
        stacks: dict[int, list[Event]] = {}
        result = {}
        for event in self.host:
            stack = stacks.setdefault(event["tid"], [])
            while stack and stack[-1]["end"] < event["end"]:
                stack.pop()
            result[id(event)] = list(stack)
            stack.append(event)
        return result

    @cached_property
    def launches(self) -> list[Launch]:
        """GPU operations in the order of their calls, with the waits that the calls' places tell."""
        gpu = {e["args"]["correlation"]: e for e in self.of("kernel", "gpu_memcpy", "gpu_memset")}
        last, pending = {0: -1, 4: -1}, {0: -1, 4: -1}
        gathered: dict[str, int] = {}
        result = []
        for event in self.host:
            if event["cat"] != "cuda_runtime":
                continue
            around = self.around[id(event)]
            if event["name"] == "hipStreamWaitEvent":
                stream, target = self._wait(around, last, gathered)
                pending[stream] = target
            correlation = event["args"]["correlation"]
            if correlation in gpu:
                stream = gpu[correlation]["args"]["stream"]
                name = self._collective(around) if stream else ""
                result.append(
                    Launch(correlation, stream, event, gpu[correlation], pending[stream], name)
                )
                last[stream], pending[stream] = correlation, -1
                for outer in around:
                    match = re.fullmatch(r"FSDP::all_gather( \(.*\))?", outer["name"])
                    if match and stream:
                        gathered[match[1] or ""] = correlation
        return result

    def _wait(
        self, around: list[Event], last: dict[int, int], gathered: dict[str, int]
    ) -> tuple[int, int]:
        """Stream that waits, and the operation: named by the operator around the call."""
        if self._collective(around) not in ("", "wait"):
            return 4, last[0]
        for outer in around:
            if match := re.fullmatch(r"FSDP::all_gather_copy_out( \(.*\))?", outer["name"]):
                return 0, gathered[match[1] or ""]
        return 0, last[4]

    @staticmethod
    def _collective(around: list[Event]) -> str:
        names = [e["args"]["Collective name"] for e in around if e["name"] == "record_param_comms"]
        return names[-1] if names else ""


@dataclass
class Replay:
    """The dependency graph of all ranks from the files, run again with given durations.

    Every rank's host is one chain of instants; the autograd thread runs while the main one waits.
    """

    ranks: list[Rank]
    constants: dict[str, int]
    gpu: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    host: dict[tuple[int, int], int] = field(default_factory=dict)
    cause: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)

    def instants(self, rank: Rank) -> list[tuple[int, int, Event]]:
        """Instants (time, 0 begin or 1 end, event) of a rank in order."""
        result = []
        for place, event in enumerate(rank.host):
            result.append((event["start"], 0, place, event))
            result.append((event["end"], 1, -place, event))
        result.sort(key=lambda row: row[:3])
        return [(time, end, event) for time, end, _, event in result]

    def run(self, duration: dict[tuple[int, int], int], transfer: dict[int, int]) -> Replay:
        """Times with durations by (rank, correlation), and transfers by place among collectives."""
        chains = [self.instants(rank) for rank in self.ranks]
        launches = [{x.correlation: x for x in rank.launches} for rank in self.ranks]
        tails = [{0: -1, 4: -1} for _ in self.ranks]
        count, met = len(chains[0]), 0
        assert all(len(chain) == count for chain in chains)
        for i in range(count):
            members = []
            for r, chain in enumerate(chains):
                end, event = chain[i][1:]
                self._instant(r, chain, i)
                launch = launches[r].get(event["args"].get("correlation", -1))
                if launch and end == (not launch.copies):
                    self._start(r, launch, tails[r])
                    if launch.collective:
                        members.append((r, launch.correlation))
                    else:
                        key = (r, launch.correlation)
                        self.gpu[key] = (self.gpu[key][0], self.gpu[key][0] + duration[key])
            if members:
                begin = max(self.gpu[key][0] for key in members)
                for key in members:
                    self.gpu[key] = (self.gpu[key][0], begin + transfer[met])
                met += 1
        return self

    def _instant(self, r: int, chain: list[tuple[int, int, Event]], i: int) -> None:
        time, end, event = chain[i]
        before = self.host[r, i - 1] if i else time
        cost = time - chain[i - 1][0] if i else 0
        if end and event["name"] in ("hipMemcpyWithStream", "hipStreamSynchronize"):
            done = max(
                e for (rank, c), (_, e) in self.gpu.items() if rank == r and self._compute(c, r)
            )
            bound = done + self.constants["sync_latency_ns"]
            measured = self._measured_done(r, time) + self.constants["sync_latency_ns"] == time
            self.host[r, i] = max(bound, before + (0 if measured else cost))
        else:
            self.host[r, i] = before + cost
        if end or event["cat"] == "cuda_runtime":
            self.host[r, -2 * id(event) - end] = self.host[r, i]

    def _compute(self, correlation: int, r: int) -> bool:
        return self.streams[r][correlation] == 0

    @cached_property
    def streams(self) -> list[dict[int, int]]:
        return [{x.correlation: x.stream for x in rank.launches} for rank in self.ranks]

    @cached_property
    def _ends(self) -> list[list[int]]:
        return [
            sorted(x.event["end"] for x in rank.launches if x.stream == 0) for rank in self.ranks
        ]

    def _measured_done(self, r: int, time: int) -> int:
        return max((end for end in self._ends[r] if end <= time), default=0)

    def _start(self, r: int, launch: Launch, tail: dict[int, int]) -> None:
        called = self.host[r, -2 * id(launch.call) - (not launch.copies)]
        options = [("launch", launch.correlation, called + self.constants["launch_latency_ns"])]
        if launch.waits_for >= 0:
            end = self.gpu[r, launch.waits_for][1]
            options.append(("event", launch.waits_for, end + self.constants["event_latency_ns"]))
        if tail[launch.stream] >= 0:
            end = self.gpu[r, tail[launch.stream]][1]
            options.append(("stream", tail[launch.stream], end))
        kind, source, start = max(options, key=lambda o: (o[2], options.index(o)))
        self.gpu[r, launch.correlation] = (start, -1)
        self.cause[r, launch.correlation] = (kind, source)
        tail[launch.stream] = launch.correlation


class Demo:
    """A demo on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.truth = json.loads((path / "truth.json").read_text())
        files = sorted((path / "kineto").iterdir())
        self.ranks = [Rank(file) for file in files]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Rows of a table of the truth."""
        columns = self.truth[table]
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def replay(self) -> Replay:
        return Replay(self.ranks, self.truth["constants"])

    def counters(self, number: int, rank: int, kind: str) -> list[dict[str, str]]:
        """Rows of a CSV of a counter run."""
        files = sorted((self.path / "rocprof" / f"pmc_{number}").glob(f"*/*_{kind}.csv"))
        with files[rank].open(newline="") as file:
            return list(csv.DictReader(file))


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    return Demo(make_demo(tmp_path_factory.mktemp("demo") / "job", **SMALL))


@pytest.fixture(scope="session")
def read_demo() -> type[Demo]:
    return Demo

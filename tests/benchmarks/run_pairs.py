"""How often other programs are taken for one run, and one run for two.

Every file is a run of the program that its label names. For each pair of files of different labels one
is given as the counter pass, and as a simultaneous recording, of the other: any match is wrong. Each
file is also made a pass and a recording of itself (`remade`): any refusal is wrong. Usage:
``python tests/benchmarks/run_pairs.py [--seed FIRST] LABEL=FILE…``. Prints both rates with their bounds at
95 %, and what was wrong. A label that ends in ``*`` is of no program: its pairs with the same label are left out.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from dataclasses import replace
from itertools import permutations
from math import comb
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

import chopper_interop as ci
from chopper_interop.annotate.counters.join_passes import match_pass
from chopper_interop.arrays import arrow
from chopper_interop.arrays.gather import is_any
from chopper_interop.build import TraceBuilder
from chopper_interop.clocks import match as clock_match
from chopper_interop.errors import ChopperError
from chopper_interop.gpus import devices
from chopper_interop.issues import IssueLog
from chopper_interop.joining import process_match
from chopper_interop.schemas.kinds import GPU_WORK, Kind, LaneKind

if TYPE_CHECKING:
    from chopper_interop.trace import Trace

_MIN_KERNELS = 24
"""Files with fewer are left out: they prove nothing, and both decisions refuse them."""
_LOST, _NOISE_NS, _PPM = 0.03, 300, 20
"""Differences of tools: kernels dropped, starts of one kernel, drift of their clocks."""
_SEEDS = 3


class RunFile(NamedTuple):
    """One rank of a run."""

    label: str
    path: str
    trace: Trace


def read(arguments: list[str]) -> list[RunFile]:
    """The first rank with enough kernels of each file, if it can be read."""
    runs = []
    for argument in arguments:
        label, _, path = argument.partition("=")
        try:
            trace = ci.read(*path.split(","))
        except ChopperError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
        if len(kernels) < _MIN_KERNELS:
            print(f"left out: {path}: {len(kernels)} kernels", file=sys.stderr)
            continue
        runs.append(RunFile(label, path, gpu_work(trace, int(trace.array("rank")[kernels[0]]))))
    return runs


def gpu_work(trace: Trace, rank: int) -> Trace:
    """GPU work of the device of a rank that has most of it, with its arguments."""
    work = is_any(trace.array("kind"), GPU_WORK) & (trace.array("rank") == rank)
    device = trace.array("device", "lanes")[trace.array("lane")]
    kernels = device[work & (trace.array("kind") == Kind.KERNEL)]
    values, counts = np.unique(kernels, return_counts=True)
    rows = np.flatnonzero(work & (device == values[counts.argmax()]))
    return changed(trace, rows, trace.array("ts")[rows], trace.array("dur")[rows], counted=False)


def changed(
    trace: Trace, rows: np.ndarray, ts: np.ndarray, dur: np.ndarray, *, counted: bool
) -> Trace:
    """Some rows of a trace at other times, on one stream if they were counted one by one."""
    builder = TraceBuilder(replace(trace.meta, origin_ns=0))
    lane = trace.array("lane")[rows]
    device, stream = (trace.array(c, "lanes")[lane] for c in ("device", "number"))
    lanes = [
        builder.lane(0, LaneKind.STREAM, 0 if counted else int(s), "s", int(d))
        for s, d in zip(stream, device, strict=True)
    ]
    length = trace.array("args_len")[rows]
    text, at = trace.text.block(trace.array("args_at")[rows], length)
    first = builder.nodes(
        kind=trace.array("kind")[rows],
        name=arrow.take(trace.nodes.select(["name"]), rows)["name"],
        rank=0,
        lane=np.array(lanes),
        ts=ts,
        dur=dur,
        correlation=trace.array("correlation")[rows],
        args=(at + builder.text(text), length),
    )
    if counted:
        builder.counters(np.arange(first, first + len(rows)), "C", np.ones(len(rows)))
    return builder.finish()


def counter_pass(trace: Trace, seed: int) -> Trace:
    """Another execution in which kernels ran one by one, some longer, and some were lost."""
    random = np.random.default_rng(seed)
    kernels = np.flatnonzero(trace.array("kind") == Kind.KERNEL)
    rows = kernels[random.random(len(kernels)) >= _LOST]
    dur = np.rint(trace.array("dur")[rows] * random.lognormal(0.05, 0.1, len(rows)))
    gap = random.integers(2_000, 40_000, len(rows))
    return changed(
        trace, rows, np.cumsum(dur + gap).astype(np.int64), dur.astype(np.int64), counted=True
    )


def recording(trace: Trace, seed: int) -> Trace:
    """The same execution by another tool: its own clock, ids and losses."""
    random = np.random.default_rng(seed)
    rows = np.flatnonzero(random.random(trace.nodes.num_rows) >= _LOST)
    ts = trace.array("ts")[rows]
    noise = random.integers(-_NOISE_NS, _NOISE_NS + 1, len(rows))
    moved = ts + np.rint(ts * (_PPM / 1e6)).astype(np.int64) + 10**15 + noise
    other = changed(trace, rows, moved, trace.array("dur")[rows], counted=False)
    none = np.full(len(rows), -1, np.int64)
    return replace(other, nodes=arrow.replace_column(other.nodes, "correlation", none))


def is_pass(timing: Trace, run: Trace) -> bool:
    """True if a run is taken for a counter pass of another."""
    (of_timing,), (of_run,) = (devices.devices_with_work(t) for t in (timing, run))
    return not match_pass(timing, run, {of_run: of_timing}, IssueLog()).doubt


def is_recording(timing: Trace, run: Trace) -> bool:
    """True if a run is taken for a recording of the same execution."""
    rows = [np.arange(t.nodes.num_rows) for t in (timing, run)]
    codes = process_match.NameCodes()
    works = (codes.work(t, row) for t, row in zip((timing, run), rows, strict=True))
    return clock_match.match_work(*works) is not None


def bound(wrong: int, count: int) -> str:
    """A rate with its exact upper bound (Clopper and Pearson) at 95 %, found by bisection."""
    low, upper = 0.0, 1.0
    for _ in range(50):
        p = (low + upper) / 2
        few = sum(comb(count, k) * p**k * (1 - p) ** (count - k) for k in range(wrong + 1))
        low, upper = (p, upper) if few > 0.05 else (low, p)  # 95 %
    return f"{wrong} of {count:,} ({wrong / max(count, 1):.2%}, at most {upper:.2%})"


class Tally:
    """Decisions of each kind, and the wrong ones."""

    def __init__(self) -> None:
        self.count: dict[str, int] = defaultdict(int)
        self.wrong: dict[str, list[str]] = defaultdict(list)

    def add(self, kind: str, what: str, *, right: bool) -> None:
        """Count a decision."""
        self.count[kind] += 1
        if not right:
            self.wrong[kind].append(what)

    def show(self) -> None:
        """Print the rates, and what was wrong."""
        for kind in sorted(self.count):
            print(f"wrong: {kind}: {bound(len(self.wrong[kind]), self.count[kind])}")
            for what in self.wrong[kind]:
                print(f"    {what}")


def judge_pairs(runs: list[RunFile], tally: Tally) -> None:
    """Judge all pairs of files; whether two of one label recorded one execution is not known."""
    for a, b in permutations(runs, 2):
        pair = f"{a.path} with {b.path}"
        if a.label != b.label:
            tally.add("pass, other programs", pair, right=not is_pass(a.trace, b.trace))
            tally.add("recording, other programs", pair, right=not is_recording(a.trace, b.trace))
        elif not a.label.endswith("*"):
            tally.add("pass, the same program", pair, right=is_pass(a.trace, b.trace))


def judge_remade(runs: list[RunFile], first: int, tally: Tally) -> None:
    """Judge each file with passes and recordings that were made of it, by seeds from the first on."""
    for run in runs:
        for seed in range(first, first + _SEEDS):
            made = f"{run.path}, seed {seed}"
            passed = is_pass(run.trace, counter_pass(run.trace, seed))
            tally.add("pass, remade", made, right=passed)
            recorded = is_recording(run.trace, recording(run.trace, seed))
            tally.add("recording, remade", made, right=recorded)


def main(arguments: list[str]) -> None:
    """Print the rates of both decisions."""
    first = 0
    if arguments[:1] == ["--seed"]:
        first, arguments = int(arguments[1]), arguments[2:]
    runs, tally = read(arguments), Tally()
    judge_pairs(runs, tally)
    judge_remade(runs, first, tally)
    print(f"{len(runs)} files of {len({r.label for r in runs})} programs")
    tally.show()


if __name__ == "__main__":
    main(sys.argv[1:])

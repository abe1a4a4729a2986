"""A discrete-event simulation of programs.

Host threads and streams are processes. A process yields how long it takes, in nanoseconds, or the
`_Signal` that it waits for, and is resumed then.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from programs import program as p

if TYPE_CHECKING:
    from collections.abc import Generator

    Process = Generator["int | _Signal", None, None]


@dataclass
class Run:
    """Events of a simulation.

    Parameters
    ----------
    slices
        All that was done, in order of its start.
    since_ns
        When the recording of each rank begins: at the start of its first recorded step.
    begun_ns
        When each instruction of a host began.
    """

    program: p.Program
    slices: list[p.Slice]
    since_ns: list[int]
    begun_ns: dict[p.Place, int]

    def recorded(self) -> list[p.Slice]:
        """Return the part that a profiler records that is switched on then."""
        return self._slices_since

    @cached_property
    def _slices_since(self) -> list[p.Slice]:
        return [s for s in self.slices if s.start_ns >= self.since_ns[s.place.rank]]

    def is_recorded(self, place: p.Place, *, on_gpu: bool) -> bool:
        """True for what began when its rank recorded: an instruction of a host, or the work that it launched."""
        return (place, on_gpu) in self._recorded

    @cached_property
    def _recorded(self) -> set[tuple[p.Place, bool]]:
        hosts = {(at, False) for at, ns in self.begun_ns.items() if ns >= self.since_ns[at.rank]}
        return hosts | {(s.place, True) for s in self.recorded() if s.on_gpu}


def span_ns(run: Run, changed: Run) -> int:
    """Time of the recorded steps, until their work has ended, in a changed run of the program.

    It counts from the beginning of the recording, which is the same in both.
    """
    steps = [s for s in run.recorded() if "step" in s.facts]
    counted = {(s.place, s.on_gpu) for s in steps}
    bounds: dict[int, tuple[int, int]] = {}
    for step in steps:
        first, last = bounds.get(step.place.rank, (step.start_ns, step.end_ns))
        bounds[step.place.rank] = min(first, step.start_ns), max(last, step.end_ns)
    for call in run.recorded():
        first, last = bounds[call.place.rank]
        if call.category == "cuda_runtime" and first <= call.start_ns < last:
            counted.add((call.place, True))
    end = max(s.end_ns for s in changed.slices if (s.place, s.on_gpu) in counted)
    return end - min(first for first, _ in bounds.values())


def period_ns(run: Run) -> float:
    """Mean time from the end of one step's work to that of the next, over the recorded steps."""
    ended: dict[p.Place, int] = {}
    for done in run.slices:
        if done.on_gpu:
            ended[done.place] = max(ended.get(done.place, 0), done.end_ns)
    ends: dict[int, int] = {}
    for step in (s for s in run.recorded() if "step" in s.facts):
        number, rank = step.facts["step"], step.place.rank
        for call in run.recorded():
            inside = step.start_ns <= call.start_ns < step.end_ns and call.place.rank == rank
            if inside and not call.on_gpu and call.category == "cuda_runtime":
                ends[number] = max(ends.get(number, step.end_ns), ended.get(call.place, 0))
    first, last = min(ends), max(ends)
    return (ends[last] - ends[first]) / (last - first)


def job_ns(run: Run, changed: Run) -> int:
    """Time of all that is recorded, from the first start on, in a changed run of the program."""
    recorded = run.recorded()
    counted = {(s.place, s.on_gpu) for s in recorded}
    end = max(s.end_ns for s in changed.slices if (s.place, s.on_gpu) in counted)
    return end - min(s.start_ns for s in recorded)


def simulate(
    program: p.Program, change: p.Change = p.NO_CHANGE, recorded_in: Run | None = None
) -> Run:
    """Run a program.

    Parameters
    ----------
    change
        What takes another time.
    recorded_in
        A run: the change holds for what was recorded in it, of messages by any of their members; for all if None.
    """
    return _Simulation(program, change, recorded_in).run()


class _Signal:
    """Something that happens once."""

    def __init__(self) -> None:
        self.happened = False
        self.waiting: list[Process] = []


@dataclass
class _Entry:
    """An item of a stream: work, an event that is recorded, or one that is waited for."""

    arrives_ns: int
    work: p.Slice | None = None
    instruction: p.Launch | p.Communicate | None = None
    record: _Signal | None = None
    wait: _Signal | None = None
    wake_ns: int = 0
    done: _Signal = field(default_factory=_Signal)


@dataclass
class _Stream:
    entries: deque[_Entry] = field(default_factory=deque)
    filled: _Signal = field(default_factory=_Signal)
    begun: _Signal = field(default_factory=_Signal)
    last: _Entry | None = None
    not_begun: int = 0


@dataclass
class _Meeting:
    """The members of a message that have come."""

    come: int = 0
    complete: _Signal = field(default_factory=_Signal)
    sent: _Signal = field(default_factory=_Signal)


class _Simulation:
    def __init__(self, program: p.Program, change: p.Change, recorded_in: Run | None) -> None:
        self.program, self.change, self.recorded_in = program, change, recorded_in
        self.begun_ns: dict[p.Place, int] = {}
        recorded = recorded_in.recorded() if recorded_in else []
        self.recorded_messages = {
            s.facts["message"] for s in recorded if s.on_gpu and "message" in s.facts
        }
        self.now = 0
        self.queue: list[tuple[int, int, Process]] = []
        self.pushed = 0
        self.slices: list[p.Slice] = []
        self.streams: dict[tuple[int, int], _Stream] = {}
        self.events: dict[tuple[int, int], _Signal] = {}
        self.flags: dict[tuple[int, int], _Signal] = {}
        self.meetings = [_Meeting() for _ in program.messages]
        self.correlation = [0] * len(program.threads)
        self.external = [0] * len(program.threads)
        self.recorded_since = [-1] * len(program.threads)
        self.finished = 0

    def run(self) -> Run:
        threads = 0
        for rank, listed in enumerate(self.program.threads):
            for number, instructions in enumerate(listed):
                self._resume_in(0, self._thread(rank, number, instructions))
                threads += 1
        while self.queue:
            self.now, _, process = heapq.heappop(self.queue)
            wanted = next(process, None)
            if isinstance(wanted, int):
                self._resume_in(wanted, process)
            elif wanted is not None and wanted.happened:
                self._resume_in(0, process)
            elif wanted is not None:
                wanted.waiting.append(process)
        stuck = [key for key, stream in self.streams.items() if stream.entries]
        if self.finished < threads or stuck:
            raise RuntimeError(f"{self.program.name} never ends: streams {stuck} wait")
        self.slices.sort(key=lambda s: (s.start_ns, -s.end_ns))
        return Run(self.program, self.slices, self.recorded_since, self.begun_ns)

    def _changes(self, place: p.Place, *, on_gpu: bool) -> bool:
        return self.recorded_in is None or self.recorded_in.is_recorded(place, on_gpu=on_gpu)

    def _resume_in(self, ns: int, process: Process) -> None:
        self.pushed += 1
        heapq.heappush(self.queue, (self.now + ns, self.pushed, process))

    def _happens(self, signal: _Signal) -> None:
        signal.happened = True
        for process in signal.waiting:
            self._resume_in(0, process)
        signal.waiting.clear()

    def _stream(self, rank: int, number: int) -> _Stream:
        if (rank, number) not in self.streams:
            self.streams[rank, number] = _Stream()
            self._resume_in(0, self._gpu(rank, self.streams[rank, number]))
        return self.streams[rank, number]

    def _put(self, rank: int, number: int, entry: _Entry) -> None:
        stream = self._stream(rank, number)
        stream.entries.append(entry)
        stream.last = entry
        filled, stream.filled = stream.filled, _Signal()
        self._happens(filled)

    # a host thread

    def _thread(self, rank: int, number: int, instructions: list[p.Instruction]) -> Process:
        ranges: list[p.Slice] = []
        for position, what in enumerate(instructions):
            place = p.Place(rank, number, position)
            self.begun_ns[place] = self.now
            match what:
                case p.Work():
                    yield self._host_ns(place, what.ns) if ranges else what.ns
                case p.Begin():
                    ranges.append(self._begin(place, what))
                case p.End():
                    ranges.pop().end_ns = self.now
                case p.Notify():
                    self._happens(self._flag(rank, what.flag))
                case p.Await():
                    yield self._flag(rank, what.flag)
                    yield what.wake_ns
                case _:
                    yield from self._call(place, what, ranges[-1].external if ranges else 0)
        self.finished += 1

    def _flag(self, rank: int, flag: int) -> _Signal:
        return self.flags.setdefault((rank, flag), _Signal())

    def _begin(self, place: p.Place, what: p.Begin) -> p.Slice:
        rank = place.rank
        self.external[rank] += 1
        begun = p.Slice(place, place.thread, False, what.category, what.name, self.now)
        begun.external = self.external[rank]
        if what.message >= 0:
            begun.facts["message"] = what.message
        if what.step >= 0:
            begun.facts["step"] = what.step
            if what.step == self.program.first_step:
                self.recorded_since[rank] = self.now
        self.slices.append(begun)
        return begun

    def _host_ns(self, place: p.Place, ns: int) -> int:
        return self.change.host_ns(ns) if self._changes(place, on_gpu=False) else ns

    def _call(self, place: p.Place, what: p.Instruction, external: int) -> Process:
        """A call of the runtime."""
        rank = place.rank
        self.correlation[rank] += 1
        call = p.Slice(place, place.thread, False, "cuda_runtime", type(what).__name__, self.now)
        call.correlation, call.external = self.correlation[rank], external
        self.slices.append(call)
        call_ns = self._host_ns(place, what.call_ns)
        match what:
            case p.Launch() | p.Communicate():
                stream = self._stream(rank, what.stream)
                while stream.not_begun >= self.program.depth:
                    yield stream.begun
                stream.not_begun += 1
                work = p.Slice(place, what.stream, True, "kernel", "", -1)
                work.correlation, work.external = call.correlation, external
                if isinstance(what, p.Launch):
                    work.category, work.name = what.category, what.name
                entry = _Entry(self.now + what.latency_ns, work, what)
                self._put(rank, what.stream, entry)
                yield call_ns
                if isinstance(what, p.Launch) and what.blocks:
                    yield entry.done
                    yield what.return_ns
            case p.Record():
                self.events[rank, what.event] = _Signal()
                entry = _Entry(self.now + call_ns, record=self.events[rank, what.event])
                self._put(rank, what.stream, entry)
                call.facts |= {"event": what.event, "stream": what.stream}
                yield call_ns
            case p.StreamWait():
                entry = _Entry(self.now + call_ns, wait=self.events[rank, what.event])
                entry.wake_ns = what.wake_ns
                self._put(rank, what.stream, entry)
                call.facts |= {"event": what.event, "stream": what.stream}
                yield call_ns
            case p.EventSync():
                yield from self._waited([self.events[rank, what.event]], call_ns, what.return_ns)
                call.facts |= {"event": what.event}
            case p.Sync():
                last = [
                    stream.last.done
                    for (of, number), stream in self.streams.items()
                    if of == rank and what.stream in (-1, number) and stream.last
                ]
                call.facts |= {"stream": what.stream}
                yield from self._waited(last, call_ns, what.return_ns)
        call.end_ns = self.now

    def _waited(self, signals: list[_Signal], call_ns: int, return_ns: int) -> Process:
        """The call's own time; then, if it has to wait, until all has happened and it returns."""
        yield call_ns
        if not all(signal.happened for signal in signals):
            yield from signals
            yield return_ns

    # a stream

    def _gpu(self, rank: int, stream: _Stream) -> Process:
        ended_ns = -1
        while True:
            while not stream.entries:
                yield stream.filled
            entry = stream.entries[0]
            if entry.arrives_ns > self.now:
                yield entry.arrives_ns - self.now
            if entry.wait is not None:
                if not entry.wait.happened:
                    yield entry.wait
                    yield entry.wake_ns
            elif entry.record is not None:
                self._happens(entry.record)
            else:
                free_ns = ended_ns + entry.instruction.gap_ns
                if ended_ns >= 0 and free_ns > self.now:
                    yield free_ns - self.now
                yield from self._works(rank, stream, entry)
                ended_ns = self.now
            stream.entries.popleft()
            self._happens(entry.done)

    def _works(self, rank: int, stream: _Stream, entry: _Entry) -> Process:
        """A kernel runs, and one place of the queue is free."""
        work, what = entry.work, entry.instruction
        work.start_ns = self.now
        self.slices.append(work)
        stream.not_begun -= 1
        begun, stream.begun = stream.begun, _Signal()
        self._happens(begun)
        if isinstance(what, p.Communicate):
            work.facts["message"] = what.message
            yield from self._transfers(rank, what.message)
        else:
            changed = self._changes(work.place, on_gpu=True)
            lasts_ns = self.change.kernel_ns(what, rank) if changed else what.ns
            if what.flag >= 0:
                work.facts["flag"] = what.flag
                tail_ns = min(what.tail_ns, lasts_ns)
                yield lasts_ns - tail_ns
                self._happens(self._flag(rank, what.flag))
                lasts_ns = tail_ns
            yield lasts_ns
        work.end_ns = self.now

    def _transfers(self, rank: int, number: int) -> Process:
        """A message is transferred when its last member has come; a buffered send at once."""
        message, meeting = self.program.messages[number], self.meetings[number]
        meeting.come += 1
        sends = message.kind == "send" and rank == message.ranks[0]
        if meeting.come == len(message.ranks):
            self._happens(meeting.complete)
        if message.buffered and not sends:
            yield meeting.sent
            return
        if not message.buffered:
            yield meeting.complete
        is_changed = self.recorded_in is None or number in self.recorded_messages
        yield self.change.transfer_ns(message) if is_changed else message.ns
        if sends:
            self._happens(meeting.sent)

"""Which hosts polled memory for a kernel, by where their threads rested around it."""

from pathlib import Path
from typing import Any

import pytest
from kineto_files import call, kernel, span, uploads, write
from programs.families import NOTIFY

import chopper_interop as ci
from chopper_interop.schemas.kinds import EdgeKind

PERIOD_US = 1000.0


def round_of(
    number: int, begin: float, end: float, resumed: float, busy: tuple[float, ...] = ()
) -> list[dict[str, Any]]:
    """A launch of 4 µs, the kernel and what the host does around it, in µs from the launch."""
    at = PERIOD_US * number
    return [
        call("cudaLaunchKernel", at, 4, number + 1),
        kernel(NOTIFY, at + begin, end - begin, number + 1),
        *(span("cpu_op", "aten::mul", at + since, 2) for since in busy),
        span("cpu_op", "aten::empty", at + resumed, 2),
    ]


def polled(folder: Path, events: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """Starts of what hosts went on with, in µs from the first, and their threads."""
    trace = ci.read(write(folder / "p.json", events))
    dst = trace.array("dst", "edges")[trace.array("kind", "edges") == EdgeKind.POLL]
    since = trace.array("ts")[dst] - trace.array("ts").min()
    thread = trace.array("number", "lanes")[trace.array("lane")[dst]]
    return list(zip((since // 1000).tolist(), thread.tolist(), strict=True))


ROUNDS: dict[str, tuple[dict[str, Any], bool]] = {
    "the host rests until the kernel's end": ({"begin": 10, "end": 300, "resumed": 301}, True),
    "it does a little before a kernel that is queued": (
        {"begin": 100, "end": 300, "resumed": 301, "busy": (6, 10, 14, 18)}, True,
    ),
    "it works on until a kernel that is queued": (
        {"begin": 400, "end": 600, "resumed": 601, "busy": tuple(range(6, 400, 4))}, False,
    ),
    "the kernel is as short as a host's pauses": ({"begin": 5, "end": 12, "resumed": 13}, False),
}  # fmt: skip


@pytest.mark.parametrize("what", ROUNDS)
def test_a_host_polls_where_it_rests_from_the_launch_to_the_end(tmp_path: Path, what: str) -> None:
    times, polls = ROUNDS[what]
    events = [event for number in range(3) for event in round_of(number, **times)]
    expected = [(number * PERIOD_US + times["resumed"], 100) for number in range(3)]
    assert polled(tmp_path, events) == (expected if polls else [])


def test_one_kernel_that_ends_as_its_host_goes_on_is_chance(tmp_path: Path) -> None:
    assert polled(tmp_path, round_of(0, 10, 300, 301)) == []


def test_a_host_polls_for_kernels_and_waits_in_copies(tmp_path: Path) -> None:
    rounds = [event for number in range(20, 23) for event in round_of(number, 10, 300, 301)]
    assert len(polled(tmp_path, [*uploads("Pageable", 0), *rounds])) == 6 + 3


def test_kernels_without_a_launch_say_nothing_of_hosts(tmp_path: Path) -> None:
    events = [event for number in range(3) for event in round_of(number, 10, 300, 301)]
    events += [kernel(NOTIFY, 400 + 50 * number, 20, 100 + number) for number in range(4)]
    assert len(polled(tmp_path, events)) == 3


def test_a_last_kernel_is_not_waited_for_by_another_thread(tmp_path: Path) -> None:
    events = [event for number in range(3) for event in round_of(number, 10, 300, 301)]
    events += round_of(3, 10, 300, 301)[:2]
    others = [event for number in range(4, 7) for event in round_of(number, 10, 300, 301)]
    others = [e if e["cat"] == "kernel" else e | {"tid": 101} for e in others]
    expected = [(1000 * n + 301, 101 if n > 3 else 100) for n in (0, 1, 2, 4, 5, 6)]
    assert polled(tmp_path, [*events, *others]) == expected


@pytest.mark.parametrize(
    ("begin", "factor", "gain_us"),
    [(10, 2, -(3 * 290 + 91)), (10, 0.1, 3 * 261), (2, 2, -(3 * 298 + 99))],
)
def test_hosts_go_on_as_soon_as_kernels_let_them(
    tmp_path: Path, begin: float, factor: float, gain_us: float
) -> None:
    """Of one that went on long after its kernel's end that long is its own time, which it takes whenever the kernel ends.

    Kernels may begin before their launch returns.
    """
    resumed = (301, 500, 301, 301)
    events = [event for n, late in enumerate(resumed) for event in round_of(n, begin, 300, late)]
    trace = ci.read(write(tmp_path / "p.json", events))
    change = f"scale={factor} where kind == 'comm'"
    changes = ci.analyze(trace, "what_if", change=change).summary["changes"]
    assert changes[0]["gain_ns"] == pytest.approx(1000 * gain_us)


def test_what_a_host_does_before_a_queued_kernel_begins_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    busy = (6, 10, 14, 18)
    events = [event for number in range(4) for event in round_of(number, 100, 300, 301, busy)]
    trace = ci.read(write(tmp_path / "p.json", events))
    change = "scale=0.1 where kind == 'comm'"
    changes = ci.analyze(trace, "what_if", change=change).summary["changes"]
    assert changes[0]["gain_ns"] == pytest.approx(1000 * 4 * 180)


def test_what_a_poll_takes_is_known_and_no_delay(tmp_path: Path) -> None:
    """A poll has the time that was measured, not the least of an edge of which none is known."""
    events = [event for number in range(4) for event in round_of(number, 10, 300, 305)]
    trace = ci.read(write(tmp_path / "p.json", events))
    changes = ci.analyze(trace, "what_if", change="delays=0").summary["changes"]
    assert changes[0]["gain_ns"] == 0

"""`what_if`, against simulated programs of which the time with each change is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from predictions import Factors, cases_of, errors_percent, gains_ns, read
from programs import families
from programs import program as p
from programs.simulation import job_ns, simulate, span_ns
from slow import slow_from

import chopper_interop as ci

LIMITS = {
    ("streams", 3): 0.5,
    ("copies", 3): 0.5,
    ("host_bound", 3): 0.5,
    ("full_queue", 0): 0.1,
    ("backlog", 3): 0.1,
    ("ddp", 0): 0.1,
    ("threads", 1): 1.5,
    ("pipeline", 0): 0.5,
    ("polls", 11000): 0.5,
    ("polls", 11003): 0.1,
    ("fsdp", 2): 0.5,
    ("copies", 230): 1.0,
    ("host_bound", 9118): 0.5,
    ("pipeline", 9101): 0.5,
    ("pipeline", 9106): 1.0,
}
"""Largest error by family and seed, in percent of the time without the change."""


@pytest.mark.parametrize(("family", "seed"), slow_from([*LIMITS], -5))
def test_changes_are_predicted_as_they_are_simulated(family: str, seed: int, tmp_path) -> None:
    errors = errors_percent(families.FAMILIES[family](seed), tmp_path)
    limit = LIMITS[family, seed]
    assert {name: error for name, error in errors.items() if abs(error) > limit} == {}


def test_collectives_queued_before_the_recording_wait_for_their_gradients(tmp_path) -> None:
    factors = Factors(compute=(), kernel=(), rank=(1.5,), communication=(), host=())
    assert abs(errors_percent(families.ddp(9104), tmp_path, factors)["one rank x 1.5"]) < 0.3


def passes_on() -> p.Program:
    """Rank 0 sends to rank 1 without waiting; rank 1 waits for some of it, as its work gets longer."""
    messages = [p.Message("send", (0, 1), 80_000, 1_000, buffered=True) for _ in range(12)]
    threads: list[list[list[p.Instruction]]] = []
    for rank in range(2):
        listed: list[p.Instruction] = [p.Begin("ProfilerStep#0", "user_annotation", 0)]
        for number in range(len(messages)):
            name = "send" if rank == 0 else "recv_"
            ns = 100_000 if rank == 0 else 120_000 + 20_000 * number
            work = [p.Launch(0, "gemm", ns, 3_000, 5_000, 1_000)]
            listed += (
                [*work, *passed(number, name)] if rank == 0 else [*passed(number, name), *work]
            )
        threads.append([[*listed, p.Sync(0, 2_000, 4_000), p.End()]])
    return p.Program("passes", "cuda", threads, messages)


def test_a_receive_that_finds_its_data_does_not_wait_for_its_sender(tmp_path) -> None:
    run = simulate(passes_on())
    received = [s for s in run.slices if s.on_gpu and s.place.rank == 1 and "message" in s.facts]
    assert {s.end_ns > s.start_ns for s in received} == {True, False}
    changes = Factors(
        compute=(0.2, 2.0), kernel=(), rank=(0.1, 3.0), communication=(0.5, 2.0), host=()
    )
    errors = errors_percent(run.program, tmp_path, changes)
    assert {name: error for name, error in errors.items() if abs(error) > 0.3} == {}


def test_another_network_makes_buffered_sends_longer_not_their_receives(tmp_path) -> None:
    """Messages take 80 us for 4,000 bytes, at 0.05 GB/s."""
    run = simulate(passes_on())
    trace = read(run, tmp_path)
    factors = Factors(compute=(), kernel=(), rank=(), communication=(0.5, 1.0, 2.0), host=())
    errors = [
        case.error_percent(gains_ns(trace, [replace(case, what_if=f"bandwidth={network}GB/s")])[0])
        for case, network in zip(cases_of(run, factors), (0.1, 0.05, 0.025), strict=True)
    ]
    assert max(map(abs, errors)) < 0.3


def answered(*, buffered: bool, until_ns: int) -> p.Program:
    """Rank 1 answers what rank 0 sends, before it records: its host comes to the step so much later."""
    count = 6
    to, back = (
        [p.Message("send", ranks, 40_000, 1_000, buffered) for _ in range(count)]
        for ranks in ((0, 1), (1, 0))
    )
    asks, answers = (
        [p.Launch(0, name, ns, 3_000, 5_000, 1_000)]
        for name, ns in (("asks", 200_000), ("answers", 150_000))
    )
    threads: list[list[p.Instruction]] = [[begin()], []]
    for number in range(count):
        sent, received = number, count + number
        threads[0] += [*asks, *passed(sent, "send"), *passed(received, "recv_")]
        threads[1] += [*passed(sent, "recv_"), *answers, *passed(received, "send")]
        if number == 3:
            threads[1] += [p.Work(until_ns), begin()]
    for listed in threads:
        listed += [p.Sync(0, 2_000, 4_000), p.End()]
    return p.Program("answers", "cuda", [[listed] for listed in threads], [*to, *back])


def passed(message: int, name: str) -> list[p.Instruction]:
    return [
        p.Begin(f"c10d::{name}"), p.Begin("record_param_comms", message=message),
        p.Communicate(0, message, 3_000, 5_000, 1_000), p.End(), p.End(),
    ]  # fmt: skip


@pytest.mark.parametrize("buffered", [False, True])
@pytest.mark.parametrize("until_ns", slow_from([600_000, 850_000, 1_000_000], 1))
def test_a_rank_that_does_not_record_yet_answers_in_turn(buffered, until_ns, tmp_path) -> None:
    """It begins to record while it waits, receives, computes or sends."""
    run = simulate(answered(buffered=buffered, until_ns=until_ns))
    begins = [min(s.start_ns for s in run.recorded() if s.place.rank == rank) for rank in (0, 1)]
    assert begins[1] > begins[0] + until_ns // 2
    factors = Factors(compute=(), kernel=(0.2, 2.0), rank=(), communication=(), host=())
    cases = cases_of(run, factors)
    assert {case.change.name for case in cases} == {"asks"}
    errors = [
        c.error_percent(g) for c, g in zip(cases, gains_ns(read(run, tmp_path), cases), strict=True)
    ]
    assert max(map(abs, errors)) < 0.2


@pytest.mark.parametrize("buffered", [False, True])
def test_a_network_changes_messages_of_which_the_other_end_is_not_recorded(
    buffered, tmp_path
) -> None:
    """Messages of 4,000 bytes took 40 us; those without their other end had stayed as they were."""
    trace = read(simulate(answered(buffered=buffered, until_ns=850_000)), tmp_path)
    change = "scale=2 where kind == 'comm'; bandwidth=0.05GB/s"
    listed = ci.analyze(trace, "what_if", change=change).summary["changes"]
    gains = {row["change"]: row["gain_ns"] for row in listed}
    by_factor, by_bandwidth = (gains[text] for text in change.split("; "))
    assert by_factor < -8 * 40_000
    assert by_bandwidth == pytest.approx(by_factor, abs=2_000)


def test_an_answer_takes_as_much_longer_as_its_message(tmp_path) -> None:
    """When a rank that does not record yet answers stays, but from then on the message takes its time."""
    run = simulate(answered(buffered=False, until_ns=850_000))
    factors = Factors(compute=(), kernel=(), rank=(), communication=(0.5, 2.0), host=())
    cases = cases_of(run, factors)
    gains = gains_ns(read(run, tmp_path), cases)
    errors = [case.error_percent(gain) for case, gain in zip(cases, gains, strict=True)]
    assert max(map(abs, errors)) < 0.2


def begin() -> p.Begin:
    return p.Begin("ProfilerStep#0", "user_annotation", 0)


def times(run, *, on_gpu: bool) -> list[tuple[str, int, int]]:
    return [(s.name, s.start_ns, s.end_ns) for s in run.slices if s.on_gpu == on_gpu]


def test_kernels_of_a_stream_follow_each_other_and_the_host_waits_for_them() -> None:
    listed: list[p.Instruction] = [
        begin(),
        p.Launch(0, "a", 50, 3, 5, 1),
        p.Launch(0, "b", 20, 3, 5, 1),
        p.Sync(0, 2, 4),
        p.End(),
    ]
    run = simulate(p.Program("", "hip", [[listed]], []))
    assert times(run, on_gpu=True) == [("a", 5, 55), ("b", 56, 76)]
    assert times(run, on_gpu=False)[-1] == ("Sync", 6, 80)
    shorter = simulate(run.program, p.Change("kernel", 0.1, name="a"), run)
    assert times(shorter, on_gpu=True) == [("a", 5, 10), ("b", 11, 31)]
    assert (span_ns(run, run), span_ns(run, shorter), job_ns(run, shorter)) == (80, 35, 35)


def test_a_launch_waits_for_a_place_and_a_stream_for_an_event() -> None:
    listed: list[p.Instruction] = [
        begin(),
        p.Launch(0, "a", 50, 3, 5, 1),
        p.Launch(0, "b", 20, 3, 5, 1),  # waits until a begins
        p.Record(0, 1, 1),
        p.StreamWait(1, 1, 1, 2),
        p.Launch(1, "c", 10, 3, 5, 1),
        p.End(),
    ]
    run = simulate(p.Program("", "hip", [[listed]], [], depth=1))
    assert times(run, on_gpu=True) == [("a", 5, 55), ("b", 56, 76), ("c", 78, 88)]
    assert [s for s in times(run, on_gpu=False) if s[0] == "Launch"] == [
        ("Launch", 0, 3),
        ("Launch", 3, 8),
        ("Launch", 10, 13),
    ]


@pytest.mark.parametrize(("buffered", "sent", "received"), [(False, 145, 145), (True, 50, 105)])
def test_a_message_is_passed_when_both_have_come_or_at_once(buffered, sent, received) -> None:
    message = p.Message("send", (0, 1), 40, 10, buffered)
    threads: list[list[list[p.Instruction]]] = [
        [[begin(), p.Work(ns), p.Communicate(0, 0, 3, 5, 1), p.End()]] for ns in (5, 100)
    ]
    run = simulate(p.Program("", "hip", threads, [message]))
    ends = {s.place.rank: s.end_ns for s in run.slices if s.on_gpu}
    assert ends == {0: sent, 1: received}


def kernels(names: str, *, ns: int = 40_000) -> list[p.Instruction]:
    """Launches on one stream, a letter each."""
    return [p.Launch(0, name, ns, 4_000, 5_000, 1_000) for name in names]


def job(*parts: list[p.Instruction]) -> p.Program:
    """Two training steps of one rank that end with a wait."""
    listed: list[p.Instruction] = []
    for step in range(2):
        listed += [p.Begin(f"ProfilerStep#{step}", "user_annotation", step), p.Work(20_000)]
        for part in parts:
            listed += part
        listed += [p.Sync(0, 2_000, 4_000), p.End(), p.Work(5_000)]
    return p.Program("", "cuda", [[listed]], [])


def predicted_gain_ns(program: p.Program, change: str, folder) -> int:
    trace = read(simulate(program), folder)
    return ci.analyze(trace, "what_if", change=change).summary["changes"][0]["gain_ns"]


def gain_ns(before: p.Program, after: p.Program) -> int:
    one, other = simulate(before), simulate(after)
    return span_ns(one, one) - span_ns(other, other)


@pytest.mark.parametrize("host_bound", [False, True])
def test_an_inserted_operation_is_predicted_as_it_runs(tmp_path, *, host_bound: bool) -> None:
    between = [p.Work(60_000 if host_bound else 1_000)]
    program = job(kernels("aa"), between, kernels("b"), kernels("cc"))
    inserted = job(kernels("aa"), between, kernels("x", ns=30_000), kernels("b"), kernels("cc"))
    actual = gain_ns(program, inserted)
    predicted = predicted_gain_ns(program, "insert=30us where name == 'b'", tmp_path)
    assert predicted == pytest.approx(actual, abs=2 * 10_000)  # its launch and gap, each step


@pytest.mark.parametrize("host_bound", [False, True])
def test_fused_kernels_are_predicted_as_they_run(tmp_path, *, host_bound: bool) -> None:
    ns = 3_000 if host_bound else 40_000
    program = job(kernels("aa"), kernels("bcd", ns=ns), kernels("ee"))
    fused = job(kernels("aa"), kernels("b", ns=round(3 * ns * 0.5)), kernels("ee"))
    change = "fuse=0.5 where name in ['b', 'c', 'd']"
    predicted = predicted_gain_ns(program, change, tmp_path)
    assert predicted == pytest.approx(gain_ns(program, fused), abs=2_000)


def test_another_number_of_ranks_is_predicted_by_rings(tmp_path) -> None:
    """An all-reduce of S bytes takes 2 (n - 1) (S / (n B) + latency): by hand for 4 and 64 ranks."""
    trace = read(simulate(families.FAMILIES["ddp"](1)), tmp_path)
    times = [
        ci.analyze(trace, "what_if", change=f"bandwidth=1GB/s latency=1us {ranks}").summary
        for ranks in ("", "ranks=64")
    ]
    comm = trace.to_pandas().query("kind == 'comm'")
    n, size = len(trace.ranks), comm.groupby("instance")["bytes"].first()
    of_ring = [(2 * (m - 1) * (size / (m * 1.0) + 1000)).sum() for m in (n, 64)]
    gained = times[0]["changes"][0]["gain_ns"] - times[1]["changes"][0]["gain_ns"]
    assert gained == pytest.approx(of_ring[1] - of_ring[0], rel=0.05)

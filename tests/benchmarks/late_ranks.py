"""Late hosts, slow GPUs and slow links that `stragglers` names, and their gains, against simulations without them.

Programs of DDP and FSDP of which all ranks do the same, but for 0.5 % of noise, get one rank with a late host or a slow GPU,
or two with slow GPUs; pipelines get one slow link. They are simulated, and written as PyTorch's profiler would record them. A gain is right that
another simulation shows in which what was recorded takes its even times. Usage::

    python tests/benchmarks/late_ranks.py [--first N] [--seeds N] [--family NAME …]
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

import predictions
from programs import families
from programs import program as p
from programs.simulation import simulate, span_ns

import chopper_interop as ci

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from programs.simulation import Run

_LATE = {"gpu": (1.05, 1.3, 2), "host": (1.5, 3, 6), "link": (3, 10)}
_GAINS = {"gpu": "gain_ns", "host": "host_gain_ns", "delays": "delay_gain_ns"}
_LEAST_PERCENT = 0.1
"""What costs less of the job is not to be named: the least gain that `stragglers` names."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--family", nargs="*", default=["ddp", "fsdp", "pipeline"])
    options = parser.parse_args()
    for family in options.family:
        errors, wrong = [], []
        for seed in range(options.first, options.first + options.seeds):
            for name, late, even, expected in _jobs(family, seed):
                error, named, costs = _judge(late, even, expected[0])
                errors.append(error)
                if named != (expected if costs >= _LEAST_PERCENT else ("", "")):
                    wrong.append(f"  {name}: costs {costs:.2f} %, named {named}")
        if not errors:  # pipelines of two stages have one link, with which none compares
            print(f"{family:10}   0 jobs")
            continue
        largest = max(errors, key=abs)
        print(f"{family:10}{len(errors):4} jobs, {len(wrong)} named wrongly; gain off by "
              f"{statistics.median(map(abs, errors)):.2f} % of the job in the median, {largest:+.2f} at most")  # fmt: skip
        print(*wrong, sep="\n", end="\n" if wrong else "")


def _jobs(family: str, seed: int) -> Iterator[tuple[str, p.Program, p.Program, tuple[str, str]]]:
    """Name of a job, its program, that without what is late, and cause and rank or link of it."""
    rng, program = random.Random(seed), families.FAMILIES[family](seed)  # noqa: S311 # not for secrets
    pairs = sorted({m.ranks for m in program.messages if m.kind == "send"})
    if family == "pipeline":
        who = tuple(sorted(rng.choice(pairs)))
        for by in _LATE["link"] if len({tuple(sorted(pair)) for pair in pairs}) > 1 else ():
            messages = [
                replace(m, ns=m.ns * by) if set(m.ranks) == set(who) else m
                for m in program.messages
            ]
            link = ",".join(map(str, who))
            yield (
                f"{seed} link {link} x {by}",
                replace(program, messages=messages),
                program,
                ("link", link),
            )
        return
    threads = program.threads[0]
    even = replace(program, threads=[_changed(threads, _noisy(rng)) for _ in program.threads])
    rank = rng.randrange(len(even.threads))
    yield f"{seed} even", even, even, ("", "")
    for of in ("gpu", "host"):
        for by in _LATE[of]:
            slower = [*even.threads]
            slower[rank] = _changed(slower[rank], _slower(of, by))
            yield f"{seed} {of} {rank} x {by}", replace(even, threads=slower), even, (of, str(rank))
    if len(even.threads) > 2:  # of two ranks no two are slower than others
        slower = [
            _changed(t, _slower("gpu", 1.2)) if r < 2 else t for r, t in enumerate(even.threads)
        ]
        yield f"{seed} gpu 0 and 1", replace(even, threads=slower), even, ("several", "0,1")


def _changed(
    threads: list[list[p.Instruction]], change: Callable[[p.Instruction, str, int], float]
) -> list[list[p.Instruction]]:
    """Threads of a rank with other times: `change` gives them of an instruction, the name of a time, and the time."""
    times = ("ns", "call_ns")

    def again(what: p.Instruction) -> p.Instruction:
        names = [f.name for f in fields(what) if f.name in times]
        other: dict[str, Any] = {n: round(change(what, n, getattr(what, n))) for n in names}
        return replace(what, **other)

    return [[again(what) for what in thread] for thread in threads]


def _noisy(rng: random.Random) -> Callable[[p.Instruction, str, int], float]:
    return lambda _what, _name, ns: max(ns * rng.gauss(1, 0.005), 0)


def _slower(of: str, by: float) -> Callable[[p.Instruction, str, int], float]:
    """Times of kernels, or of all that the host does, by a factor."""

    def change(what: p.Instruction, name: str, ns: int) -> float:
        on_gpu = isinstance(what, p.Launch) and name == "ns"
        return ns * by if on_gpu == (of == "gpu") else ns

    return change


def _judge(late: p.Program, even: p.Program, cause: str) -> tuple[float, tuple[str, str], float]:
    """Error of the gain and what it should be, in percent of the job, and which cause and rank or link is named."""
    run = simulate(late)
    with tempfile.TemporaryDirectory() as folder:
        trace = predictions.read(run, Path(folder))
    result = ci.analyze(trace, "stragglers")
    summary = result.summary
    named = ("", "")
    gain_ns = 0
    if cause == "link":
        named = ("link", summary["slow_link"]) if summary["slow_link"] else named
        gain_ns = summary["link_gain_ns"] or 0
    elif cause == "several":
        named = (cause, summary["slow_ranks"])
        gain_ns = summary["slow_ranks_gain_ns"] or 0
    elif summary["slow_rank"] >= 0:
        row = next(r for r in result.rows.to_pylist() if r["rank"] == summary["slow_rank"])
        named = (row["cause"], str(summary["slow_rank"]))
        gain_ns = row[_GAINS[row["cause"]]]
    whole = span_ns(run, run)
    costs_ns = whole - span_ns(run, simulate(_without(late, even, run)))
    return 100 * (gain_ns - costs_ns) / whole, named, 100 * costs_ns / whole


def _without(late: p.Program, even: p.Program, run: Run) -> p.Program:
    """The late program in which all whose call or message was recorded takes the times of the even one."""
    on_host = {s.place for s in run.recorded() if not s.on_gpu}
    since: dict[tuple[int, int], int] = {}
    for place in on_host:
        thread = place.rank, place.thread
        since[thread] = min(place.position, since.get(thread, place.position))

    def at(rank: int, thread: int, position: int, what: p.Instruction) -> p.Instruction:
        recorded = p.Place(rank, thread, position) in on_host
        works = isinstance(what, p.Work) and position >= since.get((rank, thread), position + 1)
        return even.threads[rank][thread][position] if recorded or works else what

    threads = [
        [[at(r, t, i, what) for i, what in enumerate(thread)] for t, thread in enumerate(of_rank)]
        for r, of_rank in enumerate(late.threads)
    ]
    moved = {
        s.facts["message"] for s in run.recorded() if "message" in s.facts and s.place in on_host
    }
    messages = [even.messages[i] if i in moved else m for i, m in enumerate(late.messages)]
    return replace(late, threads=threads, messages=messages)


if __name__ == "__main__":
    main()

"""Anything may stand where a Kineto file should have a number: it is counted, or refused."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from kineto_files import BASE, call, flow, kernel, span
from slow import slow_but_each, slow_from

import chopper_interop as ci
from chopper_interop.errors import ChopperError
from chopper_interop.testing import check_trace

POWERS = (2**31, 2**31 - 1, 2**31 + 1, 2**53, 2**62, 2**63, 2**63 - 1, 2**63 + 1, 2**64, 2**64 - 1)
WRONG = [
    *(str(sign * n) for n in (*POWERS, 10**30) for sign in (1, -1)),
    *("1e400", "9" * 40, f'"{"9" * 40}"', "-0", "0.1", "null", "true", '""', '"x"', '"007"'),
    *('"stream 99999999999999999999999"', '"-5"', "[1]", "{}", '"\\u0000"'),
]
"""Values as they stand in the file."""
_MARK = "\x01"

EVENT_FIELDS = ("pid", "tid", "id", "ts", "dur", "name", "cat")
ARGUMENTS = (
    *("correlation", "stream", "device", "External id", "graph node id", "bytes", "rank"),
    *("pid_raw", "correlation_raw", "Device Type", "Sequence number"),
)
MEMORY = ("Bytes", "Total Allocated", "Total Reserved", "Device Id", "Device Type")
PARAMETERS = (
    *("In msg nelems", "Out msg nelems", "Group size", "Seq", "Rank", "Src Rank", "Dst Rank"),
    *("Process Group Ranks", "Process Group Name", "Global rank start", "Global rank stride"),
    *("dtype", "Collective name", "Input Dims", "Concrete Inputs", "Input type"),
)
DISTRIBUTED = ("rank", "world_size", "pg_config", "backend")
HEADER = ("baseTimeNanoseconds", "schemaVersion", "deviceProperties", "distributedInfo")
DEVICE = ("id", "name")
GROUP = ("ranks", "pg_name", "pg_desc", "backend_config")


def job(*, fused: bool) -> dict[str, Any]:
    """A file that has all that a reader looks at."""
    facts = {"Collective name": "send", "In msg nelems": 8, "Out msg nelems": 8, "dtype": "Float"}
    facts |= {"Group size": 2, "Process Group Name": "0", "Seq": 3, "Dst Rank": 1, "Rank": 0}
    held = {"Device Type": 1, "Device Id": 0, "Bytes": 8, "Total Reserved": 64}
    memory = span("cpu_instant_event", "[memory]", 3, 0, args=held) | {"ph": "i", "s": "t"}
    counter = {"ph": "C", "name": "util", "pid": 100, "tid": 0, "ts": 2, "args": {"": 5}}
    name = {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "args": {"name": "main"}}
    label = {"ph": "M", "name": "process_name", "pid": 100, "args": {"name": "rank 0"}}
    events = [
        *(name, label, span("cpu_op", "record_param_comms", 0, 9, args=facts)),
        *(call("hipLaunchKernel", 1, 2, 1), kernel("ncclDevKernel_Generic(x)", 5, 2, 1)),
        *(call("hipMemcpyAsync", 4, 2, 2), span("gpu_memcpy", "Memcpy", 8, 1, args={"bytes": 9})),
        *(span("cpu_op", "f", 20, 1), span("cpu_op", "b", 22, 1)),
        *(flow("s", "fwdbwd", 1, 20), flow("f", "fwdbwd", 1, 22), memory, counter),
        memory | {"ts": 4, "args": {"Bytes": 8, "Device Type": 0, "Device Id": -1}},
    ]
    if fused:
        for event in events:
            event["args"] = event.get("args", {}) | {"rank": 0, "pid_raw": 100}
    group = {"pg_name": "0", "pg_desc": "dp", "backend_config": "nccl", "ranks": [0, 1]}
    info = {"backend": "nccl", "rank": 0, "world_size": 2, "pg_config": [group]}
    header = {"schemaVersion": 1, "deviceProperties": [{"id": 2, "name": "GPU"}]}
    header |= {"distributedInfo": info, "baseTimeNanoseconds": BASE}
    return header | {"traceEvents": events}


def slots(document: dict[str, Any]) -> list[tuple[dict[str, Any], str]]:
    """Dictionaries and keys of which the value may be replaced."""
    places = [(document, key) for key in HEADER]
    places += [(document["deviceProperties"][0], key) for key in DEVICE]
    info = document["distributedInfo"]
    places += [(info, key) for key in DISTRIBUTED]
    places += [(info["pg_config"][0], key) for key in GROUP]
    for event in document["traceEvents"]:
        places += [(event, key) for key in EVENT_FIELDS]
        keys = PARAMETERS if event["name"] == "record_param_comms" else ARGUMENTS
        keys = MEMORY if event["name"] == "[memory]" else keys
        keys = ("", "name") if event["ph"] in "MC" else keys
        args = event.get("args")
        places += [] if args is None else [(args, key) for key in (*keys, "rank", "pid_raw")]
    return places


def written(document: dict[str, Any], values: list[str], path: Path) -> Path:
    """The file, its marks replaced by these texts in order."""
    parts = json.dumps(document).split(json.dumps(_MARK))
    values = [*values, ""]
    path.write_text("".join(part + value for part, value in zip(parts, values, strict=True)))
    return path


@contextmanager
def unless_refused() -> Iterator[None]:
    """Let no exception out but a ChopperError of one line."""
    try:
        yield
    except ChopperError as error:
        if "\n" in str(error):
            raise AssertionError("the message has several lines") from error


def holds(path: Path, out: Path, *, write: bool) -> None:
    """It is read with every event counted and can be written, or is refused in one line."""
    with unless_refused():
        trace = ci.read(path)
        (source,) = trace.meta.sources
        lost = sum(i.count for i in trace.meta.issues if i.events)
        assert source.events == 14 == source.nodes + lost
        check_trace(trace)
        if write:
            ci.write(trace, out / "job.pftrace")
            ci.write(trace, out / "ets", to_format="chakra")
            ci.write(trace, out / "job.json")
            check_trace(ci.read(out / "job.json"))


SLOTS = len(slots(job(fused=False)))


@pytest.mark.parametrize("apart", slow_from([96, 8], 1))
@pytest.mark.parametrize("number", slow_but_each(range(len(WRONG)), 3))
def test_one_number_may_be_anything(number: int, apart: int, tmp_path: Path) -> None:
    wrong = WRONG[number]
    for slot in range(number % apart, SLOTS, apart):  # fields repeat, and so do values of a size
        document = job(fused=False)
        holder, key = slots(document)[slot]
        holder[key] = _MARK
        path = written(document, [wrong], tmp_path / "a.json")
        try:
            holds(path, tmp_path, write=False)
        except Exception as error:
            raise AssertionError(f"{key!r} is {wrong}") from error


@pytest.mark.parametrize("seed", slow_from(range(150), 8))
def test_many_numbers_may_be_anything(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)  # noqa: S311 # no secret
    document = job(fused=draw.random() < 0.4)
    for holder, key in draw.sample(slots(document), draw.randint(1, 12)):
        holder[key] = _MARK
    marks = json.dumps(document).count(json.dumps(_MARK))
    values = [draw.choice(WRONG) for _ in range(marks)]
    holds(written(document, values, tmp_path / "a.json"), tmp_path, write=True)


def counts(path: Path) -> dict[str, int]:
    return {issue.code: issue.count for issue in ci.read(path).meta.issues}


def test_times_that_overflow_are_counted(tmp_path: Path) -> None:
    spans = [span("cpu_op", "a", 1, 1), span("cpu_op", "b", 9999999999999999, 1)]
    path = written(
        {"traceEvents": [*spans, span("cpu_op", "c", 3, 10**16)]}, [], tmp_path / "a.json"
    )
    assert ci.read(path).meta.origin_ns == 1000
    assert counts(path)["event-without-time"] == counts(path)["duration-not-a-number"] == 1


def test_an_arrow_without_a_time_is_unbound(tmp_path: Path) -> None:
    ends = [flow("s", "fwdbwd", 1, 2**62), flow("f", "fwdbwd", 1, 2)]
    events = [span("cpu_op", "f", 0, 1), span("cpu_op", "b", 2, 1), *ends]
    path = written({"traceEvents": events}, [], tmp_path / "a.json")
    assert counts(path)["fwdbwd-unbound"] == 1


def test_names_of_processes_with_a_number_that_is_no_rank(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": f"rank {rank}"}}
        for pid, rank in ((100, 0), (200, 1), (300, 10**25))
    ]
    path = written({"traceEvents": [*events, span("cpu_op", "a", 1, 1)]}, [], tmp_path / "a.json")
    assert ci.read(path).ranks == [0]


@pytest.mark.parametrize("extents", [[10**30], [2**40, 2**40], [-1], ["x"], [True], [2**61]])
def test_shapes_that_say_no_size(tmp_path: Path, extents: list[Any]) -> None:
    shapes = {"Input Dims": [extents], "Input type": ["float"]}
    events = [
        *(span("user_annotation", "nccl:all_reduce", 0, 9, args=shapes), call("launch", 1, 2, 1)),
        kernel("ncclKernel_AllReduce_x", 5, 2, 1),
    ]
    trace = ci.read(written({"traceEvents": events}, [], tmp_path / "a.json"))
    assert pd.isna(trace.values("bytes")).all()


def test_a_header_nested_too_deeply_is_counted(tmp_path: Path) -> None:
    document = {"schemaVersion": 1, "INFO": _MARK, "traceEvents": [span("cpu_op", "a", 1, 1)]}
    path = written(document, ["[" * 20_000 + "]" * 20_000], tmp_path / "a.json")
    assert counts(path)["header-malformed"] == 1


@pytest.mark.parametrize("rank", ["99999999999", "-5", "x"])
def test_a_rank_that_is_none_is_refused(tmp_path: Path, run: Any, rank: str) -> None:
    path = written({"traceEvents": [span("cpu_op", "a", 1, 1)]}, [], tmp_path / "a.json")
    status, _, output = run("convert", path, "-o", tmp_path / "a.pftrace", "-O", f"rank={rank}")
    assert status == 2
    assert f"rank={rank}" in output
    assert not (tmp_path / "a.pftrace").exists()


@pytest.mark.parametrize(
    ("name", "job"),
    [
        ("Qwen_Qwen1.5-0.5B.pt.trace.json", "Qwen_Qwen1.5-0.5B"),
        ("run.2024.json", "run.2024"),
        ("trace.json", "trace"),
        ("v1.5", "v1.5"),
        (".json", "job"),
    ],
)
def test_a_job_is_called_what_its_file_is(tmp_path: Path, name: str, job: str) -> None:
    path = written({"traceEvents": [span("cpu_op", "a", 1, 1)]}, [], tmp_path / name)
    assert ci.read(path).meta.job == job

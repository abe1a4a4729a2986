"""Kineto files: form, identifiers, links."""

from __future__ import annotations

import collections
import itertools
import json
import re

import pytest


def test_header_and_tail(demo):
    rank = demo.ranks[1]
    keys = list(rank.content)
    assert keys[:2] == ["schemaVersion", "deviceProperties"]
    assert keys[-4:] == ["displayTimeUnit", "baseTimeNanoseconds", "traceEvents", "traceName"]
    assert [d["id"] for d in rank.content["deviceProperties"]] == list(range(8))
    distributed = rank.content["distributedInfo"]
    assert (distributed["rank"], distributed["world_size"]) == (1, 3)
    assert distributed["pg_config"][0]["ranks"] == [0, 1, 2]
    assert rank.path.name == rank.content["traceName"].removeprefix("./traces/") + ".gz"
    assert rank.events[-1]["name"] == "Record Window End"
    assert re.fullmatch(r"[0-9A-F]{32}", rank.content["trace_id"])
    assert len({r.content["trace_id"] for r in demo.ranks}) == len(demo.ranks)


def test_base_is_the_start_of_the_quarter(demo):
    step, base = 7_889_238, demo.ranks[0].content["baseTimeNanoseconds"] // 1_000_000_000
    now = demo.truth["clocks"]["window_start_ns"] // 1_000_000_000
    assert base % step == 0
    assert 0 <= now - base < step


def test_gzip_head_names_neither_file_nor_time(demo):
    head = demo.ranks[0].path.read_bytes()[:10]
    assert head[:4] == b"\x1f\x8b\x08\x00"
    assert head[4:8] == bytes(4)


def test_every_kind_of_event_is_there(demo):
    kinds = {(e["ph"], e.get("cat")) for e in demo.ranks[0].events}
    assert kinds == {
        ("X", "cpu_op"),
        ("X", "user_annotation"),
        ("X", "cuda_runtime"),
        ("X", "kernel"),
        ("X", "gpu_memcpy"),
        ("X", "gpu_memset"),
        ("X", "gpu_user_annotation"),
        ("X", "Trace"),
        ("i", "cpu_instant_event"),
        ("i", None),
        ("M", None),
        ("s", "ac2g"),
        ("f", "ac2g"),
        ("s", "fwdbwd"),
        ("f", "fwdbwd"),
    }


def test_rows_are_named_as_always(demo):
    rank = demo.ranks[2]
    labels = [e["args"]["labels"] for e in rank.events if e["name"] == "process_labels"]
    assert labels == ["CPU", *(f"GPU {i}" for i in range(16))]
    threads = {e["args"]["name"]: e["pid"] for e in rank.events if e["name"] == "thread_name"}
    gpu = rank.of("kernel")[0]["pid"]
    assert gpu == 4  # two CPU sockets come first
    assert threads["stream 0 "] == threads["stream 4 "] == gpu


def test_host_events_nest(demo):
    for rank in demo.ranks:
        for event in rank.host:
            outer = rank.around[id(event)]
            if outer:
                assert outer[-1]["start"] <= event["start"]
                assert event["end"] <= outer[-1]["end"]
        spans = collections.defaultdict(list)
        for event in rank.host:
            spans[event["tid"]].append((event["start"], event["end"]))
        assert len(spans) == 2
        for events in spans.values():
            open_ends = []
            for start, end in events:
                while open_ends and open_ends[-1] <= start:
                    open_ends.pop()
                assert not open_ends or end <= open_ends[-1]
                open_ends.append(end)


def test_identifiers_are_unique(demo):
    for rank in demo.ranks:
        external = [e["args"]["External id"] for e in rank.of("cpu_op", "user_annotation")]
        assert len(external) == len(set(external))
        calls = [e["args"]["correlation"] for e in rank.of("cuda_runtime")]
        assert len(calls) == len(set(calls))
        counted = [e["args"]["Ev Idx"] for e in rank.events if "Ev Idx" in e.get("args", {})]
        assert sorted(counted) == list(range(len(counted)))
    pids = {e["pid"] for rank in demo.ranks for e in rank.host}
    assert len(pids) == len(demo.ranks)


def test_every_gpu_event_has_its_launch(demo):
    for rank in demo.ranks:
        calls = {e["args"]["correlation"]: e for e in rank.of("cuda_runtime")}
        gpu = rank.of("kernel", "gpu_memcpy", "gpu_memset")
        assert len(gpu) == len({e["args"]["correlation"] for e in gpu}) == len(rank.launches)
        for event in gpu:
            call = calls[event["args"]["correlation"]]
            assert call["start"] < event["start"]
            assert call["args"].get("kernel", event["name"]) == event["name"]
            assert call["args"].get("grid") == event["args"].get("grid")
            assert call["args"]["External id"] == event["args"]["External id"]


def test_calls_are_linked_to_the_operator_around_them(demo):
    for rank in demo.ranks:
        for event in rank.of("cuda_runtime"):
            operators = [e for e in rank.around.get(id(event), []) if e["cat"] == "cpu_op"]
            expected = operators[-1]["args"]["External id"] if operators else None
            assert event["args"].get("External id") == expected


def test_streams_run_one_thing_at_a_time(demo):
    for rank in demo.ranks:
        for stream in (0, 4):
            events = [x.event for x in rank.launches if x.stream == stream]
            assert events == sorted(events, key=lambda e: e["start"])
            for before, after in itertools.pairwise(events):
                assert before["end"] <= after["start"]


def test_flows_bind_to_events(demo):
    rank = demo.ranks[0]
    starts = {(e["pid"], e["tid"], e["ts"]) for e in rank.events if e["ph"] == "X"}
    flows = [e for e in rank.events if e["ph"] in "sf"]
    assert all((e["pid"], e["tid"], e["ts"]) in starts for e in flows)
    sides = collections.Counter((e["cat"], e["id"], e["ph"]) for e in flows)
    launched = {x.correlation for x in rank.launches}
    sources = {number for kind, number, side in sides if (kind, side) == ("ac2g", "s")}
    assert sources == launched
    forward = {number for kind, number, side in sides if (kind, side) == ("fwdbwd", "s")}
    assert forward == {number for kind, number, side in sides if (kind, side) == ("fwdbwd", "f")}


def test_backward_follows_forward(demo):
    rank = demo.ranks[0]
    numbered = collections.defaultdict(set)
    for event in rank.of("cpu_op"):
        if "Sequence number" in event["args"]:
            numbered[event["args"]["Sequence number"]].add(event["args"]["Fwd thread id"])
    assert numbered
    assert all(sides == {0, 1} for sides in numbered.values())
    backward = [e for e in rank.of("cpu_op") if e["name"].endswith("MmBackward0")]
    assert backward
    assert {e["tid"] for e in backward} != {e["pid"] for e in backward}


def test_collectives_are_described_on_the_operator_alone(demo):
    for rank in demo.ranks:
        assert all("Collective name" not in e["args"] for e in rank.of("kernel"))
        described = [e for e in rank.of("cpu_op") if e["name"] == "record_param_comms"]
        assert described
        for event in described:
            args = event["args"]
            if args["Collective name"] == "wait":
                continue
            assert args["Rank"] == rank.rank
            assert args["Process Group Ranks"] == "[0, 1, 2]"
            assert len(args["Concrete Inputs"]) == len(args["Input type"]) == 10


def test_annotations_on_the_gpu_span_their_kernels(demo):
    rank = demo.ranks[0]
    names = {e["args"]["External id"]: e["name"] for e in rank.of("user_annotation")}
    spans = rank.of("gpu_user_annotation")
    assert any(e["name"].startswith("ProfilerStep#") for e in spans)
    assert {e["tid"] for e in spans} == {0, 4}
    for event in spans:
        assert names[event["args"]["External id"]] == event["name"]
    inner = collections.defaultdict(list)
    for launch in rank.launches:
        around = [e for e in rank.around[id(launch.call)] if e["cat"] == "user_annotation"]
        if around:
            inner[around[-1]["args"]["External id"], launch.stream].append(launch.event)
    extents = {k: (v[0]["start"] - 1, v[-1]["end"] + 1) for k, v in inner.items()}
    assert extents == {(e["args"]["External id"], e["tid"]): (e["start"], e["end"]) for e in spans}


def test_allocations_balance(demo):
    rank = demo.ranks[0]
    memory = [e for e in rank.events if e["name"] == "[memory]"]
    total = memory[0]["args"]["Total Allocated"] - memory[0]["args"]["Bytes"]
    held: dict[int, int] = {}
    for event in sorted(memory, key=lambda e: e["start"]):
        args = event["args"]
        total += args["Bytes"]
        assert args["Total Allocated"] == total
        if args["Bytes"] < 0:
            assert held.pop(args["Addr"]) == -args["Bytes"]
        else:
            held[args["Addr"]] = args["Bytes"]
    assert not held


def test_grid_is_in_work_items_for_tensile_alone(demo):
    for event in demo.ranks[0].of("cuda_runtime"):
        if "grid" in event["args"]:
            module = event["name"] == "hipExtModuleLaunchKernel"
            assert module == event["args"]["kernel"].startswith("Cijk_")
            assert not module or event["args"]["grid"][0] % event["args"]["block"][0] == 0


@pytest.mark.parametrize("visible", [True, False])
def test_event_records_are_shown_or_not(visible, read_demo, tmp_path):
    from chopper_interop.demo import make_demo

    small = {"ranks": 2, "layers": 1, "steps": 1, "sequence": 256, "counter_steps": 0}
    path = make_demo(tmp_path / "job", **small, telemetry=False, event_records=visible)
    rank = read_demo(path).ranks[0]
    assert any(e["name"] == "hipEventRecord" for e in rank.events) == visible


def keys_of(path):
    """Keys of the arguments of each category in a trace."""
    import gzip

    result = collections.defaultdict(set)
    for event in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]:
        if isinstance(event.get("args"), dict):
            result[event["ph"], event.get("cat")].update(event["args"])
    return result


def test_fields_are_those_of_a_real_trace(demo, shared):
    real = keys_of(shared / "pytorch/mi300x/resnet_act_checkpoint.json.gz")
    actual = keys_of(demo.ranks[0].path)
    for kind in (("X", "cpu_op"), ("X", "user_annotation"), ("X", "gpu_user_annotation")):
        assert actual[kind] <= real[kind]
    for kind in (("X", "cuda_runtime"), ("X", "gpu_memcpy"), ("X", "gpu_memset"), ("X", "Trace")):
        assert actual[kind] == real[kind]
    assert actual["X", "kernel"] == {
        key for key in real["X", "kernel"] if not re.search(r"nelems|dtype|Group|split|Coll", key)
    }

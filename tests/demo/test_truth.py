"""The truth against what the files say, by brute force."""

from __future__ import annotations

import itertools
import statistics

import pytest

from chopper_interop.demo.paths import KINDS


def union(intervals):
    """Disjoint sorted intervals that cover the same time."""
    merged = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return merged


def length(intervals):
    return sum(end - start for start, end in union(intervals))


def common(a, b):
    return length(a) + length(b) - length([*a, *b])


def by_correlation(demo):
    return {
        (rank.rank, launch.correlation): launch for rank in demo.ranks for launch in rank.launches
    }


def test_steps_are_those_of_the_files(demo):
    for row in demo.rows("steps"):
        event = demo.ranks[row["rank"]].steps[row["step"]]
        assert (row["start_ns"], row["end_ns"]) == (event["start"], event["end"])
        assert row["duration_ns"] == event["end"] - event["start"]
    begin = min(next(iter(rank.steps.values()))["start"] for rank in demo.ranks)
    for place, measured in enumerate(demo.truth["measured_step_ns"]):
        end = max(list(rank.steps.values())[place]["end"] for rank in demo.ranks)
        assert measured == end - begin
        begin = end


def test_occupation_by_interval_union(demo):
    for row in demo.rows("steps"):
        rank = demo.ranks[row["rank"]]
        kinds = {"compute": [], "communication": [], "copy": []}
        for launch in rank.launches:
            event = launch.event
            if rank.step_of(launch.call) == row["step"]:
                kind = "copy" if event["cat"] == "gpu_memcpy" else "compute"
                kind = "communication" if event["name"].startswith("nccl") else kind
                kinds[kind].append((event["start"], event["end"]))
        for kind, intervals in kinds.items():
            assert row[f"{kind}_ns"] == length(intervals)
        both = common(kinds["compute"], kinds["communication"])
        busy = length(itertools.chain(*kinds.values()))
        assert row["overlap_ns"] == both
        assert row["exposed_communication_ns"] == row["communication_ns"] - both
        assert (row["busy_ns"], row["idle_ns"]) == (busy, row["duration_ns"] - busy)


def test_kernels_are_those_of_the_files(demo):
    launches = by_correlation(demo)
    kernels = demo.rows("kernels")
    assert len(kernels) == sum(len(rank.of("kernel")) for rank in demo.ranks)
    for row in kernels:
        launch = launches[row["rank"], row["correlation"]]
        assert (row["ts_ns"], row["ts_ns"] + row["dur_ns"]) == (
            launch.event["start"],
            launch.event["end"],
        )
        assert row["step"] == demo.ranks[row["rank"]].step_of(launch.call)
        assert (row["class"] == "collective") == bool(launch.collective)


def test_ideal_is_never_longer_than_measured(demo):
    rows = demo.rows("kernels")
    assert all(0 < row["ideal_dur_ns"] <= row["dur_ns"] for row in rows)
    assert all(0 <= row["beta"] <= 1 for row in rows)
    ideal, measured = demo.truth["ideal_step_ns"], demo.truth["measured_step_ns"]
    assert all(a <= b for a, b in zip(ideal, measured, strict=True))
    assert demo.truth["mean_ideal_step_ns"] == statistics.fmean(ideal)


def test_collectives_end_together_and_wait_for_the_last(demo):
    launches = by_correlation(demo)
    order = [[x.correlation for x in rank.launches if x.collective] for rank in demo.ranks]
    rows = demo.rows("collectives")
    assert [row["correlations"] for row in rows] == [list(c) for c in zip(*order, strict=True)]
    for row in rows:
        members = [launches[r, c].event for r, c in enumerate(row["correlations"])]
        assert {m["end"] for m in members} == {row["end_ns"]}
        assert [m["start"] for m in members] == row["starts_ns"]
        assert row["max_start_ns"] == max(row["starts_ns"])
        assert row["transfer_ns"] == row["end_ns"] - row["max_start_ns"] > 0
        assert row["waits_ns"] == [row["max_start_ns"] - s for s in row["starts_ns"]]


def test_collective_messages(demo):
    sizes = {"BFloat16": 2, "Float": 4}
    described = [e["args"] for e in demo.ranks[0].of("cpu_op") if e["name"] == "record_param_comms"]
    fields = [args for args in described if args["Collective name"] != "wait"]
    for row, args in zip(demo.rows("collectives"), fields, strict=True):
        assert row["name"] == args["Collective name"]
        assert row["in_bytes"] == args["In msg nelems"] * sizes[args["dtype"]]
        assert row["bytes"] == max(row["in_bytes"], row["out_bytes"])


def test_launch_split(demo):
    launches = by_correlation(demo)
    groups = itertools.groupby(demo.rows("kernels"), key=lambda row: (row["rank"], row["step"]))
    for _, rows in groups:
        latest = None
        for row in sorted(rows, key=lambda row: row["ts_ns"]):
            split = row["prep_ns"], row["call_ns"], row["launch_ns"]
            if row["class"] == "collective":
                assert split == (-1, -1, -1)
                continue
            called = launches[row["rank"], row["correlation"]].call["start"]
            if latest is None:
                assert split == (0, row["ts_ns"] - called, 0)
            else:
                launch = max(0, row["ts_ns"] - latest)
                prep = max(0, called - latest)
                assert split == (prep, min(row["ts_ns"] - called, launch), launch)
                assert prep + split[1] == launch
            latest = max(latest or 0, row["ts_ns"] + row["dur_ns"])


def test_straggler(demo):
    straggler = demo.truth["straggler"]
    times = straggler["kernel_time_ns"]
    for rank, total in enumerate(times):
        rows = [r for r in demo.rows("kernels") if r["rank"] == rank and r["class"] != "collective"]
        assert total == sum(row["dur_ns"] for row in rows)
    others = [t for rank, t in enumerate(times) if rank != straggler["rank"]]
    assert straggler["slowdown"] == times[straggler["rank"]] / statistics.median(others)
    assert straggler["rank"] == 1


def measured(demo):
    """Durations and transfers as they were."""
    duration = {k: x.event["end"] - x.event["start"] for k, x in by_correlation(demo).items()}
    return duration, dict(enumerate(demo.truth["collectives"]["transfer_ns"]))


def test_replay_of_the_files_gives_the_files(demo):
    replay = demo.replay().run(*measured(demo))
    for key, launch in by_correlation(demo).items():
        assert replay.gpu[key] == (launch.event["start"], launch.event["end"])


def test_replay_at_the_ideal_durations_gives_the_ideal_steps(demo):
    duration, transfer = measured(demo)
    for row in demo.rows("kernels"):
        duration[row["rank"], row["correlation"]] = row["ideal_dur_ns"]
    replay = demo.replay()
    replay.run(duration, transfer)
    for row in demo.rows("steps"):
        rank = demo.ranks[row["rank"]]
        chain = replay.instants(rank)
        step = rank.steps[row["step"]]
        begin, end = (
            next(i for i, (_, e, event) in enumerate(chain) if event is step and e == side)
            for side in (0, 1)
        )
        took = replay.host[row["rank"], end] - replay.host[row["rank"], begin]
        assert took == row["ideal_duration_ns"]


def paths(demo):
    result = demo.truth["critical_path"]
    return [result["window"], *result["steps"].values()]


def test_path_tiles_its_window(demo):
    for path in paths(demo):
        now = path["start_ns"]
        for ts, dur in zip(path["ts_ns"], path["dur_ns"], strict=True):
            assert ts == now
            assert dur > 0
            now += dur
        assert now == path["end_ns"]
        assert set(path["kind"]) <= set(KINDS)
    window, *steps = paths(demo)
    assert window["start_ns"] == demo.truth["clocks"]["window_start_ns"]
    assert window["end_ns"] == demo.truth["clocks"]["window_end_ns"]
    lengths = [path["end_ns"] - path["start_ns"] for path in steps]
    assert lengths == demo.truth["measured_step_ns"]


def backtrack(demo):
    """GPU pieces of the critical path, last first, by walking the graph that the files give."""
    replay = demo.replay().run(*measured(demo))
    launches = by_correlation(demo)
    orders = [[x.correlation for x in rank.launches if x.collective] for rank in demo.ranks]
    rank = max(
        range(len(demo.ranks)), key=lambda r: max(s["end"] for s in demo.ranks[r].steps.values())
    )
    chains = [replay.instants(r) for r in demo.ranks]
    latency = replay.constants["sync_latency_ns"]
    ends = {(r, end): c for (r, c), (_, end) in replay.gpu.items() if replay.streams[r][c] == 0}
    place = len(chains[rank]) - 1
    while place > 0:
        time, end, event = chains[rank][place]
        waits = end and event["name"] in ("hipMemcpyWithStream", "hipStreamSynchronize")
        if not waits or (rank, time - latency) not in ends:
            place -= 1
            continue
        correlation = ends[rank, time - latency]
        while True:
            if launches[rank, correlation].collective:
                number = orders[rank].index(correlation)
                starts = [replay.gpu[r, o[number]][0] for r, o in enumerate(orders)]
                rank = starts.index(max(starts))
                correlation = orders[rank][number]
            start = replay.gpu[rank, correlation][0]
            begin = start if not launches[rank, correlation].collective else max(starts)
            yield rank, correlation, begin, replay.gpu[rank, correlation][1] - begin
            kind, source = replay.cause[rank, correlation]
            if kind == "launch":
                break
            correlation = source
        launch = launches[rank, correlation]
        side = not launch.copies
        place = next(
            i for i, (_, e, event) in enumerate(chains[rank]) if event is launch.call and e == side
        )


def test_path_is_what_a_walk_over_the_files_finds(demo):
    path = demo.truth["critical_path"]["window"]
    columns = ("kind", "rank", "correlation", "ts_ns", "dur_ns")
    pieces = [
        row[1:]
        for row in zip(*(path[c] for c in columns), strict=True)
        if row[0] in ("kernel", "collective", "memcpy", "memset")
    ]
    assert pieces == list(backtrack(demo))[::-1]


def test_path_pieces_lie_in_what_they_name(demo):
    launches = by_correlation(demo)
    calls = {
        (r.rank, e["args"]["correlation"]): e for r in demo.ranks for e in r.of("cuda_runtime")
    }
    operators = {
        (r.rank, e["args"]["External id"]): e
        for r in demo.ranks
        for e in r.of("cpu_op", "user_annotation")
    }
    for path in paths(demo):
        names = ("kind", "rank", "correlation", "external_id", "ts_ns", "dur_ns")
        for kind, rank, correlation, external, ts, dur in zip(
            *(path[n] for n in names), strict=True
        ):
            if kind in ("runtime", "sync_latency"):
                outer = calls[rank, correlation]
            elif kind == "host" and external >= 0:
                outer = operators[rank, external]
            elif kind.endswith("_latency"):
                assert ts + dur == launches[rank, correlation].event["start"]
                continue
            elif kind in ("host", "handover"):
                assert (correlation, external) == (-1, -1)
                continue
            else:
                outer = launches[rank, correlation].event
            assert outer["start"] <= ts
            assert ts + dur <= outer["end"]


@pytest.mark.parametrize("key", ["measured_step_ns", "ideal_step_ns"])
def test_times_are_whole_nanoseconds(demo, key):
    assert all(isinstance(value, int) for value in demo.truth[key])

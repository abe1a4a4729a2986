"""Host execution traces with profiles: operators are matched, and linked by their data."""

import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from host_et_oracle import count_of, flow, nodes_of
from kineto_files import BASE, kernel, span, write
from read_once import read_once
from seeds import pytorch_et as seed

import chopper_interop as ci
from chopper_interop.arrays import sequences
from chopper_interop.io import json_merge
from chopper_interop.schemas.kinds import EdgeKind
from chopper_interop.testing import check_trace

DLRM = "pytorch/dlrm_8rank_v100"
PAIR = "pytorch/rtx2080ti_pairs"


def issues(trace: ci.Trace, source: str = "") -> dict[str, int]:
    result: Counter[str] = Counter()
    for issue in trace.meta.issues:
        if source in issue.source:
            result[issue.code] += issue.count
    return dict(result)


def data(trace: ci.Trace) -> list[tuple[int, int]]:
    kind = trace.array("kind", "edges") == EdgeKind.DATA
    pairs = (trace.array(c, "edges")[kind].tolist() for c in ("src", "dst"))
    return list(zip(*pairs, strict=True))


def linked(trace: ci.Trace) -> dict[int, int]:
    """Node of the trace → id in the execution trace."""
    ids = ((i, trace.args(i).get("ET id")) for i in range(trace.nodes.num_rows))
    return {i: number for i, number in ids if number is not None}


def profile(path: Path, names: list[tuple[str, int]], **options) -> Path:
    """Operators one after the other, each (name, thread); `ids` for their calls."""
    ids = options.pop("ids", None)
    events = [
        span("cpu_op", name, 10 * i, 5, tid=tid, args={"Record function id": ids[i]} if ids else {})
        for i, (name, tid) in enumerate(names)
    ]
    events.append(kernel("k", 10 * len(names), 5, 1))
    return write(path, events, baseTimeNanoseconds=BASE, **options)


def execution(names: list[tuple[str, int]], first: int = 10, pid: int = 100) -> bytes:
    """An execution trace of operators, each of which reads what the one before it made."""
    nodes = [
        seed.node(
            first + i,
            name,
            2,
            (seed.tensor(1000 + i, 5000 + i),),
            (seed.tensor(1001 + i, 5001 + i),),
            tid=tid,
        )
        for i, (name, tid) in enumerate(names)
    ]
    return seed.document([seed.node(2, seed.THREAD, 1, scope=7), *nodes], pid=pid)


STEP = [(f"op{n % 7}.{n % 3}", 1) for n in range(40)]


@pytest.mark.slow
def test_real_ranks_of_different_iterations(shared: Path) -> None:
    trace = read_once(shared / DLRM)
    check_trace(trace)
    bare = read_once(shared / DLRM / "kineto")
    assert trace.nodes.num_rows == bare.nodes.num_rows
    for column in ("ts", "dur", "kind", "parent"):
        assert np.array_equal(trace.array(column), bare.array(column)), column
    names, code = trace.names(), trace.array("name")
    for rank in range(8):
        path = shared / DLRM / "host_et" / f"dlrm_eg_{rank}.json"
        counts = issues(trace, path.name)
        known = {n["id"]: n for n in nodes_of(path)}
        assert sum(counts.get(c, 0) for c in COUNTED) == count_of(path) == 1675
        ids = linked(trace.rank(rank))
        assert len(ids) == counts["host-et-joined-by-order"] >= 0.997 * len(known)
        assert len(set(ids.values())) == len(ids)
        start = trace.rank_rows[rank].start
        assert all(names[code[start + i]] == known[n]["name"] for i, n in ids.items())
        place = {number: start + i for i, number in ids.items()}
        expected = {
            (place[a], place[b])
            for a, b in flow(list(known.values()))
            if a in place and b in place and place[a] < place[b]
        }
        rows = trace.rank_rows[rank]
        assert {(a, b) for a, b in data(trace) if rows.start <= a < rows.stop} == expected
        assert counts["host-et-data-edges"] == len(expected) > 900
    assert len(trace.meta.facts["host_et_matched_rank0"].split()) == 4


COUNTED = (
    "et-process-or-thread", "host-et-joined-by-order", "host-et-joined-by-id", "host-et-unmatched",
    "host-et-refused", "host-et-without-profile",
)  # fmt: skip


def test_one_iteration_among_forty(shared: Path) -> None:
    trace = read_once(shared / PAIR)
    path = shared / PAIR / "linear_et.json.gz"
    ids = linked(trace)
    assert len(ids) == len(nodes_of(path)) == 928
    nodes = np.array(sorted(ids))
    threads = trace.array("lane")
    for lane in np.unique(threads[nodes]):  # one stretch of each thread, and no hole in it
        there = np.flatnonzero((threads == lane) & np.isin(trace.array("kind"), [1, 2]))
        place = np.flatnonzero(np.isin(there, nodes))
        assert place[-1] - place[0] + 1 == len(place)
    assert len(data(trace)) == len(flow(nodes_of(path))) == 506
    graph = trace.to_networkx(kinds=["data"])
    kinds = Counter(kind for _, _, kind in graph.edges(data="kind"))
    assert kinds["data"] == 506
    (how,) = [i.example for i in trace.meta.issues if i.code == "host-et-joined-by-order"]
    assert "928 of 928" in how
    assert "ms on, 311 of the thread's 12,356 operators" in how


def test_ids_of_other_calls_are_not_used(shared: Path) -> None:
    pair = (
        shared / "pytorch/misc/nccl_data.json.gz",
        shared / "pytorch/host_et/resnet_2gpu_et.json.gz",
    )
    counts = issues(ci.read(*pair, rank=0))
    assert counts["host-et-joined-by-order"] == 14388  # each rank has real ids, but of another run
    assert "host-et-joined-by-id" not in counts
    other = issues(ci.read(*pair))
    assert other["host-et-without-profile"] == 14389  # by its collectives, it is of rank 1


def test_another_program_is_refused(shared: Path) -> None:
    trace = read_once(
        shared / "pytorch/misc/nccl_data.json.gz", shared / PAIR / "linear_et.json.gz"
    )
    assert issues(trace)["host-et-refused"] == 928
    assert {i.severity.value for i in trace.meta.issues if i.code == "host-et-refused"} == {"error"}
    assert not data(trace)
    assert not linked(trace)


def test_by_ids_of_calls_whatever_the_order(tmp_path: Path) -> None:
    ids = [*range(10, 10 + len(STEP))]
    profile(tmp_path / "rank0.json", [*STEP, *STEP], ids=[*(n + 500 for n in ids), *ids])
    (tmp_path / "rank0_et.json").write_bytes(execution(STEP))
    trace = ci.read(tmp_path)
    assert issues(trace)["host-et-joined-by-id"] == len(STEP)
    # the second half of the profile, though the first has the same names
    nodes = [i for i in range(trace.nodes.num_rows) if trace.args(i).get("ET id")]
    assert nodes == list(range(len(STEP), 2 * len(STEP)))
    assert data(trace) == [(n, n + 1) for n in nodes[:-1]]


def test_ids_that_are_all_zero_are_ignored(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", STEP, ids=[0] * len(STEP))
    (tmp_path / "rank0_et.json").write_bytes(execution(STEP))
    assert issues(ci.read(tmp_path))["host-et-joined-by-order"] == len(STEP)


def test_several_iterations_of_the_program_and_one_of_the_profile(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", STEP)
    (tmp_path / "rank0_et.json").write_bytes(execution(STEP * 4))
    counts = issues(ci.read(tmp_path))
    assert counts["host-et-joined-by-order"] == len(STEP)
    assert counts["host-et-unmatched"] == 3 * len(STEP)


def test_threads_are_paired_whatever_their_numbers(tmp_path: Path) -> None:
    back = [(f"b{n % 11}", 7) for n in range(30)]
    profile(tmp_path / "rank0.json", [*back, *STEP])
    program = [*STEP, *((name, 2) for name, _ in back)]
    (tmp_path / "rank0_et.json").write_bytes(execution(program))
    trace = ci.read(tmp_path)
    assert issues(trace)["host-et-joined-by-order"] == 70
    names, code = trace.names(), trace.array("name")
    assert all(names[code[i]] == program[n - 10][0] for i, n in linked(trace).items())
    # what the program reads across threads, the profile ran the other way round
    assert issues(trace)["host-et-edge-against-time"] == 1
    assert all(a < b for a, b in data(trace))


def test_ranks_without_a_profile_are_counted(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", STEP)
    for rank in range(3):
        (tmp_path / f"rank{rank}_et.json").write_bytes(execution(STEP, pid=500 + rank))
    counts = issues(ci.read(tmp_path))
    assert counts["host-et-joined-by-order"] == len(STEP)
    assert counts["host-et-without-profile"] == 2 * len(STEP)


def test_the_process_takes_precedence_over_the_name_for_the_rank(tmp_path: Path) -> None:
    for rank in range(2):
        events = [
            span("cpu_op", f"r{rank}.{name}", 10 * i, 5, pid=900 + rank, tid=1)
            for i, (name, _) in enumerate(STEP)
        ]
        write(tmp_path / f"rank{rank}.json", events, baseTimeNanoseconds=BASE)
        names = [(f"r{rank}.{name}", 1) for name, _ in STEP]
        (tmp_path / f"trace_{1 - rank}.json").write_bytes(execution(names, pid=900 + rank))
    assert issues(ci.read(tmp_path))["host-et-joined-by-order"] == 2 * len(STEP)


def test_two_folders_of_a_job_are_read_by_one_command(tmp_path: Path, run) -> None:
    for rank in range(2):
        for part in ("a_kineto", "a_chakra"):
            (tmp_path / "job" / part).mkdir(parents=True, exist_ok=True)
        profile(tmp_path / "job" / "a_kineto" / f"rank-{rank}.json", STEP, traceName=str(rank))
        et = tmp_path / "job" / "a_chakra" / f"rank-{rank}.json"
        et.write_bytes(execution(STEP, pid=300 + rank))
    for what, source in (("both", "job"), ("times", "job/a_kineto")):
        status, _, output = run(
            "convert", tmp_path / source, "-o", f"{tmp_path}/{what}/", "--job", "j"
        )
        assert status == 0, output
        status, output, _ = run("check", tmp_path / what / "j")
        assert status == 0, output
    for rank in range(2):
        both, times = ((tmp_path / w / f"j.{rank}.et").read_bytes() for w in ("both", "times"))
        assert both == times


def test_arguments_of_the_profile_are_kept(tmp_path: Path) -> None:
    events = [
        span("cpu_op", name, 10 * i, 5, args={"Input Dims": [[9]]})
        for i, (name, _) in enumerate(STEP)
    ]
    write(tmp_path / "rank0.json", events, baseTimeNanoseconds=BASE)
    (tmp_path / "rank0_et.json").write_bytes(execution(STEP))
    args = ci.read(tmp_path).args(0)
    assert args["Input Dims"] == [[9]]
    assert args["Input type"] == ["Tensor(float)"]
    assert args["Output Dims"] == [[4]]


def test_members_of_two_objects() -> None:
    pairs = [
        ("{}", '{"a":1}'),
        ('{"a": [1, {"b": 2}]}', '{"a":3,"b":"x,}"}'),
        ("", '{"a":{}}'),
        ('{"a":1 }', ""),
        ("{ }", "{}"),
        ('{"a":1}', '{"b": 2, "c" : [3] , "d":4 }'),
    ]
    sides = []
    for side in zip(*pairs, strict=True):
        raw = [text.encode() for text in side]
        length = np.array([len(text) for text in raw])
        sides += [np.frombuffer(b"".join(raw), np.uint8).copy(), np.cumsum(length) - length, length]
    text, at, length = json_merge.merge_objects(*sides)
    for (a, b), start, size in zip(pairs, at, length, strict=True):
        expected = json.loads(b or "{}") | json.loads(a or "{}")
        assert json.loads(text[start : start + size].tobytes()) == expected


@pytest.mark.parametrize("kinds", [1, 2, 5, 50])
def test_an_alignment_is_ordered_and_of_equals(kinds: int) -> None:
    random = np.random.default_rng(kinds)
    for size in (1, 2, 9, 60, 400):
        a = random.integers(0, kinds, size)
        kept = random.random(size) > 0.05
        b = a[kept]
        place = sequences.align(a, b)
        actual = place >= 0
        assert (a[actual] == b[place[actual]]).all()
        assert (np.diff(place[actual]) > 0).all()
        assert actual.sum() >= 0.9 * kept.sum()


def test_compressed_and_cut_short(tmp_path: Path) -> None:
    profile(tmp_path / "rank0.json", STEP)
    complete = execution(STEP)
    cut = complete[: complete.index(b'"id": 30')]
    (tmp_path / "rank0_et.json.gz").write_bytes(gzip.compress(cut))
    counts = issues(ci.read(tmp_path))
    assert counts["host-et-joined-by-order"] == 20
    assert counts["et-not-closed"] == 1

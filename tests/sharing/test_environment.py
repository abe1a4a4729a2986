"""Outputs name no more of the machine and the user than the names of files."""

import json
import tarfile
import time
from pathlib import Path

import kineto_files
import pytest
from outputs import written
from read_once import read_once
from seeds import rocprofv3

import chopper_interop as ci
from chopper_interop.cli import analyze_main
from chopper_interop.errors import UsageError
from chopper_interop.sharing.environment import LEFT_OUT, without_folders
from chopper_interop.testing.equality import assert_trace_equal

PATHS = [
    ("/home/ann/llm/train.py(12): step", "train.py(12): step"),
    ("/home/ann smith/train.py", "train.py"),
    ("a.py(1): f;/tmp/torchinductor_ann/ab/cd.py(2): call", "a.py(1): f;cd.py(2): call"),
    ("/opt/x/lib/python3.12/site-packages/torch/optim/adam.py(7): step", "torch/optim/adam.py(7): step"),
    ("/sgl-workspace/sglang/python/sglang/srt/managers/scheduler.py(9): run", "sglang/python/sglang/srt/managers/scheduler.py(9): run"),
    ("/home/ann/vllm/v1/engine/core.py(9): step", "vllm/v1/engine/core.py(9): step"),
    ("/weird/place/train.py", "train.py"),
    ("/lustre/ann/checkpoint", "checkpoint"),
    ("/home/ann/", ""),
    ("/global/homes/a/ann/run", "run"),
    ("/scratch2/ann/run", "run"),
    ("~/x.py", "x.py"),
    ("~ann/llm/x.py", "x.py"),
    ("s3://bucket/ann/x.bin?X-Amz-Credential=ann/us&X-Amz-Signature=1", "s3:x.bin"),
    ("get https://ann:word@node:80/api?token=1 now", "get https://node:80/api now"),
    ("file:///home/ann/x.cc", "file:x.cc"),
    (r"C:\Users\ann\x.py(3): f", "x.py(3): f"),
    ("x=%2Fhome%2Fann%20smith%2Fa.py", "x=a.py"),
    ("x=%252fhome%252fann%252fa.py", "x=a.py"),
    (r'{"cwd": "\/home\/ann\/b.py"}', '{"cwd": "b.py"}'),
    (r'{"cwd": "\u002fhome\u002fann\u002Fb.py"}', '{"cwd": "b.py"}'),
    (r"\\server\ann\x.txt", "x.txt"),
    # no paths
    ("/model/layers.0/attn", "/model/layers.0/attn"),
    ("## /device:GPU:0 ##", "## /device:GPU:0 ##"),
    ("operator/(int)", "operator/(int)"),
    ("torch/nn/modules/linear.py(9): forward", "torch/nn/modules/linear.py(9): forward"),
    ("a / b", "a / b"),
    (r"two\lines", r"two\lines"),
    ("50%25 of a%2Fb", "50%25 of a%2Fb"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), PATHS)
def test_paths_become_names_of_files(text: str, expected: str) -> None:
    assert without_folders(text) == expected
    assert without_folders(expected) == expected


def test_accounts_are_found_in_the_time_of_the_text(tmp_path: Path) -> None:
    """Behind 100,000 letters an @ took a minute: each letter could begin an account."""
    events = [kineto_files.span("cpu_op", "a" * 100_000 + " ann@node7", 2, 70)]
    began = time.process_time()
    trace = ci.read(kineto_files.write(tmp_path / "rank0.json", events))
    assert time.process_time() - began < 10
    assert trace.names()[0].endswith("a account")


def test_calls_of_layers_are_no_accounts(tmp_path: Path) -> None:
    """All of CANN's calls, and what torch_npu takes from its queue, were called ``account7``."""
    names = [
        "AscendCL@aclnnMm",
        "Dequeue@Conv2DBackpropInput",
        "Enqueue@aclnnMm",
        "Node@launch",
        "Runtime@DevMalloc",
    ]
    texts = [*names, "enqueue@node7", "to Dequeuer@gama"]
    events = [kineto_files.span("cpu_op", text, 10 * k, 5) for k, text in enumerate(texts)]
    trace = ci.read(kineto_files.write(tmp_path / "rank0.json", events))
    assert trace.to_pandas()["name"].tolist() == [*names, "account", "to account1"]


def kineto(folder: Path) -> Path:
    span = kineto_files.span
    events = [
        span("python_function", "/home/zoltan/llm/train.py(12): step", 0, 90),
        span(
            "cpu_op", "aten::mm", 2, 70, args={"Call stack": "/home/zoltan/x.py(1): f;y.py(2): g"}
        ),
        kineto_files.call("hipLaunchKernel", 3, 5, 1),
        kineto_files.kernel("gemm", 20, 9, 1, kernel_file="/tmp/zoltan/k.py"),  # noqa: S108
        span(
            "cpu_op",
            "aten::add",
            80,
            2,
            args={
                "cmdline": ["zoltan", 1],
                "Host-Name": {"A": "zoltan"},
                "n": 3,
                "read": {"/home/zoltan/data.bin": 1},
            },
        ),
    ]
    header = {
        "host_name": "node-of-zoltan", "user": "zoltan", "SLURM_JOB_USER": "zoltan", "cmdline": "python zoltan.py",
        "roctracer_version": 4,
    }  # fmt: skip
    return kineto_files.write(folder / "rank0.json", events, **header)


HOST = "gama-node-7"
GROUP = {
    "Process Group Name": "0", "Process Group Description": f"tp of jansz@{HOST}", "Group size": 2,
    "Process Group Ranks": "[0, 1]", "Collective name": "allreduce", "dtype": "Float",
    "In msg nelems": 4, "Out msg nelems": 4,
}  # fmt: skip


def job_with_names_everywhere(folder: Path) -> Path:
    """Two ranks with a made-up word wherever a program or a cluster puts who runs it and where."""
    span = kineto_files.span
    folder.mkdir()
    arguments = {
        "note": f"run on {HOST}",
        "url": "x=%2Fhome%2Fericson%2Fa.py",
        "nested": r'{"cwd": "\/home\/frobisher\/b.py"}',
        "who": "hudson@example.org",
        "password": "ibnmajid",
    }
    for rank in (0, 1):
        label = {"labels": "barents@barents-1"}
        thread = {"name": f"thread cabot@{HOST}: pt_main"}
        events = [
            {"ph": "M", "name": "process_labels", "pid": 100, "tid": 0, "ts": 0, "args": label},
            {"ph": "M", "name": "thread_name", "pid": 100, "tid": 100, "ts": 0, "args": thread},
            span("user_annotation", f"step drake@{HOST}", 0, 95),
            span("user_annotation", f"load on {HOST}", 1, 2),
            span("cpu_op", "aten::mm", 3, 70, args=arguments),
            kineto_files.call("hipLaunchKernel", 4, 5, 1),
            kineto_files.kernel("ncclDevKernel_AllReduce_Sum_f32", 20, 9, 1, **GROUP),
            span("python_function", "%2Fhome%2Fkotzebue%2Ft.py(3): f", 74, 9),
            span("user_annotation", "magellan's warm-up", 84, 2),
        ]
        group = {"pg_name": "0", "pg_desc": GROUP["Process Group Description"], "ranks": [0, 1]}
        info = {"rank": rank, "world_size": 2, "backend": "nccl", "pg_config": [group]}
        header = {
            "host_name": HOST, "distributedInfo": info, "userMeta": "lapita of all", "tw_user": "magellan",
            "tw_job": "nansen", "HF_TOKEN": "pytheas", "launched": {"by": "orellana"},
        }  # fmt: skip
        name = f"{HOST}_{100}.{rank}.pt.trace.json"
        kineto_files.write(folder / name, events, **header)
    return folder


WORDS = (
    "gama", "barents", "cabot", "drake", "ericson", "frobisher", "hudson", "ibnmajid", "jansz", "kotzebue", "lapita",
    "magellan", "nansen", "orellana", "pytheas",
)  # fmt: skip


def test_no_words_of_users_hosts_and_clusters_get_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (job_with_names_everywhere(tmp_path / name) for name in ("a", "b"))
    trace = ci.read(first)
    made = written(trace, tmp_path)
    names = [f"{folder}/{HOST}_100.0.pt.trace.json" for folder in (first, second)]
    csv, page = tmp_path / "csv", tmp_path / "r.html"
    analyses = ["sweep", "compare", "summary", "collectives"]
    arguments = [names[0], *analyses, "--against", names[1]]
    analyze_main([*arguments, "--csv", str(csv), "--html", str(page)])
    analyze_main([*arguments, "--json"])
    made |= {path.name: path.read_bytes() for path in (*csv.iterdir(), page)}
    made |= {"stdout": "".join(capsys.readouterr()).encode()}
    leaks = {n: [w for w in WORDS if w.encode() in raw.lower()] for n, raw in made.items()}
    assert not any(leaks.values()), leaks
    # what analyses need is there
    assert {n for n in trace.names() if "step" in n or "load" in n} == {
        "step account",
        "load on host0",
    }
    (description,) = trace.groups["description"].to_pylist()
    assert description.startswith("tp of account")
    assert trace.meta.facts["world_size"] == "2"
    kept = ci.read(first, keep_environment=True)
    assert str(kept.groups["description"].to_pylist()) == f"['tp of jansz@{HOST}']"


def rocprofv3_json(folder: Path) -> Path:
    document = json.loads(next(s.data for s in rocprofv3.SEEDS if s.name.endswith(".json")))
    metadata = document["rocprofiler-sdk-tool"][0]["metadata"]
    metadata["node"] = {
        "hostname": "node-of-zoltan",
        "machine_id": "zoltan",
        "system_name": "zoltan",
    }
    metadata |= {
        "command": ["/home/zoltan/a.out", "--zoltan"],
        "config": {"output_path": "/home/zoltan"},
    }
    (folder / "7_results.json").write_text(json.dumps(document))
    return folder


def amd_smi_json(folder: Path) -> Path:
    """Telemetry with what must not be quoted: hosts, prompts of a shell, processes."""
    process = {"process_info": {"name": "zoltan.py", "pid": "zoltan"}}
    rows = [
        {
            "timestamp": 1_786_553_852 + tick,
            "gpu": 0,
            "hostname": "node-of-zoltan",
            "power": {"socket_power": {"value": 700 + tick, "unit": "W"}},
            "process_list": [process],
        }
        for tick in range(3)
    ]
    (folder / "metric.json").write_text(f"{json.dumps(rows)}\nzoltan@node:~$ exit\n")
    return folder / "metric.json"


def test_issues_of_telemetry_quote_no_names(tmp_path: Path) -> None:
    issues = ci.read(amd_smi_json(tmp_path)).meta.issues
    assert {"cell-not-a-number", "process-row"} <= {i.code for i in issues}
    assert "zoltan" not in str(issues)


@pytest.mark.parametrize("make", [kineto, rocprofv3_json])
def test_no_output_says_who_and_where(tmp_path: Path, make) -> None:
    (tmp_path / "of_zoltan").mkdir()
    path = make(tmp_path / "of_zoltan")
    trace = ci.read(path)
    for name, raw in written(trace, tmp_path).items():
        raw = raw.replace(b"of_zoltan", b"")  # noqa: PLW2901 # the folder that was given
        assert b"zoltan" not in raw, name
    assert {rank.host for rank in trace.meta.ranks} == {"host0"}
    (issue,) = [i for i in trace.meta.issues if i.code == "environment-left-out"]
    assert issue.count > 0
    kept = ci.read(path, keep_environment=True)
    assert {rank.host for rank in kept.meta.ranks} == {"node-of-zoltan"}
    assert not [i for i in kept.meta.issues if i.code == "environment-left-out"]
    assert_trace_equal(ci.read(path), trace)


def test_a_job_named_after_a_file_is_without_its_host(tmp_path: Path) -> None:
    """Kineto names files after the host."""
    path = kineto(tmp_path).rename(tmp_path / "node-of-zoltan_7.pt.trace.json")
    assert ci.read(path).meta.job == "host0_7"
    assert ci.read(path, name="of node-of-zoltan").meta.job == "of node-of-zoltan"
    folder = tmp_path / "node-of-zoltan"
    folder.mkdir()
    path.rename(folder / "rank0.json")
    assert ci.read(folder).meta.job == "host0"


def test_users_whose_folders_are_within_the_input_are_numbered(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for rank, user in enumerate(("zoltan", "ann")):
            events = [kineto_files.span("cpu_op", "aten::mm", 2, 70)]
            path = kineto_files.write(
                tmp_path / "rank.json", events, distributedInfo={"rank": rank}
            )
            archive.add(path, f"home/{user}/run/rank.json")
    trace = ci.read(tmp_path / "a.tar")
    places = [source.path for source in trace.meta.sources]
    assert places == [f"a.tar/home/user{k}/run/rank.json" for k in (0, 1)]


def test_all_else_stays(tmp_path: Path) -> None:
    path = kineto(tmp_path)
    trace, kept = ci.read(path), ci.read(path, keep_environment=True)
    assert trace.names()[0] == "train.py(12): step"
    assert trace.args(1)["Call stack"] == "x.py(1): f;y.py(2): g"
    without = {"cmdline": "", "Host-Name": "", "read": {"data.bin": 1}}
    assert trace.args(4) == kept.args(4) | without
    assert trace.meta.facts == {"roctracer_version": "4", "time_base": "1970"}
    ignored = ("nodes.name", "nodes.operation", "nodes.args", "meta")
    assert_trace_equal(trace, kept, ignore=ignored)


def test_nothing_is_counted_where_nothing_is_left_out(demo: Path, tmp_path: Path) -> None:
    """An output is read back as it was written."""
    ci.write(read_once(demo), tmp_path / "a.parquet")
    again = ci.read(tmp_path / "a.parquet")
    ci.write(again, tmp_path / "b.parquet")
    assert_trace_equal(
        again, ci.read(tmp_path / "b.parquet"), ignore=["meta.sources", "meta.job", "meta.issues"]
    )
    (count,) = [i.count for i in again.meta.issues if i.code == "environment-left-out"]
    assert count == 1, "the host's name, when it was first read"


def test_hosts_in_names_of_files_have_their_numbers(tmp_path: Path) -> None:
    """PyTorch names a trace HOST_PID.TIME if the program does not."""
    kineto(tmp_path).rename(tmp_path / "node-of-zoltan_100.170.pt.trace.json")
    trace = ci.read(tmp_path)
    assert [s.path for s in trace.meta.sources] == [f"{tmp_path.name}/host0_100.170.pt.trace.json"]
    assert "node-of-zoltan" not in str(trace.meta)


def test_inputs_are_not_overwritten_though_their_folders_are_not_known(tmp_path: Path) -> None:
    path = kineto(tmp_path)
    trace = ci.read(path)
    assert [source.path for source in trace.meta.sources] == ["rank0.json"]
    with pytest.raises(UsageError):
        ci.write(trace, path)


def test_folders_of_one_name_are_told_apart(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "run").mkdir(parents=True)
        kineto(tmp_path / name / "run").rename(
            tmp_path / name / "run" / f"rank{ord(name) - 97}.json"
        )
    trace = ci.read(tmp_path / "a" / "run", tmp_path / "b" / "run", run="all")
    assert [s.path for s in trace.meta.sources] == ["a/run/rank0.json", "b/run/rank1.json"]


def test_keys_are_found_in_any_case() -> None:
    assert all(key == key.lower().replace("_", "") for key in LEFT_OUT)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "power.csv",
            (
                "timestamp, index, power.draw [W], /home/zoltan/zoltan.d/a.py [W], zoltan@zoltan-7.zoltan\n"
                "2024/03/15 13:57:59.791, 0, 70.89, 1, 2\n2024/03/15 13:57:59.891, 0, 70.9, 2, 3\n"
            ),
        ),
        (
            "gpu.json",
            (
                '[{"timestamp": 1700000000, "gpu": 0, "power": {"socket_power": {"value": 3, "unit": "W"}, '
                '"/home/zoltan/a.py": {"value": 1, "unit": "W"}, "zoltan@zoltan-7": {"value": 2, "unit": "W"}}}]'
            ),
        ),
    ],
)
def test_names_of_columns_are_without_users_and_folders(
    tmp_path: Path, name: str, text: str
) -> None:
    """The own column of a user who writes with nvidia-smi's kept all words of its path."""
    (tmp_path / name).write_text(text)
    names = ci.read(tmp_path / name).series["name"].to_pylist()
    assert sorted(names) == ["a.py", "account", "socket power"]
    kept = ci.read(tmp_path / name, keep_environment=True).series["name"].to_pylist()
    assert any(name.startswith("/home/zoltan/") for name in kept)

"""The worked examples compute what their docstrings say."""

import json
import runpy
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from kineto_files import call, kernel, span, write
from read_once import read_once
from slow import slow_from

import chopper_interop as ci

EXAMPLES = Path(__file__).parent / "examples"
sys.path.insert(0, str(EXAMPLES))

import late  # noqa: E402
import layers  # noqa: E402
import longest  # noqa: E402


@pytest.fixture(scope="module")
def truth(demo: Path) -> dict:
    return json.loads((demo / "truth.json").read_text())


@pytest.fixture(scope="module")
def job(demo: Path) -> ci.Trace:
    return read_once(demo)


def test_layers_sum_to_the_time_and_clock_of_the_truth(job: ci.Trace, truth: dict) -> None:
    table = layers.by_layer(job)
    kernels = truth["kernels"]
    compute = [k not in ("copy", "collective") for k in kernels["class"]]
    total = int(np.array(kernels["dur_ns"])[compute].sum())
    frame = job.to_pandas().query("kind == 'kernel'")
    assert table["time_ns"].sum() == frame["dur"].sum() >= total
    assert table["kernels"].sum() == len(frame)
    of_layers = table[table.index.get_level_values("layer").notna()]
    assert set(of_layers.index.get_level_values("phase")) >= {"forward", "backward"}
    weight, clock = (
        np.array(kernels["dur_ns"])[compute],
        np.array(kernels["mean_clock_mhz"])[compute],
    )
    mean = (table["clock_mhz"] * table["time_ns"]).sum() / table["time_ns"].sum()
    assert mean == pytest.approx(np.average(clock, weights=weight), rel=0.02)
    assert (table["energy_j"] > 0).all()


def test_waits_match_the_truth(job: ci.Trace, truth: dict) -> None:
    table = late.waits(job)
    expected = np.array(truth["collectives"]["waits_ns"])
    assert table["waited_ns"].tolist() == expected.sum(axis=0).tolist()
    assert table["came_last"].sum() >= len(expected)


def test_the_longest_chain_matches_networkx(job: ci.Trace) -> None:
    graph = job.endpoints(["stream", "event", "comm"])
    kinds = job.to_pandas()["kind"].to_numpy()
    oracle: nx.DiGraph = nx.DiGraph()
    for s, d, gap in zip(graph.src, graph.after, graph.gap_ns, strict=True):
        a, b = int(graph.node[s]), int(graph.node[d])
        if {kinds[a], kinds[b]} <= {"kernel", "comm", "memcpy", "memset"}:
            oracle.add_edge(int(s), int(d), weight=int(gap) if a == b else 0)
    assert longest.longest_ns(job) == nx.dag_longest_path_length(oracle)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file without collectives."""
    events = [
        span("cpu_op", "aten::mm", 10, 20),
        call("hipLaunchKernel", 12, 5, 1),
        kernel("gemm", 40, 8, 1),
    ]
    return write(tmp_path_factory.mktemp("alone") / "one.json", events)


@pytest.mark.parametrize("name", ["layers", "late", "longest"])
@pytest.mark.parametrize("what", slow_from(["job", "without telemetry", "one file"], 1))
def test_examples_run_as_scripts(
    demo: Path,
    alone: Path,
    name: str,
    what: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = {"job": demo, "without telemetry": demo / "kineto", "one file": alone}[what]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", str(path)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert capsys.readouterr().out.strip()

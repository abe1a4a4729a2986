"""Analyses that a folder is said to support, against those that have an answer from it."""

import gzip
import json
import shutil
from pathlib import Path

import kineto_files
import pytest
from slow import slow_from

import chopper_interop as ci
from chopper_interop import registry
from chopper_interop.analyses.methods import needs
from chopper_interop.commands import analysis_plan, recorded_contents

OF_WORK = {
    "breakdown", "critical_path", "efficiency", "findings", "idle", "imbalance", "kernels", "launch",
    "overlap", "taxes", "temporal", "what_if",
}  # fmt: skip
OF_RANKS_AND_STEPS = {"collectives", "replay", "stragglers"}
OF_TELEMETRY = {"energy", "telemetry", "throttling"}
OF_BOTH = OF_WORK | OF_RANKS_AND_STEPS | OF_TELEMETRY | {"dvfs", "excursions", "power"}
FOLDERS = {
    ("telemetry",): OF_TELEMETRY | {"efficiency", "imbalance"},  # profiles name the GPU and so its limit
    ("kineto",): OF_WORK | OF_RANKS_AND_STEPS | {"telemetry"},  # counters of its own
    ("kineto", "telemetry"): OF_BOTH - {"dvfs", "energy", "power"},  # 8 GPUs, and none named, of 2 ranks
    ("kineto", "telemetry", "rocprof"): OF_BOTH | {"memory_round_trips"},
    ("rocprof",): OF_WORK | {"dvfs", "memory_round_trips"},
}  # fmt: skip
"""Folders of the sample job → analyses that they support."""
EMPTY_ANSWERS = ("no GPU was ever above its limit", "nothing was found that would save")


def part_of_job(demo: Path, names: tuple[str, ...], to: Path) -> Path:
    for name in names:
        shutil.copytree(demo / name, to / name)
    return to


def answered(folder: Path) -> set[str]:
    """Names of the analyses that have an answer; one whose figures are all unknown has none."""
    plan = analysis_plan.plan_analyses([], {}, {}, against=False)
    results = analysis_plan.run_analyses(ci.read(folder), plan).results
    return {
        result.analysis
        for result in results
        if result.analysis != "summary"
        and (result.rows.num_rows or result.notes.get("no rows", "").startswith(EMPTY_ANSWERS))
        and not (result.analysis == "energy" and not any(result.rows["energy_j"].to_pylist()))
    }


def test_the_needs_of_each_analysis_are_declared() -> None:
    assert [*needs.NEEDS] == registry.analysis_names()


@pytest.mark.parametrize("names", FOLDERS, ids="+".join)
def test_what_a_folder_supports(demo: Path, tmp_path: Path, names: tuple[str, ...]) -> None:
    folder = part_of_job(demo, names, tmp_path)
    others = set(recorded_contents.look_at(folder)[1]) ^ FOLDERS[names]
    assert not others, (
        "a new analysis stands in the sets above that it has an answer from, by its needs"
    )


@pytest.mark.slow
@pytest.mark.parametrize("names", FOLDERS, ids="+".join)
def test_what_is_said_is_what_has_an_answer(
    demo: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    assert answered(part_of_job(demo, names, tmp_path)) == FOLDERS[names]


def long_profile(path: Path, *last: dict) -> Path:
    """A profile whose work of GPUs, if it has any, stands behind 2 MB of operators."""
    operators = [kineto_files.span("cpu_op", "aten::add", n, 0.5) for n in range(20_000)]
    return kineto_files.write(path, [*operators, *last])


@pytest.mark.parametrize("name", slow_from(["p.json", "p.json.gz"], 1))
def test_work_far_from_the_beginning_of_a_file_counts(tmp_path: Path, name: str) -> None:
    path = long_profile(tmp_path / name, kineto_files.kernel("gemm", 30_000, 10, 1))
    raw = path.read_bytes()
    assert len(gzip.decompress(raw) if name.endswith(".gz") else raw) > 2_000_000
    assert set(recorded_contents.look_at(tmp_path)[1]) == OF_WORK
    long_profile(path, kineto_files.kernel("ncclDevKernel_AllReduce", 30_000, 10, 1))
    assert set(recorded_contents.look_at(tmp_path)[1]) == OF_WORK | {"collectives"}


@pytest.mark.parametrize("write", [long_profile, lambda path: kineto_files.write(path, [])])
def test_a_profile_without_work_supports_the_summary_alone(tmp_path: Path, write) -> None:
    write(tmp_path / "p.json")
    (tmp_path / "notes.txt").write_text("kernel\n")
    assert recorded_contents.look_at(tmp_path) == (["kineto"], [])


def test_what_is_looked_at_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the root is the root: the copy was the file itself, of which nothing was left."""
    path = long_profile(tmp_path / "p.json", kineto_files.kernel("gemm", 30_000, 10, 1))
    before = path.read_bytes()
    monkeypatch.chdir(tmp_path)
    above = Path(*[".."] * 2 * len(tmp_path.parts), *tmp_path.parts[1:])
    assert set(recorded_contents.look_at(above)[1]) == OF_WORK
    assert path.read_bytes() == before


def test_of_a_folder_without_a_recording_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "loss.json").write_text(json.dumps({"loss": [1, 2]}))
    assert recorded_contents.look_at(tmp_path) == ([], [])


def test_a_folder_of_many_files_is_not_looked_at_for_long(tmp_path: Path, monkeypatch) -> None:
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        kineto_files.write(tmp_path / str(rank) / "p.json", [kineto_files.kernel("k", 5, 1, 1)])
    monkeypatch.setattr(recorded_contents, "_PATIENCE_S", 0)
    with pytest.raises(TimeoutError, match="a look at its files takes more than 0 s"):
        recorded_contents.look_at(tmp_path)

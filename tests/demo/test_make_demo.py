"""The public function: parameters, folders, equal bytes."""

from __future__ import annotations

import gzip
import inspect
import json
from dataclasses import fields
from statistics import fmean

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chopper_interop.demo import make_demo
from chopper_interop.demo.folder import simulate_job
from chopper_interop.demo.parameters import DemoParameters
from chopper_interop.demo.render import MILLIONTHS, PLAIN, THOUSANDTHS, Template
from chopper_interop.demo.truth import truth
from chopper_interop.errors import ChopperError, UsageError, WriteError

TINY = {"ranks": 2, "layers": 1, "steps": 1, "sequence": 256, "recorder_hz": 100}


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_equal_parameters_give_equal_bytes(tmp_path):
    one, two = (content(make_demo(tmp_path / name, **TINY)) for name in ("one", "two"))
    assert one == two
    other = content(make_demo(tmp_path / "other", **TINY, seed=1))
    assert other["truth.json"] != one["truth.json"]


def test_folder_holds_what_it_should(tmp_path):
    files = content(make_demo(str(tmp_path / "deep" / "job"), **TINY))
    kinds = [name.split("/")[0] for name in files]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        "README.txt": 1,
        "kineto": 2,
        "rocprof": 12,
        "telemetry": 2,
        "truth.json": 1,
    }
    assert b"chopper-convert" in files["README.txt"]


def test_parts_can_be_left_out(tmp_path):
    path = make_demo(
        tmp_path / "job", **TINY | {"recorder_hz": 0}, counter_steps=0, truth_kernels=False
    )
    assert sorted(p.name for p in path.iterdir()) == [
        "README.txt",
        "kineto",
        "telemetry",
        "truth.json",
    ]
    assert [p.name for p in (path / "telemetry").iterdir()] == ["amd-smi-watch.csv"]
    assert "kernels" not in json.loads((path / "truth.json").read_bytes())
    make_demo(path, **TINY, telemetry=False)
    assert not (path / "telemetry").exists()


def test_an_earlier_demo_is_replaced(tmp_path):
    path = make_demo(tmp_path / "job", **TINY)
    (path / "job.pftrace").write_text("made of it")
    make_demo(path, **TINY, telemetry=False)
    assert (path / "job.pftrace").read_text() == "made of it"
    assert not (path / "telemetry").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["job"]


def test_files_of_the_users_within_an_earlier_demo_are_left_alone(tmp_path):
    path = make_demo(tmp_path / "job", **TINY)
    user_file = path / "kineto" / "notes.json"
    user_file.write_text("of the user")
    with pytest.raises(UsageError, match=r"notes\.json is not of the demo"):
        make_demo(path, **TINY)
    assert user_file.read_text() == "of the user"


def test_an_empty_folder_is_taken(tmp_path):
    (tmp_path / "job").mkdir()
    path = make_demo(tmp_path / "job", **TINY)
    assert path == tmp_path / "job"
    assert (path / "truth.json").is_file()


@pytest.mark.parametrize("name", ["thesis.txt", "truth.json"])
def test_anything_else_is_left_alone(tmp_path, name):
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / name).write_text('{"format": "something else"}')
    with pytest.raises(UsageError, match="neither empty nor an earlier demo"):
        make_demo(tmp_path / "job", **TINY)
    with pytest.raises(UsageError):
        make_demo(tmp_path / "job" / name, **TINY)
    assert [p.name for p in (tmp_path / "job").iterdir()] == [name]


def test_nothing_is_left_of_a_failure(tmp_path, monkeypatch):
    from chopper_interop.demo import folder

    def fail(*_, **__):
        raise OSError("disk full")

    path = make_demo(tmp_path / "job", **TINY)
    before = content(path)
    monkeypatch.setattr(folder, "write_rocprof", fail)
    with pytest.raises(WriteError, match="disk full"):
        make_demo(path, **TINY, seed=3)
    assert content(path) == before
    assert [p.name for p in tmp_path.iterdir()] == ["job"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ranks", 0),
        ("ranks", 9),
        ("ranks", 2.0),
        ("ranks", True),
        ("layers", 0),
        ("steps", "3"),
        ("seed", -1),
        ("recorder_hz", -5),
        ("peak_scale", 2),
        ("peak_scale", float("nan")),
        ("power_w", 299),
        ("power_w", 450.0),
        ("straggler", 8),
        ("straggler_slowdown", 0.9),
        ("sequence", 300),
        ("counter_steps", -1),
        ("telemetry", 1),
    ],
)
def test_parameters_out_of_range_are_refused(tmp_path, name, value):
    with pytest.raises(UsageError, match=name) as caught:
        make_demo(tmp_path / "job", **{name: value})
    assert isinstance(caught.value, ChopperError)
    assert not (tmp_path / "job").exists()


def test_signature_offers_every_parameter():
    signature = inspect.signature(make_demo).parameters
    assert list(signature)[1:] == [field.name for field in fields(DemoParameters)]
    for field in fields(DemoParameters):
        parameter = signature[field.name]
        assert parameter.kind is parameter.KEYWORD_ONLY
        assert parameter.default == field.default
        assert f"\n{field.name}\n" in inspect.getdoc(make_demo)


def test_straggler_counts_modulo_the_ranks():
    assert DemoParameters(ranks=2).slow_rank == 1
    assert DemoParameters(ranks=1).slow_rank == -1
    assert DemoParameters(straggler=-1).slow_rank == -1
    assert DemoParameters(straggler_slowdown=1).slow_rank == -1


def test_peak_scale_moves_the_peak(tmp_path):
    path = make_demo(tmp_path / "job", **TINY, peak_scale=0.8)
    content = json.loads((path / "truth.json").read_bytes())
    assert content["constants"]["peak_mhz"] == 1680
    assert max(content["kernels"]["mean_clock_mhz"]) <= 1680
    agents = next((path / "rocprof").rglob("*_agent_info.csv")).read_text()
    assert ",1680," in agents


def test_default_demo_is_small(tmp_path):
    path = make_demo(tmp_path / "job")
    assert sum(len(data) for data in content(path).values()) < 15_000_000
    truth = json.loads((path / "truth.json").read_bytes())
    assert truth["straggler"]["slowdown"] == pytest.approx(1.06, abs=0.01)
    assert all(80e6 < time < 300e6 for time in truth["measured_step_ns"])
    kernels = truth["kernels"]
    assert max(kernels["launch_ns"]) > 1e6  # the host is late after its syncs
    late = [gap for gap in kernels["launch_ns"] if gap > 0]
    assert len(late) < 0.3 * len(kernels["launch_ns"])  # and ahead elsewhere


@pytest.mark.slow
@settings(max_examples=8, suppress_health_check=list(HealthCheck))
@given(
    st.fixed_dictionaries(
        {
            "ranks": st.integers(1, 8),
            "layers": st.integers(1, 3),
            "steps": st.integers(1, 3),
            "seed": st.integers(0, 2**31 - 1),
            "straggler": st.integers(-1, 7),
            "straggler_slowdown": st.floats(1, 1.2),
            "peak_scale": st.floats(0.7, 1.2),
            "sequence": st.sampled_from([256, 1024, 4096]),
            "batch": st.integers(1, 3),
        }
    )
)
def test_whatever_the_parameters_the_truth_is_consistent(chosen):
    job = simulate_job(DemoParameters(**chosen))
    actual = truth(job)
    kernels = actual["kernels"]
    pairs = zip(kernels["ideal_dur_ns"], kernels["dur_ns"], strict=True)
    assert all(0 < ideal <= measured for ideal, measured in pairs)
    assert all(1 <= mhz <= job.parameters.peak_mhz for mhz in kernels["mean_clock_mhz"])
    for path in (actual["critical_path"]["window"], *actual["critical_path"]["steps"].values()):
        assert sum(path["dur_ns"]) == path["end_ns"] - path["start_ns"]
        assert min(path["dur_ns"]) > 0
    steps = actual["steps"]
    for busy, idle, duration in zip(
        steps["busy_ns"], steps["idle_ns"], steps["duration_ns"], strict=True
    ):
        assert busy + idle == duration
        assert idle >= 0
    for starts, end in zip(
        actual["collectives"]["starts_ns"], actual["collectives"]["end_ns"], strict=True
    ):
        assert max(starts) < end
    if chosen["peak_scale"] <= 1:
        assert job.clock.highest_mhz.max() == job.parameters.peak_mhz


@given(st.lists(st.tuples(st.integers(-(2**62), 2**62), st.sampled_from([0, 3, 6])), max_size=8))
def test_template_renders_numbers(numbers):
    template = Template()
    for place, (_, decimals) in enumerate(numbers):
        template.text("<").slot(place, decimals).text(">")
    import numpy as np

    text = bytes(template.compile().render(np.array([n for n, _ in numbers], dtype=np.int64)))
    expected = ""
    for value, decimals in numbers:
        digits = str(abs(value)).zfill(decimals + 1)
        cut = len(digits) - decimals
        number = digits[:cut] + ("." + digits[cut:] if decimals else "")
        expected += f"<{'-' * (value < 0)}{number}>"
    assert text.decode() == expected
    assert {PLAIN, THOUSANDTHS, MILLIONTHS} == {0, 3, 6}


def test_kineto_names_hold_no_odd_characters(tmp_path):
    path = make_demo(tmp_path / "job", **TINY)
    for file in (path / "kineto").iterdir():
        assert gzip.decompress(file.read_bytes()).isascii()


def test_power_moves_the_clock_and_is_reported_where_it_differs(tmp_path):
    usual = json.loads((make_demo(tmp_path / "a", **TINY) / "truth.json").read_bytes())
    held = json.loads((make_demo(tmp_path / "b", **TINY, power_w=450) / "truth.json").read_bytes())
    assert "power_w" not in usual["parameters"]
    assert held["parameters"]["power_w"] == 450
    clocks = [fmean(truth["kernels"]["mean_clock_mhz"]) for truth in (usual, held)]
    assert clocks[1] < 0.95 * clocks[0]
    assert held["ideal_step_ns"] == usual["ideal_step_ns"]

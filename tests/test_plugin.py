"""A plug-in package adds a format and an analysis, and a broken one does not affect the others."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from chopper_interop.testing import check_analysis, check_converter

PLUGIN = Path(__file__).parent / "plugin"
TOY = """#chopper-toy 1
rank,thread,name,start_us,duration_us
0,17,step,0,20
0,17,load batch,0.5,12.25
0,17,"compute, all",13,6.001
1,18,step,0.25,19
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Folder with the plug-in as pip installs it, and another one that does not load."""
    target = tmp_path_factory.mktemp("site")
    source = tmp_path_factory.mktemp("source")
    for file in PLUGIN.iterdir():
        if file.is_file():
            (source / file.name).write_bytes(file.read_bytes())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *offline, str(source)], check=True, capture_output=True, text=True)
    _install_broken(target)
    return target


def _install_broken(target):
    """Write what pip installs of a package of which one module raises and one ends the process."""
    (target / "chopper_shards.py").write_text("raise RuntimeError('glass everywhere')\n")
    (target / "chopper_leaver.py").write_text("import sys\nsys.exit(3)\n")
    metadata = target / "chopper_shards-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: chopper-shards\nVersion: 1.0\n"
    )
    (metadata / "entry_points.txt").write_text(
        "[chopper_interop.converters]\nshards = chopper_shards:SHARDS\nleaver = chopper_leaver:X\n"
        "[chopper_interop.analyses]\nshards_count = chopper_shards:count\n"
    )


@pytest.fixture
def run(installed, tmp_path):
    """Run a command in a process that can import the plug-ins."""
    (tmp_path / "a.toy.csv").write_text(TOY)

    paths = [str(installed), os.environ.get("PYTHONPATH")]

    def command(name, *arguments):
        code = f"import sys; from chopper_interop.cli import {name}; sys.exit({name}())"
        return subprocess.run(
            [sys.executable, "-c", code, *arguments],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            capture_output=True,
            text=True,
            check=False,
        )

    return command


def _plugin():
    spec = importlib.util.spec_from_file_location("chopper_toy", PLUGIN / "chopper_toy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formats_are_listed_with_their_options_and_broken_ones_with_the_reason(run):
    done = run("convert_main", "--formats")
    assert done.returncode == 0
    lines = iter(done.stdout.splitlines())
    line = next(line for line in lines if line.startswith("toy"))
    assert "toy ranges (CSV)" in line
    assert any("-O shift_us=0" in line for line in lines)
    line = next(line for line in done.stdout.splitlines() if line.strip().startswith("shards"))
    assert "RuntimeError: glass everywhere" in line
    assert "SystemExit: 3" in done.stdout
    assert "kineto" in done.stdout


def test_broken_plugin_gives_the_reason_when_it_is_requested(run):
    done = run("convert_main", "a.toy.csv", "-o", "a.out", "--to", "shards")
    assert done.returncode == 3
    assert "glass everywhere" in done.stderr
    assert "Traceback" not in done.stderr


def test_file_of_the_format_becomes_a_perfetto_trace(run, tmp_path):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    done = run("convert_main", "a.toy.csv", "-o", "a.pftrace")
    assert done.returncode == 0, done.stderr
    trace = proto.Trace.FromString((tmp_path / "a.pftrace").read_bytes())
    names = {
        entry.iid: entry.name
        for packet in trace.packet
        for entry in packet.interned_data.event_names
    }
    begun = [
        (names[packet.track_event.name_iid], packet.timestamp)
        for packet in trace.packet
        if packet.track_event.type == proto.TrackEvent.TYPE_SLICE_BEGIN
    ]
    assert sorted(begun) == [
        ("compute, all", 13_000),
        ("load batch", 500),
        ("step", 0),
        ("step", 250),
    ]


def test_option_of_the_reader_is_converted_to_its_type(run, tmp_path):
    done = run("convert_main", "a.toy.csv", "-o", "b.toy.csv", "-O", "shift_us=7")
    assert done.returncode == 0, done.stderr
    starts = [line.split(",")[-2] for line in (tmp_path / "b.toy.csv").read_text().splitlines()[2:]]
    assert starts == ["7", "7.5", "20", "7.25"]
    refused = run("convert_main", "a.toy.csv", "-o", "b.toy.csv", "-O", "shift_us=soon")
    assert refused.returncode == 2
    assert "soon" in refused.stderr


def test_analysis_runs_like_a_built_in_one(run):
    done = run("analyze_main", "a.toy.csv", "toy_longest", "--json", "-O", "top=2")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)["toy_longest"]
    assert answer["rows"] == [
        {"name": "step", "dur_ns": 20_000},
        {"name": "step", "dur_ns": 19_000},
    ]
    assert answer["summary"] == {"nodes": 4}


def test_converter_passes_the_acceptance_test(tmp_path):
    (tmp_path / "a.toy.csv").write_text(TOY)
    check_converter(_plugin().TOY, tmp_path / "a.toy.csv")


def test_analysis_passes_the_acceptance_test(tmp_path):
    (tmp_path / "a.toy.csv").write_text(TOY)
    plugin = _plugin()
    check_analysis(plugin.toy_longest, plugin.read([tmp_path / "a.toy.csv"]))

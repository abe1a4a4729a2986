"""A plug-in package adds a format and an analysis, and a broken one does not affect the others."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import forked
import pytest
from slow import slow_from

import chopper_interop as ci
from chopper_interop.testing import check_analysis, check_converter
from chopper_interop.testing.samples import tiny_trace

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


COMMANDS = {
    "formats": ["convert", "--formats"],
    "broken": ["convert", "a.toy.csv", "-o", "a.out", "--to", "shards"],
    "perfetto": ["convert", "a.toy.csv", "-o", "a.pftrace"],
    "option": ["convert", "a.toy.csv", "-o", "b.toy.csv", "-O", "shift_us=7"],
    "refused": ["convert", "a.toy.csv", "-o", "b.toy.csv", "-O", "shift_us=soon"],
    "analysis": ["analyze", "a.toy.csv", "toy_longest", "--json", "-O", "top=2"],
}
RUN = """
import contextlib, io, json, sys
from chopper_interop import cli

def run(command, *arguments):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            status = getattr(cli, f"{command}_main")(arguments)
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()

print(json.dumps({name: run(*words) for name, words in json.loads(sys.argv[1]).items()}))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder in which the commands run."""
    path = tmp_path_factory.mktemp("run")
    (path / "a.toy.csv").write_text(TOY)
    return path


@pytest.fixture(scope="module")
def done(installed, folder):
    """Run the commands in a process that can import the plug-ins: status, output and errors of each."""
    paths = [str(installed), os.environ.get("PYTHONPATH")]
    process = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(COMMANDS)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(process.stdout)


def _plugin():
    spec = importlib.util.spec_from_file_location("chopper_toy", PLUGIN / "chopper_toy.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_formats_are_listed_with_their_options_and_broken_ones_with_the_reason(done):
    status, output, _ = done["formats"]
    assert status == 0
    lines = iter(output.splitlines())
    line = next(line for line in lines if line.startswith("toy"))
    assert "toy ranges (CSV)" in line
    assert any("-O shift_us=0" in line for line in lines)
    line = next(line for line in output.splitlines() if line.strip().startswith("shards"))
    assert "RuntimeError: glass everywhere" in line
    assert "SystemExit: 3" in output
    assert "kineto" in output


def test_broken_plugin_gives_the_reason_when_it_is_requested(done):
    status, _, errors = done["broken"]
    assert status == 3
    assert "glass everywhere" in errors
    assert "Traceback" not in errors


def test_file_of_the_format_becomes_a_perfetto_trace(done, folder):
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

    status, _, errors = done["perfetto"]
    assert status == 0, errors
    trace = proto.Trace.FromString((folder / "a.pftrace").read_bytes())
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


def test_option_of_the_reader_is_converted_to_its_type(done, folder):
    status, _, errors = done["option"]
    assert status == 0, errors
    starts = [line.split(",")[-2] for line in (folder / "b.toy.csv").read_text().splitlines()[2:]]
    assert starts == ["7", "7.5", "20", "7.25"]
    status, _, errors = done["refused"]
    assert status == 2
    assert "soon" in errors


def test_analysis_runs_like_a_built_in_one(done):
    status, output, errors = done["analysis"]
    assert status == 0, errors
    answer = json.loads(output)["toy_longest"]
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


def _install_odd(folder, code, entry_points):
    """Write what pip installs of a package of one module."""
    facts = folder / "odd-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(entry_points)
    (folder / "odd.py").write_text(code)


@pytest.mark.parametrize(
    ("group", "code", "reason"),
    slow_from(
        [
            ("converters", "raise GeneratorExit", "GeneratorExit"),
            ("analyses", "plugin = 5", "odd:plugin is no function"),
            ("converters", "class Own(BaseException): pass\nraise Own('x')", "Own: x"),
        ],
        2,
    ),
)
def test_a_plugin_of_any_kind_is_one_line(tmp_path, group: str, code: str, reason: str):
    done = _listed(tmp_path, group, code)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(rf"odd +does not load: {reason}", done.stdout)


def test_a_thread_of_a_plugin_that_fails_is_one_line(tmp_path):
    code = "import threading\nt = threading.Thread(target=lambda: 1 / 0)\nt.start()\nt.join()"
    done = _listed(tmp_path, "converters", code)
    assert (done.returncode, done.stderr) == (0, "ignored: ZeroDivisionError: division by zero\n")


def _listed(folder, group, code):
    """Result of listing a group with a package of this code."""
    _install_odd(folder, code, f"[chopper_interop.{group}]\nodd = odd:plugin\n")
    name = {"converters": "convert_main", "analyses": "analyze_main"}[group]
    listing = {"converters": "--formats", "analyses": "--list"}[group]
    entry = f"import sys; from chopper_interop.cli import {name}; sys.exit({name}([{listing!r}]))"
    return forked.Child("", [], os.environ, [folder], first=entry).run()


ODD_PLUGIN = """
from dataclasses import replace
import numpy as np, pyarrow as pa
from chopper_interop.registry import Converter
from chopper_interop.result import Result
from chopper_interop.testing.samples import tiny_trace

def column(table, name, change):
    def changed(trace):
        data = getattr(trace, table)
        at, kind = data.column_names.index(name), data.schema.field(name).type
        values = change(data.num_rows)
        values = values if isinstance(values, pa.Array) else pa.array(values, kind)
        return replace(trace, **{table: data.set_column(at, name, values)})
    return changed

class Dumb(Exception):
    def __str__(self):
        return {}["k"]

def raises(error):
    raise error

READ = {
    "none": lambda trace: None,
    "generator": lambda trace: (row for row in [trace]),
    "no table": lambda trace: replace(trace, edges={}),
    "text": lambda trace: replace(trace, text="x"),
    "meta": lambda trace: trace.with_meta(origin_ns=None),
    "large": lambda trace: trace.with_meta(origin_ns=2**80),
    "type": column("nodes", "ts", lambda n: pa.array(["x"] * n)),
    "null": column("nodes", "dur", lambda n: [None] * n),
    "lane": column("nodes", "lane", lambda n: [2**31 - 1] * n),
    "edge": column("edges", "dst", lambda n: [-7] * n),
    "time": column("nodes", "ts", lambda n: [-2**63] * n),
    "length": lambda trace: trace.with_columns(flops=[1]),
    "raises": lambda trace: {}["k"],
    "raises dumb": lambda trace: raises(Dumb()),
}
RESULT = {
    "rows": lambda rows: Result("odd", [1]),
    "names": lambda rows: Result("odd", pa.table([[1], [2]], names=["a", "a"])),
    "unit": lambda rows: Result("odd", pa.table({"a_ns": ["x"]})),
    "summary": lambda rows: Result("odd", rows, {5: 1}),
    "notes": lambda rows: Result("odd", rows, notes={"a": 5}),
    "returns": lambda rows: {},
    "fails": lambda rows: 1 / 0,
}
WRITE = {
    "nothing": lambda path: None,
    "number": lambda path: (path.write_text("x"), 5)[1],
    "numbers": lambda path: (path.write_text("x"), [5])[1],
    "breaks": lambda path: 1 / 0,
}

def odd(trace, *, case: str = ""):
    return RESULT[case](pa.table({"a_ns": [1]}))

ODD = Converter(
    name="odd", description="odd", suffixes=(".odd",), sniff=lambda head: head.startswith(b"#odd"),
    read=lambda paths: READ.get(paths[0].read_text()[5:], lambda trace: trace)(tiny_trace()),
    write=lambda trace, path: WRITE[path.stem](path),
)
"""
STATUSES = {"raises": 70, "raises dumb": 70, "fails": 70, "breaks": 70}
ODD_COMMANDS = {
    "read": ("none", "generator", "no table", "text", "meta", "large", "type", "null", "lane",
             "edge", "time", "length", "raises", "raises dumb"),
    "result": ("rows", "names", "unit", "summary", "notes", "returns", "fails"),
    "write": ("nothing", "number", "numbers", "breaks"),
}  # fmt: skip


def _ran_with_odd(folder, commands):
    """Status, stdout and stderr of each command, by name, run in one process that sees the folder's package."""
    child = forked.Child("", [json.dumps(commands)], os.environ, [folder], first=RUN, folder=folder)
    done = child.run()
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_what_a_plugin_returns_is_checked(tmp_path):
    """A lane that is not there was an access beyond an array, and a writer that wrote nothing a success."""
    converters = "[chopper_interop.converters]\nodd = odd:ODD\n"
    _install_odd(tmp_path, ODD_PLUGIN, f"{converters}[chopper_interop.analyses]\nodd = odd:odd\n")
    for case in ("", *ODD_COMMANDS["read"]):
        (tmp_path / f"{case}.txt").write_text(f"#odd {case}")
    commands = {
        "read": lambda case: ["convert", "-q", f"{case}.txt", "-o", f"{case}.json"],
        "result": lambda case: ["analyze", "-q", ".txt", "odd", "-O", f"case={case}"],
        "write": lambda case: ["convert", "-q", ".txt", "-o", f"{case}.odd"],
    }
    asked = {case: commands[kind](case) for kind, cases in ODD_COMMANDS.items() for case in cases}
    for case, (status, _, err) in _ran_with_odd(tmp_path, asked).items():
        assert (status, err.count("\n")) == (STATUSES.get(case, 8), 1), (case, err)
        assert status == 8 or "report it to the authors of odd 1.0" in err, err


FLAWED = """
from chopper_interop.registry import Converter

def made(name, **fields):
    return Converter(name=name, **{"description": "odd", "suffixes": (".odd",), "read": read, **fields})

def read(paths):
    raise NotImplementedError

SUFFIXES = made("SUFFIXES", suffixes=None)
WORDS = made("WORDS", json_words="abc")
TEXT = made("TEXT", description=5)
RATIO = made("RATIO", memory_ratio=float("nan"))
NAME = made(None)
MODULE = made("MODULE", read="no_such_module:read")
"""
FLAWS = {
    "SUFFIXES": "its suffixes is not a tuple of texts",
    "WORDS": "its json_words is not a tuple of bytes",
    "TEXT": "its description is not a text",
    "RATIO": "its memory_ratio is not a number above 0",
    "NAME": "its name is None, and not 'NAME'",
    "MODULE": "no_such_module:read does not load",
}


@pytest.mark.slow
def test_flawed_converters_do_not_affect_other_formats(tmp_path):
    """One whose suffixes are None ended every conversion with an internal error."""
    points = "".join(f"{name} = odd:{name}\n" for name in FLAWS)
    _install_odd(tmp_path, FLAWED, f"[chopper_interop.converters]\n{points}")
    ci.write(tiny_trace(), tmp_path / "a.json")
    asked = {
        "formats": ["convert", "--formats"],
        "other": ["convert", "-q", "a.json", "-o", "b.json"],
    }
    done = _ran_with_odd(tmp_path, asked)
    assert (done["other"][0], done["formats"][0]) == (0, 0), done
    listed = " ".join(done["formats"][1].split())
    for name, flaw in FLAWS.items():
        assert (f"{name} " in listed, flaw in listed) == (True, True), name


FAILING = """
from chopper_interop.registry import Converter

def fails(*arguments):
    raise ZeroDivisionError(f"of {len(arguments)}")

SNIFFS = Converter(name="SNIFFS", description="odd", sniff=fails, read=fails)
CONFIRMS = Converter(name="CONFIRMS", description="odd", confirms=fails, read=fails)
"""


def test_a_converter_that_fails_when_it_looks_at_files_stops_no_other(tmp_path):
    """Each is counted in one line; what nobody recognises is skipped with the reason."""
    points = "SNIFFS = odd:SNIFFS\nCONFIRMS = odd:CONFIRMS\n"
    _install_odd(tmp_path, FAILING, f"[chopper_interop.converters]\n{points}")
    ci.write(tiny_trace(), tmp_path / "run/a.json")
    (tmp_path / "run/notes.txt").write_text("of nobody")
    asked = {
        "folder": ["convert", "run", "-o", "b.json"],
        "quiet": ["convert", "-q", "run", "-o", "c.json"],
        "strict": ["convert", "-q", "run", "-o", "d.json", "--on-loss", "error"],
        "notes": ["convert", "-q", "run/notes.txt", "-o", "e.json"],
        "named": ["convert", "-q", "run/a.json", "-o", "f.json", "--from", "kineto"],
    }
    done = _ran_with_odd(tmp_path, asked)
    assert {name: status for name, (status, _, _) in done.items()} == {
        "folder": 0, "quiet": 0, "strict": 7, "notes": 3, "named": 0
    }, done  # fmt: skip
    folder = " ".join(done["folder"][2].split())
    assert "SNIFFS: ZeroDivisionError: of 1" in folder
    assert "(converter-fails)" in folder
    assert "no format that is known here" in folder
    assert done["quiet"][2] == "something was lost: 3 converter-fails\n"
    assert "the converter 'SNIFFS' fails when it looks at it: ZeroDivisionError" in done["notes"][2]
    assert "the converter 'CONFIRMS' fails" in done["notes"][2]
    assert done["named"][2] == ""
    assert not (tmp_path / "d.json").exists()

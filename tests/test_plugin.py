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
    assert "format 'shards', of chopper-shards 1.0, does not load" in errors
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
STATUSES = {"raises": 12, "raises dumb": 12, "fails": 12, "breaks": 12}
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
        assert case != "returns" or "of odd 1.0, returns a" in err, err


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


HOSTILE = """
import sys
import numpy as np, pyarrow as pa
from chopper_interop.errors import ChopperError, ReadError
from chopper_interop.registry import Converter
from chopper_interop.result import Result
from chopper_interop.testing.samples import tiny_trace

class Own(ChopperError):
    exit_status = 0

class Rude(ReadError):
    def __init__(self, one, two):
        self.none_can_send_this = lambda: one
        super().__init__(two)

def raises(error):
    raise error

READ = {
    "raises": lambda: 1 / 0,
    "leaves": lambda: sys.exit(0),
    "interrupts": lambda: raises(KeyboardInterrupt),
    "closes": lambda: raises(GeneratorExit),
    "none": lambda: None,
    "own": lambda: raises(Own("no")),
    "rude": lambda: raises(Rude(1, "it is odd")),
    "inherits": lambda: type("T", (type(tiny_trace()),), {})(**vars(tiny_trace())),
}

def read(paths):
    return READ.get(paths[0].read_text()[5:], tiny_trace)()

def half(trace, path):
    path.write_text("half")
    raise ValueError("in the middle")

def half_folder(trace, path):
    path.mkdir()
    (path / "a").write_text("half")
    raise ValueError("in the middle")

def changing(trace, path):
    trace.array("ts")[0] += 1
    path.write_text("x")

WRITE = {"half": half, "folder": half_folder, "changing": changing}

def changes(trace, *, how: str = ""):
    trace.array("dur").sort()
    if how == "fails":
        raise ValueError("behind that")
    return Result("changes", pa.table({"a_ns": [1]}))

def elsewhere(trace, *, how: str = "../elsewhere"):
    return Result(how, pa.table({"a_ns": [1]}))

def annotates(trace, *, how: str = "phase"):
    return Result("annotates", pa.table({"a_ns": [1]}), annotations={how: pa.array([1])})

ODD = Converter(
    name="odd", description="odd", suffixes=(".odd",), sniff=lambda head: head.startswith(b"#odd"), read=read,
    write=lambda trace, path: WRITE[path.stem](trace, path),
)
"""
HOSTILE_POINTS = """[chopper_interop.converters]
odd = odd:ODD
kineto = odd:ODD
[chopper_interop.analyses]
changes = odd:changes
elsewhere = odd:elsewhere
annotates = odd:annotates
temporal = odd:changes
"""
READ_STATUSES = {
    "raises": 12, "leaves": 12, "interrupts": 12, "closes": 12, "own": 12, "none": 8, "inherits": 8, "rude": 4,
}  # fmt: skip


@pytest.fixture
def hostile(tmp_path):
    """Folder of a package that fails in many ways, with a profile."""
    _install_odd(tmp_path, HOSTILE, HOSTILE_POINTS)
    ci.write(tiny_trace(), tmp_path / "run/a.json")
    return tmp_path


@pytest.mark.parametrize(
    ("jobs", "cases"),
    [((), READ_STATUSES), (("--jobs", "2"), ("interrupts", "own", "inherits", "rude"))],
)
def test_a_reader_that_fails_is_named_with_the_file_and_stops_no_other(hostile, jobs, cases):
    """By its own classes it ended a command with status 0 and by a traceback; one of no Trace stopped all others."""
    asked = {}
    for case in cases:
        (hostile / case).mkdir()
        for name in (case, "well"):
            (hostile / case / f"{name}.txt").write_text(f"#odd {name}")
        asked[case] = ["convert", "-q", *jobs, f"{case}/{case}.txt", "-o", f"{case}.json"]
        asked[f"{case} there"] = ["convert", "-q", *jobs, case, "-o", f"{case}-there.json"]
    for case, (status, out, err) in _ran_with_odd(hostile, asked).items():
        if case in READ_STATUSES:
            assert (status, err.count("\n"), out) == (READ_STATUSES[case], 1, ""), (case, err)
            assert f"error: {case}/{case}.txt: " in err, err
            assert not (hostile / f"{case}.json").exists()
            assert status != 12 or "report it to the authors of odd 1.0" in err, err
        else:
            assert (status, err) == (0, "something was lost: 1 file-unreadable\n"), case


def test_by_an_executor_of_dask_a_reader_that_fails_is_named_as_well(hostile):
    distributed = pytest.importorskip("distributed")
    (hostile / "own.txt").write_text("#odd own")
    code = (
        "from distributed import LocalCluster\n"
        "import chopper_interop as ci\n"
        "if __name__ == '__main__':\n"
        "    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None) as cluster:\n"
        "        try:\n"
        "            ci.read('own.txt', workers=cluster.scheduler_address)\n"
        "        except ci.ChopperError as error:\n"
        "            print(type(error).__name__, error)\n"
    )
    (hostile / "script.py").write_text(code)
    assert distributed
    environment = os.environ | {"PYTHONPATH": str(hostile)}
    done = subprocess.run(
        [sys.executable, "script.py"],
        check=False,
        cwd=hostile,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("PluginError own.txt: reading odd failed: Own: no"), done.stderr


def test_an_output_of_a_writer_that_fails_is_as_it_was_before(hostile):
    """Of one that opened its path itself half of a file was left."""
    asked = {}
    for name in ("half", "folder"):
        asked[name] = ["convert", "-q", "run/a.json", "-o", f"new/{name}.odd"]
        (hostile / f"{name}.odd").write_text("of before")
        asked[f"{name} again"] = ["convert", "-q", "run/a.json", "-o", f"{name}.odd"]
    for case, (status, _, err) in _ran_with_odd(hostile, asked).items():
        assert (status, "in the middle" in err) == (12, True), (case, err)
        assert ".chopper-" not in err
    assert not (hostile / "new").exists()
    assert {(hostile / f"{name}.odd").read_text() for name in ("half", "folder")} == {"of before"}
    assert not [*hostile.glob(".chopper-*")]


def test_a_plugin_that_changes_the_trace_in_place_is_refused(hostile):
    """What others wrote and computed of it was wrong, with status 0."""
    asked = {
        "writer": ["convert", "-q", "run/a.json", "-o", "changing.odd", "-o", "b.json"],
        "analysis": ["analyze", "-q", "run/a.json", "changes", "temporal"],
        "fails": ["analyze", "-q", "run/a.json", "changes", "temporal", "-O", "how=fails"],
    }
    for case, (status, out, err) in _ran_with_odd(hostile, asked).items():
        assert (status, out, err.count("\n")) == (8, "", 1), (case, err)
        assert "of odd 1.0, changes the trace" in err, err
    assert not (hostile / "b.json").exists()
    assert not (hostile / "changing.odd").exists()


def test_results_of_a_plugin_have_its_name_and_annotate_the_nodes_there_are(hostile):
    """By a name such as ../a tables were written outside of the folder that was given."""
    asked = {
        "elsewhere": ["analyze", "-q", "run/a.json", "elsewhere", "--csv", "tables"],
        "other": ["analyze", "run/a.json", "elsewhere", "temporal", "--json", "-O", "how=temporal"],
        "length": ["analyze", "-q", "run/a.json", "annotates"],
        "name": ["analyze", "-q", "run/a.json", "annotates", "-O", "how=none_such"],
    }
    done = _ran_with_odd(hostile, asked)
    assert [status for status, _, _ in done.values()] == [0, 0, 8, 8], done
    assert sorted(path.name for path in hostile.rglob("*elsewhere*")) == ["elsewhere.csv"]
    assert (hostile / "tables/elsewhere.csv").exists()
    assert set(json.loads(done["other"][1])) >= {"elsewhere", "temporal"}


def test_names_of_built_in_formats_and_analyses_stay_theirs(hostile):
    """Which of two was called depended on the order of folders."""
    asked = {
        "formats": ["convert", "--formats"],
        "analyses": ["analyze", "--list"],
        "convert": ["convert", "-q", "run/a.json", "-o", "b.json", "--from", "kineto"],
        "analyze": ["analyze", "-q", "run/a.json", "temporal"],
    }
    done = _ran_with_odd(hostile, asked)
    assert {status for status, _, _ in done.values()} == {0}, done
    for case, name in (("formats", "kineto"), ("analyses", "temporal")):
        assert f"{name} of odd 1.0  does not load: the name is that of another" in done[case][1]


GROUPING = """
from pathlib import Path
from chopper_interop.registry import Converter
from chopper_interop.testing.samples import tiny_trace

GROUP = {
    "raises": lambda files: 1 / 0,
    "none": lambda files: None,
    "flat": lambda files: files,
    "texts": lambda files: [[str(path)] for path in files],
    "empty": lambda files: [[]],
    "twice": lambda files: [[path] for path in files] * 2,
    "fewer": lambda files: [],
}
RANK = {"raises": lambda: 1 / 0, "text": lambda: "0", "list": lambda: [0], "negative": lambda: -1, "large": lambda: 2**70}

def made(name, **fields):
    begin = f"#{name}#".encode()
    sniff = lambda head: head.startswith(begin)
    return Converter(**{"name": name, "description": "odd", "sniff": sniff, "read": lambda paths: tiny_trace(), **fields})

for case, group in GROUP.items():
    globals()[f"group_{case}"] = made(f"group_{case}", group=group)
for case, rank in RANK.items():
    globals()[f"rank_{case}"] = made(f"rank_{case}", rank_of=lambda path, head, rank=rank: rank())
no_reader = made("no_reader", read="os:sep")
"""
GROUP_STATUSES = {
    "group_raises": 12, "group_none": 12, "group_flat": 12, "group_texts": 8, "group_empty": 8, "group_twice": 8,
    "group_fewer": 3, "no_reader": 3,
}  # fmt: skip
RANK_CASES = ["rank_raises", "rank_text", "rank_list", "rank_negative", "rank_large"]


def test_a_plugin_that_fails_to_group_files_or_to_say_their_rank_stops_no_other(tmp_path):
    names = [*GROUP_STATUSES, *RANK_CASES]
    points = "".join(f"{name} = odd:{name}\n" for name in names)
    _install_odd(tmp_path, GROUPING, f"[chopper_interop.converters]\n{points}")
    for name in names:
        ci.write(tiny_trace(), tmp_path / f"{name}/a.json")
        (tmp_path / f"{name}/a.txt").write_text(f"#{name}#")
    asked = {}
    for name in GROUP_STATUSES:
        asked[name] = ["convert", "-q", f"{name}/a.txt", "-o", f"{name}.json"]
        asked[f"{name} there"] = ["convert", "-q", name, "-o", f"{name}-there.json"]
    for name in RANK_CASES:
        asked[name] = ["convert", "-q", "--ranks", "0", f"{name}/a.txt", "-o", f"{name}.json"]
    for case, (status, _, err) in _ran_with_odd(tmp_path, asked).items():
        if case in GROUP_STATUSES:
            assert (status, err.count("\n")) == (GROUP_STATUSES[case], 1), (case, err)
            assert "a.txt" in err or "no_reader" in err
        else:
            lost = "converter-fails" if case in RANK_CASES else "file-unreadable"
            assert (status, err) == (0, f"something was lost: 1 {lost}\n"), case


UNRANKED = """
import numpy as np
from chopper_interop.build import TraceBuilder
from chopper_interop.registry import Converter
from chopper_interop.schemas.kinds import Kind, LaneKind

def read(paths):
    builder = TraceBuilder()
    begin = int(paths[0].read_text().split()[1])
    lane = builder.lane(0, LaneKind.THREAD, 1, "thread")
    builder.nodes(kind=int(Kind.CPU_OP), name=f"from {begin}", rank=0, lane=lane, ts=np.array([begin]), dur=50)
    return builder.finish()

ODD = Converter(name="odd", description="odd", sniff=lambda head: head.startswith(b"#odd"), read=read)
"""


def test_ranks_of_which_a_plugin_states_nothing_get_numbers_of_their_own(tmp_path):
    _install_odd(tmp_path, UNRANKED, "[chopper_interop.converters]\nodd = odd:ODD\n")
    for begin in (3, 9):
        (tmp_path / f"{begin}.txt").write_text(f"#odd {begin}")
    asked = {"joined": ["convert", "-q", "3.txt", "9.txt", "-o", "joined.parquet/"]}
    assert _ran_with_odd(tmp_path, asked)["joined"][0] == 0
    joined = ci.read(tmp_path / "joined.parquet")
    assert joined.array("rank").tolist() == [0, 1]
    assert {joined.names()[name] for name in joined.array("name")} == {"from 3", "from 9"}

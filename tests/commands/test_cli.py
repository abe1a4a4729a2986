"""The commands: their messages, exit statuses, and that no partial output is left behind."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import rocpd
from kineto_files import BASE, call, kernel, span, write
from slow import slow_from

import chopper_interop as ci
from chopper_interop import cli, errors, pipeline


def sample(folder: Path, name: str = "rank0.json") -> Path:
    info = {"distributedInfo": {"rank": 0, "world_size": 1}}
    events = [span("cpu_op", "aten::mm", 1, 9), kernel("k", 4, 5, 0)]
    return write(folder / name, events, baseTimeNanoseconds=BASE, **info)


HEAVY = ("numpy", "pyarrow", "pandas", "numba", "networkx", "perfetto", "rich")


def printed(code: str) -> str:
    """Stdout of a fresh process that runs Python's code to its end."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", ["convert", "analyze", "check"])
def test_help_imports_nothing_heavy(command: str) -> None:
    code = (
        f"import sys; from chopper_interop import cli\n"
        f"try: cli.{command}_main(['--help'])\n"
        f"except SystemExit as end: assert end.code == 0\n"
        f"loaded = [m for m in {HEAVY} if m in sys.modules]\n"
        f"assert not loaded, loaded"
    )
    assert f"chopper-{command}" in printed(code)


def test_import_is_light_and_all_public_names_exist() -> None:
    code = (
        f"import sys, chopper_interop as ci\n"
        f"assert not [m for m in {HEAVY} if m in sys.modules]\n"
        f"assert [n for n in ci.__all__ if getattr(ci, n) is None] == []\n"
        f"import chopper_interop.analyses.temporal\n"
        f"assert 'temporal' in ci.analyses()\n"
        f"assert ci.convert.__name__ == 'convert'"
    )
    printed(code)
    assert set(ci.__all__) == {
        "ChopperError", "Result", "Trace", "analyses", "analyze", "concat", "convert", "formats",
        "read", "write",
    }  # fmt: skip


def test_conversions_and_usual_analyses_do_without_pandas(tmp_path: Path) -> None:
    calls = [call("cudaLaunchKernel", 10 * k, 3, k) for k in (1, 5)]
    work = [*calls, kernel("k", 15, 5, 1), kernel("k", 55, 5, 5)]
    source = write(tmp_path / "a.json", [span("cpu_op", "aten::mm", 1, 90), *work])
    clocks = tmp_path / "recorder.csv"  # one row of a GPU, one of the host
    columns = "realtime_ns,monotonic_ns,boottime_ns,gpu,current_gfxclk"
    clocks.write_text(f"{columns}\n1768478399923528291,5,7,0,1705\n1768478399923528292,6,8,-1,\n")
    base = rocpd.small(tmp_path / "results.db")
    code = (
        f"import sys; from chopper_interop import cli\n"
        f"for path in {[str(source), str(clocks), str(base)]!r}:\n"
        f"    assert cli.convert_main([path, '-o', {str(tmp_path / 'a.pftrace')!r}]) == 0\n"
        f"names = ['temporal', 'overlap', 'idle', 'kernels', 'critical_path']\n"
        f"assert cli.analyze_main([*names, {str(source)!r}]) == 0\n"
        f"assert 'pandas' not in sys.modules"
    )
    assert "blame" in printed(code)


def test_one_conversion_writes_several_outputs(tmp_path: Path, run) -> None:
    source = sample(tmp_path)
    outputs = [tmp_path / "a.pftrace", tmp_path / "b.pftrace.gz", tmp_path / "et"]
    out = [x for o in outputs[:2] for x in ("-o", o)] + ["-o", f"{outputs[2]}/"]
    status, stdout, stderr = run("convert", source, *out)
    assert status == 0
    assert stdout == ""
    assert all(o.exists() for o in outputs)
    assert (tmp_path / "et" / "rank0.0.et").exists()
    assert "2 nodes, 0 edges (0 without call, order, stream), 0 samples of 1 rank" in stderr


@pytest.mark.parametrize(("output", "has_arguments"), [("a.et", False), ("a.pftrace", True)])
def test_arguments_are_freed_where_no_output_has_them(
    tmp_path: Path, output: str, has_arguments
) -> None:
    """Files are the same with and without."""
    source, files = sample(tmp_path), {}
    for keeps in (True, False):
        folder = tmp_path / f"{keeps}"
        target = pipeline.write_target(folder / output)
        trace, _ = pipeline.plan_conversion([source], [target]).run(keeps_arguments=keeps)
        assert bool(trace.text.buffers) == (has_arguments or keeps)
        assert bool(trace.array("args_len").any()) == (has_arguments or keeps)
        files[keeps] = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files[True] == files[False] != {}


def test_quiet_prints_nothing(tmp_path: Path, run) -> None:
    assert run("convert", "-q", sample(tmp_path), "-o", tmp_path / "a.pftrace") == (0, "", "")


STATUS = {
    "usage": (["{dir}", "-o", "{dir}/x.pftrace", "-O", "colour=red"], 2),
    "bad option": (["{dir}", "-o", "{dir}/x.pftrace", "-O", "args=perhaps"], 2),
    "no equals": (["{dir}", "-o", "{dir}/x.pftrace", "-O", "args"], 2),
    "no output": (["{dir}"], 2),
    "unknown format": (["{dir}/notes.txt", "-o", "{dir}/x.pftrace"], 3),
    "unknown ending": (["{dir}", "-o", "{dir}/x.docx"], 3),
    "unknown name": (["{dir}", "-o", "{dir}/x", "--to", "perfeto"], 3),
    "not readable": (["{dir}", "--from", "rocprofv3-stats", "-o", "{dir}/x.pftrace"], 3),
    "absent": (["{dir}/absent", "-o", "{dir}/x.pftrace"], 4),
    "damaged": (["{dir}/cut.json.gz", "-o", "{dir}/x.pftrace"], 4),
    "not writable": (["{dir}", "-o", "/dev/null/x.pftrace"], 6),
    "bad mode": (["{dir}", "-o", "{dir}/x.et", "-O", "mode=warp"], 2),
}


@pytest.mark.parametrize("name", STATUS)
def test_an_error_is_one_line_and_a_status(tmp_path: Path, name: str, run) -> None:
    sample(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00rubbish")
    before = sorted(p.name for p in tmp_path.iterdir())
    arguments, status = STATUS[name]
    ended, _, stderr = run("convert", "-q", *(a.format(dir=tmp_path) for a in arguments))
    assert ended == status, stderr
    assert stderr.count("\n") == 1
    assert stderr.startswith("chopper-convert: error: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == before


def test_every_class_of_error_has_its_own_status() -> None:
    classes = [errors.ChopperError, *errors.ChopperError.__subclasses__()]
    assert len({c.exit_status for c in classes}) == len(classes)


def test_similar_names_are_proposed(tmp_path: Path, run) -> None:
    stderr = run("convert", "-q", sample(tmp_path), "-o", tmp_path / "x", "--to", "perfeto")[2]
    assert "did you mean 'perfetto'?" in stderr


def test_losses_can_be_errors(tmp_path: Path, run) -> None:
    path = sample(tmp_path)
    path.write_bytes(path.read_bytes()[:-2])
    out = tmp_path / "x.pftrace"
    assert run("convert", path, "-o", out, "--on-loss", "error")[0] == 7
    assert not out.exists()
    status, _, stderr = run("convert", path, "-o", out)
    assert status == 0
    assert "loss" in stderr
    assert "file-not-closed" in stderr
    assert "file-not-closed" not in run("convert", path, "-o", out, "--on-loss", "ignore")[2]


def test_analyze_reports_losses(tmp_path: Path, run) -> None:
    path = sample(tmp_path)
    path.write_bytes(path.read_bytes()[:-2])
    ask = ("analyze", path, "temporal")
    out = ("-o", tmp_path / "x.parquet")
    for more in ((), ("--json",), out):
        status, stdout, stderr = run(*ask, *more)
        assert (status, stderr.count("file-not-closed")) == (0, 1)
        assert "--json" not in more or list(json.loads(stdout)) == ["temporal"]
    for more in ((), out):
        assert run(*ask, *more, "-q")[2] == "something was lost: 1 file-not-closed\n"
    assert run(*ask, "--on-loss", "ignore", "-q")[2] == ""
    assert run(*ask, "--on-loss", "error", "-q")[2].count("file-not-closed") == 1


def test_analyze_as_table_json_and_csv(tmp_path: Path, run) -> None:
    path = sample(tmp_path)
    status, table, _ = run("analyze", path, "temporal")
    assert status == 0
    assert "busy" in table
    status, stdout, stderr = run("analyze", path, "temporal", "--json")
    result = json.loads(stdout)["temporal"]
    assert (status, stderr) == (0, "")
    assert result["rows"][0]["busy_ns"] == 5000
    assert result["summary"]["busy_ns"] == 5000
    assert run("analyze", path, "temporal", "--csv", tmp_path / "csv")[0] == 0
    lines = (tmp_path / "csv" / "temporal.csv").read_text().splitlines()
    assert lines[0].startswith("rank,span_ns,busy_ns,")
    assert lines[1].startswith("0,5000,5000,")


def test_tables_of_an_earlier_run_do_not_stay_next_to_other_summaries(tmp_path: Path, run) -> None:
    path, folder = sample(tmp_path), tmp_path / "csv"
    assert run("analyze", path, "temporal", "kernels", "--csv", folder)[0] == 0
    for own in ("idle.csv", "mine.csv"):
        (folder / own).write_text("of the user")
    assert run("analyze", path, "temporal", "--csv", folder)[0] == 0
    names = {"temporal.csv", "summary.json", "idle.csv", "mine.csv"}
    assert {file.name for file in folder.iterdir()} == names


@pytest.mark.parametrize("summaries", ["5", "null", '[{"temporal": 1}]', "[" * 100_000, "{"])
def test_a_file_of_others_where_summaries_go_is_replaced(tmp_path: Path, run, summaries) -> None:
    """It was an internal error."""
    folder = tmp_path / "csv"
    folder.mkdir()
    (folder / "summary.json").write_text(summaries)
    assert run("analyze", sample(tmp_path), "temporal", "--csv", folder)[0] == 0
    assert {file.name for file in folder.iterdir()} == {"summary.json", "temporal.csv"}


def test_notes_are_one_line_each_and_whole_in_json(tmp_path: Path, run) -> None:
    """They were a hundred lines of a job of four ranks."""
    path = sample(tmp_path)
    status, _, stderr = run("convert", path, "-o", tmp_path / "x.pftrace")
    assert status == 0
    notes = json.loads(run("analyze", path, "--json")[1])["summary"]["notes"]
    whole = {
        name.removeprefix("input: "): text for name, text in notes.items() if "input: " in name
    }
    lines = [line.split(maxsplit=3) for line in stderr.splitlines() if line.startswith("info ")]
    assert lines
    for _, count, code, text in lines:
        assert whole[code.rstrip(":")].startswith(f"{count}: {text.partition('…')[0].rstrip()}")


def test_a_folder_of_outputs_is_called_one(tmp_path: Path, run) -> None:
    """split=yes made a folder of a name that was meant for a file."""
    out = tmp_path / "x.pftrace"
    _, _, stderr = run("convert", sample(tmp_path), "-o", out, "-O", "split=yes")
    assert f"{out}/ (a folder of 2 files)" in stderr.replace("\n", "")


def test_options_may_stand_anywhere(tmp_path: Path, run) -> None:
    source = sample(tmp_path)
    status, out, stderr = run("analyze", source, "--quiet", "temporal", "--on-loss", "error")
    assert (status, stderr) == (0, "")
    assert "temporal" in out
    missing, output = tmp_path / "none.json", tmp_path / "a.pftrace"
    status, _, stderr = run("convert", source, "-o", output, "-q", missing)
    assert (status, stderr.count("none.json")) == (errors.ReadError.exit_status, 1)


def test_full_and_relative_paths_together(tmp_path: Path, run, monkeypatch) -> None:
    events = [kernel("k", 4, 5, 0)]
    full, other = (
        write(tmp_path / f"{rank}.json", events, distributedInfo={"rank": rank, "world_size": 2})
        for rank in range(2)
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "300")
    status, _, stderr = run("convert", full, other.name, "-o", "x.pftrace")
    assert status == 0
    assert {str(full), other.name} <= set(stderr.split())


def test_analyze_of_neither_a_path_nor_an_analysis(run) -> None:
    status, _, stderr = run("analyze", "temporl")
    assert status == 3
    assert "did you mean 'temporal'?" in stderr
    status, _, stderr = run("analyze", "nothere", "energy")
    assert (status, "neither a file or folder nor an analysis 'nothere'" in stderr) == (3, True)
    for missing in ("nope.parquet", "w/nope", "nope/"):
        status, _, stderr = run("analyze", missing)
        assert (status, "no such file" in stderr.lower()) == (errors.ReadError.exit_status, True)


def test_formats_are_listed(run) -> None:
    status, stdout, _ = run("convert", "--formats")
    assert status == 0
    for name in ("kineto", "perfetto", "chakra", "parquet", "rocprofv3-csv", "amd-smi"):
        assert name in stdout
    assert "-O args=yes " in stdout
    assert "-O split_steps=0 " in stdout
    assert not re.search("-O [a-z_]+=(True|False)", stdout)


def test_a_demo_job_can_be_converted(tmp_path: Path, run) -> None:
    folder = tmp_path / "job"
    status, _, stderr = run("convert", "--demo", folder, "-O", "ranks=1", "-O", "layers=1")
    assert status == 0
    assert f"chopper-convert {folder} -o" in stderr
    assert run("convert", "-q", "--demo", folder, "-O", "rank=1")[0] == 2
    assert run("convert", "-q", folder, "-o", tmp_path / "x.pftrace")[0] == 0


@pytest.mark.parametrize("how", slow_from([signal.SIGINT, signal.SIGTERM], 1))
def test_an_interrupted_conversion_leaves_nothing(tmp_path: Path, how: signal.Signals) -> None:
    """It is stopped while it waits in the middle of writing, so it cannot have ended."""
    source = tmp_path / "in"
    source.mkdir()
    events = [span("cpu_op", f"op {i % 50}", i, 1, args={"n": i}) for i in range(2_000)]
    write(source / "rank0.json", events)
    out = tmp_path / "out"
    code = (
        "import signal, sys, time\n"
        "from chopper_interop import cli, progress\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
        "advance = progress.advance\n"
        "def slow(task, amount):\n"
        "    advance(task, amount)\n"
        "    if 'writing' in task: print('writing', flush=True); time.sleep(60)\n"
        "progress.advance = slow\n"
        f"sys.exit(cli.convert_main([{str(source)!r}, '-q', '-o', '{out}/job.pftrace',"
        f" '-o', '{out}/et/']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout.readline() == "writing\n"
        during = [p.name for p in out.iterdir()]
        process.send_signal(how)
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        message = process.stderr.read()
    assert process.returncode == cli.INTERRUPTED
    assert message == "chopper-convert: interrupted; each output is complete, or as it was before\n"
    assert during == [n for n in during if n.startswith(".") and n.endswith(".part")] != []
    assert not out.exists()  # it was made for the outputs


def test_an_output_is_replaced_only_by_a_complete_one(tmp_path: Path, run) -> None:
    out = tmp_path / "x.pftrace"
    out.write_text("old")
    path = sample(tmp_path)
    path.write_text("{")
    assert run("convert", "-q", "--from", "kineto", path, "-o", out)[0] == 4
    assert out.read_text() == "old"
    sample(tmp_path)
    assert run("convert", "-q", path, "-o", out)[0] == 0
    assert out.read_bytes()[:1] == b"\n"


def test_a_folder_that_cannot_be_written(tmp_path: Path, run) -> None:
    path = sample(tmp_path)
    (tmp_path / "taken").write_text("a file")
    status, _, stderr = run("convert", "-q", path, "-o", f"{tmp_path}/taken/")
    assert status == 6, stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path, run) -> None:
    path = sample(tmp_path)
    path.chmod(0)
    status, _, stderr = run("convert", "-q", path, "-o", tmp_path / "x.pftrace")
    assert status == 4
    assert "Permission denied" in stderr


def test_compilation_is_one_line_and_then_counted(capsys: pytest.CaptureFixture[str]) -> None:
    from chopper_interop import progress
    from chopper_interop.arrays import compiled
    from chopper_interop.commands import console

    shown = []

    class Counts:
        def count(self, task: str, done: int, unit: str) -> None:
            shown.append(f"{task}: {done} {unit}")

    console.announce_compilation()
    with progress.reporting(Counts()):
        for count in range(compiled.FEW, compiled.FEW + 3):
            compiled._announce[0](count)
    assert capsys.readouterr().err.count("\n") == 1
    assert shown == [f"compiling, once: {count} loops" for count in (5, 6, 7)]


@pytest.mark.parametrize(
    "arguments", slow_from([["convert", "--formats"], ["convert", "--print-completion", "bash"]], 1)
)
def test_a_full_disk_behind_the_output_is_one_line(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = started(*arguments, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == errors.WriteError.exit_status
    assert done.stderr.decode().splitlines() == [
        f"chopper-{arguments[0]}: error: the standard output cannot be written: No space left on device"
    ]


def test_streams_that_are_closed_stop_nothing(tmp_path: Path) -> None:
    source = sample(tmp_path)
    for close in (1, 2):
        done = started("convert", "-q", source, "-o", tmp_path / f"{close}.pftrace",
                       preexec_fn=lambda number=close: os.close(number))  # fmt: skip
        assert done.returncode == 0
    done = started("convert", tmp_path / "none", "-o", "a.pftrace", stdout=subprocess.PIPE,
                   preexec_fn=lambda: os.close(2))  # fmt: skip
    assert (done.returncode, done.stdout) == (errors.ReadError.exit_status, b"")


def test_a_current_folder_that_was_removed_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    code = (
        f"cd {tmp_path}/gone; rmdir ../gone; exec {sys.executable} -c '{START.format('check')}' ."
    )
    done = subprocess.run(["sh", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == errors.UsageError.exit_status
    assert done.stderr == "chopper-check: error: .: the current folder is not there any more\n"


START = "from chopper_interop import start; start.{}()"


def started(command: str, *arguments: object, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command as a process of its own, with streams of the caller's."""
    texts = [sys.executable, "-c", START.format(command), *map(str, arguments)]
    return subprocess.run(texts, check=False, **streams)


@pytest.mark.parametrize("variable", slow_from(["NUMBA_NUM_THREADS=0", "NUMBA_DISABLE_JIT=1"], 1))
def test_variables_that_other_programs_need_of_numba_stop_nothing(
    tmp_path: Path, variable: str
) -> None:
    """Numba raised when it was imported, and loops failed as Python."""
    name, _, value = variable.partition("=")
    environment = os.environ | {name: value}
    made = tmp_path / "x.pftrace"
    done = started(
        "convert", "-q", sample(tmp_path), "-o", made, env=environment, stderr=subprocess.PIPE
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_recorded_program_has_the_environment_of_the_user(tmp_path: Path) -> None:
    environment = os.environ | {"NUMBA_NUM_THREADS": "3"}
    environment.pop("OPENBLAS_NUM_THREADS", None)
    names = ("NUMBA_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    program = (sys.executable, "-c", f"import os; print(*map(os.environ.get, {names}))")
    done = started(
        "record", "-o", tmp_path, "--", *program, env=environment, stdout=subprocess.PIPE
    )
    assert (done.returncode, done.stdout) == (0, b"3 None\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="no list of threads")
@pytest.mark.parametrize(("stated", "threads"), [({}, 1), ({"OPENBLAS_NUM_THREADS": "2"}, 2)])
def test_numpy_starts_no_threads_that_wait_unless_the_user_says_so(
    stated: dict[str, str], threads: int
) -> None:
    """They looked for work for a twentieth of a small conversion's time."""
    environment = {k: v for k, v in os.environ.items() if k != "OPENBLAS_NUM_THREADS"} | stated
    program = """
import os
from chopper_interop import start
start._run = lambda _: (__import__("numpy"), print(len(os.listdir("/proc/self/task"))))
start.convert()
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
    assert int(done.stdout) == min(threads, os.cpu_count() or 1)


LAST_RESORT = [
    ("convert", "chopper_interop.pipeline.plan_conversion", ["a", "-o", "b.pftrace"]),
    ("analyze", "chopper_interop.commands.analysis_plan.run_analyses", ["temporal", "SOURCE"]),
    ("check", "chopper_interop.converters.chakra.check.jobs_at", ["et/"]),
    ("record", "chopper_interop.recording.session.record", ["-o", "DIR", "--", "true"]),
    ("view", "chopper_interop.sources.find", ["a.pftrace", "--no-browser"]),
]
"""Commands, and what raises in each."""


@pytest.mark.parametrize(("command", "broken", "arguments"), LAST_RESORT)
def test_a_defect_is_one_line_that_says_the_version_and_where_to_report(
    tmp_path: Path,
    run,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    broken: str,
    arguments: list[str],
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise ZeroDivisionError("made\nfor the test")

    monkeypatch.setattr(broken, fail)
    places = {"SOURCE": str(sample(tmp_path)), "DIR": str(tmp_path / "made")}
    texts = [places.get(text, text) for text in arguments]
    own = texts.index("--") if "--" in texts else len(texts)
    for more in ([], ["--debug"]):
        status, _, stderr = run(command, *texts[:own], "-q", *more, *texts[own:])
        assert status == 70
        *before, line = stderr.splitlines()
        assert line.startswith(f"chopper-{command} {ci.__version__}: error: ")
        assert "ZeroDivisionError: made\\nfor the test at test_cli.py:" in line
        assert "please report it as SECURITY.md says, with the input" in line
        assert bool(before) == bool(more)
        assert ("Traceback" in stderr) == bool(more)


@pytest.mark.parametrize(
    ("words", "status", "remedy"),
    [
        ("analyze FILE --json out.json", 4, "; to write that file: --json > out.json"),
        ("analyze FILE --schema out.json", 3, "; to write that file: --schema > out.json"),
        ("analyze FILE --definitions yes", 3, ""),
        ("convert FILE -o x.pftrace --anonymise a", 4, "; a key is given by --anonymise-key a"),
    ],
)
def test_a_value_of_an_option_without_one_is_said_so(
    tmp_path: Path, run, words: str, status: int, remedy: str
) -> None:
    """It was an input that there is not."""
    path = write(tmp_path / "rank0.json", [kernel("k", 0, 5, 1)])
    actual, _, output = run(*words.replace("FILE", str(path)).split())
    assert actual == status
    assert f"{words.split()[-2]} takes no value{remedy}" in output.splitlines()[-1]


def test_an_input_behind_an_option_is_no_value_of_it(tmp_path: Path, run) -> None:
    (tmp_path / "a.json").write_text("[[[[")
    status, _, output = run("convert", "-q", tmp_path / "a.json", "-o", tmp_path / "b.json")
    assert (status, "takes no value" in output) == (3, False), output


def test_a_value_behind_an_equals_sign_is_said_so(run, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("analyze", "RUN", "--json=out.json")
    remedy = "--json takes no value; to write that file: --json > out.json"
    assert (
        capsys.readouterr().err == f"chopper-analyze: error: {remedy}; --help lists the options\n"
    )


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--jobs", "many"], "argument --jobs: invalid int value: 'many'"),
        (
            ["--max-memory", "4GB"],
            "argument --max-memory: '4GB' is no number of gigabytes (write 4 or 0.5)",
        ),
        (
            ["--on-lose", "a\nb"],
            "unrecognized arguments: --on-lose a\\nb (did you mean --on-loss?)",
        ),
        (["--hlp"], "unrecognized arguments: --hlp (did you mean --help?)"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(run, capsys, words: list[str], reason: str) -> None:
    with pytest.raises(SystemExit, match="2"):
        run("convert", "RUN", *words)
    end = "; --help lists the options\n"
    assert capsys.readouterr().err == f"chopper-convert: error: {reason}{end}"


def test_a_value_that_is_mistyped_names_what_is_similar(tmp_path: Path, run) -> None:
    _, _, output = run("analyze", tmp_path, "--json", "overlep")
    assert "did you mean 'overlap'?" in output


@pytest.mark.parametrize("option", ["--csv=out.csv", "--figures=charts.png"])
def test_the_name_of_a_file_makes_no_folder(tmp_path: Path, run, monkeypatch, option: str) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path / "rank0.json", [kernel("k", 0, 5, 1)])
    status, _, output = run("analyze", path, option)
    assert (status, "name a folder" in output) == (2, True)
    assert {entry.name for entry in tmp_path.iterdir()} == {"rank0.json"}


@pytest.mark.parametrize(
    ("command", "option"),
    [
        *(
            ("analyze", o)
            for o in ("--html", "--figures", "--csv", "--steps", "--ranks", "--against")
        ),
        *(("convert", o) for o in ("-o", "-O", "--job", "--demo", "--to", "--scheduler", "--run")),
        ("record", "-o"),
        ("view", "--ranks"),
    ],
)
def test_an_empty_value_is_not_that_of_an_option_left_out(
    tmp_path: Path, run, command: str, option: str
) -> None:
    """As of a variable of a script that is not set: `--html ''` wrote no report and was no error."""
    source = [] if command == "record" else [sample(tmp_path)]
    before = sorted(tmp_path.iterdir())
    status, stdout, stderr = run(command, *source, option, "")
    assert (status, stdout) == (errors.UsageError.exit_status, "")
    assert stderr.splitlines()[-1].startswith(f"chopper-{command}: error: ")
    assert option in stderr.splitlines()[-1]
    assert "its value is empty" in stderr
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("columns", ["0", "²", "1", "-1", "many"])
def test_a_width_that_is_none_is_not_taken(tmp_path: Path, run, monkeypatch, columns: str) -> None:
    """Containers without a terminal state COLUMNS=0, which left tables empty."""
    monkeypatch.delenv("COLUMNS", raising=False)
    expected = run("analyze", "-q", sample(tmp_path), "temporal")[1]
    monkeypatch.setenv("COLUMNS", columns)
    assert run("analyze", "-q", sample(tmp_path), "temporal")[1] == expected
    assert "compute" in expected


def test_an_unknown_option_names_the_similar_or_all(tmp_path: Path, run) -> None:
    out = tmp_path / "x.pftrace"
    for command in (["convert"], ["view", "--no-browser"]):
        status, _, stderr = run(*command, sample(tmp_path), "-o", out, "-O", "spilt=yes")
        assert (status, stderr.count("did you mean 'split'?")) == (2, 1)
    _, _, stderr = run("convert", sample(tmp_path), "-o", out, "-O", "x=1")
    assert "split_steps" in stderr
    with pytest.raises(errors.UsageError, match=r"no option 'step' \(did you mean 'steps'\?\)"):
        ci.analyze(ci.read(sample(tmp_path)), "temporal", step=1)


def test_libraries_without_room_in_memory_are_one_line(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As llvmlite's under `ulimit -v 300000`."""

    error = OSError("Could not find/load shared object file")
    error.__context__ = OSError("libllvmlite.so: failed to map segment from shared object")

    def fails(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("chopper_interop.pipeline.plan_conversion", fails)
    status, _, text = run("convert", "-q", sample(tmp_path), "-o", tmp_path / "a.pftrace")
    assert (status, text.count("\n")) == (10, 1)
    assert "there is too little memory" in text


def test_a_run_to_compare_with_needs_a_job(tmp_path: Path, run) -> None:
    status, _, text = run("analyze", sample(tmp_path), "--against-run", "x")
    assert (status, text.count("\n")) == (2, 1)
    assert "there is no --against" in text

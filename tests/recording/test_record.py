"""`chopper-record`: rows of GPUs whose libraries behave as the real ones do, around a real program."""

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import forked
import kineto_files
import numpy as np
import psutil
import pytest
from slow import slow_from

import chopper_interop as ci
from chopper_interop import cli
from chopper_interop.converters.amd_smi import recorder_facts
from chopper_interop.errors import WriteError
from chopper_interop.recording import gpus, preparation, program, sampler
from chopper_interop.schemas.meta import Device

AMDSMI = Path(__file__).parent / "libraries" / "amd"
NVML = Path(__file__).parent / "libraries" / "nvidia"
WAIT = "import time; time.sleep({seconds})"


def record(
    folder: Path,
    *arguments: object,
    libraries=(AMDSMI,),
    script: str = "",
    from_start: bool = False,
    first: str = "",
    file_bytes: int | None = None,
    **variables,
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, with libraries that stand in for the vendors'.

    From the start it is as users run it, with `sitecustomize`; else it is forked, and first runs some code.
    """
    paths = os.pathsep.join(map(str, libraries))
    environment = os.environ | {"PYTHONPATH": paths} | {k: str(v) for k, v in variables.items()}
    program = [sys.executable, "-c", script or WAIT.format(seconds=0.3)]
    options = ["-o", str(folder), *map(str, arguments), "--", *program]
    if not from_start:
        child = forked.Child(
            "record", options, environment, libraries, first=first, file_bytes=file_bytes
        )
        return child.run()
    entry = "import sys; from chopper_interop import start; sys.argv[0] = 'x'; start.record()"
    command = [sys.executable, "-c", entry, *options]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def described(folder: Path) -> dict:
    (path,) = folder.glob("recording-*.json")
    return json.loads(path.read_text())


def devices(folder: Path) -> tuple[Device, ...]:
    (path,) = folder.glob("recording-*.json")
    return recorder_facts.read([path]).meta.devices


def by_series(trace: ci.Trace) -> list[tuple[dict, np.ndarray]]:
    ids, values = (trace.samples[name].to_numpy() for name in ("series", "value"))
    return [(row, values[ids == i]) for i, row in enumerate(trace.series.to_pylist())]


def test_what_was_recorded_is_read(tmp_path: Path) -> None:
    done = record(tmp_path, "--rate", 200, from_start=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "", "stdout is the program's"
    trace = ci.read(tmp_path)
    lanes = {s["name"] for s in trace.series.to_pylist()}
    assert {
        "socket power",
        "gfx clock XCD 0",
        "energy",
        "temperature hotspot",
        "VRAM used",
    } <= lanes
    of_host = {s["name"] for s in trace.series.to_pylist() if s["device"] < 0}
    assert of_host == {"host CPU activity", "host memory used", "host memory free"}
    limit = ci.analyze(trace, "excursions", above=0.9).notes["limit"]
    assert limit == "0.9 times power cap as the source states it of 2 GPUs", (
        "750 W: 700 W are above"
    )
    first, second = devices(tmp_path)
    assert (first.name, first.pci, first.max_mhz) == ("Instinct MI300X", "0000:05:00.0", 2100)
    assert (second.uuid, second.cus) == ("uuid-1", 304)
    facts = described(tmp_path)
    (sampled,) = facts["samplers"]
    assert sampled["rows"] == 2 * (sampled["ticks"] + 1)
    assert sampled["achieved_hz"] > 0
    assert set(facts["realtime_minus_clock_ns"]["start"]) >= {"realtime_ns", "monotonic_ns"}


@pytest.mark.slow
def test_the_command_that_is_named_next_answers(tmp_path: Path, run) -> None:
    done = record(tmp_path / "a folder", "--rate", 50)
    line = done.stderr.splitlines()[-1]
    command, *arguments = shlex.split(line.partition("next: ")[2].partition(";")[0])
    assert command == "chopper-analyze"
    status, stdout, stderr = run("analyze", *arguments)
    assert status == 0, stderr
    assert arguments[1:] == [line for line in stdout.splitlines() if line in arguments]
    assert all("limit" in line for line in stdout.splitlines() if "no rows" in line)


@pytest.mark.parametrize("gpus_of_node", slow_from([2, 1], 1))
def test_profiles_that_the_program_wrote_are_what_is_named_next(
    tmp_path: Path, gpus_of_node: int
) -> None:
    """Of two GPUs and one rank nothing says which the rank computes on, so its power is not known."""
    out = tmp_path / "out"
    profile = kineto_files.write(tmp_path / "p.json", [kineto_files.kernel("k", 5, 1, 1)])
    script = (
        "import json, pathlib, time\n"
        f"content = json.loads(pathlib.Path({str(profile)!r}).read_text())\n"
        "content['baseTimeNanoseconds'] = time.time_ns()  # its power is that of its time\n"
        f"pathlib.Path({str(out)!r}, 'p.json').write_text(json.dumps(content))"
    )
    done = record(out, "--rate", 50, script=script, GPUS=gpus_of_node)
    line, _, analyses = done.stderr.splitlines()[-1].partition(", and supports ")
    assert line.endswith(f"next: chopper-analyze {out}; it holds kineto too")
    assert {"kernels", "throttling"} <= set(analyses.split(", "))
    assert ("power" in analyses.split(", ")) == (gpus_of_node == 1)
    assert "memory_round_trips" not in analyses


@pytest.mark.parametrize(
    ("end", "reason"),
    slow_from(
        [
            ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(20)", "interrupted"),
            ("raise ZeroDivisionError", "ZeroDivisionError"),
            ("os.kill(os.getpid(), signal.SIGINT); time.sleep(20)", "interrupted"),
        ],
        2,
    ),
)
def test_what_ends_the_look_at_the_folder_changes_no_status(
    tmp_path: Path, end: str, reason: str
) -> None:
    """The program has ended by itself, and the recording is complete."""
    first = (
        "import os, signal, time\n"
        "from chopper_interop.commands import recorded_contents\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
        "def look_at(_):\n"
        f"    {end}\n"
        "recorded_contents.look_at = look_at\n"
    )
    done = record(tmp_path / "out", first=first, script="import sys; sys.exit(7)")
    last = f"next: chopper-analyze {tmp_path}/out; what it supports is not known: {reason}"
    assert (done.returncode, done.stdout) == (7, "")
    assert done.stderr.splitlines()[-1].endswith(last)
    assert "Traceback" not in done.stderr
    assert described(tmp_path / "out")["program_exit_status"] == 7


def test_files_that_cannot_be_read_change_no_status(tmp_path: Path) -> None:
    """The program left a link to a device, a pipe, and a profile that breaks off at once."""
    script = (
        "import os, sys\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "os.symlink('/dev/zero', 'zero')\n"
        "os.mkfifo('pipe')\n"
        "open('p.json', 'w').write('{\"schemaVersion\": 1, \"traceEvents\": [{')\n"
        "sys.exit(7)"
    )
    done = record(tmp_path, script=script)
    assert done.returncode == 7
    assert f"next: chopper-analyze {tmp_path}; it holds kineto too" in done.stderr


def test_each_row_has_the_clocks_of_its_moment(tmp_path: Path) -> None:
    before = time.time_ns()
    record(tmp_path, "--rate", 100)
    trace = ci.read(tmp_path)
    at = trace.samples["ts"].to_numpy() + trace.meta.origin_ns
    assert len(at) > 0
    assert (at >= before).all()
    assert (at <= time.time_ns()).all()


def test_the_program_ends_as_without_a_recorder(tmp_path: Path) -> None:
    assert record(tmp_path / "a", script="import sys; sys.exit(7)").returncode == 7
    killed = "import os; os.kill(os.getpid(), 9)"
    assert record(tmp_path / "b", script=killed).returncode == 128 + signal.SIGKILL
    assert record(tmp_path / "c", script="print('out')").stdout == "out\n"


@pytest.mark.parametrize("is_full", [True, False], ids=["full", "without a reader"])
def test_lines_that_cannot_be_printed_change_no_status(tmp_path: Path, *, is_full: bool) -> None:
    """Without a library the first line comes before the program starts."""
    reader, writer = os.pipe()
    os.close(reader)
    entry = "import sys; from chopper_interop import start; sys.argv[0] = 'x'; start.record()"
    command = [sys.executable, "-c", entry, "-o", str(tmp_path), "--", "sh", "-c", "exit 3"]
    with Path("/dev/full").open("w") as full, os.fdopen(writer, "w") as pipe:
        stderr = full if is_full else pipe
        assert subprocess.run(command, stderr=stderr, check=False).returncode == 3
    assert described(tmp_path)["program_exit_status"] == 3


@pytest.mark.slow
def test_of_a_program_that_ends_at_once_no_rate_and_no_share_is_stated(tmp_path: Path) -> None:
    done = record(tmp_path, "--rate", 1, script="pass")
    assert "too few to state a rate" in done.stderr
    assert "of a processor" not in done.stderr


def test_signals_reach_the_program_and_the_samples_stay(tmp_path: Path) -> None:
    script = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\n"
        "import os; os.kill(os.getppid(), signal.SIGTERM)\n"
        "time.sleep(20)\n"
    )
    assert record(tmp_path, script=script).returncode == 5
    assert described(tmp_path)["samplers"][0]["rows"] > 0


def test_a_signal_before_the_program_runs_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    popen = subprocess.Popen

    def start(*arguments: object, **options: object) -> subprocess.Popen[bytes]:
        os.kill(os.getpid(), signal.SIGTERM)
        return popen(*arguments, **options)

    monkeypatch.setattr(subprocess, "Popen", start)
    with program.Program() as running:
        status = running.run(["sleep", "20"], os.environ, print)
    assert status == 128 + signal.SIGTERM


def test_a_signal_that_is_ignored_stays_so_for_the_program() -> None:
    """As of a hangup by `nohup`: a handler in the recorder would be the default action in the program."""
    script = "import signal, sys; sys.exit(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with program.Program() as running:
            status = running.run([sys.executable, "-c", script], os.environ, print)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert status == 1


def test_a_signal_that_another_thread_gets_reaches_the_program() -> None:
    """The system chooses the thread: not always the main one where several signals come at once."""

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    threading.Timer(0.1, send).start()
    with program.Program() as running:
        assert running.run(["sleep", "5"], os.environ, print) == 128 + signal.SIGTERM


def test_a_stopped_recorder_stops_the_program_until_it_goes_on(tmp_path: Path) -> None:
    """As a batch system suspends a job: the program ran on, without samples."""
    ready = tmp_path / "ready"
    script = f"import os, time; open({str(ready)!r}, 'w').write(str(os.getpid())); time.sleep(1)"
    entry = (
        "import os, sys; from chopper_interop.recording import program\n"
        "os.setpgid(0, 0)\n"  # job control: this process's parent is of another group
        "with program.Program() as running:\n"
        f"    status = running.run([sys.executable, '-c', {script!r} + '; os._exit(7)'], os.environ, print)\n"
        "sys.exit(status)"
    )
    with subprocess.Popen([sys.executable, "-c", entry], stdout=subprocess.DEVNULL) as process:
        while not (ready.exists() and ready.read_text()):
            time.sleep(0.02)
        both = [psutil.Process(pid) for pid in (process.pid, int(ready.read_text()))]
        try:
            process.send_signal(signal.SIGTSTP)
            while {p.status() for p in both} != {psutil.STATUS_STOPPED}:
                time.sleep(0.02)
                assert both[1].status() != psutil.STATUS_ZOMBIE, "it ran to its end"
        finally:
            process.send_signal(signal.SIGCONT)
        assert process.wait() == 7


@pytest.mark.parametrize("name", ["SIGALRM", "SIGXCPU", "SIGABRT"])
def test_a_signal_of_a_limit_leaves_no_program_behind(tmp_path: Path, name: str) -> None:
    script = f"import os, signal, time; os.kill(os.getppid(), signal.{name}); time.sleep(20)"
    assert record(tmp_path, script=script).returncode == 128 + getattr(signal, name)
    assert described(tmp_path)["samplers"][0]["rows"] > 0


def test_the_status_is_known_where_ends_of_children_are_ignored() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with program.Program() as running:
            assert running.run(["sh", "-c", "exit 7"], os.environ, print) == 7
    finally:
        signal.signal(signal.SIGCHLD, before)


SLOW_END = {
    "signals come while samplers stop": (
        (
            "def stop(self, whole=sampler.Sampler.stop):\n"
            "    os.kill(os.getpid(), signal.SIGTERM)\n"
            "    os.kill(os.getpid(), signal.SIGINT)\n"
            "    whole(self)\n"
            "sampler.Sampler.stop = stop\n"
        ),
        "",
    ),
    "a reading never returns": (
        (
            "gpus.PATIENCE_S = 0.2\n"
            "def read(self, k, calls, whole=sampler.Schedule.read):\n"
            "    while os.path.exists('hang'): time.sleep(0.1)\n"
            "    return whole(self, k, calls)\n"
            "sampler.Schedule.read = read\n"
            "from chopper_interop.recording import amd\n"
            "amd.AmdGpus.close = lambda _: os._exit(1)  # it is in use\n"
        ),
        "a reading has not returned 0.2 s after the program ended",
    ),
}


@pytest.mark.parametrize(("patch", "problem"), SLOW_END.values(), ids=SLOW_END)
def test_however_samplers_stop_the_recording_is_described(
    tmp_path: Path, patch: str, problem: str
) -> None:
    first = (
        "import os, signal, time\n"
        f"os.chdir({str(tmp_path)!r})\n"
        "from chopper_interop.recording import gpus, sampler\n"
    )
    script = "import sys, time; time.sleep(0.3); open('hang', 'w'); time.sleep(0.1); sys.exit(7)"
    out = tmp_path / "out"
    done = record(out, "--rate", 50, first=first + patch, script=script)
    assert done.returncode == 7, done.stderr
    assert described(out)["program_exit_status"] == 7
    assert any(problem in text for text in described(out)["problems"]) == bool(problem)
    (table,) = out.glob("telemetry-*.csv")
    assert len(table.read_text().splitlines()) > 10


HANGS = {
    "loading": "amd.AmdGpus.__init__ = hang",
    "facts": "amd.AmdGpus.facts = hang",
    "reading": "amd.AmdGpus._metrics = hang",
    "closing": "amd.AmdGpus.close = hang",
}


@pytest.mark.parametrize("libraries", [(AMDSMI,), (AMDSMI, NVML)], ids=["alone", "with another"])
@pytest.mark.parametrize("where", HANGS)
def test_a_library_that_never_answers_holds_no_program_up(
    tmp_path: Path, where: str, libraries: tuple[Path, ...]
) -> None:
    """The program was not started then, and interrupts did nothing."""
    first = (
        "import time\n"
        "from chopper_interop.recording import amd, gpus\n"
        "gpus.PATIENCE_S = 0.3\n"
        "def hang(*_):\n"
        "    print('still trying')\n"
        "    while True: time.sleep(1)\n"
    )
    script = "print('of the program')"
    done = record(tmp_path, libraries=libraries, first=first + HANGS[where], script=script)
    assert (done.returncode, done.stdout) == (0, "of the program\n"), done.stderr
    vendors = [sampled["vendor"] for sampled in described(tmp_path)["samplers"]]
    others = ["nvidia"] if NVML in libraries else []
    if where == "closing":
        assert vendors == ["amd", *others]
        assert "amd was not closed: its library has not answered for 0.3 s" in done.stderr
        assert "no GPU of" not in done.stderr  # a vendor that is not there
        return
    assert vendors == (others or ["host"])
    reason = "its library has not answered for 0.3 s"
    assert reason in done.stderr
    assert any(reason in problem for problem in described(tmp_path)["problems"])
    assert not list(tmp_path.glob("*-amd.csv"))


@pytest.mark.parametrize("where", ["__init__", "facts", "_metrics", "close"])
def test_what_a_library_prints_is_not_in_the_output_of_the_program(
    tmp_path: Path, where: str
) -> None:
    """Also in readings while the program runs, and when its GPUs are numbered behind another vendor's."""
    first = (
        "import os\n"
        "from chopper_interop.recording import amd\n"
        f"def loud(*arguments, whole=amd.AmdGpus.{where}):\n"
        "    os.write(1, b'of the library')\n"
        "    return whole(*arguments)\n"
        f"amd.AmdGpus.{where} = loud\n"
    )
    done = record(tmp_path, first=first, script="print('of the program')")
    assert (done.returncode, done.stdout) == (0, "of the program\n"), done.stderr


def test_an_interrupt_of_the_terminal_comes_once(tmp_path: Path) -> None:
    """The terminal signals the program itself, wherever its input comes from."""
    import pty

    master, slave = pty.openpty()
    script = (
        "import signal, sys, time\n"
        "count = []\n"
        "signal.signal(signal.SIGINT, lambda *_: count.append(1))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w')\n"
        "end = time.time() + 1.5\n"
        "while time.time() < end: time.sleep(0.1)\n"
        "sys.exit(len(count))\n"
    )
    entry = (
        "import fcntl, os, signal, sys, termios; from chopper_interop.recording import program\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job ignores it\n"
        f"fcntl.ioctl({slave}, termios.TIOCSCTTY, 0)\n"
        f"with program.Program() as running:\n"
        f"    status = running.run([sys.executable, '-c', {script!r}], os.environ, print)\n"
        "sys.exit(status)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", entry],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        pass_fds=[slave],
    ) as process:
        while not (tmp_path / "ready").exists():
            time.sleep(0.02)
        os.write(master, b"\x03")
        assert process.wait() == 1


@pytest.mark.parametrize(
    ("name", "reason"),
    [("folder", "a folder is no program"), ("file", "the file is not executable")],
)
def test_what_cannot_be_run_has_the_status_of_shells(
    tmp_path: Path, capsys, name: str, reason: str
) -> None:
    """`shutil.which` skips folders, so that one was "not found", with status 127."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("#!/bin/sh\n")
    assert cli.record_main(["-o", str(tmp_path / "out"), "--", str(tmp_path / name)]) == 126
    assert capsys.readouterr().err == f"chopper-record: error: {tmp_path / name}: {reason}\n"
    assert not (tmp_path / "out").exists()


def test_an_empty_name_is_that_of_no_program(tmp_path: Path, capsys) -> None:
    assert cli.record_main(["-o", str(tmp_path / "out"), "--", ""]) == 127
    assert "error: the name of the program is empty" in capsys.readouterr().err


@pytest.mark.parametrize("local_rank", [0, 1])
def test_a_missing_program_is_one_line(tmp_path: Path, local_rank: int) -> None:
    environment = os.environ | {"PYTHONPATH": str(AMDSMI), "LOCAL_RANK": str(local_rank)}
    entry = "import sys; from chopper_interop import start; sys.argv[0] = 'x'; start.record()"
    command = [sys.executable, "-c", entry, "-o", str(tmp_path), "--", "/no/such/program"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 127
    text = "/no/such/program: the program was not found"
    assert done.stderr == f"chopper-record: error: {text}\n"
    assert not list(tmp_path.iterdir())


def test_a_gpu_that_falls_away_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    script = WAIT.format(seconds=0.5)
    done = record(tmp_path, "--rate", 100, script=script, LOST_AFTER=10)
    assert done.returncode == 0
    (lost,) = (line for line in done.stderr.splitlines() if "GPU 1" in line)
    assert re.search(r" failed, first at \d\d:\d\d:\d\d: AmdSmiLibraryException", lost)
    trace = ci.read(tmp_path)
    assert any(i.code == "recording-incomplete" for i in trace.meta.issues)
    counts = {
        row["device"]: len(values)
        for row, values in by_series(trace)
        if row["name"].startswith("gfx clock")
    }
    assert counts[1] <= 10
    assert counts[1] < counts[0]


def test_values_that_are_not_available_are_absent(tmp_path: Path) -> None:
    record(tmp_path)
    names = {s["name"] for s in ci.read(tmp_path).series.to_pylist()}
    assert "temperature hotspot" in names
    assert "temperature edge" not in names


class OneGpu:
    """A GPU whose slow values fail at the start."""

    vendor, library, slow_reads = "amd", "one", 0

    def __init__(self, **metrics: int) -> None:
        self.metrics = metrics or {"current_socket_power": 700}
        self.reads = 0
        self.calls = (
            gpus.Call("metrics", self.read, always=True),
            gpus.Call("memory", self.read_slow, every_s=1.0),
        )

    def read(self, _: int) -> dict:
        self.reads += 1
        return self.metrics

    def read_slow(self, _: int) -> dict:
        self.slow_reads += 1
        if self.slow_reads == 1:
            raise ValueError("not yet")
        return {"vram_used": 5 << 30}

    def close(self) -> None: ...


def test_a_sleeping_gpu_is_not_woken_and_has_all_its_columns_later(
    tmp_path: Path, monkeypatch
) -> None:
    """The GPU is in no /sys here, so that only the recorder's own rule is tested."""
    state = tmp_path / "0000:05:00.0" / "power"
    state.mkdir(parents=True)
    (state / "control").write_text("auto\n")
    (state / "runtime_status").write_text("suspended\n")
    monkeypatch.setattr(gpus, "_PCI", tmp_path)
    facts = [gpus.GpuFacts(0, 0, "amd", pci="0000:05:00.0")]
    path = tmp_path / "telemetry.csv"
    gpu, of_host = OneGpu(), {"host_cpu_percent": 5}
    recorder = sampler.Sampler(gpu, facts, path, 200.0, extra=lambda: of_host)
    recorder.start()
    time.sleep(0.1)
    assert gpu.reads == 0
    (state / "runtime_status").write_text("active\n")
    time.sleep(0.1)
    recorder.stop()
    names = {row["name"] for row in ci.read(path).series.to_pylist()}
    assert {"socket power", "VRAM used", "host CPU activity"} <= names
    recorder.summary()
    assert any(p.startswith("memory: 1 of ") and "not yet" in p for p in recorder.problems)


def test_values_of_the_host_that_fail_end_nothing(tmp_path: Path) -> None:
    def fail() -> dict:
        raise OSError("no /proc")

    gpu = OneGpu()
    gpu.slow_reads = 1
    recorder = sampler.Sampler(
        gpu, [gpus.GpuFacts(0, 0, "amd")], tmp_path / "x.csv", 200.0, extra=fail
    )
    recorder.start()
    recorder.stop()
    assert recorder.summary()["rows"] > 0
    assert recorder.problems == ["values of the host failed, first: OSError: no /proc"]


def test_a_gpu_without_a_clock_has_rows(tmp_path: Path) -> None:
    """All that it answers takes so long that nothing but the clock would be read at each tick."""

    def clock(_: int) -> dict:
        raise OSError("Not Supported")

    def power(_: int) -> dict:
        time.sleep(0.003)
        return {"nvml_power": 650.0}

    gpu = OneGpu()
    gpu.calls = (gpus.Call("clock", clock, always=True), gpus.Call("power", power))
    recorder = sampler.Sampler(gpu, [gpus.GpuFacts(0, 0, "nvidia")], tmp_path / "x.csv", 100.0)
    recorder.start()
    recorder.stop()
    assert recorder.summary()["rows"] > 0
    assert recorder.problems == []


def test_columns_that_come_late_are_named(tmp_path: Path) -> None:
    gpu = OneGpu()
    recorder = sampler.Sampler(gpu, [gpus.GpuFacts(0, 0, "amd")], tmp_path / "x.csv", 200.0)
    gpu.metrics = {"temperature_mem": 46}
    recorder.start()
    recorder.stop()
    recorder.summary()
    assert any("temperature_mem" in problem for problem in recorder.problems)


@pytest.mark.slow
def test_a_full_disk_ends_the_samples_and_not_the_program(tmp_path: Path) -> None:
    done = record(tmp_path, "--rate", 1000, file_bytes=20_000, script=WAIT.format(seconds=2.5))
    assert done.returncode == 0
    assert "nothing was written from" in done.stderr
    trace = ci.read(tmp_path)
    assert len(trace.samples) > 0
    assert any(i.code == "recording-incomplete" for i in trace.meta.issues)


def test_a_disk_that_is_full_at_the_start_keeps_no_empty_file(tmp_path: Path) -> None:
    done = record(tmp_path, file_bytes=10)
    assert done.returncode == WriteError.exit_status
    assert "File too large" in done.stderr
    assert not list(tmp_path.glob("*.csv"))


def test_a_description_that_the_disk_does_not_take_leaves_no_piece(tmp_path: Path) -> None:
    done = record(tmp_path, file_bytes=1_200)
    assert done.returncode == 0
    assert f"{socket.gethostname()}.json: File too large" in done.stderr
    assert not list(tmp_path.glob("recording-*.json"))


def test_nvidia(tmp_path: Path) -> None:
    done = record(tmp_path, libraries=(NVML,), from_start=True)
    assert done.returncode == 0, done.stderr
    trace = ci.read(tmp_path)
    values = {row["name"]: values for row, values in by_series(trace)}
    assert (values["socket power"] == 650.0).all()
    assert (values["gfx clock"] == 1980).all()
    assert np.allclose(np.diff(values["energy"]), 6.5)
    (device,) = devices(tmp_path)
    assert (device.pci, device.arch, device.max_mhz) == ("0000:1b:00.0", "sm_90", 1980)


def test_gpus_of_two_vendors_are_numbered_through(tmp_path: Path) -> None:
    done = record(tmp_path, libraries=(AMDSMI, NVML))
    assert done.returncode == 0, done.stderr
    assert [(g["vendor"], g["gpu"], g["index"]) for g in described(tmp_path)["gpus"]] == [
        ("amd", 0, 0), ("amd", 1, 1), ("nvidia", 2, 0),
    ]  # fmt: skip
    with_host = [
        path.name for path in tmp_path.glob("telemetry-*.csv") if "host_" in path.read_text()
    ]
    assert [name.rpartition("-")[2] for name in with_host] == ["amd.csv"]


@pytest.mark.slow
def test_a_call_that_takes_long_is_made_less_often(tmp_path: Path) -> None:
    """NVML's energy counter takes 3 ms a call on an H100: made at each tick, it left 191 of 1,000 Hz."""
    script = "import time; time.sleep(2)"
    done = record(tmp_path, "--rate", 1000, libraries=(NVML,), script=script, ENERGY_S=0.003)
    (sampled,) = described(tmp_path)["samplers"]
    calls = sampled["calls"]
    energy = calls["energy"]
    assert energy["call_ns"] >= 3_000_000
    assert energy["achieved_hz"] < 25, "5 % of the time"
    assert energy["less_often"]
    assert not calls["clock"]["less_often"]
    rate = f"energy {energy['achieved_hz']:.3g} Hz"
    assert rate in done.stderr.partition("less often: ")[2]
    trace = ci.read(tmp_path)
    assert f", {rate}" in trace.meta.facts["recorder rate"]
    counts = {row["name"]: len(values) for row, values in by_series(trace)}
    assert counts["gfx clock"] == sampled["rows"]
    assert 2 <= counts["energy"] < sampled["rows"] / 2, "each sample stands in the row of its time"


def test_a_missing_installation_keeps_the_status(tmp_path: Path) -> None:
    """As in a checkout that is only on the path, where no package has a version."""
    hide = "from importlib import metadata\ndef gone(name): raise metadata.PackageNotFoundError(name)\n"
    (tmp_path / "sitecustomize.py").write_text(
        hide + "metadata.version = metadata.distribution = gone\n"
    )
    script = "import sys; sys.exit(7)"
    done = record(tmp_path / "out", libraries=(AMDSMI, tmp_path), script=script, from_start=True)
    assert done.returncode == 7, done.stderr
    assert described(tmp_path / "out")["program_exit_status"] == 7


def test_a_process_that_becomes_another_program_is_known_as_that(tmp_path: Path) -> None:
    """As the workers of torchrun: copies of it until they have their own environment."""
    script = (
        "import os, time; time.sleep(2.5)\n"
        "os.environ['RANK'] = '3'; os.execvp('sleep', ['sleep', '2.5'])"
    )
    record(tmp_path, script=script)
    (process,) = described(tmp_path)["processes"]
    assert (process["name"], process["rank"]) == ("sleep", 3)


@pytest.mark.slow
def test_names_of_processes_are_any_bytes(tmp_path: Path) -> None:
    program = os.fsencode(tmp_path) + b"/a\xff\x1b[31m\n"
    shutil.copy(shutil.which("sleep"), program)
    name = f"import os; os.execv({program!r}, ['x', '1.3'])"
    record(tmp_path / "out", script=name)
    (process,) = described(tmp_path / "out")["processes"]
    assert process["name"].startswith("a?\x1b[31m")
    assert len(devices(tmp_path / "out")) == 2


@pytest.mark.parametrize("at", slow_from(["import", "read"], 1))
def test_a_library_that_exits_ends_nothing(tmp_path: Path, at: str) -> None:
    end = {
        "import": "sys.exit(3)",
        "read": "amdsmi_get_gpu_metrics_info = lambda h: sys.exit(3) if time.time() > begin + 0.3 else {'current_socket_power': 1}",
    }
    text = AMDSMI.joinpath("amdsmi.py").read_text()
    text += f"\nimport sys\nbegin = time.time()\n{end[at]}\n"
    (tmp_path / "amdsmi.py").write_text(text)
    done = record(tmp_path / "out", libraries=(tmp_path,), script=WAIT.format(seconds=0.6))
    assert "SystemExit: 3" in done.stderr
    assert done.returncode == 0


def test_a_package_that_is_not_there_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "amdsmi.py").write_text("raise ModuleNotFoundError(name='amdsmi')")
    done = record(tmp_path / "out", libraries=(tmp_path,), script="")
    first = done.stderr.splitlines()[0]
    assert "amd: amdsmi is not installed; " in first
    assert first.endswith("(for amd pip install 'chopper-interop[amdsmi]', or use that of ROCm)")


def test_without_a_gpu_the_host_is_recorded(tmp_path: Path, run) -> None:
    """The real packages, which raise what they like where there is no driver; the program had not been started."""
    script = "import sys; print('ran'); sys.exit(3)"
    done = record(tmp_path, "--rate", 100, libraries=(), script=script)
    assert (done.returncode, done.stdout) == (3, "ran\n")
    first, *lines = done.stderr.splitlines()
    assert first.startswith("chopper-record: no GPU is recorded, only the host: amd: ")
    assert "libamd_smi.so is not there, which comes with ROCm" in first
    assert "pip install" not in first, "both packages are installed"
    assert "KeyError" not in first
    assert not any("no GPU is recorded" in line for line in lines), "once is enough"
    following = lines[-1].partition("next: ")[2].partition(";")[0]
    assert shlex.split(following) == ["chopper-analyze", str(tmp_path), "telemetry"]
    status, stdout, _ = run("analyze", tmp_path, "telemetry")
    assert (status, "host CPU activity" in stdout) == (0, True)
    trace = ci.read(tmp_path)
    series = {row["name"]: (row["device"], len(values)) for row, values in by_series(trace)}
    assert series.keys() == {
        f"host {what}" for what in ("CPU activity", "memory used", "memory free")
    }
    assert {device for device, _ in series.values()} == {-1}
    assert min(count for _, count in series.values()) >= 2
    assert not trace.meta.devices
    assert [i.code for i in trace.meta.issues if "no GPU" in i.example] == ["recording-incomplete"]
    status, stdout, _ = run("analyze", tmp_path)
    assert (status, "no operations were recorded" in stdout) == (0, True)


def test_a_library_without_gpus_is_no_vendor_and_is_closed(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    first = (
        "from chopper_interop.recording import amd\n"
        f"amd.AmdGpus.close = lambda _: open({str(closed)!r}, 'w').close()\n"
    )
    done = record(tmp_path / "out", first=first, GPUS=0)
    assert closed.exists()
    assert done.returncode == 0
    assert "no GPU is recorded, only the host: amd: the library lists none; " in done.stderr


@pytest.mark.slow
def test_an_earlier_recording_is_replaced_and_said_so(tmp_path: Path) -> None:
    text = f"chopper-record: {tmp_path} has a recording of this host, which is replaced"
    assert text not in record(tmp_path, script="pass").stderr
    assert record(tmp_path, script="pass").stderr.splitlines()[0] == text


@pytest.mark.parametrize(
    ("name", "status"), [("telemetry-{}-amd.csv", 6), ("recording-{}.json", 0)]
)
def test_a_pipe_of_the_name_of_a_file_is_not_waited_for(
    tmp_path: Path, name: str, status: int
) -> None:
    os.mkfifo(tmp_path / name.format(socket.gethostname()))
    done = record(tmp_path, script="pass")
    assert done.returncode == status
    assert "No such device or address" in done.stderr


@pytest.mark.parametrize("program", [("sleep", "1"), ("python", "-c", "pass")])
def test_a_program_without_a_mark_before_it_is_said_so(tmp_path: Path, capsys, program) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.record_main(["-o", str(tmp_path / "out"), *program])
    assert "; write -- in front of the program" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_one_process_of_a_node_records(tmp_path: Path) -> None:
    script = "import os; print('CHOPPER_TORCH' in os.environ)"
    done = record(tmp_path / "out", "--torch", script=script, LOCAL_RANK=1)
    assert (done.returncode, done.stdout) == (0, "True\n"), "all of them are profiled"
    assert not (tmp_path / "out").exists()


def test_processes_are_known_by_rank(tmp_path: Path) -> None:
    script = "import time; time.sleep(1.5)"
    record(tmp_path, script=script, RANK=3)
    assert 3 in {p.get("rank") for p in described(tmp_path)["processes"]}


@pytest.mark.parametrize("rate", slow_from([0, -1, 5000, "nan"], 1))
def test_impossible_rates_are_refused(tmp_path: Path, rate) -> None:
    done = record(tmp_path, f"--rate={rate}")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def profiled(folder: Path, what: str) -> list[str]:
    """Run two profilers of a program under the hook; shapes and the path of the trace of each, after one line."""
    package = folder / "lib" / "torch" / "profiler"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("")
    (package / "__init__.py").write_text("from .profiler import profile")
    (package / "profiler.py").write_text(
        "class ExecutionTraceObserver:\n"
        "    def register_callback(self, path): self.path = path\n"
        "class profile:\n"
        "    def __init__(self, *, record_shapes=False, execution_trace_observer=None):\n"
        "        print(record_shapes, getattr(execution_trace_observer, 'path', None))\n"
    )
    (folder / "lib" / "sitecustomize.py").write_text("print('own sitecustomize')")
    environment = preparation.torch_environment(what, folder)
    environment["PYTHONPATH"] += os.pathsep + str(folder / "lib")
    script = "import torch.profiler as p; p.profile(); p.profile(record_shapes=False)"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | environment | {"RANK": "2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_hook_changes_the_defaults_of_the_profiler(tmp_path: Path) -> None:
    """Host execution traces made steps of 34 ms last 118 ms, so that shapes alone do not ask for them."""
    assert profiled(tmp_path, "shapes") == ["own sitecustomize", "True None", "False None"]


def test_hook_writes_host_execution_traces_if_asked(tmp_path: Path) -> None:
    own, default, chosen = profiled(tmp_path, "host")
    assert own == "own sitecustomize"
    assert default.startswith(f"True {tmp_path}/rank2-")
    assert chosen.startswith("False ")
    assert default.split()[1] != chosen.split()[1], "the second profile does not replace the first"


@pytest.mark.parametrize(
    ("options", "shown"),
    slow_from(
        [((), "None None"), (("--torch", "host"), "host {folder}"), (("--torch",), "shapes None")],
        2,
    ),
)
def test_torch_asks_for_host_traces_by_name_alone(tmp_path: Path, options, shown: str) -> None:
    names = f"{preparation.TORCH_ON!r}, {preparation.TORCH_FOLDER!r}"
    done = record(tmp_path, *options, script=f"import os; print(*map(os.environ.get, ({names})))")
    assert done.stdout == shown.format(folder=tmp_path) + "\n"


def test_rocprof_writes_to_the_folder_whatever_that_of_the_program_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """rocprofv3 passes a relative folder on, and its library looks for it when the program ends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/opt/rocm/bin/rocprofv3")
    command = preparation.rocprof_command("traces", Path("run"), ["prog"])
    assert command[command.index("-d") + 1] == str(tmp_path / "run" / "rocprof")


def test_rocprof_gets_the_program(tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "rocprofv3"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\necho "$@"\n')
    tool.chmod(0o755)
    path = f"{tool.parent}{os.pathsep}{os.environ['PATH']}"
    done = record(tmp_path / "out", "--rocprof", "traces", script="pass", PATH=path)
    assert "--kernel-trace" in done.stdout
    assert done.stdout.endswith("-c pass\n")
    record(tmp_path / "out", "--rocprof", "counters", script="pass", PATH=path)
    jobs = json.loads((tmp_path / "out/rocprof/counters.json").read_text())["jobs"]
    assert {c for job in jobs for c in job["pmc"]} >= {"FETCH_SIZE", "WRITE_SIZE"}


def test_passes_hold_what_the_metrics_need() -> None:
    """A pass holds 8 counters of SQ; FETCH_SIZE and WRITE_SIZE do not fit into one."""
    from chopper_interop.schemas import derived

    for counters in preparation.COUNTER_PASSES:
        assert sum(name.startswith("SQ_") for name in counters) <= 8
        assert not {"FETCH_SIZE", "WRITE_SIZE"} <= set(counters)
    counted = {name for counters in preparation.COUNTER_PASSES for name in counters}
    assert {name for name in derived.FLOPS if name.startswith("SQ_")} <= counted

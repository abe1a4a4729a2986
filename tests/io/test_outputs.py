"""Outputs are complete or absent, and files of others stay."""

import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kineto_files import BASE, call, kernel, write

import chopper_interop as ci
from chopper_interop.errors import LossError, UsageError, WriteError
from chopper_interop.io import outputs
from chopper_interop.testing.samples import tiny_trace


def rank_file(folder: Path, rank: int, name: str | None = None) -> Path:
    folder.mkdir(exist_ok=True)
    events = [call("hipLaunchKernel", 1, 2, 1), kernel("k", 4, 5 + rank, 1)]
    info = {"distributedInfo": {"rank": rank, "world_size": 2}}
    path = folder / (name or f"rank{rank}.json.gz")
    return write(path, events, baseTimeNanoseconds=BASE, **info)


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    """Profiles of two ranks under the names that a folder of Kineto files would get."""
    for rank in range(2):
        rank_file(tmp_path / "run", rank)
    return tmp_path / "run"


def test_profiles_are_never_replaced_by_files_made_from_them(run_folder: Path, run) -> None:
    (run_folder / "rank7.json.gz").write_bytes((run_folder / "rank0.json.gz").read_bytes())
    before = {p.name: p.read_bytes() for p in run_folder.iterdir()}
    status, _, output = run("convert", run_folder / "rank0.json.gz", "-o", f"kineto:{run_folder}/")
    assert status == UsageError.exit_status
    assert "overwritten by what is made of it" in output
    with pytest.raises(WriteError, match="was not written by this program"):
        ci.write(ci.read(run_folder / "rank0.json.gz"), run_folder, to_format="kineto")
    assert {p.name: p.read_bytes() for p in run_folder.iterdir()} == before


@pytest.mark.parametrize("target", ["job.et", "et/", ".", "../next/"])
def test_folders_are_written_from_any_working_folder(
    run_folder: Path, run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    status, _, output = run("convert", run_folder / "rank0.json.gz", "--to", "chakra", "-o", target)
    assert status == 0, output
    assert len(list(tmp_path.rglob("*.et"))) == 1


def test_an_unknown_format_makes_no_folder_of_that_name(run_folder: Path, run) -> None:
    status, _, output = run("convert", run_folder / "rank0.json.gz", "-o", f"ets:{run_folder}/out/")
    assert status == 2
    assert "there is no format 'ets'" in output
    assert not Path("ets:").exists()


def test_a_folder_is_not_overwritten_through_a_link(run_folder: Path, tmp_path: Path, run) -> None:
    tables, link = tmp_path / "a.parquet", tmp_path / "link.parquet"
    assert run("convert", run_folder / "rank0.json.gz", "-o", tables)[0] == 0
    link.symlink_to(tables)
    before = {path: path.stat().st_ino for path in tables.rglob("*")}
    assert all(path.is_dir() or path.stat().st_size for path in before)
    status, _, output = run("convert", tables, "-o", link)
    assert (status, "would be overwritten" in output) == (UsageError.exit_status, True)
    with pytest.raises(UsageError, match="would be overwritten"):
        ci.convert(tables, link)
    assert {path: path.stat().st_ino for path in tables.rglob("*")} == before


def test_a_trace_does_not_replace_the_folder_that_it_was_read_from(tmp_path: Path) -> None:
    """Of ETs only those of the same job's name would be."""
    for name, job in (("a.parquet", ""), ("et/", "tiny")):
        target = f"{tmp_path}/{name}"
        ci.write(tiny_trace(), target)
        trace = ci.read(target)
        trace = trace.with_meta(job=job or trace.meta.job)
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(UsageError, match="would be overwritten"):
            ci.write(trace, target)
        assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        ci.write(tiny_trace(), target)  # of another trace it is replaced


def test_inputs_are_never_overwritten(run_folder: Path, run) -> None:
    source = run_folder / "rank0.json.gz"
    before = source.read_bytes()
    for inputs in (source, run_folder):
        status, _, output = run("convert", inputs, "-o", run_folder / "a.pftrace", "-o", source)
        assert (status, "would be overwritten" in output) == (UsageError.exit_status, True)
    with pytest.raises(UsageError, match="would be overwritten"):
        ci.write(ci.read(source), source)
    with pytest.raises(UsageError, match="would be overwritten"):
        ci.convert(source, source)
    assert source.read_bytes() == before
    assert not (run_folder / "a.pftrace").exists()


def test_files_of_an_earlier_run_are_replaced_and_sources_are_not(run_folder: Path) -> None:
    for output in ("out", "run/out"):
        folder = run_folder.parent / output
        ci.write(ci.read(run_folder), f"{folder}/", to_format="kineto")
        (folder / "rank9.json.gz").write_text("of others")
        ci.write(ci.read(run_folder).rank(1), f"{folder}/", to_format="kineto")
        assert {p.name for p in folder.iterdir()} == {"rank1.json.gz", "rank9.json.gz"}
        (folder / "rank9.json.gz").unlink()
    assert ci.read(run_folder).nodes.num_rows == 4
    assert ci.read(run_folder / "out").ranks == [1]  # alone it is an input as any other


def test_tables_of_analyses_leave_other_tables_alone(run_folder: Path, run) -> None:
    (run_folder / "watch.csv").write_text("of others")
    for _ in range(2):
        assert run("analyze", run_folder, "temporal", "--csv", run_folder)[0] == 0
    assert (run_folder / "watch.csv").read_text() == "of others"
    assert (run_folder / "temporal.csv").read_text().startswith("rank,")


def test_a_table_of_others_of_the_same_name_is_refused(run_folder: Path, run) -> None:
    """Tools write files of the name of an analysis."""
    (run_folder / "telemetry.csv").write_text("gpu,watts\n0,300\n")
    status, *output = run("analyze", run_folder, "telemetry", "--csv", run_folder)
    assert status == 6
    assert "telemetry.csv" in "".join(output)
    assert (run_folder / "telemetry.csv").read_text() == "gpu,watts\n0,300\n"


@pytest.mark.parametrize("output", ["et/job.et", "job.parquet"])
def test_files_of_others_of_the_same_name_are_refused(run_folder: Path, output: str) -> None:
    target = run_folder.parent / output
    trace = ci.read(run_folder)
    ci.write(trace, target)
    ci.write(trace, target)
    folder = target if target.is_dir() else target.parent
    (folder / "notes.txt").write_text("of others")
    ci.write(trace.rank(0), target)
    assert (folder / "notes.txt").read_text() == "of others"
    for path in [p for p in folder.iterdir() if p.name != "notes.txt"]:
        path.rename(folder / f"old {path.name}")
    name = "job.0.et" if output == "et/job.et" else "nodes"
    (folder / name).write_text("somebody else's")
    with pytest.raises(WriteError, match="was not written by this program"):
        ci.write(trace, target)
    assert (folder / name).read_text() == "somebody else's"


def test_pipes_and_links_are_written_into(run_folder: Path, tmp_path: Path) -> None:
    trace = ci.read(run_folder)
    pipe, link, real = (tmp_path / n for n in ("pipe.pftrace", "link.pftrace", "real.pftrace"))
    os.mkfifo(pipe)
    link.symlink_to(real)
    ci.write(trace, link)
    assert link.is_symlink()
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()))
    reader.start()
    ci.write(trace, pipe)
    reader.join(10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert received == [real.read_bytes()]
    with pytest.raises(WriteError):
        ci.write(trace, tmp_path / "run", to_format="perfetto")


@pytest.mark.parametrize("name", ["a.pftrace.gz", "a.json.gz"])
def test_the_same_content_makes_the_same_file(run_folder: Path, tmp_path: Path, name: str) -> None:
    trace = ci.read(run_folder)
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        ci.write(trace, tmp_path / folder / name)
    assert (tmp_path / "x" / name).read_bytes() == (tmp_path / "y" / name).read_bytes()


def test_several_optionsmay_name_their_formats(run_folder: Path, tmp_path: Path, run) -> None:
    options = (
        "-o",
        f"kineto:{tmp_path}/k",
        "-o",
        f"{tmp_path}/et/",
        "-o",
        f"perfetto:{tmp_path}/p",
    )
    assert run("convert", run_folder, *options)[0] == 0
    assert sorted(p.name for p in (tmp_path / "k").iterdir()) == ["rank0.json.gz", "rank1.json.gz"]
    assert (tmp_path / "et" / "run.1.et").is_file()
    assert (tmp_path / "p").read_bytes()[:1] == b"\n"


@pytest.mark.parametrize("job", ["../out", "a/b", "..", "[/red]"])
def test_a_name_of_a_job_must_be_one_of_a_file(
    run_folder: Path, tmp_path: Path, job: str, run
) -> None:
    status, _, output = run("convert", run_folder, "-o", f"{tmp_path}/et/", "--job", job)
    assert (status, "can't be the name of a job" in output) == (UsageError.exit_status, True)
    assert not (tmp_path / "et").exists()


def test_an_unreadable_input_is_a_loss(run_folder: Path, tmp_path: Path, run) -> None:
    (run_folder / "rank2.json.gz").touch()
    assert {i.code for i in ci.read(run_folder).meta.issues} >= {"file-unreadable"}
    status, _, _ = run("convert", run_folder, "-o", tmp_path / "a.pftrace", "--on-loss", "error")
    assert status == LossError.exit_status
    assert not (tmp_path / "a.pftrace").exists()
    with pytest.raises(UsageError, match="on_loss=eror"):
        ci.convert(run_folder, tmp_path / "a.pftrace", on_loss="eror")


def test_marks_are_found_in_packed_files(run_folder: Path, tmp_path: Path) -> None:
    ci.write(ci.read(run_folder), tmp_path / "a.json.gz")
    assert outputs.is_marked(tmp_path / "a.json.gz")
    assert not outputs.is_marked(run_folder / "rank0.json.gz")


def test_a_damaged_file_of_the_same_name_is_not_replaced(run_folder: Path, tmp_path: Path) -> None:
    trace = ci.read(run_folder)
    ci.write(trace, f"{tmp_path}/k/", to_format="kineto")
    (tmp_path / "k" / "rank1.json.gz").write_bytes(b"\x1f\x8b damaged")
    with pytest.raises(WriteError, match=r"rank1\.json\.gz: it is there"):
        ci.write(trace, f"{tmp_path}/k/", to_format="kineto")


def test_the_order_of_arguments_changes_no_byte(run_folder: Path, tmp_path: Path, run) -> None:
    files = sorted(run_folder.iterdir())
    contents = []
    for order in (files, files[::-1]):
        place = tmp_path / f"out{len(contents)}"
        place.mkdir()
        outputs_ = [
            x for name in ("a.pftrace", "a.parquet", "et/") for x in ("-o", f"{place}/{name}")
        ]
        assert run("convert", "-q", *order, *outputs_)[0] == 0
        written = (p for p in place.rglob("*") if p.is_file())
        contents.append({p.relative_to(place): p.read_bytes() for p in written})
    assert contents[0] == contents[1]
    assert Path("et/run.0.et") in contents[0]  # the job is called after the folder of its files


@pytest.mark.parametrize(
    "name",
    ["perfetto:DIR/", "graphml:DIR/", "DIR/x.pftrace/", "perfetto:OLD", "perfetto:file://DIR/"],
)
def test_one_file_is_not_written_as_a_folder(
    run_folder: Path, tmp_path: Path, run, name: str
) -> None:
    """`perfetto:DIR/` made a file called DIR."""
    out = tmp_path / "out"
    (out / "OLD").mkdir(parents=True)
    text = name.replace("DIR", f"{out}/new").replace("OLD", f"{out}/OLD")
    status, _, stderr = run("convert", "-q", run_folder, "-o", text)
    assert status == WriteError.exit_status
    assert len(stderr.splitlines()) == 1
    assert [path.name for path in out.rglob("*")] == ["OLD"]


def test_a_trailing_slash_is_right_for_formats_of_folders(
    run_folder: Path, tmp_path: Path, run
) -> None:
    for name, options in (("kineto", ()), ("perfetto", ("-O", "split=yes")), ("parquet", ())):
        status, _, stderr = run(
            "convert", "-q", run_folder, "-o", f"{name}:{tmp_path}/{name}/", *options
        )
        assert status == 0, stderr
        assert (tmp_path / name).is_dir()


def test_links_in_a_cycle_are_one_line(run_folder: Path, tmp_path: Path, run) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for name in ("perfetto:{}", "chakra:{}/x", "parquet:{}", "kineto:{}"):
        status, _, stderr = run("convert", "-q", run_folder, "-o", name.format(tmp_path / "loop"))
        assert status == WriteError.exit_status
        assert len(stderr.splitlines()) == 1
    assert (tmp_path / "loop").is_symlink()


def test_the_standard_output_can_be_a_file_to_write(run_folder: Path, tmp_path: Path, run) -> None:
    """It is a pipe here, whose link in /proc leads to no file."""
    run("convert", "-q", run_folder, "-o", tmp_path / "x.pftrace")
    code = "from chopper_interop import start; start.convert()"
    command = [sys.executable, "-c", code, "-q", str(run_folder), "-o", "perfetto:/dev/stdout"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert done.stdout == (tmp_path / "x.pftrace").read_bytes()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc/self/fd")
@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"])
def test_an_open_file_is_written_behind_what_it_holds(
    run_folder: Path, tmp_path: Path, run, name: str
) -> None:
    """`> a.pftrace` was replaced: what others wrote to it, before and after, was gone."""
    run("convert", "-q", run_folder, "-o", tmp_path / "x.pftrace")
    code = "from chopper_interop import start; start.convert()"
    command = [sys.executable, "-c", code, "-q", str(run_folder), "-o", f"perfetto:{name}"]
    with (tmp_path / "out").open("wb") as out:
        for text in (b"before", b"after"):
            out.write(text)
            out.flush()
            if text == b"before":
                subprocess.run(command, stdout=out, check=True)
    content = (tmp_path / "x.pftrace").read_bytes()
    assert (tmp_path / "out").read_bytes() == b"before" + content + b"after"


def test_a_device_stays_one(run_folder: Path, run) -> None:
    before = Path(os.devnull).stat()
    assert run("convert", "-q", run_folder, "-o", f"perfetto:{os.devnull}")[0] == 0
    assert Path(os.devnull).stat().st_ino == before.st_ino


@pytest.mark.parametrize("output", ["parquet:{}", "chakra:{}", "kineto:{}"])
@pytest.mark.parametrize("special", ["/dev/null", "pipe", "/dev/stdout"])
def test_a_folder_is_not_written_into_a_pipe_or_a_device(
    run_folder: Path, tmp_path: Path, run, output: str, special: str
) -> None:
    if special == "pipe":
        special = str(tmp_path / "pipe")
        os.mkfifo(special)
    status, _, stderr = run("convert", "-q", run_folder, "-o", output.format(special))
    assert (status, stderr.count("\n")) == (WriteError.exit_status, 1)
    assert f"{special}: it is a pipe, a device or an open file, and a folder is written" in stderr


def test_a_folder_that_is_in_itself_is_locked_once(tmp_path: Path, monkeypatch) -> None:
    """The root of the file system is: `-o /` waited for its own lock for ever."""

    class Root(type(tmp_path)):
        parent = property(lambda self: self)

    root = Root(tmp_path)
    (root / "theirs").touch()
    monkeypatch.setattr(outputs, "real", lambda _: root)
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.alarm(10)
    try:
        with outputs.folder(root, owns=lambda _: False) as new:
            (new / "ours").touch()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert {path.name for path in tmp_path.iterdir()} == {"ours", "theirs"}

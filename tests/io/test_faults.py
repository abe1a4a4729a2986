"""Whenever a process ends, an output is there as it was or as it was to be, and a rerun completes it."""

from __future__ import annotations

import base64
import bz2
import errno
import gzip
import json
import lzma
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import adbc_driver_sqlite
import pytest
import rocpd
from slow import slow_from

import chopper_interop as ci
from chopper_interop import job_reading, sources
from chopper_interop.errors import ChopperError, ReadError, UsageError, WriteError
from chopper_interop.io import inputs, outputs
from chopper_interop.testing.samples import tiny_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

STEPS = {
    "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree",
    "chopper_interop.exchange",
}  # fmt: skip
"""Audit events of calls that change folders (Python's table of audit events, and our own)."""
KILLED = 9


def is_output(path: Path) -> bool:
    return path.name.startswith(("rank", "table"))


def fill(folder: Path, version: str, ranks: int) -> None:
    """Write as a writer does: files, and a folder with a file in it."""
    for rank in range(ranks):
        (folder / f"rank{rank}").write_text(version)
    (folder / "table").mkdir()
    (folder / "table" / "part").write_text(version)


def contents(folder: Path) -> dict[str, str]:
    """Text of each visible file by its path."""
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.relative_to(folder).as_posix().startswith(".")
    }


def write(folder: Path, version: str, ranks: int) -> None:
    with outputs.folder(folder, owns=is_output) as new:
        fill(new, version, ranks)


def ends_at_step(number: int, act: Callable[[], Any], end: Callable[[], Any]) -> int:
    """Run `act` in a child process, in which `end` is called at a change of folders; return its status.

    A status of 0 means that there are fewer steps.
    """
    child = os.fork()
    if child == 0:
        status, seen = 1, 0

        def hook(event: str, _arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if event in STEPS:
                seen += 1
                if seen == number:
                    end()

        sys.addaudithook(hook)
        with suppress(KeyboardInterrupt):
            act()
            status = 0
        os._exit(status)
    return os.waitpid(child, 0)[1]


def no_exchange(monkeypatch: pytest.MonkeyPatch, _folder: Path) -> None:
    monkeypatch.setattr(outputs, "exchange", lambda _a, _b: False)


def current_folder(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.chdir(folder)


def foreign_files(_monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "notes").mkdir()
    (folder / "notes" / "own.txt").write_text("keep")
    (folder / "README").write_text("keep")


def interrupt() -> None:
    raise KeyboardInterrupt


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An output folder with three ranks of an earlier run."""
    write(tmp_path / "et", "old", 3)
    return tmp_path / "et"


@pytest.mark.parametrize("end", slow_from([kill, interrupt], 1))
def test_ended_at_any_step_the_old_or_the_new_folder_is_there(place: Path, end: Any) -> None:
    old = contents(place)
    new = {"rank0": "new", "rank1": "new", "table/part": "new"}
    outcomes, step = set(), 0
    while True:
        step += 1
        status = ends_at_step(step, lambda: write(place, "new", 2), end)
        outcomes.add(tuple(contents(place)))
        assert contents(place) in (old, new), step
        outputs.require_finished(place)
        write(place, "old", 3)
        assert contents(place) == old
        if status == 0:
            break
    assert step > 4
    assert len(outcomes) == 2


@pytest.mark.parametrize("how", slow_from([no_exchange, current_folder, foreign_files], 1))
def test_where_folders_are_not_exchanged_readers_refuse_half_of_it(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    how(monkeypatch, place)
    old = contents(place)
    new = {k: "new" for k in old if k.startswith(("rank0", "rank1", "table"))}
    new |= {k: v for k, v in old.items() if v == "keep"}
    refused, step = 0, 0
    while True:
        step += 1
        status = ends_at_step(step, lambda: write(place, "new", 2), kill)
        if (place / ".chopper-interop.unfinished").exists():
            refused += 1
            with pytest.raises(ReadError, match=r"interrupted.*run the command .* again"):
                sources.find([place])
            write(place, "new", 2)
            assert contents(place) == new
        assert contents(place) in (old, new), step
        write(place, "old", 3)
        assert contents(place) == old
        if status == 0:
            break
    assert refused > 4


@pytest.mark.parametrize("how", slow_from([no_exchange, current_folder], 1))
def test_interrupted_the_folder_is_completed_first(
    place: Path, monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    how(monkeypatch, place)
    old = contents(place)
    step = 0
    while True:
        step += 1
        status = ends_at_step(step, lambda: write(place, "new", 2), interrupt)
        outputs.require_finished(place)
        assert len(set(contents(place).values()) - {"keep"}) == 1, step
        write(place, "old", 3)
        assert contents(place) == old
        if status == 0:
            break


def test_what_a_killed_writer_left_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_file() -> None:
        with outputs.file(tmp_path / "job.pftrace") as stream:
            stream.write(b"x")
            kill()

    assert ends_at_step(0, write_file, kill) == KILLED
    assert ends_at_step(3, lambda: write(tmp_path / "et", "new", 2), kill) == KILLED
    assert len(list(tmp_path.glob(".chopper-*.part"))) == 2
    monkeypatch.setattr(outputs, "_LOCKING_S", -1)
    with outputs.file(tmp_path / "job.pftrace") as stream:
        assert len(list(tmp_path.glob(".chopper-*.part"))) == 1
        with outputs.file(tmp_path / "other"):  # what is being written stays
            assert len(list(tmp_path.glob(".chopper-*.part"))) == 2
        stream.write(b"y")
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["job.pftrace", "other"]


def test_of_two_writers_one_wins_as_a_whole(place: Path) -> None:
    with outputs.folder(place, owns=is_output) as first:
        fill(first, "first", 3)
        write(place, "second", 2)
    assert set(contents(place).values()) == {"first"}


def test_a_writer_waits_for_another_that_replaces_the_folder(place: Path) -> None:
    """Half replaced, the folder looked like one of others (1 of 12 pairs of conversions to Parquet)."""
    begun, steps = multiprocessing.Event(), []

    def slow(entry: Path) -> bool:
        begun.set()
        time.sleep(0.3)
        return is_output(entry)

    def first() -> None:
        with outputs.folder(place, owns=slow) as new:
            fill(new, "first", 3)

    other = multiprocessing.get_context("fork").Process(target=first)
    other.start()
    assert begun.wait(10)

    def owns(entry: Path) -> bool:
        steps.append(contents(place))
        return is_output(entry)

    with outputs.folder(place, owns=owns) as new:
        fill(new, "second", 2)
    other.join()
    assert steps[0]["rank0"] == "first"
    assert set(contents(place).values()) == {"second"}


def test_what_comes_into_a_folder_while_it_is_replaced_stays(place: Path, monkeypatch) -> None:
    exchange = outputs.exchange

    def slow(one: Path, other: Path) -> bool:
        (place / "notes").write_text("keep")
        return exchange(one, other)

    monkeypatch.setattr(outputs, "exchange", slow)
    write(place, "new", 2)
    assert contents(place) == {
        "notes": "keep", "rank0": "new", "rank1": "new", "table/part": "new"
    }  # fmt: skip


def test_a_folder_with_files_of_others_remains_the_same_folder(place: Path) -> None:
    """It may be the current folder of other processes."""
    (place / "log").write_text("keep")
    before = place.stat().st_ino
    write(place, "new", 2)
    assert place.stat().st_ino == before


def test_a_rerun_completes_an_output_within_its_input(tmp_path: Path, run) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    arguments = ("convert", "-q", tmp_path, "-o", f"{tmp_path}/et/")
    assert run(*arguments)[0] == 0
    (tmp_path / "et" / ".chopper-interop.unfinished").mkdir()
    status, _, output = run("convert", "-q", tmp_path / "et", "-o", tmp_path / "b.json")
    assert (status, "interrupted" in output) == (4, True)
    assert run("convert", "-q", tmp_path / "et" / f"{tmp_path.name}.0.et", "-o", "b.json")[0] == 4
    assert run(*arguments)[0] == 0
    assert not (tmp_path / "et" / ".chopper-interop.unfinished").exists()


def marked(place: Path, outdated: list[str], inode: int | None = None) -> Path:
    """A mark of an interrupted writing in a folder, as another program would make it."""
    mark = place / ".chopper-interop.unfinished"
    mark.mkdir(parents=True)
    names = [base64.b64encode(name.encode()).decode() for name in outdated]
    made = {"inode": place.stat().st_ino if inode is None else inode, "outdated": names}
    (mark / ".outdated").write_text(json.dumps(made))
    return mark


@pytest.mark.parametrize("name", ["../kept", "{folder}/kept", "..", ".", ""])
def test_a_mark_in_an_output_folder_removes_nothing_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "kept").mkdir()
    place = tmp_path / "et"
    marked(place, [name.format(folder=tmp_path)])
    with pytest.raises(WriteError, match=r"was not made in this folder \(look at what is in it"):
        write(place, "new", 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["et", "kept"]


def test_a_mark_that_came_with_a_copied_folder_removes_nothing(place: Path) -> None:
    marked(place, ["rank0"], inode=place.stat().st_ino + 1)
    with pytest.raises(WriteError, match="was not made in this folder"):
        write(place, "new", 2)
    assert set(contents(place).values()) == {"old"}


@pytest.mark.parametrize("content", ["", "[", "[]", '["a"]', '{"inode": "x"}', "\ud800"])
def test_a_damaged_mark_is_one_line(place: Path, content: str) -> None:
    mark = marked(place, [])
    (mark / ".outdated").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(WriteError, match="was not made in this folder"):
        write(place, "new", 2)


def test_a_mark_that_is_a_link_moves_nothing(place: Path, tmp_path: Path) -> None:
    """A folder elsewhere would lose its entries, or a pipe would be waited for."""
    elsewhere = marked(tmp_path / "elsewhere", [], inode=place.stat().st_ino)
    (elsewhere / "kept").touch()
    (place / elsewhere.name).symlink_to(elsewhere)
    with pytest.raises(WriteError, match="was not made in this folder"):
        write(place, "new", 2)
    (place / elsewhere.name).unlink()
    os.mkfifo(marked(place, []) / "pipe")
    (place / elsewhere.name / ".outdated").unlink()
    (place / elsewhere.name / "pipe").rename(place / elsewhere.name / ".outdated")
    with pytest.raises(WriteError, match="was not made in this folder"):
        write(place, "new", 2)
    assert (elsewhere / "kept").exists()


def test_links_to_folders_above_are_not_followed(tmp_path: Path) -> None:
    """A link to / would have the whole disk searched."""
    ci.write(tiny_trace(), tmp_path / "outer.json")
    (tmp_path / "run").mkdir()
    ci.write(tiny_trace(), tmp_path / "run" / "a.json")
    (tmp_path / "run" / "root").symlink_to("/")
    (tmp_path / "run" / "up").symlink_to("..")
    matches = sources.find([tmp_path / "run"])
    assert [source.first.name for source in matches.sources] == ["a.json"]
    assert [path.name for path, why in matches.skipped if "that this one is in" in why] == [
        "root",
        "up",
    ]


def test_a_pipe_of_the_name_of_a_workspace_stops_nobody(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".chopper-0.part")
    with outputs.file(tmp_path / "a") as stream:
        stream.write(b"x")
    assert (tmp_path / "a").read_bytes() == b"x"


def test_a_folder_that_cannot_be_written_is_not_replaced(reachable: Path) -> None:
    write(reachable / "et", "old", 1)
    reachable.chmod(0o777)
    (reachable / "et").chmod(0o555)
    with without_privileges(), pytest.raises(WriteError, match="Permission denied"):
        write(reachable / "et", "new", 2)
    assert set(contents(reachable / "et").values()) == {"old"}


@pytest.mark.parametrize("size", ["nan", "inf", "-1", "0", "1e300"])
def test_a_limit_that_is_none_is_refused(tmp_path: Path, run, size: str) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    arguments = (tmp_path / "a.pftrace", "-o", tmp_path / "b.json", "--max-unpacked", size)
    assert run("convert", *arguments)[0] == UsageError.exit_status


def test_an_output_is_named_once(tmp_path: Path, run) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    names = ("-o", tmp_path / "b.json", "-o", f"{tmp_path}/./b.json")
    assert run("convert", tmp_path / "a.pftrace", *names)[0] == UsageError.exit_status


def test_each_file_that_was_not_read_has_a_row(tmp_path: Path) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    for name in ("x.json", "y.json"):
        (tmp_path / name).write_bytes(b"")
    trace = ci.read(tmp_path)
    rows = [issue for issue in trace.meta.issues if issue.code == "file-unreadable"]
    assert [Path(issue.source).name for issue in rows] == ["x.json", "y.json"]


@pytest.mark.parametrize("name", ["j" * 247 + ".pftrace", "ä" * 123 + "j.pftrace"])
def test_names_may_be_as_long_as_file_systems_allow(tmp_path: Path, name: str) -> None:
    assert len(name.encode()) == 255
    ci.write(tiny_trace(), tmp_path / name)
    assert ci.read(tmp_path / name).nodes.num_rows == 5


def test_names_that_are_too_long_are_refused_in_one_line(tmp_path: Path, run) -> None:
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    long = "j" * 300
    status, _, output = run("convert", tmp_path / "a.parquet", "-o", tmp_path / f"{long}.pftrace")
    assert (status, output.count("\n")) == (UsageError.exit_status, 1)
    status, _, output = run("convert", tmp_path / long, "-o", tmp_path / "b.pftrace")
    assert (status, output.count("\n")) == (UsageError.exit_status, 1)
    for name in (long, "j" * 252):  # to which .0.et is added
        assert run("check", tmp_path / name)[0] == UsageError.exit_status


def test_an_empty_path_is_not_the_current_folder(tmp_path: Path, run, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    for arguments in (["a.parquet", "-o", ""], ["", "-o", "et/"], ["a.parquet", "-o", "chakra:"]):
        assert run("convert", *arguments)[0] == UsageError.exit_status
    assert run("analyze", "temporal", "")[0] == UsageError.exit_status
    assert run("check", "")[0] == UsageError.exit_status
    assert run("record", "-o", "", "--", "true")[0] == UsageError.exit_status
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]


def test_the_root_of_all_folders_is_not_filled(tmp_path: Path, run) -> None:
    """As ``-o "$UNSET/"`` names it."""
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    status, _, output = run("convert", tmp_path / "a.parquet", "-o", tmp_path.anchor)
    assert (status, "root" in output) == (WriteError.exit_status, True), output


def test_one_folder_is_made_and_no_more(tmp_path: Path, run) -> None:
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    for arguments in (
        ("convert", tmp_path / "a.parquet", "-o", tmp_path / "x/y/b.pftrace"),
        ("record", "-o", tmp_path / "x/y", "--", "true"),
    ):
        status, _, output = run(*arguments)
        assert status == WriteError.exit_status
        assert "there is no such folder" in output
        assert not (tmp_path / "x").exists()
    assert run("convert", tmp_path / "a.parquet", "-o", tmp_path / "x/b.pftrace")[0] == 0


def test_a_folder_is_not_replaced_by_what_was_read_from_it(tmp_path: Path, run) -> None:
    ci.write(tiny_trace(), tmp_path / "a.parquet")
    before = {p: p.read_bytes() for p in (tmp_path / "a.parquet").rglob("*") if p.is_file()}
    for command in (["convert"], ["analyze", "temporal"]):
        status, _, output = run(*command, tmp_path / "a.parquet", "-o", tmp_path / "a.parquet")
        assert status == UsageError.exit_status
        assert "overwritten by what is made of it" in output
    assert {p: p.read_bytes() for p in (tmp_path / "a.parquet").rglob("*") if p.is_file()} == before


def test_a_file_cut_short_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rank0.json"
    path.write_text("[]" * 4000)
    before = os.fstat

    def longer(descriptor: int) -> os.stat_result:
        """The size that the file had when it was opened."""
        fields = list(before(descriptor))
        fields[6] += 100
        return os.stat_result(fields)

    monkeypatch.setattr(inputs.os, "fstat", longer)
    with pytest.raises(ReadError, match="cut short while it was read: 8000 of 8100 bytes"):
        inputs.read(path)


def test_a_file_that_goes_away_before_it_is_read_is_one_line(tmp_path: Path) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    inventory = sources.find([tmp_path / "a.pftrace"])
    (tmp_path / "a.pftrace").unlink()
    with pytest.raises(ReadError, match="cannot be opened: No such file"):
        job_reading.read_inventory(inventory, job_reading.Reading("job"))


def test_the_first_file_of_a_folder_may_become_empty_before_it_is_read(tmp_path: Path) -> None:
    for rank in range(2):
        ci.write(tiny_trace(), tmp_path / f"rank{rank}.json")
    inventory = sources.find([tmp_path])
    os.truncate(tmp_path / "rank0.json", 0)
    trace = job_reading.read_inventory(inventory, job_reading.Reading("job"))
    assert [issue.code for issue in trace.meta.issues if issue.code == "file-unreadable"]


@pytest.mark.parametrize(
    "becomes", slow_from(["nothing", "a pipe", "a folder", "a link to itself"], 2)
)
def test_a_file_that_goes_away_at_any_step_is_one_line(
    tmp_path: Path, run, caplog, monkeypatch, becomes: str
) -> None:
    """Files that were opened once are opened again: by readers, for their size and for their digest."""
    source, out = tmp_path / "in", tmp_path / "out.pftrace"

    def go_away() -> None:
        path = next(iter(source.iterdir()))
        path.unlink()
        if becomes == "a folder":
            path.mkdir()
        elif becomes == "a link to itself":
            path.symlink_to(path)
        elif becomes == "a pipe":
            os.mkfifo(path)

    connect = adbc_driver_sqlite.connect
    monkeypatch.setattr(
        adbc_driver_sqlite, "connect", lambda uri: sys.audit("adbc", uri) or connect(uri)
    )
    step, statuses = 0, set()
    while True:
        step += 1
        shutil.rmtree(source, ignore_errors=True)
        source.mkdir()
        rocpd.small(source / "a.db")
        with at_opening(step, source, go_away, ("open", "sqlite3.connect", "adbc")) as seen:
            status, _, stderr = run("convert", "-q", source, "-o", out)
        statuses.add(status)
        assert status in (0, 3, 4), (step, stderr)
        assert stderr.count("\n") == (status != 0), (step, stderr)
        assert caplog.records == []
        if seen() < step:
            break
    assert step > 5
    assert 4 in statuses


def test_files_that_options_name_are_no_pipes(tmp_path: Path, run) -> None:
    """They would be waited for."""
    ci.write(tiny_trace(), f"{tmp_path}/")
    pipe = tmp_path / "tiny.comm_groups.json"
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    efficiency = ("analyze", "-q", tmp_path / "tiny.0.et", "efficiency", "-O", f"gpus={pipe}")
    for command, expected in ((("check", tmp_path / "tiny"), 4), (efficiency, 2)):
        status, _, stderr = run(*command)
        assert (status, stderr.count("\n")) == (expected, 1), stderr
        assert "it is a pipe or a device, no file" in stderr


@pytest.mark.parametrize("command", ["convert", "analyze"])
def test_standard_input_is_refused_by_its_name(tmp_path: Path, run, command: str) -> None:
    """`-` was no file, and the option before it was blamed."""
    arguments = ["-o", tmp_path / "x.pftrace"] if command == "convert" else ["kernels"]
    status, _, stderr = run(command, "-q", "-", *arguments)
    assert (status, stderr.count("\n")) == (4, 1)
    assert stderr.endswith(
        "-: standard input is not read (save what comes out of it to a file first)\n"
    )


@contextmanager
def at_opening(
    number: int, folder: Path, act: Callable[[], Any], events: tuple[str, ...]
) -> Iterator[Callable[[], int]]:
    """Call a function when a file of a folder is opened for the n-th time, and count the openings."""
    count, is_on = 0, True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if is_on and event in events and str(folder) in str(arguments[0]):
            count += 1
            if count == number:
                act()

    sys.addaudithook(hook)  # stays, and does nothing later
    try:
        yield lambda: count
    finally:
        is_on = False


@contextmanager
def without_privileges() -> Iterator[None]:
    """Act as a user who may not read everything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that any user can reach."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("mode", [0o000, 0o444, 0o111])
def test_a_subfolder_that_cannot_be_read_is_a_loss(reachable: Path, mode: int) -> None:
    for name in ("closed", "open"):
        (reachable / name).mkdir()
        ci.write(tiny_trace(), reachable / name / "a.parquet")
    sources.find([reachable])  # imports what it needs
    (reachable / "closed").chmod(mode)
    with without_privileges():
        inventory = sources.find([reachable])
        with pytest.raises(ChopperError, match="Permission denied"):
            ci.read(reachable / "closed")
    assert [s.paths[0].parts[-3] for s in inventory.sources] == ["open"]
    assert len(inventory.unreadable) == 1


def test_a_file_in_a_folder_that_cannot_be_entered_is_one_line(reachable: Path, run) -> None:
    """Behind an option, the look at whether it was meant as the option's value failed too."""
    (reachable / "closed").mkdir()
    ci.write(tiny_trace(), reachable / "closed" / "a.json")
    (reachable / "closed").chmod(0o644)
    with without_privileges():
        for flag in ("-q", "--debug", "--anonymise"):
            status, _, output = run(
                "convert", "-o", reachable / "b.json", flag, reachable / "closed" / "a.json"
            )
            assert status == ReadError.exit_status
            assert "Permission denied" in output
    assert run("convert", "-o", reachable / "b.json", "-q", "a" * 300)[0] == UsageError.exit_status


@pytest.mark.parametrize(
    "words",
    ["analyze -q {}", "check -q {}", "check {}/", "view -q {}", "convert -q OPEN -o {}.json",
     "analyze -q OPEN compare --against {}", "analyze -q OPEN --csv {}.csv"],
)  # fmt: skip
def test_every_command_says_that_a_folder_cannot_be_entered(
    reachable: Path, run, words: str
) -> None:
    (reachable / "closed").mkdir()
    ci.write(tiny_trace(), reachable / "closed" / "a.json")
    ci.write(tiny_trace(), reachable / "open.json")
    closed, named = reachable / "closed" / "a.json", str(reachable / "open.json")
    command = words.replace("OPEN", named).format(closed, closed).split()
    # imports what it needs; a trace that is there would be shown
    run(*command if command[0] != "view" else ("view", reachable / "none.json"))
    (reachable / "closed").chmod(0o644)
    with without_privileges():
        status, _, output = run(*command)
    assert (status in {4, 6}, len(output.splitlines())) == (True, 1), output
    assert "Permission denied" in output
    assert "takes no value" not in output


def test_entries_that_are_no_files_are_listed(tmp_path: Path) -> None:
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "back").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    inventory = sources.find([tmp_path])
    assert {path.name for path, _ in inventory.skipped} == {"pipe", "loop", "gone"}
    assert {path.name for path in inventory.unreadable} == {"loop", "gone"}


def packed_zeros(how: str, size: int) -> bytes:
    return {"gz": gzip, "xz": lzma, "bz2": bz2}[how].compress(b"[" + bytes(size))


@pytest.mark.parametrize("how", slow_from(["gz", "xz", "bz2"], 1))
def test_a_bomb_costs_its_own_content_alone(
    tmp_path: Path, run, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 20)
    (tmp_path / f"bomb.json.{how}").write_bytes(packed_zeros(how, 1 << 24))
    with pytest.raises(ReadError, match="--max-unpacked"):
        inputs.read(tmp_path / f"bomb.json.{how}")
    with inputs.unpacking_at_most(0.03):
        assert len(inputs.read(tmp_path / f"bomb.json.{how}")) == (1 << 24) + 1
    events = (
        b'{"schemaVersion": 1, "traceEvents": [{"ph":"X","name":"a","ts":1,"dur":1,"pid":1,"tid":1}'
    )
    ci.write(tiny_trace(), tmp_path / "a.pftrace")
    (tmp_path / "rank0.json.gz").write_bytes(gzip.compress(events + bytes(1 << 24)))
    trace = ci.read(tmp_path / "a.pftrace", tmp_path)
    lost = {issue.code: issue for issue in trace.meta.issues}["file-unreadable"]
    assert "--max-unpacked" in lost.example
    assert run("convert", tmp_path / "rank0.json.gz", "-o", tmp_path / "b.pftrace")[0] == 4


class OddError(BaseException):
    """An error that no `except Exception` sees, as those of pytest."""


def test_an_interrupt_without_a_signal_says_where_it_was_raised(
    tmp_path: Path, run, monkeypatch
) -> None:
    def fails(*_arguments: Any, **_options: Any) -> None:
        raise KeyboardInterrupt

    ci.write(tiny_trace(), tmp_path / "a.parquet")
    monkeypatch.setattr("chopper_interop.converters.parquet.reader.read", fails)
    status, _, output = run("convert", "-q", tmp_path / "a.parquet", "-o", tmp_path / "b.pftrace")
    assert status == 130
    assert output.count("\n") == 1
    assert f"interrupted by line {fails.__code__.co_firstlineno + 1} of {__file__}" in output


SHORT = MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "no memory")


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), OddError("x"), *SHORT])
def test_a_reader_that_raises_is_one_line(tmp_path: Path, run, monkeypatch, error) -> None:
    from chopper_interop.converters.parquet import reader

    def fails(*_arguments: Any, **_options: Any) -> None:
        raise error

    ci.write(tiny_trace(), tmp_path / "a.parquet")
    monkeypatch.setattr(reader, "read", fails)
    status, _, output = run("convert", "-q", tmp_path / "a.parquet", "-o", tmp_path / "b.pftrace")
    assert status == (10 if error in SHORT else 70)
    assert output.count("\n") == 1
    assert "Traceback" not in output
    assert "reading parquet" in output
    if status == 70:
        assert type(error).__name__ in output
        assert "--debug" in output
        _, _, output = run(
            "convert", "--debug", tmp_path / "a.parquet", "-o", tmp_path / "b.pftrace"
        )
        assert "Traceback" in output


@pytest.mark.skipif(sys.platform == "win32", reason="links are for administrators")
def test_a_link_that_goes_away_as_it_is_followed_is_skipped(tmp_path: Path, monkeypatch) -> None:
    """Of a folder such as /proc: an internal error, and none of its files was read."""
    ci.write(tiny_trace(), tmp_path / "run/a.json")
    (tmp_path / "run/cwd").symlink_to(tmp_path)
    (tmp_path / "run/exe").symlink_to(tmp_path / "none")
    read_link = os.readlink

    def gone(path, **options):
        if Path(path).name in ("cwd", "exe"):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return read_link(path, **options)

    monkeypatch.setattr(os, "readlink", gone)
    assert ci.read(tmp_path / "run").nodes.num_rows == tiny_trace().nodes.num_rows

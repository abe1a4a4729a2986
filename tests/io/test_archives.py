# ruff: noqa: S311
"""Archives are read as folders; what hostile ones hold neither leaves the temporary folder nor fills it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import random
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from kineto_files import BASE, kernel, span, write
from slow import slow_from

import chopper_interop as ci
from chopper_interop.errors import ReadError, UnknownFormatError, UsageError
from chopper_interop.io import archive_members, archives, inputs

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(autouse=True)
def unpacked_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder in which archives are unpacked."""
    folder = tmp_path / "unpacked"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def job(folder: Path, ranks: int = 2) -> Path:
    for rank in range(ranks):
        path = folder / f"node{rank}/rank{rank}.json"
        path.parent.mkdir(parents=True)
        events = [span("cpu_op", "aten::mm", 1, 9), kernel(f"k{rank}", 4, 5, 0)]
        info = {"rank": rank, "world_size": ranks}
        write(path, events, baseTimeNanoseconds=BASE, distributedInfo=info)
    (folder / "notes.txt").write_text("hello")
    return folder


def tar_of(folder: Path) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        archive.add(folder, folder.name)
    return raw.getvalue()


def zip_of(folder: Path, **more: str) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            archive.write(path, f"{folder.name}/{path.relative_to(folder)}")
        for name, text in more.items():
            archive.writestr(name, text)
    return raw.getvalue()


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


PACK: dict[str, Callable[[Path], bytes]] = {
    "job.tar": tar_of,
    "job.tar.gz": lambda folder: gzip.compress(tar_of(folder)),
    "job.tar.xz": lambda folder: lzma.compress(tar_of(folder)),
    "job.tar.bz2": lambda folder: bz2.compress(tar_of(folder)),
    "job.tar.zst": lambda folder: zstd(tar_of(folder)),
    "job.zip": zip_of,
}


@pytest.mark.parametrize("name", PACK)
def test_an_archive_is_read_as_a_folder(tmp_path: Path, name: str, run, unpacked_in: Path) -> None:
    folder = job(tmp_path / "job")
    path = tmp_path / name
    path.write_bytes(PACK[name](folder))
    expected, trace = ci.read(folder), ci.read(path)
    assert trace.meta.job == "job"
    assert trace.nodes.equals(expected.nodes)
    assert [s.path for s in trace.meta.sources] == [
        f"{name}/job/node{rank}/rank{rank}.json" for rank in range(2)
    ]
    assert [s.sha256 for s in trace.meta.sources] == [s.sha256 for s in expected.meta.sources]
    status, _, stderr = run("convert", path, "-o", tmp_path / "out.pftrace")
    assert status == 0
    text = " ".join(stderr.split())
    assert "node1/rank1.json PyTorch profiler trace" in text
    assert "skipped: no format that is known here" in text
    assert ".part" not in stderr
    assert list(unpacked_in.iterdir()) == []


def test_an_archive_is_part_of_a_folder(tmp_path: Path) -> None:
    folder = job(tmp_path / "run")
    whole = ci.read(folder)
    (folder / "node1.zip").write_bytes(zip_of(folder / "node1"))
    (folder / "node1/rank1.json").unlink()
    trace = ci.read(folder)
    assert trace.nodes.equals(whole.nodes)
    assert [s.path for s in trace.meta.sources] == [
        "run/node0/rank0.json", "run/node1.zip/node1/rank1.json"
    ]  # fmt: skip


def test_two_archives_in_any_order_are_the_same_job(tmp_path: Path) -> None:
    paths = []
    for name in ("b.zip", "a.zip"):
        rank = len(paths)
        folder = job(tmp_path / f"job{rank}", 2) / f"node{rank}"
        paths.append(tmp_path / name)
        paths[-1].write_bytes(zip_of(folder))
    first, second = (ci.read(*order, name="x") for order in (paths, paths[::-1]))
    assert first.nodes.equals(second.nodes)
    assert first.meta == second.meta


def test_errors_name_the_place_in_the_archive(tmp_path: Path, run) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(tmp_path, **{"in/cut.json": '{"schemaVersion": 1, "traceEvents": ['}))
    status, _, stderr = run("convert", path, "-o", tmp_path / "x.pftrace")
    assert "a.zip/in/cut.json" in stderr
    assert ".part" not in stderr
    assert status == 4


def test_an_output_does_not_replace_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "job.zip"
    path.write_bytes(zip_of(job(tmp_path / "job")))
    with pytest.raises(UsageError, match="overwritten"):
        ci.convert(path, path, to_format="perfetto")
    trace = ci.read(path)
    with pytest.raises(UsageError, match="overwritten"):
        ci.write(trace, path, to_format="perfetto")


def member(name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", **more) -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data)
    for key, value in more.items():
        setattr(info, key, value)
    padding = b"\0" * (-len(data) % 512)
    return info.tobuf(tarfile.GNU_FORMAT) + data + padding


def zip_with(mode: int = 0, flag: int = 0, **names: bytes) -> bytes:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        for name, data in names.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            archive.writestr(info, data)
    content = bytearray(raw.getvalue())
    for signature, at in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):
        place = content.find(signature)
        while flag and place >= 0:
            content[place + at] |= flag
            place = content.find(signature, place + 4)
    return bytes(content)


ESCAPE = "leads out of the archive"
END = bytes(1024)
LEFT_OUT = {
    "parent": (member("../evil.json", data=b"{}"), ESCAPE),
    "parent within": (member("a/../../evil.json", data=b"{}"), ESCAPE),
    "parent with backslashes": (member("a\\..\\..\\evil.json", data=b"{}"), ESCAPE),
    "absolute": (member("/evil.json", data=b"{}"), ESCAPE),
    "symbolic link": (member("evil.json", tarfile.SYMTYPE, linkname="/etc/passwd"), "link"),
    "hard link": (member("evil.json", tarfile.LNKTYPE, linkname="/etc/passwd"), "link"),
    "file below a link": (
        member("d", tarfile.SYMTYPE, linkname="/etc") + member("d/evil.json", data=b"{}"), "link"
    ),
    "device": (member("evil.json", tarfile.CHRTYPE, devmajor=1, devminor=3), "pipe or a device"),
    "pipe": (member("evil.json", tarfile.FIFOTYPE), "pipe or a device"),
    "unknown kind": (member("evil.json", b"Q", b"abc"), "pipe or a device"),
    "file where a folder is": (
        member("d/a.txt", data=b"a") + member("d", data=b"b"), "cannot be unpacked"
    ),
    "file named as the folder": (member(".", data=b"a"), "cannot be unpacked"),
    "name of 5,000 letters": (member("x" * 5000, data=b"a"), "cannot be unpacked"),
    "zip: parent": (zip_with(**{"../evil.json": b"{}"}), ESCAPE),
    "zip: link": (zip_with(stat.S_IFLNK | 0o777, evil=b"/etc/passwd"), "link"),
    "zip: encrypted": (zip_with(flag=1, evil=b"secret"), "encrypted"),
}  # fmt: skip
"""Archives, and why a member of each is left out."""


@pytest.mark.parametrize("name", LEFT_OUT)
def test_members_that_are_no_files_are_left_out(
    tmp_path: Path, name: str, run, unpacked_in: Path
) -> None:
    raw, reason = LEFT_OUT[name]
    folder = tmp_path / "in"
    trace = (job(folder, 1) / "node0/rank0.json").rename(folder / "rank0.json")
    (folder / "a").write_bytes(raw if name.startswith("zip") else raw + member("z.txt") + END)
    before = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if unpacked_in not in p.parents}
    status, _, stderr = run("convert", folder, "-o", tmp_path / "x.pftrace")
    assert status == 0, stderr
    assert reason in " ".join(stderr.split())
    assert trace.exists()
    after = {p for p in tmp_path.rglob("*") if unpacked_in not in p.parents}
    assert after - before.keys() == {tmp_path / "x.pftrace"}
    assert list(unpacked_in.iterdir()) == []


def test_a_folder_that_is_packed_from_within_is_read_without_loss(tmp_path: Path) -> None:
    """As by ``tar -C FOLDER .``: the folder itself is a member."""
    job(tmp_path / "job")
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        archive.add(tmp_path / "job", ".")
    with tarfile.open(tmp_path / "a.tar") as archive:
        assert archive.getnames()[0] == "."
    trace = ci.read(tmp_path / "a.tar")
    assert trace.ranks == [0, 1]
    assert "file-unreadable" not in {issue.code for issue in trace.meta.issues}


def test_bombs_are_refused_and_their_neighbours_read(tmp_path: Path, monkeypatch, run) -> None:
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 20)
    folder = job(tmp_path / "in", 1)
    large = bytes(8 << 20)
    (folder / "bomb.tar.gz").write_bytes(gzip.compress(member("a.json", data=large)))
    with zipfile.ZipFile(folder / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.json", large)
    (folder / "header.tar.gz").write_bytes(
        gzip.compress(member("h", tarfile.XHDTYPE, large) + member("a.json"))
    )
    status, _, stderr = run("convert", folder, "-o", tmp_path / "x.pftrace")
    text = " ".join(stderr.split())
    assert status == 0
    assert text.count("unpacked it has more than") >= 2
    assert "a header of it has more than" in text
    with pytest.raises(ReadError, match="--max-unpacked"):
        ci.read(folder / "bomb.zip")
    with pytest.raises(UnknownFormatError, match="no format"):
        ci.read(folder / "bomb.zip", max_unpacked=1)


def test_compressed_members_share_what_the_archive_may_have(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 18)
    bomb = gzip.compress(b'{"traceEvents": [' + b" " * (1 << 20))
    alike = b"".join(member(f"{k}.json.gz", data=bomb) for k in range(100))
    path = tmp_path / "a.tar.xz"
    path.write_bytes(lzma.compress(alike + END))
    assert len(path.read_bytes()) < len(bomb) * 20
    bounds: dict[Path, int] = {}
    monkeypatch.setattr(inputs, "_BOUNDS", bounds)
    opened = archives.Archives()
    opened.unpack(path, inputs.head(path), lambda _: True)
    assert len(bounds) == 100
    assert sum(bounds.values()) <= inputs.max_unpacked_to_disk(path.stat().st_size)
    opened.close()
    assert bounds == {}


def test_too_many_members_are_refused(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archive_members, "MAX_MEMBERS", 10)
    monkeypatch.setattr(archive_members.Budget, "__init__", _small_budget)
    path = tmp_path / "a.tar"
    path.write_bytes(b"".join(member(f"{k}") for k in range(11)) + END)
    with pytest.raises(ReadError, match="more than 10 members"):
        ci.read(path)


def _small_budget(self: archive_members.Budget, bytes_left: int) -> None:
    self.bytes_left, self.members_left = bytes_left, 10


NEGATIVE = b"\x80" + bytes(3) + b"\xff" * 8


@pytest.mark.parametrize("size", [b"-0000000512\0", b"\xff" * 12, b"77777777777\0"])
def test_sizes_that_cannot_be_are_one_line(tmp_path: Path, size: bytes, run) -> None:
    header = bytearray(member("a.json"))
    header[124:136] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    (tmp_path / "a.tar").write_bytes(bytes(header) + END)
    status, _, stderr = run("convert", "-q", tmp_path / "a.tar", "-o", tmp_path / "x.pftrace")
    assert status in (3, 4)
    assert stderr.count("\n") == 1


def test_what_comes_before_damage_is_read(tmp_path: Path) -> None:
    raw = tar_of(job(tmp_path / "job")).rstrip(b"\0")
    raw += (
        bytes(-len(raw) % 512) + member("late.txt", data=random.Random(1).randbytes(1 << 18)) + END
    )
    path = tmp_path / "a.tar.gz"
    packed = gzip.compress(raw)
    path.write_bytes(packed[: len(packed) - (1 << 17)])
    trace = ci.read(path)
    assert trace.ranks == [0, 1]
    lost = {
        issue.source: issue.example
        for issue in trace.meta.issues
        if issue.code == "file-unreadable"
    }
    assert {Path(source).name for source in lost} == {"a.tar.gz", "late.txt"}


def test_any_damage_is_one_line(tmp_path: Path, run) -> None:
    source = job(tmp_path / "job")
    draw = random.Random(7)
    for name, pack in PACK.items():
        for _ in range(6):
            raw = bytearray(pack(source))
            for _ in range(draw.randrange(1, 4)):
                raw[draw.randrange(len(raw))] = draw.randrange(256)
            path = tmp_path / f"damaged-{name}"
            path.write_bytes(raw[: draw.randrange(len(raw) // 2, len(raw) + 1)])
            status, _, stderr = run("convert", "-q", path, "-o", tmp_path / "x.pftrace")
            assert status in (0, 3, 4, 5), stderr
            assert stderr.count("\n") <= 1, stderr


def test_archives_in_archives_are_named(tmp_path: Path) -> None:
    inner = zip_of(job(tmp_path / "job"))
    path = tmp_path / "a.zip"
    path.write_bytes(zip_with(**{"inner.zip": inner}))
    with pytest.raises(ci.ChopperError, match="archive in an archive"):
        ci.read(path)


def test_a_zip_that_is_compressed_once_more_says_so(tmp_path: Path, run) -> None:
    path = tmp_path / "run.zip.gz"
    path.write_bytes(gzip.compress(zip_of(job(tmp_path / "in"))))
    status, _, text = run("convert", "-q", path, "-o", tmp_path / "a.pftrace")
    assert (status, text.count("\n")) == (4, 1)
    assert "it is a zip archive within a compressed file, which is not read (unpack it once" in text


def test_a_file_that_is_compressed_more_than_once_says_so(tmp_path: Path, run) -> None:
    path = tmp_path / "rank0.json.gz"
    path.write_bytes(gzip.compress(gzip.compress(b'{"traceEvents": []}')))
    status, _, text = run("convert", "-q", path, "-o", tmp_path / "a.pftrace")
    assert (status, text.count("\n")) == (3, 1)
    assert "it is compressed more than once; unpack it once" in text


def test_large_members_that_are_no_profiles_stay_packed(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(archives, "_LARGE", 1 << 10)
    monkeypatch.setattr(archives, "_HEAD", 1 << 10)
    monkeypatch.setattr(archives, "_COPIED", 1 << 10)
    folder = job(tmp_path / "job", 1)
    (folder / "weights.bin").write_bytes(random.Random(1).randbytes(1 << 14))
    (folder / "node0/rank0.json").rename(folder / "node0/rank0.profile")
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(folder))
    opened = archives.Archives()
    unpacked = opened.unpack(
        path, inputs.head(path), lambda file: b"traceEvents" in file.read_bytes()
    )
    names = {p.name for p in unpacked.folder.rglob("*") if p.is_file()}
    assert names == {"rank0.profile", "notes.txt"}
    assert unpacked.left_out == [("job/weights.bin", "no format that is known here")]
    opened.close()


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(job(tmp_path / "job")))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "absent/absent"))
    with pytest.raises(ReadError, match="TMPDIR"):
        ci.read(path)


@pytest.mark.parametrize("ending", slow_from(["convert", "library"], 1))
def test_nothing_stays_unpacked(tmp_path: Path, unpacked_in: Path, ending: str) -> None:
    path = tmp_path / "a.zip"
    path.write_bytes(zip_of(job(tmp_path / "job")))
    convert = (
        f"start.sys.argv = ['x', {str(path)!r}, '-o', {str(tmp_path / 'x.et')!r}]; start.convert()"
    )
    code = {
        "convert": f"import sys; from chopper_interop import start; start.sys = sys; {convert}",
        "library": f"from chopper_interop import sources; i = sources.find([sources.to_path({str(path)!r})])",
    }[ending]
    environment = os.environ | {"TMPDIR": str(unpacked_in)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=False)
    assert done.returncode == 0
    assert list(unpacked_in.iterdir()) == []


def test_an_archive_of_outputs_is_read_when_it_is_named(tmp_path: Path) -> None:
    ci.write(ci.read(job(tmp_path / "job")), tmp_path / "job.parquet")
    path = tmp_path / "job.zip"
    path.write_bytes(zip_of(tmp_path / "job.parquet"))
    assert ci.read(path).nodes.equals(ci.read(tmp_path / "job.parquet").nodes)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_a_file_that_an_archive_holds_twice_is_said_so(tmp_path: Path, run) -> None:
    """The later one is read, as it is unpacked by others; the earlier one was left out in silence."""
    path = tmp_path / "job.zip"
    names = [write(tmp_path / f"{k}.json", [kernel(k, 4, 5, 0)]) for k in ("old", "new")]
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr("rank0.json", name.read_bytes())
    assert ci.read(path).names() == ["new"]
    _, _, output = run("convert", path, "-o", tmp_path / "x.pftrace")
    assert "the archive holds it twice; the later one is read" in output

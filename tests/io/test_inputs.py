"""Files of any compression are read, and what is lost is reported."""

import bz2
import collections
import gzip
import hashlib
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from issue_counts import counts
from slow import slow_from

from chopper_interop.errors import ReadError
from chopper_interop.io import inputs
from chopper_interop.issues import IssueLog

TEXT = b'{"traceEvents": []}' * 5000


def read(path: Path, data: bytes) -> tuple[bytes, dict[str, int]]:
    path.write_bytes(data)
    log = IssueLog()
    return inputs.read(path, log).tobytes(), counts(log)


def zstd(data: bytes) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress, bz2.compress, zstd])
def test_compression_is_recognized_by_content(tmp_path: Path, pack) -> None:
    assert read(tmp_path / "wrong.suffix", pack(TEXT)) == (TEXT, {})


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd])
def test_members_of_a_compressed_file_are_concatenated(tmp_path: Path, pack) -> None:
    assert read(tmp_path / "x", pack(TEXT) + pack(b"more")) == (TEXT + b"more", {})


def test_trailing_bytes_behind_compressed_data_is_counted(tmp_path: Path) -> None:
    text, issues = read(tmp_path / "x", gzip.compress(TEXT) + b"rubbish")
    assert text == TEXT
    assert issues == {"bytes-behind-compressed-data": 7}


def test_zeros_behind_compressed_data_are_padding(tmp_path: Path) -> None:
    assert read(tmp_path / "x", gzip.compress(TEXT) + bytes(512)) == (TEXT, {})


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd])
def test_data_before_an_early_end_is_kept(tmp_path: Path, pack) -> None:
    packed = pack(TEXT)
    text, issues = read(tmp_path / "x", packed[:-5])
    assert TEXT.startswith(text)
    assert issues == {"compressed-data-cut-short": 1}


def test_damage_is_reported_in_one_line_that_names_the_file(tmp_path: Path) -> None:
    packed = bytearray(gzip.compress(TEXT, mtime=0))
    packed[20:30] = b"0123456789"
    path = tmp_path / "x.json.gz"
    path.write_bytes(packed)
    with pytest.raises(ReadError, match="damaged") as caught:
        inputs.read(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_utf16_and_byte_order_marks_become_utf8(tmp_path: Path, encoding: str) -> None:
    text = "gpu,température\n0,45 °C\n"
    assert read(tmp_path / "x", text.encode(encoding))[0] == text.encode()
    assert inputs.head(tmp_path / "x") == text.encode()


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="No such file"):
        inputs.read(tmp_path / "absent")


def test_the_head_of_a_file_has_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(gzip.compress(bytes(10 * inputs.HEAD_BYTES)))
    assert len(inputs.head(path)) == inputs.HEAD_BYTES


@given(st.binary(max_size=200))
def test_no_bytes_raise_another_error(tmp_path_factory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("x") / "x"
    for magic in (b"", *inputs.DECOMPRESSORS):
        path.write_bytes(magic + data)
        try:
            inputs.read(path)
        except ReadError as error:
            assert str(path) in str(error)  # noqa: PT017 - raising is allowed, not required


@pytest.mark.parametrize("pack", slow_from([gzip.compress, bz2.compress, lzma.compress], 2))
def test_reading_the_head_decompresses_little(tmp_path: Path, pack) -> None:
    path = tmp_path / "zeros"
    path.write_bytes(pack(bytes(64 << 20)))
    tracemalloc.start()
    assert inputs.head(path) == bytes(inputs.HEAD_BYTES)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize("pack", slow_from([zstd, bz2.compress, lzma.compress], 2))
def test_a_bomb_is_refused_before_it_is_in_memory(tmp_path: Path, pack, monkeypatch) -> None:
    """64 MB of zeros are 79 bytes of bzip2."""
    monkeypatch.setattr(inputs, "_ALWAYS_UNPACKED", 1 << 20)
    path = tmp_path / "zeros"
    path.write_bytes(pack(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(ReadError, match="--max-unpacked"):
        collections.deque(inputs.blocks(path, IssueLog()), maxlen=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 16 << 20


def test_the_digest_of_a_file_that_was_read_whole_needs_no_second_pass(tmp_path: Path) -> None:
    whole, packed, part = (tmp_path / name for name in ("whole", "packed", "part"))
    for path, data in ((whole, TEXT), (packed, gzip.compress(TEXT)), (part, TEXT * 2**15)):
        path.write_bytes(data)
    expected = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (whole, packed, part)]
    with inputs.digesting():
        for path in (whole, packed):
            assert b"".join(map(bytes, inputs.blocks(path, IssueLog()))) == TEXT
        next(inputs.blocks(part, IssueLog()))
        assert [inputs.sha256(path) for path in (whole, packed, part)] == expected
        whole.unlink()
        assert inputs.sha256(whole) == expected[0]
    with pytest.raises(ReadError):
        inputs.sha256(whole)

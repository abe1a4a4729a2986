"""Code of pages is put together once for each version of the plotting library."""

import resource
from pathlib import Path

import pytest

from chopper_interop.arrays import code_files
from chopper_interop.errors import TooLittleMemoryError
from chopper_interop.plots import library


class Converter:
    """Stands for what takes seconds."""

    made = 0

    def javascript_bundle(self, code: str) -> str:
        self.made += 1
        return f"vega; {code}"


@pytest.fixture
def converter(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Converter:
    pytest.importorskip("vl_convert", reason="the extra report is not installed")
    converter = Converter()
    monkeypatch.setattr(library, "module", lambda _: converter)
    monkeypatch.setattr(code_files, "code_folder", lambda: tmp_path)
    return converter


def test_code_of_pages_is_kept(converter: Converter) -> None:
    assert [library.bundle("a"), library.bundle("a")] == ["vega; a"] * 2
    assert converter.made == 1
    assert library.bundle("b") == "vega; b"


def test_damaged_code_is_made_again(converter: Converter, tmp_path: Path) -> None:
    library.bundle("a")
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-1])
    assert library.bundle("a") == "vega; a"
    assert converter.made == 2


def test_a_limit_of_addresses_that_would_end_the_process_is_one_line(monkeypatch) -> None:
    """V8 ended the process, by SIGTRAP and a list of addresses."""
    monkeypatch.setattr(library.memory, "address_space_left", lambda: 12 * 10**9)
    with pytest.raises(
        TooLittleMemoryError, match=r"70 GB of addresses, .* leaves 12\.0 GB \(ulimit"
    ):
        library.require()


def test_a_limit_of_open_files_is_one_line() -> None:
    """V8 writes a dozen lines of its own where it can open none."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 8, before[1])
    )
    try:
        with pytest.raises(TooLittleMemoryError, match="charts need 32 open files"):
            library.require()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    library.require()

"""What is published is checked, and holds no machine code that nothing loads."""

import zipfile
from pathlib import Path

import machine_code
import pytest
import release

from chopper_interop.arrays import code_files

METADATA = (
    "Metadata-Version: 2.4\nName: chopper-interop\nVersion: 1.2.0\n{urls}"
    "Classifier: Programming Language :: Python :: 3\n"
    "Classifier: Programming Language :: Python :: 3.12\n\n{readme}"
)
URLS = (
    "Project-URL: Source, https://example.org/a/b\nProject-URL: Changelog, https://example.org/c\n"
)
README = (
    "[page](docs/a.md#part) [there](https://example.org) [here](#part)\n![picture](tests/p.png)\n"
)


def _wheel(folder: Path, metadata: str, *names: str) -> Path:
    path = folder / "chopper_interop-1.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("chopper_interop-1.2.0.dist-info/METADATA", metadata)
        for name in names:
            archive.writestr(name, "")
    return path


def test_what_a_release_lacks_is_named(tmp_path: Path) -> None:
    wheel = _wheel(tmp_path, METADATA.format(urls="", readme=README))
    assert release.lacks(wheel, "\n## Unreleased\n") == [
        "pyproject.toml: no Source in [project.urls]",
        "pyproject.toml: no Changelog in [project.urls]",
        "README: 2 relative links, such as docs/a.md#part",
        "CHANGELOG.md: no section 1.2.0",
        "machine code: none of Python 3.12 (make wheel PYTHONS=…)",
    ]


def test_a_release_that_lacks_nothing(tmp_path: Path) -> None:
    readme = release.with_absolute_links(README, "https://example.org/a/b/")
    assert readme == (
        "[page](https://example.org/a/b/blob/main/docs/a.md#part) [there](https://example.org) [here](#part)\n"
        "![picture](https://example.org/a/b/raw/main/tests/p.png)\n"
    )
    archive = "chopper_interop/machine_code/cpython-312-x86_64.zip"
    wheel = _wheel(tmp_path, METADATA.format(urls=URLS, readme=readme), archive)
    assert release.lacks(wheel, "\n## 1.2.0 - 2030-01-01\n") == []


def test_machine_code_of_other_sources_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {n: tmp_path / f"cpython-{n}-x86_64.zip" for n in ("310", "311", "312")}
    for number, sources in (("310", b"before"), ("312", machine_code.sources_digest())):
        with zipfile.ZipFile(made[number], "w") as archive:
            archive.writestr(machine_code.SOURCES, sources)
    monkeypatch.setattr(code_files, "archive_path", lambda: made["311"])
    machine_code.pack({})
    assert sorted(tmp_path.iterdir()) == [made["311"], made["312"]]
    assert "cpython-310-x86_64.zip was made of other sources: removed" in capsys.readouterr().out

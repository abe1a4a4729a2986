"""Installed files are those of the checkout, under one name."""

import os
import shutil
import subprocess
import sys
import tarfile
from importlib.metadata import distributions, entry_points
from importlib.resources import files
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="tomllib is in Python from 3.11 on")

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FOLDERS = PROJECT["tool"]["setuptools"]["package-dir"]


def test_every_package_of_the_checkout_is_listed() -> None:
    """A package that is not listed is missing from the wheel, and only from the wheel."""
    homes = {folder: name for name, folder in FOLDERS.items()}
    result = set()
    for top, home in homes.items():
        for module in (ROOT / top).rglob("*.py"):
            inner = module.parent.relative_to(ROOT / top)
            if not any((ROOT / top / Path(*inner.parts[:k])).is_symlink() for k in range(1, 9)):
                result.add(".".join((home, *inner.parts)))
    assert result == set(PROJECT["tool"]["setuptools"]["packages"])


IN_CHECKOUT = pytest.mark.skipif(not (ROOT / ".git").exists(), reason="not a checkout")


@IN_CHECKOUT  # an sdist has each folder once
def test_links_of_the_checkout_point_to_the_folders() -> None:
    for name in ("schemas", "converters", "analyses"):
        assert (ROOT / "chopper_interop" / name).resolve() == ROOT / name


@pytest.mark.parametrize(
    "name", ["chakra_et.proto", "chakra_et_old.proto", "chakra_et.binpb", "vocabulary.ini"]
)
def test_resources_are_installed(name: str) -> None:
    assert files("chopper_interop.schemas").joinpath(name).is_file()
    assert files("chopper_interop").joinpath("py.typed").is_file()


@pytest.mark.parametrize("name", ["page.css", "page.js", "timeline.js"])
def test_parts_of_the_report_are_installed(name: str) -> None:
    assert files("chopper_interop.report").joinpath(name).is_file()


def test_the_extra_is_what_the_tests_install() -> None:
    extra = PROJECT["project"]["optional-dependencies"]["report"]
    assert set(extra) <= set(PROJECT["dependency-groups"]["test"])


@pytest.mark.parametrize("group", ["chopper_interop.converters", "chopper_interop.analyses"])
def test_entry_points_are_those_of_the_checkout_and_load(group: str) -> None:
    declared = PROJECT["project"]["entry-points"][group]
    actual = {p.name: p for p in entry_points(group=group) if p.dist.name == "chopper-interop"}
    assert {name: point.value for name, point in actual.items()} == declared
    for point in actual.values():
        assert point.load() is not None


def test_nothing_else_at_the_top_of_site_packages() -> None:
    installed = [d for d in distributions(name="chopper-interop") if d.read_text("RECORD")]
    listed = [path for actual in installed for path in actual.files or []]
    assert listed
    tops = {path.parts[0] for path in listed if path.suffix == ".py"}
    assert tops <= {"chopper_interop"} | {t for t in tops if t.startswith("__editable__")}


def test_the_compiled_schema_says_what_the_text_says() -> None:
    from chopper_interop.schemas.chakra import message_class

    text = (ROOT / "schemas" / "chakra_et.proto").read_text()
    for name in ("Node", "AttributeProto", "GlobalMetadata", "IOInfo"):
        body = text.split(f"message {name} {{")[1].split("\n}")[0]
        stated = {f"{f.name} = {f.number};" for f in message_class(name).DESCRIPTOR.fields}
        assert all(line in body for line in stated)


@pytest.mark.parametrize(("version", "is_refused"), [((3, 9, 18), True), ((3, 10, 0), False)])
def test_a_python_that_is_too_old_is_said_so(
    tmp_path: Path, version: tuple[int, ...], *, is_refused: bool
) -> None:
    python = tmp_path / "python"
    check = f"import sys; sys.version_info = {version}; exec(sys.argv[1])"
    lines = ("#!/bin/sh", 'test "$1" = -c || exit 7', f"exec {sys.executable} -c '{check}' \"$2\"")
    python.write_text("\n".join(lines))
    python.chmod(0o755)
    command = ["make", f"VENV={tmp_path}/venv", f"PYTHON={python}", f"{tmp_path}/venv/pip.stamp"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ("Python 3.9 is too old" in ended.stderr) == is_refused
    assert ("Error 7" in ended.stderr) != is_refused  # it went on to make the environment


@IN_CHECKOUT  # a wheel made of an sdist has no machine code
def test_the_first_conversion_of_an_installed_wheel_compiles_nothing(tmp_path: Path) -> None:
    """Nor does making the sample job, whose loops Python calls after loops that call them."""
    from chopper_interop.arrays import code_files

    if "site-packages" not in code_files.archive_path().parts:
        pytest.skip("a checkout compiles what has changed since `make code`")
    job = tmp_path / "job"
    convert = [Path(sys.executable).with_name("chopper-convert"), "-q"]
    names = ("job.pftrace", "et/", "job.parquet")
    outputs = [text for name in names for text in ("-o", f"{tmp_path}/{name}")]
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    for arguments in (["--demo", job, "-O", "ranks=2"], [job, *outputs]):
        subprocess.run([*convert, *arguments], env=environment, check=True)
    assert not list((tmp_path / "cache").rglob("*.nbc"))


@IN_CHECKOUT
@pytest.mark.slow
def test_the_sdist_holds_what_its_tests_need(tmp_path: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = [name for name in listed.stdout.decode().split("\0") if name]
    for name in names:
        target = tmp_path / "copy" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target, follow_symlinks=False)
    build = "from setuptools import build_meta; build_meta.build_sdist('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path / "copy", check=True)
    (archive,) = (tmp_path / "copy" / "dist").glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        held = {name.split("/", 1)[1] for name in tar.getnames() if "/" in name}
    needed = {n for n in names if n.startswith(("tests/", "docs/")) or n.endswith((".md", ".py"))}
    assert needed - held == set()
    # a folder of the links' names, of pages alone, would come before what an installation from it adds
    links = ("schemas", "converters", "analyses")
    assert {n for n in held if n.startswith(tuple(f"chopper_interop/{n}" for n in links))} == set()


def test_a_checkout_in_a_python_that_is_too_old_says_so() -> None:
    script = "import sys; sys.version_info = (3, 9, 18, 'final', 0); import chopper_interop"
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "ImportError: chopper-interop needs Python 3.10 or newer, and this is 3.9"
    )


@pytest.mark.parametrize("workers", [["-n", "1"], []], ids=["workers", "alone"])
def test_an_sdist_tests_the_installed_package(tmp_path: Path, workers: list[str]) -> None:
    """Its own folders lack what links them; processes of tests do not import from there either."""
    for name in ("pyproject.toml", "tests/conftest.py", "tests/support/shared_data.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "chopper_interop").mkdir()
    (tmp_path / "chopper_interop/__init__.py").write_text("raise ImportError")
    run = "subprocess.run([sys.executable, '-c', 'import chopper_interop.schemas'], check=True)"
    imports = f"import subprocess, sys\n\ndef test():\n    {run}\n"
    (tmp_path / "tests/test_imports.py").write_text(imports)
    command = [sys.executable, "-m", "pytest", "-q", *workers, "-p", "no:cacheprovider"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr

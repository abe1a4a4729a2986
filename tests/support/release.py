"""Check what `make wheel` made before it is published: ``python tests/support/release.py dist``.

Prints what a published package must have and this one lacks, one a line, and exits with 1 if it lacks any.
``--readme README.md PKG-INFO`` makes links of a README absolute, by the URL ``Source`` of metadata, if there is one.
"""

from __future__ import annotations

import re
import sys
import zipfile
from email import message_from_string
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from email.message import Message

ROOT = Path(__file__).resolve().parents[2]
_RELATIVE = re.compile(r"(?<=\]\()(?!\w+:|#)[^)\s]+")
"""Target of a link or a picture in Markdown that is a path: a package index has no such file."""
_OF_PYTHON = "Programming Language :: Python :: 3."
_URL_LABELS = ("Source", "Changelog")
"""Addresses that a package index shows, under these labels of ``[project.urls]``."""


def urls(metadata: Message) -> dict[str, str]:
    """Label of each ``Project-URL``, and its address."""
    stated = metadata.get_all("Project-URL", [])
    return dict(line.split(", ", 1) for line in stated)


def with_absolute_links(readme: str, source: str) -> str:
    """Return a README whose pictures and links lead to the public repository."""
    base = source.rstrip("/")

    def absolute(match: re.Match[str]) -> str:
        is_picture = match[0].endswith((".png", ".svg"))
        return f"{base}/{'raw' if is_picture else 'blob'}/main/{match[0]}"

    return _RELATIVE.sub(absolute, readme)


def lacks(wheel: Path, changelog: str) -> list[str]:
    """What a wheel lacks to be published."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (described,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = message_from_string(archive.read(described).decode())
    known = urls(metadata)
    missing = [
        f"pyproject.toml: no {label} in [project.urls]"
        for label in _URL_LABELS
        if label not in known
    ]
    text = str(metadata.get_payload())
    relative = _RELATIVE.findall(text)
    if relative:
        missing.append(f"README: {len(relative)} relative links, such as {relative[0]}")
    if f"\n## {metadata['Version']}" not in changelog:
        missing.append(f"CHANGELOG.md: no section {metadata['Version']}")
    for classifier in metadata.get_all("Classifier", []):
        minor = classifier.removeprefix(_OF_PYTHON)
        if minor.isdigit() and not any(f"machine_code/cpython-3{minor}-" in n for n in names):
            missing.append(f"machine code: none of Python 3.{minor} (make wheel PYTHONS=…)")
    return missing


def main(arguments: list[str]) -> int:
    """Make links absolute, or print what is missing; return the exit status."""
    if arguments[0] == "--readme":
        readme, metadata = map(Path, arguments[1:])
        source = urls(message_from_string(metadata.read_text("utf-8"))).get("Source")
        if source:
            readme.write_text(with_absolute_links(readme.read_text("utf-8"), source), "utf-8")
        return 0
    (wheel,) = Path(arguments[0]).glob("*.whl")
    missing = lacks(wheel, (ROOT / "CHANGELOG.md").read_text("utf-8"))
    print("\n".join(missing) or f"{wheel.name} can be published")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

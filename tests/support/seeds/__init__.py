"""Small inputs of every format, and what must become of the odd ones.

Each module of this package is about one family of formats and has two lists:

``SEEDS``
    sound inputs that the mutation tests damage at random;
``ODD``
    inputs that are broken, unusual or wrong in one way each, and their outcomes. Together they
    are the one table that ``tests/test_odd_inputs.py`` goes through.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True)
class Seed:
    """A sound input.

    Parameters
    ----------
    format
        Name of the converter that reads it.
    name
        What to call its file.
    data
        What is in the file.
    records
        Lines of it that are one record each, as they stand in it; none for formats without lines.
    others
        Files that lie next to it, by name, and are not damaged.
    options
        Options of its reader.
    """

    format: str
    name: str
    data: bytes
    records: frozenset[bytes] = frozenset()
    others: Mapping[str, bytes] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def form(self) -> tuple[str, str]:
        """Its format, and the ending of its name."""
        return self.format, Path(self.name).suffix


@dataclass(frozen=True)
class Reads:
    """The outcome of an input that is read.

    Parameters
    ----------
    nodes, samples
        How many there are in the trace.
    issues
        Codes of issues and their counts. No other issue of severity loss or error may be there;
        others that lose nothing may.
    """

    nodes: int = 0
    samples: int = 0
    issues: Mapping[str, int] = field(default_factory=dict)


def reads(nodes: int = 0, samples: int = 0, **issues: int) -> Reads:
    """Return the outcome with these issues; in their codes ``_`` stands for ``-``."""
    return Reads(nodes, samples, {code.replace("_", "-"): n for code, n in issues.items()})


@dataclass(frozen=True)
class Refused:
    """The outcome of an input that is refused: the error's class, and what its line must say."""

    error: type[Exception]
    message: str


@dataclass(frozen=True)
class Odd:
    """An odd input.

    Parameters
    ----------
    name
        What is odd, in words.
    files
        Files by name (folders with ``/``): bytes, or the path of a real input below the folder
        of those.
    outcome
        What becomes of it.
    options
        Options of its reader.
    """

    name: str
    files: Mapping[str, bytes | str]
    outcome: Reads | Refused
    options: Mapping[str, Any] = field(default_factory=dict)


def _all(name: str) -> list[Any]:
    modules = sorted(m.name for m in pkgutil.iter_modules(__path__))
    result = [importlib.import_module(f"{__name__}.{module}") for module in modules]
    return [one for module in result for one in getattr(module, name)]


def seeds() -> list[Seed]:
    """All sound inputs."""
    return _all("SEEDS")


def odd() -> list[Odd]:
    """All odd inputs."""
    return _all("ODD")


def written(files: Mapping[str, bytes | str], folder: Path, real: Callable[[str], Path]) -> Path:
    """Put files into a folder; the file if it is one alone, else the folder."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else real(data).read_bytes())
    return folder / next(iter(files)) if len(files) == 1 else folder

"""Machine code that a wheel brings along, so that the first run need not compile it.

Each archive is for one version of Python and one kind of processor. It was compiled for a baseline
that all but old processors fulfil, by `tests/support/machine_code.py`. Names of its files contain
what the code was compiled from and for (`compiled`), so that no other code is ever loaded.
"""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding

llvm: Any = llvmlite.binding


@dataclass(frozen=True)
class Baseline:
    """A processor to compile for: its name in LLVM, and the features that running it takes."""

    name: str
    features: frozenset[str] = frozenset()

    @property
    def magic(self) -> tuple[str, str, str]:
        """Identifier by which numba accepts code of a compiler."""
        return llvm.get_process_triple(), self.name, ""


# https://gitlab.com/x86-psABIs/x86-64-ABI: level 3, processors since 2013 (Intel) and 2015 (AMD)
_X86_64_V3 = (
    "sse3", "ssse3", "sse4.1", "sse4.2", "popcnt", "cx16", "sahf", "avx", "avx2", "bmi", "bmi2",
    "f16c", "fma", "lzcnt", "movbe",
)  # fmt: skip
_BASELINES = {
    "x86_64": Baseline("x86-64-v3", frozenset(_X86_64_V3)),
    "aarch64": Baseline("generic"),
}
"""By machine; others, and systems without wheels of llvmlite, compile at the first run."""


def baseline() -> Baseline | None:
    """Return the baseline of this kind of machine, None if there is none."""
    return _BASELINES.get(platform.machine())


def archive_path() -> Path:
    """Return the path of the archive for this Python and machine, whether or not it is there."""
    folder = Path(__file__).parents[1] / "machine_code"
    python = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
    return folder / f"{python}-{platform.machine()}.zip"


@cache
def usable_baseline() -> Baseline | None:
    """Return the baseline that shipped code was compiled for; None if it cannot be used here."""
    base = baseline()
    if base is None or "NUMBA_CPU_NAME" in os.environ or _archive() is None:
        return None
    features = llvm.get_host_cpu_features()
    return base if all(features.get(name, False) for name in base.features) else None


def load(name: str) -> bytes | None:
    """Return a file of the archive, None if there is none of this name."""
    archive = _archive()
    if archive is not None:
        with contextlib.suppress(KeyError, OSError, zipfile.BadZipFile):
            return archive.read(name)
    return None


@cache
def _archive() -> zipfile.ZipFile | None:
    with contextlib.suppress(OSError, zipfile.BadZipFile):
        return zipfile.ZipFile(archive_path())
    return None

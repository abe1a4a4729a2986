"""Inputs that no test changes: sample jobs made once and traces read once in each process.

Many tests ask different questions of the same trace of the sample job or of a real file, and reading it takes longer
than the question. A trace is immutable, so that tests can share it; files that a test writes are read with `ci.read`.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import chopper_interop as ci


@lru_cache(maxsize=32)
def read_once(*paths: Path, **options: Any) -> ci.Trace:
    """Return the trace of inputs that stay as they are, from memory if it was read shortly before."""
    return ci.read(*paths, **options)


@cache
def demo_once(**parameters: Any) -> Path:
    """Return the folder of a sample job that stays as it is, made where no test made an equal one before."""
    from chopper_interop.demo import make_demo

    return make_demo(_folder() / str(demo_once.cache_info().misses), **parameters)


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="sample_jobs_"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder

"""Words of nobody's in all texts of an input of every format: none gets into any output."""

from __future__ import annotations

import contextlib
import shutil
from functools import partial
from typing import TYPE_CHECKING, Any

import canaries
import mutations
import pytest
from outputs import OUTPUTS, content
from seeds import Seed, seeds
from slow import slow_from

import chopper_interop as ci
from chopper_interop.errors import ChopperError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WITHOUT_TEXT = {"zeus"}
"""Formats with texts that all mean something: of others nothing is read."""
HEADED = {"amd-smi", "amd-smi-text", "nvidia-smi", "rocm-smi"}
"""Formats of which names of quantities are put together from headings; no tool has a path in these."""


def cases() -> list[Any]:
    """All seeds with texts; those of a format that another stands for are slow."""
    seen: set[str] = set()
    result = []
    for seed in filter(canaries.places, seeds()):
        family = mutations.family_of(seed)
        name = f"{seed.format} {seed.name}"
        result.append(pytest.param(seed, id=name, marks=pytest.mark.slow if family in seen else ()))
        seen.add(family)
    return result


def contents(seed: Seed, folder: Path, options: dict[str, Any], data: bytes) -> bytes | None:
    """All that the outputs of an input say; None if it is none."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    path = mutations.written(mutations.Mutant(seed, data, "", -1), folder)
    try:
        trace = ci.read(path, **seed.options, **options)
    except ChopperError:
        return None
    made = b""
    for name in OUTPUTS:
        with contextlib.suppress(ChopperError):  # of a trace that has nothing for a format
            ci.write(trace, f"{folder}/{name}")
            made += content(folder / name)
    return made


@pytest.mark.parametrize("seed", cases())
def test_anonymised_no_word_gets_out(seed: Seed, tmp_path: Path) -> None:
    made = partial(contents, seed, tmp_path / "in", {"anonymise": "a key"})
    leaks, count = canaries.search(seed, canaries.word, made)
    assert leaks == []
    assert count > 0 or seed.format in WITHOUT_TEXT


@pytest.mark.parametrize("form", slow_from([canaries.path, canaries.account], 1))
@pytest.mark.parametrize("seed", [c for c in cases() if c.values[0].format not in HEADED])
def test_of_paths_the_names_of_files_get_out_alone(
    seed: Seed, form: Callable[[int], str], tmp_path: Path
) -> None:
    leaks, count = canaries.search(seed, form, partial(contents, seed, tmp_path / "in", {}))
    assert leaks == []
    assert count > 0 or seed.format in WITHOUT_TEXT


@pytest.mark.slow
def test_words_would_be_seen(tmp_path: Path) -> None:
    """The tests above see what gets out."""
    seed = next(seed for seed in seeds() if seed.format == "kineto")
    leaks, _ = canaries.search(
        seed, canaries.word, partial(contents, seed, tmp_path / "in", {"keep_environment": True})
    )
    assert len(leaks) >= 5

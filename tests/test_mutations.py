"""Inputs damaged at random end in a trace that balances, or in one line; nothing else."""

from operator import attrgetter
from pathlib import Path

import mutations
import pytest
from seeds import Seed, seeds
from slow import slow_again, slow_from

import chopper_interop as ci
from chopper_interop import registry

EACH = slow_from([2, 20], 1)
"""So many of each here; `make mutate` tries as many as wanted."""
SEEDS = slow_again(seeds()[::-1], attrgetter("form"))


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.format} {seed.name}")
def test_sound(seed: Seed, tmp_path: Path) -> None:
    """The seed itself is read as what it is, whole."""
    made = mutations.Mutant(seed, seed.data, "nothing", len(seed.records) or -1)
    assert mutations.outcome(made, tmp_path) == "read"
    trace = ci.read(tmp_path if seed.others else tmp_path / seed.name, **seed.options)
    assert seed.format in {source.format for source in trace.meta.sources}


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"{seed.format} {seed.name}")
@pytest.mark.parametrize("mutants", EACH)
def test_damaged(seed: Seed, mutants: int, tmp_path: Path) -> None:
    for number in range(mutants):
        folder = tmp_path / str(number)
        folder.mkdir()
        mutations.outcome(mutations.mutant(seed, number), folder)


def test_every_format_has_a_seed() -> None:
    """But Parquet, whose folders `test_parquet.py` damages."""
    read = {name for name, one in registry.formats().items() if one.read}
    builtin = {n for n in read if registry.converter(n).reader.__module__.startswith("chopper_")}
    assert builtin - {seed.format for seed in seeds()} == {"parquet"}


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parent / "corpus").iterdir()), ids=lambda p: p.name
)
def test_corpus(path: Path, tmp_path: Path) -> None:
    """Inputs that fuzzing found to reach branches of their own; the first byte is the number of the seed."""
    own = mutations.seeds_of(path.name.split("-")[0])
    data = path.read_bytes()
    mutations.outcome(mutations.Mutant(own[data[0] % len(own)], data[1:], path.name, -1), tmp_path)

"""Whatever one field of an input holds, all commands end as they must: `field_changes.require_handled`."""

from operator import attrgetter
from pathlib import Path

import field_changes
import pytest
from seeds import Seed, seeds
from slow import slow_again, slow_from

EACH = slow_from([1, 20], 1)
"""So many changes of each seed here; ``python tests/support/field_changes.py`` tries as many as wanted."""


@pytest.mark.parametrize(
    "seed",
    slow_again(seeds()[::-1], attrgetter("form")),
    ids=lambda seed: f"{seed.format} {seed.name}",
)
@pytest.mark.parametrize("count", EACH)
def test_a_field_is_not_as_expected(seed: Seed, count: int, tmp_path: Path) -> None:
    for number, made in enumerate(field_changes.chosen(field_changes.changes(seed), count)):
        (tmp_path / str(number)).mkdir()
        field_changes.require_handled(made, tmp_path / str(number))


@pytest.mark.parametrize("count", slow_from([4, 200], 1))
def test_a_column_of_the_own_tables_is_not_as_expected(count: int, tmp_path: Path) -> None:
    every = field_changes.parquet_changes(tmp_path)
    for number, made in enumerate(field_changes.chosen(every, count)):
        (tmp_path / str(number)).mkdir()
        field_changes.require_handled(made, tmp_path / str(number))

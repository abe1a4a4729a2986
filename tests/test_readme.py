"""What the README says is so."""

from pathlib import Path

import pytest
import readme

from chopper_interop import registry

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_formats_is_that_of_the_registry() -> None:
    text = README.read_text()
    assert text == readme.with_table(text), "run 'make formats' and commit the result"


@pytest.mark.parametrize("name", sorted(registry.converters()))
def test_every_format_is_told(name: str) -> None:
    found = registry.converters()[name]
    assert isinstance(found, registry.Converter), found
    assert found.name == name
    assert found.description
    if found.read or found.write:
        assert found.carries
        assert found.versions

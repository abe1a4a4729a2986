"""Statements of the README, checked."""

from pathlib import Path

import pytest
import readme

from chopper_interop import registry

README = Path(__file__).parents[1] / "README.md"


def test_the_table_of_formats_is_that_of_the_registry() -> None:
    text = README.read_text()
    assert text == readme.with_table(text), "run 'make formats' and commit the result"


@pytest.mark.parametrize("name", sorted(registry.converters()))
def test_every_format_is_described(name: str) -> None:
    converter = registry.converters()[name]
    assert isinstance(converter, registry.Converter), converter
    assert converter.name == name
    assert converter.description
    if converter.read or converter.write:
        assert converter.carries
        assert converter.versions

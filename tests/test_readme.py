"""Statements of the README, checked."""

from pathlib import Path

import pytest
import readme

from chopper_interop import registry

ROOT = Path(__file__).parents[1]
_MARKS = {
    "README.md": (readme.BEGIN, readme.BEGIN_ANALYSES),
    "analyses/README.md": (readme.BEGIN_FINDINGS,),
}


@pytest.mark.parametrize("name", _MARKS)
def test_tables_are_those_of_the_code(name: str) -> None:
    text = (ROOT / name).read_text()
    assert all(mark in text for mark in _MARKS[name])
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

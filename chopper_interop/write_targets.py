"""Outputs: where each is written, and by which converter."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop import registry, sources
from chopper_interop.io import inputs, remote

if TYPE_CHECKING:
    from chopper_interop.registry import Converter

PathArg = str | PathLike[str]


@dataclass(frozen=True)
class WriteTarget:
    """An output: its path and the converter that writes it."""

    path: PathArg
    converter: Converter
    url: str = ""
    """Where it is put when it is written, if that is no local path."""

    @property
    def shown(self) -> str:
        """Its path or URL, as the user gave it."""
        return self.url or fspath(self.path)

    @property
    def places(self) -> list[PathArg]:
        """Local files that it replaces, or of which it replaces what they are copies of."""
        return [self.path, remote.copy_of(self.url)] if self.url else [self.path]


def write_target(path: PathArg, to_format: str | None = None) -> WriteTarget:
    """Resolve the converter that writes a path, by its ending or by the name of the format."""
    if inputs.is_url(path):
        url = fspath(path)
        converter = registry.writer_for(url) if to_format is None else registry.converter(to_format)
        _ = converter.writer  # raises before anything is read
        return WriteTarget(remote.workplace(url), converter, url)
    sources.to_path(path)
    if to_format is None:
        folder = "/" if Path(path).is_dir() else ""
        return WriteTarget(path, registry.writer_for(fspath(path) + folder))
    converter = registry.converter(to_format)
    _ = converter.writer  # raises before anything is read
    return WriteTarget(path, converter)

"""What converters and analyses there are: entry points, for our own as for anybody's.

A package adds a format by an entry point in the group ``chopper_interop.converters`` that names
a `Converter`, and an analysis by one in ``chopper_interop.analyses`` that names a function
``(trace, *, options) -> result``. One that fails to load does not hinder the others: it is
listed as broken, and says why when it is asked for.
"""

from __future__ import annotations

import difflib
import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from chopper_interop.errors import UnknownFormatError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

CONVERTERS = "chopper_interop.converters"
ANALYSES = "chopper_interop.analyses"


@dataclass(frozen=True)
class Converter:
    """One format.

    Parameters
    ----------
    name
        Its name for ``--from`` and ``--to``.
    description
        A line for people: what it is and who writes it.
    versions
        The versions that it is known to read or write.
    suffixes
        Endings of file names that choose it as output; "/" for folders without another ending.
    sniff
        Whether a file that begins with these bytes (unpacked, at most `inputs.HEAD`) is of this
        format. Must be quick and never raise.
    confirms
        ``(path, head) -> bool``: whether a file is of this format, for formats that first bytes
        do not always tell, such as databases. It is asked of files that `sniff` takes and of
        those that no converter's takes. It may look anywhere in the file and at what belongs to
        it, has the last word, and must not raise nor leave anything behind.
    group
        Puts files that belong together into one source each; by default each file is one. It
        may add files that lie there and cannot be told by their first bytes.
    read
        ``(paths, *, options) -> Trace``: reads one source.
    write
        ``(trace, path, *, options) -> IssueLog | None``: writes, and says what was lost by it.
    folder
        Whether `write` makes a folder.
    derived
        Whether files of this format are made from profiles rather than recorded.
    not_read_because
        For a format that is recognised and not read: why.
    carries
        What is taken over, for the table of formats.
    """

    name: str
    description: str
    versions: str = ""
    suffixes: tuple[str, ...] = ()
    sniff: Callable[[bytes], bool] | None = None
    confirms: Callable[[Path, bytes], bool] | None = None
    group: Callable[[list[Path]], list[list[Path]]] | None = None
    read: Callable[..., Any] | None = None
    write: Callable[..., Any] | None = None
    folder: bool = False
    derived: bool = False
    not_read_because: str = "it holds nothing for a trace"
    carries: str = ""

    @property
    def reader(self) -> Callable[..., Any]:
        """`read`; raises `UnknownFormatError` where there is none."""
        if self.read is None:
            raise UnknownFormatError(f"format {self.name!r} can be written but not read")
        return self.read

    @property
    def writer(self) -> Callable[..., Any]:
        """`write`; raises `UnknownFormatError` where there is none."""
        if self.write is None:
            raise UnknownFormatError(f"format {self.name!r} can be read but not written")
        return self.write


@dataclass(frozen=True)
class Broken:
    """A plug-in that does not load."""

    name: str
    reason: str


_PARAMETER = re.compile(r"^(\w+(?:, \w+)*)\n((?:    .*\n)+)", re.MULTILINE)
"""Parameters that are told together, and their text in a docstring's list."""


@cache
def converters() -> dict[str, Converter | Broken]:
    """All converters by name, in order of name."""
    found: dict[str, Converter | Broken] = {}
    for point in _points(CONVERTERS):
        loaded = _load(point)
        if isinstance(loaded, Broken | Converter):
            found[point.name] = loaded
        else:
            found[point.name] = Broken(point.name, f"{point.value} is no Converter")
    return found


@cache
def analyses() -> dict[str, Callable[..., Any] | Broken]:
    """All analyses by name, in order of name."""
    return {point.name: _load(point) for point in _points(ANALYSES)}


def formats() -> dict[str, Converter]:
    """Formats that can be read or written, by name; plug-ins that do not load are left out."""
    return {
        name: found
        for name, found in converters().items()
        if isinstance(found, Converter) and (found.read or found.write)
    }


def working_analyses() -> dict[str, Callable[..., Any]]:
    """Analyses by name; plug-ins that do not load are left out."""
    return {name: f for name, f in analyses().items() if not isinstance(f, Broken)}


def converter(name: str) -> Converter:
    """The converter of that name."""
    return _named(name, converters(), "format")


def analysis(name: str) -> Callable[..., Any]:
    """The analysis of that name."""
    return _named(name, analyses(), "analysis")


def writer_for(path: str) -> Converter:
    """The converter that writes files, or folders ("/" at the end), with this ending."""
    endings = {
        suffix: c
        for c in converters().values()
        if isinstance(c, Converter) and c.write
        for suffix in c.suffixes
    }
    plain = path.rstrip("/")
    matching = [e for e in endings if plain.endswith(e) or path.endswith(e)]
    if matching:
        return endings[max(matching, key=len)]
    raise UnknownFormatError(
        f"no format is written to names like {path!r}",
        hint=f"end it in one of {', '.join(sorted(endings))}, or name the format with --to",
    )


def sniffed(head: bytes, path: Path | None = None) -> list[Converter]:
    """Converters that recognise a file by its first bytes, and by more of it where they ask.

    Parameters
    ----------
    head
        Its first bytes, unpacked.
    path
        The file; without it, the first bytes alone tell.

    Raises
    ------
    UnknownFormatError
        A converter fails at it, which none may.
    """
    known = [c for c in converters().values() if isinstance(c, Converter)]
    found = [c for c in known if c.sniff and _says(c, c.sniff, head)]
    if path is None:
        return found
    return [
        c
        for c in found or known
        if (_says(c, c.confirms, path, head) if c.confirms else c in found)
    ]


def _says(found: Converter, function: Callable[..., bool], *about: Any) -> bool:
    try:
        return bool(function(*about))
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
        raise UnknownFormatError(
            f"the converter {found.name!r} fails when it looks at a file: {told}",
            hint="remove the package that brings it, or say --from",
        ) from error


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a reader, writer or analysis."""
    parameters = inspect.signature(function).parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def takes_runs(function: Callable[..., Any]) -> bool:
    """Whether an analysis compares any number of runs (``against: Runs | None``), not two jobs."""
    declared = options(function).get("against")
    stated = "" if declared is None else str(declared.annotation)
    return "Runs" in re.findall(r"\w+", stated)


def option_texts(function: Callable[..., Any]) -> dict[str, str]:
    """``name=default`` of each option of a function, and what its docstring says of it."""
    found = _PARAMETER.findall((inspect.getdoc(function) or "") + "\n")
    told = {name: text for names, text in found for name in names.split(", ")}
    return {
        f"{name}={'…' if parameter.default is None else parameter.default}": " ".join(
            told.get(name, "").replace("``", "").split()
        )
        for name, parameter in options(function).items()
    }


def chosen_options(function: Callable[..., Any], given: dict[str, Any]) -> dict[str, Any]:
    """Those of the given options that `function` takes, texts made what it declares."""
    known = options(function)
    return {n: _typed(n, v, known[n]) for n, v in given.items() if n in known}


def unknown_options(functions: Iterable[Callable[..., Any]], given: Iterable[str]) -> list[str]:
    """Those of the given option names that none of the functions takes."""
    known = set().union(*(options(f) for f in functions))
    return [name for name in given if name not in known]


def _typed(name: str, value: Any, parameter: inspect.Parameter) -> Any:
    if not isinstance(value, str):
        return value
    kind = type(parameter.default)
    if parameter.default is None:
        stated = str(parameter.annotation).split("|", 1)[0].strip()
        kind = {"int": int, "float": float, "bool": bool}.get(stated, str)
    if kind is str:
        return value
    if kind is bool:
        switches = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if value.lower() not in switches:
            raise UsageError(f"option {name}={value}: say yes or no")
        return switches[value.lower()]
    try:
        return kind(value)
    except ValueError as error:
        what = {int: "a whole number, in digits"}.get(kind, f"a {kind.__name__}")
        raise UsageError(f"option {name}={value}: it must be {what}") from error


def _points(group: str) -> list[EntryPoint]:
    return sorted(entry_points(group=group), key=lambda point: point.name)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # noqa: BLE001 # others' code may raise anything; it is reported
        return Broken(point.name, f"{type(error).__name__}: {error}")


def _named(name: str, known: dict[str, Any], what: str) -> Any:
    found = known.get(name)
    if isinstance(found, Broken):
        raise UnknownFormatError(f"{what} {name!r} does not load: {found.reason}")
    if found is None:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise UnknownFormatError(f"there is no {what} {name!r}", hint=hint)
    return found

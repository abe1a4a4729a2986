"""Registry of converters and analyses: entry points, the same for built-in ones and plug-ins.

A package adds a format by an entry point in the group ``chopper_interop.converters`` that names
a `Converter`, and an analysis by one in ``chopper_interop.analyses`` that names a function
``(trace, *, options) -> result``. One that fails to load does not affect the others: it is
listed as broken, and asking for it raises an error with the reason.
"""

from __future__ import annotations

import inspect
import math
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NoReturn, SupportsIndex, TypeVar, cast

from chopper_interop.errors import (
    ChopperError,
    InternalError,
    OptionError,
    PluginError,
    UnknownFormatError,
    UsageError,
    as_own_class,
    described,
    first_line,
    raise_interrupt,
    similar,
)
from chopper_interop.io import memory

CONVERTERS = "chopper_interop.converters"
ANALYSES = "chopper_interop.analyses"
_OWN = "chopper_interop."
"""Beginning of what entry points of this package name."""
READING_OPTIONS = {
    "comm": "Names of kernels that are communication: a regular expression (RE2), or a file with one "
    "a line; in addition to kernels of known libraries and those under operators of collectives.",
    "args": "none leaves out arguments of nodes that no column holds, for less memory; what columns are made of "
    "them (shapes, FLOPs, groups, …) is the same.",
}
"""Options of reading files of any format, with their texts."""
_READING_VALUES = {"args": ("none",)}
"""Values of those of them that a writer may have by the same name, as Perfetto's does, with others."""


@dataclass(frozen=True)
class Converter:
    """One format.

    Parameters
    ----------
    name
        Name for ``--from`` and ``--to``.
    description
        One human-readable line: the format and the tool that writes it.
    versions
        Versions that it is known to read or write.
    suffixes
        Endings of file names that choose it as output; "/" for folders without another ending.
    sniff
        ``(head) -> bool``, or the ``match`` of a pattern: true if a file that begins with these bytes (unpacked, at most
        `inputs.HEAD_BYTES`) is of this format. Must be quick, import no reader and never raise.
    json
        True if its files are JSON, False if they are not; `sniff` is then not called for others.
    json_words
        Texts of which each of its files that is JSON has one among its first bytes; `sniff` is not called
        for JSON without. JSON that such a format recognises is of no format without `json_words`, such as
        Chrome traces.
    confirms
        ``(path, head) -> bool``: True if a file is of this format, for formats that first bytes do
        not always identify, such as databases. Called for files that `sniff` accepts and for those
        that no converter's accepts. It may read anywhere in the file and files next to it, decides
        finally, and must neither raise nor leave anything behind.
    group
        Groups files that belong together into sources; by default each file is one. It may add
        files next to them that first bytes do not identify.
    read
        ``(paths, *, options) -> Trace``: reads one source; the function, or ``"module:function"``,
        which is imported when it is first used.
    read_together
        ``(paths, *, options) -> Combined``: reads several sources of one file each in one pass, with the options
        of `read`; without it each is read alone. As `read`.
    write
        ``(trace, path, *, options) -> IssueLog | None``: writes, and returns what was lost; as `read`.
    rank_of
        ``(path, head) -> rank``: the only rank that a file that begins with these bytes states, None where
        that needs reading all of it. With it, files of ranks that are not asked for are left unread.
    steps_ratio
        As `memory_ratio`, of a few training steps that are asked for (`chosen_steps`); 0 if `read` does not leave out others.
    words_of_work
        Texts of which one stands in each file that has work of GPUs, for formats in which it may stand far from
        the beginning.
    memory_ratio
        Peak memory of reading and joining, as a multiple of the unpacked files; estimates that refuse what
        does not fit use it, so it is rather too low.
    arguments_ratio
        How much of `memory_ratio` is arguments of nodes, and is not taken where these are left out; rather too low.
    usage
        ``(trace, path) -> str``: one line, for people, on how others take what `write` wrote; as `read`.
    folder
        True if `write` makes a folder.
    derived
        True if files of this format are made from profiles rather than recorded.
    has_arguments
        False if `write` does not need the arguments of nodes, so that their memory can be freed before.
    not_read_because
        Reason, for a format that is recognised and not read.
    carries
        Contents that are read or written, for the table of formats.
    """

    name: str
    description: str
    versions: str = ""
    suffixes: tuple[str, ...] = ()
    sniff: Callable[[bytes], object] | None = None
    json: bool | None = None
    json_words: tuple[bytes, ...] = ()
    confirms: Callable[[Path, bytes], bool] | None = None
    group: Callable[[list[Path]], list[list[Path]]] | None = None
    read: Callable[..., Any] | str | None = None
    read_together: Callable[..., Any] | str | None = None
    write: Callable[..., Any] | str | None = None
    rank_of: Callable[[Path, bytes], int | None] | None = None
    steps_ratio: float = 0.0
    words_of_work: tuple[bytes, ...] = ()
    memory_ratio: float = 2.0
    arguments_ratio: float = 0.0
    usage: Callable[..., str] | str | None = None
    folder: bool = False
    derived: bool = False
    has_arguments: bool = True
    not_read_because: str = "it holds nothing for a trace"
    carries: str = ""

    @property
    def reader(self) -> Callable[..., Any]:
        """`read`; raises `UnknownFormatError` where there is none."""
        if self.read is None:
            raise UnknownFormatError(f"format {self.name!r} can be written but not read")
        return _function(self.read, self.name)

    @property
    def joint_reader(self) -> Callable[..., Any]:
        """`read_together`; raises `UnknownFormatError` where there is none."""
        if self.read_together is None:
            raise UnknownFormatError(f"files of format {self.name!r} are read one by one")
        return _function(self.read_together, self.name)

    @property
    def writer(self) -> Callable[..., Any]:
        """`write`; raises `UnknownFormatError` where there is none."""
        if self.write is None:
            raise UnknownFormatError(f"format {self.name!r} can be read but not written")
        return _function(self.write, self.name)

    def usage_of(self, trace: Any, path: Path) -> str:
        """One line on how others take what was written to a path; empty if there is nothing to say."""
        if self.usage is None:
            return ""
        with as_errors("saying how others take", self.name, path):
            return str(_function(self.usage, self.name)(trace, path))


def _function(reference: Callable[..., Any] | str, name: str) -> Callable[..., Any]:
    """Return a function of the format of that name, imported if it is given as ``"module:function"``."""
    if isinstance(reference, str):
        module, _, attribute = reference.partition(":")
        try:
            function: Any = getattr(import_module(module), attribute)
        except BaseException as error:
            raise_interrupt(error)
            raise UnknownFormatError(
                f"format {name!r}: {reference} does not load: {first_line(error)}"
            ) from error
    else:
        function = reference
    if flaw := _flaw_of_function(function):
        raise UnknownFormatError(f"format {name!r}: {reference} does not load: {flaw}")
    return cast("Callable[..., Any]", function)


@cache
def _known_flaw(function: Callable[..., Any]) -> str:
    """Return why options of a function can't be known; empty if they can."""
    try:
        option_texts(function)
    except BaseException as error:  # noqa: BLE001 # what a plug-in's objects do
        raise_interrupt(error)
        return f"its options are not known: {described(error)}"
    return ""


def _flaw_of_function(function: Any) -> str:
    if not callable(function):
        return f"it is a {type(function).__name__}, not a function"
    try:
        return _known_flaw(function)
    except TypeError:  # a callable object may have no hash
        return _known_flaw.__wrapped__(function)


@dataclass(frozen=True)
class Broken:
    """A plug-in that does not load."""

    name: str
    reason: str


_JSON = re.compile(rb"\s*(?:\{|\[\s*\{)")
_PARAMETER = re.compile(r"^(\w+(?:, \w+)*)\n((?:    .*\n)+)", re.MULTILINE)
"""Parameters that a docstring lists together, and their text."""
_OPTION_TEXTS = "option_texts"
"""Attribute of a function with the texts of options that it shares with others."""
Documented = TypeVar("Documented", bound="Callable[..., Any]")


@cache
def converters() -> dict[str, Converter | Broken]:
    """All converters by name, in order of name."""
    loaded: dict[str, Converter | Broken] = {}
    for name, point in _points(CONVERTERS).items():
        target = _load(name, point)
        if not isinstance(target, Broken | Converter):
            target = Broken(name, f"{point.value} is no Converter")
        elif isinstance(target, Converter) and (flaw := _flaw(target, name)):
            target = Broken(name, f"{point.value}: {flaw}")
        loaded[name] = target
    return loaded


_FIELDS: dict[str, Callable[[Any], bool]] = {
    "a text of one line": lambda value: isinstance(value, str) and value.isprintable(),
    "a tuple of texts": lambda value: (
        isinstance(value, tuple) and all(isinstance(v, str) for v in value)
    ),
    "a tuple of bytes": lambda value: (
        isinstance(value, tuple) and all(isinstance(v, bytes) for v in value)
    ),
    "a function": lambda value: value is None or callable(value),
    "a function, or its name": lambda value: (
        value is None or callable(value) or isinstance(value, str)
    ),
    "a part": lambda value: isinstance(value, int | float) and 0 <= value < math.inf,
    "a number above 0": lambda value: isinstance(value, int | float) and 0 < value < math.inf,
}
"""Kinds of fields of a `Converter`, and whether a value is of the kind."""
_KIND_OF_FIELD = {
    **dict.fromkeys(("description", "versions", "not_read_because", "carries"), "a text of one line"),
    "suffixes": "a tuple of texts", "json_words": "a tuple of bytes", "words_of_work": "a tuple of bytes",
    "sniff": "a function", "confirms": "a function", "group": "a function", "rank_of": "a function",
    "read": "a function, or its name", "read_together": "a function, or its name",
    "write": "a function, or its name", "usage": "a function, or its name",
    "memory_ratio": "a number above 0", "arguments_ratio": "a part", "steps_ratio": "a part",
}  # fmt: skip


def _flaw(converter: Converter, name: str) -> str:
    """Return what is wrong with the fields of a converter, on which work with all other formats depends; empty if nothing is."""
    if converter.name != name:
        return f"its name is {converter.name!r}, and not {name!r} as that of its entry point"
    wrong = (
        f"its {field} is not {kind}"
        for field, kind in _KIND_OF_FIELD.items()
        if not _FIELDS[kind](getattr(converter, field))
    )
    return next(wrong, "")


def analyses() -> dict[str, Callable[..., Any] | Broken]:
    """All analyses by name, in order of name."""
    return {name: _analysis(name) for name in analysis_names()}


def analysis_names() -> list[str]:
    """Names of all analyses, in order; none is loaded."""
    return list(_points(ANALYSES))


@cache
def _analysis(name: str) -> Callable[..., Any] | Broken:
    """The analysis of an entry point of that name."""
    point = _points(ANALYSES)[name]
    target = _load(name, point)
    if isinstance(target, Broken):
        return target
    if not callable(target):
        return Broken(name, f"{point.value} is no function")
    flaw = "" if point.value.startswith(_OWN) else _flaw_of_function(target)
    return Broken(name, f"{point.value}: {flaw}") if flaw else target


def formats() -> dict[str, Converter]:
    """Formats that can be read or written, by name; plug-ins that do not load are left out.

    Examples
    --------
    >>> import chopper_interop as ci
    >>> ci.formats()["kineto"].description
    'PyTorch profiler trace (Kineto JSON)'
    >>> ci.formats()["perfetto"].suffixes[:2]
    ('.pftrace', '.pftrace.gz')
    """
    return {
        name: item
        for name, item in converters().items()
        if isinstance(item, Converter) and (item.read or item.write)
    }


def working_analyses() -> dict[str, Callable[..., Any]]:
    """Analyses by name; plug-ins that do not load are left out."""
    return {name: f for name, f in analyses().items() if not isinstance(f, Broken)}


def converter(name: str) -> Converter:
    """The converter of that name."""
    return _named(name, converters(), converters(), CONVERTERS)


def analysis(name: str) -> Callable[..., Any]:
    """The analysis of that name."""
    names = analysis_names()
    return _named(name, {name: _analysis(name)} if name in names else {}, names, ANALYSES)


def readers() -> list[Callable[..., Any]]:
    """All functions that read a format; those that do not load are left out."""
    found = []
    for known in converters().values():
        if isinstance(known, Converter) and known.read:
            with suppress(UnknownFormatError):
                found.append(known.reader)
    return found


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
        hint=f"end it in one of {', '.join(sorted(endings))}, or name the format with --to; chopper-analyze writes "
        "tables with --csv DIR",
    )


def sniffed(
    head: bytes, path: Path | None = None, failures: dict[str, str] | None = None
) -> list[Converter]:
    """Return the converters that recognise a file by its first bytes and, if they confirm, by the file.

    Parameters
    ----------
    head
        Its first bytes, unpacked.
    path
        The file; without it, only `sniff` decides.
    failures
        Gets the names of converters that raise, which none may, with the reasons. They do not recognise the file.
    """
    failures = {} if failures is None else failures
    is_object = is_json(head)
    known = [c for c in converters().values() if isinstance(c, Converter)]
    possible = [c for c in known if c.json is None or c.json is is_object]
    if is_object:
        words = {word for c in possible for word in c.json_words}  # which formats of a family share
        there = {word for word in words if word in head}
        possible = [c for c in possible if not c.json_words or not there.isdisjoint(c.json_words)]
    accepted = False
    # formats that are only recognised are asked about what none of those that are read takes
    for group in ([c for c in possible if c.read], [c for c in possible if not c.read]):
        candidates = [c for c in group if c.sniff and _accepts(c, failures, c.sniff, head)]
        accepted = accepted or bool(candidates)
        confirmed = [c for c in candidates if _confirms(c, failures, path, head)]
        if confirmed:
            return [c for c in confirmed if is_object and c.json_words] or confirmed
    if accepted or path is None:
        return []
    return [c for c in known if c.confirms and _confirms(c, failures, path, head)]


def is_json(head: bytes) -> bool:
    """True if a file begins as a JSON object or a list of them; logs may begin with "[" too."""
    return _JSON.match(head) is not None


def _confirms(
    converter: Converter, failures: dict[str, str], path: Path | None, head: bytes
) -> bool:
    if path is None or converter.confirms is None:
        return True
    return _accepts(converter, failures, converter.confirms, path, head)


def _accepts(
    converter: Converter,
    failures: dict[str, str],
    function: Callable[..., object],
    *arguments: Any,
) -> bool:
    try:
        return bool(function(*arguments))
    except BaseException as error:  # noqa: BLE001 # of a plug-in
        raise_interrupt(error)
        failures[converter.name] = described(error)
        return False


_signature = cache(inspect.signature)  # of a reader: asked for each source


def options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The keyword-only parameters of a reader, writer or analysis."""
    try:
        signature = _signature(function)
    except TypeError:  # a plug-in's callable object may have no hash
        signature = inspect.signature(function)
    parameters = signature.parameters.values()
    return {p.name: p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY}


def takes_runs(function: Callable[..., Any]) -> bool:
    """True if an analysis compares any number of runs (``against: Runs | None``), not two jobs."""
    declared = options(function).get("against")
    annotation = "" if declared is None else str(declared.annotation)
    return "Runs" in re.findall(r"\w+", annotation)


def with_option_texts(texts: Mapping[str, str]) -> Callable[[Documented], Documented]:
    """Document options by texts that several functions share; a docstring has its own in place of them.

    Parameters
    ----------
    texts
        Name of each option, and its text.

    Returns
    -------
    Callable
        Decorator of a reader, writer or analysis.
    """

    def decorate(function: Documented) -> Documented:
        function.__dict__[_OPTION_TEXTS] = dict(texts)
        return function

    return decorate


def option_texts(function: Callable[..., Any]) -> dict[str, str]:
    """``name=default`` of each option of a function as it is typed, with its text in the docstring."""
    sections = _PARAMETER.findall((inspect.getdoc(function) or "") + "\n")
    own = {name: text for names, text in sections for name in names.split(", ")}
    texts = {**getattr(function, _OPTION_TEXTS, {}), **own}
    return {
        f"{name}={_typed_text(parameter.default)}": " ".join(
            texts.get(name, "").replace("``", "").split()
        )
        for name, parameter in options(function).items()
    }


def _typed_text(default: Any) -> str:
    """A default as a user types it: `_typed` reads it back; … for none."""
    if isinstance(default, bool):
        return "yes" if default else "no"
    return "…" if default is None else str(default)


def chosen_options(function: Callable[..., Any], values: dict[str, Any]) -> dict[str, Any]:
    """Select the options that `function` takes, texts converted to the declared types.

    A list for an option that is a text, such as ``by=["rank", "stream"]``, becomes ``"rank,stream"``,
    a number its digits, and None the default.

    Raises
    ------
    UsageError
        A value is neither of the type that is declared nor can be made one.
    """
    known = options(function)
    return {n: _typed(n, v, known[n]) for n, v in values.items() if n in known}


def unknown_options(functions: Iterable[Callable[..., Any]], names: Iterable[str]) -> list[str]:
    """Select the option names that none of the functions takes."""
    known = set().union(*(options(f) for f in functions))
    return [name for name in names if name not in known]


def similar_option(
    name: str, functions: Iterable[Callable[..., Any]], others: Iterable[str] = ()
) -> str:
    """Hint for an option that none of the functions takes: its values in reading, a similar one, or all that they take and others."""
    if values := reading_values(name):
        return values
    known = {option for function in functions for option in options(function)}
    return similar(name, sorted(known | set(others)))


def unknown_reading_options(
    functions: Iterable[Callable[..., Any]], values: Mapping[str, Any]
) -> list[str]:
    """Select the names of options that none of the readers takes and that, with these values, are no `READING_OPTIONS`."""
    return [n for n in unknown_options(functions, values) if not is_of_reading(n, values[n])]


def is_of_reading(name: str, value: Any) -> bool:
    """Return True if an option with this value is one of reading files of any format."""
    return name in READING_OPTIONS and value in _READING_VALUES.get(name, (value,))


def reading_values(name: str) -> str:
    """Hint for an option of reading that has other values only in some outputs; "" for any other option."""
    values = _READING_VALUES.get(name, ())
    return (
        f"without an output that takes others, its value is {' or '.join(values)}" if values else ""
    )


def keeps_arguments(options: Mapping[str, Any]) -> bool:
    """Return True unless options of reading leave arguments out."""
    return not is_of_reading("args", options.get("args"))


def _typed(name: str, value: Any, parameter: inspect.Parameter) -> Any:
    kind = type(parameter.default)
    if kind is str and not isinstance(value, str):
        return parameter.default if value is None else _as_text(name, value)
    if not isinstance(value, str):
        return value
    if parameter.default is None:
        annotation = str(parameter.annotation).split("|", 1)[0].strip()
        kind = {"int": int, "float": float, "bool": bool}.get(annotation, str)
    if kind is str:
        return value
    if kind is bool:
        switches = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
        if value.lower() not in switches:
            said = " or ".join(("yes", "no", *_READING_VALUES.get(name, ())))
            raise OptionError(f"{name}={value}: say {said}")
        return switches[value.lower()]
    try:
        return kind(value)
    except ValueError as error:
        expected = {int: "a whole number, in digits"}.get(kind, f"a {kind.__name__}")
        raise OptionError(f"{name}={value}: it must be {expected}") from error


def _as_text(name: str, value: Any) -> str:
    """A number, or texts and numbers separated by commas, as an option of a command is written."""
    items = value if isinstance(value, Iterable) else [value]
    if not isinstance(items, bytes | Mapping):
        texts = [str(item) if isinstance(item, str | SupportsIndex) else None for item in items]
        if None not in texts:
            return ",".join(text for text in texts if text)
    raise UsageError(f"option {name}={value!r}: it must be a text, or a list of texts or numbers")


@cache
def _points(group: str) -> dict[str, EntryPoint]:
    """Entry points of a group by name, in order.

    Of several with one name the built-in one has it, else that of the first package. The others have it with their
    package: which of them is called must not depend on where a package lies.
    """
    points: dict[str, EntryPoint] = {}
    for point in sorted(entry_points(group=group), key=lambda p: (p.name, _package(p))):
        points[f"{point.name} of {_package(point)}" if point.name in points else point.name] = point
    return points


def _package(point: EntryPoint) -> str:
    """Name and version of the package that brings a plug-in, or its module; empty for what is built in."""
    if point.value.startswith(_OWN):
        return ""
    parts = (point.dist.name, point.dist.version) if point.dist is not None else ()
    return " ".join(filter(None, parts)) or point.value


def _load(name: str, point: EntryPoint) -> Any:
    if name != point.name:
        return Broken(name, f"the name is that of another one; change that in {point.value}")
    try:
        return point.load()
    except BaseException as error:  # noqa: BLE001 # plug-ins may raise anything
        raise_interrupt(error)
        return Broken(name, described(error))


@cache
def brought_by(group: str, name: str) -> str:
    """Name and version of the package that brings a plug-in; empty for a converter or an analysis of this package."""
    point = _points(group).get(name)
    return "" if point is None else _package(point)


def _named(name: str, loaded: dict[str, Any], known: Iterable[str], group: str) -> Any:
    item, noun = loaded.get(name), "format" if group == CONVERTERS else "analysis"
    if isinstance(item, Broken):
        subject = ", of ".join(filter(None, (f"{noun} {name!r}", brought_by(group, name))))
        raise UnknownFormatError(f"{subject}, does not load: {item.reason}")
    if item is None:
        raise UnknownFormatError(f"there is no {noun} {name!r}", hint=similar(name, known))
    return item


@contextmanager
def as_errors(
    action: str, name: str, path: Path | None = None, *, group: str = CONVERTERS
) -> Iterator[None]:
    """Raise `InternalError`, of a plug-in `PluginError`, for an error that a converter or an analysis does not expect.

    Parameters
    ----------
    action, name
        What the block does, such as "reading", and the converter or analysis that it calls.
    path
        The file or folder concerned.
    group
        Entry points that have the name.

    Raises
    ------
    TooLittleMemoryError
        Memory does not suffice.
    """
    package = brought_by(group, name)
    try:
        with memory.sufficing(f"{action} {name}", path):
            yield
    except BaseException as error:
        if package:
            _raise_of_plugin(error, f"{action} {name}", path, package)
        raise_interrupt(error)
        if isinstance(error, (ChopperError, GeneratorExit)):  # a generator closed within the block
            raise
        raise InternalError(error, f"{action} {name}", path) from error


def _raise_of_plugin(
    error: BaseException, subject: str, path: Path | None, package: str
) -> NoReturn:
    """Raise an error of a plug-in as one of this package, with the file concerned."""
    if _interrupts_itself(
        error
    ):  # without it as a cause, which would end the command as a signal does
        raise PluginError(error, subject, path, package) from None
    raise_interrupt(error)
    known = as_own_class(error) if isinstance(error, ChopperError) else None
    if known is None:
        raise PluginError(error, subject, path, package) from error
    if known.path is None and not isinstance(known, UsageError):
        known.path = path
    if known is error:
        raise error
    raise known from error


def _interrupts_itself(error: BaseException) -> bool:
    """True if code raised an interrupt by itself: those of signals come in main threads, and workers get none."""
    from multiprocessing import parent_process  # not of each command's start

    is_main = threading.current_thread() is threading.main_thread()
    return isinstance(error, KeyboardInterrupt) and not (is_main and parent_process() is None)

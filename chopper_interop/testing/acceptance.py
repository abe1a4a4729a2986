"""Acceptance tests of converters and analyses, for plug-ins as for built-in ones."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop import invariants, registry
from chopper_interop.errors import ChopperError, SchemaError, UsageError
from chopper_interop.io import inputs
from chopper_interop.result import Result
from chopper_interop.schemas import hub
from chopper_interop.testing import samples
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.registry import Converter

OPTION_TYPES = ("bool", "int", "float", "str")
"""Types of options, alone or with ``| None``: the commands can convert a text to each of them."""

UNITS = frozenset(
    (
        *("ns", "us", "ms", "s", "hz", "mhz", "ghz"),
        *("w", "mw", "kw", "j", "mj", "kj", "wh", "c", "v", "mv", "a"),
        *("b", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "gbps"),
        *("flop", "flops", "gflops", "tflops"),
        *("share", "ratio", "percent", "factor"),
    )
)
"""Endings of names that give a unit, as in ``busy_ns``; a name with ``_per_`` has one too."""

_UNIT_IN_ROW = frozenset(("mean", "mean_uncertainty", "median", "min", "max", "rise", "amount"))
"""Columns whose unit stands in the column ``unit`` of each row."""

_TIME_WORDS = re.compile(r"(^|_)(time|dur|duration|latency|span|gap|delay|wait)$")
_ROUND_TRIP_IGNORES = ("meta",)
"""Sources and issues differ between a trace and what is read back of it."""


def check_converter(converter: Converter, sample: Path) -> None:
    """Raise `AssertionError` unless a converter keeps the contract on a sample.

    It must recognise its sample and nothing else, never raise while it does so, have options that
    are keyword-only and typed, and read a valid trace, the same each time. For a damaged sample it
    must raise `ChopperError` or count the losses. If it writes too, it must read back what it
    wrote.

    Parameters
    ----------
    converter
        The converter; it need not be registered.
    sample
        A small file of its format, or a folder of files that belong together. For a converter
        that only writes, any file that some installed converter reads.

    Examples
    --------
    >>> from dataclasses import replace
    >>> from pathlib import Path
    >>> import chopper_interop as ci
    >>> from chopper_interop.testing import check_converter
    >>> from chopper_interop.testing.samples import tiny_trace
    >>> sample = Path("tiny.json.gz")
    >>> issues = ci.write(tiny_trace(), sample)
    >>> kineto = ci.formats()["kineto"]
    >>> check_converter(kineto, sample)
    >>> check_converter(replace(kineto, suffixes=()), sample)
    Traceback (most recent call last):
    AssertionError: it writes but has no suffixes: no file name will choose it
    """
    if not isinstance(sample, Path):
        raise UsageError(
            f"the sample must be a pathlib.Path, and is of type {type(sample).__name__}",
            hint="write it to a file and give its path",
        )
    _check_signatures(converter)
    is_written_alone = converter.read is None and converter.write is not None
    if converter.sniff is not None and not is_written_alone:  # whose sample is of another format
        _check_sniff(converter, sample)
    if converter.confirms is not None:
        _check_confirms(converter, sample)
    if converter.read is None and converter.write is None:
        return
    if converter.read is None:
        _check_writes(converter, samples.any_trace(sample))
        return
    trace = samples.read(converter, sample)
    check_trace(trace)
    _require(bool(trace.meta.sources), "a trace that was read must name its source in meta.sources")
    assert_trace_equal(trace, samples.read(converter, sample))
    _check_damaged(converter, sample, trace)
    if converter.write is not None:
        _check_round_trip(converter, trace)


def check_analysis(analysis: Callable[..., Any], trace: Trace) -> None:
    """Raise `AssertionError` unless an analysis keeps the contract on a trace.

    Its options must be keyword-only and typed. It must return a `Result`, the same each time,
    print nothing and leave the trace unchanged. Names of figures must end in their unit (`UNITS`),
    and the result must be valid JSON. For a trace without nodes it must return a `Result` too, or
    raise `ChopperError`. Its conventions must be the same then, as they are definitions; remarks
    on one result are notes.

    Parameters
    ----------
    analysis
        The function.
    trace
        A trace for which it has results.
    """
    _check_options(analysis, positional=1)
    before = _state(trace)
    first = _quiet_result(analysis, trace)
    second = _quiet_result(analysis, trace)
    _require(isinstance(first, Result), f"it returns a {type(first).__name__}, not a Result")
    _require(_state(trace) == before, "it changes the trace")
    _require(bool(first.analysis), "its result does not name the analysis")
    try:
        json.dumps(first.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"its result is not valid JSON: {error}") from error
    _require(
        first.rows.equals(second.rows) and first.to_dict() == second.to_dict(),
        "called twice, it returns different results",
    )
    _check_units(first)
    texts = [*first.notes.values(), *first.conventions.values()]
    _require(all(isinstance(text, str) for text in texts), "its notes or conventions are not texts")
    with contextlib.suppress(ChopperError):
        empty = _quiet_result(analysis, samples.empty_trace())
        _require(isinstance(empty, Result), "for a trace without nodes it returns no Result")
        _require(
            empty.conventions == first.conventions,
            "its conventions depend on the trace: remarks on one result belong into notes",
        )


def _state(trace: Trace) -> tuple[str, list[bytes]]:
    """Metadata, and digests of the tables and of the text of arguments: far faster than to render all that."""
    contents = [pa.py_buffer(buffer) for buffer in trace.text.buffers]
    for name in hub.TABLES:
        table = getattr(trace, name)
        stream = pa.BufferOutputStream()
        with pa.ipc.new_stream(stream, table.schema) as writer:
            writer.write_table(table)
        contents.append(stream.getvalue())
    return repr(trace.meta), [hashlib.sha256(content).digest() for content in contents]


def _check_signatures(converter: Converter) -> None:
    _require(bool(converter.name and converter.description), "it lacks a name or a description")
    _require(
        bool(converter.read or converter.write or converter.not_read_because),
        "it neither reads nor writes nor says why it does not read",
    )
    _require(
        converter.read is None or converter.sniff is not None,
        "it reads but has no sniff: no file of its format will be found",
    )
    _require(
        converter.write is None or bool(converter.suffixes),
        "it writes but has no suffixes: no file name will choose it",
    )
    if converter.read is not None:
        _check_options(converter.reader, positional=1)
    if converter.write is not None:
        _check_options(converter.writer, positional=2)


def _check_options(function: Callable[..., Any], positional: int) -> None:
    """Check that the commands can list the options and convert texts to their types."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[positional:]:
        option = f"{function.__name__}({parameter.name})"
        _require(parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{option} must be keyword-only")
        _require(parameter.default is not inspect.Parameter.empty, f"{option} must have a default")
        declared = _type_names(parameter.annotation)
        convertible = declared <= {*OPTION_TYPES, "None"} or declared in (
            {"Trace", "None"},
            {"Runs", "None"},
        )
        if parameter.default is not None:  # the commands convert a text to the type of the default
            convertible = type(parameter.default).__name__ in OPTION_TYPES
        _require(
            bool(declared) and convertible,
            f"{option} must be of {', '.join(OPTION_TYPES)}, or one of them or None, not {sorted(declared)}",
        )


def _type_names(annotation: Any) -> set[str]:
    if annotation is inspect.Parameter.empty:
        return set()
    text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    if not isinstance(annotation, str | type):  # a union of types
        text = str(annotation)
    return {part.strip().strip("'\"") for part in text.split("|")}


def _check_sniff(converter: Converter, sample: Path) -> None:
    sniff = converter.sniff
    assert sniff is not None  # noqa: S101 - for the type checker
    recognised = [path for path in samples.files(sample) if sniff(inputs.head(path))]
    _require(bool(recognised), f"it does not recognise {sample}")
    for path in recognised:
        as_stated = converter.json in (None, registry.is_json(inputs.head(path)))
        _require(as_stated, f"json={converter.json} does not hold for {path}")
    for content, head in samples.FOREIGN.items():
        _require(not sniff(head), f"it takes {content} for its format")
    head = inputs.head(recognised[0])
    size = 0
    try:
        for size in range(0, len(head), max(1, len(head) // 50)):
            sniff(head[:size])
    except Exception as error:
        raise AssertionError(f"sniff raises {error!r} at the first {size} bytes") from error


def _check_confirms(converter: Converter, sample: Path) -> None:
    confirms = converter.confirms
    assert confirms is not None  # noqa: S101 - for the type checker
    confirmed = [path for path in samples.files(sample) if confirms(path, inputs.head(path))]
    _require(bool(confirmed), f"it does not confirm {sample}")
    head = inputs.head(confirmed[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        for content, data in {
            **samples.FOREIGN,
            "the half of its sample": head[: len(head) // 2],
        }.items():
            path.write_bytes(data)
            try:
                is_confirmed = confirms(path, data)
            except Exception as error:
                raise AssertionError(f"confirms raises {error!r} at {content}") from error
            _require(not is_confirmed or content not in samples.FOREIGN, f"it confirms {content}")
            _require(list(Path(folder).iterdir()) == [path], f"it leaves files next to {content}")


def _check_damaged(converter: Converter, sample: Path, complete: Trace) -> None:
    """Check that damaged samples raise an error of one line, or are read with losses counted."""
    for content, copy, is_cut in samples.damaged_copies(converter, sample):
        try:
            trace = samples.read(converter, copy)
        except ChopperError as error:
            _require("\n" not in str(error), f"{content}: its message has several lines: {error}")
            continue
        except Exception as error:
            raise AssertionError(
                f"{content}: it raises {error!r} instead of a ChopperError"
            ) from error
        try:
            check_trace(trace)
        except AssertionError as error:
            raise AssertionError(f"{content}: {error}") from error
        if is_cut:
            lost = samples.row_count(complete) - samples.row_count(trace)
            reported = any(i.severity.value in ("loss", "error") for i in trace.meta.issues)
            _require(
                not lost or reported, f"{content}: {lost} rows are lost and no issue reports it"
            )


def _check_writes(converter: Converter, trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = _write_trace(converter, trace, Path(folder))
        expected = "folder" if converter.folder else "file"
        _require(path.is_dir() == converter.folder, f"it wrote no {expected}")


def _check_round_trip(converter: Converter, trace: Trace) -> None:
    """Check that it reads what it writes, and that a second round trip changes nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path, reported = _write_trace(converter, trace, Path(folder) / "1")
        once = samples.read(converter, path)
        check_trace(once)
        path, _ = _write_trace(converter, once, Path(folder) / "2")
        twice = samples.read(converter, path)
    _require(
        reported or samples.events(once) == samples.events(trace),
        "nodes read back differ from those written: in rank, name, start or duration",
    )
    assert_trace_equal(once, twice, ignore=_ROUND_TRIP_IGNORES)


def _write_trace(converter: Converter, trace: Trace, folder: Path) -> tuple[Path, bool]:
    """Write a trace; return the path, and True if the writer reported issues.

    Nothing else may appear in the folder. A format with one file for each rank puts the rank
    before its suffix; the path is the folder then.
    """
    folder.mkdir(exist_ok=True)
    path = folder / f"written{converter.suffixes[0]}"
    reported = bool(converter.writer(trace, path))
    files = list(folder.iterdir())
    parts = [p for p in files if p.name.startswith("written.") and p != path]
    several = path not in files and any(p.name.endswith(path.suffix) for p in parts)
    extra = [p.name for p in files if p != path and not (several and p in parts)]
    _require(several or path in files, f"it wrote no {path.name}")
    _require(not extra, f"it left {extra} next to its output")
    return folder if several else path, reported


def _quiet_result(analysis: Callable[..., Any], trace: Trace) -> Any:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        result = analysis(trace)
    _require(not printed.getvalue(), f"it prints {printed.getvalue()[:60]!r}")
    return result


def _check_units(result: Result) -> None:
    import pyarrow as pa

    has_unit_column = "unit" in result.rows.column_names  # for quantities of many units
    for field in result.rows.schema:
        measured = _is_measured(field.name, field.type)
        in_row = has_unit_column and field.name in _UNIT_IN_ROW
        _check_unit("column", field.name, measured and not in_row)
    for name, value in result.summary.items():
        kind = pa.float64() if isinstance(value, float) else pa.null()
        kind = pa.int64() if isinstance(value, int) and not isinstance(value, bool) else kind
        _check_unit("summary", name, _is_measured(name, kind))


def _is_measured(name: str, kind: pa.DataType) -> bool:
    """True if a figure has a unit: it is a decimal, or a whole number named as a time."""
    import pyarrow as pa

    return pa.types.is_floating(kind) or (
        pa.types.is_integer(kind) and _TIME_WORDS.search(name) is not None
    )


def _check_unit(where: str, name: str, measured: bool) -> None:  # noqa: FBT001
    last = name.lower().rsplit("_", 1)[-1]
    _require(
        not measured or last in UNITS or "_per_" in name,
        f"{where} {name!r} has no unit: end it in one of {', '.join(sorted(UNITS))}",
    )


def _require(holds: bool, message: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(message)


def check_trace(trace: Trace) -> None:
    """Raise `AssertionError`, with the row, if a trace violates an invariant of the hub.

    Checked are what `invariants.check` checks, and that every event of a source became a node or was counted.
    """
    try:
        invariants.check(trace)
    except SchemaError as error:
        raise AssertionError(str(error)) from error
    check_events(trace)


def check_events(trace: Trace) -> None:
    """Raise `AssertionError` unless every event of every source is a node or counted as an issue."""
    for source in trace.meta.sources:
        counted = sum(i.count for i in trace.meta.issues if i.events and i.source == source.path)
        if source.events != source.nodes + counted:
            raise AssertionError(
                f"{source.path}: {source.events} events are not {source.nodes} nodes + {counted} "
                "counted by issues with `events`"
            )
    paths = {source.path for source in trace.meta.sources}
    lost = [i for i in trace.meta.issues if i.events and i.source not in paths]
    if lost and paths:
        raise AssertionError(
            f"issue {lost[0].code} counts events of {lost[0].source!r}, which is no source"
        )

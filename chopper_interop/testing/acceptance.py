"""What a converter or an analysis must do to be one: the tests that outsiders run on theirs."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chopper_interop.errors import ChopperError
from chopper_interop.files import inputs
from chopper_interop.result import Result
from chopper_interop.testing import samples
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.testing.rendering import dump
from chopper_interop.testing.validity import check_trace

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from chopper_interop.registry import Converter
    from chopper_interop.trace import Trace

OPTION_TYPES = ("bool", "int", "float", "str")
"""Types that options may have, alone or with ``| None``: what the commands can make of a text."""

UNITS = frozenset(
    (
        *("ns", "us", "ms", "s", "hz", "mhz", "ghz"),
        *("w", "mw", "kw", "j", "mj", "kj", "wh", "c", "v", "mv", "a"),
        *("b", "bytes", "kb", "mb", "gb", "kib", "mib", "gib", "gbps"),
        *("flop", "flops", "gflops", "tflops"),
        *("share", "ratio", "percent", "factor"),
    )
)
"""What a name ends in to tell its unit, as in ``busy_ns``; or it holds ``_per_``."""

_IN_ANY_UNIT = frozenset(("mean", "mean_uncertainty", "median", "least", "most", "rise", "amount"))
"""Columns whose unit a column ``unit`` tells, row by row."""

_TIME_WORDS = re.compile(r"(^|_)(time|dur|duration|latency|span|gap|delay|wait)$")
_ROUND_TRIP_IGNORES = ("meta",)


def check_converter(converter: Converter, sample: Path) -> None:
    """Raise `AssertionError` unless a converter keeps the contract, shown on a sample.

    It must recognise its sample and nothing else, never fail while it looks, have options that
    are keyword-only and typed, read a valid trace and the same one each time, answer to broken
    samples by `ChopperError` or by counted losses, and, if it writes too, read back what it
    wrote.

    Parameters
    ----------
    converter
        The converter; it need not be registered.
    sample
        A small file of its format, or a folder of files that belong together. For a converter
        that only writes, any file that some installed converter reads.
    """
    _check_signatures(converter)
    if converter.sniff is not None:
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
    _require(bool(trace.meta.sources), "a trace that was read names its source in meta.sources")
    assert_trace_equal(trace, samples.read(converter, sample))
    _check_broken(converter, sample, trace)
    if converter.write is not None:
        _check_round_trip(converter, trace)


def check_analysis(analysis: Callable[..., Any], trace: Trace) -> None:
    """Raise `AssertionError` unless an analysis keeps the contract, shown on a trace.

    Its options must be keyword-only and typed. It must give a `Result`, the same one each time,
    print nothing and leave the trace as it was. Names of figures must tell their unit (`UNITS`),
    and the result must go into JSON. Of a trace without nodes it must give a `Result` too, or
    raise `ChopperError`; its conventions are the same then, as they are definitions: what is of
    one answer is a note.

    Parameters
    ----------
    analysis
        The function.
    trace
        A trace that it has something to say about.
    """
    _check_options(analysis, positional=1)
    before = dump(trace)
    first = _quiet_result(analysis, trace)
    second = _quiet_result(analysis, trace)
    _require(isinstance(first, Result), f"it gives a {type(first).__name__}, not a Result")
    _require(dump(trace) == before, "it changes the trace that it is asked about")
    _require(bool(first.analysis), "its result does not say the name of the analysis")
    try:
        json.dumps(first.to_dict(), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise AssertionError(f"its result does not go into JSON: {error}") from error
    _require(
        first.rows.equals(second.rows) and first.to_dict() == second.to_dict(),
        "asked twice it answers differently",
    )
    _check_units(first)
    said = [*first.notes.values(), *first.conventions.values()]
    _require(all(isinstance(text, str) for text in said), "its notes or conventions are no texts")
    with contextlib.suppress(ChopperError):
        nothing = _quiet_result(analysis, samples.nothing())
        _require(
            isinstance(nothing, Result),
            "of a trace without nodes it gives no Result",
        )
        _require(
            nothing.conventions == first.conventions,
            "its conventions depend on the trace: what is of one answer goes into notes",
        )


def _check_signatures(converter: Converter) -> None:
    _require(bool(converter.name and converter.description), "it has no name or no description")
    _require(
        bool(converter.read or converter.write or converter.not_read_because),
        "it neither reads nor writes nor says why it does not read",
    )
    _require(
        converter.read is None or converter.sniff is not None,
        "it reads but has no sniff: nothing of its format will be found",
    )
    _require(
        converter.write is None or bool(converter.suffixes),
        "it writes but has no suffixes: no file name will choose it",
    )
    if converter.read is not None:
        _check_options(converter.read, positional=1)
    if converter.write is not None:
        _check_options(converter.write, positional=2)


def _check_options(function: Callable[..., Any], positional: int) -> None:
    """Options must be such that the commands can list them and make them of texts."""
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[positional:]:
        what = f"{function.__name__}({parameter.name})"
        _require(parameter.kind is inspect.Parameter.KEYWORD_ONLY, f"{what} must be keyword-only")
        _require(parameter.default is not inspect.Parameter.empty, f"{what} must have a default")
        stated = _type_names(parameter.annotation)
        makeable = stated <= {*OPTION_TYPES, "None"} or stated in (
            {"Trace", "None"},
            {"Runs", "None"},
        )
        if parameter.default is not None:  # the commands make of a text what the default is
            makeable = type(parameter.default).__name__ in OPTION_TYPES
        _require(
            bool(stated) and makeable,
            f"{what} must be of {', '.join(OPTION_TYPES)}, or that or None, not {sorted(stated)}",
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
    found = [path for path in samples.files(sample) if sniff(inputs.head(path))]
    _require(bool(found), f"it does not recognise {sample}")
    for what, head in samples.FOREIGN.items():
        _require(not sniff(head), f"it takes {what} for its format")
    head = inputs.head(found[0])
    size = 0
    try:
        for size in range(0, len(head), max(1, len(head) // 50)):
            sniff(head[:size])
    except Exception as error:
        raise AssertionError(f"sniff raises {error!r} at the first {size} bytes") from error


def _check_confirms(converter: Converter, sample: Path) -> None:
    confirms = converter.confirms
    assert confirms is not None  # noqa: S101 - for the type checker
    found = [path for path in samples.files(sample) if confirms(path, inputs.head(path))]
    _require(bool(found), f"it does not confirm {sample}")
    head = inputs.head(found[0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sample"
        for what, data in {
            **samples.FOREIGN,
            "the half of its sample": head[: len(head) // 2],
        }.items():
            path.write_bytes(data)
            try:
                taken = confirms(path, data)
            except Exception as error:
                raise AssertionError(f"confirms raises {error!r} at {what}") from error
            _require(not taken or what not in samples.FOREIGN, f"it confirms {what}")
            _require(list(Path(folder).iterdir()) == [path], f"it leaves something beside {what}")


def _check_broken(converter: Converter, sample: Path, whole: Trace) -> None:
    """Cut and garbled samples: refused in a line, or read with what is missing counted."""
    for what, broken, cut in samples.broken_copies(converter, sample):
        try:
            trace = samples.read(converter, broken)
        except ChopperError as error:
            _require("\n" not in str(error), f"{what}: its message has several lines: {error}")
            continue
        except Exception as error:
            raise AssertionError(
                f"{what}: it raises {error!r} instead of a ChopperError"
            ) from error
        try:
            check_trace(trace)
        except AssertionError as error:
            raise AssertionError(f"{what}: {error}") from error
        if cut:
            gone = sum(samples.content(whole)) - sum(samples.content(trace))
            told = [i for i in trace.meta.issues if i.severity.value in ("loss", "error")]
            _require(not gone or bool(told), f"{what}: {gone} rows are lost and no issue tells it")


def _check_writes(converter: Converter, trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, _ = _written(converter, trace, Path(folder))
        _require(path.is_dir() == converter.folder, f"it wrote no {samples.kind_of(converter)}")


def _check_round_trip(converter: Converter, trace: Trace) -> None:
    """What it writes it must read; and once through, nothing changes any more."""
    with tempfile.TemporaryDirectory() as folder:
        path, told = _written(converter, trace, Path(folder) / "1")
        once = samples.read(converter, path)
        check_trace(once)
        path, _ = _written(converter, once, Path(folder) / "2")
        twice = samples.read(converter, path)
    _require(
        told or samples.events(once) == samples.events(trace),
        "what it read of what it wrote has other nodes: rank, name, start or duration differ",
    )
    assert_trace_equal(once, twice, ignore=_ROUND_TRIP_IGNORES)


def _written(converter: Converter, trace: Trace, folder: Path) -> tuple[Path, bool]:
    """Where a trace was written, and whether the writer told of something that it left out.

    Nothing else may appear in the folder. A format of one file for each rank puts what tells them apart before its suffix: then it is
    the folder that was written.
    """
    assert converter.write is not None  # noqa: S101 - for the type checker
    folder.mkdir(exist_ok=True)
    path = folder / f"written{converter.suffixes[0]}"
    told = bool(converter.write(trace, path))
    made = list(folder.iterdir())
    parts = [p for p in made if p.name.startswith("written.") and p != path]
    several = path not in made and any(p.name.endswith(path.suffix) for p in parts)
    left = [p.name for p in made if p != path and not (several and p in parts)]
    _require(several or path in made, f"it wrote no {path.name}")
    _require(not left, f"it left {left} beside what it wrote")
    return folder if several else path, told


def _quiet_result(analysis: Callable[..., Any], trace: Trace) -> Any:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        result = analysis(trace)
    _require(not said.getvalue(), f"it prints {said.getvalue()[:60]!r}")
    return result


def _check_units(result: Result) -> None:
    import pyarrow as pa

    told = "unit" in result.rows.column_names  # of quantities of many units, a column says it
    for field in result.rows.schema:
        measured = _is_measured(field.name, field.type)
        _check_unit("column", field.name, measured and not (told and field.name in _IN_ANY_UNIT))
    for name, value in result.summary.items():
        kind = pa.float64() if isinstance(value, float) else pa.null()
        kind = pa.int64() if isinstance(value, int) and not isinstance(value, bool) else kind
        _check_unit("summary", name, _is_measured(name, kind))


def _is_measured(name: str, kind: pa.DataType) -> bool:
    """Whether a figure is a quantity with a unit: a decimal, or a whole number named as a time."""
    import pyarrow as pa

    return pa.types.is_floating(kind) or (
        pa.types.is_integer(kind) and _TIME_WORDS.search(name) is not None
    )


def _check_unit(where: str, name: str, measured: bool) -> None:  # noqa: FBT001
    last = name.lower().rsplit("_", 1)[-1]
    _require(
        not measured or last in UNITS or "_per_" in name,
        f"{where} {name!r} does not tell its unit: end it in one of {', '.join(sorted(UNITS))}",
    )


def _require(holds: bool, message: str) -> None:  # noqa: FBT001
    if not holds:
        raise AssertionError(message)

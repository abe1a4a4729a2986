# ruff: noqa: S608
"""Sound inputs in which one field is missing, there twice, or has a value that nobody expects.

``python tests/support/field_changes.py COUNT [FORMAT …]`` tries so many of each seed, or all of them if COUNT is 0,
with `chopper-convert`, `chopper-analyze` and `chopper-check`, and says which of them did not end as they must.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import resource
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
import zlib
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import mutations
import pyarrow as pa
import pyarrow.parquet as pq
from kineto_files import BASE, call, kernel, span
from protobuf_wire import framed, varint
from seeds import Seed, seeds

import chopper_interop as ci
from chopper_interop import cli

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Change = "tuple[str, Callable[[], bytes]]"
"""A change: what is done, and a function that makes the changed input."""
LONG = "x" * 70_000
"""A text that is longer than 16 bits count."""
JSON_VALUES = (
    "null", "true", '""', '"x"', '"-1"', '"1.5"', "-1", "0", "1.5", "1e999", "-1e999", "NaN", "-Infinity", "1e300",
    "2147483648", "4294967296", "9007199254740993", "9223372036854775807", "9223372036854775808", "1e18",
    "-9223372036854775808", "18446744073709551615", "9" * 40, "[]", "{}", "[[]]", "[null]", "[-1]", '{"a": 1}',
    '{"value": []}', r'"\ud800"', r'"\u0000"', '"../../x"', '"a\\nb"', f'"{LONG}"',
)  # fmt: skip
CELLS = (
    "", "x", "-1", "0", "1.5", "1e999", "-inf", "nan", "N/A", "1e300", "2147483648", "4294967296", "9007199254740993",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "18446744073709551615", "9" * 40, "0x7f",
    "1 2", '"', "\0", "\u0660", "../../x", "[]", "{", "True", LONG,
)  # fmt: skip
SQL_VALUES = (
    None, -1, 0, 1.5, float("inf"), 1e300, 2**31, 2**32, 2**53 + 1, 2**63 - 1, -(2**63), "", "x", "-1", "1e999", "nan",
    "9" * 40, "{}", "[]", "{", '{"a": [null]}', "\ud7ff\0", b"", b"\xff\xfe", LONG, "../../x",
)  # fmt: skip
VARINTS = (
    0, 1, 2, 127, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
TEXTS = (
    b"", b"x", b"\xff\xfe", b"\0", b"-1", b"1e999", b"[", b"{}", b"../../x", b"\x08\x96\x01", LONG.encode(),
)  # fmt: skip
COLUMN_VALUES: dict[str, tuple[Any, ...]] = {
    "int": (None, -1, 0, 1, 2**7 - 1, 2**15 - 1, 2**31 - 1, -(2**31), 2**53 + 1, 2**62, 2**63 - 1, -(2**63)),
    "float": (None, -1.0, 0.0, float("nan"), float("inf"), float("-inf"), 1e300, 5e-324),
    "text": (None, "", "x", "\0", "-1", "{", '{"a": 1e999}', "../../x", LONG),
}  # fmt: skip
TOKEN = re.compile(r'"(?:[^"]|"")*"|[^,\s:;|\[\](){}"\'=<>]+')
"""A cell of a table of texts."""
COLUMN_TYPES = (pa.string(), pa.float64(), pa.int8(), pa.list_(pa.int64()), pa.binary(), pa.bool_())
MAX_CPU_S = 20
"""Processor time of one input with all commands (chosen: a hundred times what a sound one takes)."""
MAX_GROWTH_MB = 512
"""Megabytes by which one input may raise the most memory that the process ever had (chosen: several texts of `LONG`)."""
NEED_MORE = {"compare", "sweep", "what_if", "findings"}
"""Analyses that need another job or a change; those that other analyses run."""


class Made(NamedTuple):
    """A changed input: its name, what was done to it, and a function that writes it and what lies next to it."""

    seed: Seed
    how: str
    write: Callable[[Path], None]


# --- changes of formats ---


def json_spans(text: str, at: int) -> Iterator[tuple[tuple[str, ...], int, int, int]]:
    """Yield path, begin of the key or value, begin of the value, and end, of each value in a JSON value at a place."""
    decoder = json.JSONDecoder(strict=False)

    def blank(i: int) -> int:
        while text[i] in " \t\r\n,:":
            i += 1
        return i

    def walk(path: tuple[str, ...], first: int, i: int) -> Iterator[Any]:
        nonlocal end
        begin = i
        if text[i] in "[{":
            close = "]" if text[i] == "[" else "}"
            i = blank(i + 1)
            while text[i] != close:
                member, name = i, "*"
                if close == "}":
                    name, i = decoder.raw_decode(text, i)
                    i = blank(i)
                yield from walk((*path, name), member, i)
                i = blank(end)
            end = i + 1
        else:
            _, end = decoder.raw_decode(text, i)
        yield path, first, begin, end

    end = at
    yield from walk((), at, at)


def of_json(text: str) -> Iterator[Change]:
    """Change each member of objects, the first and the last of the same path, and all of them."""
    places: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}
    at = 0
    while (bracket := re.compile(r"[\[{]").search(text, at)) is not None:
        try:
            spans = list(json_spans(text, bracket.start()))
        except (ValueError, IndexError):
            at = bracket.end()
            continue
        for path, *place in spans:
            places.setdefault(path, []).append((place[0], place[1], place[2]))
        at = spans[-1][-1]
    for path, own in places.items():
        for which, chosen in {"first": own[:1], "last": own[-1:], "all": own}.items():
            if len(own) == 1 and which != "first":
                continue
            name = f"{'.'.join(path)} {which}"
            for value in JSON_VALUES:
                new = [(b, e, value) for _, b, e in chosen]
                yield f"{name} = {value[:40]}", partial(replaced, text, new)
            cuts = [(f, e + (text[e : e + 1] == ","), "") for f, _, e in chosen]
            yield f"{name} absent", partial(replaced, text, cuts)
            twice = [(e, e, f", {text[f:e]}") for f, _, e in chosen]
            yield f"{name} twice", partial(replaced, text, twice)


def replaced(text: str, edits: list[tuple[int, int, str]]) -> bytes:
    """Replace ranges of a text that do not overlap; of nested ones the outer are left out."""
    parts, at = [], 0
    for begin, end, new in sorted(edits):
        if begin >= at:
            parts += [text[at:begin], new]
            at = end
    return "".join([*parts, text[at:]]).encode("utf-8", "surrogatepass")


def of_text(text: str) -> Iterator[Change]:
    """Change each cell of a line, and each column of lines with the same number of cells."""
    lines, at = [], 0
    for line in text.splitlines(keepends=True):
        lines.append([(m.start() + at, m.end() + at) for m in TOKEN.finditer(line)])
        at += len(line)
    columns: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for cells in lines:
        for k, cell in enumerate(cells):
            columns.setdefault((len(cells), k), []).append(cell)
    for (count, k), own in columns.items():
        for which, chosen in {"first": own[:1], "last": own[-1:], "all": own}.items():
            if len(own) == 1 and which != "first":
                continue
            name = f"cell {k} of {count} {which} ({text[slice(*chosen[0])][:20]})"
            for value in CELLS:
                new = [(b, e, value) for b, e in chosen]
                yield f"{name} = {value[:40]!r}", partial(replaced, text, new)
            cuts = [(b, e + 1, "") for b, e in chosen]
            yield f"{name} absent", partial(replaced, text, cuts)
            twice = [(b, b, text[b : e + 1]) for b, e in chosen]
            yield f"{name} twice", partial(replaced, text, twice)


def of_database(data: bytes) -> Iterator[Change]:
    """Change each column of each table, of one row and of all; leave out columns and tables, double rows."""
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        tables = [r[0] for r in base.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        columns = {t: base.execute(f'PRAGMA table_info("{t}")').fetchall() for t in tables}
    for table, own in columns.items():
        names = [column[1] for column in own]
        rows = {"last": f'rowid = (SELECT max(rowid) FROM "{table}")', "all": "1"}
        copy = f'CREATE TABLE made AS SELECT {{}} FROM "{table}"; DROP TABLE "{table}"; ALTER TABLE made RENAME TO "{table}"'
        double = f'; INSERT INTO "{table}" SELECT * FROM "{table}"'
        scripts = {
            "absent": f'DROP TABLE "{table}"',
            "empty": f'DELETE FROM "{table}"',
            "rows twice": copy.format("*") + double,
        }
        for column in names:
            rest = ", ".join(f'"{name}"' for name in names if name != column)
            scripts[f"{column} absent"] = copy.format(rest or "1")
        for how, script in scripts.items():
            yield f"{table} {how}", partial(edited, data, script)
        for column, value, (which, where) in product(names, SQL_VALUES, rows.items()):
            update = f'UPDATE "{table}" SET "{column}" = ? WHERE {where}', value
            how = f"{table} {column} {which} = {str(value)[:40]!r}"
            yield how, partial(edited, data, copy.format("*"), update)


def edited(data: bytes, script: str, update: tuple[str, Any] | None = None) -> bytes:
    """Run statements on a database; the same if they are not possible."""
    with contextlib.closing(sqlite3.connect(":memory:")) as base:
        base.deserialize(data)
        with contextlib.suppress(sqlite3.Error):
            base.execute("PRAGMA foreign_keys = OFF")
            base.executescript(script)
            if update:
                base.execute(update[0], (update[1],))
            base.commit()
        return base.serialize()


Field = tuple[int, int, Any]
"""Number, wire type and value (of a message its fields) of a field of a protobuf."""


def taken(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number; with the place behind it."""
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return value, at


def parsed(data: bytes) -> list[Field] | None:
    """Parse a message, texts that can be messages too; None if it is none."""
    fields, at = [], 0
    try:
        while at < len(data):
            tag, at = taken(data, at)
            number, wire = tag >> 3, tag & 7
            value: Any
            if wire == 0:
                value, at = taken(data, at)
            elif wire == 2:
                size, at = taken(data, at)
                value, at = data[at : at + size], at + size
                value = (parsed(value) if len(value) > 1 else None) or value
            elif wire in (1, 5):
                size = 8 if wire == 1 else 4
                value, at = data[at : at + size], at + size
            else:
                return None
            if not number or at > len(data):
                return None
            fields.append((number, wire, value))
    except IndexError:
        return None
    return fields


def encoded(fields: list[Field]) -> bytes:
    """Encode a message."""
    out = bytearray()
    for number, wire, value in fields:
        out += varint(number << 3 | wire)
        if wire == 0:
            out += varint(value)
        else:
            text = encoded(value) if isinstance(value, list) else value
            out += varint(len(text)) + text if wire == 2 else text
    return bytes(out)


def of_message(fields: list[Field]) -> Iterator[tuple[str, list[Field]]]:
    """Change each field of a message and of those in it."""
    for k, (number, wire, value) in enumerate(fields):

        def made(*new: Field, k: int = k) -> list[Field]:
            return [*fields[:k], *new, *fields[k + 1 :]]

        own: list[tuple[str, list[Field]]] = [
            ("absent", made()),
            ("twice", made(*fields[k : k + 1] * 2)),
        ]
        own += [(f"= {v}", made((number, 0, v))) for v in VARINTS]
        own += [(f"= {t[:20]!r}", made((number, 2, t))) for t in TEXTS]
        own += [
            (f"= {t.hex()} fixed", made((number, 1, t)))
            for t in (b"\xff" * 8, b"\0" * 6 + b"\xf0\x7f")
        ]
        yield from ((f"{number} {how}", new) for how, new in own)
        if isinstance(value, list):
            yield from (
                (f"{number}.{how}", made((number, wire, new))) for how, new in of_message(value)
            )


def of_perfetto(data: bytes) -> Iterator[Change]:
    """Change each field of each packet."""
    yield from ((how, partial(encoded, new)) for how, new in of_message(parsed(data) or []))


def of_et(data: bytes) -> Iterator[Change]:
    """Change each field of each of the messages, which stand behind their lengths."""
    own = messages(data)
    for k, one in enumerate(own):
        for how, new in of_message(parsed(one) or []):
            yield f"message {k} {how}", partial(_with_message, own, k, new)


def _with_message(own: list[bytes], number: int, new: list[Field]) -> bytes:
    return framed(*own[:number], encoded(new), *own[number + 1 :])


def messages(data: bytes) -> list[bytes]:
    """Messages that stand behind their lengths."""
    records, at = [], 0
    while at < len(data):
        size, at = taken(data, at)
        records.append(data[at : at + size])
        at += size
    return records


# --- the own tables ---


def trace_folder(folder: Path) -> Path:
    """Write a folder of Parquet with rows in all its tables."""
    events = [
        span("user_annotation", "ProfilerStep#1", 0, 90),
        span("cpu_op", "aten::mm", 1, 8, args={"Input Dims": [[2, 3], [3, 4]], "n": 7}),
        call("hipLaunchKernel", 2, 5, 1), kernel("gemm", 20, 9, 1),
        call("hipLaunchKernel", 12, 5, 2), kernel("ncclDevKernel_AllReduce", 30, 9, 2, collname="allreduce"),
        call("hipDeviceSynchronize", 31, 20, 3),
        {"ph": "C", "name": "bytes", "ts": 5, "pid": 1, "args": {"value": 3}},
    ]  # fmt: skip
    info = {"distributedInfo": {"rank": 0, "world_size": 2}, "baseTimeNanoseconds": BASE}
    (folder / "rank0.json").write_text(
        json.dumps({"schemaVersion": 1, "traceEvents": events, **info})
    )
    ci.write(ci.read(folder / "rank0.json", name="job"), folder / "a.parquet")
    return folder / "a.parquet"


def of_parquet(source: Path) -> Iterator[tuple[str, Callable[[Path], None]]]:
    """Change each column of each table, its type, and the description of the job."""
    for file in sorted(p for p in source.rglob("*") if p.is_file()):
        name = file.relative_to(source)
        made = (
            of_table(pq.read_table(file))
            if file.suffix == ".parquet"
            else of_json(file.read_text())
        )
        yield from (
            (f"{name} {how}", partial(_parquet_with, source, name, new)) for how, new in made
        )
        yield f"{name} absent", partial(_parquet_with, source, name, None)


def of_table(table: pa.Table) -> Iterator[tuple[str, Callable[[], pa.Table]]]:
    """Change each column, in its first row and in all, and the rows."""
    count = table.num_rows
    yield "empty", partial(table.slice, 0, 0)
    yield "twice", partial(pa.concat_tables, [table, table])
    yield "backwards", partial(table.take, pa.array(range(count)[::-1], pa.int64()))
    for k, field in enumerate(table.schema):
        column = table.column(k).combine_chunks()
        yield f"{field.name} absent", partial(table.remove_column, k)
        yield f"{field.name} twice", partial(table.append_column, field, column)
        for kind in COLUMN_TYPES:
            yield (
                f"{field.name} of {kind}",
                partial(table.set_column, k, field.name, pa.nulls(count, kind)),
            )
        for value, rows in product(
            COLUMN_VALUES[_values_of(field.type)], {min(1, count), count} - {0}
        ):
            values = [value] * rows + column.to_pylist()[rows:]
            with contextlib.suppress(
                pa.ArrowException, OverflowError
            ):  # the type has no such value
                new = pa.array(values, field.type)
                yield (
                    f"{field.name} in {rows} = {str(value)[:40]!r}",
                    partial(table.set_column, k, field, new),
                )


def _values_of(kind: pa.DataType) -> str:
    if pa.types.is_integer(kind):
        return "int"
    return "float" if pa.types.is_floating(kind) else "text"


def summed(raw: bytes) -> bytes:
    """Correct the sum of a description that was changed, as who means harm would."""
    begin, end = raw.find(b'"content":') + len(b'"content":'), raw.rstrip().rfind(b"}")
    crc32 = zlib.crc32(raw[begin:end].strip())
    return re.sub(rb'("crc32": ?)\d+', rb"\g<1>%d" % crc32, raw)


def _parquet_with(source: Path, name: Path, make: Callable[[], Any] | None, place: Path) -> None:
    shutil.copytree(source, place / "a.parquet")
    target = place / "a.parquet" / name
    if make is None:
        target.unlink()
    elif isinstance(new := make(), bytes):
        target.write_bytes(summed(new))
    else:
        pq.write_table(new, target)


# --- all of them ---


def changes(seed: Seed) -> Iterator[Made]:
    """All changes of a seed's fields."""
    made: Iterator[Change]
    if seed.data.startswith(b"SQLite"):
        made = of_database(seed.data)
    elif seed.format == "perfetto":
        made = of_perfetto(seed.data)
    elif seed.name.endswith(".et"):
        made = of_et(seed.data)
    else:
        made = (of_json if seed.name.endswith(".json") else of_text)(seed.data.decode())
    for how, make in made:
        yield Made(seed, how, partial(_write, seed, make))


def parquet_changes(folder: Path) -> Iterator[Made]:
    """All changes of the own tables, of which the sound ones are written to a folder."""
    seed = Seed("parquet", "a.parquet", b"")
    yield from (Made(seed, how, write) for how, write in of_parquet(trace_folder(folder)))


def chosen(every: Iterator[Made], count: int) -> list[Made]:
    """So many of them, the same each time; all if the count is 0."""
    made = list(every)
    return random.Random(len(made)).sample(made, min(count or len(made), len(made)))  # noqa: S311


def _write(seed: Seed, make: Callable[[], bytes], place: Path) -> None:
    mutations.written(mutations.Mutant(seed, make(), "", -1), place)


# --- what must hold ---


def command(name: str, *arguments: object) -> tuple[int, str, str]:
    """Run a command in this process; its status and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = getattr(cli, f"{name}_main")([str(a) for a in arguments])
    return status, out.getvalue(), err.getvalue()


ANALYSES = sorted(set(ci.analyses()) - NEED_MORE)


def require_handled(made: Made, folder: Path) -> str:
    """Run the commands on a changed input; how it ended.

    Raises
    ------
    AssertionError
        A status, a message, a time or a count that must not be.
    """
    place = folder / "in"
    place.mkdir()
    made.write(place)
    files = list(place.iterdir())
    source = files[0] if len(files) == 1 else place
    options = [a for k, v in made.seed.options.items() for a in ("-O", f"{k}={v}")]
    kept = folder / "kept.parquet"
    status = _run(
        (0, 3, 4, 5, 10), "convert", source, *options, "-o", kept, "-o", folder / "a.pftrace"
    )
    if status:
        assert not kept.exists()
        return f"refused {status}"
    trace = ci.read(kept)
    if made.seed.format != "parquet":  # whose description states its own counts
        mutations.require_balance(trace, made.how)
    outputs = ("a.json", "a.graphml", "et/")
    done = [_run((0, 6), "convert", kept, "-o", f"{folder}/{o}") for o in outputs]
    if done[-1] == 0:
        _run((0,), "check", folder / "et")
    for name in ("a.json", "a.pftrace"):
        if (folder / name).exists():
            _run((0, 4), "convert", folder / name, "-o", folder / "again.parquet")
    _run((0, 9), "analyze", kept, "--json", *ANALYSES)
    return "read"


def _run(allowed: tuple[int, ...], name: str, *arguments: object) -> int:
    status, printed, stderr = command(name, "-q", *arguments)
    shown = " ".join(map(str, (name, *arguments)))
    assert status in allowed, f"{shown}: status {status}: {stderr[:600]}"
    assert "Traceback" not in stderr, stderr
    # chopper-analyze has a line for each analysis that has no data
    assert name == "analyze" or stderr.count("\n") <= 1, f"{shown}: {stderr[:600]}"
    if name == "analyze" and status == 0:
        json.loads(printed, parse_constant=_no_number)
    return status


def _no_number(text: str) -> None:
    raise AssertionError(f"{text} is no JSON")


def tried(made: Made) -> str:
    """Outcome of a changed input, with limits of time and memory."""

    def end(*_: object) -> None:
        raise AssertionError(f"more than {MAX_CPU_S} s of a processor")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.signal(signal.SIGVTALRM, end)
    with tempfile.TemporaryDirectory() as folder:
        signal.setitimer(signal.ITIMER_VIRTUAL, MAX_CPU_S)
        try:
            outcome = require_handled(made, Path(folder))
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert grown < MAX_GROWTH_MB, f"{grown:.0f} MB more"
    return outcome


def main(count: int, formats: list[str]) -> None:
    """Try changes of seeds, and print those that did not end as they must."""
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        groups = [(f"{seed.format} {seed.name}", changes(seed)) for seed in seeds()]
        groups.append(("parquet a.parquet", parquet_changes(Path(folder))))
        for name, every in groups:
            if formats and name.split()[0] not in formats:
                continue
            outcomes: Counter[str] = Counter()
            begin = time.process_time()
            for made in chosen(every, count):
                outcomes[_outcome(name, made)] += 1
            say(f"{name}: {dict(outcomes)}, {time.process_time() - begin:.0f} s")
            total += outcomes
    say(f"all: {dict(total)}")


def _outcome(name: str, made: Made) -> str:
    try:
        return tried(made)
    except Exception as error:  # noqa: BLE001 # whatever comes out is a finding
        say(f"FAILED {name}: {made.how}: {type(error).__name__}: {error}")
        return "failed"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])

"""GPUs that the user describes: a TOML file of ``[[gpu]]`` tables with the fields of `Gpu`.

::

    [[gpu]]
    name = "MI308X"             # words of the name that tools print; "*" is every GPU
    arch = "gfx942"
    cus = 80
    max_mhz = 1420
    bandwidth_gbs = 5300
    power_w = 650
    flop_per_cycle = {bf16 = 2048, f32 = 256}
    achievable = {bf16 = [180.0, 1300]}     # TFLOP/s, and the MHz at which it was measured
    sources = {"" = "data sheet of 2024"}

A row applies to every GPU whose name has the words of `name`; `arch` and `cus`, if given, must agree
(a partition has a part of the units). Of rows whose names contain each other the longer
one counts, and ``*`` only where no other fits; those of one name are distinguished by `cus`. A file
of which no row fits any GPU of the trace is refused, with the names that its GPUs have.

Every field but `name` may be left out. What a row states takes precedence over everything else: the
clock that telemetry or the runtime reports, a power cap, and the product of the table. What it
leaves out is as without the file: from telemetry and the product. `peak_mhz`, the clock at which rates
are stated, is `max_mhz` where it is left out.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

from chopper_interop.errors import ReadError, UsageError
from chopper_interop.io import inputs
from chopper_interop.schemas.gpus import GPU_FIELDS, Gpu

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_TEXTS = ("name", "arch")
_INTEGERS = ("cus", "xccs", "simds_per_cu", "waves_per_simd", "max_mhz", "power_w", "peak_mhz")
_RATES = ("flop_per_cycle", "vector_flop_per_cycle")
_MAX_VALUE = 10**9
"""No figure of a GPU in these units is larger."""
_MAX_BYTES = 1_000_000
"""Larger files are no list of GPUs: a row of all fields has about 1 kB."""
_HINT = "[[gpu]] tables with name and any of " + ", ".join(f for f in GPU_FIELDS if f != "name")


def read_gpus(path: str) -> tuple[Gpu, ...]:
    """Read the GPUs of a file, in its order.

    Parameters
    ----------
    path
        The file; an empty path gives no GPUs.

    Raises
    ------
    UsageError
        It cannot be opened.
    ReadError
        It is not TOML, or a field has an impossible value.
    """
    if not path:
        return ()
    try:
        with inputs.opened(Path(path)) as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise ReadError("this is no list of GPUs: it is too large", path=path, hint=_HINT)
        text = data.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        if isinstance(error, UnicodeDecodeError):
            raise ReadError("it is not UTF-8 text", path=path, hint="save it as UTF-8") from None
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"gpus: cannot be read: {reason}", path=path) from None
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ReadError(f"it is not TOML: {error}", path=path, hint=_HINT) from None
    rows = document.get("gpu")
    if set(document) - {"gpu"} or not isinstance(rows, list) or not rows:
        raise ReadError("it has to be [[gpu]] tables alone", path=path, hint=_HINT)
    gpus = [_gpu(row, path, f"gpu {n}") for n, row in enumerate(rows, 1)]
    _refuse_duplicates(gpus, path)
    return tuple(gpus)


def _refuse_duplicates(gpus: list[Gpu], path: str) -> None:
    seen: set[tuple[str, int]] = set()
    for number, row in enumerate(gpus, 1):
        key = (row.name.lower(), row.cus)
        if key in seen:
            raise ReadError(
                f"{row.name!r} is there twice", path=path, at=f"gpu {number}",
                hint="leave one, or distinguish them by cus",
            )  # fmt: skip
        seen.add(key)


def _gpu(row: Any, path: str, at: str) -> Gpu:
    unknown = sorted(set(row) - set(GPU_FIELDS)) if isinstance(row, dict) else ["no table"]
    if unknown:
        raise ReadError(f"unknown field {unknown[0]!r}", path=path, at=at, hint=_HINT)
    values = {}
    for name, value in row.items():
        checked = _checked_value(name, value)
        if checked is None:
            message = f"{name} cannot be {_shortened(value)}"
            raise ReadError(message, path=path, at=at, hint=_expected(name))
        values[name] = checked
    if not values.get("name", "").strip():
        raise ReadError("a GPU without a name", path=path, at=at, hint='name = "*" is every GPU')
    return Gpu(**values)


def _checked_value(name: str, value: Any) -> Any:
    """Convert a field's value to that of `Gpu`; None if it is impossible."""
    if name in _TEXTS:
        return value.strip() if isinstance(value, str) else None
    if name in _INTEGERS:
        return int(value) if _is_number(value) and value == int(value) else None
    if name == "bandwidth_gbs":
        return float(value) if _is_number(value) else None
    if name == "at_boost":
        valid = isinstance(value, list) and all(isinstance(v, str) for v in value)
        return tuple(value) if valid else None
    if not isinstance(value, dict):
        return None
    entries = {key: _checked_entry(name, v) for key, v in value.items()}
    return None if None in entries.values() else entries


def _checked_entry(name: str, value: Any) -> Any:
    """Convert a data type's rate or achievable rate, or a field's source; None if impossible."""
    if name in _RATES:
        return int(value) if _is_number(value) and value == int(value) else None
    if name == "sources":
        return value if isinstance(value, str) else None
    pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value))  # noqa: PLR2004
    return (float(value[0]), int(value[1])) if pair else None


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and math.isfinite(value) and 0 < value <= _MAX_VALUE


def _expected(name: str) -> str:
    """Describe the values that a field takes."""
    if name in _TEXTS:
        return "a text"
    if name == "at_boost":
        return 'a list of types, as ["f64"]'
    if name in _INTEGERS or name == "bandwidth_gbs":
        return (
            f"a {'whole ' if name in _INTEGERS else ''}number above 0; leave out what is not known"
        )
    if name == "sources":
        return 'texts by field, as {"" = "data sheet"}'
    pairs = "[TFLOP/s, MHz] by type, as {bf16 = [708, 1207]}"
    return pairs if name == "achievable" else "whole numbers by type, as {bf16 = 2048}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."  # noqa: PLR2004

"""Tables behind charts: rows of a result as pandas, times in a readable unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chopper_interop.arrays.gather import is_any
from chopper_interop.plots import style
from chopper_interop.schemas.kinds import GPU_WORK, Kind

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.result import Result
    from chopper_interop.trace import Trace


def frame_of(result: Result) -> pd.DataFrame:
    """Rows of a result as pandas."""
    return result.to_pandas()


def summed(result: Result, *keys: str) -> pd.DataFrame:
    """Rows of a result as pandas, those of its steps added up."""
    return _over_steps(result, keys).sum(numeric_only=True, min_count=1).reset_index()


def averaged(result: Result, *keys: str) -> pd.DataFrame:
    """Rows of a result as pandas, of those of its steps the mean: of shares and ratios, which do not add up."""
    return _over_steps(result, keys).mean(numeric_only=True).reset_index()


def _over_steps(result: Result, keys: Iterable[str]) -> Any:
    return frame_of(result).groupby(list(keys), sort=False, dropna=False)


def in_unit(frame: pd.DataFrame, columns: Iterable[str]) -> tuple[pd.DataFrame, str]:
    """Columns of nanoseconds in one readable unit, and that unit."""
    chosen = list(columns)
    factor, unit = style.time_unit(frame[chosen].to_numpy(float))
    return frame.assign(**{c: frame[c] / factor for c in chosen}), unit


def labels(column: pd.Series[Any]) -> list[str]:
    """Values of a column as names for an axis, "(none)" where there is none."""
    return [style.shorten(text) for text in column.astype("string").fillna("(none)")]


def named(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Names of rows in a column of their own, `name`: short enough for an axis, each once."""
    texts = [frame[column].astype("string").fillna("(none)") for column in columns]
    frame = frame.assign(name=style.joined_names([*zip(*texts, strict=True)]))
    number = frame.groupby("name").cumcount() + 1
    numbered = [f"{n} #{k}" if k > 1 else n for n, k in zip(frame["name"], number, strict=True)]
    return frame.assign(name=numbered)


def gpu_work(
    trace: Trace, columns: Iterable[str], kinds: Iterable[Kind] = GPU_WORK
) -> pd.DataFrame:
    """Columns of the GPU work of a trace, or of that of some kinds."""
    rows = is_any(trace.array("kind"), kinds)
    return trace.to_pandas(columns=columns)[rows]

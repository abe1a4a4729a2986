"""Tables behind charts: rows of a result as pandas, times in a readable unit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from chopper_interop.arrays.gather import is_any
from chopper_interop.plots import style
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import GPU_WORK, Kind
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd


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
    """Values of a column as names for an axis, "(none)" where there is none; no two of them have one name."""
    texts = column.astype("string").fillna("(none)").tolist()
    different = [*dict.fromkeys(texts)]
    names = numbered(style.joined_names([(text,) for text in different]))
    known = dict(zip(different, names, strict=True))
    return [known[text] for text in texts]


def named(frame: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Names of rows in a column of their own, `name`: short enough for an axis, each once."""
    texts = [frame[column].astype("string").fillna("(none)") for column in columns]
    return frame.assign(name=numbered(style.joined_names([*zip(*texts, strict=True)])))


def numbered(names: Iterable[str]) -> list[str]:
    """Names of which those that are alike have a number."""
    count: Counter[str] = Counter()
    shown = []
    for name in names:
        count[name] += 1
        shown.append(f"{name} #{count[name]}" if count[name] > 1 else name)
    return shown


def gpu_work(
    trace: Trace, columns: Iterable[str], kinds: Iterable[Kind] = GPU_WORK
) -> pd.DataFrame:
    """Columns of the GPU work of a trace, or of that of some kinds."""
    rows = is_any(trace.array("kind"), kinds)
    return trace.to_pandas(columns=columns)[rows]

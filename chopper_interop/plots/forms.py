"""Forms of charts: bars, heat maps, points, lines. Each takes a table and returns a specification.

Every chart is one view that fills the width it is given, and has a `description` for those who cannot see it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.plots import style
from chopper_interop.plots.library import alt

if TYPE_CHECKING:
    import pandas as pd

Chart = Any
"""An Altair chart; None where there is nothing to draw, and a sentence where nothing of it counts."""
HEIGHT = 260
"""Height of a chart whose rows have no names, pixels."""
_LABEL_STEP = 16
FEW = 5
"""Kernels or operations that get a colour each."""
ROW = "row"
"""Column of the position of a named row."""
BY_MEDIAN = "duration / median"
"""Title of the axis of durations that are divided by what is usual for their kind."""
MAX_POINTS = 2000
"""Points that a chart draws; of more, evenly spaced ones."""
_MANY_ZEROS = 1e6
"""Value from which on an axis has units of thousands and millions. Chosen: six zeros are not seen at a glance."""
MAX_CELLS = 6000
"""Cells of a heat map. Chosen: some pixels each, and small files."""
_FAR = 5.0
"""Distance from the middle at which colours end, by what nine tenths of the cells do not exceed. Chosen: one cell that is six times as
slow leaves the others their colours."""
_MIN_RANGE = 0.05
"""Least range of colours and of lines' heights, as a share of the largest value. Chosen: what is equal but for noise looks equal."""
MAX_BARS = 20
"""Bars of a chart whose rows have names; of more, the longest."""


def base(frame: pd.DataFrame, description: str, rows: int = 0) -> Chart:
    """Chart of a table, `rows` rows high, or of the usual height if 0."""
    height = alt.Step(style.step(rows)) if rows else HEIGHT
    # a plain dict: Altair walks through the values of an object of its own at each step of a chart
    data = {"values": style.records(frame)}
    return alt.Chart(data, width="container", height=height, description=description)


def stacked_bars(
    frame: pd.DataFrame, key: str, parts: Mapping[str, str], unit: str, description: str
) -> Chart:
    """Draw a bar for each row, made of parts.

    Parameters
    ----------
    frame
        The rows, in the order to draw them.
    key
        Column that names them; its name is the axis' title.
    parts
        Label of each part → its column.
    unit
        Title of the other axis.
    description
        What is shown.
    """
    wide = frame[[key, *parts.values()]].set_axis([key, *parts], axis="columns")
    labels = [label for label in parts if (wide[label].fillna(0) != 0).any()]
    if not labels or wide.empty:
        return None
    if len(labels) == 1 < len(parts):  # there is no legend to name it
        unit = f"{labels[0]}: {unit}"
    wide = in_order(wide, key)
    long = wide[[key, ROW, *labels]].melt([key, ROW], var_name="part", value_name="value")
    long["order"] = long["part"].map({label: i for i, label in enumerate(labels)})
    return (
        base(long, description, len(wide))
        .mark_bar()
        .encode(
            x=alt.X("value:Q", title=unit, scale=alt.Scale(nice=False)),
            y=rows_axis(key, is_number=_are_numbers(wide[key])),
            color=colour("part", labels),
            order=alt.Order("order:Q"),
            tooltip=[tip(key), tip("part"), tip("value", unit)],
        )
    )


def heat_map(
    frame: pd.DataFrame, axes: tuple[str, str], value: str, description: str, *, middle: Any = None
) -> Chart:
    """Draw a coloured cell for each row.

    Parameters
    ----------
    frame
        One row a cell.
    axes
        Columns that are drawn to the right and downwards; their names are the axes' titles.
    value
        Column that is coloured; its name is the legend's title.
    description
        What is shown.
    middle
        Value in the middle of two colours; by default one range of colours is used.
    """
    if not frame[value].notna().any():
        return None
    across, down = axes
    known, description = _thinned(in_order(frame, down).dropna(subset=[value]), across, description)
    scale = alt.Scale(scheme=style.CONTINUOUS, domain=_range(known[value]))
    if middle is not None:
        distance = np.abs(known[value] - middle)
        reach = max(float(distance.max()), 1.0)
        usual = _FAR * max(float(distance.quantile(0.9)), 1.0)
        if reach > usual:
            count, reach = int((distance > usual).sum()), usual
            description += f" Colours end at {middle - reach:.3g} and {middle + reach:.3g}; further off: {count:,}."
        domain = [middle - reach, middle, middle + reach]
        scale = alt.Scale(domain=domain, range=list(style.DIVERGING), clamp=True)
    return (
        base(known, description, known[down].nunique())
        .mark_rect()
        .encode(
            x=alt.X(f"{across}:O", title=across, axis=alt.Axis(labelAngle=0, labelOverlap=True)),
            y=rows_axis(down, is_number=_are_numbers(known[down])),
            color=alt.Color(f"{value}:Q", scale=scale, title=value),
            tooltip=[tip(down), tip(across), tip(value)],
        )
    )


def time_map(frame: pd.DataFrame, down: str, value: str, description: str) -> Chart:
    """Heat map over time: cells from column `from` to column `to`, both in seconds; a sentence of one value alone."""
    if frame.empty:
        return None
    first = frame[value].iloc[0]
    if (frame[value] == first).all():
        return f"{description.removesuffix('.')}: {first:,.6g} throughout."
    return (
        base(in_order(frame, down), description, frame[down].nunique())
        .mark_rect()
        .encode(
            x=alt.X("from:Q", title="time (s)", scale=alt.Scale(nice=False, zero=False)),
            x2="to:Q",
            y=rows_axis(down, is_number=False),
            color=alt.Color(
                f"{value}:Q", scale=alt.Scale(scheme=style.CONTINUOUS, domain=_range(frame[value]))
            ),
            tooltip=[tip(down), tip("from", "from (s)"), tip(value)],
        )
    )


def points(  # two axes, colours, and what is special about a scale
    frame: pd.DataFrame, axes: tuple[str, str], group: str, description: str, *,
    logarithmic: Sequence[str] = (), tips: Sequence[str] = (),
) -> Chart:  # fmt: skip
    """Draw a point for each row, coloured by `group`; says so if it draws a sample."""
    known = frame.dropna(subset=list(axes))
    for axis in set(axes) & set(logarithmic):
        known = known[known[axis] > 0]
    if known.empty:
        return None
    known = known.assign(**{group: known[group].astype("string").fillna("(none)")})
    sample, description = sampled(known, description)
    across, down = axes
    return (
        base(sample, description)
        .mark_point(filled=True, opacity=0.65, size=36)
        .encode(
            x=alt.X(
                f"{across}:Q",
                title=across,
                **_scale(known[across], logarithmic=across in logarithmic),
            ),
            y=alt.Y(
                f"{down}:Q", title=down, **_scale(known[down], logarithmic=down in logarithmic)
            ),
            color=colour(group, _names(sample[group])),
            tooltip=[tip(name) for name in dict.fromkeys((*tips, group, across, down))],
        )
    )


def lines(  # two axes, colours, and the kinds of axis and line
    frame: pd.DataFrame, axes: tuple[str, str], group: str, description: str, *,
    stepped: bool, logarithmic: bool = False,
) -> Chart:  # fmt: skip
    """Draw a line for each value of `group`; `logarithmic` is the axis to the right."""
    known = frame.dropna(subset=list(axes))
    if known.empty:
        return None
    across, down = axes
    along = {"type": "log"} if logarithmic else {"zero": False}
    return (
        base(known, description)
        .mark_line(interpolate="step-after" if stepped else "linear", strokeWidth=1.6)
        .encode(
            x=alt.X(f"{across}:Q", title=across, scale=alt.Scale(nice=False, **along)),
            y=alt.Y(
                f"{down}:Q", title=down, scale=alt.Scale(zero=False, domain=_range(known[down]))
            ),
            detail=f"{group}:N",
            color=colour(group, _names(known[group])),
            tooltip=[tip(group), tip(across), tip(down)],
        )
    )


def spreads(  # noqa: PLR0913 # as of the other forms, and the kind of axis
    frame: pd.DataFrame, key: str, stem: str, unit: str, description: str, *,
    colour_by: str = "", logarithmic: bool = True,
) -> Chart:  # fmt: skip
    """Draw quantiles of each row: a line from 5 to 95 %, a box from 25 to 75 %, a tick at the median.

    Columns are `stem` with p5, p25, median, p75 and p95 in place of ``{}``. The description says so.
    """
    description += " Red: the median; box: a quarter to three quarters; line: 5 to 95 %."
    columns = [stem.format(q) for q in ("p5", "p25", "median", "p75", "p95")]
    low, box_low, middle, box_high, high = columns
    known = in_order(frame.dropna(subset=[middle]), key)
    if known.empty:
        return None
    start = _axis_start(known[columns], known[box_low])
    axis = alt.Axis(grid=not logarithmic, ticks=logarithmic)
    scale = alt.Scale(type="log", nice=False) if logarithmic else alt.Undefined
    y = rows_axis(key, is_number=_are_numbers(known[key]))
    hue = colour(colour_by, _names(known[colour_by])) if colour_by else alt.value(style.BLUE)
    chart = base(known, description).encode(y=y, tooltip=[tip(key), *map(tip, columns)])
    if logarithmic:  # what is drawn ends at the begin of the axis; values in tips and tables do not
        drawn = {f"{column} drawn": f"max(datum[{column!r}], {start})" for column in columns}
        chart = chart.transform_calculate(**drawn)
        low, box_low, middle, box_high, high = drawn
    x = alt.X(f"{low}:Q", title=unit, scale=scale, axis=axis)
    whisker = chart.mark_rule(color=style.GREY).encode(x=x, x2=f"{high}:Q")
    # the tick is seen on boxes of any colour, red as well
    box = chart.mark_bar(opacity=0.45 if colour_by else 0.75).encode(
        x=f"{box_low}:Q", x2=f"{box_high}:Q", color=hue
    )
    tick = chart.mark_tick(color=style.RED, thickness=2).encode(x=f"{middle}:Q")
    height = alt.Step(max(style.step(len(known)), _LABEL_STEP if len(known) <= MAX_BARS else 0))
    return (whisker + box + tick).properties(
        width="container", height=height, description=description
    )


def distribution(
    frame: pd.DataFrame, value: str, group: str, description: str, *, logarithmic: bool = False
) -> Chart:
    """Draw the share of each group's values that are at most as large (its distribution function)."""
    parts = [_steps_up(rows, value, group) for _, rows in frame.dropna().groupby(group, sort=False)]
    if not parts:
        return None
    share = "share of them that are smaller"
    return lines(
        concatenated(parts), (value, share), group, description,
        stepped=True, logarithmic=logarithmic,
    )  # fmt: skip


def _steps_up(rows: pd.DataFrame, value: str, group: str) -> pd.DataFrame:
    """At most a hundred quantiles of the values."""
    import pandas as pd

    share = np.linspace(0, 1, min(len(rows), 100))
    values = np.quantile(rows[value].to_numpy(float), share)
    name = rows[group].iloc[0]
    return pd.DataFrame({value: values, "share of them that are smaller": share, group: name})


def in_order(frame: pd.DataFrame, key: str) -> pd.DataFrame:
    """Add the position of each row's name, in the order in which names come: `row`, for `rows_axis`."""
    names = frame[key].astype("string").fillna("(none)")
    position = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return frame.assign(row=[position[name] for name in names])


def rows_axis(key: str, *, is_number: bool) -> Any:
    """Axis of named rows by their column `row`; numbers get their key's name, as rank 3.

    Names are not listed as the order: Vega-Lite would make expressions of them.
    """
    label = {"labelExpr": f"'{key} ' + datum.label"} if is_number else {}
    axis = alt.Axis(labelOverlap=True, title=None, **label)
    return alt.Y(f"{key}:O", sort=alt.EncodingSortField(ROW, op="min"), axis=axis)


def colour(field: str, names: Sequence[str], title: str = "") -> Any:
    """Colours of names; without a legend if there is only one and no title, one colour if they are many."""
    if style.are_many(names):
        return alt.value(style.BLUE)
    domain, used = style.colours(names)
    legend = alt.Legend(title=title or None) if title or len(domain) > 1 else None
    return alt.Color(f"{field}:N", scale=alt.Scale(domain=domain, range=used), legend=legend)


def tip(column: str, title: str = "") -> Any:
    """Line of a tooltip."""
    return alt.Tooltip(field=column, type="nominal", title=title or column)


def sampled(frame: pd.DataFrame, description: str) -> tuple[pd.DataFrame, str]:
    """At most `MAX_POINTS` rows, evenly spaced, and a description that says so."""
    if len(frame) <= MAX_POINTS:
        return frame, description
    chosen = np.linspace(0, len(frame) - 1, MAX_POINTS).round().astype(int)
    return frame.iloc[chosen], f"{description} {MAX_POINTS:,} of {len(frame):,} are drawn."


def longest(
    frame: pd.DataFrame, column: str, description: str, limit: int = MAX_BARS
) -> tuple[pd.DataFrame, str]:
    """At most so many rows, the largest first, and a description that says so."""
    ordered = frame.sort_values(column, ascending=False, kind="stable")
    if len(ordered) <= limit:
        return ordered, description
    return ordered.head(limit), f"{description} The {limit} largest of {len(ordered):,}."


def _thinned(frame: pd.DataFrame, across: str, description: str) -> tuple[pd.DataFrame, str]:
    """At most `MAX_CELLS` cells, of evenly spaced values of an axis, and a description that says so."""
    values = np.unique(frame[across].to_numpy())
    kept = max(len(values) * MAX_CELLS // max(len(frame), 1), 1)
    if kept >= len(values):
        return frame, description
    chosen = values[np.linspace(0, len(values) - 1, kept).round().astype(int)]
    text = f"{description} {kept:,} of {len(values):,} are drawn ({across})."
    return frame[frame[across].isin(chosen)], text


def concatenated(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Rows of several tables, one below the other."""
    import pandas as pd

    return pd.concat(frames, ignore_index=True)


def _scale(values: pd.Series[Any], *, logarithmic: bool) -> dict[str, Any]:
    """Scale of points; a logarithmic one from and to a power of ten, with lines at these alone."""
    if not logarithmic:
        return {"scale": alt.Scale(zero=False)}
    first, last = (float(np.log10(bound)) for bound in (values.min(), values.max()))
    powers = [10.0**k for k in range(int(np.floor(first)), int(np.ceil(last)) + 1)]
    # as 10M, where zeros would have to be counted
    labels = {"format": "~s"} if powers[-1] >= _MANY_ZEROS else {}
    return {"scale": alt.Scale(type="log"), "axis": alt.Axis(values=powers, **labels)}


def _range(values: pd.Series[Any]) -> list[float]:
    """Lowest and highest value that is drawn, at least `_MIN_RANGE` of the largest value apart."""
    low, high = float(values.min()), float(values.max())
    short = max(_MIN_RANGE * max(abs(low), abs(high)) - (high - low), 0.0)
    return [low - short / 2, high + short / 2]


def _names(column: pd.Series[Any]) -> list[str]:
    return list(dict.fromkeys(column.tolist()))


def _are_numbers(column: pd.Series[Any]) -> bool:
    """True if these names of rows are numbers, such as ranks."""
    return column.dtype.kind in "iuf"


def _axis_start(columns: pd.DataFrame, boxes: pd.Series[Any]) -> float:
    """Begin of a logarithmic axis: the smallest value, or a thousandth of the largest if above; no box is left of it."""
    values, begins = columns.to_numpy(float), boxes.to_numpy(float)
    positive, begins = values[values > 0], begins[begins > 0]
    if not positive.size:
        return 1.0
    start = max(float(positive.min()), float(positive.max()) / 1000)
    return min(start, float(begins.min(initial=start)))

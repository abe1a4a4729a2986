"""Specifications of charts: compiled for a page, and as pictures."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chopper_interop.plots import forms
from chopper_interop.plots.library import module

if TYPE_CHECKING:
    from chopper_interop.plots.forms import Chart

_CONFIG: dict[str, Any] = {
    "font": "system-ui, DejaVu Sans, sans-serif",
    "view": {"stroke": None},
    "axis": {"labelOverlap": True, "labelSeparation": 4, "tickCount": 6, "titleFontWeight": "normal", "labelFontSize": 11,
             "titleFontSize": 11, "gridOpacity": 0.7, "ticks": False, "domain": False, "labelPadding": 5},
    "axisX": {"labelBound": 6},  # pixels by which the last label may leave the axis: more would be cut off on a phone
    "legend": {"orient": "top", "gradientLength": 140, "gradientThickness": 8, "titleFontWeight": "normal",
               "labelFontSize": 11, "titleFontSize": 11, "columns": 5, "labelLimit": 200},
    "scale": {"barBandPaddingInner": 0.15, "rectBandPaddingInner": 0.02},
}  # fmt: skip
"""Fonts, sizes and lines; colours of text and lines are the page's."""
_PICTURE: dict[str, Any] = {
    "axis": {"labelLimit": 260, "labelColor": "#444", "titleColor": "#444", "gridColor": "#ddd"},
    "legend": {"layout": {"top": {"direction": "vertical"}}},
    "title": {"anchor": "start", "fontSize": 14, "subtitleFontSize": 11, "subtitleColor": "#666"},
}
_WIDTH, _SCALE = 640, 2
_LETTER, _SYMBOL = 6.6, 22
"""Width of a letter of a legend or a caption, and of the symbol before a name, pixels."""
_AROUND = 44
"""Height of the axis and its title."""


@dataclass(frozen=True)
class Compiled:
    """A chart for a page.

    Parameters
    ----------
    vega
        Specification for Vega, whose colours of text and lines are left to the page.
    height
        Pixels that a page keeps free until it is drawn.
    """

    vega: dict[str, Any]
    height: int


def compiled(chart: Chart) -> Compiled:
    """Compile a chart for a page."""
    drawn = chart.to_dict(validate=False)
    vega: dict[str, Any] = module("vl_convert").vegalite_to_vega(drawn | {"config": _CONFIG})
    vega.pop("background", None)
    return Compiled(vega, _height(drawn))


def _height(drawn: dict[str, Any]) -> int:
    height = drawn["height"]
    if not isinstance(height, dict):
        return int(height) + _AROUND
    data = drawn.get("data") or drawn["layer"][0]["data"]
    rows = {value[forms.ROW] for value in drawn["datasets"][data["name"]]}
    return round(height["step"] * len(rows)) + _AROUND


def pictures(chart: Chart, title: str) -> tuple[str, bytes]:
    """SVG and PNG of a chart with its title, on white, in the width of a column of a paper."""
    config = {k: v | _PICTURE.get(k, {}) if isinstance(v, dict) else v for k, v in _CONFIG.items()}
    caption = textwrap.wrap(chart.description, int(_WIDTH / _LETTER))
    titled = chart.properties(title={"text": title, "subtitle": caption}, width=_WIDTH)
    drawn = titled.to_dict(validate=False)
    config["legend"] |= {"columns": _legend_columns(drawn)}
    specification = drawn | {"config": _PICTURE | config, "background": "white"}
    converter = module("vl_convert")
    vega = converter.vegalite_to_vega(specification)
    return converter.vega_to_svg(vega), converter.vega_to_png(vega, scale=_SCALE)


def _legend_columns(drawn: Any) -> int:
    """Columns of the longest name in which the legend is no wider than the chart."""
    longest = max((len(name) for name in _coloured_names(drawn)), default=0)
    return max(min(int(_WIDTH / (longest * _LETTER + _SYMBOL)), _CONFIG["legend"]["columns"]), 1)


def _coloured_names(drawn: Any) -> Iterator[str]:
    """Yield the names that have a colour anywhere in a specification."""
    for layer in (drawn, *drawn.get("layer", ())):
        scale = layer.get("encoding", {}).get("color", {}).get("scale", {})
        yield from (name for name in scale.get("domain", ()) if isinstance(name, str))

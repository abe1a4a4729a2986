"""Pictures of all charts of a report, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from chopper_interop.io import outputs
from chopper_interop.plots.catalogue import PLOTS
from chopper_interop.report import specifications

if TYPE_CHECKING:
    from chopper_interop.report.gather import Charts

_NAMES = {f"{plot.name}.{kind}" for plot in PLOTS for kind in ("svg", "png")}


def write(charts: Charts, folder: Path) -> int:
    """Write each chart into a folder, in place of pictures of an earlier report; the number of charts.

    Raises
    ------
    WriteError
        It cannot be written, or a file of that name was not written by this program.
    """
    with outputs.folder(folder, owns=_is_picture) as target:
        drawn = [(plot, chart) for plot, chart in charts.drawn if not isinstance(chart, str)]
        for plot, chart in drawn:
            svg, png = specifications.pictures(chart, plot.title)
            (target / f"{plot.name}.svg").write_text(svg, "utf-8")
            (target / f"{plot.name}.png").write_bytes(png)
    return len(drawn)


def _is_picture(path: Path) -> bool:
    return path.name in _NAMES and path.is_file()

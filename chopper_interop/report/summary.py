"""First part of a report: figures of the whole job, and lines of its summary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from chopper_interop.errors import MissingDataError
from chopper_interop.plots import style

if TYPE_CHECKING:
    from chopper_interop.report.gather import JobResults

_IN_THE_TABLE = ("finding", "more")
"""Topics of the summary that the table of findings has in full."""


@dataclass(frozen=True)
class Tile:
    """One figure.

    Parameters
    ----------
    name, value
        What it is, and the figure with its unit.
    more
        What it is of.
    """

    name: str
    value: str
    more: str


def _time(nanoseconds: Any) -> str:
    factor, unit = style.time_unit([nanoseconds])
    return f"{nanoseconds / factor:.4g} {unit}"


def _percent(share: float) -> str:
    return f"{share:.1%}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _watts(value: float) -> str:
    return f"{value:,.0f} W"


_TILES: tuple[tuple[str, str, str, Callable[[Any], str], str], ...] = (
    ("summary", "step_ns", "step", _time, "mean"),
    ("summary", "compute_share", "compute", _percent, "of the GPUs' time"),
    ("summary", "exposed_comm_share", "exposed communication", _percent, "of the GPUs' time"),
    ("summary", "idle_share", "idle", _percent, "of the GPUs' time"),
    ("summary", "clock_loss_ns", "reduced clock", _time, "of a step"),
    ("efficiency", "tokens_per_s", "throughput", _whole, "tokens/s"),
    ("efficiency", "samples_per_s", "throughput", _whole, "samples/s"),
    ("efficiency", "mfu_share", "MFU", _percent, "of the peak rate, at least"),
    ("efficiency", "power_w", "power", _watts, "all GPUs, mean"),
)
"""Analysis and figure of its summary, name, format, and what it is of."""


def tiles(job: JobResults) -> list[Tile]:
    """Figures of the job that are known and not 0; of two with one name the first."""
    tiles: dict[str, Tile] = {}
    for analysis, figure, name, shown, more in _TILES:
        value = _figures(job, analysis).get(figure)
        if value and name not in tiles:
            tiles[name] = Tile(name, shown(value), more)
    if "step" in tiles and not _figures(job, "summary")["steps"]:
        tiles["step"] = replace(tiles["step"], name="time", more="of the job: it has no steps")
    return list(tiles.values())


def lines(job: JobResults) -> list[tuple[str, str]]:
    """Lines of the summary: topic, empty where it is that of the line before, and text; findings have a table."""
    rows = [
        row for row in job.result("summary").rows.to_pylist() if row["topic"] not in _IN_THE_TABLE
    ]
    return [
        ("" if row["topic"] == last else row["topic"], row["text"])
        for row, last in zip(rows, ["", *(row["topic"] for row in rows[:-1])], strict=True)
    ]


def _figures(job: JobResults, analysis: str) -> dict[str, Any]:
    try:
        return job.result(analysis).summary
    except MissingDataError:
        return {}

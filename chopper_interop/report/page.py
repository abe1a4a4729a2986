"""The page: one file with its charts, tables, timeline and scripts, that loads nothing.

Whatever comes from a trace is JSON in a data block, or escaped text: it never becomes markup. Scripts and
styles count by their hash alone.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import __version__
from chopper_interop.analyses.methods.activity import warm_up
from chopper_interop.errors import MissingDataError
from chopper_interop.plots import library, style, timeline
from chopper_interop.plots.catalogue import SECTIONS, Plot
from chopper_interop.report import specifications, summary, tables
from chopper_interop.report.gather import Charts, JobResults, annotated_trace

if TYPE_CHECKING:
    from chopper_interop.plots.timeline import Timeline
    from chopper_interop.report.specifications import Compiled

_VEGA = "window.vegaEmbed = vegaEmbed;"
_SCRIPTS = ("page.js", "timeline.js")
_ZOOMS = (("in", "+", "Zoom in"), ("out", "-", "Zoom out"), ("left", "←", "Move left"),
          ("right", "→", "Move right"), ("all", "All", "Show all of the step"))  # fmt: skip
_HELP = (
    "Drag to move; Ctrl and wheel, or two fingers, to zoom; or click into it and use + - ← → and 0. "
    "A line below marks work on the critical path. Click on work to see what it is, or use ↑ ↓ for rows and , . for "
    "the work before and after."
)


def make_page(job: JobResults, charts: Charts) -> str:
    """Make the report of a job with these charts, as HTML."""
    step = _timeline(job)
    shown = {view.title: table for view in (tables.FINDINGS, *tables.VIEWS)
             if (table := tables.table(job, view)) is not None}  # fmt: skip
    drawn = {plot.name: specifications.compiled(chart)
             for plot, chart in charts.drawn if plot.on_page and not isinstance(chart, str)}  # fmt: skip
    data = {
        "charts": {name: chart.vega for name, chart in drawn.items()},
        "tables": shown,
        "timeline": _timeline_data(step) if step else None,
    }
    body = "".join((_head(job), *_sections(job, charts, drawn, shown, step), _foot(charts)))
    return _document(f"{job.trace.meta.job}: report", body, data)


def _document(title: str, body: str, data: dict[str, Any]) -> str:
    css, scripts = _asset("page.css"), [_vega(), *map(_asset, _SCRIPTS)]
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_hash, scripts))}; style-src {_hash(css)}; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{css}</style></head>\n<body>{body}\n"
        f'<script type="application/json" id="data">{_json(data)}</script>\n'
        + "".join(f"<script>{script}</script>\n" for script in scripts)
        + "</body></html>\n"
    )


def _json(data: Any) -> str:
    """JSON that ends no script and begins no comment."""
    text = json.dumps(data, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@cache
def _vega() -> str:
    """Vega and what shows its charts in a page, as the plotting library ships them."""
    return library.bundle(_VEGA).replace("</script", "<\\/script")


def _head(job: JobResults) -> str:
    meta = job.trace.meta
    ranks = len(job.trace.rank_rows)
    files = len(meta.sources)
    about = f"{ranks} rank{'s' * (ranks != 1)}, {files} file{'s' * (files != 1)}"
    hosts = sorted({rank.host for rank in meta.ranks if rank.host})
    if hosts:
        about += f", on {', '.join(hosts[:4])}{' and others' * (len(hosts) > 4)}"  # noqa: PLR2004 # a line
    if not job.common.get("steps") and (
        counted := warm_up.later_steps(job.trace, job.common.get("ranks", ""))
    ):
        about += f", charts and tables without warm-up: steps {counted}"
    return (
        f"<header><h1>{html.escape(meta.job)}</h1>"
        f'<p class="muted">{html.escape(about)} · chopper-interop {__version__}</p>'
        "<noscript>The charts and tables of this report need JavaScript; nothing is loaded.</noscript>"
        "</header>"
    )


def _sections(
    job: JobResults,
    charts: Charts,
    drawn: dict[str, Compiled],
    shown: dict[str, Any],
    step: Timeline | None,
) -> Iterable[str]:
    by_section: dict[str, list[str]] = {"Summary": [_summary(job, shown)]}
    if step is not None:
        by_section["Timeline"] = [_timeline_view(step)]
    for section in SECTIONS:
        figures = "".join(
            _figure(plot, chart.description, drawn[plot.name].height)
            if plot.name in drawn
            else _heading(plot, chart) + "</figure>"
            for plot, chart in charts.drawn
            if plot.section == section and plot.on_page
        )
        parts = [f'<div class="charts">{figures}</div>'] if figures else []
        parts += [_table(view.title, shown[view.title]) for view in tables.VIEWS
                  if view.section == section and view.title in shown]  # fmt: skip
        if parts:
            by_section[section] = parts
    items = "".join(f'<li><a href="#{_id(name)}">{name}</a></li>' for name in by_section)
    yield f'<nav aria-label="Sections"><ul>{items}</ul></nav><main>'
    for name, parts in by_section.items():
        yield f'<section id="{_id(name)}"><h2>{name}</h2>{"".join(parts)}</section>'
    yield "</main>"


def _summary(job: JobResults, shown: dict[str, Any]) -> str:
    tiles = "".join(
        f"<div><dt>{html.escape(t.name)}</dt><dd>{html.escape(t.value)}"
        f"<small>{html.escape(t.more)}</small></dd></div>"
        for t in summary.tiles(job)
    )
    lines = "".join(
        f"<li><b>{html.escape(topic)}</b><span>{html.escape(text)}</span></li>"
        for topic, text in summary.lines(job)
    )
    findings = tables.FINDINGS.title
    table = _table(findings, shown[findings]) if findings in shown else ""
    return f'<dl class="tiles">{tiles}</dl><ul class="lines">{lines}</ul>{table}'


def _heading(plot: Plot, text: str) -> str:
    title, caption = html.escape(plot.title), html.escape(text)
    return f'<figure id="{plot.name}"><h3>{title}</h3><figcaption>{caption}</figcaption>'


def _figure(plot: Plot, description: str, height: int) -> str:
    text = html.escape(description)
    return (
        f'{_heading(plot, description)}<div class="chart" data-chart="{plot.name}" '
        f'data-height="{height}" role="img" '
        f'aria-label="{html.escape(plot.title)}. {text}"></div>'
        f'<details data-of="{plot.name}"><summary aria-label="Data of {html.escape(plot.title)}">Data</summary></details></figure>'
    )


def _table(title: str, table: dict[str, Any]) -> str:
    lost = table["left_out"]
    note = f'<p class="muted">Without {lost:,} rows that have less time.</p>' if lost else ""
    name = html.escape(title)
    return f'<h3>{name}</h3>{note}<div data-table="{name}" data-caption="{name}"></div>'


def _foot(charts: Charts) -> str:
    if not charts.missing:
        return ""
    items = "".join(
        f"<li>{html.escape(', '.join(titles))}: needs {html.escape(needs)}</li>"
        for needs, titles in charts.missing.items()
    )
    return (
        f"<footer><details><summary>Charts without data, and what to record</summary>"
        f"<ul>{items}</ul></details></footer>"
    )


def _id(name: str) -> str:
    return name.lower().replace(" ", "-")


def _timeline(job: JobResults) -> Timeline | None:
    try:
        path = job.result("critical_path", by="piece")
    except MissingDataError:
        path = None
    return timeline.timeline_of(annotated_trace(job), path)


def _timeline_view(step: Timeline) -> str:
    joined = (
        f" {step.merged:,} pieces that are too short to be seen are joined with their neighbours."
        if step.merged
        else ""
    )
    buttons = "".join(
        f'<button type="button" data-zoom="{name}" aria-label="{text}">{sign}</button>'
        for name, sign, text in _ZOOMS
    )
    return (
        f'<p class="muted">What each GPU ran in {step.title}, compute above communication, and the '
        f'critical path of the job.{joined}</p><div class="tools">{buttons}</div>'
        f'<div class="view"><canvas class="timeline" tabindex="0" role="application" '
        f'aria-label="Timeline of {step.title}" aria-describedby="help"></canvas></div>'
        f'<p class="hint" id="help">{_HELP}</p><p id="chosen" role="status"></p>'
    )


def _timeline_data(step: Timeline) -> dict[str, Any]:
    """Rows of the timeline as lists; names by number, categories by number in the legend of the row."""
    frame = step.slices
    names, of_name = _numbered(frame["name"].tolist())
    of_path = frame["row"].to_numpy() == 0
    number, legends = np.zeros(len(frame), int), []
    for title, part in ((timeline.PATH, of_path), (timeline.GPUS, ~of_path)):
        categories, of_category = _numbered(frame.loc[part, "category"].tolist())
        number[part] = of_category
        colours = style.colours(categories)[1]
        legends.append({"title": title, "domain": categories, "range": colours})
    coded = frame.assign(name=of_name, category=number, critical=frame["critical"].astype(int))
    rows = []
    for i, name in enumerate(step.rows):
        part = coded[coded["row"] == i]
        label = name.removesuffix(" compute") if not name.endswith("communication") else ""
        values = {c: part[c].tolist() for c in ("dur_ns", "category", "name", "critical")}
        values["dur"] = values.pop("dur_ns")
        start = part["start_ns"].tolist()
        rows.append({"label": label, "full": name, "legend": min(i, 1), "start": start, **values})
    return {
        "span": step.end_ns - step.start_ns, "rows": rows, "names": names, "legends": legends,
        "marks": bool(frame.loc[frame["row"] > 0, "critical"].any()),
    }  # fmt: skip


def _numbered(texts: list[str]) -> tuple[list[str], list[int]]:
    """Distinct texts, and the number of each."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(number), [number[text] for text in texts]

"""Views of notebooks of traces, graphs and results, judged by a parser of HTML."""

from collections import Counter
from html.parser import HTMLParser

import numpy as np
import pyarrow as pa

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.schemas.kinds import Kind, LaneKind
from chopper_interop.schemas.meta import Meta, Rank

EVIL = "<script>alert('x')</script><img src=x onerror=y>&lt;b&gt; $\\sum$ \"'>"


class _Page(HTMLParser):
    """Tags, with their attributes, and the text between them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.attributes: set[str] = set()
        self.cells: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.cells.append(data)


def _trace(kernels: int, name: str = EVIL) -> ci.Trace:
    builder = TraceBuilder(Meta(job=name, ranks=(Rank(0, host=name),)))
    lane = builder.lane(0, LaneKind.STREAM, 7, name, device=0)
    ts = 10 * np.arange(kernels)
    names = pa.array([f"{name} {k}" for k in range(kernels)])
    builder.nodes(kind=int(Kind.KERNEL), name=names, rank=0, lane=lane, ts=ts, dur=9)
    return builder.finish()


def _pages(trace: ci.Trace) -> list[_Page]:
    shown = [trace, trace.graph(), ci.analyze(trace, "kernels", by=["rank", "stream", "kernel"])]
    return [_Page(item._repr_html_()) for item in shown]


def test_nothing_of_a_trace_becomes_markup() -> None:
    for page in _pages(_trace(3)):
        assert set(page.tags) <= {"div", "p", "strong", "table", "thead", "tbody", "tr", "th", "td"}
        assert page.attributes <= {"class", "style"}
        assert any(EVIL[:60] in text for text in page.cells)


def test_texts_are_no_formulas_and_colours_are_the_theme_s() -> None:
    html = _trace(3)._repr_html_()
    assert html.startswith('<div class="tex2jax_ignore mathjax_ignore">')
    assert "color" not in html
    assert "background" not in html


def test_long_tables_show_their_ends() -> None:
    page = _pages(_trace(1000, "gemm"))[2]
    assert "20 of 1,000 rows" in page.cells
    assert page.tags["tr"] < 60
    assert "gemm 0" in page.cells
    assert "gemm 999" in page.cells


def test_nothing_to_show() -> None:
    empty = TraceBuilder().finish()
    for item in (empty, empty.graph()):
        assert _Page(item._repr_html_()).cells

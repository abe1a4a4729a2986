"""The report as a file: one that loads nothing, and in which nothing from a trace is markup."""

import base64
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import browser
import gpu_work
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from read_once import read_once
from slow import slow_from

import chopper_interop as ci
from chopper_interop.build import TraceBuilder
from chopper_interop.plots import forms
from chopper_interop.report import figures, gather, page, specifications, summary
from chopper_interop.run import Run
from chopper_interop.schemas import hub
from chopper_interop.schemas.kinds import Kind

pytest.importorskip("altair", reason="the extra report is not installed")

HOSTILE = "</script><img src=x onerror=alert(1)><!--<script>'\"&\u2028"


class Parts(HTMLParser):
    """Elements of a page, and the text of its scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {"script": [], "style": []}
        self.within = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.within = tag
        if tag in self.texts:
            self.texts[tag].append("")

    def handle_data(self, data: str) -> None:
        if self.within in self.texts:
            self.texts[self.within][-1] += data

    def handle_endtag(self, _tag: str) -> None:
        self.within = ""


def hostile_trace() -> ci.Trace:
    works = [
        gpu_work.Work(kind, start, 1000, rank, stream=stream, name=f"{HOSTILE}{kind}", iteration=step,
                      operation=f"{HOSTILE}op", collective="all_reduce" if kind == Kind.COMM else "")
        for step in range(2)
        for rank in range(2)
        for kind, stream, start in (
            (Kind.KERNEL, 0, 10_000 * step + 100 * rank),
            (Kind.COMM, 1, 10_000 * step + 500),
            (Kind.KERNEL, 0, 10_000 * step + 4000),
        )
    ]  # fmt: skip
    trace = gpu_work.trace(works)
    return replace(trace, meta=replace(trace.meta, job=HOSTILE))


def report_of(trace: ci.Trace) -> str:
    job = gather.JobResults(trace)
    charts = gather.charts_of(job)
    assert charts.failed == {}
    return page.make_page(job, charts)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(report_of(hostile_trace()), "utf-8")
    return path


@pytest.fixture(scope="module")
def shown(hostile: Path) -> Iterator[browser.Page]:
    with browser.opened(hostile) as page_:
        yield page_


def test_names_of_a_trace_are_text_alone(hostile: Path) -> None:
    parts = Parts(hostile.read_text("utf-8"))
    assert not [e for e in parts.elements if e[0] == "img"]
    assert not [name for _, attributes in parts.elements for name in attributes if name[:2] == "on"]
    assert HOSTILE in json.dumps(json.loads(parts.texts["script"][0]), ensure_ascii=False).replace(
        '\\"', '"'
    )
    assert [a.get("type") for t, a in parts.elements if t == "script"] == [
        "application/json",
        *[None] * 3,
    ]


def test_scripts_and_styles_count_by_their_hash_and_nothing_is_loaded(hostile: Path) -> None:
    parts = Parts(hostile.read_text("utf-8"))
    policy = next(a["content"] for t, a in parts.elements if "http-equiv" in a)
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    texts = [*parts.texts["script"][1:], *parts.texts["style"]]
    digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in texts]
    assert sorted(digests) == sorted(re.findall(r"'sha256-([^']+)'", policy))
    assert not [a for _, a in parts.elements if "src" in a]
    assert all(a["href"].startswith("#") for _, a in parts.elements if "href" in a)


def is_changed_by(shown: browser.Page, key: str) -> bool:
    """Whether a key changes the timeline."""
    canvas = shown.page.locator("canvas.timeline")
    canvas.focus()
    before = canvas.screenshot()
    canvas.press(key)
    shown.page.wait_for_timeout(100)
    return bool(canvas.screenshot() != before)


def test_every_chart_is_drawn_without_a_complaint(shown: browser.Page) -> None:
    assert shown.page.query_selector_all("[data-chart]")
    assert shown.undrawn() == []
    assert shown.page.evaluate("document.images.length") == 0
    assert shown.complaints == []
    assert len(shown.requests) == 1


def test_the_timeline_zooms_by_keyboard(shown: browser.Page) -> None:
    for key in ("+", "ArrowRight", "0"):
        assert is_changed_by(shown, key)


def test_work_of_the_timeline_is_chosen_by_keyboard(shown: browser.Page) -> None:
    """Only a click showed what a piece is."""
    canvas, chosen = shown.page.locator("canvas.timeline"), shown.page.locator("#chosen")

    def press(*keys: str) -> str:
        for key in keys:
            canvas.press(key)
        return chosen.inner_text()

    assert "on: critical path" in press("0", "ArrowDown")
    first = press("ArrowDown")
    assert "on: rank 0 compute" in first
    second = press(".")
    assert second != first
    assert "on: rank 0 compute" in second
    assert press(",") == first
    assert "on: rank 1 compute" in press("ArrowDown", "ArrowDown")
    assert press("ArrowUp", "ArrowUp") == first
    assert press(".") == second
    assert press(*["ArrowDown"] * 2, *["ArrowUp"] * 2) == second, "rows do not drift in time"
    assert press(*["."] * 9) == press("."), "the last work of the row"
    press("0", *["+"] * 9, *[","] * 9)
    assert is_changed_by(shown, "."), "the next work comes into view"
    assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert press("Escape") == ""


def test_texts_of_the_timeline_end_within_it(shown: browser.Page) -> None:
    drawn = """async () => {
      const canvas = document.querySelector("canvas.timeline"), drawn = [];
      const draws = CanvasRenderingContext2D.prototype.fillText;
      CanvasRenderingContext2D.prototype.fillText = function (text, x, y, most) {
        const isLeft = this.textAlign === "left";
        drawn.push([text, isLeft ? x + this.measureText(text).width : x]);
        draws.apply(this, most ? [text, x, y, most] : [text, x, y]);
      };
      canvas.dispatchEvent(new KeyboardEvent("keydown", { key: "0" }));
      await new Promise((go) => setTimeout(go, 100));
      CanvasRenderingContext2D.prototype.fillText = draws;
      return { drawn, width: canvas.clientWidth };
    }"""
    result = shown.page.evaluate(drawn)
    names = [text for text, _ in result["drawn"] if text.startswith(HOSTILE[:4])]
    assert names
    assert all("…" in name for name in names)
    assert max(end for _, end in result["drawn"]) <= result["width"]


def test_commands_are_not_broken_within_an_option(shown: browser.Page) -> None:
    text = "chopper-analyze RUN/ stragglers --by operation --ranks 5"
    made = shown.page.evaluate(f"""() => {{
      const made = cell({text!r}, false);
      return [made.textContent, [...made.querySelectorAll(".option")].map((o) => o.textContent)];
    }}""")
    assert made == [text, ["--by", "--ranks"]]


def test_commands_are_whole_and_long_names_are_cut(shown: browser.Page) -> None:
    """A command that ended in "…" could not be copied."""
    long = "x" * 800
    row = [long, long, long]
    assert cells_of(shown, ["kernel", "finding", "command"], [row]) == [
        [f"{'x' * 42}…{'x' * 41}", long, long]
    ]


def test_long_names_in_a_table_show_where_they_differ(shown: browser.Page) -> None:
    """Three matmuls of the sample job that differ in one letter amid 200 were cut alike."""
    names = [f"{'Cijk_' * 12}{one}{'_MT256' * 30}" for one in ("Alik", "Ailk", "Al")]
    texts = [row[0] for row in cells_of(shown, ["kernel"], [[name] for name in names])]
    assert len(set(texts)) == len(names)
    assert max(map(len, texts)) < 90


def cells_of(shown: browser.Page, columns: list[str], rows: list[list[object]]) -> list[list[str]]:
    """Texts of the cells of a table."""
    given = json.dumps({"columns": columns, "rows": rows})
    return shown.page.evaluate(f"""() => [...table({given}, "t").querySelectorAll("tbody tr")].map(
      (row) => [...row.children].map((one) => one.textContent))""")  # type: ignore[no-any-return]


def test_topics_of_the_summary_stand_once() -> None:
    topics = [topic for topic, _ in summary.lines(gather.JobResults(hostile_trace()))]
    named = [topic for topic in topics if topic]
    assert len(named) == len(set(named)) < len(topics)


def test_charts_of_gpus_are_of_the_steps_of_the_summary() -> None:
    """Differences between GPUs counted the warm-up that all figures left out."""
    works = [
        gpu_work.Work(Kind.KERNEL, 100_000 * step, 90_000 if rank == 0 and step == 0 else 10_000, rank, iteration=step)
        for step in range(4)
        for rank in range(2)
    ]  # fmt: skip
    job = gather.JobResults(gpu_work.trace(works))
    rows = job.result("imbalance", by="rank").rows
    assert set(rows["iteration"].to_pylist()) == {1, 2, 3}


def test_tables_sort_by_keyboard(shown: browser.Page) -> None:
    head = shown.page.locator("#kernels th", has_text="total (ms)").first
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "descending"
    head.get_by_role("button").press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    rows = shown.page.locator("#kernels [data-table] tbody").first.locator("tr")
    totals = [float(row.locator("td").nth(3).inner_text()) for row in rows.all()]
    assert totals == sorted(totals)


def test_texts_sort_both_ways_again_and_again(shown: browser.Page) -> None:
    """The third click did nothing."""
    head = shown.page.locator("#kernels th", has_text="class").first
    orders = []
    for _ in range(4):
        head.get_by_role("button").press("Enter")
        orders.append(head.get_attribute("aria-sort"))
    assert orders == ["ascending", "descending"] * 2


def test_names_are_shown_whole_by_keyboard(shown: browser.Page) -> None:
    name = "Cijk_" * 60
    given = json.dumps({"columns": ["kernel"], "rows": [[name]]})
    shown.page.evaluate(f"document.body.append(table({given}, 'whole'))")
    button = shown.page.get_by_role("button", name="Whole names").last
    cell = shown.page.get_by_role("region", name="whole").locator("tbody td")
    assert "…" in cell.inner_text()
    button.press("Space")
    assert (cell.inner_text(), button.get_attribute("aria-pressed")) == (name, "true")


def test_a_sentence_stands_in_place_of_a_chart_that_would_draw_noise(tmp_path: Path) -> None:
    """Both ranks take the same time: no bar, and nothing to record."""
    works = [gpu_work.Work(Kind.KERNEL, 0, 1000, rank, iteration=0) for rank in range(2)]
    job = gather.JobResults(gpu_work.trace(works))
    charts = gather.charts_of(job)
    title = "What ranks cost the job"
    assert title not in {each for titles in charts.missing.values() for each in titles}
    parts = Parts(page.make_page(job, charts))
    assert ("figure", {"id": "what-ranks-cost-the-job"}) in parts.elements
    assert "what-ranks-cost-the-job" not in {a.get("data-chart") for _, a in parts.elements}
    figures.write(charts, tmp_path / "figures")
    assert not list((tmp_path / "figures").glob("what-ranks*"))


def test_charts_without_data_are_named_with_what_to_record() -> None:
    charts = gather.charts_of(gather.JobResults(hostile_trace()))
    (needs,) = [n for n, titles in charts.missing.items() if "Power over time" in titles]
    assert "amd-smi" in needs


@pytest.mark.parametrize(
    ("sampled", "unit"),
    slow_from(
        [("socket power", "W"), ("", ""), ("temperature hotspot", "°C"), ("gfx clock", "MHz")], 1
    ),
)
def test_charts_of_runs_lack_what_no_run_has(sampled: str, unit: str) -> None:
    """`sweep` leaves out columns without values: these charts failed, with status 70, where one has power alone."""
    builder = TraceBuilder()
    if sampled:
        number = builder.series(0, sampled, unit, "amd-smi", device=0)
        builder.samples(number, np.arange(4) * 1000, np.full(4, 500.0))
    runs = [Run("plain", lambda: gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 1000)]), "a")]
    runs.append(Run("sampled", builder.finish, "b"))
    job = gather.JobResults(gpu_work.trace([gpu_work.Work(Kind.KERNEL, 0, 2000)]), runs=runs)
    assert gather.charts_of(job).failed == {}


def test_a_job_without_steps_has_no_length_of_a_step() -> None:
    work = [gpu_work.Work(Kind.KERNEL, 0, 1000)]
    assert [tile.name for tile in summary.tiles(gather.JobResults(gpu_work.trace(work)))][:2] == [
        "time",
        "compute",
    ]


def test_telemetry_alone_has_no_length() -> None:
    """A tile said that the job took 0 ns."""
    assert "time" not in [
        tile.name for tile in summary.tiles(gather.JobResults(gpu_work.trace([])))
    ]


def test_an_empty_trace_has_a_report() -> None:
    parts = Parts(report_of(gpu_work.trace([])))
    assert not [a for _, a in parts.elements if "data-chart" in a]


@pytest.mark.slow
@pytest.mark.parametrize(("size", "scheme"), [(browser.DESKTOP, "dark"), (browser.PHONE, "light")])
def test_the_demo_on_a_phone_and_in_the_dark(
    demo: Path, tmp_path: Path, size: dict[str, int], scheme: str
) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_of(read_once(demo)), "utf-8")
    with browser.opened(path, size, scheme) as shown:
        assert shown.undrawn() == []
        assert shown.complaints == []
        assert shown.page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        kernels = shown.page.locator("[data-table='All kernels']")
        kernels.get_by_role("searchbox").fill("NCCL")
        names = kernels.locator("tbody tr td:first-child").all_inner_texts()
        assert names
        assert all("nccl" in name.lower() for name in names)
        findings = shown.page.locator("[data-table=Findings] .table")
        is_whole = findings.evaluate("e => e.scrollWidth <= e.clientWidth")
        assert is_whole or size is browser.PHONE


@pytest.mark.slow
def test_a_real_job_is_below_10_megabytes_and_soon_there(shared: Path, tmp_path: Path) -> None:
    folder = shared / "pytorch" / "ddp_resnet_4rank_amd"
    path = tmp_path / "report.html"
    path.write_text(report_of(ci.read(*sorted(folder.glob("rank?.json.gz")))), "utf-8")
    assert path.stat().st_size < 10e6
    with browser.opened(path) as shown:
        # charts are drawn when they come near the window, and how far down the first is depends on the findings
        shown.page.locator("[data-chart]").first.scroll_into_view_if_needed()
        shown.page.wait_for_selector("[data-chart][data-drawn]")
        assert shown.page.evaluate("performance.now()") < 2000


def large_job(ranks: int = 64, steps: int = 3, kernels: int = 200) -> ci.Trace:
    """Many ranks with kernels of long names, collectives, and 1000 samples of four quantities each."""
    works = [
        gpu_work.Work(Kind.COMM if i % 20 == 19 else Kind.KERNEL, 10_000 * (step * kernels + i) + rank, 9000,
                      rank, stream=i % 20 == 19, name=f"void at::native::kernel<{i % 50}, {'x' * 200}>",
                      iteration=step, operation=f"aten::op{i % 30}", collective="all_reduce" * (i % 20 == 19))
        for rank in range(ranks) for step in range(steps) for i in range(kernels)
    ]  # fmt: skip
    trace = gpu_work.trace(works)
    quantities = (
        ("gfx clock", "MHz"),
        ("socket power", "W"),
        ("temperature hotspot", "°C"),
        ("GFX activity", "%"),
    )
    rows = [
        (rank, 0, name, unit, "amd-smi", 0) for rank in range(ranks) for name, unit in quantities
    ]
    names = hub.schema("series").names
    series = pa.table(
        dict(zip(names, zip(*rows, strict=True), strict=True)), schema=hub.schema("series")
    )
    owner = np.repeat(np.arange(len(rows), dtype=np.int32), 1000)
    ts = np.tile(np.linspace(0, 10_000 * steps * kernels, 1000).astype(np.int64), len(rows))
    value = 50 + 40 * np.random.default_rng(1).random(len(ts))
    samples = pa.table({"series": owner, "ts": ts, "value": value}, schema=hub.schema("samples"))
    return replace(trace, series=series, samples=samples)


@pytest.mark.slow
def test_a_job_of_64_ranks_is_below_25_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(report_of(large_job()), "utf-8")
    assert path.stat().st_size < 25e6
    with browser.opened(path) as shown:
        assert shown.undrawn() == []
        assert shown.complaints == []


def test_long_names_and_captions_do_not_widen_a_picture() -> None:
    """A third of the picture of clocks and kernels was blank, beside its chart."""
    frame = pd.DataFrame(
        {"a": range(5), "b": range(5), "kernel": [f"{i}{'n' * 28}" for i in range(5)]}
    )
    for caption in (
        "",
        "What it is, and of what. " * 9,
    ):  # half of a picture was blank below a long caption
        svg, _ = specifications.pictures(
            forms.points(frame, ("a", "b"), "kernel", caption), "Title"
        )
        assert float(re.search(r'width="([0-9.]+)"', svg)[1]) < 740


@pytest.mark.slow
def test_charts_need_no_home() -> None:
    """As for a user without HOME and without an entry in the list of users, in a container."""
    code = (
        "import os, pwd\n"
        "def nobody(uid): raise KeyError(uid)\n"
        "pwd.getpwuid = nobody\n"
        "from chopper_interop.plots import library\n"
        "library.require()\n"
        "assert 'HOME' not in os.environ"
    )
    environment = {name: text for name, text in os.environ.items() if name != "HOME"}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)

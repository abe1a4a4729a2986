"""Screenshots of the report on the sample job: each section, light and dark, and the page on a phone.

Usage: report_pictures.py FOLDER [JOB]. Needs the extra report, playwright, and a Chromium.
"""

import sys
import tempfile
from pathlib import Path

import browser

import chopper_interop as ci
from chopper_interop.demo import make_demo
from chopper_interop.report import gather, page

_UNSTICK = "document.querySelector('nav').style.position = 'static'"
"""Keeps the bar of sections where it is, which would else lie over what is below it in the pictures."""


def make_report(job: Path, path: Path) -> None:
    """Write the report of a job."""
    collected = gather.Job(ci.read(job))
    path.write_text(page.make_page(collected, gather.charts_of(collected, for_page=True)), "utf-8")


def take(path: Path, folder: Path) -> None:
    """Take a picture of each section, and of the whole page on a phone."""
    for scheme in ("light", "dark"):
        with browser.opened(path, browser.DESKTOP, scheme) as shown:
            shown.undrawn()
            shown.page.evaluate(_UNSTICK)
            for section in shown.page.query_selector_all("main > section"):
                name = section.get_attribute("id")
                section.screenshot(path=folder / f"report-{name}-{scheme}.png")
    with browser.opened(path, browser.PHONE) as shown:
        shown.undrawn()
        shown.page.evaluate(_UNSTICK)
        shown.page.screenshot(path=folder / "report-phone.png", full_page=True)


def main(folder: str, job: str = "") -> None:
    """Make the report and its pictures."""
    Path(folder).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "report.html"
        make_report(Path(job) if job else make_demo(Path(made) / "job"), path)
        take(path, Path(folder))


if __name__ == "__main__":
    main(*sys.argv[1:])

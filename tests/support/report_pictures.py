"""Screenshots of reports: each section, light, dark, and on a phone.

Usage: report_pictures.py FOLDER. Takes the sample job and, where ../shared is, the 4-rank AMD job. Needs the
extra report, playwright, and a Chromium.
"""

import sys
import tempfile
from pathlib import Path

import browser

import chopper_interop as ci
from chopper_interop.demo import make_demo
from chopper_interop.report import gather, page

AMD = Path(__file__).resolve().parents[3] / "shared/data/pytorch/ddp_resnet_4rank_amd"
SCREENS = {
    "light": (browser.DESKTOP, "light"),
    "dark": (browser.DESKTOP, "dark"),
    "phone": (browser.PHONE, "light"),
}
_UNSTICK = "document.querySelector('nav').style.position = 'static'"
"""Keeps the bar of sections where it is, which would else lie over what is below it in the pictures."""


def make_report(sources: list[Path], path: Path) -> None:
    """Write the report of a job."""
    collected = gather.JobResults(ci.read(*sources))
    path.write_text(page.make_page(collected, gather.charts_of(collected, for_page=True)), "utf-8")


def take(path: Path, folder: Path, name: str) -> None:
    """Take a picture of each section on each kind of screen."""
    for screen, (size, scheme) in SCREENS.items():
        with browser.opened(path, size, scheme) as shown:
            shown.undrawn()
            shown.page.evaluate(_UNSTICK)
            for section in shown.page.query_selector_all("main > section"):
                title = section.get_attribute("id")
                section.screenshot(path=folder / f"{name}-{title}-{screen}.png")


def main(folder: str) -> None:
    """Make the reports and their pictures."""
    Path(folder).mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        jobs = {"report": [make_demo(Path(made) / "job")]}
        if AMD.is_dir():
            jobs["report-amd-4-ranks"] = sorted(AMD.glob("rank*.json.gz"))
        for name, sources in jobs.items():
            path = Path(made) / f"{name}.html"
            make_report(sources, path)
            take(path, Path(folder), name)


if __name__ == "__main__":
    main(*sys.argv[1:])

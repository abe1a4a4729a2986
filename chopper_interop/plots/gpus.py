"""Charts of GPUs' telemetry: heat maps over time, and how clock, power and temperature go together."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop.analyses.methods.activity import windows
from chopper_interop.analyses.methods.fleet import means, places
from chopper_interop.analyses.methods.series import samples as series_samples
from chopper_interop.annotate.telemetry import lines, quantity_series
from chopper_interop.plots import forms
from chopper_interop.plots.tables import averaged, summed
from chopper_interop.result import Result
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from chopper_interop.plots.forms import Chart

_BINS = 160
"""Spans of time of a heat map, if that is not too many of all GPUs. Chosen: some pixels each."""
_SECOND = 1e9
_QUANTITIES = {
    "core clock (MHz)": (quantity_series.GFXCLK, 1.0),
    "memory clock (MHz)": (quantity_series.MEMCLK, 1.0),
    "power (W)": (quantity_series.POWER, 1.0),
    "temperature (°C)": (quantity_series.TEMPERATURE, 1.0),
    "utilisation (%)": (quantity_series.UTILIZATION, 100.0),
    "throttled (%)": (quantity_series.THROTTLE, 100.0),
}
"""Quantities by their label, and the factor to its unit."""


def over_time(trace: Trace, bins: int = _BINS) -> pd.DataFrame:
    """Means of each GPU's telemetry in equal spans of time while it worked.

    Returns
    -------
    DataFrame
        One row for each GPU and span: `GPU`, `from` and `to` (seconds since the trace's origin),
        and a column for each quantity, with its unit; null where it is not known.
    """
    import pandas as pd

    quantities = [quantity for quantity, _ in _QUANTITIES.values()]
    all_places = [place for place in places.find_places(trace, quantities) if place.gpu.sources]
    empty = pd.DataFrame(columns=["GPU", "from", "to", *_QUANTITIES])
    if not all_places:
        return empty
    first = min(w.start_ns for place in all_places for w in place.windows)
    last = max(w.end_ns for place in all_places for w in place.windows)
    count = min(bins, max(forms.MAX_CELLS // len(all_places), 1)) if bins == _BINS else bins
    edges = np.linspace(first, last, count + 1).astype(np.int64)
    return pd.concat([_of_place(place, edges) for place in all_places], ignore_index=True)


def _of_place(place: places.GpuPlace, edges: Any) -> pd.DataFrame:
    import pandas as pd

    columns: dict[str, Any] = {
        "GPU": place.name, "from": edges[:-1] / _SECOND, "to": edges[1:] / _SECOND
    }  # fmt: skip
    for label, (quantity, factor) in _QUANTITIES.items():
        best = means.mean(place.gpu, quantity, edges[:-1], edges[1:])
        columns[label] = np.nan if best is None else best.values * factor  # noqa: PD011 # of a tuple
    return pd.DataFrame(columns)


def heat_map(trace: Trace, quantity: str) -> Chart:
    """One quantity of every GPU over time, of a trace with telemetry."""
    frame = over_time(trace)[["GPU", "from", "to", quantity]].dropna()
    text = f"{quantity[:1].upper()}{quantity[1:]} of each GPU, means of {frame['from'].nunique()} spans of time."
    return forms.time_map(frame, "GPU", quantity, text)


core_clock_over_time = partial(heat_map, quantity="core clock (MHz)")
memory_clock_over_time = partial(heat_map, quantity="memory clock (MHz)")
power_over_time = partial(heat_map, quantity="power (W)")
temperature_over_time = partial(heat_map, quantity="temperature (°C)")
utilisation_over_time = partial(heat_map, quantity="utilisation (%)")
throttling_over_time = partial(heat_map, quantity="throttled (%)")


def clock_and_power(trace: Trace) -> Chart:
    """Core clock against power at the same time, of a trace with telemetry."""
    return _pairs(
        trace, "power (W)", "Core clock against power of each GPU in equal spans of time."
    )


def clock_and_temperature(trace: Trace) -> Chart:
    """Core clock against temperature at the same time, of a trace with telemetry."""
    text = "Core clock against temperature of each GPU in equal spans of time."
    return _pairs(trace, "temperature (°C)", text)


def _pairs(trace: Trace, other: str, text: str) -> Chart:
    frame = over_time(trace)[["GPU", "from", other, "core clock (MHz)"]]
    return forms.points(frame, (other, "core clock (MHz)"), "GPU", text, tips=("from",))


def power_distribution(trace: Trace) -> Chart:
    """Distribution of each GPU's power over time, of a trace with telemetry."""
    frame = over_time(trace, 1000)[["GPU", "power (W)"]]
    text = "Share of the time in which each GPU's power is lower: a wall at the right is a cap."
    return forms.distribution(frame, "power (W)", "GPU", text)


def total_power(trace: Trace) -> Chart:
    """Power of all GPUs together over time, of a trace with telemetry."""
    frame = over_time(trace)
    total = frame.groupby("from", sort=True)["power (W)"].sum(min_count=frame["GPU"].nunique())
    table = total.reset_index().rename(columns={"from": "time (s)"}).assign(of="all GPUs")
    text = "Power of all GPUs together, where that of every one is known."
    return forms.lines(table, ("time (s)", "power (W)"), "of", text, stepped=True)


def processors_over_time(trace: Trace) -> Chart:
    """Use of the nodes' processors over time, of a trace with samples of them."""
    import pandas as pd

    wanted = (s for s in series_samples.read(trace, "", _is_processor))
    span = windows.rank_windows(trace)
    if not span:
        return None
    edges = np.linspace(
        min(w.start_ns for w in span), max(w.end_ns for w in span), _BINS + 1
    ).astype(np.int64)
    parts = [
        pd.DataFrame({
            "time (s)": edges[:-1] / _SECOND,
            "processors (%)": lines.from_samples([s.samples]).means(edges[:-1], edges[1:])[0],
            "series": f"{s.place.host} {s.name}".strip(),
        })
        for s in wanted
    ]  # fmt: skip
    if not parts:
        return None
    axes = "time (s)", "processors (%)"
    text = "Use of the nodes' processors, as sampled."
    return forms.lines(pd.concat(parts), axes, "series", text, stepped=True)


def _is_processor(series: dict[str, Any]) -> bool:
    return series["unit"] == "%" and "CPU" in series["name"]


def energy_by_rank(result: Result) -> Chart:
    """Energy of each rank's GPU by what it did, of `energy` by rank."""
    frame = summed(result, "rank").dropna(subset=["energy_j"])
    parts = {
        "compute": "compute_j",
        "communication": "comm_j",
        "copies": "copy_j",
        "idle": "idle_j",
    }
    text = "Energy of each rank's GPU by what ran."
    return forms.stacked_bars(frame, "rank", parts, "energy (J)", text)


def gpu_differences(result: Result) -> Chart:
    """Distance of each GPU from the median of all, of `imbalance` by rank."""
    import pandas as pd

    frame = averaged(result, "rank").dropna(subset=["rank"])  # telemetry alone has none
    if frame.empty:
        return None
    ratios = {
        "kernel time": "slowdown_factor",
        "core clock": "gfxclk_ratio",
        "power": "power_ratio",
    }
    parts = [
        pd.DataFrame({"rank": frame["rank"], "quantity": label,
                      "from the median (%)": 100 * (frame[column] - 1)})
        for label, column in ratios.items()
    ]  # fmt: skip
    text = "Difference of each GPU to the median of all: kernel time, clock and power."
    return forms.heat_map(
        pd.concat(parts), ("rank", "quantity"), "from the median (%)", text, middle=0.0
    )


def temperature_by_place(result: Result) -> Chart:
    """Mean temperature of each GPU by its place in the node, of `imbalance` by rank."""
    frame = averaged(result, "host", "gpu_index").dropna(subset=["temperature_c", "gpu_index"])
    place = "GPU in its node"
    frame = frame.assign(
        **{place: frame["gpu_index"], "mean temperature (°C)": frame["temperature_c"]}
    )
    frame = frame.assign(node=frame["host"].fillna("").replace("", "node"))
    text = "Mean temperature of each GPU: those at the rear of a chassis are often hotter."
    return forms.heat_map(frame, (place, "node"), "mean temperature (°C)", text)


def throttle_causes(result: Result) -> Chart:
    """Time in which clocks were held down, by cause, of `throttling` by rank."""
    frame = averaged(result, "rank", "cause")
    frame = frame[(frame["cause"] != "any") & (frame["throttled_share"] > 0)]
    frame = frame.assign(share=100 * frame["throttled_share"])
    wide = frame.pivot_table(index="rank", columns="cause", values="share").reset_index()
    parts = {c: c for c in wide.columns if c != "rank"}
    text = "Time in which each GPU's clock was held down, by cause; causes may overlap."
    unit = "% of the time" if len(parts) > 1 else f"{', '.join(parts)}: % of the time"
    return forms.stacked_bars(wide, "rank", parts, unit, text)

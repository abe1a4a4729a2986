"""Queries of tests about traces of telemetry."""

from collections import defaultdict

import chopper_interop as ci


def lanes(trace: ci.Trace) -> dict[tuple[int, str], list[float]]:
    """Values of each lane of each GPU, in the order of time."""
    return {key: [value for _, value in points] for key, points in points_of(trace).items()}


def points_of(trace: ci.Trace) -> dict[tuple[int, str], list[tuple[int, float]]]:
    """Times, in nanoseconds on the trace's clock, and values of each lane of each GPU."""
    series = trace.series.to_pylist()
    samples = trace.samples.to_pydict()
    result = defaultdict(list)
    for row, ts, value in zip(samples["series"], samples["ts"], samples["value"], strict=True):
        key = (series[row]["device"], series[row]["name"])
        result[key].append((ts + trace.meta.origin_ns, value))
    return dict(result)


def units(trace: ci.Trace) -> dict[str, str]:
    """Unit of each lane by its name."""
    return {s["name"]: s["unit"] for s in trace.series.to_pylist()}


def assert_all_rows_counted(trace: ci.Trace) -> None:
    """Every row of the input is counted by exactly one issue."""
    counted = sum(issue.count for issue in trace.meta.issues if issue.events)
    assert trace.meta.sources[0].events == counted

"""GPUs that a profile samples under numbers of the management tool: whose they are, by the user."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.gpus import devices
from chopper_interop.schemas.meta import DeviceMatch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.gpus.devices import Rule
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.joining.telemetry import Owner
    from chopper_interop.schemas.meta import Rank
    from chopper_interop.trace import Trace

_MONITOR = re.compile(r"gpu (\d{1,6}) (.+)")
"""Name of a series of no device: a number by the management tool, and what is sampled."""


def numbers(trace: Trace) -> list[int]:
    """Numbers of GPUs that are sampled and of which it is not known which they are."""
    return sorted({number for one in trace.series.to_pylist() if (number := _number(one)) >= 0})


def _number(series: dict[str, Any]) -> int:
    found = _MONITOR.fullmatch(series["name"]) if series["device"] < 0 else None
    return int(found[1]) if found else -1


def told(fragment: Fragment, rules: Sequence[Rule], ranks: dict[int, Rank]) -> Fragment:
    """A profile whose samples are of the GPUs that the user says.

    Parameters
    ----------
    fragment
        The profile.
    rules
        What the user says of devices.
    ranks
        The ranks of the job.
    """
    trace, path = fragment.trace, str(fragment.files.paths[0])
    said = devices.told(rules, fragment.files.converter.name, path, numbers(trace))
    if not said:
        return fragment
    owners: dict[int, Owner] = {n: devices.owner(rule, n, ranks) for n, rule in said.items()}
    rows = trace.series.to_pylist()
    for series in rows:
        if (number := _number(series)) in owners:
            series["rank"], series["device"] = owners[number]
            series["name"] = series["name"].split(" ", 2)[2]
    found = [DeviceMatch(path, n, d, r, devices.BY_USER) for n, (r, d) in owners.items()]
    matches = (*trace.meta.device_matches, *found)
    table = pa.Table.from_pylist(rows, schema=trace.series.schema)
    return replace(fragment, trace=replace(trace.with_meta(device_matches=matches), series=table))

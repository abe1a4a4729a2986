"""GPUs that a profile samples under numbers of a management tool, assigned by the user."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from chopper_interop.gpus import devices
from chopper_interop.schemas.meta import DeviceMatch, Rank
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.gpus.devices import DeviceRule
    from chopper_interop.joining.fragment import Fragment
    from chopper_interop.joining.telemetry import Owner

_MONITOR = re.compile(r"gpu (\d{1,6}) (.+)")
"""Name of a series without device: a number of the management tool, and the quantity sampled."""


def unassigned_numbers(trace: Trace) -> list[int]:
    """Numbers of sampled GPUs that are not known to be any device of the trace, ascending."""
    # a table without rows takes a hundred microseconds to become a list, for each of thousands of ranks
    rows = trace.series.to_pylist() if trace.series.num_rows else []
    numbers = {_unassigned_number(series) for series in rows}
    return sorted(numbers - {-1})


def _unassigned_number(series: dict[str, Any]) -> int:
    """Number of the management tool in the name of a series; -1 if there is none."""
    match = _MONITOR.fullmatch(series["name"]) if series["device"] < 0 else None
    return int(match[1]) if match else -1


def assign_by_rules(
    fragment: Fragment, rules: Sequence[DeviceRule], ranks: dict[int, Rank]
) -> Fragment:
    """Assign the samples of a profile to the GPUs that the user states.

    Parameters
    ----------
    fragment
        The profile.
    rules
        Devices that the user states.
    ranks
        The ranks of the job.
    """
    trace, path = fragment.trace, str(fragment.path)
    rule_of = devices.rules_by_number(
        rules, fragment.files.converter.name, path, unassigned_numbers(trace)
    )
    if not rule_of:
        return fragment
    owners: dict[int, Owner] = {
        n: devices.owner_by_rule(rule, n, ranks) for n, rule in rule_of.items()
    }
    rows = trace.series.to_pylist()
    for series in rows:
        if (number := _unassigned_number(series)) in owners:
            series["rank"], series["device"] = owners[number]
            series["name"] = series["name"].split(" ", 2)[2]
    by_user = [DeviceMatch(path, n, d, r, devices.BY_USER) for n, (r, d) in owners.items()]
    matches = (*trace.meta.device_matches, *by_user)
    table = pa.Table.from_pylist(rows, schema=trace.series.schema)
    return replace(fragment, trace=replace(trace.with_meta(device_matches=matches), series=table))

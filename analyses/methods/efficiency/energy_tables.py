"""Energy of windows as rows: of GPUs, ranks, nodes and steps, idle time and all; or of groups of work."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping
from chopper_interop.arrays import Array, arrow, gather
from chopper_interop.gpus.devices import only_host
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.efficiency.energy_checks import Check
    from chopper_interop.analyses.methods.efficiency.energy_parts import EnergyPart
    from chopper_interop.annotate.telemetry.quantity_series import SeriesPattern

    Row = dict[str, Any]

NODE = "node"
"""Grain of machines; its column is `host`."""
_CLASSES = ("compute_j", "comm_j", "copy_j")
SUMS = ("energy_j", "work_j", "cut_j", "idle_j", *_CLASSES)
_WHOLES = ("window_ns", "covered_ns", "telemetry_ns")
_COUNTS = ("gpus", "gpus_without_power")
_CHECKS = (
    "trapezoid_j", "trapezoid_resolution_j", "counter_j", "counter_resolution_j", "difference_share",
)  # fmt: skip
_OF_GPU = ("mean_power_w", "peak_power_w", *_CHECKS)
_TEXTS = ("counter_verdict", "energy_by", "source")
WITHIN, OUTSIDE = "within", "outside"
"""Verdicts: displayed power and counter differ by no more than both resolutions, or by more."""
COUNTER, TRAPEZOID, WINDOWS = "counter", "trapezoid", "windows"
"""Methods by which energy is known."""
_COLUMNS = ("window_ns", "covered_ns", *SUMS, *_OF_GPU, "telemetry_ns", *_TEXTS)
_TYPES = (
    dict.fromkeys((*_WHOLES, *_COUNTS), pa.int64())
    | dict.fromkeys((*SUMS, *_OF_GPU), pa.float64())
    | dict.fromkeys(_TEXTS, pa.string())
)
OF_WORK = ("work_j", "cut_j", "idle_j", *_CLASSES)
"""Columns that are unknown without work."""
_NOBODY = -1
"""The rank of GPUs of which no rank is known."""
_KEYS = {"rank": pa.int64(), "device": pa.int64(), "iteration": pa.int32(), "host": pa.string()}


def grains(by: str, steps: str) -> tuple[str, ...]:
    """Names in `by`, each once, without ``job``; in windows of steps, the step is one of them.

    Raises
    ------
    UsageError
        One of them is neither of `grouping.GRAINS` nor `NODE`.
    """
    requested = grouping.parse_grains(by, (NODE,))
    return grouping.with_iteration(requested) if steps else requested


def has_idle_time(names: Iterable[str], steps: str) -> bool:
    """True if groups are of ranks, nodes and windows alone, so that they have idle time too."""
    return set(names) <= ({"rank", NODE, "iteration"} if steps else {"rank", NODE})


def summary(trace: Trace, parts: Sequence[EnergyPart]) -> Row:
    """Sums over all, and of how many ranks energy is known."""
    known = [part for part in parts if part.window is not None]
    sums = _sums(trace, parts)
    unknown = {part.rank for part in parts if part.window is None}
    return {name: sums[name] if known else None for name in SUMS} | {
        "ranks_known": len({part.rank for part in known} - {_NOBODY}),
        "ranks_unknown": len(unknown - {_NOBODY}),
    }


def gpu_table(trace: Trace, parts: Sequence[EnergyPart], names: Sequence[str]) -> pa.Table:
    """Energy of GPUs, ranks, nodes or the job, of each window of them."""
    hosts = _hosts(trace, parts)
    cells: dict[tuple[Any, ...], list[EnergyPart]] = {}
    for part in parts:
        columns_of_keys = {
            "rank": None if part.rank == _NOBODY else part.rank,
            NODE: hosts[part.rank] or None,
            "iteration": part.iteration,
        }
        device = (part.device,) if "rank" in names else ()
        cells.setdefault((*(columns_of_keys[name] for name in names), *device), []).append(part)
    keys = [_column(name) for name in names]
    keys += ["device"] if "rank" in names else []
    order = sorted(cells, key=lambda cell: tuple((value is not None, value) for value in cell))
    rows = [dict(zip(keys, cell, strict=True)) | _row(trace, cells[cell]) for cell in order]
    counts = () if "rank" in names else _COUNTS
    if not keys:
        keys, rows = ["job"], [row | {"job": trace.meta.job} for row in rows]
    placed = sorted(keys, key=lambda key: (key != "rank", key != "device"))
    types = _TYPES | {"job": pa.string()} | _KEYS
    columns = (*placed, *counts, *_COLUMNS)
    return pa.Table.from_pylist(rows, pa.schema([(name, types[name]) for name in columns]))


def work_table(
    trace: Trace, parts: Sequence[EnergyPart], names: Sequence[str], *, stepped: bool
) -> pa.Table:
    """Energy of groups of work, the most first; in windows of steps, step by step.

    Parameters
    ----------
    trace, parts
        The trace, and the energy of its GPUs.
    names
        Columns to group by.
    stepped
        True if parts are of windows of steps.
    """
    none = [np.zeros(0, np.int64)]
    rows = np.concatenate([part.rows for part in parts] or none)
    each = np.concatenate([part.of_each for part in parts] or none)
    cut = np.concatenate([part.cut_of_each for part in parts] or none)
    number = np.repeat(np.arange(len(parts)), [len(part.rows) for part in parts])
    codes_of_names = [_coded(trace, parts, name, rows, number, stepped=stepped) for name in names]
    first, code = gather.distinct(*(codes for codes, _ in codes_of_names))
    count = len(first)
    known = np.bincount(code[~np.isnan(each)], minlength=count)
    work = np.bincount(code, np.nan_to_num(each), count)
    lost = np.bincount(code, cut, count)
    idle = sum(part.idle_j for part in parts)
    total = float(work.sum() + lost.sum()) + idle
    blank = (known == 0) & (lost == 0)
    figures: dict[str, Array] = {"energy_j": work + lost, "work_j": work, "cut_j": lost}
    figures["energy_share"] = (work + lost) / total if total else np.zeros(count)
    keys = {
        _column(name): values(codes[first])
        for name, (codes, values) in zip(names, codes_of_names, strict=True)
    }
    counts = {"pieces": np.bincount(code, minlength=count), "energy_known": known}
    table = pa.table(
        keys
        | {name: arrow.array(values.astype(np.int64)) for name, values in counts.items()}
        | {name: arrow.array(values, mask=blank) for name, values in figures.items()}
    )
    keyed = [codes[first] for codes, _ in codes_of_names]
    step = keyed[names.index("iteration")] if stepped else np.zeros(count, np.int64)
    return arrow.take(table, np.lexsort((*reversed(keyed), -(work + lost), step)))


def _column(grain: str) -> str:
    return "host" if grain == NODE else grain


def _coded(
    trace: Trace,
    parts: Sequence[EnergyPart],
    name: str,
    rows: Array,
    number: Array,
    *,
    stepped: bool,
) -> tuple[Array, Any]:
    """A code for each piece, and what turns codes into the values of a column."""
    if name == "iteration" and stepped:
        steps = np.array([part.iteration for part in parts], np.int64)
        return steps[number], lambda used: arrow.array(used.astype(np.int32))
    if name == NODE:
        hosts = _hosts(trace, parts)
        texts = sorted(set(hosts.values()))
        host_of_part = np.array([texts.index(hosts[part.rank]) for part in parts], np.int64)
        return host_of_part[number], lambda used: pa.array(
            [texts[i] or None for i in used], pa.string()
        )
    groups = grouping.group_nodes(trace, rows, name)
    return groups.code, lambda used: arrow.take(arrow.single_chunk(groups.keys[name]), used)


def _hosts(trace: Trace, parts: Sequence[EnergyPart]) -> dict[int, str]:
    """The node of each rank; if its source names none, the trace's only node, else empty."""
    by_rank = {rank.rank: rank.host for rank in trace.meta.ranks}
    only = only_host(trace)
    return {part.rank: by_rank.get(part.rank) or only for part in parts}


def _sums(trace: Trace, parts: Sequence[EnergyPart]) -> dict[str, float]:
    """Energies of parts, summed; 0 of those that are not known."""
    by_class = np.zeros(3)
    cut = idle = 0.0
    for part in parts:
        classes = grouping.work_classes(trace, part.rows)
        by_class += np.bincount(classes, np.nan_to_num(part.of_each), 3)
        cut += float(part.cut_of_each.sum())
        idle += part.idle_j
    work = float(by_class.sum())
    sums = {"energy_j": work + cut + idle, "work_j": work, "cut_j": cut, "idle_j": idle}
    return sums | dict(zip(_CLASSES, by_class.tolist(), strict=True))


def _row(trace: Trace, parts: Sequence[EnergyPart]) -> Row:
    known = [part for part in parts if part.window is not None]
    gpus = _gpus(known)
    counts = {"gpus": gpus, "gpus_without_power": _gpus(parts) - gpus}
    if not known:
        return dict.fromkeys(_COLUMNS) | counts
    # those that share a GPU have its window in common
    measured = {(id(p.window.gpu), p.window.start_ns): p.window for p in known if p.window}.values()
    covered = sum(window.shared.covered_ns for window in measured)
    total = sum(window.shared.total for window in measured)
    by = dict.fromkeys(_method_of(s.pattern) for window in measured for s, _ in window.powers)
    tools = dict.fromkeys(tool for window in measured for tool in window.tools)
    sums = _sums(trace, known) | counts
    return (
        sums
        | {
            "window_ns": sum(window.end_ns - window.start_ns for window in measured),
            "covered_ns": covered,
            "mean_power_w": total / (covered * 1e-9),
            "peak_power_w": max(window.peak_w for window in measured),
            "energy_by": ", ".join(by),
            "telemetry_ns": max(window.resolution_ns for window in measured),
            "source": ", ".join(tools),
        }
        | _compared([window.check for window in measured])
    )


def _compared(checks: Sequence[Check]) -> Row:
    """Shown power against counters; of several GPUs where all are known."""
    shown = _sum(check.trapezoid_j for check in checks)
    counter = _sum(check.counter_j for check in checks)
    of_shown = _sum(check.trapezoid_resolution_j for check in checks)
    of_counter = _sum(check.counter_resolution_j for check in checks)
    result: Row = {
        "trapezoid_j": shown,
        "trapezoid_resolution_j": of_shown,
        "counter_j": counter,
        "counter_resolution_j": of_counter,
        "difference_share": None,
        "counter_verdict": None,
    }
    if shown is None or counter is None or of_shown is None or of_counter is None:
        return result
    is_within = abs(shown - counter) <= of_shown + of_counter
    result["counter_verdict"] = WITHIN if is_within else OUTSIDE
    result["difference_share"] = shown / counter - 1 if counter else None
    return result


def _method_of(pattern: SeriesPattern) -> str:
    """Name the method by which a source gives energy."""
    return WINDOWS if pattern.is_window else COUNTER if pattern.is_counter else TRAPEZOID


def _gpus(parts: Sequence[EnergyPart]) -> int:
    """Count the GPUs of parts; each die of a module counts."""
    return sum(len(dies) for dies in {id(part.board): part.board.dies for part in parts}.values())


def _sum(values: Iterable[float | None]) -> float | None:
    """Sum; None unless all are known."""
    numbers = list(values)
    known = [value for value in numbers if value is not None]
    return sum(known) if len(known) == len(numbers) else None

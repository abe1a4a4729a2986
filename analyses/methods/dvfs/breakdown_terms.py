"""Terms of each kernel's time: its work at peak rate, and the factors that make it longer.

Two terms are nanoseconds at the GPU's highest clock: the FLOPs of the kernel's shapes (``thr``) and
the FLOPs that were counted (`inst`). Three are ratios: idle matrix cores (`util`), overlap with
communication (`overlap`), and the clock (`freq`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.analyses.methods.activity import comm_overlap, pieces, slowdown, windows
from chopper_interop.analyses.methods.dvfs import ideal, sensitivity
from chopper_interop.analyses.methods.dvfs.repeats import mean_of
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.annotate.work import calls, operators
from chopper_interop.arrays import Array, gather
from chopper_interop.gpus import ratings as gpus_ratings
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.gpus.ratings import GpuRating

TYPES = ("f16", "bf16", "f32", "f64", "f8", "xf32", "f6f4")
"""Number types for which counters count the operations of matrix cores."""
_RATE_TYPES = {"f6f4": "f4"}
"""Type as counters name it -> type as the table of rates names it, where the two differ."""
_METRICS = tuple(f"flops_mfma_{kind}" for kind in TYPES)
_ELEMENT_TYPES = (
    (re.compile(r"bfloat16"), "bf16"),
    (re.compile(r"half|float16"), "f16"),
    (re.compile(r"float8"), "f8"),
    (re.compile(r"float4"), "f6f4"),
    (re.compile(r"double|float64"), "f64"),
    (re.compile(r"float"), "f32"),
)
"""Pattern of an operator's element type -> number type; the first match counts."""
_NO_TYPE = -1


@dataclass(frozen=True)
class Terms:
    """Terms of each kernel's time; NaN where unknown.

    Parameters
    ----------
    thr_ns
        FLOPs by shapes at the peak rate of their type and the GPU's highest clock.
    inst_ns
        FLOPs that were counted, at the same rate.
    util
        Cycles of the dispatch over cycles in which its matrix cores were busy; unknown where more
        busy cycles were counted than there can be.
    overlap
        Time while communication ran over time alone at the same clock; 1 if no communication
        overlapped it, or if no kernel like it ran alone.
    freq
        Time at the measured clock over time at the highest clock.
    mem_ns
        Bytes by shapes at the memory's peak bandwidth.
    expected_busy, busy
        Cycles of matrix cores that the counted FLOPs take, and those that were counted.
    borrowed
        Mark kernels whose counters are taken from counted kernels like them.
    uncompared
        Mark kernels overlapped by communication of which none like them ran alone.
    """

    thr_ns: Array
    inst_ns: Array
    util: Array
    overlap: Array
    freq: Array
    mem_ns: Array
    expected_busy: Array
    busy: Array
    borrowed: Array
    uncompared: Array


def time_terms(trace: Trace, rows: Array, gpus: str = "") -> Terms:
    """Split the time of kernels into its terms.

    Parameters
    ----------
    trace
        Trace with FLOPs by shapes; counters and telemetry add the other terms.
    rows
        Rows of kernels that compute.
    gpus
        Path of the user's file of GPUs.
    """
    devices, device = gpus_ratings.rate_gpus_of_nodes(trace, rows, gpus)
    ratings = list(devices.values())
    counters = _Counters.of_kernels(trace, rows, ratings, device)
    kind, of_matrix = _types(trace, rows, counters)
    matrix_rate = _rates(ratings, device, kind)
    vector_rate = _rates(ratings, device, kind, vector=True)
    matrix = of_matrix & ~np.isnan(matrix_rate)
    rate = np.where(matrix, matrix_rate, vector_rate)
    cus, boost, memory = (
        _device_facts(ratings, device, name) for name in ("cus", "boost_mhz", "bandwidth_gbs")
    )
    flops, size = (trace.reals(name, rows) for name in ("flops", "mem_bytes"))
    per_ns = rate * cus * boost / 1e3  # FLOP
    by_vector = counters.vector / (vector_rate * cus * boost / 1e3)
    freq = clock_ratio(trace, rows, gpus, boost=boost, matrix=matrix)
    overlap, uncompared = _overlap_ratio(trace, rows, freq)
    positive = np.where(flops > 0, flops, np.nan)
    inst = np.where(matrix, counters.matrix_ns + _untyped(counters, matrix) / per_ns, by_vector)
    return Terms(
        thr_ns=positive / per_ns,
        inst_ns=np.where(inst > 0, inst, np.nan),
        util=np.where(matrix, counters.util, np.nan),
        overlap=overlap,
        freq=freq,
        mem_ns=size / memory,
        expected_busy=np.where(matrix, counters.expected, np.nan),
        busy=np.where(matrix, counters.busy, np.nan),
        borrowed=counters.borrowed,
        uncompared=uncompared,
    )


def clock_ratio(trace: Trace, rows: Array, gpus: str = "", *, boost: Array, matrix: Array) -> Array:
    """Time of kernels at the measured clock over their time at the highest; NaN where unknown.

    The ratio follows from each kernel's sensitivity to the clock (`sensitivity`). Where that is
    unknown, as for clocks counted by a kernel's own cycles or recorded without their sampling
    period, kernels of matrix cores are taken to follow the clock in full.

    Parameters
    ----------
    trace
        Trace with clocks by telemetry or counters.
    rows
        Rows of kernels.
    gpus
        Path of the user's file of GPUs.
    boost
        Highest clock of each kernel's GPU, MHz.
    matrix
        Mark kernels of matrix cores.
    """
    clock = trace.reals("gfxclk_mhz", rows)
    known = clock > 0
    ratio = _ratio_by_sensitivity(trace, gpus)[rows] if known.any() else np.full(len(rows), np.nan)
    if trace.has("gfxclk_counted_mhz") and not known.all():
        counted_here = np.isin(rows, counter_metrics.counted_in_timing_run(trace))
        counted_mhz = trace.reals("gfxclk_counted_mhz", rows)
        clock = np.where(~known & counted_here, counted_mhz, clock)
    assumed = np.where(matrix & (clock > 0), boost / np.where(clock > 0, clock, np.nan), np.nan)
    return np.where(np.isnan(ratio), assumed, ratio)


def _ratio_by_sensitivity(trace: Trace, gpus: str) -> Array:
    """`clock_ratio` of every node whose clock was measured, by the sensitivities of kernels."""
    known = sensitivity.kernel_sensitivities(trace, gpus)
    node, clocks = known.repeats.node, known.repeats.clocks
    devices, device = gpus_ratings.rate_gpus_of_nodes(trace, node, gpus)
    boost = _device_facts(list(devices.values()), device, "boost_mhz")
    ratio = np.full(trace.nodes.num_rows, np.nan)
    sampled = trace.reals("telemetry_ns", node)
    measured = ~(np.isnan(clocks.mhz) | np.isnan(boost) | np.isnan(sampled))
    if measured.any():
        at_boost = ideal.durations(known, known.ratio(boost)[0], boost)
        rows = node[measured]
        ratio[rows] = np.where(at_boost.key[rows] >= 0, np.exp(-at_boost.log[rows]), np.nan)
    return ratio


@dataclass(frozen=True)
class _Counters:
    """Counters of kernels, or of kernels like them; NaN where unknown."""

    matrix_ns: Array
    """Matrix operations of known types at peak rate and highest clock."""
    expected: Array
    """Busy cycles of matrix cores that these operations take."""
    busy: Array
    """Busy cycles of matrix cores that were counted."""
    util: Array
    """Cycles of the dispatch over busy cycles of its matrix cores."""
    total: Array
    """Matrix operations of all types."""
    typed: Array
    """Matrix operations of known types."""
    vector: Array
    """Operations of vector units."""
    kind: Array
    """Type of most matrix operations, an index of `TYPES`."""
    borrowed: Array
    """Mark kernels that were not counted and have the counters of kernels like them."""

    @classmethod
    def of_kernels(
        cls, trace: Trace, rows: Array, gpus: Sequence[GpuRating], device: Array
    ) -> _Counters:
        """Read the counters of kernels; `device` is the index of each one's GPU in `gpus`."""
        if not trace.counters.num_rows:
            unknown = np.full(len(rows), np.nan)
            return cls(*(unknown,) * 8, borrowed=np.zeros(len(rows), np.bool_))
        names = (*_METRICS, "flops_mfma", "flops_valu", "mfma_busy", "mfma_util")
        own_cycles = _at_rows(trace, rows, counter_metrics.own_cycles(trace))
        node, values = counter_metrics.dispatch_metrics(trace, *names)
        metric = {name: _at_rows(trace, rows, (node, values[name])) for name in names}
        flops = np.array([metric[name] for name in _METRICS])  # [type, kernel]
        some = flops > 0
        rate = np.array([_rates(gpus, device, np.full(len(rows), k)) for k in range(len(TYPES))])
        cus, boost, simds = (
            _device_facts(gpus, device, name) for name in ("cus", "boost_mhz", "simds_per_cu")
        )
        cycles = np.where(some, flops, 0) / np.where(some, rate, 1)
        cycles[some & np.isnan(rate)] = np.nan
        simd_cycles = own_cycles * cus * simds
        util = np.where(
            np.isnan(metric["mfma_busy"]),
            _positive_ratio(100, metric["mfma_util"]),
            _positive_ratio(simd_cycles, metric["mfma_busy"]),
        )
        columns = {
            "matrix_ns": cycles.sum(axis=0) / (cus * boost) * 1e3,
            "expected": cycles.sum(axis=0) * simds,
            "busy": metric["mfma_busy"],
            "util": np.where(util * counter_metrics.TOLERANCE >= 1, util, np.nan),
            "total": metric["flops_mfma"],
            "typed": np.where(some, flops, 0).sum(axis=0),
            "vector": metric["flops_valu"],
            "kind": np.where(some.any(axis=0), np.nan_to_num(flops).argmax(axis=0), np.nan),
        }
        uncounted = np.isnan(metric["flops_mfma"])
        for name in ("matrix_ns", "expected", "typed"):
            columns[name] = np.where(uncounted, np.nan, columns[name])
        borrowed = uncounted & np.isnan(metric["flops_valu"])
        filled = _borrow(trace, rows, device, columns)
        return cls(**filled, borrowed=borrowed & ~np.isnan(filled["total"]))


def _borrow(
    trace: Trace, rows: Array, device: Array, columns: dict[str, Array]
) -> dict[str, Array]:
    """Give kernels that were not counted the means of the same (name, sizes) on the same GPU."""
    sizes = [trace.integers(name, rows) for name in ("flops", "mem_bytes")]
    first, key = gather.distinct(device, trace.array("name")[rows], *sizes)
    filled = {}
    for name, values in columns.items():
        known = np.flatnonzero(~np.isnan(values))
        count = np.bincount(key[known], minlength=len(first))
        total = np.bincount(key[known], values[known], len(first))
        mean = total / np.where(count, count, np.nan)
        if name == "kind":
            mean = np.rint(mean)
        filled[name] = np.where(np.isnan(values), mean[key], values)
    return filled


def _untyped(counters: _Counters, matrix: Array) -> Array:
    """Counted matrix operations of unknown type, which are taken to be of the operator's type."""
    rest = np.nan_to_num(counters.total - counters.typed)
    return np.where(matrix & (rest > 0), rest, 0.0)


def _types(trace: Trace, rows: Array, counters: _Counters) -> tuple[Array, Array]:
    """Type of each kernel's operations, an index of `TYPES`, and a mask of matrix operations."""
    counted_kind = np.where(np.isnan(counters.kind), _NO_TYPE, counters.kind).astype(np.int64)
    kind, of_matrix = operator_types(trace, rows)
    kind = np.where(counted_kind >= 0, counted_kind, kind)
    is_counted = ~np.isnan(counters.total)
    return kind, np.where(is_counted, counters.total > 0, of_matrix)


def operator_types(trace: Trace, rows: Array) -> tuple[Array, Array]:
    """Read the type of the first input of each kernel's operator.

    Returns
    -------
    kind
        Index of `TYPES` for each kernel; -1 where unknown.
    matrix
        Mark kernels of operators that multiply matrices.
    """
    kind, matrix = (
        np.full(trace.nodes.num_rows, _NO_TYPE),
        np.zeros(trace.nodes.num_rows, np.bool_),
    )
    if not trace.has("flops"):
        return kind[rows], matrix[rows]
    kernels, owner = operators.kernel_operators(trace)
    operator, number = np.unique(owner, return_inverse=True)
    (location,) = arguments.find(trace, operator, "Input type")
    code, values = arguments.values_at(trace.text, location)
    of_value = np.array([*map(_type_number, values), _NO_TYPE])
    kind[kernels] = of_value[code][number]
    rules = [operators.find_rule(name) for name in trace.names()]
    is_product = np.array([r is not None and r[0] == calls.MATRIX for r in rules], np.bool_)
    matrix[kernels] = is_product[trace.array("name")[owner]]
    return kind[rows], matrix[rows]


def _type_number(input_types: Any) -> int:
    """Index in `TYPES` of the first floating-point tensor among an operator's inputs."""
    for name in input_types if isinstance(input_types, list) else [input_types]:
        for pattern, kind in _ELEMENT_TYPES:
            if isinstance(name, str) and pattern.search(name.lower()):
                return TYPES.index(kind)
    return _NO_TYPE


def _overlap_ratio(trace: Trace, rows: Array, freq: Array) -> tuple[Array, Array]:
    """Time of kernels overlapped by communication over that of the same alone, at one clock.

    Also a mask of the overlapped kernels of which none like them ran alone.
    """
    n = trace.nodes.num_rows
    window = windows.rank_windows(trace)
    work = pieces.pieces_in_windows(trace, window)
    overlapped = comm_overlap.measure_overlap(trace, window, work)
    first, key = gather.distinct(trace.array("rank")[work.row], trace.array("name")[work.row])
    slow = slowdown.measure_slowdown(trace, work, overlapped.overlap_ns, key, len(first))
    ratio_of_key = np.where(
        slow.compared > 0,
        slow.overlapped_ns / np.where(slow.alone_ns > 0, slow.alone_ns, 1),
        np.nan,
    )
    is_overlapped, is_alone = np.zeros((2, n), np.bool_)
    length = work.end - work.start
    mostly = overlapped.overlap_ns >= slowdown.MOSTLY * length
    is_overlapped[work.row] = mostly & (length > 0)
    is_alone[work.row] = overlapped.overlap_ns == 0
    key_of_node = np.zeros(n, np.int64)
    key_of_node[work.row] = key
    row_key = key_of_node[rows]
    # What the clocks of overlapped kernels and of those alone differ by is in `freq` already.
    known = ~np.isnan(freq)
    freqs = [
        mean_of(freq, row_key, mask[rows] & known, len(first)) for mask in (is_overlapped, is_alone)
    ]
    clock = np.nan_to_num(freqs[0] / freqs[1], nan=1.0)
    factor = (ratio_of_key / np.where(clock > 0, clock, 1))[row_key]
    over = is_overlapped[rows]
    return np.where(over & ~np.isnan(factor), factor, 1.0), over & np.isnan(factor)


def _at_rows(trace: Trace, rows: Array, node_values: tuple[Array, Array]) -> Array:
    """Values of (nodes, values) at these rows; NaN where a row has none."""
    values = np.full(trace.nodes.num_rows, np.nan)
    values[node_values[0]] = node_values[1]
    return values[rows]


def _positive_ratio(values: Any, by: Array) -> Array:
    """Ratio of two positive quantities; NaN where either is not positive."""
    ratio: Array = values / np.where(by > 0, by, np.nan)
    return np.where(ratio > 0, ratio, np.nan)


def _rates(gpus: Sequence[GpuRating], device: Array, kind: Array, *, vector: bool = False) -> Array:
    """Operations a cycle and compute unit for each kernel's GPU and type; NaN where unknown."""
    # The last row and column stand for unknown GPUs and types, which have the number -1.
    table = np.full((len(gpus) + 1, len(TYPES) + 1), np.nan)
    for row, gpu in enumerate(gpus):
        for column, name in enumerate(TYPES):
            rate = gpu.flop_per_cycle(_RATE_TYPES.get(name, name), vector=vector)
            table[row, column] = np.nan if rate is None else rate
    return table[device, kind]


def _device_facts(gpus: Sequence[GpuRating], device: Array, name: str) -> Array:
    """Value of an attribute of each kernel's GPU; NaN where it is not known."""
    values = [np.nan if (v := getattr(gpu, name)) is None else float(v) for gpu in gpus]
    return np.array([*values, np.nan])[device]

"""What each kernel's time is made of: its work at peak rate, and what makes it longer.

Of each kernel, in nanoseconds at the GPU's highest clock: the work that its shapes ask for
(`thr`), and what was counted (`inst`); and as ratios: how much of the time matrix cores are idle
(`util`), communication beside it (`over`), the clock (`freq`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chopper_interop import arguments
from chopper_interop.activity import beside, pieces, slowdown, windows
from chopper_interop.columns import arrow, gather
from chopper_interop.counters import counted
from chopper_interop.dvfs import ideal, sensitivity
from chopper_interop.gpus import rated
from chopper_interop.work import operators
from chopper_interop.work import rules as work_rules

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chopper_interop.columns.types import Array
    from chopper_interop.gpus.rated import Rated
    from chopper_interop.trace import Trace

TYPES = ("f16", "bf16", "f32", "f64", "f8", "xf32", "f6f4")
"""Types of which counters count the operations of matrix cores."""
_RATED = {"f6f4": "f4"}
"""Types of counters → of rates, where these are called otherwise."""
_METRICS = tuple(f"flops_mfma_{kind}" for kind in TYPES)
_ELEMENTS = (
    (re.compile(r"bfloat16"), "bf16"),
    (re.compile(r"half|float16"), "f16"),
    (re.compile(r"float8"), "f8"),
    (re.compile(r"float4"), "f6f4"),
    (re.compile(r"double|float64"), "f64"),
    (re.compile(r"float"), "f32"),
)
"""Names of element types of operators → type; the first that fits."""
_NONE = -1


@dataclass(frozen=True)
class Terms:
    """Of each kernel; not a number where unknown.

    Parameters
    ----------
    thr_ns
        FLOPs by shapes at the rate of their type and the GPU's highest clock.
    inst_ns
        The same of the FLOPs that were counted.
    util
        Cycles of the dispatch by those in which its matrix cores were busy; unknown where these
        are more than they can be.
    over
        How much longer it took beside communication than alone at the same clock; 1 if nothing
        communicated beside it, or no like kernel ran alone.
    freq
        Time at the measured clock by time at the highest one.
    mem_ns
        Bytes by shapes at the memory's peak bandwidth.
    expected_busy, busy
        Cycles of matrix cores that the counted FLOPs take, and those counted.
    borrowed
        Whether counters are those of like kernels that were counted.
    uncompared
        Whether communication ran beside it and no like kernel ran alone.
    """

    thr_ns: Array
    inst_ns: Array
    util: Array
    over: Array
    freq: Array
    mem_ns: Array
    expected_busy: Array
    busy: Array
    borrowed: Array
    uncompared: Array


def of(trace: Trace, rows: Array, gpus: str = "") -> Terms:
    """What the time of kernels is made of.

    Parameters
    ----------
    trace
        Any trace.
    rows
        Rows of kernels that compute.
    gpus
        The user's file of GPUs.
    """
    found, which = rated.of_nodes(trace, rows, gpus)
    ratings = list(found.values())
    told = _Counters.of(trace, rows, ratings, which)
    kind, of_matrix = _types(trace, rows, told)
    matrix = of_matrix & ~np.isnan(_rates(ratings, which, kind))
    rate = np.where(matrix, _rates(ratings, which, kind), _rates(ratings, which, kind, vector=True))
    cus, boost, memory = (
        _facts(ratings, which, name) for name in ("cus", "boost_mhz", "bandwidth_gbs")
    )
    flops, size = (annotated(trace, name, rows) for name in ("flops", "mem_bytes"))
    per_ns = rate * cus * boost / 1e3  # FLOP
    by_vector = told.vector / (_rates(ratings, which, kind, vector=True) * cus * boost / 1e3)
    freq = clock_ratio(trace, rows, gpus, boost=boost, matrix=matrix)
    over, uncompared = _beside(trace, rows, freq)
    positive = np.where(flops > 0, flops, np.nan)
    inst = np.where(matrix, told.matrix_ns + _rest(told, matrix) / per_ns, by_vector)
    return Terms(
        thr_ns=positive / per_ns,
        inst_ns=np.where(inst > 0, inst, np.nan),
        util=np.where(matrix, told.util, np.nan),
        over=over,
        freq=freq,
        mem_ns=size / memory,
        expected_busy=np.where(matrix, told.expected, np.nan),
        busy=np.where(matrix, told.busy, np.nan),
        borrowed=told.borrowed,
        uncompared=uncompared,
    )


def clock_ratio(trace: Trace, rows: Array, gpus: str = "", *, boost: Array, matrix: Array) -> Array:
    """Time at the measured clock by time at the highest one; not a number where it is not known.

    By the sensitivities of kernels to the clock (`sensitivity`). Where these are not known, as of
    clocks by a kernel's own cycles, or stated without how often they were sampled, matrix cores
    follow the clock.

    Parameters
    ----------
    trace
        Any trace.
    rows
        Rows of kernels.
    gpus
        The user's file of GPUs.
    boost
        Highest clock of each one's GPU, MHz.
    matrix
        Which are of matrix cores.
    """
    clock = annotated(trace, "gfxclk_mhz", rows)
    known = clock > 0
    found = _by_sensitivity(trace, gpus)[rows] if known.any() else np.full(len(rows), np.nan)
    if "gfxclk_counted_mhz" in trace.nodes.column_names and not known.all():
        own = np.isin(rows, counted.in_own_run(trace))
        clock = np.where(~known & own, annotated(trace, "gfxclk_counted_mhz", rows), clock)
    assumed = np.where(matrix & (clock > 0), boost / np.where(clock > 0, clock, np.nan), np.nan)
    return np.where(np.isnan(found), assumed, found)


def _by_sensitivity(trace: Trace, gpus: str) -> Array:
    """The same of every node, of those whose clock was measured."""
    known = sensitivity.of(trace, gpus)
    repeats = known.repeats
    devices, which = rated.of_nodes(trace, repeats.node, gpus)
    boost = _facts(list(devices.values()), which, "boost_mhz")
    ratio = np.full(trace.nodes.num_rows, np.nan)
    sampled = annotated(trace, "telemetry_ns", repeats.node)
    measured = ~(np.isnan(repeats.clocks.mhz) | np.isnan(boost) | np.isnan(sampled))
    if measured.any():
        then = ideal.durations(known, known.ratio(boost)[0], boost)
        there = repeats.node[measured]
        ratio[there] = np.where(then.key[there] >= 0, np.exp(-then.log[there]), np.nan)
    return ratio


def annotated(trace: Trace, name: str, rows: Array) -> Array:
    """A column of these nodes as decimals, not a number where unknown."""
    if name not in trace.nodes.column_names:
        return np.full(len(rows), np.nan)
    column = trace.nodes[name]
    values = arrow.numbers(column)[rows].astype(np.float64)
    return np.where(arrow.known(column)[rows], values, np.nan)


@dataclass(frozen=True)
class _Counters:
    """What counters tell of kernels, or of like ones; not a number where unknown."""

    matrix_ns: Array
    """Matrix operations of known types at peak rate and highest clock."""
    expected: Array
    busy: Array
    util: Array
    total: Array
    """Matrix operations of all types."""
    known: Array
    """Of them, those of known types."""
    vector: Array
    kind: Array
    """Type of most of them, a number of `TYPES`."""
    borrowed: Array

    @classmethod
    def of(cls, trace: Trace, rows: Array, gpus: Sequence[Rated], which: Array) -> _Counters:
        """Counters of each kernel."""
        nothing = np.full(len(rows), np.nan)
        none = np.zeros(len(rows), np.bool_)
        if not trace.counters.num_rows:
            return cls(*(nothing,) * 8, borrowed=none)
        names = (*_METRICS, "flops_mfma", "flops_valu", "mfma_busy", "mfma_util")
        own = _at(trace, rows, counted.own_cycles(trace))
        node, values = counted.metrics(trace, *names)
        told = {name: _at(trace, rows, (node, values[name])) for name in names}
        flops = np.array([told[name] for name in _METRICS])
        some = flops > 0
        rate = np.array([_rates(gpus, which, np.full(len(rows), k)) for k in range(len(TYPES))])
        cus, boost, simds = (
            _facts(gpus, which, name) for name in ("cus", "boost_mhz", "simds_per_cu")
        )
        cycles = np.where(some, flops, 0) / np.where(some, rate, 1)
        cycles[some & np.isnan(rate)] = np.nan
        lanes = own * cus * simds
        util = np.where(
            np.isnan(told["mfma_busy"]),
            _over(100, told["mfma_util"]),
            _over(lanes, told["mfma_busy"]),
        )
        found = {
            "matrix_ns": cycles.sum(axis=0) / (cus * boost) * 1e3,
            "expected": cycles.sum(axis=0) * simds,
            "busy": told["mfma_busy"],
            "util": np.where(util * counted.TOLERANCE >= 1, util, np.nan),
            "total": told["flops_mfma"],
            "known": np.where(some, flops, 0).sum(axis=0),
            "vector": told["flops_valu"],
            "kind": np.where(some.any(axis=0), np.nan_to_num(flops).argmax(axis=0), np.nan),
        }
        unknown = np.isnan(told["flops_mfma"])
        for name in ("matrix_ns", "expected", "known"):
            found[name] = np.where(unknown, np.nan, found[name])
        borrowed = unknown & np.isnan(told["flops_valu"])
        lent = _lent(trace, rows, which, found)
        return cls(**lent, borrowed=borrowed & ~np.isnan(lent["total"]))


def _lent(trace: Trace, rows: Array, which: Array, found: dict[str, Array]) -> dict[str, Array]:
    """Kernels that were not counted have the means of the same (name, sizes) on the same GPU."""
    like = [annotated(trace, name, rows) for name in ("flops", "mem_bytes")]
    sizes = [np.where(np.isnan(one), -1, one).astype(np.int64) for one in like]
    first, key = gather.distinct(which, trace.array("name")[rows], *sizes)
    made = {}
    for name, values in found.items():
        known = np.flatnonzero(~np.isnan(values))
        count = np.bincount(key[known], minlength=len(first))
        total = np.bincount(key[known], values[known], len(first))
        mean = total / np.where(count, count, np.nan)
        if name == "kind":
            mean = np.rint(mean)
        made[name] = np.where(np.isnan(values), mean[key], values)
    return made


def _rest(told: _Counters, matrix: Array) -> Array:
    """Matrix operations that were counted and whose type was not: they are of the operator's."""
    rest = np.nan_to_num(told.total - told.known)
    return np.where(matrix & (rest > 0), rest, 0.0)


def _types(trace: Trace, rows: Array, told: _Counters) -> tuple[Array, Array]:
    """Type of the operations of each kernel, a number of `TYPES`, and whether of matrix cores."""
    counted_kind = np.where(np.isnan(told.kind), _NONE, told.kind).astype(np.int64)
    kind, of_matrix = of_operators(trace, rows)
    kind = np.where(counted_kind >= 0, counted_kind, kind)
    is_counted = ~np.isnan(told.total)
    return kind, np.where(is_counted, told.total > 0, of_matrix)


def of_operators(trace: Trace, rows: Array) -> tuple[Array, Array]:
    """Type of the first input of the operator of each kernel, and whether it multiplies matrices."""
    kind, matrix = np.full(trace.nodes.num_rows, _NONE), np.zeros(trace.nodes.num_rows, np.bool_)
    if "flops" not in trace.nodes.column_names:
        return kind[rows], matrix[rows]
    kernels, owner = operators.owners(trace)
    at, number = np.unique(owner, return_inverse=True)
    (place,) = arguments.find(trace, at, "Input type")
    code, values = arguments.values_at(trace.text, place)
    of_value = np.array([*map(_type, values), _NONE])
    kind[kernels] = of_value[code][number]
    ranks = [work_rules.rule(name) for name in trace.names()]
    is_product = np.array([r is not None and r[0] == work_rules.MATRIX for r in ranks], np.bool_)
    matrix[kernels] = is_product[trace.array("name")[owner]]
    return kind[rows], matrix[rows]


def _type(told: Any) -> int:
    """Type of the first tensor of floating-point numbers among an operator's inputs."""
    for name in told if isinstance(told, list) else [told]:
        for pattern, kind in _ELEMENTS:
            if isinstance(name, str) and pattern.search(name.lower()):
                return TYPES.index(kind)
    return _NONE


def _beside(trace: Trace, rows: Array, freq: Array) -> tuple[Array, Array]:
    """How much longer kernels took beside communication than like ones alone, at the same clock."""
    n = trace.nodes.num_rows
    whole = windows.of_ranks(trace)
    parts = pieces.within(trace, whole)
    others = beside.of(trace, whole, parts)
    first, key = gather.distinct(trace.array("rank")[parts.row], trace.array("name")[parts.row])
    slow = slowdown.of(trace, parts, others.covered, key, len(first))
    of_key = np.where(
        slow.compared > 0, slow.beside / np.where(slow.alone > 0, slow.alone, 1), np.nan
    )
    is_over, is_alone = np.zeros((2, n), np.bool_)
    length = parts.end - parts.start
    is_over[parts.row] = (others.covered >= slowdown.MOSTLY * length) & (length > 0)
    is_alone[parts.row] = others.covered == 0
    of_node = np.zeros(n, np.int64)
    of_node[parts.row] = key
    mine = of_node[rows]
    clocks = [_mean(freq, mine, which[rows], len(first)) for which in (is_over, is_alone)]
    clock = np.nan_to_num(clocks[0] / clocks[1], nan=1.0)
    factor = (of_key / np.where(clock > 0, clock, 1))[mine]
    over = is_over[rows]
    return np.where(over & ~np.isnan(factor), factor, 1.0), over & np.isnan(factor)


def _mean(values: Array, key: Array, which: Array, n: int) -> Array:
    known = np.flatnonzero(which & ~np.isnan(values))
    count = np.bincount(key[known], minlength=n)
    return np.bincount(key[known], values[known], n) / np.where(count, count, np.nan)


def _at(trace: Trace, rows: Array, told: tuple[Array, Array]) -> Array:
    """Values of nodes at these rows, not a number where there is none."""
    values = np.full(trace.nodes.num_rows, np.nan)
    values[told[0]] = told[1]
    return values[rows]


def _over(values: Any, by: Array) -> Array:
    """A ratio; not a number of nothing."""
    ratio: Array = values / np.where(by > 0, by, np.nan)
    return np.where(ratio > 0, ratio, np.nan)


def _rates(gpus: Sequence[Rated], which: Array, kind: Array, *, vector: bool = False) -> Array:
    """Operations a cycle of a unit for the type of each kernel."""
    table = np.full((len(gpus) + 1, len(TYPES) + 1), np.nan)
    for row, one in enumerate(gpus):
        for column, name in enumerate(TYPES):
            rate = one.flop_per_cycle(_RATED.get(name, name), vector=vector)
            table[row, column] = np.nan if rate is None else rate
    return table[which, kind]


def _facts(gpus: Sequence[Rated], which: Array, name: str) -> Array:
    values = [np.nan if (v := getattr(one, name)) is None else float(v) for one in gpus]
    return np.array([*values, np.nan])[which]

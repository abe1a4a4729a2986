"""Chopper's overhead breakdown by its own formulas (v0.10, ``plots/overhead_breakdown.py``).

Terms are medians over iterations and layers, for each operation of one GPU::

    T_thr  = FLOP / (304 * 2048 * 2100 MHz)
    O_inst = 512 * SQ_INSTS_VALU_MFMA_MOPS_BF16 / FLOP
    O_util = 1 / U,  U = SQ_VALU_MFMA_BUSY_CYCLES / (304 * 4 * GRBM_GUI_ACTIVE / 8)
    D_cyc  = GRBM_GUI_ACTIVE / 8 / 2100 MHz
    O_ovl  = max(1, elapsed at the middle of the CDF of overlap / elapsed at its begin)
    O_freq = (D / D_cyc) / O_ovl

with O_ovl = 1 if nothing overlaps at the middle of the CDF. T_thr * O_inst * O_util is D_cyc times
MOPS / busy cycles, so the product of all is the duration D if MOPS and busy cycles are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from chopper_interop.analyses.methods.activity import grouping, windows
from chopper_interop.annotate.counters import counter_metrics
from chopper_interop.arrays import Array, arrow, gather, intervals
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind
from chopper_interop.trace import Trace

MOPS, BUSY, CYCLES = (
    "SQ_INSTS_VALU_MFMA_MOPS_BF16",
    "SQ_VALU_MFMA_BUSY_CYCLES",
    "GRBM_GUI_ACTIVE",
)
# As in Chopper v0.10: operations of one count of MOPS, and the share in per cent that is looked for.
FLOP_PER_MOP = 512
_HALF = 50.0
_PASSES = {"forward": "f_", "backward": "b_"}
_CONVENTIONS = {
    "definition": "Chopper v0.10, plots/overhead_breakdown.py: medians over iterations and layers, "
    "counters of all cycles (including the profiler's), constants of MI300X at 2100 MHz, BF16; the "
    "frequency term is the remainder and includes everything that no other term explains",
    "differs": "without compat each GPU has its own constants and clock, every element type counts, "
    "the frequency term is predicted from the measured clock, the remainder is a separate term, and "
    "figures are sums rather than medians",
    "links": "all kernels of known operation, phase and iteration count, whether their launch is "
    "recorded or not",
    "memset": "not counted",
    "copies": "not counted, even where Chopper counts kernels of FSDP's copies as communication",
}


@dataclass(frozen=True)
class Constants:
    """Constants of the GPU; the defaults are Chopper's for MI300X.

    Parameters
    ----------
    xccs
        Dies over which cycles are summed.
    cus, simds_per_cu
        Units, and matrix cores of each.
    mhz
        Highest clock.
    flop_per_cycle
        Of a unit: 2 * 16**3 * 4 / 16.
    """

    xccs: int = 8
    cus: int = 304
    simds_per_cu: int = 4
    mhz: float = 2100.0
    flop_per_cycle: float = 2048.0


@dataclass(frozen=True)
class Model:
    """Dimensions of the model; the defaults are Chopper's for Llama 3 8B."""

    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    kv_heads: int = 8


MI300X = Constants()
LLAMA = Model()


def flops(batch: int, sequence: int, model: Model = LLAMA) -> dict[str, float]:
    """Return the FLOPs of Chopper's 16 operations; attention counts as its causal half."""
    tokens, head = batch * sequence, model.width // model.heads
    widths = {
        "attn_op": model.width,
        "mlp_dp": model.hidden,
        "mlp_gp": model.hidden,
        "mlp_up": model.hidden,
        "q_ip": model.heads * head,
        "k_ip": model.kv_heads * head,
        "v_ip": model.kv_heads * head,
    }
    matrix_products = {
        f"{prefix}{name}": float(factor * tokens * model.width * width)
        for prefix, factor in (("f_", 2), ("b_", 4))
        for name, width in widths.items()
    }
    attention = float(tokens * sequence * head * model.heads)
    return matrix_products | {"f_attn_fa": 2 * attention, "b_attn_fa": 5 * attention}


def terms(instances: pd.DataFrame, constants: Constants = MI300X) -> pd.DataFrame:
    """Compute Chopper's terms of each operation.

    Parameters
    ----------
    instances
        One row an instance: ``operation`` (any key), ``flops`` by shapes, ``duration_ns`` (of its
        kernels, summed), ``mops``, ``busy``, ``cycles`` (summed over dies), ``elapsed_ns``,
        ``overlap`` (percent) and ``start_ns``.
    constants
        Constants of the GPU.

    Returns
    -------
    pandas.DataFrame
        By operation: ``instances``, ``duration_ns``, the terms, ``cycle_ns``, ``closure_ratio``.
    """
    frame = instances.assign(
        util=instances["busy"]
        / (constants.cus * constants.simds_per_cu * instances["cycles"] / constants.xccs),
        cycle_ns=instances["cycles"] / constants.xccs / constants.mhz * 1e3,
        counted=FLOP_PER_MOP * instances["mops"],
    )
    by_operation = frame.groupby("operation")
    names = ["flops", "duration_ns", "util", "cycle_ns", "counted"]
    middle = by_operation[names].median()
    peak = constants.flop_per_cycle * constants.cus * constants.mhz * 1e-3  # FLOP/ns
    overlap = _overlap_slowdown(frame)
    columns = pd.DataFrame(
        {
            "instances": by_operation.size(),
            "duration_ns": middle["duration_ns"],
            "t_thr_ns": middle["flops"] / peak,
            "o_inst_ratio": middle["counted"] / middle["flops"],
            "o_util_ratio": 1 / middle["util"],
            "o_ovl_ratio": overlap,
            "o_freq_ratio": middle["duration_ns"] / middle["cycle_ns"] / overlap,
            "cycle_ns": middle["cycle_ns"],
        }
    )
    product = columns["t_thr_ns"] * columns["o_inst_ratio"] * columns["o_util_ratio"]
    return columns.assign(closure_ratio=product / columns["cycle_ns"])


def _overlap_slowdown(frame: pd.DataFrame) -> pd.Series:
    """Divide elapsed time at the middle of the CDF of overlap by that at its begin; 1 or more."""
    ordered = frame.sort_values(["operation", "overlap", "start_ns"], kind="stable")
    groups = ordered.groupby("operation")
    share = 100 * (groups.cumcount() + 1) / groups["overlap"].transform("size")
    # the instance nearest to 50 % of the CDF is its middle; the first one is its begin
    ordered = ordered.assign(off=(share - _HALF).abs())
    middle = ordered.sort_values(["operation", "off"], kind="stable").groupby("operation").first()
    ratio = middle["elapsed_ns"] / groups["elapsed_ns"].first()
    return ratio.clip(lower=1).where(middle["overlap"] != 0, 1.0).fillna(1.0)


def breakdown(
    trace: Trace, *, steps: str, ranks: str, model: tuple[int, int], default: bool
) -> Result:
    """Compute the analysis ``breakdown`` as Chopper does, for the first of the ranks.

    Parameters
    ----------
    steps, ranks
        As in `windows.rank_windows`.
    model
        Batch size and sequence length, for FLOPs by Chopper's table for operations that are in it;
        (0, 0) for FLOPs by shapes.
    default
        True if `by` is the default: there are no other rows.
    """
    if not default:
        raise NoSuchDefinitionsError(
            "compat=chopper has rows of phases and operations", hint="leave by out"
        )
    if min(model) < 0 or (min(model) == 0 < max(model)):
        raise UsageError(
            "batch and sequence: give both, each above 0", hint="batch=2 sequence=4096"
        )
    rank = windows.chosen_ranks(trace, ranks)[:1]
    if rank:
        trace = trace.of_rows(trace.rank_rows[rank[0]])
    rows = _kernels(trace, rank, steps)
    groups = grouping.group_nodes(trace, rows, "phase,operation")
    frame, code = _instances(trace, rows, groups.code)
    if any(model):
        frame["flops"] = _flops_of_table(groups.keys, frame["operation"], frame["flops"], model)
    frame = frame[frame["flops"] > 0]
    operation_terms = terms(frame)
    keys = groups.columns()
    order = operation_terms["duration_ns"].to_numpy().argsort(kind="stable")[::-1]
    group_row = operation_terms.index.to_numpy().astype(np.int64)[order]
    columns = {
        name: arrow.take(arrow.single_chunk(column), group_row) for name, column in keys.items()
    }
    for name in map(str, operation_terms):
        values = operation_terms[name].to_numpy()[order]
        columns[name] = arrow.nan_to_null(np.where(np.isfinite(values), values, np.nan))
    columns["instances"] = arrow.array(
        operation_terms["instances"].to_numpy().astype(np.int64)[order]
    )
    notes = {
        "window": "iterations of which cycles were counted"
        + (f", of steps {steps}" if steps else ""),
        "gpu": f"rank {rank[0]}" if rank else "none",
        "flops": "by Chopper's table for Llama 3 8B where it has the operation, else by shapes"
        if any(model)
        else "by shapes",
        "left out": f"{len(code) - len(frame)} instances without FLOPs",
    }
    if not len(frame):
        notes["no rows"] = "there are no kernels of known operation with FLOPs and counted cycles"
    summary = {
        "operations": len(operation_terms),
        "instances": len(frame),
        "rank": rank[0] if rank else None,
    }
    return Result("breakdown", pa.table(columns), summary, _CONVENTIONS, notes=notes)


def _kernels(trace: Trace, rank: list[int], steps: str) -> Array:
    """Return kernels of known phase, operation and iteration, in iterations with counted cycles."""
    names = ("iteration", "operation", "phase")
    if not rank or not all(trace.has(name) for name in names):
        return np.zeros(0, np.int64)
    rank_rows = np.arange(*trace.rank_rows[rank[0]].indices(trace.nodes.num_rows))
    is_known = np.all([trace.known(name) for name in names], axis=0)
    rows = rank_rows[(trace.array("kind")[rank_rows] == Kind.KERNEL) & is_known[rank_rows]]
    iteration = trace.integers("iteration", rows)
    was_counted = ~np.isnan(counter_metrics.counter_values(trace, CYCLES)[rows])
    selected = np.isin(iteration, iteration[was_counted])
    if steps:
        requested = [w.iteration for w in windows.rank_windows(trace, steps, str(rank[0]))]
        selected &= np.isin(iteration, requested)
    return rows[selected]


def _instances(trace: Trace, rows: Array, operation: Array) -> tuple[pd.DataFrame, Array]:
    """Sum over the kernels of each operation in one iteration and layer, with its overlap."""
    keys = [trace.integers(name, rows) for name in ("iteration", "layer")]
    first, code = gather.distinct(operation, *keys)
    n = len(first)
    ts, dur = trace.array("ts")[rows], trace.array("dur")[rows]
    last = np.zeros(n, np.int64)
    # rows ascend in time: the last one of a group is written last
    last[code] = np.arange(len(rows))
    start, end = ts[first], ts[last] + dur[last]
    by_shapes = np.nan_to_num(trace.reals("flops", rows))
    frame = {
        "operation": operation[first],
        "flops": np.bincount(code, by_shapes, n),
        "duration_ns": gather.group_sums(code, dur, n).astype(np.float64),
        "start_ns": start,
        "elapsed_ns": (end - start).astype(np.float64),
    }
    for name, counter in (("mops", MOPS), ("busy", BUSY), ("cycles", CYCLES)):
        frame[name] = np.bincount(
            code, np.nan_to_num(counter_metrics.counter_values(trace, counter)[rows]), n
        )
    overlap_ns = np.minimum(_overlapping(trace, rows, start, end), end - start)
    frame["overlap"] = np.where(end > start, 100 * overlap_ns / np.maximum(end - start, 1), 0.0)
    return pd.DataFrame(frame), first


def _overlapping(trace: Trace, rows: Array, start: Array, end: Array) -> Array:
    """Return the time of the rank's communication within each interval, summed over kernels."""
    if not len(rows):
        return np.zeros(0, np.int64)
    rank_slice = trace.rank_rows[int(trace.array("rank")[rows[0]])]
    rank_rows = np.arange(*rank_slice.indices(trace.nodes.num_rows))
    comm = rank_rows[trace.array("kind")[rank_rows] == Kind.COMM]
    begins = trace.array("ts")[comm]
    overlap_ns: Array = intervals.overlap_sums(
        start, end, (begins, begins + trace.array("dur")[comm])
    )
    return overlap_ns


def _flops_of_table(
    keys: pa.Table, operation: pd.Series, by_shapes: pd.Series, model: tuple[int, int]
) -> Any:
    """Return FLOPs of Chopper's table where it has the operation, else those by shapes."""
    table = flops(*model)
    names = zip(keys["phase"].to_pylist(), keys["operation"].to_pylist(), strict=True)
    known_flops = [
        table.get(op or "", table.get(f"{_PASSES.get(phase or '', '')}{op}", np.nan))
        for phase, op in names
    ]
    by_table = np.array([*known_flops, np.nan])[operation.to_numpy()]
    return np.where(np.isnan(by_table), by_shapes, by_table)

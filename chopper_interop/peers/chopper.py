"""Chopper's overhead breakdown by its own formulas (v0.10, ``plots/overhead_breakdown.py``).

Of the operations of one GPU, medians over iterations and layers::

    T_thr  = FLOP / (304 * 2048 * 2100 MHz)
    O_inst = 512 * SQ_INSTS_VALU_MFMA_MOPS_BF16 / FLOP
    O_util = 1 / U,  U = SQ_VALU_MFMA_BUSY_CYCLES / (304 * 4 * GRBM_GUI_ACTIVE / 8)
    D_cyc  = GRBM_GUI_ACTIVE / 8 / 2100 MHz
    O_ovl  = max(1, elapsed at the middle of the CDF of overlap / elapsed at its begin)
    O_freq = (D / D_cyc) / O_ovl

with O_ovl = 1 if nothing overlaps at the middle of the CDF. T_thr * O_inst * O_util is D_cyc times
MOPS by busy cycles, so the product of all is the duration D if these two are equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from chopper_interop.activity import grouping, windows
from chopper_interop.columns import arrow, gather, intervals
from chopper_interop.counters import counted
from chopper_interop.errors import NoSuchDefinitionsError, UsageError
from chopper_interop.result import Result
from chopper_interop.schemas.kinds import Kind

if TYPE_CHECKING:
    from chopper_interop.columns.types import Array
    from chopper_interop.trace import Trace

MOPS, BUSY, CYCLES = (
    "SQ_INSTS_VALU_MFMA_MOPS_BF16",
    "SQ_VALU_MFMA_BUSY_CYCLES",
    "GRBM_GUI_ACTIVE",
)
FLOP_PER_MOP = 512
_HALF = 50.0
_PASSES = {"forward": "f_", "backward": "b_"}
_CONVENTIONS = {
    "definition": "Chopper v0.10, plots/overhead_breakdown.py: medians over iterations and layers, "
    "counters of all cycles (the profiler's too), constants of MI300X at 2100 MHz, BF16; the "
    "frequency term is what is left over, so that all that nothing else explains is in it",
    "differs": "without compat each GPU has its own constants and clock, every type counts, the "
    "frequency term is predicted from the measured clock and what is left over is a term of "
    "its own; sums rather than medians",
    "links": "all kernels of known operation, phase and iteration count, whether linked or not",
    "memset": "does not count",
    "copies": "do not count, also where Chopper counts kernels of FSDP's copies as communication",
}


@dataclass(frozen=True)
class Constants:
    """Of the GPU, as Chopper has them for MI300X.

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
    """Of Llama 3 8B, as Chopper has it."""

    width: int = 4096
    hidden: int = 14336
    heads: int = 32
    kv_heads: int = 8


MI300X = Constants()
LLAMA = Model()


def flops(batch: int, sequence: int, model: Model = LLAMA) -> dict[str, float]:
    """FLOPs of Chopper's 16 operations; attention as its causal half."""
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
    made = {
        f"{prefix}{name}": float(factor * tokens * model.width * width)
        for prefix, factor in (("f_", 2), ("b_", 4))
        for name, width in widths.items()
    }
    attention = float(tokens * sequence * head * model.heads)
    return made | {"f_attn_fa": 2 * attention, "b_attn_fa": 5 * attention}


def terms(instances: pd.DataFrame, constants: Constants = MI300X) -> pd.DataFrame:
    """Chopper's terms of each operation.

    Parameters
    ----------
    instances
        One row an instance: ``operation`` (any key), ``flops`` by shapes, ``duration_ns`` (of its
        kernels, summed), ``mops``, ``busy``, ``cycles`` (summed over dies), ``elapsed_ns``,
        ``overlap`` (percent) and ``start_ns``.
    constants
        Of the GPU.

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
    overlap = _slower(frame)
    made = pd.DataFrame(
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
    product = made["t_thr_ns"] * made["o_inst_ratio"] * made["o_util_ratio"]
    return made.assign(closure_ratio=product / made["cycle_ns"])


def _slower(frame: pd.DataFrame) -> pd.Series:
    """Elapsed time at the middle of the CDF of overlap by that at its begin, at least 1."""
    ordered = frame.sort_values(["operation", "overlap", "start_ns"], kind="stable")
    groups = ordered.groupby("operation")
    share = 100 * (groups.cumcount() + 1) / groups["overlap"].transform("size")
    ordered = ordered.assign(off=(share - _HALF).abs())
    middle = ordered.sort_values(["operation", "off"], kind="stable").groupby("operation").first()
    ratio = middle["elapsed_ns"] / groups["elapsed_ns"].first()
    return ratio.clip(lower=1).where(middle["overlap"] != 0, 1.0).fillna(1.0)


def breakdown(
    trace: Trace, *, steps: str, ranks: str, model: tuple[int, int], default: bool
) -> Result:
    """The analysis ``breakdown`` as Chopper has it, of the first of some ranks.

    Parameters
    ----------
    trace
        Any trace.
    steps, ranks
        As of `windows.of_ranks`.
    model
        Batch and sequence, by which FLOPs are those of Chopper's own table where an operation is in
        it; 0 for those of shapes.
    default
        Whether `by` is: there are no other rows.
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
    rows = _kernels(trace, rank, steps)
    groups = grouping.of(trace, rows, "phase,operation")
    frame, code = _instances(trace, rows, groups.code)
    if any(model):
        frame["flops"] = _of_table(groups.keys, frame["operation"], frame["flops"], model)
    frame = frame[frame["flops"] > 0]
    made = terms(frame)
    keys = {name: groups.keys[name] for name in groups.keys.column_names}
    order = made["duration_ns"].to_numpy().argsort(kind="stable")[::-1]
    at = made.index.to_numpy().astype(np.int64)[order]
    columns = {name: arrow.take(arrow.flat(column), at) for name, column in keys.items()}
    for name in made:
        values = made[name].to_numpy()[order]
        columns[name] = arrow.known_only(np.where(np.isfinite(values), values, np.nan))
    columns["instances"] = arrow.array(made["instances"].to_numpy().astype(np.int64)[order])
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
    summary = {"operations": len(made), "instances": len(frame), "rank": rank[0] if rank else None}
    return Result("breakdown", pa.table(columns), summary, _CONVENTIONS, notes=notes)


def _kernels(trace: Trace, rank: list[int], steps: str) -> Array:
    """Kernels of known phase, operation and iteration, of iterations of which cycles were counted."""
    there = trace.nodes.column_names
    if not rank or not {"iteration", "operation", "phase"} <= set(there):
        return np.zeros(0, np.int64)
    mine = np.arange(*trace.rank_rows[rank[0]].indices(trace.nodes.num_rows))
    known = np.all(
        [arrow.known(trace.nodes[n]) for n in ("iteration", "operation", "phase")], axis=0
    )
    rows = mine[(trace.array("kind")[mine] == Kind.KERNEL) & known[mine]]
    iteration = arrow.numbers(trace.nodes["iteration"], -1)[rows]
    was_counted = ~np.isnan(counted.raw(trace, CYCLES)[rows])
    kept = np.isin(iteration, iteration[was_counted])
    if steps:
        asked = [w.iteration for w in windows.of_ranks(trace, steps, str(rank[0]))]
        kept &= np.isin(iteration, asked)
    return rows[kept]


def _instances(trace: Trace, rows: Array, operation: Array) -> tuple[pd.DataFrame, Array]:
    """Sums over what runs of one operation in one iteration and layer, and what overlaps with it."""
    told = [
        arrow.numbers(trace.nodes[name], -1)[rows].astype(np.int64)
        if name in trace.nodes.column_names
        else np.full(len(rows), -1)
        for name in ("iteration", "layer")
    ]
    first, code = gather.distinct(operation, *told)
    n = len(first)
    ts, dur = trace.array("ts")[rows], trace.array("dur")[rows]
    last = np.zeros(n, np.int64)
    last[code] = np.arange(len(rows))  # rows ascend in time; of equal ones the last is written last
    start, end = ts[first], ts[last] + dur[last]
    shapes = _numbers(trace, "flops")[rows]
    frame = {
        "operation": operation[first],
        "flops": np.bincount(code, shapes, n),
        "duration_ns": gather.sums(code, dur, n).astype(np.float64),
        "start_ns": start,
        "elapsed_ns": (end - start).astype(np.float64),
    }
    for name, counter in (("mops", MOPS), ("busy", BUSY), ("cycles", CYCLES)):
        frame[name] = np.bincount(code, np.nan_to_num(counted.raw(trace, counter)[rows]), n)
    beside = np.minimum(_overlapping(trace, rows, start, end), end - start)
    frame["overlap"] = np.where(end > start, 100 * beside / np.maximum(end - start, 1), 0.0)
    return pd.DataFrame(frame), first


def _overlapping(trace: Trace, rows: Array, start: Array, end: Array) -> Array:
    """Time of communication of the rank within each interval, kernel by kernel."""
    if not len(rows):
        return np.zeros(0, np.int64)
    piece = trace.rank_rows[int(trace.array("rank")[rows[0]])]
    mine = np.arange(*piece.indices(trace.nodes.num_rows))
    comm = mine[trace.array("kind")[mine] == Kind.COMM]
    begins = trace.array("ts")[comm]
    found: Array = intervals.summed(start, end, (begins, begins + trace.array("dur")[comm]))
    return found


def _of_table(
    keys: pa.Table, operation: pd.Series, by_shapes: pd.Series, model: tuple[int, int]
) -> Any:
    """FLOPs of Chopper's table where it has the operation, else those of shapes."""
    table = flops(*model)
    names = zip(keys["phase"].to_pylist(), keys["operation"].to_pylist(), strict=True)
    known = [
        table.get(op or "", table.get(f"{_PASSES.get(phase or '', '')}{op}", np.nan))
        for phase, op in names
    ]
    told = np.array([*known, np.nan])[operation.to_numpy()]
    return np.where(np.isnan(told), by_shapes, told)


def _numbers(trace: Trace, name: str) -> Array:
    if name not in trace.nodes.column_names:
        return np.zeros(trace.nodes.num_rows)
    column = trace.nodes[name]
    return np.where(arrow.known(column), arrow.numbers(column), 0).astype(np.float64)

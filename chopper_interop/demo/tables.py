"""The programs of all ranks as arrays, and the operations in them that belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.demo.kernels import LAWS, law_tables
from chopper_interop.demo.program import COLLECTIVE, STREAMS, Program, distinct


class ProgramTables(NamedTuple):
    """Programs as arrays, in the words of their classes: first axis the program, ends filled up.

    Parameters
    ----------
    program
        Program of each rank.
    marks, ops
        Numbers of marks and GPU operations of each program.
    tail
        Last operation by stream, -1 if there is none.
    law, activity
        Of each kernel.
    barrier
        By rank and operation, the number of the communication in its step; -1 for none.
    first, member
        Rank and operation of the members of communication i: ``member[first[i]:first[i + 1]]``.
    """

    program: Array
    marks: Array
    ops: Array
    cost_ns: Array
    action: Array
    operand: Array
    kind: Array
    stream: Array
    kernel: Array
    mark: Array
    previous: Array
    waits_for: Array
    fixed_ns: Array
    tail: Array
    law: Array
    activity: Array
    barrier: Array
    first: Array
    member: Array


_MARK_COLUMNS = ("cost_ns", "action", "operand")
_OP_COLUMNS = ("kind", "stream", "kernel", "mark", "previous", "waits_for", "fixed_ns")
"""Columns that are fields of `Mark` and of `GpuOp`; those in nanoseconds are reals."""


def make_tables(programs: Sequence[Program]) -> ProgramTables:
    """Arrays of the programs of all ranks; ranks may share one."""
    each = distinct(programs)
    place = {id(p): i for i, p in enumerate(each)}
    marks, gpu = [p.marks for p in each], [p.gpu for p in each]
    laws = [np.stack(law_tables(p.kernels), axis=1) for p in each]
    kinds = [[k.kind for k in p.kernels] for p in each]
    activity = [[LAWS[k].activity if k in LAWS else 0.0 for k in of] for of in kinds]
    law = np.zeros((len(laws), max(map(len, laws)), *laws[0].shape[1:]))
    for row, own in zip(law, laws, strict=True):
        row[: len(own)] = own
    barrier, first, member = match_operations(programs)
    return ProgramTables(
        program=np.array([place[id(p)] for p in programs], dtype=np.int64),
        marks=np.array([len(rows) for rows in marks], dtype=np.int64),
        ops=np.array([len(rows) for rows in gpu], dtype=np.int64),
        **{name: _column(marks, name) for name in _MARK_COLUMNS},
        **{name: _column(gpu, name) for name in _OP_COLUMNS},
        tail=np.array([_tails(p) for p in each], dtype=np.int64),
        law=law,
        activity=_filled(activity, np.float64),
        barrier=barrier,
        first=first,
        member=member,
    )


def _tails(program: Program) -> list[int]:
    last = dict.fromkeys(STREAMS, -1)
    for row, op in enumerate(program.gpu):
        last[op.stream] = row
    return [last[stream] for stream in STREAMS]


def _column(programs: Sequence[Sequence[Any]], name: str) -> Array:
    """One field of the marks, or of the GPU operations, of each program, as array (program, row)."""
    dtype = np.float64 if name.endswith("_ns") else np.int64
    return _filled([[getattr(row, name) for row in rows] for rows in programs], dtype)


def _filled(rows: Sequence[Sequence[float]], dtype: type) -> Array:
    """Rows of different lengths as one array."""
    result: Array = np.zeros((len(rows), max(map(len, rows))), dtype)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


def match_operations(programs: Sequence[Program]) -> tuple[Array, Array, Array]:
    """Return `barrier`, `first` and `member` as of `tables.Tables`.

    Collectives of the same ranks are matched by their order; sends and receives by their order
    among those from the one rank to the other.
    """
    met: dict[tuple[bool, tuple[int, ...], int], list[tuple[int, int]]] = {}
    for rank, program in enumerate(programs):
        count: dict[tuple[bool, tuple[int, ...]], int] = {}
        for row, op in enumerate(program.gpu):
            if op.kind == COLLECTIVE:
                key = op.exchange, op.members
                met.setdefault((*key, count.get(key, 0)), []).append((rank, row))
                count[key] = count.get(key, 0) + 1
    barrier = np.full((len(programs), max(len(p.gpu) for p in programs)), -1, dtype=np.int64)
    for number, ((exchange, members, _), matched) in enumerate(met.items()):
        if {rank for rank, _ in matched} != set(members):
            raise AssertionError(f"{members} do not all come to what they communicate")
        if exchange:  # the sender is named first
            matched.sort(key=lambda one: members.index(one[0]))
        for rank, row in matched:
            barrier[rank, row] = number
    first = np.cumsum([0, *(len(matched) for matched in met.values())])
    every = [one for matched in met.values() for one in matched]
    return barrier, first, np.array(every, dtype=np.int64).reshape(-1, 2)

"""Evidence of all repetitions of a wait, in whichever batches of ranks they are (`rank_batches`).

Waits are resolved some ranks at a time, by what those of all ranks say together. Each batch numbers its pairs of streams,
and what a number stands for is the same in all of them: the launches around the wait, and both streams::

    batch 1   0 1 2     of the job   0 1 2
    batch 2   0 1                    1 3       what is said of pair 1 is the sum of both
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather, spill
from chopper_interop.edges import wait_order
from chopper_interop.edges.wait_order import Evidence
from chopper_interop.edges.wait_pairs import Repetitions, Said, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chopper_interop.edges.wait_order import Waits


def of_job(batches: Sequence[Callable[[], Waits | None]]) -> list[Evidence | None]:
    """Return what repetitions say of the waits of each batch of ranks, which functions read, some twice.

    None for batches without such waits.
    """
    said = [_said_by(read, None) for read in batches]
    result: list[Evidence | None] = [None] * len(said)
    known = [at for at, of_batch in enumerate(said) if of_batch is not None]
    if not known:
        return result
    for_older = _waits_for_older([of_batch for of_batch in said if of_batch is not None])
    for at, mask in zip(known, for_older, strict=True):
        if mask.any():
            said[at] = _said_by(batches[at], mask)
    totals = _totals_of_job([of_batch for of_batch in said if of_batch is not None])
    for at, mask, of_codes in zip(known, for_older, totals, strict=True):
        result[at] = Evidence(mask, of_codes)
    return result


def _said_by(read: Callable[[], Waits | None], for_older: Array | None) -> Said | None:
    """Return what the waits of a batch say, in files if arrays are."""
    waits = read()
    tried = None if waits is None else wait_order.find_pairs(waits, for_older)
    if tried is None:
        return None
    keep, said = spill.kept, tried.said
    r = said.repetitions
    return Said(
        Repetitions(
            keep(r.group), tuple(map(keep, r.around)), keep(r.nth), keep(r.is_behind_record),
            keep(r.names), keep(r.of_streams), (keep(r.streams[0]), keep(r.streams[1])),
        ),
        keep(said.group), keep(said.waiting), keep(said.awaited),
        Totals(*map(keep, said.totals)), keep(said.is_older),
    )  # fmt: skip


def _waits_for_older(batches: Sequence[Said]) -> list[Array]:
    """Masks of the waits of each batch that are for older events, as a repetition of them surely is."""
    group, _ = _groups(batches)
    is_older = np.zeros(_count(group), np.bool_)
    for numbers, said in zip(group, batches, strict=True):
        is_older[numbers[said.is_older]] = True
    return [
        is_older[numbers][said.repetitions.group]
        for numbers, said in zip(group, batches, strict=True)
    ]


def _totals_of_job(batches: Sequence[Said]) -> list[Totals]:
    """Add up what the pairs of each code of each batch say, with those of all others that stand for the same."""
    group, stream = _groups(batches)
    code = _numbers(
        [
            (of_group[said.group], of_stream[said.waiting], of_stream[said.awaited])
            for said, of_group, of_stream in zip(batches, group, stream, strict=True)
        ]
    )
    n = _count(code)
    sums = Totals(*np.zeros((len(Totals._fields), n), np.int64))
    for number, said in zip(code, batches, strict=True):
        np.maximum.at(sums.skipped, number, said.totals.skipped)
    for number, said in zip(code, batches, strict=True):
        of = said.totals
        # those that are older by fewer launches than others say nothing of as many
        if_older = np.where(of.skipped == sums.skipped[number], of.at_once_if_older, 0)
        of = of._replace(skipped=np.zeros_like(of.skipped), at_once_if_older=if_older)
        for whole, values in zip(sums, of, strict=True):
            np.add.at(whole, number, values)
    return [Totals(*(values[number] for values in sums)) for number in code]


def _groups(batches: Sequence[Said]) -> tuple[list[Array], list[Array]]:
    """Numbers in the job of the repeated waits, and of the streams, of each batch."""
    of = [said.repetitions for said in batches]
    stream = _numbers([r.streams for r in of])
    work = _numbers([(r.names, number[r.of_streams]) for r, number in zip(of, stream, strict=True)])
    around = [
        tuple(np.append(number, -1)[column] for column in r.around)
        for r, number in zip(of, work, strict=True)
    ]
    group = _numbers([(*a, r.nth, r.is_behind_record) for a, r in zip(around, of, strict=True)])
    return group, stream


def _numbers(tables: Sequence[tuple[Array, ...]]) -> list[Array]:
    """For each row of each table of integers a number that it shares with equal rows of all of them."""
    _, number = gather.distinct(*map(np.concatenate, zip(*tables, strict=True)))
    return np.split(number, np.cumsum([len(table[0]) for table in tables[:-1]]))


def _count(numbers: Iterable[Array]) -> int:
    return 1 + max((int(of.max(initial=-1)) for of in numbers), default=-1)

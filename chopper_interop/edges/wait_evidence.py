"""Evidence of all repetitions of a wait, in whichever batches of ranks they are (`rank_batches`).

Waits are resolved some ranks at a time, by what those of all ranks say together. Each batch numbers its pairs of streams,
and what a number stands for is the same in all of them: the launches around the wait, and both streams::

    batch 1   0 1 2     of the job   0 1 2
    batch 2   0 1                    1 3       the evidence on pair 1 is the sum of both
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array, gather, spill
from chopper_interop.edges import wait_order
from chopper_interop.edges.wait_order import Evidence
from chopper_interop.edges.wait_pairs import BatchEvidence, Repetitions, Totals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chopper_interop.edges.wait_order import Waits


def of_job(batches: Sequence[Callable[[], Waits | None]]) -> list[Evidence | None]:
    """Return what repetitions say of the waits of each batch of ranks, which functions read, some twice.

    None for batches without such waits.
    """
    of_batches = [_evidence_of(read, None) for read in batches]
    result: list[Evidence | None] = [None] * len(of_batches)
    known = [at for at, of_batch in enumerate(of_batches) if of_batch is not None]
    if not known:
        return result
    for_older = _waits_for_older([of_batch for of_batch in of_batches if of_batch is not None])
    for at, mask in zip(known, for_older, strict=True):
        if mask.any():
            of_batches[at] = _evidence_of(batches[at], mask)
    totals = _totals_of_job([of_batch for of_batch in of_batches if of_batch is not None])
    for at, mask, of_codes in zip(known, for_older, totals, strict=True):
        result[at] = Evidence(mask, of_codes)
    return result


def _evidence_of(read: Callable[[], Waits | None], for_older: Array | None) -> BatchEvidence | None:
    """Return the evidence that the waits of a batch give, in files if arrays are."""
    waits = read()
    candidates = None if waits is None else wait_order.find_candidates(waits, for_older)
    if candidates is None:
        return None
    keep, own = spill.kept, candidates.evidence
    r = own.repetitions
    return BatchEvidence(
        Repetitions(
            keep(r.group), tuple(map(keep, r.around)), keep(r.nth), keep(r.is_behind_record),
            keep(r.names), keep(r.of_streams), (keep(r.streams[0]), keep(r.streams[1])),
        ),
        keep(own.group), keep(own.waiting), keep(own.awaited),
        Totals(*map(keep, own.totals)), keep(own.is_older),
    )  # fmt: skip


def _waits_for_older(batches: Sequence[BatchEvidence]) -> list[Array]:
    """Masks of the waits of each batch that are for older events, as a repetition of them surely is."""
    group, _ = _groups(batches)
    is_older = np.zeros(_count(group), np.bool_)
    for numbers, batch in zip(group, batches, strict=True):
        is_older[numbers[batch.is_older]] = True
    return [
        is_older[numbers][batch.repetitions.group]
        for numbers, batch in zip(group, batches, strict=True)
    ]


def _totals_of_job(batches: Sequence[BatchEvidence]) -> list[Totals]:
    """Add up the totals of the pairs of each code of each batch, with those of all others that stand for the same."""
    group, stream = _groups(batches)
    code = _numbers(
        [
            (of_group[batch.group], of_stream[batch.waiting], of_stream[batch.awaited])
            for batch, of_group, of_stream in zip(batches, group, stream, strict=True)
        ]
    )
    n = _count(code)
    sums = Totals(*np.zeros((len(Totals._fields), n), np.int64))
    for number, batch in zip(code, batches, strict=True):
        np.maximum.at(sums.skipped, number, batch.totals.skipped)
    for number, batch in zip(code, batches, strict=True):
        of = batch.totals
        # those that are older by fewer launches than others say nothing of as many
        if_older = np.where(of.skipped == sums.skipped[number], of.at_once_if_older, 0)
        of = of._replace(skipped=np.zeros_like(of.skipped), at_once_if_older=if_older)
        for whole, values in zip(sums, of, strict=True):
            np.add.at(whole, number, values)
    return [Totals(*(values[number] for values in sums)) for number in code]


def _groups(batches: Sequence[BatchEvidence]) -> tuple[list[Array], list[Array]]:
    """Numbers in the job of the repeated waits, and of the streams, of each batch."""
    of = [batch.repetitions for batch in batches]
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

"""A finding, and findings as a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.findings.job import FindingPlace, Saved

MEASURED, MODELLED, LIKELY = "measured", "modelled", "likely"
"""How certain a finding is: its saving was measured; a model of measured times says so; it rests on an
assumption that the trace cannot confirm."""
MIN_SHARE = 0.005
"""Share of the step from which on a saving is worth showing. Fixed by the definition of findings."""
_LAUNCHES, _OF_ALL_LAUNCHES = ("small-launches", "slow-operators"), 0.75
"""Findings of all launches together, and the share of their saving by which they are ordered: one operation that would
save nearly as much is easier to do without. Chosen: where images are loaded between steps, the loader saves 0.80 and
0.94 of it in two public recordings; without either the GPU is the limit."""
COLUMNS = {
    "code": pa.string(), "saves_ns": pa.int64(), "saves_low_ns": pa.int64(),
    "saves_high_ns": pa.int64(), "share": pa.float64(), "ranks": pa.string(), "where": pa.string(),
    "at_ns": pa.int64(), "until_ns": pa.int64(), "certainty": pa.string(), "finding": pa.string(),
    "command": pa.string(),
}  # fmt: skip
"""Columns of findings. Stable: scripts, the report and the marks in Perfetto build on them."""


@dataclass(frozen=True)
class Finding:
    """One thing that makes steps longer, with what it costs.

    Parameters
    ----------
    code
        Its stable name, a key of `catalogue.CATALOGUE`.
    saves_ns
        By how much the mean step would be shorter without it.
    ranks
        Ranks concerned: "3", "0,4" or "0-7".
    where
        Layer, operation or kernel.
    at_ns, until_ns
        One place where it can be seen, on the axis of the trace's `ts`.
    certainty
        `MEASURED`, `MODELLED` or `LIKELY`.
    finding
        One plain sentence.
    command
        The command that shows it; ``RUN/`` stands for the input.
    saves_low_ns, saves_high_ns
        Range of `saves_ns` over steps, or its 95 % interval; None where there is none.
    step_ns
        Mean length of the steps of which `saves_ns` is a part; None for the steps that count.
    """

    code: str
    saves_ns: int
    ranks: str
    where: str
    at_ns: int
    until_ns: int
    certainty: str
    finding: str
    command: str
    saves_low_ns: int | None = None
    saves_high_ns: int | None = None
    step_ns: int | None = None

    @classmethod
    def from_saving(  # noqa: PLR0913, PLR0917 # parts of a finding
        cls,
        code: str,
        saved: Saved,
        place: FindingPlace,
        where: str,
        certainty: str,
        sentence: str,
        command: str,
    ) -> Finding:
        """Make a finding of a saving and a place; the rest as of the class."""
        at = place.ranks, where, place.at_ns, place.until_ns
        return cls(code, saved.ns, *at, certainty, sentence, command, saved.low_ns, saved.high_ns)


def to_table(findings: Iterable[Finding], step_ns: int) -> pa.Table:
    """Make a table of the findings that save enough, the largest first; those on other steps are last.

    Parameters
    ----------
    findings
        Findings in any order.
    step_ns
        Mean length of the steps that count, of which `share` is a part.
    """
    shown = [f for f in findings if f.saves_ns >= max(MIN_SHARE * (f.step_ns or step_ns), 1)]
    shown.sort(key=lambda f: (f.step_ns is not None, -_weight(f), f.code, f.ranks, f.where))
    rows = [vars(f) | {"share": f.saves_ns / (f.step_ns or step_ns)} for f in shown]
    return pa.Table.from_pylist(rows, pa.schema(list(COLUMNS.items())))


def _weight(one: Finding) -> float:
    return one.saves_ns * (_OF_ALL_LAUNCHES if one.code in _LAUNCHES else 1)


def nothing_text(*, has_steps: bool) -> str:
    """Say that nothing saves enough."""
    whole = "the step" if has_steps else "the job"
    return f"nothing was found that would save {MIN_SHARE:.1%} of {whole} or more"

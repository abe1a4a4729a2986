"""Record of the change that each edge, clock and plan has, so that none is overwritten in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop.arrays import Array
from chopper_interop.errors import UsageError

if TYPE_CHECKING:
    from chopper_interop.analyses.methods.changes.changer import Change, ChangedTimes, Verb


class OverwritingError(UsageError):
    """The later of two changes would overwrite what the earlier set."""


class LastChanges:
    """The last change of each edge, of each node's clock and of each plan; -1 if there is none.

    Parameters
    ----------
    changes
        All changes, in their order.
    verbs
        Kinds of changes by name.
    nodes, edges
        How many the timing model has.
    """

    def __init__(
        self, changes: Sequence[Change], verbs: dict[str, Verb], nodes: int, edges: int
    ) -> None:
        self._changes, self._verbs = changes, verbs
        self._of_edge = np.full(edges, -1, np.int64)
        self._of_clock = np.full(nodes, -1, np.int64)
        self._of_plan: dict[str, int] = {}
        self._plans: dict[str, object] = {}

    def add(self, number: int, before_ns: Array, now: ChangedTimes, chosen: Array) -> None:
        """Note what a change changed; `OverwritingError` if that undoes what one before it did.

        Parameters
        ----------
        number
            Position of the change.
        before_ns, now
            Lags before the change, and everything after it.
        chosen
            Mask of the nodes that it selects.
        """
        changed = now.lag_ns != before_ns
        if self._is_setting(number):
            self._require_none(int(self._of_edge[changed].max(initial=-1)), number)
        self._of_edge[changed] = number
        if self._changes[number].verb == "clock":  # from the measured clock, not from another
            self._require_none(int(self._of_clock[chosen].max(initial=-1)), number)
            self._of_clock[chosen] = number
        for kind, plan in now.plans.items():
            if self._plans.get(kind) is not plan:
                self._require_none(self._of_plan.get(kind, -1), number)
                self._plans[kind], self._of_plan[kind] = plan, number

    def _is_setting(self, number: int) -> bool:
        """True for a change that sets times whatever they are."""
        change = self._changes[number]
        return self._verbs[change.verb].sets(change.value)

    def _require_none(self, earlier: int, later: int) -> None:
        """Raise `OverwritingError` if there is an earlier change, which the later would overwrite."""
        if earlier < 0:
            return
        before, after = self._changes[earlier].text, self._changes[later].text
        hint = "leave one of the two out, or choose different nodes by where"
        if self._is_setting(later) and not self._is_setting(earlier):
            hint = f"write {after!r} in front of {before!r}, which then applies to it"
        raise OverwritingError(f"change={after}: it would overwrite {before!r}", hint=hint)

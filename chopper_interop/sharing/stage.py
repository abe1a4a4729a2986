"""The stage between a job's trace and all that is done with it: what others may see of it.

To anonymise, names of the program and of where it ran become aliases.
All texts go through `Aliases.text`; what is done otherwise is in one table. What the rules recognise in
a name they must recognise in its alias, or analyses of the shared trace would differ: that is checked.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from chopper_interop import registry
from chopper_interop.annotate.structure.names import classify_names
from chopper_interop.annotate.work import kernel_categories, kernels
from chopper_interop.arrays import Array
from chopper_interop.clocks.hosts import REFERENCE
from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.issues import Fault, Issue, IssueLog
from chopper_interop.schemas.kinds import Kind
from chopper_interop.sharing import texts
from chopper_interop.sharing.environment import leave_out, without_folders
from chopper_interop.sharing.texts import Change, Changes, change_arguments
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    from chopper_interop.schemas.meta import Meta
    from chopper_interop.sharing.aliases import Aliases

ANONYMOUS_JOB = "job"
"""Name of an anonymised job that was not given one."""
ANONYMISED = Fault.info(
    "names-anonymised",
    "Names of the program, its files, hosts and process groups were replaced by aliases; numbers, and "
    "words that say what kind of work it is, stayed.",
)
MEANING_CHANGED = Fault.loss(
    "meaning-of-name-lost",
    "Nodes whose alias is not recognised as their name was: analyses of what is written may class them "
    "differently.",
)
_DROPPED = ("Issue.example", "Source.sha256")
"""Quotations, and what identifies a file to all who have it."""
_KEPT = ("Meta.job",)
"""The name that the user gave to what is shared, or a plain one."""


@dataclass(frozen=True)
class Sharing:
    """Parts of its origin that a trace keeps.

    Parameters
    ----------
    keep_environment
        Keep command lines, environment variables, users, hosts and folders.
    key
        Key of the aliases of an anonymised trace; None if it is not anonymised.
    """

    keep_environment: bool = False
    key: str | None = None

    @classmethod
    def chosen(cls, *, keep_environment: bool = False, anonymise: bool | str = False) -> Sharing:
        """Return the choice; without a key of the user's the aliases get a random one."""
        if anonymise is False:
            return cls(keep_environment)
        if keep_environment:
            raise UsageError("what is anonymised cannot keep the environment")
        return cls(keep_environment, secrets.token_hex() if anonymise is True else anonymise)

    def job_name(self, name: str) -> str:
        """Return the name of a job that is called `name` after its files."""
        return name if self.key is None else ANONYMOUS_JOB

    def run_name(self, name: str) -> str:
        """Return the name of one of several runs, which differ by it."""
        return name if self.key is None else _aliases(self.key).text(name)

    def reason(self, error: ChopperError) -> ChopperError:
        """Return the error of an input that could not be read as results may quote it."""
        if self.keep_environment:
            return error
        text = without_folders(str(error))
        return ChopperError(text if self.key is None else _aliases(self.key).text(text))

    def apply(self, trace: Trace, given: Iterable[Path], *, of_arguments: bool = True) -> Trace:
        """Return the trace as it may be shared.

        Parameters
        ----------
        trace
            A job's trace.
        given
            What the user named as input.
        of_arguments
            False if nothing that quotes arguments is made of the trace: their texts may stay.
        """
        if self.keep_environment:
            return trace
        trace = leave_out(trace, given, of_arguments=of_arguments or self.key is not None)
        if self.key is None:
            return trace

        return anonymise(trace, self.key)


def _aliases(key: str) -> Aliases:
    """Aliases by a key; their patterns take some milliseconds, and most jobs need none."""
    from chopper_interop.sharing.aliases import Aliases

    return Aliases(key)


def anonymise(trace: Trace, key: str) -> Trace:
    """Return a trace with aliases for names, by a key."""
    aliases = _aliases(key)
    new, in_tables = texts.change_tables(trace, lambda _, text: aliases.text(text))
    new, in_arguments = change_arguments(new, Changes(aliases.text, aliases.text))
    meta = _meta(trace.meta, _meta_change(aliases))
    issues = IssueLog("job")
    issues.extend(meta.issues)
    issues.add(ANONYMISED, in_tables + in_arguments)
    issues.add(MEANING_CHANGED, int(_has_other_meaning(trace, new).sum()))
    return new.with_meta(**{**vars(meta), "issues": tuple(issues)})


def _meta(meta: Meta, change: Change) -> Meta:
    """Change metadata; what was declared by this program of a fault stays."""
    new = texts.change_meta(meta, change)
    pairs = zip(meta.issues, new.issues, strict=True)
    return replace(new, issues=tuple(_with_declared(old, alias) for old, alias in pairs))


def _with_declared(old: Issue, alias: Issue) -> Issue:
    return replace(alias, code=old.code, meaning=old.meaning) if old.is_declared else alias


def _meta_change(aliases: Aliases) -> Change:
    """Make the change of texts in metadata: a rule for some places, aliases of words for others."""
    rules: dict[str, Callable[[str], str]] = {
        "Device.uuid": aliases.whole,
        "Device.pci": aliases.pci,
        "Source.format": lambda text: text if text in registry.formats() else aliases.text(text),
        "ClockFit.reason": lambda text: text if text == REFERENCE else "",
        **dict.fromkeys(_DROPPED, lambda _: ""),
        **dict.fromkeys(_KEPT, lambda text: text),
    }
    return lambda place, text: rules.get(place, aliases.text)(text)


def _has_other_meaning(old: Trace, new: Trace) -> Array:
    """Mark nodes whose name says something else than before: category, role, pass, step, layer."""
    result = np.zeros(old.nodes.num_rows, np.bool_)
    a, b = classify_names(old), classify_names(new)
    for field in a.__dataclass_fields__:
        before, after = (getattr(n, field)[t.array("name")] for n, t in ((a, old), (b, new)))
        result |= before != after
    computes = np.flatnonzero(old.array("kind") == Kind.KERNEL)
    for of_kernels in (kernel_categories.node_categories, _roles):
        result[computes] |= of_kernels(old, computes) != of_kernels(new, computes)
    return result


def _roles(trace: Trace, rows: Array) -> Array:
    return kernels.roles(trace.names(), trace.array("name")[rows])

"""The stage between a job's trace and all that is done with it: what others may see of it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.errors import ChopperError, UsageError
from chopper_interop.sharing.aliases import Aliases
from chopper_interop.sharing.environment import leave_out, without_folders

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from chopper_interop.trace import Trace

ANONYMOUS_JOB = "job"
"""Name of an anonymised job that was not given one."""


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
    def of(cls, *, keep_environment: bool = False, anonymise: bool | str = False) -> Sharing:
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
        return name if self.key is None else Aliases(self.key).text(name)

    def reason(self, error: ChopperError) -> ChopperError:
        """Return the error of an input that could not be read as results may quote it."""
        if self.keep_environment:
            return error
        text = without_folders(str(error))
        return ChopperError(text if self.key is None else Aliases(self.key).text(text))

    def apply(self, trace: Trace, given: Iterable[Path]) -> Trace:
        """Return the trace as it may be shared; `given` is what the user named as input."""
        if self.keep_environment:
            return trace
        trace = leave_out(trace, given)
        if self.key is None:
            return trace
        from chopper_interop.sharing.anonymise import anonymise

        return anonymise(trace, self.key)

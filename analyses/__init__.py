"""Analyses of a trace, one module each.

``chopper_interop.analyses()`` lists them, including those of plug-ins. The function and this package
share a name, so the package itself can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any


class _Analyses(ModuleType):
    def __call__(self) -> dict[str, Callable[..., Any]]:
        """Return the analyses by name; plug-ins that do not load are left out."""
        from chopper_interop import registry

        return registry.working_analyses()


sys.modules[__name__].__class__ = _Analyses

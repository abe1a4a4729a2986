"""Tools for tests of this package and of plug-ins: traces as text, equality, acceptance tests.

    from chopper_interop.testing import assert_trace_equal, check_converter, dump
    from chopper_interop.testing.strategies import traces      # needs hypothesis

A package that adds a format or an analysis runs `check_converter` or `check_analysis` in its own
tests: they check the contracts of `chopper_interop.registry`.
"""

from __future__ import annotations

from chopper_interop.testing.acceptance import check_analysis, check_converter, check_trace
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.testing.rendering import dump

__all__ = ["assert_trace_equal", "check_analysis", "check_converter", "check_trace", "dump"]

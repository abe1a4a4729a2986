"""For tests, ours and other people's: traces as text, their equality, and acceptance tests.

    from chopper_interop.testing import assert_trace_equal, check_converter, dump
    from chopper_interop.testing.strategies import traces      # needs hypothesis

`check_converter` and `check_analysis` are what a package that adds a format or an analysis runs
in its own tests: they hold it to the contracts of `chopper_interop.registry`.
"""

from __future__ import annotations

from chopper_interop.testing.acceptance import check_analysis, check_converter
from chopper_interop.testing.equality import assert_trace_equal
from chopper_interop.testing.rendering import dump
from chopper_interop.testing.validity import check_trace

__all__ = ["assert_trace_equal", "check_analysis", "check_converter", "check_trace", "dump"]

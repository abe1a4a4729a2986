"""What the joined graph costs beside reading, and how both grow with the number of events.

Usage: ``python tests/benchmarks/graph.py [STEPS…]``: the sample job's Kineto files with so many
training steps each. Figures are those of one warm process; what counts are ratios.
"""

import sys
import tempfile
import time
from pathlib import Path

from chopper_interop import annotate, pipeline, sources
from chopper_interop.demo import make_demo

_SMALL, _LARGE = 80, 400
"""Steps that make about one and five million events."""


def timed(spent: dict[str, float], stage: str, function, *arguments):
    """Result of a call, whose seconds are added to a stage."""
    start = time.perf_counter()
    result = function(*arguments)
    spent[stage] = spent.get(stage, 0.0) + time.perf_counter() - start
    return result

"""Every kind of edge has what those need who read edges; a new kind fails here until it has it, too."""

import re
from pathlib import Path

import numpy as np
import pytest
from predictions import read
from programs import families
from programs.simulation import simulate
from read_once import read_once

from chopper_interop.analyses.methods.timing import paths
from chopper_interop.converters.perfetto.write.slice_data import ARROW_KINDS
from chopper_interop.edges.inference import DEPENDENCY_KINDS
from chopper_interop.schemas.kinds import DERIVED, EDGE_ENDPOINTS, HOST_WAITS, EdgeKind, Endpoint
from chopper_interop.timing import model

PAGE = Path(__file__).parents[2] / "docs/model/index.md"
STATED = {EdgeKind.FWDBWD, EdgeKind.DATA, EdgeKind.DEPENDENCY}
"""Kinds that sources state and that the timing model treats alike: ready with the end of what they wait for."""
NOT_DRAWN = {*DERIVED, EdgeKind.DEPENDENCY, EdgeKind.DURATION}
"""Kinds without an arrow: to be seen in the layout, or between any two nodes."""


@pytest.mark.parametrize("kind", EdgeKind, ids=lambda kind: kind.name)
def test_every_kind_of_edge_is_timed_drawn_and_described(kind: EdgeKind) -> None:
    names = ", ".join(re.findall(r"^\| ([a-z, ]+) \|", PAGE.read_text("utf-8"), re.MULTILINE))
    is_timed = model.EDGE_PRIORITY[kind] < model.EDGE_PRIORITY.max()
    of_path = {*paths.LATENCIES, *paths.OWN_TIME_EDGES, EdgeKind.COMM}
    places = {
        "row of docs/model/index.md": kind.name.lower() in names.split(", ")
        or kind is EdgeKind.DURATION,
        "priority in timing/model.py": is_timed or kind in STATED,
        "picture in timing/model.py": kind.name in re.findall(r"\w+", str(model.__doc__))
        or kind in STATED,
        "class of the critical path": kind in of_path | STATED,
        "arrow in Perfetto, or NOT_DRAWN here": (kind in ARROW_KINDS) != (kind in NOT_DRAWN),
        "HOST_WAITS, as it ends a node": kind in HOST_WAITS
        or kind is EdgeKind.COMM
        or EDGE_ENDPOINTS.get(kind, (None, None))[1] is not Endpoint.END,
    }
    lacks = ", ".join(place for place, is_there in places.items() if not is_there)
    assert not lacks, f"{kind.name} lacks: {lacks}"


@pytest.mark.parametrize("kind", [*DEPENDENCY_KINDS, EdgeKind.COMM], ids=lambda kind: kind.name)
def test_edges_of_every_inferred_kind_bind_somewhere(
    demo: Path, tmp_path: Path, kind: EdgeKind
) -> None:
    """An edge whose waiter keeps its measured time to itself explains nothing."""
    if kind is EdgeKind.POLL:  # the sample job's hosts poll for nothing
        timing = model.timing_of(read(simulate(families.polls(0)), tmp_path))
    else:
        timing = model.timing_of(read_once(demo / "kineto"))
    binding = timing.binding[timing.binding >= 0]
    assert np.any(timing.graph.kind[binding] == kind), "see 'kind of edge' in CONTRIBUTING.md"

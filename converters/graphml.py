"""GraphML: the dependency graph for tools that draw and measure graphs (yEd, Gephi, Cytoscape)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, TYPE_CHECKING

from chopper_interop.io import outputs
from chopper_interop.issues import Fault, IssueLog
from chopper_interop.registry import Converter
from chopper_interop.trace import Trace

if TYPE_CHECKING:
    import networkx as nx


CYCLES = Fault.loss(
    "edges-in-cycles",
    "Dependencies that close a cycle and point back in time are not in the "
    "graph: clocks contradict each other there.",
)
ALONE = Fault.info(
    "graph-without-samples",
    "A graph has no place for samples of telemetry; what they say of each node is in its columns.",
)
_BEGIN = re.compile(rb"(?:<\?xml[^>]{0,200}>)?\s*<graphml[\s>]")
_NOT_IN_XML = r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"


def write(
    trace: Trace,
    path: Path,
    *,
    only_rank: int | None = None,
    edges: str = "all",
    max_nodes: int = 1_000_000,
) -> IssueLog:
    """Write nodes with their columns, and edges with kind and gap.

    Parameters
    ----------
    path
        ``….graphml`` or ``….graphml.gz``.
    only_rank
        This rank alone, not all.
    edges
        Kinds of edges to write, with commas between them: ``launch,stream,sync``; or all.
    max_nodes
        Refuse beyond this: a graph takes 2.7 kB a node in memory, and a quarter of that on disk.

    Returns
    -------
    IssueLog
        What has no place in it.

    Raises
    ------
    UsageError
        There is no such rank or kind, or there are too many nodes.
    """
    import networkx as nx

    issues = IssueLog("GraphML")
    part = trace if only_rank is None else trace.rank(only_rank)
    kinds = None if edges == "all" else [name.strip() for name in edges.split(",")]
    graph = part.to_networkx(kinds=kinds, max_nodes=max_nodes)
    _spell(graph)
    with outputs.file(path) as stream:
        kept = _ErrorKept(stream)
        nx.write_graphml_lxml(graph, kept)  # node by node: the other writer takes 10 kB for each
        if kept.error:
            raise kept.error
    issues.add(CYCLES, graph.graph["left_out"])
    issues.add(ALONE, part.samples.num_rows)
    return issues


class _ErrorKept:
    """A stream that keeps why it could not be written: lxml says nothing of it where it closes its own."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.error: BaseException | None = None

    def write(self, data: bytes) -> int:
        """Write to the stream."""
        try:
            return self._stream.write(data)
        except BaseException as error:
            self.error = error
            raise


def _spell(graph: nx.DiGraph[int]) -> None:
    """Write out lists, which GraphML, and characters that XML cannot hold, in place."""
    # here, as it takes 4 ms and each command imports this module
    not_in_xml = re.compile(_NOT_IN_XML)
    for attributes in (graph.graph, *(about for _, about in graph.nodes(data=True))):
        for name, value in attributes.items():
            if isinstance(value, str | dict | list):
                # lists and objects are of columns that another program added
                attributes[name] = not_in_xml.sub(_escaped, str(value))


def _escaped(character: re.Match[str]) -> str:
    return f"\\x{ord(character[0]):02x}"


GRAPHML = Converter(
    name="graphml",
    description="GraphML (the dependency graph)",
    versions="1.0",
    suffixes=(".graphml", ".graphml.gz"),
    sniff=_BEGIN.match,
    json=False,
    not_read_because="it lacks lanes, samples and arguments; give the profiles that it was made of, or Parquet of these",
    write=write,
    derived=True,
    carries="every node with its columns, and what each waits for, by kind and with the time "
    "between; samples and arguments are not in it",
)

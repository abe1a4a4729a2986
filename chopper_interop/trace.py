"""The hub: a job's profile as a handful of Arrow tables, and views of them.

Readers make a `Trace`, writers and analyses take one, nobody changes one in place. pandas and
networkx are views, never the storage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chopper_interop.errors import UsageError
from chopper_interop.tables import Text, TraceTables, empty

if TYPE_CHECKING:
    from collections.abc import Iterable

    import networkx as nx
    import pandas as pd

    from chopper_interop.graph import Graph
    from chopper_interop.schemas.kinds import EdgeKind

__all__ = ["Text", "Trace", "empty"]


@dataclass(frozen=True, repr=False)
class Trace(TraceTables):
    """A job's profile: its tables, and pandas, graph and networkx views of them."""

    def to_pandas(self, table: str = "nodes", columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Table as pandas, kinds by name; of nodes without the byte ranges of their arguments.

        Parameters
        ----------
        table
            Name of one of `hub.TABLES`.
        columns
            These columns, in this order; one that the hub declares and the trace lacks is null.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> trace.to_pandas(columns=["kind", "name", "ts", "dur"])
              kind             name    ts   dur
        0   cpu_op     aten::linear     0  6000
        1  runtime  hipLaunchKernel  1000  1000
        2   kernel             gemm  3000  6000
        3  runtime  hipLaunchKernel  4000  1000
        4   kernel             relu  9500  1500
        >>> trace.to_pandas("edges")
           src  dst    kind
        0    1    2  launch
        1    3    4  launch
        """
        from chopper_interop import pandas_view

        return pandas_view.to_pandas(self, table, columns)

    def graph(self, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
        """Nodes and what each waits for, as arrays without circles; see `graph.node_graph`.

        Parameters
        ----------
        kinds
            Only edges of these kinds, by `EdgeKind` or name (``("launch", "stream")``).

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> graph = trace.graph(["launch", "stream"])
        >>> graph
        Graph('tiny': 5 vertices, 3 edges)
        >>> graph.predecessors(4).tolist()  # relu waits for gemm and for its launch
        [2, 3]
        >>> graph.gap_ns[graph.after == 4].tolist()
        [500, 5500]
        """
        from chopper_interop import graph

        return graph.node_graph(self, kinds)

    def endpoints(self, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
        """Starts and ends of nodes and what each waits for; see `graph.endpoint_graph`.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> graph = trace.endpoints()
        >>> graph  # two vertices a node: 2i is the start of node i, 2i + 1 its end
        Graph('tiny': 10 vertices, 10 edges)
        >>> graph.at_ns[4:6].tolist()  # gemm, node 2
        [3000, 9000]
        >>> graph.successors(5).tolist()  # the end of gemm is waited for by the start of relu
        [8]
        """
        from chopper_interop import graph

        return graph.endpoint_graph(self, kinds)

    def to_networkx(
        self,
        *,
        rank: int | None = None,
        kinds: Iterable[EdgeKind | str] | None = None,
        max_nodes: int = 1_000_000,
    ) -> nx.DiGraph[int]:
        """`graph` as a networkx graph without circles; node id = row number.

        Nodes have the known values of the trace's columns as attributes. Edges have `kind`, names
        joined by "+" where there are several, and `gap_ns`, the time that passes along them.

        Parameters
        ----------
        rank
            Only this rank, its nodes numbered from 0; all ranks if None.
        kinds
            Only edges of these kinds, by `EdgeKind` or name.
        max_nodes
            Refuse more nodes than this: networkx takes 1.5 kB for each.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> graph = tiny_trace().to_networkx(kinds=["launch", "stream"])
        >>> graph.nodes[4]["name"], graph.edges[2, 4]
        ('relu', {'kind': 'stream', 'gap_ns': 500})
        >>> import networkx as nx
        >>> nx.dag_longest_path(graph, weight="gap_ns")
        [3, 4]
        """
        from chopper_interop.graph import networkx_view

        trace = self if rank is None else self.rank(rank)
        if trace.nodes.num_rows > max_nodes:
            raise UsageError(
                f"{trace.nodes.num_rows:,} nodes are more than max_nodes={max_nodes:,}",
                hint="choose a rank or raise max_nodes",
            )
        return networkx_view.to_networkx(trace.to_pandas(), trace.graph(kinds))

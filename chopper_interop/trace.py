"""The hub: a job's profile as a handful of Arrow tables, and views of them.

Readers make a `Trace`, writers and analyses take one, nobody changes one in place. pandas and
networkx are views, never the storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from chopper_interop.errors import UsageError
from chopper_interop.tables import Text, TraceTables, empty

if TYPE_CHECKING:
    import networkx as nx
    import pandas as pd
    from typing_extensions import Self

    from chopper_interop.graph import Graph
    from chopper_interop.schemas.kinds import EdgeKind

__all__ = ["Text", "Trace", "empty"]


@dataclass(frozen=True, repr=False)
class Trace(TraceTables):
    """A job's profile: its tables, and pandas, graph and networkx views of them."""

    def to_pandas(self, table: str = "nodes", columns: Iterable[str] | None = None) -> pd.DataFrame:
        """Table as pandas, kinds by name; of nodes without the byte ranges of their arguments.

        Nodes have one column more, `self_ns`: `dur` without the nodes that it called. Calls nest:
        the `dur` of an operator contains that of all operators and calls within it, so that a sum
        of `dur` over host nodes counts the same time several times. Sum `self_ns` instead, or
        `dur` over nodes of one level (``frame["parent"] < 0``). Of GPU work both are the same.

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
        >>> frame = trace.to_pandas(columns=["kind", "name", "ts", "dur", "self_ns"])
        >>> frame
              kind             name    ts   dur  self_ns
        0   cpu_op     aten::linear     0  6000     4000
        1  runtime  hipLaunchKernel  1000  1000     1000
        2   kernel             gemm  3000  6000     6000
        3  runtime  hipLaunchKernel  4000  1000     1000
        4   kernel             relu  9500  1500     1500
        >>> host = frame[frame["kind"] != "kernel"]
        >>> int(host["dur"].sum()), int(host["self_ns"].sum())  # the thread was busy for 6000 ns
        (8000, 6000)
        >>> trace.to_pandas("edges")
           src  dst    kind
        0    1    2  launch
        1    3    4  launch
        """
        from chopper_interop import pandas_view

        return pandas_view.to_pandas(self, table, columns)

    def steps(self) -> pd.DataFrame:
        """Training steps: one row for each step of each rank, in order of rank and start.

        Columns are `rank`; `iteration`, the number of the step as in the nodes' column; `start_ns`
        and `end_ns`, on the axis of `ts`, of the range that marks the step on its rank, else from the
        first start to the last end of what the host does in it, or where no host was recorded, of
        its GPU work. GPUs may work on a step later; how long it takes is what the analysis
        `temporal` has with ``steps="each"``. Without known steps the table has no rows.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace().with_columns(iteration=[7, 7, 7, 7, 7])
        >>> trace.steps()
           rank  iteration  start_ns  end_ns
        0     0          7         0    6000
        """
        import pandas as pd

        from chopper_interop import training_steps

        columns = training_steps.Step._fields
        return pd.DataFrame(training_steps.marked(self), columns=columns).astype("int64")

    def between(self, start_ns: int, end_ns: int, *, cut: bool = False) -> Self:
        """Trace of the nodes that start from `start_ns` on and before `end_ns`.

        Nodes stay whole, also where they end after the window: each node of a trace is in exactly
        one of several windows that follow each other. Edges, counters and calls stay where both of
        their nodes do; samples where their time is in the window. Lanes, series, groups, `meta`
        and the axis of `ts` stay as they are; nodes are renumbered from 0. How many nodes were
        left out is one of `meta.issues`.

        Parameters
        ----------
        start_ns, end_ns
            Window on the axis of `ts`, whole nanoseconds.
        cut
            Nodes that started before the window and end in it, or later, belong to it too, and all
            are cut to the window, so that no time outside of it counts. Their bytes, FLOPs, energy
            and other annotations remain those of all of them.

        Raises
        ------
        UsageError
            The window has no length, or its times are no whole numbers.

        Examples
        --------
        >>> from chopper_interop.testing.samples import tiny_trace
        >>> trace = tiny_trace()
        >>> trace.between(4_000, 10_000).to_pandas(columns=["name", "ts", "dur"])
                      name    ts   dur
        0  hipLaunchKernel  4000  1000
        1             relu  9500  1500
        >>> trace.between(4_000, 10_000, cut=True).to_pandas(columns=["name", "ts", "dur"])
                      name    ts   dur
        0             gemm  4000  5000
        1     aten::linear  4000  2000
        2  hipLaunchKernel  4000  1000
        3             relu  9500   500
        """
        from chopper_interop import time_window

        return time_window.between(self, start_ns, end_ns, cut=cut)

    def _repr_html_(self) -> str:
        from chopper_interop import notebook

        title = f"Trace {self.meta.job}: {self.span_ns:,} ns"
        sizes = self.sizes()
        tables = pa.table({"table": list(sizes), "rows": list(sizes.values())})
        return notebook.page(title, tables, self._rank_extents())

    def _rank_extents(self) -> pa.Table:
        """Host, number of nodes, first start and last end of each rank."""
        ts, end = self.array("ts"), self.array("ts") + self.array("dur")
        hosts = {rank.rank: rank.host for rank in self.meta.ranks}
        rows = list(self.rank_rows.values())
        columns = {
            "rank": self.ranks,
            "host": [hosts.get(rank, "") for rank in self.ranks],
            "nodes": [of_rank.stop - of_rank.start for of_rank in rows],
            "start_ns": [int(ts[of_rank].min()) for of_rank in rows],
            "end_ns": [int(end[of_rank].max()) for of_rank in rows],
        }
        return pa.table(columns)

    def graph(self, kinds: Iterable[EdgeKind | str] | None = None) -> Graph:
        """Nodes and what each waits for, as arrays without cycles; see `graph.node_graph`.

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
        """`graph` as a networkx acyclic graph; node id = row number.

        Nodes have the known values of the trace's columns as attributes. Edges have `kind`, names
        joined by "+" where there are several, and `gap_ns`, the time that passes along them.

        Parameters
        ----------
        rank
            Only this rank, its nodes numbered from 0; all ranks if None.
        kinds
            Only edges of these kinds, by `EdgeKind` or name.
        max_nodes
            Refuse more nodes than this: networkx takes 2.7 kB for each, with its edges.

        Raises
        ------
        UsageError
            There are more nodes than `max_nodes`, no such rank, or no such kind.

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
        nodes = trace.nodes.drop_columns(["args_at", "args_len"])
        return networkx_view.to_networkx(nodes, trace.graph(kinds))

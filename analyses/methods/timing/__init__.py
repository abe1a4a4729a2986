"""The timing model: when nodes start and end along the graph, and why not sooner."""

"""The model of time: when things happen along the graph, and why not sooner."""

"""Annotations: columns of the nodes that follow from the trace, each stage in a package of its own."""

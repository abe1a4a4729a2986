"""GPU work within windows, and gaps without any: the basis of most analyses."""

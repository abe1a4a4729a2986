"""Data without behaviour: the hub's tables, wire formats, device figures."""

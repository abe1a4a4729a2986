"""What things are: the hub's tables, wire formats, device figures. No behaviour."""

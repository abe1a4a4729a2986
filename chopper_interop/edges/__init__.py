"""Edges: dependencies that calls, events and waits imply; which collectives of ranks are one."""

"""Edges: dependencies implied by calls, events and waits; collectives matched across ranks."""

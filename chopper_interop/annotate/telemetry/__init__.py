"""Telemetry of GPUs: series assigned to GPUs, statistics over the time of nodes, energy."""

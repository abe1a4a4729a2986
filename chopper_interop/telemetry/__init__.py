"""Telemetry beside GPU work: whose samples are whose, means over time, energy."""
